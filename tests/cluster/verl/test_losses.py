"""The losses as verl calls them, against `estr.algorithm`, without a trainer."""

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.utils.metric import Metric
from verl.workers import engine_workers
from verl.workers.config import FSDPActorConfig, PolicyLossConfig

from estr.algorithm import TokenSignals, build_rule, objective
from estr.cluster.loss_modes import LOSS_MODES
from estr.cluster.verl import KeepRuleConfig, losses
from estr.cluster.verl.columns import FIELD, OUTSIDE, MissingColumns, TokenColumns
from estr.cluster.verl.updates import CLOCK, UpdateClock

THRESHOLDS = {
    "estr": {"tau": 0.2},
    "icepop": {"low": 0.8, "high": 1.3},
    "kpop": {"phi": 0.01},
    "m2po": {"budget": 0.02},
    "fixed_magnitude": {"c": 0.2},
    "exploration_preserving": {"c": 0.2, "tau": 0.2},
    "outlier_suppressing": {"c": 0.2, "tau": 0.2},
    "keep_all": {},
}
PROMPT, ROWS, LENGTH = 3, 5, 12


def actor_config(mode: str, **more) -> FSDPActorConfig:
    loss = KeepRuleConfig(loss_mode=mode, thresholds=THRESHOLDS[mode], **more)
    return FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss=loss,
        clip_ratio_low=0.2,
        clip_ratio_high=0.28,
    )


def micro_batch(seed: int = 0, where: str = "own field") -> tuple[TensorDict, torch.Tensor, TokenSignals]:
    """A padded micro-batch as an engine hands it over, the trained policy's log-probs, and the same as signals."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.rand(*shape, generator=generator)

    lengths = torch.tensor([12, 7, 1, 9, 12])
    inside = torch.arange(LENGTH) < lengths[:, None]
    tool = (torch.arange(LENGTH) >= 4) & (torch.arange(LENGTH) < 6) & (lengths[:, None] > 6)
    mask = inside & ~tool
    behavior = torch.where(inside, -2 * draw(ROWS, LENGTH), 0)
    target = behavior + 1.2 * (draw(ROWS, LENGTH) - 0.5)
    entropy, version = 2 * draw(ROWS, LENGTH), torch.arange(LENGTH).expand(ROWS, -1) // 5
    advantage = (draw(ROWS, 1) - 0.5).expand(ROWS, LENGTH)
    columns = []
    for row, length in enumerate(lengths.tolist()):
        found = np.where(mask[row, :length], entropy[row, :length], np.nan).astype(np.float32)
        columns.append(
            TokenColumns(found, np.where(mask[row, :length], version[row, :length], OUTSIDE).astype(np.int64))
        )
    if where == "own field":
        carried = {FIELD: NonTensorStack(*columns)}
    else:
        carried = {"extra_fields": NonTensorStack(*({FIELD: found, "turn_scores": []} for found in columns))}
    data = TensorDict(
        {
            "prompts": torch.ones(ROWS, PROMPT, dtype=torch.long),
            "responses": torch.ones(ROWS, LENGTH, dtype=torch.long),
            "attention_mask": torch.cat([torch.ones(ROWS, PROMPT), inside], 1).long(),
            "response_mask": mask.long(),
            "old_log_probs": behavior,
            "rollout_log_probs": behavior,
            "advantages": advantage,
            "rm_scores": torch.where(torch.arange(LENGTH) == lengths[:, None] - 1, 1.0, 0.0) * (draw(ROWS, 1) > 0.5),
            **carried,
        },
        batch_size=[ROWS],
    )
    for name, value in {"dp_size": 1, "batch_num_tokens": int(mask.sum()), "global_batch_size": ROWS}.items():
        data[name] = NonTensorData(value)
    target.requires_grad_()
    signals = TokenSignals(behavior, target, entropy, advantage.contiguous(), mask, version.contiguous())
    return data, target, signals


def model_output(target: torch.Tensor, data: TensorDict) -> dict[str, torch.Tensor]:
    """Log-probs of all tokens of all sequences in a row, each at the place of the token before it, as engines return
    them.
    """
    lengths = data["attention_mask"][:, PROMPT:].sum(1).tolist()
    zeros = target.new_zeros(PROMPT - 1)
    return {
        "log_probs": torch.cat([torch.cat([zeros, row[:n], zeros[:1]]) for row, n in zip(target, lengths, strict=True)])
    }


@pytest.fixture(autouse=True)
def fresh_clock():
    CLOCK.pushed(4)


@pytest.mark.parametrize("where", ["own field", "extra fields"])
@pytest.mark.parametrize("mode", LOSS_MODES)
def test_equals_the_objective(mode: str, where: str) -> None:
    data, target, signals = micro_batch(where=where)
    config = actor_config(mode)
    loss, metrics = engine_workers.ppo_loss(config=config, model_output=model_output(target, data), data=data)
    (gradient,) = torch.autograd.grad(loss, target)
    expected = objective(signals, build_rule(LOSS_MODES[mode], **THRESHOLDS[mode]))
    (expected_gradient,) = torch.autograd.grad(expected.loss, signals.target_logprob)
    torch.testing.assert_close(loss, expected.loss)
    torch.testing.assert_close(gradient, expected_gradient)
    for name in ("masked_fraction", "entropy", "kl_to_behavior", "clip_fraction_low"):
        assert metrics[f"estr/{name}"].aggregate() == pytest.approx(expected.diagnostics[name], rel=1e-5)
    if mode != "keep_all":
        assert 0 < expected.diagnostics["masked_fraction"] < 1
        share = metrics["estr/masked_entropy_per_token"].aggregate() / metrics["estr/masked_fraction"].aggregate()
        assert share == pytest.approx(expected.diagnostics["masked_entropy"], rel=1e-5)


def test_micro_batches_and_ranks_add_up() -> None:
    """Two ranks with one micro-batch each: their mean gradient and metrics are those of the whole batch."""
    config = actor_config("estr")
    parts = [micro_batch(seed) for seed in (1, 2)]
    tokens = sum(signals.response_tokens for _, _, signals in parts)
    results = []
    for data, target, _ in parts:
        for name, value in {"dp_size": 2, "batch_num_tokens": tokens, "global_batch_size": 2 * ROWS}.items():
            data[name] = NonTensorData(value)
        results.append(engine_workers.ppo_loss(config=config, model_output=model_output(target, data), data=data))
    whole = TokenSignals(*(torch.cat([getattr(s, name) for *_, s in parts]) for name in TokenSignals.__annotations__))
    expected = objective(whole, build_rule("entropy_scaled", **THRESHOLDS["estr"]))
    assert sum(float(loss) for loss, _ in results) / 2 == pytest.approx(float(expected.loss), rel=1e-5)
    for name in ("masked_fraction", "log_ratio_abs", "sequences_masked_fraction"):
        together = Metric.aggregate_dp([metrics[f"estr/{name}"] for _, metrics in results])
        assert together == pytest.approx(expected.diagnostics[name], rel=1e-5)


def test_verls_own_settings_with_our_loss_mode_are_enough() -> None:
    """The three lines of docs/use_in_verl.md name no thresholds: the paper's are the default."""
    data, target, signals = micro_batch()
    config = FSDPActorConfig(
        strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, policy_loss=PolicyLossConfig(loss_mode="estr")
    )
    loss, metrics = engine_workers.ppo_loss(config=config, model_output=model_output(target, data), data=data)
    expected = objective(signals, build_rule("entropy_scaled", tau=1.6, eps=0.01), clip_high=0.2)
    torch.testing.assert_close(loss, expected.loss)
    assert "estr/masked_fraction" in metrics


def test_staleness_is_measured() -> None:
    data, target, signals = micro_batch()
    _, metrics = engine_workers.ppo_loss(
        config=actor_config("estr"), model_output=model_output(target, data), data=data
    )
    last = signals.weight_version.masked_fill(~signals.response_mask, -1).amax(1)
    assert metrics["estr/staleness_inter"].aggregate() == pytest.approx(float((4 - last).float().mean()))
    assert metrics["estr/staleness_intra"].aggregate() == pytest.approx(float(last.float().mean()))


def test_other_losses_of_verl_are_untouched() -> None:
    data, target, _ = micro_batch()
    del data[FIELD]
    config = FSDPActorConfig(strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1)
    loss, metrics = engine_workers.ppo_loss(config=config, model_output=model_output(target, data), data=data)
    assert math.isfinite(loss) and not any(name.startswith("estr/") for name in metrics)


def without_columns(data):
    del data[FIELD]


def too_short(data):
    columns = list(data[FIELD])
    columns[0] = columns[0].first(11)
    data[FIELD] = NonTensorStack(*columns)


def shifted(data):
    columns = list(data[FIELD])
    first = columns[0]
    columns[0] = TokenColumns(np.roll(first.entropy, 1), np.roll(first.weight_version, 1))
    data[FIELD] = NonTensorStack(*columns)


def refused_by_the_server(data):
    columns = list(data[FIELD])
    columns[3] = MissingColumns("SGLang returned no entropy")
    data[FIELD] = NonTensorStack(*columns)


def not_finite(data):
    columns = list(data[FIELD])
    columns[1].entropy[0] = np.inf
    data[FIELD] = NonTensorStack(*columns)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (without_columns, "no per-token entropy"),
        (too_short, "12 response tokens and 11 entropies"),
        (shifted, "not aligned"),
        (refused_by_the_server, "SGLang returned no entropy"),
        (not_finite, "non-finite"),
    ],
)
def test_bad_columns_end_the_run(damage, says: str) -> None:
    data, target, _ = micro_batch()
    damage(data)
    with pytest.raises(MissingColumns, match=says):
        engine_workers.ppo_loss(config=actor_config("estr"), model_output=model_output(target, data), data=data)


def test_a_few_non_finite_signals_are_masked() -> None:
    data, target, _ = micro_batch()
    not_finite(data)
    config = actor_config("keep_all", nonfinite_limit=0.1)
    loss, metrics = engine_workers.ppo_loss(config=config, model_output=model_output(target, data), data=data)
    assert math.isfinite(loss)
    assert metrics["estr/masked_fraction"].aggregate() == pytest.approx(1 / int(data["response_mask"].sum()))


def test_decoupled_mode_is_refused() -> None:
    data, target, _ = micro_batch()
    data["old_log_probs"] = data["old_log_probs"] + 0.1
    with pytest.raises(ValueError, match="bypass_mode"):
        engine_workers.ppo_loss(config=actor_config("estr"), model_output=model_output(target, data), data=data)


def test_other_aggregations_are_refused() -> None:
    data, target, _ = micro_batch()
    config = actor_config("estr")
    object.__setattr__(config, "loss_agg_mode", "seq-mean-token-mean")
    with pytest.raises(ValueError, match="token-mean"):
        engine_workers.ppo_loss(config=config, model_output=model_output(target, data), data=data)


def test_padding_rows_of_verl_may_carry_anything() -> None:
    """verl pads a batch with one-token rows that no mask counts and that clone another trajectory's fields."""
    data, _, signals = micro_batch()
    columns = list(data[FIELD])
    mask = torch.cat([data["response_mask"], torch.zeros(1, LENGTH, dtype=torch.long)])
    padded = losses.align([*columns, columns[0]], mask.bool())
    assert padded[0][5].isnan().all() and (padded[1][5] == OUTSIDE).all()
    torch.testing.assert_close(padded[0][:5][signals.response_mask], signals.entropy[signals.response_mask])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"loss_mode": "entr"}, "unknown loss mode"),
        ({"thresholds": {"tua": 1.0}}, "unknown threshold 'tua'"),
        ({"thresholds": {"tau": -1.0}}, "tau must be >= 0"),
        ({"nonfinite_limit": 2.0}, "nonfinite_limit"),
    ],
)
def test_settings_are_checked(settings: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        KeepRuleConfig(**settings)


def test_the_registry_has_every_rule() -> None:
    for mode in LOSS_MODES:
        assert isinstance(get_policy_loss_fn(mode), partial)


def test_clock_counts_updates_since_the_push() -> None:
    clock = UpdateClock()
    assert clock.step(2) == 1
    clock.went_through(8, of_update=16)
    assert clock.step(2) == 1
    clock.went_through(8, of_update=16)
    assert clock.step(2) == 2
    clock.pushed(3)
    assert (clock.step(2), clock.update) == (7, 0)


def test_an_update_beyond_those_of_a_version_has_no_number() -> None:
    """It would be that of the next version's first update."""
    clock = UpdateClock()
    clock.pushed(1)
    clock.went_through(16, of_update=16)
    assert clock.step(2) == 4
    with pytest.raises(ValueError, match=r"updates_per_version=1 .*\+actor_rollout_ref\.actor\.policy_loss"):
        clock.step(1)


def test_an_unrecorded_run_needs_no_number(tmp_path: Path) -> None:
    data, target, _ = micro_batch()
    for _ in range(2):
        engine_workers.ppo_loss(config=actor_config("estr"), model_output=model_output(target, data), data=data)
    recorded = actor_config("estr", record=str(tmp_path))
    with pytest.raises(ValueError, match="weight version 4 has a training step 3"):
        engine_workers.ppo_loss(config=recorded, model_output=model_output(target, data), data=data)
