import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.security.leaks import watched
from tests.servers import ENVIRONMENT

VARIABLES = (
    "ESTR_SERVER_API_KEY",
    "ESTR_JUDGE_API_KEY",
    "ESTR_BROWSECOMP_PLUS_CANARY",
    "HF_TOKEN",
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    "OPENAI_API_KEY",
    "WANDB_API_KEY",
    "RAY_AUTH_TOKEN",
)
RUN = "results/smoke/runs/dapo_math/estr/seed0"
TRAINING = [
    "data prepare dapo_math --scale smoke",
    "pretrain dapo_math --scale smoke",
    "track open --scale smoke --live",
    "train dapo_math estr --scale smoke",
    "evaluate dapo_math warm_start --scale smoke",
    "evaluate dapo_math estr --scale smoke",
    f"track runs {RUN} --out results/smoke/mlflow/runs.json --scale smoke",
    f"report {RUN} --mlflow results/smoke/mlflow/runs.json --out report.html --scale smoke",
]
AWAY = "track open --scale smoke --results away --uri http://127.0.0.1:9"


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `estr` finds its configuration."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "configs").symlink_to(REPOSITORY / "configs")
    return folder


@pytest.fixture(scope="session")
def keys() -> dict[str, str]:
    return {name: f"{name[:4]}-{secrets.token_hex(12)}+/%={secrets.token_hex(4)}" for name in VARIABLES}


@pytest.fixture(scope="session")
def environment(keys: dict[str, str]) -> dict[str, str]:
    return ENVIRONMENT | keys | {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "HF_HUB_OFFLINE": "0"}


def estr(folder: Path, environment: dict[str, str], *commands: str) -> subprocess.CompletedProcess[str]:
    """Run commands of `estr` one after the other, in one process that has MLflow and torch loaded."""
    code = "import sys; from estr.cli import main\nfor line in sys.argv[1:]: main(line.split(), standalone_mode=False)"
    command = [sys.executable, "-c", code, *commands]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="session")
def trained(checkout: Path, environment: dict[str, str]) -> tuple[Path, list[str]]:
    """A run of the smoke scale, from data to report, with every key set; the folder and all that was said."""
    with watched() as commands:
        done = estr(checkout, environment, *TRAINING)
        assert done.returncode == 0, done.stderr
        away = estr(checkout, environment, AWAY)
        assert away.returncode != 0
    assert any("train dapo_math estr" in command for command in commands)
    return checkout, [done.stdout, done.stderr, away.stdout, away.stderr, *commands]
