import shutil
from pathlib import Path

import pytest
import yaml
from processes import EVALUATE, EVALUATE_WARM_START, SCALE, TASK, TRAIN, finish

REPOSITORY = Path(__file__).parents[2]


def tiny_scale() -> dict:
    """Smoke, shrunk: twelve updates with a checkpoint after every third, an evaluation of three chunks."""
    scale = yaml.safe_load((REPOSITORY / "configs/scales/smoke.yaml").read_text())
    scale["policy"] |= {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    scale["data"] |= {"eval_problems": 300, "demonstrations": 500}
    scale["pretrain"] |= {"steps": 100, "batch_size": 32}
    scale["train"] |= {"steps": 12, "prompts": 4, "group": 4, "checkpoint_every": 3}
    scale["train"] |= {"tokens_first": 3, "tokens_every": 4}
    scale["evaluation"] |= {"samples": 2}
    scale["tasks"] = {TASK: scale["tasks"][TASK]}
    return scale


@pytest.fixture(scope="session")
def _prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    shutil.copytree(REPOSITORY / "configs", folder / "configs")
    (folder / f"configs/scales/{SCALE}.yaml").write_text(yaml.safe_dump(tiny_scale()))
    finish(folder, "data", "prepare", TASK)
    finish(folder, "pretrain", TASK)
    return folder


@pytest.fixture(scope="session")
def unbroken(_prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace in which warm start and run were made and evaluated without a fault. Not to be written to."""
    folder = tmp_path_factory.mktemp("unbroken") / "workspace"
    shutil.copytree(_prepared, folder)
    for command in (EVALUATE_WARM_START, TRAIN, EVALUATE):
        finish(folder, *command)
    return folder


@pytest.fixture
def prepared(_prepared: Path, tmp_path: Path) -> Path:
    """A workspace with data and warm start."""
    return Path(shutil.copytree(_prepared, tmp_path / "workspace"))


@pytest.fixture
def finished(unbroken: Path, tmp_path: Path) -> Path:
    """A workspace with a run and its evaluation."""
    return Path(shutil.copytree(unbroken, tmp_path / "workspace"))
