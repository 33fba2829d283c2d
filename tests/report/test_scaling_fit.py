"""The statistics of the entropy-ratio law, by hand and on tokens of known law; their table."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from samples_folder import write_sample
from synthetic import ResultsFolder

from estr.algorithm.scaling_law import binary_entropy
from estr.report.scaling_fit import (
    BULK_BINS,
    MIN_BIN_TOKENS,
    SWITCH_QUANTITIES,
    asymmetry,
    binned,
    bulk_bins,
    coefficient_of_variation,
    entropy_rank_correlation,
    envelope,
    envelope_factor,
    off_mode_ratio,
    second_moment_fit,
    switch_spike,
)
from estr.report.tables import TABLES, read_table, views_of
from estr.report.tokens import by_step


def law_tokens(count: int = 20_000, a: float = 0.09) -> pd.DataFrame:
    """|delta| = sqrt(a H) exactly, signs alternating; entropies evenly spread over 0 to 2."""
    entropy = np.linspace(0, 2, count)
    return pd.DataFrame({"entropy": entropy, "log_ratio": np.sqrt(a * entropy) * (-1) ** np.arange(count)})


def test_bins_by_hand() -> None:
    """Bins [0, 1) and [1, 2] with the upper edge closed, a third one without enough tokens, one token outside."""
    entropy = np.array([0.5] * MIN_BIN_TOKENS + [1.0, 2.0] * (MIN_BIN_TOKENS // 2) + [2.5, 9.0])
    delta = np.array([0.1, -0.3] * (MIN_BIN_TOKENS // 2) + [0.2] * MIN_BIN_TOKENS + [5.0, 5.0])
    tokens = pd.DataFrame({"entropy": entropy, "log_ratio": delta})
    [first, second] = binned(tokens, np.array([0.0, 1.0, 2.2, 3.0])).to_dict("records")
    z_square = (0.04 / 1.01 + 0.04 / 2.01) / 2
    assert first == pytest.approx(
        {
            "mean_entropy": 0.5,
            "mean_abs": 0.2,
            "second_moment": 0.05,
            "z_second_moment": 0.05 / 0.51,
            "mean_signed": -0.1,
            "count": MIN_BIN_TOKENS,
        }
    )
    assert second["mean_entropy"] == pytest.approx(1.5) and second["z_second_moment"] == pytest.approx(z_square)
    last = binned(tokens, np.array([0.0, 1.0, 2.0]))
    assert last["count"].tolist() == [MIN_BIN_TOKENS, MIN_BIN_TOKENS]


def test_the_law_is_found_where_it_holds() -> None:
    tokens = law_tokens()
    bins = bulk_bins(tokens)
    assert len(bins) == BULK_BINS
    assert bins["mean_entropy"].iloc[[0, -1]].tolist() == pytest.approx([0.1 + 0.045, 1.9 - 0.045], abs=1e-3)
    fit = second_moment_fit(tokens)
    assert fit.coefficient == pytest.approx(0.09, rel=1e-6) and fit.r_squared == pytest.approx(1)
    assert entropy_rank_correlation(tokens) == pytest.approx(1)
    assert asymmetry(tokens) < 0.01
    spread = coefficient_of_variation(bins["second_moment"])
    assert spread == pytest.approx(np.std(bins["mean_entropy"]) / np.mean(bins["mean_entropy"]))
    assert coefficient_of_variation(bins["z_second_moment"]) < 0.1 * spread


def test_the_law_is_not_found_where_it_does_not_hold() -> None:
    falling = law_tokens().assign(log_ratio=lambda tokens: 1 / (1 + tokens["entropy"]))
    assert second_moment_fit(falling).r_squared < 0
    assert entropy_rank_correlation(falling) == pytest.approx(-1)
    assert asymmetry(falling) == pytest.approx(1, abs=0.01)


def test_too_few_tokens_say_nothing() -> None:
    for tokens in (law_tokens(5), law_tokens(500).assign(entropy=0.3)):
        assert math.isnan(second_moment_fit(tokens).coefficient)
        assert math.isnan(entropy_rank_correlation(tokens))
    assert bulk_bins(law_tokens(500).assign(entropy=0.3)).empty
    assert math.isnan(asymmetry(law_tokens(5)))
    assert math.isnan(coefficient_of_variation([])) and math.isnan(coefficient_of_variation([0.0, 0.0]))
    assert coefficient_of_variation([1.0, 3.0]) == pytest.approx(0.5)


def test_off_mode_tokens_are_compared_with_all_confident_ones() -> None:
    """Of 10,000 confident tokens 10 are off-mode, so the 99.9th percentile of all lies at the smallest of them."""
    confident = pd.DataFrame({"entropy": 0.01, "log_ratio": [0.02] * 9990 + [-1.0] * 10, "behavior_logprob": -0.001})
    confident.loc[9990:, "behavior_logprob"] = math.log(0.04)
    uncertain = pd.DataFrame({"entropy": [0.06], "log_ratio": [9.0], "behavior_logprob": [-5.0]})
    expected = 1 / confident["log_ratio"].abs().quantile(0.999)
    assert off_mode_ratio(pd.concat([confident, uncertain])) == pytest.approx(expected)
    assert math.isnan(off_mode_ratio(uncertain))


def test_the_arc_of_equation_34() -> None:
    u = torch.tensor([1e-6, 1e-3, 0.2], dtype=torch.float64)
    entropy = binary_entropy(u).numpy()
    expected = np.sqrt((1 - np.log(u.numpy())) / entropy)
    assert envelope(entropy) == pytest.approx(expected, rel=1e-3)
    low = np.array([0.004, 0.02, 0.04])
    tokens = pd.DataFrame({"entropy": low, "log_ratio": -0.5 * envelope(low), "behavior_logprob": math.log(0.001)})
    assert envelope_factor(tokens) == pytest.approx(0.5)
    assert math.isnan(envelope_factor(tokens.assign(behavior_logprob=-0.1)))


def switching(entropy_factor: float, sequences: int = 300, length: int = 100, seed: int = 0) -> pd.DataFrame:
    """z = delta / sqrt(H + eps) is +-0.2 everywhere, H differs tenfold between positions.

    H is some times as large at the switch, whose place differs between sequences.
    """
    rng = np.random.default_rng(seed)
    place = np.tile(np.arange(length), sequences)
    cluster = np.repeat(np.arange(sequences), length)
    switch = rng.integers(15, length - 5, sequences)[cluster]
    at = place == switch
    entropy = np.where(place % 2, 0.1, 1.0) * rng.uniform(0.5, 1.5, len(place)) * np.where(at, entropy_factor, 1)
    z = 0.2 * rng.choice([-1, 1], len(place))
    columns = {"entropy": entropy, "log_ratio": z * np.sqrt(entropy + 0.01), "switch_offset": place - switch}
    version = (place >= switch).astype(int)
    places = {"run": "r", "turn": 0, "place": place, "cluster": cluster, "settled": True, "weight_version": version}
    return pd.DataFrame(columns | places)


def test_a_switch_that_raises_entropy_alone_leaves_z_as_it_is() -> None:
    spikes = switch_spike(switching(entropy_factor=4))
    assert set(spikes) == set(SWITCH_QUANTITIES)
    expected = {"entropy": 4, "log_ratio_abs": 2, "log_ratio_sq": 4, "z_abs": 1, "z_sq": 1}
    for name, ratio in expected.items():
        spike = spikes[name]
        assert spike.ratio == pytest.approx(ratio, rel=0.12), name
        assert spike.ratio == pytest.approx(spike.at / spike.before)
        assert spike.ratio_low - 1e-9 <= spike.ratio <= spike.ratio_high + 1e-9
        assert spike.difference_low - 1e-9 <= spike.at - spike.before <= spike.difference_high + 1e-9
    assert spikes["entropy"].difference_low > 0 and spikes["log_ratio_abs"].difference_low > 0
    assert spikes["z_sq"].difference_low == pytest.approx(0, abs=1e-9)
    entropy = spikes["entropy"]
    assert (entropy.tokens_at, entropy.tokens_before, entropy.clusters) == (300, 300 * 8, 300)


def test_a_switch_without_effect_has_intervals_around_one() -> None:
    """Of 40 data sets 95 % intervals leave out the truth in about two."""
    spikes = [switch_spike(switching(entropy_factor=1, sequences=25, seed=seed))["entropy"] for seed in range(40)]
    covered = sum(spike.ratio_low <= 1 <= spike.ratio_high for spike in spikes)
    assert 34 <= covered < 40
    assert covered == sum(spike.difference_low <= 0 <= spike.difference_high for spike in spikes)
    assert np.mean([spike.ratio for spike in spikes]) == pytest.approx(1, abs=0.03)


def test_what_does_not_switch_has_no_spike_and_unsettled_tokens_do_not_count() -> None:
    tokens = switching(entropy_factor=4)
    assert switch_spike(tokens.assign(switch_offset=10_000)) == {}
    assert switch_spike(tokens.assign(settled=False)) == {}
    half = tokens.assign(settled=tokens["cluster"] < 100)
    assert switch_spike(half)["entropy"].clusters == 100


def test_a_step_is_settled_once_its_versions_span_as_many_as_any() -> None:
    columns = {"run": ["a", "a", "a", "a", "b", "b"], "step": [1, 1, 2, 2, 2, 2], "weight_version": [0, 0, 0, 1, 4, 5]}
    tokens = by_step(pd.DataFrame(columns))
    assert tokens["settled"].tolist() == [False, False, True, True, True, True]
    assert tokens["cluster"].tolist() == [0, 0, 1, 1, 2, 2]


def test_the_table_has_a_row_per_source_and_reads_back(folder: ResultsFolder, tmp_path: Path) -> None:
    for seed in range(2):
        folder.write("estr", seed, task="gsm8k")
    folder.write("estr", 0, task="dapo_math")
    sample = write_sample(folder.scale_dir / "samples" / "smollm2", ("stale", "switch"))
    TABLES["scaling_fit"]([*folder.run_dirs, sample], [], tmp_path / "scaling_fit")
    frame = read_table(tmp_path / "scaling_fit.csv").set_index("task")
    assert list(frame.index) == ["smollm2_stale", "smollm2_switch", "gsm8k", "dapo_math"]
    assert frame["runs"].tolist() == [1, 1, 2, 1]
    assert frame["coefficient_sd"].notna().tolist() == [False, False, True, False]
    assert frame.loc["smollm2_stale", "switch_tokens"] == 0 and frame.loc["smollm2_switch", "switch_tokens"] == 90
    assert math.isnan(frame.loc["smollm2_stale", "switch_entropy"])
    assert frame.loc["smollm2_switch", "switch_entropy_rise_low"] > 0
    views = views_of("scaling_fit", read_table(tmp_path / "scaling_fit.csv"))
    text = (tmp_path / "scaling_fit.md").read_text()
    for view in views:
        assert view.note in text and "nan" not in view.note
        assert all("nan" not in cell for row in view.rows for cell in row)
    bulk = dict(zip(views[0].headers, views[0].rows[2], strict=True))
    assert " ± " in bulk["a_B, 1/nat"] and bulk["runs"] == "2"
    assert "|" in (tmp_path / "scaling_fit.tex").read_text()
