"""The stability frontier: by bisection, the largest learning rate or staleness at which a rule does not collapse."""

import logging
import shutil
import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from estr.algorithm.collapse import Collapse, detect_collapse
from estr.config import RunConfig, load_scale, load_sizes
from estr.embedded.interrupt import StopRequest
from estr.evaluation.journal import Journal
from estr.files.lock import only_writer
from estr.files.typed import Kind, require_fields
from estr.layout import Layout
from estr.matched_budget import with_thresholds
from estr.provenance import commit, machine, packages, write_json
from estr.stages import inputs_hash, open_trainer

Axis = Literal["learning_rate", "inter"]
AXES: tuple[Axis, ...] = ("learning_rate", "inter")
SEEDS = 3  # a value is stable if the majority of so many seeds is
PROBE: dict[str, Kind] = {"value": float, "seed": int, "inputs": str, "collapse_step": (int, None)}
PATIENCE = 10  # steps for which a collapse must have lasted before a run is stopped early

logger = logging.getLogger(__name__)


def search(stable: Callable[[int], bool], confirmed: Callable[[int], bool], values: int) -> int:
    """Index of the largest stable of `values` rising values, -1 if the first one collapses already.

    `stable(i)` asks one seed and guides the bisection, on the assumption that everything below a stable value is
    stable; `confirmed(i)` asks the majority of the seeds and decides: from the bisection's answer down to the first
    confirmed value, or up as long as the next one is confirmed as well.
    """
    low, high = -1, values
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if stable(middle) else (low, middle)
    if low >= 0 and not confirmed(low):
        while low >= 0 and not confirmed(low):
            low -= 1
        return low
    while low + 1 < values and confirmed(low + 1):
        low += 1
    return low


def find_frontier(layout: Layout, config: RunConfig, axis: Axis) -> Path:
    """Search one axis for the method and thresholds of `config` (seed 0) and write `frontier.json`.

    Every finished probe is a line of `probes.jsonl` beside it; an interrupted search goes on from there.
    """
    settings = load_scale(config.scale).frontier
    values: Sequence[float] = getattr(settings, axis)
    seeds = load_sizes(config.scale, config.task).seeds[:SEEDS]
    config = with_thresholds(layout, config)
    folder, at = layout.frontier(config, axis), commit()
    key = inputs_hash(layout, _probe(config, axis, values[0], seeds[0], settings.steps))

    with (
        only_writer(folder),
        StopRequest() as stop,
        closing(Journal(folder / "probes.jsonl")) as journal,
        tqdm(desc=f"{config.label}, {axis}", unit="run", disable=None) as bar,
    ):
        probes = [require_fields(journal.path, line, PROBE) for line in journal.lines]
        known = {(line["value"], line["seed"]): line for line in probes if line["inputs"] == key}

        def collapsed(index: int, seed: int) -> bool:
            if (values[index], seed) not in known:
                probe = _probe(config, axis, values[index], seed, settings.steps)
                line = {"value": values[index], "seed": seed, "inputs": key} | _train(layout, probe, folder, stop)
                journal.append(line)
                known[values[index], seed] = line
                bar.update()
            bar.set_postfix_str(f"{axis} {values[index]:g}, seed {seed}")
            return known[values[index], seed]["collapse_step"] is not None

        def confirmed(index: int) -> bool:
            return statistics.mean(collapsed(index, seed) for seed in seeds) <= 0.5

        found = search(lambda index: not collapsed(index, seeds[0]), confirmed, len(values))
    record = {
        "scale": config.scale,
        "task": config.task,
        "label": config.label,
        "method": config.method,
        "rule": {"name": config.rule} | config.thresholds,
        "axis": axis,
        "values": list(values),
        "steps": settings.steps,
        "seeds": seeds,
        "stable_up_to": values[found] if found >= 0 else None,
        "collapses_at": values[found + 1] if found + 1 < len(values) else None,
        "probes": [{name: value for name, value in line.items() if name != "inputs"} for line in known.values()],
        "commit": at,
        "machine": machine(),
        "packages": packages(),
    }
    write_json(folder / "frontier.json", record)
    return folder / "frontier.json"


def _probe(config: RunConfig, axis: Axis, value: float, seed: int, steps: int) -> RunConfig:
    """The run that is tried: checked for collapse every few steps, few tokens recorded.

    A reward is that of rollouts by weights as old as the staleness. The run is longer by this many updates, so that the
    rewards show what each of the first `steps` updates made of the policy, at every staleness alike.
    """
    staleness = config.staleness
    if axis == "inter":
        staleness = staleness.model_copy(update={"inter": value})
    length = steps + staleness.inter + staleness.intra
    train: dict[str, Any] = {"steps": length, "checkpoint_every": PATIENCE, "validate_every": 0}
    train |= {"tokens_first": 0, "tokens_every": length}
    if axis == "learning_rate":
        train["learning_rate"] = value
    return config.model_copy(
        update={"seed": seed, "staleness": staleness, "train": config.train.model_copy(update=train)}
    )


def _train(layout: Layout, probe: RunConfig, folder: Path, stop: StopRequest) -> dict[str, Any]:
    """Train until the end or until a collapse has lasted; its state does not outlive it."""
    state = folder / "state"
    shutil.rmtree(state, ignore_errors=True)
    trainer = open_trainer(layout, probe, state, state)
    rewards: list[float] = []
    found: Collapse | None = None
    for metrics in trainer.run(stop):
        rewards = metrics["reward"].to_pylist()
        found = detect_collapse(rewards)
        if found is not None and len(rewards) - found.step >= PATIENCE:
            break
    shutil.rmtree(state)
    last = rewards[-PATIENCE:]
    return {
        "steps": len(rewards),
        "collapse_step": found.step if found else None,
        "reward_first": rewards[0],
        "reward_last": statistics.mean(last),
    }
