"""Tables 4 to 6 (v2: 6 to 8) as frames: ESTR's sensitivity to its threshold and to the batch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from estr.errors import UserError
from estr.report.labels import PAPER_SCALE
from estr.report.paper import PaperValues
from estr.report.run_rows import (
    RUN_COLUMNS,
    Group,
    difference_columns,
    groups_of,
    names_of_difference,
    ordering_columns,
    overridden,
    range_of_avg,
    run_row,
    verdict_column,
)
from estr.report.runs import RunResult, by_task

AIME = ("aime24", "aime25", "aime26")
"""The paper's sets beside DAPO-Math's one of ours."""

PAPER_COLUMNS = (*(f"paper_{year}_percent" for year in AIME), "paper_avg_percent", "paper_reward_percent")
RANGE_LIMIT = 2.4  # points: "performance varies by at most about 2.4 points for tau in [0.7, 1.6]"
RANGE_COLUMNS = ("range", "range_low", "range_high", "range_reward", "paper_range", "range_outcome")
SCALED = 4
"""Below paper scale one prompt of ours stands for four of the paper's: its default of 128 is our 32."""


@dataclass(frozen=True)
class Sweep:
    """A setting of ESTR that the paper varies.

    text: how a value is written. compared: by the paper's values in order, the other values that each is compared with,
    and whether the paper claims an order. artifacts: by task, those of reported.csv.
    """

    name: str
    override: str
    text: Callable[[float], str]
    compared: dict[float, dict[float, bool]]
    artifacts: dict[str, str]

    @property
    def references(self) -> list[float]:
        """Every value that another is compared with."""
        return sorted({reference for others in self.compared.values() for reference in others})

    def difference(self, reference: float) -> str:
        """Column of the difference to the setting `reference`."""
        return f"avg_minus_{self.name}{self.text(reference)}"

    @property
    def columns(self) -> list[str]:
        names = [column for reference in self.references for column in names_of_difference(self.difference(reference))]
        return ["scale", "task", self.name, *PAPER_COLUMNS, *RUN_COLUMNS, *names, "verdict"]


TAU = Sweep(
    name="tau",
    override="tau",
    text=str,
    # v2: 0.7 is the weakest on both measures of BrowseComp-Plus and on every AIME set
    compared={0.7: {1.0: True, 1.6: True}, 1.0: {1.6: False}, 1.6: {}},
    artifacts={"browsecomp_plus": "table4_tau", "dapo_math": "table5_tau"},
)
BATCH = Sweep(
    name="batch",
    override="prompts",
    text="{:.0f}".format,
    # v2: every set gains from 32 to 128, and moves by less than a point in either direction from there to 256
    compared={32: {}, 64: {32: True}, 128: {32: True}, 256: {32: True, 128: False}},
    artifacts={"dapo_math": "table6_batch"},
)


def tau_frame(runs: Sequence[RunResult], paper: PaperValues, bootstrap_seed: int = 0) -> pd.DataFrame:
    """A row per task and tau, those of the paper and those of our runs. Runs that change anything else have no row.

    `range*` say, on every row of a task, how far accuracy (points, with the interval of `range_of_avg`) and final
    reward (hundredths) lie apart over tau; `paper_range` is the widest of the paper's columns. `range_outcome`: held
    if `range` is at most 2.4 points plus half the interval's width.

    Raises:
        UserError: no run of ESTR that changes nothing else, or evaluations that differ.
    """
    rows = []
    for task, groups in _estr_groups(runs, TAU, lambda run: float(run.rule["tau"])).items():
        found = _rows(TAU, task, groups, paper, bootstrap_seed)
        shared = _range_columns(found, groups, bootstrap_seed)
        rows += [row | shared for row in found]
    return pd.DataFrame(rows).reindex(columns=[*TAU.columns, *RANGE_COLUMNS])


def batch_frame(runs: Sequence[RunResult], paper: PaperValues, bootstrap_seed: int = 0) -> pd.DataFrame:
    """A row per task and batch, those of the paper and those of our runs. Runs that change anything else have no row.

    `batch` is the paper's, `prompts` what ours has in its place.

    Raises:
        UserError: no run of ESTR that changes nothing else, or evaluations that differ.
    """
    factor = 1 if runs[0].scale == PAPER_SCALE else SCALED
    groups = _estr_groups(runs, BATCH, lambda run: float(factor * run.config["train"]["prompts"]))
    rows = [row for task in groups for row in _rows(BATCH, task, groups[task], paper, bootstrap_seed)]
    frame = pd.DataFrame(rows).reindex(columns=BATCH.columns)
    frame.insert(3, "prompts", frame["batch"] / factor)
    return frame


def _estr_groups(
    runs: Sequence[RunResult], sweep: Sweep, value: Callable[[RunResult], float]
) -> dict[str, dict[float, Group]]:
    """By task and value of the setting, the runs of ESTR that change nothing else."""
    chosen = [run for run in runs if run.method == "estr" and overridden(run) <= {sweep.override}]
    if not chosen:
        raise UserError(f"the table needs runs of estr, with no override but {sweep.override}")
    return {task: groups_of(group, value) for task, group in by_task(chosen).items()}


def _rows(
    sweep: Sweep, task: str, groups: Mapping[float, Group], paper: PaperValues, bootstrap_seed: int
) -> list[dict[str, Any]]:
    papers = {value: _paper_columns(sweep, task, value, paper) for value in (*sweep.compared, *groups)}
    scale = next(iter(groups.values())).runs[0].scale
    rows = []
    for value in sorted(value for value in papers if papers[value] or value in groups):
        row: dict[str, Any] = {"scale": scale, "task": task, sweep.name: value} | papers[value]
        if value in groups:
            row |= run_row(groups[value], bootstrap_seed)
        claims = []
        for reference, claimed in sweep.compared.get(value, {}).items():
            ours = None
            if value in groups and reference in groups:
                ours = groups[value].scores.difference(groups[reference].scores, "avg", bootstrap_seed)
            average, base = (papers[key].get("paper_avg_percent") for key in (value, reference))
            difference = None if average is None or base is None else average - base
            name = sweep.difference(reference)
            row |= (ordering_columns if claimed else difference_columns)(name, difference, ours)
            if claimed and difference is not None:
                sign = ">" if difference > 0 else "<"
                claims.append(f"{sign} {sweep.name} {sweep.text(reference)}: {row[verdict_column(name)]}")
        rows.append(row | {"verdict": "; ".join(claims)})
    return rows


def _paper_columns(sweep: Sweep, task: str, value: float, paper: PaperValues) -> dict[str, Any]:
    """The paper's numbers at one setting; DAPO-Math's average over the AIME sets is ours to take."""
    artifact, setting = sweep.artifacts.get(task, ""), f"{sweep.name}={sweep.text(value)}"
    years = {f"paper_{year}_percent": paper.get(artifact, year, "estr", "avg@4", setting) for year in AIME}
    other = {
        "paper_avg_percent": paper.get(artifact, task, "estr", "avg@1", setting),
        "paper_reward_percent": paper.get(artifact, task, "estr", "reward", setting),
    }
    columns = {name: found.value for name, found in (years | other).items() if found}
    if set(years) <= set(columns):
        columns["paper_avg_percent"] = float(np.mean([columns[name] for name in years]))
    return columns


def _range_columns(
    rows: Sequence[dict[str, Any]], groups: Mapping[float, Group], bootstrap_seed: int
) -> dict[str, Any]:
    rewards = [row["reward_last_quarter"] for row in rows if "reward_last_quarter" in row]
    columns: dict[str, Any] = {"range_reward": 100 * (max(rewards) - min(rewards)) if len(rewards) > 1 else np.nan}
    averaged = any(f"paper_{AIME[0]}_percent" in row for row in rows)
    reported = [name for name in PAPER_COLUMNS if not (averaged and name == "paper_avg_percent")]
    spans = [[row[name] for row in rows if name in row] for name in reported]
    columns["paper_range"] = max((max(values) - min(values) for values in spans if len(values) > 1), default=np.nan)
    ours = range_of_avg({tau: group.scores for tau, group in groups.items()}, bootstrap_seed)
    if ours is None:
        return columns | {"range_outcome": "not tested"}
    columns |= difference_columns("range", None, ours)
    outcome = "held" if ours.mean <= RANGE_LIMIT + (ours.high - ours.low) / 2 else "not held"
    return columns | {"range_outcome": outcome}
