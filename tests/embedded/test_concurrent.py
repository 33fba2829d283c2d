"""Two real processes: what they recorded is what the weights say, the bound holds, and nothing is left behind."""

import contextlib
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from test_agentic import Calling

from estr.algorithm.signals import logprob_and_entropy
from estr.config import ConcurrentSettings, resolve
from estr.embedded.concurrent import Recipe, Update, WorkerFailed, colocated, disaggregated, groups_allowed
from estr.embedded.concurrent.generation import Group
from estr.embedded.concurrent.learner import Learner, collate
from estr.embedded.policy import Policy, PolicyShape, behavior_copy, response_logits, save_policy
from estr.embedded.tokenizer import ChatTokenizer
from estr.errors import UserError
from estr.tasks.dapo_math_laptop import DapoMathLaptop

SETTINGS = ConcurrentSettings(steps=1, warmup_steps=0, staleness_threshold=0.5, sync_interval=2, slots=10)
UPDATES = 8


@dataclass(frozen=True)
class EvenWords(DapoMathLaptop):
    """Rewards an even number of words, so that an untrained policy gets mixed rewards."""

    def reward(self, response: str, ground_truth: str) -> float:
        return float(len(response.split()) % 2 == 0)


@dataclass(frozen=True)
class Broken(EvenWords):
    def reward(self, response: str, ground_truth: str) -> float:
        raise ValueError("the reward is broken")


SINGLE_TURN = EvenWords(steps=3, largest_term=3, largest_total=6)


def untrained(task: Calling | DapoMathLaptop, folder: Path) -> Path:
    tokenizer = ChatTokenizer.from_words(task.vocabulary())
    policy = Policy(PolicyShape(len(tokenizer), 16, 32, 1, 2, 2, 64)).initialize(0)
    with torch.no_grad():
        policy.model.embed_tokens.weight[tokenizer.end_id] += 0.3
    save_policy(policy, folder)
    tokenizer.save(folder)
    return folder


def recipe(task: Calling | DapoMathLaptop, folder: Path, **train: int | float | str) -> Recipe:
    config = resolve("smoke", "dapo_math", "estr__tau=0.001", 1)
    settings = config.train.model_copy(update={"prompts": 4, "group": 4, "learning_rate": 0.01} | train)
    config = config.model_copy(update={"train": settings})
    return Recipe.prepare(config, task, task.problems("train", 40, 0), untrained(task, folder))


@pytest.fixture(scope="module")
def overlapped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, list[Update]]:
    """A dialogue task, disaggregated; the trainer dawdles until the rollout has had to wait for it."""
    made = recipe(Calling(), tmp_path_factory.mktemp("warm_start"), max_tokens=40)
    updates: list[Update] = []
    with closing(disaggregated(made, SETTINGS)) as run:
        for update in run:
            updates.append(update)
            if len(updates) >= UPDATES and update.rollout_idle > 0:
                break
            if len(updates) >= UPDATES // 2:
                time.sleep(0.5)
            assert len(updates) < 40
    assert multiprocessing.active_children() == []
    return made, updates


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, list[Update]]:
    made = recipe(SINGLE_TURN, tmp_path_factory.mktemp("warm_start"), prompts=5)
    with closing(colocated(made, SETTINGS)) as run:
        updates = list(itertools.islice(run, 4))
    assert multiprocessing.active_children() == []
    return made, updates


def rescored(groups: Sequence[Group], weights: Policy) -> tuple[torch.Tensor, torch.Tensor]:
    rollout = collate(groups)
    everywhere = torch.ones_like(rollout.mask)
    with torch.no_grad():
        logits = response_logits(weights, rollout.prompts, rollout.prompt_valid, rollout.tokens, everywhere)
    return logprob_and_entropy(logits.view(*rollout.tokens.shape, -1), rollout.tokens, 1.0)


def assert_recorded(updates: Sequence[Update], versions: dict[int, Policy]) -> None:
    """Log-prob and entropy of every token are those of the weights whose version it has."""
    groups = [group for update in updates for group in update.groups]
    rollout = collate(groups)
    checked = 0
    for number in rollout.version[rollout.mask].unique().tolist():
        here = rollout.version == number
        logprob, entropy = rescored(groups, versions[number])
        torch.testing.assert_close(rollout.logprob[here], logprob[here], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(rollout.entropy[here], entropy[here], atol=1e-4, rtol=1e-4)
        others = rollout.mask & ~here
        assert (rollout.logprob[others] - logprob[others]).abs().max() > 1e-3
        checked += int(here.sum())
    assert checked == int(rollout.mask.sum()) > 500


def test_tokens_are_recorded_under_the_weights_that_sampled_them(overlapped: tuple[Recipe, list[Update]]) -> None:
    made, updates = overlapped
    learner = Learner(made)
    versions = {0: behavior_copy(learner.policy)}
    for update in updates:
        learner.backward(update.groups)
        learner.step()
        versions[learner.version] = behavior_copy(learner.policy)
    assert_recorded(updates, versions)


def test_versions_rise_within_a_response_and_are_those_that_were_published(
    overlapped: tuple[Recipe, list[Update]],
) -> None:
    made, updates = overlapped
    resumed = 0
    for update in updates:
        for group in update.groups:
            assert group.tokens.shape == group.version.shape == (made.config.train.group, group.tokens.shape[1])
            for row, times in zip(group.version, group.resumed, strict=True):
                own = row[row >= 0]
                assert (own % SETTINGS.sync_interval == 0).all() and own[-1] <= update.target_version
                assert (own[1:] >= own[:-1]).all()
                assert len(set(own)) <= 1 + times
                resumed += len(set(own)) > 1
    assert resumed > 0


def test_no_more_groups_are_begun_than_the_staleness_threshold_allows(
    overlapped: tuple[Recipe, list[Update]],
) -> None:
    made, updates = overlapped
    prompts = made.config.train.prompts
    allowed = groups_allowed(prompts, SETTINGS)
    assert allowed == 12  # (1 + 0.5) * 2 * 4
    for update in updates:
        for group in update.groups:
            assert group.number < int(group.version[group.version >= 0].min()) * prompts + allowed
        assert update.queue_length <= allowed
        assert update.generated <= (update.target_version + 1) * prompts * 4 + allowed * 4
    assert updates[-1].rollout_idle > 0


def test_tool_output_follows_the_end_of_a_turn_and_is_masked(overlapped: tuple[Recipe, list[Update]]) -> None:
    made, updates = overlapped
    tokenizer = ChatTokenizer.load(made.warm_start)
    [opening, *_] = tokenizer.tool_turn(("1",))
    spoken = 0
    for group in (group for update in updates for group in update.groups):
        assert group.tokens.shape[1] <= made.config.train.max_tokens
        assert (group.logprob[group.version < 0] == 0).all() and (group.entropy[group.version < 0] == 0).all()
        for tokens, own in zip(group.tokens, group.version >= 0, strict=True):
            last = int(own.nonzero()[0][-1])
            turn_ends = [at for at in range(last) if own[at] and tokens[at] == tokenizer.end_id]
            tool_starts = [at for at in range(1, last) if own[at - 1] and not own[at]]
            assert [at + 1 for at in turn_ends] == tool_starts
            assert all(tokens[at] == opening for at in tool_starts)
            assert own[0] and len(turn_ends) < made.task.limits.turns
            spoken += len(turn_ends)
    assert spoken > 5


def test_the_parts_of_an_update_fit_into_its_time(
    overlapped: tuple[Recipe, list[Update]], together: tuple[Recipe, list[Update]]
) -> None:
    for _, updates in (overlapped, together):
        for before, update in itertools.pairwise(updates):
            assert before.finished <= update.started <= update.finished
            parts = update.wait + update.train + update.sync if update.generate != update.generate else 0
            assert parts <= update.finished - update.started
            assert before.rollout_idle <= update.rollout_idle and before.trainer_idle <= update.trainer_idle
            for group in update.groups:
                for started, finished in zip(group.started, group.finished, strict=True):
                    assert 0 <= started - update.origin < finished - update.origin < update.finished


def test_together_nothing_is_stale_and_two_halves_make_one_gradient(together: tuple[Recipe, list[Update]]) -> None:
    made, updates = together
    learner, whole = Learner(made), Learner(made)
    versions = {}
    for update in updates:
        versions[learner.version] = behavior_copy(learner.policy)
        assert len(update.groups) == 5
        assert {int(v) for group in update.groups for v in group.version[group.version >= 0]} == {learner.version}
        tokens = sum(group.response_tokens for group in update.groups)
        gradients = []
        for half in (update.groups[:3], update.groups[3:]):
            learner.backward(half, tokens)
            gradients.append([parameter.grad.clone() for parameter in learner.policy.parameters()])
        whole.policy.load_state_dict(learner.policy.state_dict())
        whole.backward(update.groups)
        for parameter, one, first, second in zip(
            learner.policy.parameters(), whole.policy.parameters(), *gradients, strict=True
        ):
            torch.testing.assert_close(first + second, one.grad, atol=1e-6, rtol=1e-4)
            parameter.grad = first + second
        learner.step()
    assert_recorded(updates, versions)
    assert updates[-1].generated == 4 * 5 * 4


@pytest.mark.parametrize("run", [disaggregated, colocated])
def test_a_failure_in_the_second_process_is_raised_here(run, tmp_path: Path) -> None:
    made = recipe(Broken(steps=3, largest_term=3, largest_total=6), tmp_path)
    updates = run(made, SETTINGS)
    with pytest.raises((WorkerFailed, ValueError), match="the reward is broken") as raised:
        next(updates)
    if run is disaggregated:
        assert str(raised.value) == "the rollout process failed: ValueError: the reward is broken"
    assert multiprocessing.active_children() == []


def test_a_process_that_is_killed_is_noticed(tmp_path: Path) -> None:
    with closing(disaggregated(recipe(SINGLE_TURN, tmp_path), SETTINGS)) as updates:
        next(updates)
        [rollout] = multiprocessing.active_children()
        assert rollout.pid is not None
        os.kill(rollout.pid, signal.SIGKILL)
        with pytest.raises(WorkerFailed, match="rollout process was ended by signal SIGKILL"):
            list(updates)
    assert multiprocessing.active_children() == []


def endless(folder: Path) -> None:
    """Train until a signal comes, in a process of its own; says who its child is."""
    with closing(disaggregated(recipe(SINGLE_TURN, folder), SETTINGS)) as updates:
        next(updates)
        print(multiprocessing.active_children()[0].pid, flush=True)
        list(updates)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_leaves_no_orphan(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C goes to both processes, the others to the parent alone."""
    code = f"import pathlib, test_concurrent; test_concurrent.endless(pathlib.Path({str(tmp_path)!r}))"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    )
    try:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        _, errors = process.communicate(timeout=60)
        assert process.returncode != 0
        assert "Process rollout" not in errors  # no traceback of the child
        for _ in range(600):
            try:
                os.kill(child, 0)
            except ProcessLookupError:
                break
            time.sleep(0.1)
        else:
            pytest.fail(f"the rollout process outlived {number.name}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_settings_that_cannot_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="need two prompts"):
        next(colocated(recipe(SINGLE_TURN, tmp_path, prompts=1), SETTINGS))
    with pytest.raises(UserError, match="response need"):
        recipe(SINGLE_TURN, tmp_path, max_tokens=99)
    with pytest.raises(UserError, match="has 40 problems"):
        recipe(SINGLE_TURN, tmp_path, prompts=41)
