"""GRPO in scheduled asynchrony: sample with past weights, score with the current ones, gate, step, record."""

import copy
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import pyarrow as pa
import torch
from torch import Tensor
from tqdm import tqdm

from estr.algorithm.advantage import group_normalized_advantage
from estr.algorithm.objective import ObjectiveOutput, objective
from estr.algorithm.rules import KeepRule
from estr.algorithm.signals import TokenSignals
from estr.algorithm.staleness import staleness
from estr.config import RunConfig
from estr.embedded.answer import EmbeddedEngine
from estr.embedded.checkpoint import capture, load_state, restore, save_state
from estr.embedded.dialogue import Dialogues
from estr.embedded.interrupt import StopRequest
from estr.embedded.optimizer import AdamW
from estr.embedded.policy import Policy, behavior_copy, load_policy, save_policy
from estr.embedded.sampler import Rollout, sample
from estr.embedded.schedule import itinerary, oldest_needed
from estr.embedded.score import score
from estr.embedded.tokenizer import ChatTokenizer
from estr.errors import UserError
from estr.records import TOKEN_SCHEMA, GrowingTable, metrics_row, token_rows, write_table
from estr.tasks.base import Problem, TrainableFromScratch


class Interrupted(Exception):
    """Training stopped on request after `step`; the same command resumes it."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped after step {step}; the same command resumes from there")
        self.step = step


@dataclass(frozen=True)
class Batch:
    """What one update consumes: a rollout with its dialogues, rewards and advantages `[rows]`."""

    dialogues: Dialogues
    rollout: Rollout
    reward: Tensor
    advantage: Tensor


class Trainer:
    """One run. `folder` takes the outputs, `state_folder` what a resumed run needs.

    `probes` are rules by method whose masked fraction every step reports without applying them. `held_out` are the
    problems that every `train.validate_every`-th step is validated on.
    """

    def __init__(
        self,
        config: RunConfig,
        rule: KeepRule,
        probes: Mapping[str, KeepRule],
        task: TrainableFromScratch,
        problems: list[Problem],
        warm_start: Path,
        folder: Path,
        state_folder: Path,
        held_out: Sequence[Problem] = (),
    ) -> None:
        self.held_out = held_out
        self.config, self.rule, self.task, self.problems = config, rule, task, problems
        self.folder, self.state_folder = folder, state_folder
        self.tokenizer = ChatTokenizer.load(warm_start)
        self.encoded = [self.tokenizer.encode(self.tokenizer.render(problem.prompt)) for problem in problems]
        self.policy = load_policy(warm_start)
        self.optimizer = AdamW(self.policy.parameters(), config.train.learning_rate, config.train.weight_decay)
        self.probes = probes
        self.metrics = GrowingTable()
        self.tokens = GrowingTable(TOKEN_SCHEMA)
        self.versions: dict[int, Policy] = {}
        self.step = 0
        if config.train.prompts > len(problems):
            raise UserError(
                f"train.prompts = {config.train.prompts}, but the training set has {len(problems)} problems"
            )
        if config.staleness.intra > task.response_tokens - 1:
            raise UserError(
                f"staleness.intra = {config.staleness.intra}, but a response of {task.response_tokens} tokens can "
                f"switch versions {task.response_tokens - 1} times at most"
            )
        needed = max(map(len, self.encoded)) + config.train.max_tokens
        if needed > self.policy.shape.max_position_embeddings:
            raise UserError(
                f"train.max_tokens = {config.train.max_tokens}: prompt and response need {needed} positions, "
                f"policy.max_position_embeddings is {self.policy.shape.max_position_embeddings}"
            )

    def resume(self) -> int:
        """Continue from the newest checkpoint if there is one; returns the step to go on from."""
        state = load_state(self.state_folder)
        if state is None:
            self.state_folder.mkdir(parents=True, exist_ok=True)
            self.versions = {0: behavior_copy(self.policy)}
            return 0
        restore(state, self.policy, self.optimizer)
        self.step = state.step
        for version, weights in state.versions.items():
            self.versions[version] = copy.deepcopy(self.policy).requires_grad_(False)
            self.versions[version].load_state_dict(weights)
        self.metrics.add(state.metrics)
        self.tokens.add(state.tokens)
        return state.step

    def run(self, stop: StopRequest) -> Iterator[pa.Table]:
        """Train to the last step, yielding the metrics so far at every checkpoint.

        Raises:
            Interrupted: `stop` was set; a checkpoint of the last finished step is on disk.
        """
        settings = self.config.train
        with ExitStack() as stack:
            bar = stack.enter_context(
                tqdm(total=settings.steps, initial=self.step, desc=self.config.label, unit="step", disable=None)
            )
            while self.step < settings.steps:
                row = self._update()
                bar.set_postfix_str(
                    f"reward {row['reward']:.2f}, staleness {row['staleness_intra']:.0f}+{row['staleness_inter']:.0f}, "
                    f"masked {row['masked_fraction']:.2%}"
                )
                bar.update()
                last = self.step == settings.steps
                if last or stop.requested or self.step % settings.checkpoint_every == 0:
                    self._checkpoint()
                    yield self.metrics.table()
                if stop.requested and not last:
                    raise Interrupted(self.step)

    def finish(self) -> None:
        """Publish the finished run: tables and weights."""
        write_table(self.metrics.table(), self.folder / "metrics.parquet")
        write_table(self.tokens.table(), self.folder / "tokens.parquet")
        save_policy(self.policy, self.folder / "policy")
        self.tokenizer.save(self.folder / "policy")

    def _update(self) -> dict[str, float]:
        target_version, settings = self.step, self.config.train
        started = time.perf_counter()
        batch = self._generate(target_version)
        generated = time.perf_counter()
        signals = score(self.policy, batch.rollout, batch.advantage, settings.temperature)
        output = objective(signals, self.rule, clip_low=settings.clip_low, clip_high=settings.clip_high)
        self.optimizer.zero_grad()
        output.loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), settings.grad_norm_limit)
        self.optimizer.step()
        self.step += 1
        self._keep_versions()
        row = self._metrics(batch, signals, output, target_version)
        row |= {"grad_norm": float(norm), "learning_rate": settings.learning_rate}
        row |= {"time_generate": generated - started, "time_train": time.perf_counter() - generated}
        if settings.validate_every:
            due = self.step % settings.validate_every == 0 or self.step == settings.steps
            row["validation_accuracy"] = self._validate() if due else math.nan
        self.metrics.add(metrics_row(row | {"wall_time": time.time()}))
        if self.step <= settings.tokens_first or self.step % settings.tokens_every == 0:
            self.tokens.add(
                token_rows(self.step, target_version, signals, batch.rollout.tokens, output.keep, batch.reward)
            )
        return row

    def _generate(self, target_version: int) -> Batch:
        """Rollouts as a pool with the run's staleness would have delivered them for this update."""
        settings, stale = self.config.train, self.config.staleness
        rng = random.Random(f"rollout/{self.config.seed}/{target_version}")
        chosen = rng.sample(range(len(self.problems)), settings.prompts)
        problems = [self.problems[index] for index in chosen]
        prompts, valid = self.tokenizer.pad_left([self.encoded[index] for index in chosen])
        plan = itinerary(target_version, stale.intra, stale.inter, self.task.response_tokens, rng)
        dialogues = Dialogues(self.task, self.tokenizer, [p for p in problems for _ in range(settings.group)])
        rollout = sample(
            [(version, self.versions[version]) for version in plan.versions],
            plan.switch_at,
            prompts,
            valid,
            group=settings.group,
            max_tokens=settings.max_tokens,
            end_id=self.tokenizer.end_id,
            pad_id=self.tokenizer.pad_id,
            generator=torch.Generator().manual_seed(rng.getrandbits(63)),
            temperature=settings.temperature,
            on_switch=settings.on_switch,
            reply=dialogues.reply,
        )
        finals = dialogues.finals(rollout.tokens, rollout.mask)
        reward = torch.tensor(
            [self.task.reward(text, problems[i // settings.group].ground_truth) for i, text in enumerate(finals)]
        )
        groups = torch.arange(settings.prompts).repeat_interleave(settings.group)
        return Batch(dialogues, rollout, reward, group_normalized_advantage(reward, groups))

    def _metrics(
        self, batch: Batch, signals: TokenSignals, output: ObjectiveOutput, target_version: int
    ) -> dict[str, float]:
        measured = staleness(signals.weight_version, signals.response_mask, target_version)
        conversations = batch.dialogues.conversations
        mixed = batch.advantage.view(-1, self.config.train.group).ne(0).any(1)
        row = {
            "step": self.step,
            "target_version": target_version,
            "reward": float(batch.reward.mean()),
            "accuracy_groups_mixed": float(mixed.float().mean()),
            "response_length": float(signals.response_mask.sum(1).float().mean()),
            "turns": fmean(conversation.turns for conversation in conversations),
            "tool_calls": fmean(conversation.tool_calls.total() for conversation in conversations),
            "tool_errors": fmean(conversation.tool_errors for conversation in conversations),
            "staleness_intra": float(measured.intra.float().mean()),
            "staleness_inter": float(measured.inter.float().mean()),
            "staleness_intra_max": float(measured.intra.max()),
            "staleness_inter_max": float(measured.inter.max()),
            "loss": float(output.loss.detach()),
        }
        with torch.no_grad():
            probes = {
                f"probe_{name}_masked_fraction": float(1 - rule.keep(signals).sum() / signals.response_mask.sum())
                for name, rule in self.probes.items()
            }
        return row | output.diagnostics | probes

    def _validate(self) -> float:
        """Share of held-out problems that the newest behavior copy solves with one sampled answer."""
        engine = EmbeddedEngine(
            self.versions[self.step], self.tokenizer, self.task, self.config.evaluation, self.config.train.max_tokens
        )
        answers = engine.answer(self.held_out, 1, range(len(self.held_out)))
        return fmean(
            self.task.reward(sample.text, self.held_out[position].ground_truth) for position, [sample] in answers
        )

    def _keep_versions(self) -> None:
        stale = self.config.staleness
        self.versions[self.step] = behavior_copy(self.policy)
        oldest = oldest_needed(self.step, stale.intra, stale.inter)
        self.versions = {version: policy for version, policy in self.versions.items() if version >= oldest}

    def _checkpoint(self) -> None:
        versions = {version: policy.state_dict() for version, policy in self.versions.items()}
        tables = self.metrics.table(), self.tokens.table()
        save_state(capture(self.step, self.policy, self.optimizer, versions, *tables), self.state_folder)
