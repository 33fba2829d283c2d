"""What a figure's caption is made of, and words that several captions share."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from estr.report.labels import display, is_matched, order, task_name


@dataclass(frozen=True)
class Caption:
    """A title, the paper's claim, and what our data show: a function from the figure's CSV, of one task, to text."""

    title: str
    paper: str
    say: Callable[[pd.DataFrame], str]

    def measured(self, data: pd.DataFrame) -> list[str]:
        """What the figure's CSV shows, a text per task."""
        if "task" not in data:
            return [self.say(data)]
        texts = []
        for task, rows in data.groupby("task", sort=False):
            name = rows["title"].iloc[0] if "title" in rows else task_name(str(task))
            texts.append(f"{name}: {self.say(rows)}")
        return texts


def last_quarter(data: pd.DataFrame, metric: str) -> pd.Series:
    rows = data[(data["metric"] == metric) & (data["step"] > 0.75 * data["step"].max())]
    means: pd.Series = rows.groupby("label")["raw"].mean()
    return means.reindex(sorted(means.index, key=order))


def listed(values: pd.Series, spec: str, sds: pd.Series | None = None) -> str:
    """The values by method, each with its standard deviation over seeds where there is one."""
    return ", ".join(
        f"{display(str(label))} {value:{spec}}{plus_minus(None if sds is None else sds.get(label), spec)}"
        for label, value in values.items()
    )


def plus_minus(sd: float | None, spec: str) -> str:
    return "" if sd is None or pd.isna(sd) else f" ± {sd:{spec}}"


def best(what: str, means: pd.Series) -> str:
    """The label with the largest mean, or several that share it; sync and the matched-budget variants are left out."""
    chosen = means[[not is_matched(label) and label != "sync" for label in means.index]]
    if chosen.empty:
        return ""
    names = " and ".join(display(str(label)) for label in chosen.index[chosen == chosen.max()])
    return f" {what} of the asynchronous methods at published thresholds: {names}."


def span(values: pd.Series) -> str:
    low, high = f"{values.min():.2g}", f"{values.max():.2g}"
    return low if low == high else f"{low} to {high}"
