"""GRPO in two processes: rollout and trainer that overlap, or two equal workers that take turns together.

`disaggregated`: one process generates all the time, the other trains. New weights go over every few updates, and
responses under way go on with them. `colocated`: both processes generate half of a batch with the current weights, then
both compute half of its gradient. Nothing is stale, and each waits for the slower one.
"""

import queue
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch.nn.utils import parameters_to_vector

from estr.algorithm.signals import TokenSignals
from estr.config import ConcurrentSettings
from estr.embedded.concurrent.generation import Group
from estr.embedded.concurrent.learner import Learner, Recipe
from estr.embedded.concurrent.processes import Channel, SharedGradients, SharedWeights, Worker, shared_numbers
from estr.embedded.policy import behavior_copy
from estr.errors import UserError

NAP = 0.0005
"""Seconds between two looks of a paused rollout for new weights."""
IDLE_SECONDS, RESPONSES, GROUPS = range(3)
"""What the rollout process counts in memory that the trainer sees: pauses, finished responses, complete groups."""


@dataclass(frozen=True)
class Update:
    """An update as it went. Times are seconds; `started` and `finished` count from `origin`, the start of generation.

    `wait`, `generate`, `train` and `sync` are the parts of the trainer's time: waiting for the other process;
    generating (colocated only, else NaN; the wait for the other half is in it); gradient and step (likewise); passing
    weights on. Sums since the start: `rollout_idle` and `trainer_idle`, the seconds that a core waited for the other
    side (colocated: the mean of both cores, while generating and while training), and `generated`, finished responses.
    `queue_length` counts the complete groups that lay ready, `target_version` the updates before this one.
    """

    target_version: int
    origin: float
    started: float
    finished: float
    wait: float
    generate: float
    train: float
    sync: float
    queue_length: int
    rollout_idle: float
    trainer_idle: float
    generated: int
    groups: Sequence[Group]
    signals: TokenSignals


def groups_allowed(prompts: int, settings: ConcurrentSettings) -> int:
    """Groups that the rollout may have begun and the trainer not used at the last synchronization, before it pauses.

    verl's `max_required_samples` (fully_async_policy): (1 + staleness threshold) x synchronization interval x groups of
    an update. As there, what was unfinished or unused at the synchronization counts, and using a group between two
    synchronizations makes no room.
    """
    return int((1 + settings.staleness_threshold) * settings.sync_interval * prompts)


def disaggregated(recipe: Recipe, settings: ConcurrentSettings) -> Generator[Update, None, None]:
    """Updates without end, each on the groups that were complete first; close the iterator to end the rollout process.

    Raises:
        WorkerFailed: the rollout process failed or is gone.
    """
    learner, prompts = Learner(recipe), recipe.config.train.prompts
    weights, counts = SharedWeights(learner.policy), shared_numbers(3)
    weights.publish(learner.policy, learner.version)
    with Worker("rollout", _rollout, recipe, settings, weights, counts) as rollout:
        origin: float = rollout.receive()
        before = rollout.waited
        while True:
            ready, waited, started = int(counts[GROUPS]) - prompts * learner.version, rollout.waited, time.monotonic()
            groups = [rollout.receive() for _ in range(prompts)]
            received = time.monotonic()
            signals = learner.backward(groups)
            learner.step()
            trained = time.monotonic()
            if learner.version % settings.sync_interval == 0:
                weights.publish(learner.policy, learner.version)
            finished = time.monotonic()
            yield Update(
                target_version=learner.version - 1,
                origin=origin,
                started=started - origin,
                finished=finished - origin,
                wait=rollout.waited - waited,
                generate=float("nan"),
                train=trained - received,
                sync=finished - trained,
                queue_length=ready,
                rollout_idle=counts[IDLE_SECONDS],
                trainer_idle=rollout.waited - before,
                generated=int(counts[RESPONSES]),
                groups=groups,
                signals=signals,
            )


def _rollout(
    channel: Channel,
    stopping: Callable[[], bool],
    recipe: Recipe,
    settings: ConcurrentSettings,
    weights: SharedWeights,
    counts: Any,
) -> None:
    """The rollout process: sends the time of its start, then every group as soon as it is complete."""
    prompts, allowed = recipe.config.train.prompts, groups_allowed(recipe.config.train.prompts, settings)
    policy = recipe.policy().requires_grad_(False)
    version = weights.take(policy)
    generation = recipe.generation(policy, settings.slots)
    outbox: queue.Queue[Group] = queue.Queue(maxsize=allowed)
    channel.send(time.monotonic())
    threading.Thread(target=_forward, args=(outbox, channel), daemon=True).start()
    while not stopping():
        if weights.version != version:
            version = weights.take(policy)
            generation.switch(policy, version)
        generation.limit = prompts * version + allowed  # weights of this version have seen so many groups
        complete = generation.advance()
        if complete is None:
            paused = time.monotonic()
            time.sleep(NAP)
            counts[IDLE_SECONDS] += time.monotonic() - paused
            continue
        for group in complete:
            outbox.put_nowait(group)
        counts[RESPONSES] = generation.responses_finished
        counts[GROUPS] += len(complete)


def _forward(outbox: "queue.Queue[Group]", channel: Channel) -> None:
    with suppress(OSError):  # the trainer is gone, or has closed the pipe
        while True:
            channel.send(outbox.get())


def colocated(recipe: Recipe, settings: ConcurrentSettings) -> Generator[Update, None, None]:
    """Updates without end, each on a batch that both processes generated with the weights before it.

    Raises:
        WorkerFailed: the second process failed or is gone.
    """
    if recipe.config.train.prompts < 2:
        raise UserError("train.prompts = 1: two processes that share every batch need two prompts at least")
    gradients = SharedGradients(recipe.policy())
    with Worker("second", _second_half, recipe, settings, gradients) as second:
        half = _Half(recipe, settings, gradients, 0, second)
        origin: float = second.receive()
        while True:
            yield half.update(origin)


def _second_half(
    channel: Channel,
    stopping: Callable[[], bool],
    recipe: Recipe,
    settings: ConcurrentSettings,
    gradients: SharedGradients,
) -> None:
    half = _Half(recipe, settings, gradients, 1, channel)
    channel.send(time.monotonic())
    while not stopping():
        half.update(origin=0.0)


class _Half:
    """One of two workers. They start with equal weights and add the same gradients, so their weights stay equal."""

    def __init__(
        self, recipe: Recipe, settings: ConcurrentSettings, gradients: SharedGradients, part: int, channel: Channel
    ) -> None:
        self.learner, self.gradients, self.part, self.channel = Learner(recipe), gradients.tensor, part, channel
        self.share = (recipe.config.train.prompts + 1 - part) // 2
        self.generation = recipe.generation(self.learner.policy, settings.slots, part, parts=2)
        self.idle = (0.0, 0.0)
        self.generated = 0

    def update(self, origin: float) -> Update:
        """Generate, train and step, in step with the other half; the first half returns the whole batch's groups."""
        learner, waited = self.learner, self.channel.waited
        started = time.monotonic()
        self.generation.switch(behavior_copy(learner.policy), learner.version)
        switched = time.monotonic()
        groups: list[Group] = []
        self.generation.limit += self.share
        while len(groups) < self.share:
            groups += self.generation.advance() or []
        tokens = sum(group.response_tokens for group in groups)
        # the other half's idle seconds are those up to its previous update
        other_tokens, other_groups, other_idle = self._swap((tokens, groups if self.part else (), self.idle))
        generated, waited_generating = time.monotonic(), self.channel.waited - waited
        signals = learner.backward(groups, tokens + other_tokens)
        parameters = list(learner.policy.parameters())
        self.gradients[self.part] = parameters_to_vector([p.grad for p in parameters if p.grad is not None])
        self._swap(None)
        total = self.gradients.sum(0).split([p.numel() for p in parameters])
        for parameter, gradient in zip(parameters, total, strict=True):
            parameter.grad = gradient.view_as(parameter)
        learner.step()
        wait = self.channel.waited - waited
        self.idle = (self.idle[0] + waited_generating, self.idle[1] + wait - waited_generating)
        finished = time.monotonic()
        whole = [*groups, *other_groups]
        self.generated += len(whole) * learner.settings.group
        return Update(
            target_version=learner.version - 1,
            origin=origin,
            started=started - origin,
            finished=finished - origin,
            wait=wait,
            generate=generated - switched,
            train=finished - generated,
            sync=switched - started,
            queue_length=0,
            rollout_idle=(self.idle[0] + other_idle[0]) / 2,
            trainer_idle=(self.idle[1] + other_idle[1]) / 2,
            generated=self.generated,
            groups=whole,
            signals=signals,
        )

    def _swap(self, message: Any) -> Any:
        self.channel.send(message)
        return self.channel.receive()
