"""Write Table 1 as CSV (full precision), Markdown and LaTeX from one data frame."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from estr.errors import UserError
from estr.report.edge_figure import COLLAPSE_SHARE, WINDOW, edge_scan
from estr.report.labels import display, short_name
from estr.report.paper import load_paper_values
from estr.report.runs import FIRST_STEPS, load_runs
from estr.report.table1 import COLUMNS, METRICS, REFERENCES, WARM_START, table1_frame

EMPTY = "-"
VERDICTS = ("held", "within noise", "not held", "not tested")
PAPER_SETTING = {
    "dapo_math": "mean of AIME 2024, 2025 and 2026, Qwen2.5-7B",
    "gsm8k": "multi-turn GSM8K, Qwen2.5-7B",
    "browsecomp_plus": "BrowseComp-Plus, Qwen3-30B-A3B",
}


@dataclass(frozen=True)
class View:
    """A part of a table as the reader sees it: cells are text, the same in every format."""

    title: str
    note: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def write_table1(run_dirs: Sequence[Path], calibration: Path | None, out_stem: Path, bootstrap_seed: int = 0) -> None:
    """Write out_stem.csv, .md and .tex from the runs of one scale and task.

    calibration: results/<scale>/calibration/<task>.json; required if a matched-budget run is among the runs.
    """
    frame = table1_frame(load_runs(run_dirs), calibration, load_paper_values(), bootstrap_seed)
    _write(frame, table1_views(frame), out_stem)


def write_stability_edge(run_dirs: Sequence[Path], calibration: Path | None, out_stem: Path) -> None:
    """Write the stability scan, a row per run, as out_stem.csv, .md and .tex; it has no use for a calibration."""
    runs = load_runs(run_dirs)
    frame = edge_scan(runs)
    note = (
        f"Means over {WINDOW} steps at {runs[0].scale} scale. Collapsed: the last mean is below "
        f"{COLLAPSE_SHARE:g} of the highest, the first step's included. ESTR's masked fraction is a diagnostic; "
        "no token was masked."
    )
    [view] = views_of(frame, "Stability edge of vanilla async (not in the paper)")
    _write(frame, [replace(view, note=note)], out_stem)


def _write(frame: pd.DataFrame, views: Sequence[View], out_stem: Path) -> None:
    out_stem.parent.mkdir(parents=True, exist_ok=True)
    texts = {
        "csv": frame.to_csv(index=False, lineterminator="\n"),
        "md": "\n\n".join(markdown(view) for view in views) + "\n",
        "tex": "\n\n".join(latex(view) for view in views) + "\n",
    }
    for suffix, text in texts.items():
        out_stem.with_name(f"{out_stem.name}.{suffix}").write_text(text, encoding="utf-8")


TABLES: dict[str, Callable[[Sequence[Path], Path | None, Path], None]] = {
    "table1": write_table1,
    "stability_edge": write_stability_edge,
}


def read_table(path: Path) -> pd.DataFrame:
    """Read a table's or figure's CSV back; floats come back exactly."""
    try:
        return pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as CSV; make the table again") from error


def views_of(frame: pd.DataFrame, title: str) -> list[View]:
    """Views of any table; one that is not Table 1 is shown as it stands."""
    if list(frame.columns) == COLUMNS:
        return table1_views(frame)
    rows = tuple(tuple(_plain(value) for value in row) for row in frame.itertuples(index=False))
    return [View(title, "", tuple(frame.columns), rows)]


def table1_views(frame: pd.DataFrame) -> list[View]:
    """Results, paired differences (one view per metric), masking, and run ids."""
    return [
        _results(frame),
        *(_differences(frame, metric) for metric in METRICS),
        _masking(frame),
        _run_ids(frame),
    ]


def _results(frame: pd.DataFrame) -> View:
    scale, task, k = (frame[column].iloc[0] for column in ("scale", "task", "k"))
    headers = (
        "Method",
        f"Paper avg@{k} (%)",
        f"Paper pass@{k} (%)",
        "Basis",
        f"Ours avg@{k} (%, {scale} scale)",
        f"Ours pass@{k} (%, {scale} scale)",
        "Seeds",
        "Problems",
        f"Verdict on avg@{k}",
        "Runs",
    )
    rows = []
    for _, row in frame.iterrows():
        rows.append(
            (
                _name(row),
                *(_number(row[f"paper_{metric}_percent"], ".2f") for metric in METRICS),
                _plain(row["paper_basis"]),
                *(_spread(row, f"ours_{metric}_percent") for metric in METRICS),
                *(_number(row[name], ".0f") for name in ("n_seeds", "n_problems")),
                _plain(row["verdict"]),
                compact_run_ids(row["run_ids"]).replace(f"{scale}/{task}/", ""),
            )
        )
    note = (
        f"Paper: {PAPER_SETTING.get(task, task)}, no spread given. Ours: {task} at {scale} scale, mean ± "
        "standard deviation over seeds [bootstrap 95 % interval over problems]. Below paper scale the "
        "model and the problems are others, so the levels cannot agree and only orderings are compared. "
        "Held: the 95 % interval of the paired difference lies on the paper's side of zero; not held: on "
        f"the other side; within noise: neither. Run ids start with {scale}/{task}/."
    )
    return View(f"Table 1: accuracy on {task}", note, headers, tuple(rows))


def _differences(frame: pd.DataFrame, metric: str) -> View:
    k = frame["k"].iloc[0]
    headers = ["Method"]
    for reference in REFERENCES:
        name = short_name(reference)
        headers += [f"Paper - {name}", f"Ours - {name}", "Verdict"]
    rows = []
    for _, row in frame[frame["label"] != WARM_START].iterrows():
        cells = [_name(row)]
        for reference in REFERENCES:
            name = f"{metric}_minus_{reference}"
            ours = _number(row[name], "+.1f")
            if ours != EMPTY:
                ours += f" [{row[f'{name}_low']:+.1f}, {row[f'{name}_high']:+.1f}]"
            verdict = _plain(row[f"{metric}_vs_{reference}_verdict"])
            cells += [_number(row[f"paper_{name}"], "+.2f"), ours, verdict]
        if set(cells[1:]) != {EMPTY}:
            rows.append(tuple(cells))
    note = (
        "Percentage points; ours is paired by seed and problem, with the bootstrap 95 % interval over both "
        "(over problems alone if there is one seed). Against sync, ESTR's avg@"
        f"{k} is held to the paper's claim of matching it within 1.5 points. "
        "Rows at the matched budget carry no verdict: the paper's Table 1 has none of them."
    )
    return View(f"Paired differences in {metric}@{k}", note, tuple(headers), tuple(rows))


def _masking(frame: pd.DataFrame) -> View:
    headers = (
        "Method",
        "Thresholds",
        "Masked at calibration (%)",
        f"Masked, first {FIRST_STEPS} steps (%)",
        "Masked, whole training (%)",
        "Paper, GSM8K: masked, training (%)",
        f"Entropy of masked, first {FIRST_STEPS} steps (nats)",
        "Paper, GSM8K: entropy of masked (nats)",
        "Reward, last quarter",
    )
    rows = [
        (
            _name(row),
            _plain(row["thresholds"]),
            _number(row["calibrated_masked_percent"], ".3g"),
            _number(row["masked_fraction_first50_percent"], ".3g"),
            _number(row["masked_fraction_mean_percent"], ".3g"),
            _number(row["paper_gsm8k_masked_fraction_mean_percent"], ".2f"),
            _number(row["masked_entropy_first50_nats"], ".2f"),
            _number(row["paper_gsm8k_masked_entropy_first50_nats"], ".2f"),
            _spread(row, "reward_last_quarter", ".3f"),
        )
        for _, row in frame[frame["label"] != WARM_START].iterrows()
        if isinstance(row["run_ids"], str)
    ]
    note = (
        "Means over seeds; percentages of response tokens. Matched: threshold calibrated on a shared batch "
        f"to ESTR's masked fraction. Runs of fewer than {FIRST_STEPS} steps count whole. Paper: matched "
        "budgets on multi-turn GSM8K (v1 Table 7, v2 prose for M2PO), another task."
    )
    return View("What the rules mask", note, headers, tuple(rows))


def _run_ids(frame: pd.DataFrame) -> View:
    rows = [
        (_name(row), compact_run_ids(row["run_ids"]), _plain(row["commits"]), _plain(row["config_hashes"]))
        for _, row in frame.iterrows()
        if isinstance(row["run_ids"], str)
    ]
    return View("Runs", "", ("Method", "Run ids", "Commit", "Config hashes"), tuple(rows))


def compact_run_ids(run_ids: object) -> str:
    """``a/seed0 a/seed1`` -> ``a/seed{0,1}``."""
    if not isinstance(run_ids, str):
        return EMPTY
    seeds: dict[str, list[str]] = {}
    for run_id in run_ids.split():
        stem, _, seed = run_id.rpartition("seed")
        seeds.setdefault(stem, []).append(seed)
    return " ".join(f"{s}seed{n[0]}" if len(n) == 1 else f"{s}seed{{{','.join(n)}}}" for s, n in seeds.items())


def markdown(view: View) -> str:
    """A heading, the table, its note."""
    lines = [f"### {view.title}", ""]
    for cells in (view.headers, ("---",) * len(view.headers), *view.rows):
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, "", view.note] if view.note else lines)


_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "<": r"$<$",
    ">": r"$>$",
}


def latex_escape(text: str) -> str:
    """Text as LaTeX sets it literally."""
    return "".join(_LATEX.get(character, character) for character in text)


def latex(view: View) -> str:
    """A booktabs table, scaled to the line width (needs the packages booktabs and graphicx)."""

    def line(cells: Sequence[str]) -> str:
        return " & ".join(latex_escape(cell) for cell in cells) + r" \\"

    return "\n".join(
        [
            r"\begin{table*}",
            r"\centering",
            rf"\caption{{{latex_escape(f'{view.title}. {view.note}'.strip())}}}",
            r"\resizebox{\linewidth}{!}{%",
            rf"\begin{{tabular}}{{{'l' * len(view.headers)}}}",
            r"\toprule",
            line(view.headers),
            r"\midrule",
            *(line(row) for row in view.rows),
            r"\bottomrule",
            r"\end{tabular}}",
            r"\end{table*}",
        ]
    )


def _name(row: pd.Series) -> str:
    return "Warm start" if row["label"] == WARM_START else display(row["label"])


def _number(value: Any, spec: str) -> str:
    return EMPTY if pd.isna(value) else format(float(value), spec)


def _spread(row: pd.Series, name: str, spec: str = ".1f") -> str:
    """``mean ± sd [low, high]`` with what exists of it; the sd of one seed is '-'."""
    if pd.isna(row[name]):
        return EMPTY
    text = f"{_number(row[name], spec)} ± {_number(row[f'{name}_sd'], spec)}"
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    return text if pd.isna(low) else f"{text} [{low:{spec}}, {high:{spec}}]"


def _plain(value: Any) -> str:
    if pd.isna(value) or value == "":
        return EMPTY
    return f"{value:.4g}" if isinstance(value, float) else str(value)
