"""A part of a table as the reader sees it, in Markdown and LaTeX; every format shows the same cells."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from estr.files.atomic import replacing

EMPTY = "-"


@dataclass(frozen=True)
class View:
    """Cells are text. groups: (name, number of columns) over all headers, or nothing; section: a task's name."""

    title: str
    note: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    groups: tuple[tuple[str, int], ...] = ()
    section: str = ""

    @property
    def starts(self) -> tuple[int, ...]:
        """Index of the first column of every group but the first."""
        widths = [width for _, width in self.groups]
        return tuple(sum(widths[:index]) for index in range(1, len(widths)))


def without_empty_columns(view_headers: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[Any, Any]:
    """Headers and rows without the columns in which no row has anything; the first one stays."""
    keep = [i for i in range(len(view_headers)) if i == 0 or any(row[i] != EMPTY for row in rows)]
    return tuple(view_headers[i] for i in keep), tuple(tuple(row[i] for i in keep) for row in rows)


def number(value: Any, spec: str) -> str:
    """The number by its format specification; EMPTY for none."""
    return EMPTY if pd.isna(value) else format(float(value), spec)


def spread(row: pd.Series, name: str, spec: str = ".1f") -> str:
    """``mean ± sd [low, high]`` with what exists of it; the sd of one seed is '-'."""
    text = plus_minus(row, name, spec)
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    return text if text == EMPTY or pd.isna(low) else f"{text} [{low:{spec}}, {high:{spec}}]"


def plus_minus(row: pd.Series, name: str, spec: str = ".1f") -> str:
    """``mean ± sd``, the mean alone of one seed."""
    if pd.isna(row[name]):
        return EMPTY
    deviation = row[f"{name}_sd"]
    return number(row[name], spec) + ("" if pd.isna(deviation) else f" ± {number(deviation, spec)}")


def plain(value: Any) -> str:
    """Any cell of a CSV as text."""
    if pd.isna(value) or value == "":
        return EMPTY
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def markdown(view: View) -> str:
    """A heading, the table, its note. Group names stand in the header, the columns' own names below it."""
    lines = [f"### {view.title}", ""]
    if view.groups:
        head = tuple(cell for name, width in view.groups for cell in (name, *("",) * (width - 1)))
        body = (tuple(f"**{header}**" if header else "" for header in view.headers), *view.rows)
    else:
        head, body = view.headers, view.rows
    for cells in (head, ("---",) * len(head), *body):
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
    "≈": r"$\approx$",
    "†": r"$\dagger$",
    "→": r"$\rightarrow$",
    "δ": r"$\delta$",
    "²": "$^2$",
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

    names, rules, left = [], [], 1
    for name, width in view.groups:
        names.append(rf"\multicolumn{{{width}}}{{l}}{{{latex_escape(name)}}}")
        if name:
            rules.append(rf"\cmidrule(lr){{{left}-{left + width - 1}}}")
        left += width
    groups = [" & ".join(names) + r" \\", "".join(rules)] if names else []
    return "\n".join(
        [
            r"\begin{table*}",
            r"\centering",
            rf"\caption{{{latex_escape(f'{view.title}. {view.note}'.strip())}}}",
            r"\resizebox{\linewidth}{!}{%",
            rf"\begin{{tabular}}{{{'l' * len(view.headers)}}}",
            r"\toprule",
            *groups,
            line(view.headers),
            r"\midrule",
            *(line(row) for row in view.rows),
            r"\bottomrule",
            r"\end{tabular}}",
            r"\end{table*}",
        ]
    )


def write_table(frame: pd.DataFrame, views: Sequence[View], out_stem: Path) -> None:
    """Write out_stem.csv, the frame in full precision, and its views as .md and .tex."""
    out_stem.parent.mkdir(parents=True, exist_ok=True)
    texts = {
        "csv": frame.to_csv(index=False, lineterminator="\n"),
        "md": "\n\n".join(markdown(view) for view in views) + "\n",
        "tex": "\n\n".join(latex(view) for view in views) + "\n",
    }
    for suffix, text in texts.items():
        with replacing(out_stem.with_name(f"{out_stem.name}.{suffix}")) as new:
            new.write_text(text, encoding="utf-8")
