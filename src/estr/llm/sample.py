"""Per-token signals of a language model: the same weights in two precisions, stale weights, weights that switch.

A queue of batches is sampled by a bfloat16 engine with the weights of version 0. A float32 trainer consumes it as an
asynchronous trainer does: batch k is scored by the weights of version k and then makes the update to version k + 1, so
that no token is scored by weights that were trained on it. The last batch is only scored.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor
from tqdm import tqdm

from estr.algorithm.advantage import group_normalized_advantage
from estr.algorithm.objective import objective
from estr.algorithm.rules import EntropyScaled, KeepAll
from estr.algorithm.signals import TokenSignals, token_logprob
from estr.config import SampleSettings
from estr.embedded.policy import Policy, response_logits
from estr.embedded.sampler import Rollout, sample
from estr.errors import UserError
from estr.llm.model import Llama, bfloat16_engine
from estr.llm.problems import WordProblem, closeness
from estr.records import token_rows

ROWS, SWITCHING_ROWS = 128, 24
"""Responses sampled at once. Those whose weights switch do so at the same positions, hence the smaller batches."""
TRAINED = 16
"""Responses that make an update, at least one group; the others of its batch are only scored."""
GRAD_NORM_LIMIT = 1.0
RULE = EntropyScaled()
MISMATCH, STALE, SWITCH = "mismatch", "stale", "switch"


@dataclass(frozen=True)
class Group:
    """The responses to one problem: prompt ids `[length]`, reward and advantage `[responses]`, and per token, all
    `[responses, longest]`: `tokens`, `mask`, `logprob`, `entropy`, `version` as in a `Rollout`."""

    problem: int
    prompt: Tensor
    tokens: Tensor
    mask: Tensor
    logprob: Tensor
    entropy: Tensor
    version: Tensor
    reward: Tensor
    advantage: Tensor

    def signals(self, target_logprob: Tensor) -> TokenSignals:
        return TokenSignals(
            behavior_logprob=self.logprob,
            target_logprob=target_logprob,
            entropy=self.entropy,
            advantage=self.advantage[:, None].expand_as(target_logprob),
            response_mask=self.mask,
            weight_version=self.version,
        )


class TokenStudy:
    """Samples and scores one model. `tokenizer` is one of transformers, with a chat template.

    The model's weights change: after `run` they are those of version `gradient_steps`.

    Raises:
        UserError: the settings contradict each other.
    """

    def __init__(self, model: Llama, tokenizer: Any, problems: list[WordProblem], settings: SampleSettings) -> None:
        _check(settings)
        self.model, self.tokenizer, self.problems, self.settings = model, tokenizer, problems, settings
        self.versions: dict[int, dict[str, Tensor]] = {0: _rounded(model)}
        """Past weights as an engine holds them, bfloat16."""
        self.updates: list[dict[str, float]] = []
        """Per gradient step: its responses, their mean reward, the share of groups with mixed rewards, gradient norm,
        and the share of the bfloat16 weights that it changed."""

    def run(self) -> dict[str, pa.Table]:
        """The three scenarios by name, each with the columns of `TOKEN_SCHEMA` and `scenario`."""
        queue = self._sample("responses", [(0, bfloat16_engine(self.model))], ROWS)
        mismatch = self._scored(MISMATCH, queue, 0)
        stale = self._stale(queue)
        return {MISMATCH: mismatch, STALE: stale, SWITCH: self._switch()}

    def _stale(self, queue: list[Group]) -> pa.Table:
        settings, tables = self.settings, []
        steps = settings.gradient_steps
        cuts = [round(i * len(queue) / (steps + 1)) for i in range(steps + 2)]
        batches = [queue[start:end] for start, end in itertools.pairwise(cuts)]
        trained = max(1, TRAINED // settings.group)
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=settings.learning_rate, weight_decay=0.0)
        for version, batch in enumerate(batches):
            if version > 0:
                tables.append(self._scored(STALE, batch, version))
            if version < steps:
                self._update(batch[:trained], optimizer)
                self.versions[version + 1] = _rounded(self.model)
                self.updates[-1]["weights_changed"] = _changed(self.versions[version], self.versions[version + 1])
        return pa.concat_tables(tables)

    def _switch(self) -> pa.Table:
        newest = self.settings.gradient_steps
        engines = []
        for version in range(newest - self.settings.switches, newest + 1):
            engine = bfloat16_engine(self.model)
            engine.load_state_dict(self.versions[version])
            engines.append((version, engine))
        return self._scored(SWITCH, self._sample("switching responses", engines, SWITCHING_ROWS), newest)

    def _sample(self, what: str, engines: Sequence[tuple[int, Policy]], rows: int) -> list[Group]:
        """Responses to every problem; all of at most `rows` go through the engines at the same positions."""
        settings, tokenizer, groups = self.settings, self.tokenizer, list[Group]()
        size = max(1, rows // settings.group)
        with self._bar(what) as bar:
            for first in range(0, len(self.problems), size):
                rng = random.Random(f"{what}/{settings.seed}/{first}")
                rollout = sample(
                    engines,
                    sorted(rng.sample(range(1, settings.max_tokens), len(engines) - 1)),
                    *encode(tokenizer, self.problems[first : first + size]),
                    group=settings.group,
                    max_tokens=settings.max_tokens,
                    end_id=tokenizer.eos_token_id,
                    pad_id=tokenizer.pad_token_id,
                    generator=torch.Generator().manual_seed(rng.getrandbits(63)),
                    temperature=settings.temperature,
                    on_switch="retract",
                )
                groups += self._groups(first, rollout)
                bar.update(len(rollout.prompts))
        return groups

    def _groups(self, first: int, rollout: Rollout) -> Iterator[Group]:
        size = self.settings.group
        for i, (prompt, valid) in enumerate(zip(rollout.prompts, rollout.prompt_valid, strict=True)):
            rows = slice(i * size, (i + 1) * size)
            mask = rollout.mask[rows]
            columns = slice(int(mask.sum(1).max()))
            tokens, mask = rollout.tokens[rows, columns], mask[:, columns]
            texts = [self.tokenizer.decode(row[own]) for row, own in zip(tokens, mask, strict=True)]
            reward = torch.tensor([closeness(text, self.problems[first + i].answer) for text in texts])
            yield Group(
                first + i,
                prompt[valid],
                tokens,
                mask,
                rollout.logprob[rows, columns],
                rollout.entropy[rows, columns],
                rollout.version[rows, columns],
                reward,
                group_normalized_advantage(reward, torch.zeros_like(reward, dtype=torch.int64)),
            )

    def _update(self, groups: Sequence[Group], optimizer: torch.optim.Optimizer) -> None:
        self.model.requires_grad_(True)
        response_tokens = sum(int(group.mask.sum()) for group in groups)
        with self._bar("training", len(groups)) as bar:
            for group in groups:
                signals = group.signals(self._target(group))
                objective(signals, KeepAll(), response_tokens=response_tokens).loss.backward()
                bar.update()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), GRAD_NORM_LIMIT)
        optimizer.step()
        optimizer.zero_grad()
        self.updates.append(
            {
                "responses": sum(len(group.reward) for group in groups),
                "reward": float(torch.cat([group.reward for group in groups]).mean()),
                "groups_mixed": sum(bool(group.advantage.any()) for group in groups) / len(groups),
                "grad_norm": float(norm),
            }
        )

    @torch.no_grad()
    def _scored(self, scenario: str, groups: Sequence[Group], version: int) -> pa.Table:
        """Rows of the groups, scored by the model's weights, which are those of `version`."""
        tables = []
        with self._bar(f"scoring {scenario}", len(groups)) as bar:
            for group in groups:
                tables.append(_rows(scenario, group, self._target(group), version))
                bar.update()
        return pa.concat_tables(tables)

    def _target(self, group: Group) -> Tensor:
        """Log-probs `[responses, longest]` of the tokens under the model's weights, 0 outside the mask."""
        prompt = group.prompt[None]
        logits = response_logits(
            self.model, prompt, torch.ones_like(prompt, dtype=torch.bool), group.tokens, group.mask
        )
        logprob = token_logprob(logits, group.tokens[group.mask], self.settings.temperature)
        return torch.zeros(group.mask.shape).masked_scatter(group.mask, logprob)

    def _bar(self, what: str, total: int | None = None) -> tqdm:
        return tqdm(total=len(self.problems) if total is None else total, desc=what, unit="problem", disable=None)


def encode(tokenizer: Any, problems: Sequence[WordProblem]) -> tuple[Tensor, Tensor]:
    """Prompts under the chat template: ids and validity, both `[problems, longest]`, padded on the left."""
    texts = [tokenizer.apply_chat_template(p.prompt, add_generation_prompt=True, tokenize=False) for p in problems]
    encoded = tokenizer(texts, add_special_tokens=False, padding=True, padding_side="left", return_tensors="pt")
    return encoded["input_ids"], encoded["attention_mask"].bool()


def _rows(scenario: str, group: Group, target: Tensor, version: int) -> pa.Table:
    """A row per token: `step` is the number of gradient steps from its own weights to those of `version`."""
    signals = group.signals(target)
    table = token_rows(0, version, signals, group.tokens, RULE.keep(signals), group.reward)
    columns = {
        "step": pc.subtract(table["target_version"], table["weight_version"]),
        "sequence": pc.add(table["sequence"], group.problem * len(group.reward)),
    }
    for name, values in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, values)
    return table.append_column("scenario", pa.array([scenario] * len(table)))


def _rounded(model: Llama) -> dict[str, Tensor]:
    return {name: weight.detach().bfloat16() for name, weight in model.state_dict().items()}


def _changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> float:
    changed = sum(int((before[name] != weight).sum()) for name, weight in after.items())
    return changed / sum(weight.numel() for weight in after.values())


def _check(settings: SampleSettings) -> None:
    if settings.group < 2:
        raise UserError("samples.group = 1: an advantage needs two responses or more to a problem")
    if settings.prompts <= settings.gradient_steps:
        raise UserError(
            f"samples.prompts = {settings.prompts}: {settings.gradient_steps} gradient steps need "
            f"{settings.gradient_steps + 1} batches of one problem or more"
        )
    if settings.switches > settings.gradient_steps:
        raise UserError(
            f"samples.switches = {settings.switches}, but samples.gradient_steps = {settings.gradient_steps} makes no "
            "more new versions"
        )
    if settings.switches >= settings.max_tokens:
        raise UserError(
            f"samples.switches = {settings.switches}: a response of {settings.max_tokens} tokens can switch "
            f"{settings.max_tokens - 1} times at most"
        )
