"""Figures of sampled tokens: drawn for policies and a language model; the plotted numbers by hand."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from images import check_image
from samples_folder import write_sample
from synthetic import ResultsFolder

from estr.algorithm.rules import EntropyScaled
from estr.algorithm.scaling_law import binary_entropy
from estr.errors import UserError
from estr.report import style
from estr.report.bulk_and_tail import bulk_and_tail_data
from estr.report.captions import CAPTIONS
from estr.report.entropy_ratio import entropy_ratio_data
from estr.report.figures import FIGURES
from estr.report.mask_allocation import RULES, mask_allocation_data, tail_scale
from estr.report.mask_evolution import courses_of, mask_evolution_data
from estr.report.probability_space import probability_data
from estr.report.scaling_fit import envelope
from estr.report.signed_deviation import signed_deviation_data
from estr.report.token_plane import MASKED, POINTS, masked_series
from estr.report.tokens import TokenSource, by_step, entropy_rule, token_runs, token_sources, with_turns
from estr.report.version_switch import switch_data

TOKEN_FIGURES = (
    *("fig01_entropy_ratio", "fig01b_bulk_and_tail", "fig03_version_switch", "fig10_signed_deviation"),
    *("fig11_mask_allocation", "fig13_mask_evolution", "v2_fig06_probability"),
)
MODEL = "SmolLM2-135M"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """ESTR's runs of three tasks and a sample of a language model."""
    results = ResultsFolder(tmp_path_factory.mktemp("tokens"))
    for task, seed in (("gsm8k", 0), ("gsm8k", 1), ("dapo_math", 0), ("browsecomp_plus", 0)):
        results.write("estr", seed, task=task)
    return [*results.run_dirs, write_sample(results.scale_dir / "samples" / "smollm2")]


def drawn(name: str, folders: list[Path], stem: Path) -> tuple[pd.DataFrame, list[str]]:
    """The figure's CSV and what its caption says of each source."""
    FIGURES[name](folders, stem)
    check_image(stem.with_suffix(".png"))
    data = pd.read_csv(stem.with_suffix(".csv"))
    said = CAPTIONS[name].measured(data)
    assert all("nan" not in text and any(character.isdigit() for character in text) for text in said)
    return data, said


@pytest.mark.parametrize("name", TOKEN_FIGURES)
def test_the_language_model_comes_first_then_the_tasks(folders: list[Path], tmp_path: Path, name: str) -> None:
    data, said = drawn(name, folders, tmp_path / name)
    model = {
        "fig03_version_switch": [f"{MODEL}, switch"],
        "fig13_mask_evolution": [MODEL],
    }.get(name, [f"{MODEL}, mismatch", f"{MODEL}, stale"])
    titles = [*model, "BrowseComp-Plus", "GSM8K", "DAPO-Math (AIME)"]
    assert list(data["title"].unique()) == titles
    for title, text in zip(titles, said, strict=True):
        assert text.startswith(f"{title}: ")
    assert data["task"].nunique() == len(titles)


def test_a_sample_is_enough_and_so_is_one_run(folders: list[Path], tmp_path: Path) -> None:
    for number, alone in enumerate((folders[-1:], folders[:1])):
        data, [said] = drawn("fig03_version_switch", alone, tmp_path / f"{number}")
        assert said.endswith(
            "Ratios of the drawn means, not pooled over all tokens at offsets -10 to -3 as in the table."
        )
        assert data["task"].unique() == ["smollm2_switch" if number == 0 else "gsm8k"]
    thin = write_sample(tmp_path / "thin", ("mismatch",))
    data, _ = drawn("fig13_mask_evolution", [thin], tmp_path / "evolution")
    assert data["task"].unique() == ["thin"]


def test_a_policy_that_masks_nothing_is_drawn_all_the_same(folder: ResultsFolder, tmp_path: Path) -> None:
    """A tenth of the synthetic deviations: no token lies outside ESTR's boundary, none is off-mode."""
    path = folder.write("estr", 0) / "tokens.parquet"
    tokens = pd.read_parquet(path)
    shrunk = tokens["behavior_logprob"] + 0.01 * (tokens["target_logprob"] - tokens["behavior_logprob"])
    tokens.assign(target_logprob=shrunk).to_parquet(path)
    for name, words in (
        ("fig01b_bulk_and_tail", "No off-mode token"),
        ("fig11_mask_allocation", "ESTR masks none"),
        ("v2_fig06_probability", "ESTR masks above"),
    ):
        FIGURES[name](folder.run_dirs, tmp_path / name)
        [said] = CAPTIONS[name].measured(pd.read_csv(tmp_path / f"{name}.csv"))
        assert words in said and "nan" not in said


def source_of(tau: float = 1.0, **columns: list[float] | np.ndarray) -> TokenSource:
    """Tokens of one settled step with these columns; behavior_logprob is -1 unless it is given."""
    tokens = pd.DataFrame(columns).astype(np.float64)
    behavior = tokens.get("behavior_logprob", pd.Series(-1.0, tokens.index))
    tokens = tokens.assign(behavior_logprob=behavior, target_logprob=behavior + tokens["log_ratio"])
    fixed = {"run": "r", "step": 1, "turn": 0, "place": 0, "cluster": 0, "settled": True, "switch_offset": 10_000}
    return TokenSource("made_up", "Made up", "hand", EntropyScaled(tau=tau, eps=0.01), tokens.assign(**fixed))


def test_fixed_threshold_spends_the_budget_of_the_entropy_rule() -> None:
    """Bounds 0.1 at H = 0 and 1.005 at H = 1 mask the third token alone, so c is midway between 0.8 and 0.9."""
    data = entropy_ratio_data(source_of(entropy=[0.0, 1.0, 0.0, 1.0], log_ratio=[0.05, 0.8, -0.3, 0.9]))
    points = data[data["series"].isin(list(MASKED))].set_index("series")["log_ratio_abs"]
    assert points.to_dict() == {"estr_only": 0.3, "fixed_only": 0.9}
    assert data.loc[data["series"] == "boundary_fixed", "log_ratio_abs"].unique() == [0.85]
    totals = data[data["series"].str.startswith("all_")].set_index("series")["count"]
    assert totals.to_dict() == {"all_kept_by_both": 2, "all_estr_only": 1, "all_fixed_only": 1, "all_both": 0}
    assert data.loc[data["series"] == "kept_by_both", "count"].sum() == 2
    solid = data[data["series"] == "boundary_estr"]
    assert solid["log_ratio_abs"].to_numpy() == pytest.approx(np.sqrt(solid["entropy"] + 0.01), rel=1e-3)


@settings(deadline=None, max_examples=30)
@given(number=st.integers(0, 3 * POINTS), seed=st.integers(0, 2**32 - 1))
def test_no_token_is_lost_between_density_and_points(number: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = pd.DataFrame({"x": rng.random(number), "y": rng.random(number)})
    estr, fixed = rng.random(number) < 0.7, rng.random(number) < 0.5
    edges = np.linspace(0, 1, 7)
    data = pd.concat(masked_series(values, estr, fixed, (edges, edges)), ignore_index=True)
    totals = data.groupby("series")["count"].sum()
    assert totals.filter(like="all_").sum() == number
    assert totals.get("kept_by_both", 0) == totals["all_kept_by_both"]
    for name in MASKED:
        assert totals.get(name, 0) == min(totals[f"all_{name}"], POINTS)


def test_signed_deviation_keeps_the_sign_and_mirrors_the_boundary() -> None:
    """60 tokens at H = 1, two thirds at +0.2 and the rest at -0.1: mean 0.1, RMS sqrt(0.03)."""
    data = signed_deviation_data(source_of(entropy=np.ones(60), log_ratio=np.where(np.arange(60) % 3 < 2, 0.2, -0.1)))
    numbers = data.set_index("series")
    assert numbers.loc["bin_mean", "log_ratio"] == pytest.approx(0.1)
    assert numbers.loc["bin_rms", "log_ratio"] == pytest.approx(math.sqrt(0.03), rel=1e-3)
    cells = data[data["series"] == "kept_by_both"]
    for size, share in ((0.2, 40), (-0.1, 20)):
        [count] = cells.loc[(cells["log_ratio"] <= size) & (cells["log_ratio_high"] > size), "count"]
        assert count == share


def test_bulk_and_tail_by_hand() -> None:
    """delta^2 = 0.04 H in the bulk; two off-mode tokens at three times the arc, the masked one of larger |delta|."""
    entropy = np.linspace(0.1, 2, 4000)
    tail = np.array([0.01, 0.04])
    sizes = np.append(0.2 * np.sqrt(entropy), 3 * envelope(tail))
    behavior = np.append(np.full(4000, -0.5), [math.log(0.001)] * 2)
    source = source_of(entropy=np.append(entropy, tail), log_ratio=sizes, behavior_logprob=behavior)
    numbers = bulk_and_tail_data(source).set_index("series")
    assert numbers.loc["fit", "value"] == pytest.approx(0.04, rel=1e-3)
    assert numbers.loc["r_squared", "value"] == pytest.approx(1, abs=1e-3)
    assert numbers.loc["arc_factor", "value"] == pytest.approx(3, rel=1e-3)
    assert numbers.loc["all_off_mode_masked", "count"] == 2 and numbers.loc["all_off_mode_kept", "count"] == 0
    assert "run_bin" not in numbers.index
    runs = source.tokens.assign(run=np.where(np.arange(4002) % 2, "a", "b"))
    several = bulk_and_tail_data(replace(source, tokens=runs))
    assert several["series"].eq("run_bin").sum() == 2 * several["series"].eq("bulk_bin").sum()


def test_allocation_shares_follow_entropy() -> None:
    """Of 40 tokens ESTR masks the two at low entropy, a fixed threshold the two at high entropy."""
    entropy = np.append(np.full(38, 1.0), [0.0, 0.0])
    log_ratio = np.append(np.full(36, 0.01), [0.9, -0.9, 0.3, -0.3])
    data = mask_allocation_data(source_of(entropy=entropy, log_ratio=log_ratio))
    shares = {rule: data[data["series"] == f"share_{rule}"] for rule in RULES}
    assert shares["estr"]["value"].tolist() == [1.0, *[0.0] * 15]
    assert shares["fixed_magnitude"]["value"].tolist() == [*[0.0] * 15, 1.0]
    assert all(share["count"].sum() == 2 for rule, share in shares.items() if rule != "icepop")
    [said] = [CAPTIONS["fig11_mask_allocation"].say(data)]
    assert "ESTR 0.002" in said and "the fixed threshold 0.94" in said


def test_no_token_of_any_distribution_lies_left_of_the_binary_entropy(folders: list[Path]) -> None:
    """The curve of Figure 11 is H_bin of the probability whose tail scale is its height."""
    data = mask_allocation_data(token_sources(folders)[0])
    curve = data[data["series"] == "binary_entropy"]
    q = 1 / (1 + curve["value"].to_numpy())
    assert binary_entropy(torch.from_numpy(q)).numpy() == pytest.approx(curve["entropy"].to_numpy(), rel=2e-3)
    assert tail_scale(pd.Series(np.log([0.5, 0.01, 1.0]))) == pytest.approx([1, 99, 0])


def test_stages_are_the_first_the_last_and_evenly_spaced_ones() -> None:
    steps = [*range(1, 51), 75, 100]
    source = source_of(entropy=np.ones(52), log_ratio=np.where(np.array(steps) > 60, 2.0, 0.1))
    [course] = courses_of([replace(source, tokens=source.tokens.assign(step=steps))])
    assert course.stages == [1, 34, 75, 100]
    data = mask_evolution_data(course)
    counts = data[data["series"].isin(["all_kept", "all_masked"])].pivot(index="step", columns="series", values="count")
    assert counts["all_masked"].to_dict() == {1: 0, 34: 0, 75: 1, 100: 1}
    said = CAPTIONS["fig13_mask_evolution"].say(data)
    assert said == "Masked, in %: 0.00 at step 1, 0.00 at step 34, 100.00 at step 75, 100.00 at step 100."
    [short] = courses_of([source])
    assert short.stages == [1]


def test_what_the_rules_ask_for_in_probability_space() -> None:
    """At mu = 0.5 and H = 0.99 ESTR asks for 0.5, a fixed threshold c for 0.5 c; mu |delta| is the discrepancy."""
    log_ratio = np.append(np.full(98, 0.2), [2.0, 3.0])
    columns = {"behavior_logprob": np.full(100, math.log(0.5)), "entropy": np.full(100, 0.99)}
    data = probability_data(source_of(**columns, log_ratio=log_ratio))
    series = dict(list(data.groupby("series")))
    assert series["need_estr"]["discrepancy"].tolist() == pytest.approx([0.5], rel=1e-3)
    assert series["need_fixed"]["discrepancy"].tolist() == pytest.approx([0, 1.1], rel=1e-3)
    assert series["both"]["discrepancy"].tolist() == pytest.approx([1.0, 1.5])
    shares = series["share_estr"].set_index("probability")["discrepancy"]
    assert shares[shares > 0].to_dict() == {0.5: 1.0}


def switching_tokens(steps: int, effect: float) -> pd.DataFrame:
    """One switch per step at a random position; odd positions are certain, and step means fall by a factor."""
    rng = np.random.default_rng(0)
    length, parts = 8, []
    for step in range(steps):
        switch = rng.integers(1, length)
        position = np.tile(np.arange(length), 20)
        base = np.where(position % 2, 0.0, 1.0 + position) * 0.9995**step
        entropy = base * np.where(position == switch, effect, 1.0)
        frame = {"run": "r", "step": step, "turn": 0, "place": position, "entropy": entropy}
        frame["log_ratio"] = -0.1 * entropy
        parts.append(pd.DataFrame(frame | {"switch_offset": position - switch, "weight_version": position >= switch}))
    tokens = pd.concat(parts, ignore_index=True)
    return by_step(tokens.assign(weight_version=tokens["weight_version"].astype(int)))


def test_switch_curve_is_flat_without_an_effect_however_much_positions_differ() -> None:
    tokens = switching_tokens(steps=400, effect=1.0)
    data = switch_data(tokens)
    for quantity, column in (("entropy", tokens["entropy"]), ("log_ratio_abs", tokens["log_ratio"].abs())):
        curve = data[data["quantity"] == quantity]
        assert len(curve) > 10
        assert curve["mean"].to_numpy() == pytest.approx(column.mean(), rel=0.05)
    naive = tokens.groupby("switch_offset")["entropy"].mean()
    assert naive.max() > 2 * naive.min()


def test_switch_curve_finds_an_effect_at_the_switch_and_nowhere_else() -> None:
    data = switch_data(switching_tokens(steps=400, effect=2.0))
    curve = data[data["quantity"] == "entropy"].set_index("offset")["mean"]
    assert curve[0] / curve.drop(0).mean() == pytest.approx(2.0, rel=0.1)
    assert curve.drop(0).std() < 0.15 * curve.drop(0).mean()


def test_steps_in_which_staleness_ramps_up_are_left_out_and_one_step_has_no_band() -> None:
    tokens = switching_tokens(steps=2, effect=1.0)
    tokens.loc[tokens["step"] == 0, ["weight_version", "entropy"]] = (0, 77.0)
    data = switch_data(by_step(tokens))
    assert data["n_clusters"].eq(1).all() and data["n_tokens"].eq(20).all()
    assert data["mean"].max() < 10 and data["low"].isna().all()


def test_responses_to_one_problem_of_a_sample_are_a_cluster(folders: list[Path]) -> None:
    """Its steps are distances to the target policy, which differ within a sequence; all of them count."""
    [switch, *_] = token_sources(folders, ["switch"])
    assert switch.tokens["settled"].all() and switch.tokens["cluster"].nunique() == 30
    data = switch_data(switch.tokens).set_index(["quantity", "offset"])
    assert data.loc[("entropy", 0), "n_clusters"] == data.loc[("entropy", -10), "n_clusters"] == 30
    entropy = data.loc["entropy", "mean"]
    assert entropy[0] / entropy.drop(0).mean() == pytest.approx(4, rel=0.35)


def test_turns_are_read_from_the_gaps_that_tool_output_leaves() -> None:
    """Two sequences of one step: three turns with tool output of 3 and 1 tokens between, and a single turn."""
    position = [0, 1, 5, 6, 8, 0, 1, 2]
    tokens = pd.DataFrame({"step": 1, "sequence": [0] * 5 + [1] * 3, "position": position}).iloc[::-1]
    placed = with_turns(tokens)
    assert placed["position"].tolist() == position
    assert placed["turn"].tolist() == [0, 0, 1, 1, 2, 0, 0, 0]
    assert placed["place"].tolist() == [0, 1, 0, 1, 0, 0, 1, 2]


def test_positions_of_a_dialogue_are_matched_by_turn_and_place() -> None:
    """The first token of every turn is uncertain, the others are not, and versions switch at a turn's first token.

    Tool output of random length lies before the turns: by stream position the switch would look like a jump of H.
    """
    rng = np.random.default_rng(0)
    parts = []
    for step, sequence in itertools.product(range(60), range(10)):
        switch_turn = 1 + step % 3
        starts = np.cumsum([0, *(4 + rng.integers(1, 30, 3))])
        turn, place = np.repeat(np.arange(4), 4), np.tile(np.arange(4), 4)
        entropy = np.where(place == 0, 2.0, 0.1)
        columns = {"run": "r", "step": step, "sequence": sequence, "position": starts[turn] + place}
        columns |= {"entropy": entropy, "log_ratio": 0.1 * entropy, "switch_offset": 4 * (turn - switch_turn) + place}
        parts.append(pd.DataFrame(columns | {"weight_version": (turn >= switch_turn).astype(int)}))
    tokens = pd.concat(parts, ignore_index=True)
    placed = by_step(with_turns(tokens))
    curve = switch_data(placed)
    curve = curve[curve["quantity"] == "entropy"].set_index("offset")["mean"]
    assert {-1, 0, 1} < set(curve.index)
    assert curve.to_numpy() == pytest.approx(tokens["entropy"].mean())
    by_position = placed.assign(turn=0, place=placed["position"])
    naive = switch_data(by_position)
    naive = naive[naive["quantity"] == "entropy"].set_index("offset")["mean"]
    assert naive[0] > 2 * naive[1]


def test_a_task_without_version_switches_has_no_row_and_is_named(
    folder: ResultsFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("estr", 0, task="gsm8k")
    path = folder.write("estr", 0) / "tokens.parquet"
    pd.read_parquet(path).assign(switch_offset=10_000).to_parquet(path)
    foot: list[str] = []
    monkeypatch.setattr(style, "add_footer", lambda figure, text: foot.append(text))
    FIGURES["fig03_version_switch"](folder.run_dirs, tmp_path / "fig03")
    assert set(pd.read_csv(tmp_path / "fig03.csv")["task"]) == {"gsm8k"}
    assert foot[0].endswith("no version switch sampled: DAPO-Math (AIME)")


def test_tokens_come_from_estr_or_async_of_each_task(folder: ResultsFolder) -> None:
    folder.write("estr", 0, task="gsm8k")
    folder.write("async", 0, task="gsm8k")
    folder.write("async", 0)
    chosen = token_runs(folder.run_dirs)
    assert {task: [run.label for run in runs] for task, runs in chosen.items()} == {
        "gsm8k": ["estr"],
        "dapo_math": ["async"],
    }
    assert entropy_rule(chosen["dapo_math"][0]) == EntropyScaled(tau=1.6, eps=0.01)
    folder.write("kpop", 0, task="browsecomp_plus")
    with pytest.raises(UserError, match="browsecomp_plus has none"):
        token_runs(folder.run_dirs)


def test_token_figures_complain_about_what_is_absent(folder: ResultsFolder, tmp_path: Path) -> None:
    sync = folder.write("sync", 0)
    with pytest.raises(UserError, match="need runs of estr or async"):
        FIGURES["fig01_entropy_ratio"]([sync], tmp_path / "a")
    run_dir = folder.write("async", 0)
    tokens = pd.read_parquet(run_dir / "tokens.parquet").assign(switch_offset=10_000)
    tokens.to_parquet(run_dir / "tokens.parquet")
    with pytest.raises(UserError, match="no sampled sequence switches version"):
        FIGURES["fig03_version_switch"]([run_dir], tmp_path / "b")
    tokens.assign(entropy=math.nan).to_parquet(run_dir / "tokens.parquet")
    with pytest.raises(UserError, match="no token with finite signals"):
        FIGURES["fig01_entropy_ratio"]([run_dir], tmp_path / "c")
