"""The tables of README.md, from a results file."""

from itertools import groupby
from pathlib import Path
from typing import Any

from estr.provenance import read_json

START, END = "<!-- results -->", "<!-- end of results -->"
HEAD = "| case | what | in units of | CPU ratio | clock ratio | CPU ms of one | of the unit | target | |\n"
RULER = "|---|---|---|---|---|---|---|---|---|\n"


def write(readme: Path, results: Path) -> None:
    """Replace what stands between the two marks of `readme`."""
    text = readme.read_text()
    before, after = text[: text.index(START)], text[text.index(END) :]
    readme.write_text(f"{before}{START}\n\n{render(read_json(results), results.name)}\n{after}")


def render(content: dict[str, Any], name: str) -> str:
    machine, load = content["machine"], content["load_average"]
    packages = ", ".join(f"{key} {content['packages'][key]}" for key in ("torch", "transformers", "trl", "mlflow"))
    lines = [
        f"`results/{name}`: {content['date']}, commit {content['commit']}; {machine['processor']}, {machine['cores']} "
        f"cores, one thread; Python {machine['python']}, {packages}; load average {load['before']:.1f} before, "
        f"{load['after']:.1f} after; {sum(content['seconds'].values()) / 60:.0f} minutes. {content['note']}".strip()
        + "\n"
    ]
    measurements = [row for rows in content["measurements"].values() for row in rows]
    for benchmark, rows in groupby(measurements, lambda row: row["benchmark"]):
        lines.append(f"\n### {benchmark[0].upper() + benchmark[1:]}\n\n{HEAD}{RULER}")
        lines += [_row(row) for row in rows]
    return "".join(lines)


def _row(row: dict[str, Any]) -> str:
    target = ""
    if row["at_most"] is not None:
        target = f"at most {row['at_most']:g}"
    if row["at_least"] is not None:
        target = f"at least {row['at_least']:g}"
    fine = any(name in row["benchmark"] for name in ("MLflow", "recording"))
    digits = 4 if "update" in row["benchmark"] else 3 if fine else 2
    cells = [
        row["case"],
        row["arm"],
        row["baseline"],
        f"**{_spread(row['cpu'], digits)}**",
        _spread(row["wall"], digits),
        _milliseconds(row["seconds"]),
        _milliseconds(row["baseline_seconds"]),
        target,
        row["verdict"],
    ]
    return f"| {' | '.join(cells)} |\n"


def _spread(values: list[float], digits: int) -> str:
    low, median, high = values
    return f"{median:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def _milliseconds(values: list[float]) -> str:
    return f"{values[1] * 1e3:.3g}" if values[1] < 1 else f"{values[1] * 1e3:.0f}"
