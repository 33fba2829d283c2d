"""`python -m benchmarks.load`: seconds and memory of every stage on many long runs, at three sizes.

Writing is measured on one run of 500, 1,000 and 2,000 steps with up to 10^6 token rows; everything else on studies of
15, 30 and 60 runs of 2,000 steps that hold 10^6 token rows at the largest. The runs repeat the rows of a real one.
"""

import json
import math
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.step import TASK, StepSizes, started
from benchmarks.timing import ESTR, ProcessSpent, of_a_process
from estr.config import RunConfig, keep_rule, load_scale, resolve
from estr.evaluate_run import evaluate, evaluate_warm_start
from estr.layout import Layout
from estr.provenance import commit, machine, read_json, write_json
from estr.records import GrowingTable, write_table
from estr.report.labels import METHODS
from estr.run_record import run_record
from estr.stages import train

FOLDER = Path(__file__).parent
STEPS, TOKENS = 2_000, 1_000_000
CHECKPOINT_EVERY = 50


@dataclass(frozen=True)
class Stage:
    """What one stage took at each size."""

    name: str
    unit: str
    sizes: tuple[float, ...]
    spent: list[ProcessSpent]

    @property
    def exponent(self) -> float:
        """Of CPU seconds against size between the outer sizes; 1 is linear, less has a start-up in it."""
        return math.log(self.spent[-1].cpu / self.spent[0].cpu) / math.log(self.sizes[-1] / self.sizes[0])


def repeated(table: pa.Table, rows: int) -> pa.Table:
    """`rows` rows: the table over and over."""
    return table.take(pa.array(np.arange(rows) % len(table)))


def long_metrics(table: pa.Table, steps: int) -> pa.Table:
    """`steps` rows in the table's columns, numbered from 1."""
    number = np.arange(1, steps + 1)
    longer = repeated(table, steps)
    for name, values in (("step", number), ("target_version", number - 1), ("wall_time", 1.8e9 + number)):
        place = longer.schema.get_field_index(name)
        longer = longer.set_column(place, longer.schema.field(place), pa.array(values, longer.schema.field(place).type))
    return longer


def writing(metrics: pa.Table, tokens: pa.Table, folder: Path) -> list[Stage]:
    """The two tables of a run as its trainer writes them: rows step by step, a whole file at every checkpoint."""
    stages = []
    steps = (STEPS // 4, STEPS // 2, STEPS)
    for name, table, per_step in (
        ("metrics", long_metrics(metrics, STEPS), 1),
        ("tokens", repeated(tokens, TOKENS), TOKENS // STEPS),
    ):
        source = folder / f"{name}.parquet"
        write_table(table, source)
        code = "import sys; from benchmarks.load import write; write(*sys.argv[1:])"
        spent = [of_a_process("-c", code, str(source), str(per_step), str(count)) for count in steps]
        stages.append(Stage(f"write {name}", "rows", tuple(count * per_step for count in steps), spent))
    return stages


def write(source: str, per_step: str, steps: str) -> None:
    """What `writing` measures."""
    table, rows = pq.read_table(source), int(per_step)
    growing = GrowingTable(table.schema)
    for step in range(1, int(steps) + 1):
        growing.add(table.slice((step - 1) * rows, rows))
        if step % CHECKPOINT_EVERY == 0:
            write_table(growing.table(), Path(source).with_name("written.parquet"))


def build(layout: Layout, real: Path, configs: Sequence[RunConfig], tokens_each: int) -> list[Path]:
    """The folders of as many complete, evaluated runs as there are configurations, with the rows of a real one."""
    metrics = long_metrics(pq.read_table(real / "metrics.parquet"), STEPS)
    tokens = repeated(pq.read_table(real / "tokens.parquet"), tokens_each)
    evaluation = read_json(real / "evaluation.json")
    folders = []
    for config in configs:
        folder = layout.run(config)
        shutil.copytree(real / "policy", folder / "policy")
        write_table(metrics, folder / "metrics.parquet")
        write_table(tokens, folder / "tokens.parquet")
        write_json(folder / "run.json", run_record(config, keep_rule(config), "", 100.0, STEPS, None, folder))
        write_json(folder / "evaluation.json", evaluation | {"run_id": config.run_id, "steps": STEPS})
        folders.append(folder)
    return folders


def studies(layout: Layout, real: Path, sizes: Sequence[int]) -> list[Stage]:
    """Every stage after training on studies of so many runs: main results with as many seeds as need be."""
    tasks, methods = load_scale(layout.scale).tasks, METHODS[::-1]  # ESTR first: the token figures need it
    configs = [
        resolve(layout.scale, task, method, seed)
        for seed in range(max(sizes) // (len(tasks) * len(methods)) + 1)
        for task in tasks
        for method in methods
    ]
    spent: dict[str, list[ProcessSpent]] = {}
    for size in sizes:
        with tempfile.TemporaryDirectory() as name:
            study = Layout(Path(name), layout.scale)
            shutil.copytree(layout.data(TASK), study.data(TASK))
            folders = list(map(str, build(study, real, configs[:size], TOKENS // max(sizes))))
            options = ("--scale", study.scale, "--results", name)
            table, figure = f"{name}/table1.csv", f"{name}/fig06_07_reward.png"
            stages = {
                "MLflow import": ("track", "import", *options),
                "table 1": ("table", "table1", *folders, "--out", table),
                "claims": ("table", "claims", *folders, "--out", f"{name}/claims.csv"),
                "figure of metrics": ("figure", "fig06_07_reward", *folders, "--out", figure),
                "figure of tokens": ("figure", "fig13_mask_evolution", *folders, "--out", f"{name}/fig13.png"),
                "report": (
                    "report",
                    *folders,
                    "--table",
                    table,
                    "--figure",
                    figure,
                    "--out",
                    f"{name}/r.html",
                    *options,
                ),
            }
            for stage, arguments in stages.items():
                spent.setdefault(stage, []).append(of_a_process(*ESTR, *arguments))
                click.echo(f"{size} runs, {stage}: {spent[stage][-1].wall:.0f} s", err=True)
    return [Stage(name, "runs", tuple(sizes), found) for name, found in spent.items()]


def planned(scale: str) -> ProcessSpent:
    """`snakemake -n all` in this checkout."""
    return of_a_process("-m", "snakemake", "-n", "-q", "all", "--config", f"scale={scale}")


def table(stages: Sequence[Stage]) -> str:
    """Markdown: seconds and memory at each size, and the growth."""
    lines = ["| stage | sizes | seconds | CPU seconds | MB | CPU grows as |", "|---|---|---|---|---|---|"]
    for stage in stages:
        columns = (
            [f"{size:,.0f}" for size in stage.sizes],
            [f"{found.wall:.1f}" for found in stage.spent],
            [f"{found.cpu:.1f}" for found in stage.spent],
            [f"{found.memory:.0f}" for found in stage.spent],
        )
        sizes, *numbers = (" / ".join(column) for column in columns)
        lines.append(f"| {stage.name} | {sizes} {stage.unit} | {' | '.join(numbers)} | size^{stage.exponent:.2f} |")
    return "\n".join(lines)


def content(stages: Sequence[Stage], plans: Mapping[str, ProcessSpent]) -> dict[str, Any]:
    """What a file of results holds."""
    return {
        "date": str(date.today()),
        "commit": commit(),
        "machine": machine(),
        "plans": {scale: found._asdict() for scale, found in plans.items()},
        "stages": [
            {
                "name": stage.name,
                "unit": stage.unit,
                "sizes": list(stage.sizes),
                "spent": [found._asdict() for found in stage.spent],
            }
            for stage in stages
        ],
    }


@click.command(help=__doc__)
@click.option("--size", "sizes", multiple=True, default=(15, 30, 60), show_default=True, help="runs of a study")
def main(sizes: tuple[int, ...]) -> None:
    with started(StepSizes()) as layout:
        short = StepSizes().config("estr")
        short = short.model_copy(update={"train": short.train.model_copy(update={"steps": 20, "tokens_first": 20})})
        train(layout, short)
        evaluate_warm_start(layout, short)
        evaluate(layout, short)
        real = layout.run(short)
        columns = [pq.read_table(real / name) for name in ("metrics.parquet", "tokens.parquet")]
        with tempfile.TemporaryDirectory() as folder:
            stages = writing(*columns, Path(folder))
        stages += studies(layout, real, sorted(sizes))
    plans = {scale: planned(scale) for scale in ("laptop", "paper")}
    out = FOLDER / "results" / f"load-{date.today()}.json"
    out.write_text(json.dumps(content(stages, plans), indent=2) + "\n")
    click.echo(table(stages))
    for scale, found in plans.items():
        click.echo(f"`snakemake -n all`, scale {scale}: {found.wall:.1f} s, {found.memory:.0f} MB")


if __name__ == "__main__":
    main()
