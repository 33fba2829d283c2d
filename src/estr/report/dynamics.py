"""Figures that follow several signals of one task: BrowseComp-Plus, GSM8K and DAPO-Math."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from string import ascii_lowercase

from estr.report.curves import METRICS, Panel, curve_data, curves_footer, draw_panels, judged_titles, published_runs


def fig12_browsecomp_plus(folders: Sequence[Path], out_stem: Path) -> None:
    """Gradient norm, turns, response length, reward and log-perplexity; step times (f) are a figure of their own."""
    metrics = ("grad_norm", "turns", "response_length", "reward", "log_perplexity")
    _draw(folders, "browsecomp_plus", {metric: METRICS[metric] for metric in metrics}, 3, out_stem)


def fig14_gsm8k(folders: Sequence[Path], out_stem: Path) -> None:
    """Entropy, masked fraction and accuracy, which is the training reward: that of an exact match of the answer."""
    titles = {metric: METRICS[metric] for metric in ("entropy", "masked_fraction")}
    _draw(folders, "gsm8k", titles | {"reward": "training accuracy"}, 3, out_stem)


def fig15ab_dapo_math(folders: Sequence[Path], out_stem: Path) -> None:
    """Sequences with at least one masked token, and policy entropy."""
    metrics = ("sequences_masked_fraction", "entropy")
    _draw(folders, "dapo_math", {metric: METRICS[metric] for metric in metrics}, 2, out_stem)


def _draw(folders: Sequence[Path], task: str, titles: Mapping[str, str], columns: int, out_stem: Path) -> None:
    """A lettered panel per metric; the legend takes the cell that is left over."""
    runs = published_runs(folders, task)
    data = curve_data(runs, list(titles))
    name = judged_titles(runs)[task]
    data.insert(1, "title", name)
    panels: list[Panel | None] = []
    for letter, (metric, title) in zip(ascii_lowercase, titles.items(), strict=False):
        labels = tuple(data.loc[data["metric"] == metric, "label"].unique())
        panels.append(Panel(task, metric, labels, f"({letter}) {title}"))
    panels += [None] * (-len(panels) % columns)
    grid = [panels[start : start + columns] for start in range(0, len(panels), columns)]
    draw_panels(data, grid, out_stem, f"{name} · {curves_footer(runs)}", named_by_title=True)
