"""What the trainer processes recorded -> `metrics.parquet` and `tokens.parquet` of the run, as the embedded engine
writes them.

Sums are added over micro-batches and ranks and divided once, so that every mean is exact. An update that was done again
after a crash counts in its last attempt alone. Columns that verl gives no access to are NaN or absent; docs/limits.md
lists them.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from estr.cluster.sums import DIVISORS
from estr.errors import UserError
from estr.provenance import unseal
from estr.records import TOKEN_SCHEMA, metrics_row, write_table

LARGEST = ("staleness_intra_max", "staleness_inter_max", "log_ratio_max")
NOT_RECORDED = (
    *("tool_calls", "tool_errors", "kl_to_behavior_low_entropy", "kl_to_behavior_high_entropy"),
    *("masked_fraction_low_entropy", "masked_fraction_high_entropy"),
)


def export(record: Path, logs: Iterable[Path], learning_rate: float, out: Path) -> int:
    """Write both tables into `out` and return the number of updates.

    `logs` are verl's own metrics by version, attempt after attempt: the gradient's norm is read from them.

    Raises:
        UserError: nothing was recorded, a line is damaged, or an update is missing.
    """
    lines = _last_attempts(record)
    steps = sorted(lines)
    if steps != list(range(1, len(steps) + 1)):
        missing = sorted(set(range(1, steps[-1] + 1)) - set(steps))
        raise UserError(
            f"{record}: the updates {missing[:5]} were not recorded (or policy_loss.updates_per_version is larger than "
            "the updates between two pushes of weights); delete the run's state/<hash>/ to start over"
        )
    write_table(_metrics(lines, gradient_norms(logs), learning_rate), out / "metrics.parquet")
    write_table(_tokens(record, lines), out / "tokens.parquet")
    return len(steps)


def metrics_so_far(record: Path, logs: Iterable[Path], learning_rate: float, saved_version: int) -> pa.Table | None:
    """The rows of `metrics.parquet` of a run under way that are final; None if there are none.

    They reach up to `saved_version`, that of the last checkpoint (later updates are done again after a crash, with
    other results), and to the last version that verl has logged.

    Raises:
        UserError: as `export` does.
    """
    norms = gradient_norms(logs)
    if not norms or not any(record.glob("sums-*.jsonl")):
        return None
    last = min(saved_version, max(norms))
    lines = {step: found for step, found in _last_attempts(record).items() if found[0]["target_version"] < last}
    return _metrics(lines, norms, learning_rate) if lines else None


def _metrics(lines: Mapping[int, list[dict[str, Any]]], norms: Mapping[int, float], learning_rate: float) -> pa.Table:
    rows: list[pa.Table] = []
    before: dict[int, float] = {}  # end of the update before, by attempt
    for step in sorted(lines):
        version = lines[step][0]["target_version"]
        attempt = lines[step][0]["attempt"]
        row = _row(step, lines[step], before.get(attempt, math.nan)) | {
            "learning_rate": learning_rate,
            # verl logs one value per version: the mean over its updates
            "grad_norm": norms.get(version + 1, math.nan),
        }
        before[attempt] = row["wall_time"]
        rows.append(metrics_row(row))
    return pa.concat_tables(rows)


def last_update(record: Path) -> int:
    """The last update that any attempt recorded, 0 if none."""
    return max(_last_attempts(record), default=0) if record.is_dir() and any(record.glob("sums-*.jsonl")) else 0


def updates_done_again(record: Path) -> int:
    """Updates that more than one attempt computed."""
    return sum(len({line["attempt"] for line in found}) > 1 for found in _all_attempts(record).values())


def last_sign_of(record: Path, attempt: int) -> float | None:
    """When an attempt recorded something last, in seconds since the epoch; None if it never did."""
    times = [line["time"] for found in _all_attempts(record).values() for line in found if line["attempt"] == attempt]
    return max(times, default=None)


def _last_attempts(record: Path) -> dict[int, list[dict[str, Any]]]:
    lines = _all_attempts(record)
    last = {step: max(line["attempt"] for line in found) for step, found in lines.items()}
    return {step: [line for line in found if line["attempt"] == last[step]] for step, found in lines.items()}


def _all_attempts(record: Path) -> dict[int, list[dict[str, Any]]]:
    lines: dict[int, list[dict[str, Any]]] = defaultdict(list)
    files = sorted(record.glob("sums-*.jsonl"))
    if not files:
        raise UserError(f"{record}: no trainer process recorded anything; is external_lib=estr.cluster.verl set?")
    for file in files:
        content = file.read_text().splitlines()
        for number, text in enumerate(content, start=1):
            try:
                line = unseal(json.loads(text))
            except ValueError as error:
                if number == len(content):  # the process was killed while it wrote; the update is done again
                    continue
                raise UserError(f"{file}, line {number}: damaged ({error})") from error
            lines[line["step"]].append(line)
    return lines


def _row(step: int, lines: list[dict[str, Any]], before: float) -> dict[str, Any]:
    def total(name: str) -> float:
        return float(sum(line[name] for line in lines))

    row: dict[str, Any] = {"step": step, "target_version": lines[0]["target_version"]}
    rewards = [reward for line in lines for reward in line["rewards"]]
    turns = [count for line in lines for count in line["turns"]]
    row["reward"] = sum(rewards) / len(rewards) if rewards else math.nan
    row["accuracy_groups_mixed"] = _mixed(lines)
    row["response_length"] = total("response_tokens") / max(total("trajectories"), 1)
    row["turns"] = sum(turns) / len(turns) if turns else math.nan
    for divisor, names in DIVISORS.items():
        size = total(divisor)
        row |= {name: total(name) / size if size else math.nan for name in names}
    row |= {name: max(line[name] for line in lines) for name in LARGEST}
    row |= {"loss": total("loss"), "response_tokens": total("response_tokens")}
    row |= dict.fromkeys(NOT_RECORDED, math.nan)
    first, last = min(line["time"] for line in lines), max(line["time"] for line in lines)
    row["time_train"] = last - first
    row["time_generate"] = first - before if not math.isnan(before) else 0.0
    return row | {"wall_time": last}


def _mixed(lines: list[dict[str, Any]]) -> float:
    groups: dict[str, set[float]] = defaultdict(set)
    for line in lines:
        for group, reward in zip(line["groups"], line["rewards"], strict=True):
            groups[group].add(reward)
    return (
        sum(len(rewards) > 1 for rewards in groups.values()) / len(groups) if groups and "" not in groups else math.nan
    )


def _tokens(record: Path, lines: Mapping[int, list[dict[str, Any]]]) -> pa.Table:
    """Tokens of the attempts that count; `sequence` counts on over micro-batches and ranks."""
    parts, start = [TOKEN_SCHEMA.empty_table()], 0
    attempts = {step: found[0]["attempt"] for step, found in lines.items()}
    for file in sorted(record.glob("tokens-*.parquet")):
        attempt = int(file.stem.partition("attempt")[2].partition("-")[0])
        table = pq.read_table(file)
        if len(table) == 0 or attempts.get(table["step"][0].as_py()) != attempt:
            continue
        place = table.schema.get_field_index("sequence")
        parts.append(table.set_column(place, "sequence", pc.add(table["sequence"], start)))
        start = pc.max(parts[-1]["sequence"]).as_py() + 1
    return pa.concat_tables(parts).sort_by(
        [("step", "ascending"), ("sequence", "ascending"), ("position", "ascending")]
    )


def gradient_norms(logs: Iterable[Path]) -> dict[int, float]:
    """`actor/grad_norm` by verl's step, the last attempt's."""
    found: dict[int, float] = {}
    for log in logs:
        if not log.exists():
            continue
        for text in log.read_text().splitlines():
            try:
                line = json.loads(text)
            except ValueError:  # the last line of a killed process
                continue
            if "actor/grad_norm" in line["data"]:
                found[int(line["step"])] = float(line["data"]["actor/grad_norm"])
    return found
