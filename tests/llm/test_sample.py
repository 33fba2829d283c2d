"""The three scenarios, held against `transformers` in float64 and against the weights that they name."""

import copy
import math
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from estr.algorithm.rules import EntropyScaled
from estr.config import SampleSettings
from estr.errors import UserError
from estr.llm import sample
from estr.llm.model import Llama
from estr.llm.problems import WordProblem, closeness
from estr.llm.sample import TokenStudy, encode
from estr.records import NO_SWITCH, TOKEN_SCHEMA


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "ROWS", 6)
    monkeypatch.setattr(sample, "SWITCHING_ROWS", 4)


@pytest.fixture
def study(model: Llama, tokenizer: Any, problems: list[WordProblem], settings: SampleSettings) -> TokenStudy:
    return TokenStudy(model, tokenizer, problems, settings)


@pytest.fixture
def exact_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine computes in float32 with float32 weights, so that precision makes no difference."""
    monkeypatch.setattr(sample, "bfloat16_engine", copy.deepcopy)
    monkeypatch.setattr(sample, "_rounded", lambda model: copy.deepcopy(model.state_dict()))


def frames(tables: dict[str, pa.Table]) -> dict[str, pd.DataFrame]:
    found = {}
    for name, table in tables.items():
        assert table.schema.names == [*TOKEN_SCHEMA.names, "scenario"]
        assert set(table["scenario"].to_pylist()) == {name}
        frame = table.to_pandas()
        assert not frame.duplicated(["sequence", "position"]).any()
        found[name] = frame.assign(delta=(frame["target_logprob"] - frame["behavior_logprob"]).abs())
    return found


def recomputed(
    reference: LlamaForCausalLM,
    tokenizer: Any,
    problems: list[WordProblem],
    settings: SampleSettings,
    rows: pd.DataFrame,
) -> tuple[Tensor, Tensor]:
    """Log-prob and entropy of a sequence's tokens, in the reference's own precision."""
    prompts, valid = encode(tokenizer, problems)
    index = int(rows["sequence"].iloc[0]) // settings.group
    prompt = prompts[index][valid[index]]
    tokens = torch.tensor(rows.sort_values("position")["token"].to_numpy())
    with torch.no_grad():
        logits = reference(input_ids=torch.cat([prompt, tokens])[None]).logits[0, len(prompt) - 1 : -1]
    logprob = (logits / settings.temperature).log_softmax(-1)
    return logprob.gather(-1, tokens[:, None])[:, 0], -(logprob.exp() * logprob).sum(-1)


@pytest.mark.usefixtures("exact_engine")
def test_every_signal_against_float64(
    study: TokenStudy,
    reference: LlamaForCausalLM,
    tokenizer: Any,
    problems: list[WordProblem],
    settings: SampleSettings,
) -> None:
    """Scores of every version, and the tokens that the newest and the oldest weights sampled."""
    scenarios = frames(study.run())
    models = {}
    for version, weights in study.versions.items():
        models[version] = copy.deepcopy(reference)
        models[version].load_state_dict(weights, strict=False)
        models[version].double()
    checked = 0
    for frame in scenarios.values():
        for _, rows in frame.groupby("sequence"):
            rows = rows.sort_values("position")
            target, _ = recomputed(models[rows["target_version"].iloc[0]], tokenizer, problems, settings, rows)
            assert rows["target_logprob"].to_numpy() == pytest.approx(target.numpy(), abs=1e-4)
            for version, own in rows.groupby("weight_version"):
                # the weights that sampled a token had computed the whole prefix themselves
                logprob, entropy = recomputed(models[version], tokenizer, problems, settings, rows)
                places = own["position"].tolist()
                assert own["behavior_logprob"].to_numpy() == pytest.approx(logprob[places].numpy(), abs=1e-4)
                assert own["entropy"].to_numpy() == pytest.approx(entropy[places].numpy(), abs=1e-4)
                checked += len(own)
    assert checked == sum(map(len, scenarios.values())) > 200


@pytest.mark.usefixtures("exact_engine")
def test_without_rounding_only_gradient_steps_make_a_difference(study: TokenStudy) -> None:
    for frame in frames(study.run()).values():
        apart = frame["step"] > 0
        assert (frame.loc[~apart, "delta"] < 1e-4).all()
        assert (frame.loc[apart, "delta"] > 1e-3).mean() > 0.9 or not apart.any()


def test_mismatch_is_rounding_alone(study: TokenStudy, settings: SampleSettings) -> None:
    frame = frames(study.run())["mismatch"]
    assert set(frame["sequence"]) == set(range(settings.prompts * settings.group))
    assert frame[["step", "weight_version", "target_version"]].eq(0).all(axis=None)
    assert (frame["switch_offset"] == NO_SWITCH).all()
    assert (frame["delta"] > 0).mean() > 0.9
    assert frame["delta"].mean() < 0.05


def test_stale_responses_meet_weights_that_were_not_trained_on_them(
    study: TokenStudy, settings: SampleSettings
) -> None:
    scenarios = frames(study.run())
    stale, mismatch = scenarios["stale"], scenarios["mismatch"]
    assert set(stale["step"]) == {1, 2}
    assert (stale.groupby("sequence")["step"].nunique() == 1).all()
    assert (stale["weight_version"] == 0).all()
    assert (stale["target_version"] == stale["step"]).all()
    # the first part, two of five problems, is not in it; the others are the same tokens as in mismatch
    assert set(stale["sequence"]) == set(range(2 * settings.group, settings.prompts * settings.group))
    both = stale.merge(mismatch, on=["sequence", "position"], suffixes=("", "_fresh"))
    assert len(both) == len(stale)
    for name in ("token", "behavior_logprob", "entropy", "advantage", "reward"):
        assert both[name].equals(both[f"{name}_fresh"])
    assert stale["delta"].mean() > 5 * mismatch["delta"].mean()
    assert all(0 < update["weights_changed"] <= 1 and update["grad_norm"] > 0 for update in study.updates)


def test_versions_rise_at_the_switches(study: TokenStudy, settings: SampleSettings) -> None:
    frame = frames(study.run())["switch"].sort_values(["sequence", "position"])
    assert (frame["target_version"] == settings.gradient_steps).all()
    assert (frame["step"] == frame["target_version"] - frame["weight_version"]).all()
    rise = frame.groupby("sequence")["weight_version"].diff()
    assert set(rise.dropna()) == {0, 1}
    assert (frame.groupby("sequence")["weight_version"].first() == settings.gradient_steps - settings.switches).all()
    assert (frame.loc[rise == 1, "switch_offset"] == 0).all()
    assert (frame.loc[frame["switch_offset"] == 0].index == frame.index[rise == 1]).all()
    switched = frame[rise == 1].groupby("position").size()
    assert len(switched) > settings.switches, "not every batch switches at the same positions"
    assert frame["delta"].where(frame["step"] == 2).mean() > frame["delta"].where(frame["step"] == 0).mean()


def test_reward_advantage_and_verdict(
    study: TokenStudy, tokenizer: Any, problems: list[WordProblem], settings: SampleSettings
) -> None:
    for frame in frames(study.run()).values():
        responses = frame.sort_values("position").groupby("sequence")
        for sequence, rows in responses:
            text = tokenizer.decode(rows["token"].to_numpy(), skip_special_tokens=True)
            answer = problems[sequence // settings.group].answer
            assert rows["reward"].unique() == pytest.approx([closeness(text, answer)])
            assert rows["advantage"].nunique() == 1
        advantage = responses["advantage"].first().groupby(lambda sequence: sequence // settings.group)
        assert advantage.sum().to_numpy() == pytest.approx(0, abs=1e-4)
        assert advantage.std().iloc[0] == pytest.approx(1, abs=1e-3)
        rule = EntropyScaled(tau=1.6)
        bound = rule.boundary(torch.tensor(frame["entropy"].to_numpy()))[1].numpy()
        assert (frame["kept"] == (frame["delta"] <= bound)).all()
        assert frame["entropy"].between(0, math.log(40)).all()


def test_the_same_settings_give_the_same_tokens(
    folder: Any, tokenizer: Any, problems: list[WordProblem], settings: SampleSettings
) -> None:
    from estr.llm.model import load_llama

    first, again, other = (
        TokenStudy(load_llama(folder), tokenizer, problems, settings.model_copy(update={"seed": seed})).run()
        for seed in (1, 1, 2)
    )
    assert all(first[name].equals(again[name]) for name in first)
    assert not any(first[name].equals(other[name]) for name in first)


def test_updates_train_on_the_first_groups_of_a_batch(
    model: Llama, tokenizer: Any, problems: list[WordProblem], settings: SampleSettings
) -> None:
    settings = settings.model_copy(update={"group": 6})
    study = TokenStudy(model, tokenizer, problems, settings)
    study.run()
    assert [update["responses"] for update in study.updates] == [12, 6], "batches of two, one and two groups"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group": 1}, "samples.group = 1"),
        ({"gradient_steps": 5}, "samples.prompts = 5: 5 gradient steps need 6 batches"),
        ({"switches": 3}, "samples.switches = 3, but samples.gradient_steps = 2"),
        ({"max_tokens": 2}, "samples.switches = 2: a response of 2 tokens can switch 1 times at most"),
    ],
)
def test_settings_that_contradict_each_other(
    model: Llama,
    tokenizer: Any,
    problems: list[WordProblem],
    settings: SampleSettings,
    change: dict[str, int],
    message: str,
) -> None:
    with pytest.raises(UserError, match=message):
        TokenStudy(model, tokenizer, problems, settings.model_copy(update=change))
