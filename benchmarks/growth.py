"""How each cost grows with batch, response length and vocabulary: the same comparisons at other sizes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tqdm import tqdm

from benchmarks import objective, recording, sampling, step
from benchmarks.policies import Load
from benchmarks.step import StepSizes
from benchmarks.timing import Measurement
from estr.layout import Layout

GROWING_RULES = ("keep_all", "entropy_scaled", "second_moment")


def growth(
    objective_cases: Sequence[tuple[int, int]],
    loads: Sequence[Load],
    step_sizes: Sequence[StepSizes],
    layout: Layout,
    turns: int,
) -> list[Measurement]:
    """Every comparison at every size; no targets."""
    found: list[Measurement] = []
    recorded: list[Measurement] = []
    sampled: list[Measurement] = []
    for batch, length in tqdm(objective_cases, desc="growth, objective", disable=None):
        found += [each for each in objective.alone(batch, length, turns) if each.arm in GROWING_RULES]
    for load in tqdm(loads, desc="growth, sampler", disable=None):
        recorded += recording.per_step(load, turns)
        sampled += sampling.equal_lengths(load, turns)
    found += recorded + sampled
    for sizes in tqdm(step_sizes, desc="growth, step", disable=None):
        found += step.whole_step(layout, sizes, steps=1, turns=turns)
    return [replace(each, benchmark=f"growth: {each.benchmark}").aim() for each in found]


def around(load: Load) -> Iterator[Load]:
    """The load, and one with a fourth and four times its rows, tokens, vocabulary."""
    for name in ("prompts", "max_tokens", "vocabulary"):
        for factor in (0.25, 4):
            yield replace(load, **{name: int(getattr(load, name) * factor)})
