"""Figure 13: tokens kept and masked by ESTR in the plane of entropy and |delta| as training goes on.

A row of panels per task, its runs pooled. For a language model's sample, gradient steps between the behavior and the
target policy take the place of training steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from estr.algorithm.rules import EntropyScaled
from estr.report import style
from estr.report.entropy_ratio import upper_bound
from estr.report.token_plane import (
    FLOOR,
    LINE_POINTS,
    chosen_points,
    density,
    draw_density,
    draw_points,
    entropy_axis,
    head,
    magnitude_edges,
    root_edges,
    rounded,
)
from estr.report.tokens import TokenSource, foot, masked_by, token_sources

GRID = (40, 32)  # density cells over sqrt(H) and over log |delta|
STAGES = 4
ROW_HEIGHT = 1.75  # inches


@dataclass(frozen=True, eq=False)
class Course:
    """Tokens of one row of panels; step is what the panels advance in, `unit` its name."""

    key: str
    title: str
    heading: str
    unit: str
    rule: EntropyScaled
    tokens: pd.DataFrame

    @property
    def stages(self) -> list[int]:
        """At most STAGES sampled steps: the first, the last, and those nearest to equal distances in between."""
        steps = np.sort(self.tokens["step"].unique())
        wanted = np.linspace(steps[0], steps[-1], STAGES)
        return sorted({int(steps[np.abs(steps - step).argmin()]) for step in wanted})


def fig13_mask_evolution(folders: Sequence[Path], out_stem: Path) -> None:
    """Kept and masked tokens at up to STAGES steps, with the boundary and the masked fraction of each."""
    sources = token_sources(folders)
    courses = courses_of(sources)
    data = pd.concat([mask_evolution_data(course) for course in courses], ignore_index=True)
    style.save_data(data, out_stem)
    with style.look():
        size = (style.DOUBLE, 0.9 + ROW_HEIGHT * len(courses))
        fig, axes = plt.subplots(len(courses), STAGES, figsize=size, squeeze=False, sharey="row")
        for row, course in zip(axes, courses, strict=True):
            rows = data[data["task"] == course.key]
            for ax in row[len(course.stages) :]:
                ax.set_axis_off()
            for ax, stage in zip(row, course.stages, strict=False):
                _draw(ax, rows, stage, course)
            row[0].set_ylabel("|δ| (nats)")
        for ax in axes[-1, : len(courses[-1].stages)]:
            ax.set_xlabel("entropy H (nats)")
        fig.legend(handles=_handles(), loc="outside upper center", ncols=3)
        style.add_footer(fig, foot(sources))
        style.save(fig, out_stem)


def courses_of(sources: Sequence[TokenSource]) -> list[Course]:
    """A course per task and per language model, whose scenarios are put together."""
    courses: dict[str, Course] = {}
    for source in sources:
        if source.sample is None:
            courses[source.key] = Course(source.key, source.title, source.heading, "step", source.rule, source.tokens)
            continue
        sample = source.sample
        earlier = [courses[sample.name].tokens] if sample.name in courses else []
        tokens = pd.concat([*earlier, source.tokens], ignore_index=True)
        title = sample.short_model
        courses[sample.name] = Course(sample.name, title, title, "gradient step", source.rule, tokens)
    return list(courses.values())


def mask_evolution_data(course: Course) -> pd.DataFrame:
    """What is drawn of a row: columns task, title, step, series, entropy, log_ratio_abs (nats), count.

    series of each step: kept (lower corner of a density cell), masked (points), all_kept and all_masked (means and
    numbers); of the row, with step 0: boundary.
    """
    chosen = course.tokens[course.tokens["step"].isin(course.stages)]
    size = chosen["log_ratio"].abs().clip(lower=FLOOR)
    values = pd.DataFrame({"entropy": chosen["entropy"], "log_ratio_abs": size}, dtype=np.float64)
    masked = masked_by(course.rule, chosen)
    top = max(float(values["entropy"].max()), 1e-3)
    edges = root_edges(top, GRID[0]), magnitude_edges(size.to_numpy(np.float64), GRID[1])
    parts = []
    for step in course.stages:
        here = chosen["step"].to_numpy() == step
        parts.append(density(values[here & ~masked], edges).assign(step=step, series="kept"))
        parts.append(chosen_points(values[here & masked]).assign(step=step, series="masked"))
        for name, rows in (("all_kept", values[here & ~masked]), ("all_masked", values[here & masked])):
            parts.append(rows.mean().to_frame().T.assign(step=step, series=name, count=len(rows)))
    line = root_edges(top, LINE_POINTS)
    boundary = {"step": 0, "series": "boundary", "entropy": line, "log_ratio_abs": upper_bound(course.rule, line)}
    data = rounded(pd.concat([*parts, pd.DataFrame(boundary | {"count": 0})], ignore_index=True))
    data.insert(0, "task", course.key)
    data.insert(1, "title", course.title)
    return data


def _draw(ax: Axes, data: pd.DataFrame, stage: int, course: Course) -> None:
    boundary = data[data["series"] == "boundary"]
    series = dict(list(data[(data["step"] == stage) & (data["series"] != "boundary")].groupby("series")))
    if "kept" in series:
        draw_density(ax, series["kept"], "entropy", "log_ratio_abs")
    if "masked" in series:
        draw_points(ax, series["masked"], "entropy", "log_ratio_abs", style.RED, size=5)
    ax.plot(boundary["entropy"], boundary["log_ratio_abs"], color=style.INK)
    masked = series["all_masked"]["count"].iloc[0]
    tokens = masked + series["all_kept"]["count"].iloc[0]
    first = stage == course.stages[0]
    head(ax, course.heading if first else "", f"{course.unit} {stage}: {100 * masked / tokens:.2f} %")
    ax.set_yscale("log")
    entropy_axis(ax, boundary["entropy"].max(), tick_distance=0.15)
    ax.set_ylim(FLOOR, 1.5 * data["log_ratio_abs"].max())


def _handles() -> list[Line2D | Patch]:
    return [
        Patch(color="#B0B0B0", label="kept (density)"),
        Line2D(
            [],
            [],
            color=style.RED,
            marker="o",
            linestyle="",
            markersize=3,
            label="masked by ESTR (share above)",
        ),
        Line2D([], [], color=style.INK, label="entropy-scaled boundary"),
    ]
