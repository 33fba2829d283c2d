from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from estr.config import RunConfig, resolve
from estr.layout import Layout
from estr.provenance import write_json
from estr.records import metrics_row
from estr.tracking import Catalogue, load_catalogue
from estr.tracking.store import client_of


def metrics(*steps: int) -> pa.Table:
    nan = float("nan")
    rows = [{"step": s, "target_version": s - 1, "reward": s / 10, "masked_entropy": nan} for s in steps]
    clock = {"time_generate": 0.25, "time_train": 0.75}
    return pa.concat_tables([metrics_row(row | clock | {"wall_time": 1e9 + row["step"]}) for row in rows])


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    return load_catalogue("smoke")


@pytest.fixture(scope="session")
def fresh_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty SQLite store with MLflow's tables, to copy: making them takes seconds."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    client_of(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "results", "smoke")


@pytest.fixture
def complete(layout: Layout) -> Callable[..., Path]:
    """Writes the files of a complete run of three steps; the default is in several experiments."""

    def write(task: str = "gsm8k", label: str = "estr", seed: int = 0, **more: object) -> Path:
        config: RunConfig = resolve("smoke", task, label, seed)
        folder = layout.run(config)
        (folder / "policy").mkdir(parents=True)
        for name in ("tokens.parquet", "policy/model.safetensors"):
            (folder / name).write_text("x")
        pq.write_table(metrics(1, 2, 3), folder / "metrics.parquet")
        record = {
            "run_id": config.run_id,
            "config_hash": config.hash,
            "config": config.model_dump(),
            "commit": "0123abc",
        }
        write_json(folder / "run.json", record | {"rule": {"tau": 0.5}, "slurm_jobs": ["17"]} | more)
        write_json(folder / "evaluation.json", {"steps": 3, "avg@4": 0.25, "n_problems": 4})
        data = layout.data(task)
        data.mkdir(parents=True, exist_ok=True)
        for name in ("train", "eval"):
            pq.write_table(pa.table({"index": [1, 2]}), data / f"{name}.parquet")
        layout.load(config).write_text(
            '{"time": 1e9, "cpu_utilization_percentage": 50.0}\n'
            '{"time": 1000000005.0, "cpu_utilization_percentage": 75.0}\n{"time": 10000'
        )
        return folder

    return write
