"""Figures: written in three formats, not blank, equal bytes for equal data; the plotted numbers by hand."""

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from images import check_image
from synthetic import ResultsFolder

from estr.errors import UserError
from estr.report import style
from estr.report.captions import CAPTIONS
from estr.report.figures import FIGURES
from estr.report.labels import DISPLAY_ORDER, matched
from estr.report.runs import load_runs
from estr.report.tables import TABLES


def test_every_figure_has_a_caption() -> None:
    assert FIGURES.keys() == CAPTIONS.keys()


def test_figures_are_reproducible(study: ResultsFolder, tmp_path: Path) -> None:
    stems = [tmp_path / "first" / "fig01", tmp_path / "second" / "fig01"]
    for stem in stems:
        FIGURES["fig01_entropy_ratio"]([path for path in study.run_dirs if path.parent.name == "estr"], stem)
    for suffix in (".pdf", ".png", ".csv"):
        first, second = (stem.with_suffix(suffix).read_bytes() for stem in stems)
        assert first == second and len(first) > 100


def test_methods_keep_their_look() -> None:
    looks = [style.line_style(method) for method in DISPLAY_ORDER]
    assert len({look["color"] for look in looks}) == len({look["marker"] for look in looks}) == len(DISPLAY_ORDER)
    for method in DISPLAY_ORDER:
        published, variant = style.line_style(method), style.line_style(matched(method))
        assert published["color"] == variant["color"] and published["marker"] == variant["marker"]
        assert published["linestyle"] == "-" != variant["linestyle"]
        assert variant["markerfacecolor"] == "white"


def test_the_scale_line_says_scale_seeds_and_engine(study: ResultsFolder) -> None:
    runs = load_runs(study.run_dirs)
    assert style.scale_line(runs) == "laptop scale · 2 seeds · embedded engine"
    assert style.scale_line(runs[:3]) == "laptop scale · 1-2 seeds · embedded engine"
    assert style.scale_line(runs[:1]) == "laptop scale · 1 seed · embedded engine"


def test_seeds_of_different_tasks_are_not_added_up(folder: ResultsFolder) -> None:
    folder.write("estr", 0, task="gsm8k")
    folder.write("estr", 0, task="dapo_math")
    assert style.scale_line(load_runs(folder.run_dirs)) == "laptop scale · 1 seed · embedded engine"


def write_scan(folder: ResultsFolder) -> list[Path]:
    """Two learning rates by two staleness settings; the hottest, stalest one collapses."""
    runs = []
    for rate, intra in itertools.product((1e-5, 1e-3), (1, 4)):
        label = f"async__intra={intra}__learning_rate={rate}"
        final = 0.05 if rate * intra > 2e-3 else 0.4
        reward = np.concatenate([np.full(20, 0.3), np.full(20, 0.5), np.full(20, final)])
        if rate > 1e-4 and intra == 1:  # falls within the first window
            reward = np.concatenate([[0.3], np.full(59, 0.1)])
        path = folder.write(label, 0)
        base = pd.read_parquet(path / "metrics.parquet")
        base.assign(reward=reward, probe_estr_masked_fraction=2e-3).to_parquet(path / "metrics.parquet")
        record = json.loads((path / "run.json").read_text())
        record["config"] |= {"train": {"learning_rate": rate}, "staleness": {"intra": intra, "inter": 3}}
        (path / "run.json").write_text(json.dumps(record))
        runs.append(path)
    return runs


def test_stability_edge(folder: ResultsFolder, tmp_path: Path) -> None:
    runs = write_scan(folder)
    FIGURES["stability_edge"](runs, tmp_path / "edge")
    check_image(tmp_path / "edge.png")
    data = pd.read_csv(tmp_path / "edge.csv")
    assert len(data) == 4 and (data["n_seeds"] == 1).all()
    [said] = CAPTIONS["stability_edge"].measured(data)
    assert "2 of 4 settings collapsed" in said
    TABLES["stability_edge"](runs, [], tmp_path / "scan")
    table = pd.read_csv(tmp_path / "scan.csv").set_index(["learning_rate", "intra"])
    assert table["collapsed"].to_dict() == {(1e-5, 1): 0, (1e-5, 4): 0, (1e-3, 1): 1, (1e-3, 4): 1}
    row = table.loc[(1e-3, 4)]
    rewards = (row["reward_first"], row["reward_max"], row["reward_last"])
    assert rewards == pytest.approx((0.3, 0.5, 0.05))
    assert row["estr_would_mask_percent_first50"] == pytest.approx(0.2)
    assert "no token was masked" in (tmp_path / "scan.md").read_text()


def test_a_stability_scan_without_async_is_refused(folder: ResultsFolder, tmp_path: Path) -> None:
    run = write_scan(folder)[0]
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"method": "estr"}))
    with pytest.raises(UserError, match="needs runs of vanilla async"):
        FIGURES["stability_edge"]([run], tmp_path / "edge")


def test_a_stability_scan_of_two_tasks_is_refused(folder: ResultsFolder, tmp_path: Path) -> None:
    runs = write_scan(folder)
    with pytest.raises(UserError, match="the runs of one task, got gsm8k, dapo_math"):
        TABLES["stability_edge"]([*runs, folder.write("async", 0, task="gsm8k")], [], tmp_path / "scan")
