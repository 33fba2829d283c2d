"""Training over several turns: tool output is read by the policy and enters nothing else."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from test_trainer import buffers, content, run, trainer

from estr.algorithm.objective import objective
from estr.algorithm.signals import TokenSignals
from estr.config import EvaluationSettings, RunConfig
from estr.embedded.answer import EmbeddedEngine
from estr.embedded.policy import Policy, PolicyShape, save_policy
from estr.embedded.score import score
from estr.embedded.tokenizer import ChatTokenizer
from estr.embedded.trainer import Batch, Trainer
from estr.tasks.base import Problem
from estr.tasks.gsm8k_laptop import Gsm8kLaptop
from estr.tools.conversation import Limits

CALLS = tuple(
    f'<tool_call> {{"name": "calculator", "arguments": {{"expression": "{a} + {b}"}}}} </tool_call>'
    for a in range(2)
    for b in range(2)
)


@dataclass(frozen=True)
class Calling(Gsm8kLaptop):
    """Whole calls are single words, so that an untrained policy makes some; an even number of words is rewarded."""

    @property
    def limits(self) -> Limits:
        return Limits(turns=4, tool_output_tokens=3)

    @property
    def response_tokens(self) -> int:
        return 8

    def vocabulary(self) -> list[str]:
        return [*super().vocabulary()[-12:], *CALLS]

    def problems(self, split: str, count: int, seed: int) -> list[Problem]:
        return [
            Problem(({"role": "user", "content": "####"},), "2", "calling", "math", split, index)
            for index in range(count)
        ]

    def reward(self, response: str, ground_truth: str) -> float:
        return float(len(response.split()) % 2 == 0)


@pytest.fixture
def task() -> Calling:
    return Calling()


@pytest.fixture
def warm_start(tmp_path: Path, task: Calling) -> Path:
    tokenizer = ChatTokenizer.from_words(task.vocabulary())
    shape = PolicyShape(len(tokenizer), 16, 32, 1, 2, 2, 64)
    policy = Policy(shape).initialize(0)
    with torch.no_grad():
        policy.model.embed_tokens.weight[tokenizer.end_id] += 0.3
    folder = tmp_path / "warm_start"
    save_policy(policy, folder)
    tokenizer.save(folder)
    return folder


@pytest.fixture
def config(tiny_config: RunConfig) -> RunConfig:
    settings = tiny_config.train.model_copy(update={"max_tokens": 40, "prompts": 8})
    return tiny_config.model_copy(update={"train": settings})


def one_batch(config: RunConfig, task: Calling, warm_start: Path, folder: Path) -> tuple[Trainer, Batch, TokenSignals]:
    made = trainer(config, task, warm_start, folder)
    made.resume()
    for _ in range(6):
        made._update()
    batch = made._generate(made.step)
    return made, batch, score(made.policy, batch.rollout, batch.advantage, made.config.train.temperature)


def tool_positions(batch: Batch) -> torch.Tensor:
    """True between a row's first and last sampled token where it sampled none."""
    mask = batch.rollout.mask
    return ~mask & (mask.flip(1).cumsum(1).flip(1) > 0)


def test_tool_output_is_read_but_enters_neither_loss_nor_statistics(
    config: RunConfig, task: Calling, warm_start: Path, tmp_path: Path
) -> None:
    made, batch, signals = one_batch(config, task, warm_start, tmp_path)
    tools = tool_positions(batch)
    assert tools.sum() > 50 and signals.response_mask.sum() > 200
    settings = {"clip_low": 0.2, "clip_high": 0.28}
    output = objective(signals, made.rule, **settings)
    poisoned = {
        name: getattr(signals, name).masked_fill(tools, torch.nan)
        for name in ("behavior_logprob", "target_logprob", "entropy", "advantage")
    }
    again = objective(
        TokenSignals(**poisoned, response_mask=signals.response_mask, weight_version=signals.weight_version),
        made.rule,
        **settings,
    )
    assert torch.equal(again.loss, output.loss)
    assert again.diagnostics == pytest.approx(output.diagnostics, nan_ok=True)
    assert torch.equal(again.keep, output.keep)


def test_the_loss_is_that_of_the_sampled_tokens_in_the_whole_text(
    config: RunConfig, task: Calling, warm_start: Path, tmp_path: Path
) -> None:
    made, batch, signals = one_batch(config, task, warm_start, tmp_path)
    rollout, group = batch.rollout, config.train.group
    made.policy.zero_grad()
    objective(signals, made.rule, clip_low=0.2, clip_high=0.28).loss.backward()
    ours = [parameter.grad.clone() for parameter in made.policy.parameters()]
    made.policy.zero_grad()
    prompts = rollout.prompts.repeat_interleave(group, 0)
    valid = torch.cat([rollout.prompt_valid.repeat_interleave(group, 0), torch.ones_like(rollout.mask)], 1)
    logits, _ = made.policy(torch.cat([prompts, rollout.tokens], 1), valid=valid)
    chosen = logits[:, prompts.shape[1] - 1 : -1].log_softmax(-1).gather(-1, rollout.tokens[..., None])[..., 0]
    by_hand = TokenSignals(
        signals.behavior_logprob, chosen, signals.entropy, signals.advantage, rollout.mask, signals.weight_version
    )
    objective(by_hand, made.rule, clip_low=0.2, clip_high=0.28).loss.backward()
    theirs = [parameter.grad for parameter in made.policy.parameters()]
    assert max(float(gradient.abs().max()) for gradient in ours) > 0
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-6, rtol=1e-4)


def test_recorded_tokens_and_metrics_hold_sampled_tokens_alone(
    config: RunConfig, task: Calling, warm_start: Path, tmp_path: Path
) -> None:
    run(config, task, warm_start, tmp_path)
    tokens = pq.read_table(tmp_path / "tokens.parquet").to_pandas()
    metrics = content(tmp_path).to_pandas().set_index("step")
    assert (tokens["weight_version"] >= 0).all()
    assert metrics["tool_calls"].min() > 0.2 and metrics["turns"].between(1, 4).all()
    for step, rows in tokens.groupby("step"):
        assert metrics.loc[step, "response_tokens"] == len(rows)
        assert metrics.loc[step, "entropy"] == pytest.approx(rows["entropy"].mean(), rel=1e-4)
        assert metrics.loc[step, "masked_fraction"] == pytest.approx(1 - rows["kept"].mean())
    gaps = tokens.groupby(["step", "sequence"])["position"].diff().dropna()
    assert gaps.min() == 1 and gaps.max() > 4  # where a tool spoke


def test_an_agentic_run_resumes_to_the_same_bits(
    config: RunConfig, task: Calling, warm_start: Path, tmp_path: Path
) -> None:
    run(config, task, warm_start, tmp_path / "whole")
    run(config, task, warm_start, tmp_path / "broken", stop_after=4)
    assert run(config, task, warm_start, tmp_path / "broken") == 4
    for table in ("metrics.parquet", "tokens.parquet"):
        assert buffers(content(tmp_path / "whole", table)) == buffers(content(tmp_path / "broken", table))


def test_staleness_is_measured_over_turns(config: RunConfig, task: Calling, warm_start: Path, tmp_path: Path) -> None:
    run(config, task, warm_start, tmp_path)
    for row in content(tmp_path).to_pylist():
        assert row["staleness_intra_max"] <= min(max(row["target_version"] - 2, 0), 3)
        total = row["staleness_intra"] + row["staleness_inter"]
        assert total == pytest.approx(min(row["target_version"], 5))


def test_evaluation_counts_turns_calls_and_own_tokens(task: Calling, warm_start: Path) -> None:
    engine = EmbeddedEngine.load(warm_start, task, EvaluationSettings(samples=3, temperature=1.0, seed=0), 40)
    problems = task.problems("eval", 30, 0)
    answers = dict(engine.answer(problems, 3, range(len(problems))))
    samples = [sample for position in range(30) for sample in answers[position]]
    assert len(samples) == 90
    assert {sample.status for sample in samples} >= {"completed", "token_limit"}
    for sample in samples:
        assert 0 <= sample.turns <= 4 and 1 <= sample.tokens <= 40
    called = [sample for sample in samples if sample.tool_calls and sample.status == "completed"]
    assert called and all(sample.turns > 1 and sample.tokens < 36 for sample in called)
    assert dict(engine.answer(problems, 3, range(len(problems)))) == answers
