"""What a dump tells before any rule is asked: staleness, and whether its signals are plausible."""

from dataclasses import dataclass

import numpy as np
import torch

from estr.algorithm import staleness
from estr.diagnose.dump import Dump
from estr.errors import UserError

LARGE_LOG_RATIO = 0.5  # nats; half of the tokens above this are no two policies of one run
ENTROPY_DISAGREEMENT = 0.1  # relative
STANDARD_ERRORS = 5


@dataclass(frozen=True)
class Spread:
    """Of one kind of staleness over trajectories: versions, and how many trajectories have each."""

    mean: float
    low: int
    high: int
    histogram: dict[str, int]


def staleness_summary(dump: Dump) -> tuple[dict[str, Spread], list[str]]:
    """Intra- and inter-trajectory staleness (Eq. 2) as far as the dump knows versions, and why what is missing is.

    Versions are those of each token, or of the first and the last token of each trajectory.

    Raises:
        UserError: a trajectory has several target versions, or was finished by weights newer than its target.
    """
    per_token = dump.weight_version is not None
    if not per_token and dump.version_last is None:
        return {}, ["no weight versions: staleness is not reported"]
    if dump.sequence is None:
        return {}, ["no column that tells trajectories apart (sequence): staleness is not reported"]
    order = np.argsort(dump.sequence, kind="stable")
    if dump.position is not None:
        order = np.lexsort((dump.position, dump.sequence))
    borders = np.flatnonzero(np.diff(dump.sequence[order])) + 1
    first, last = order[np.r_[0, borders]], order[np.r_[borders - 1, len(order) - 1]]

    notes = []
    version_last = dump.weight_version if per_token else dump.version_last
    version_first = dump.weight_version if per_token else dump.version_first
    assert version_last is not None
    if version_first is None:
        notes.append("no version of the first token (version_first): intra-trajectory staleness is not reported")
    ends = version_last[last]
    starts = ends if version_first is None else version_first[first]
    if dump.target_version is None:
        notes.append("no version of the trained weights (target_version): inter-trajectory staleness is not reported")
        target = ends
    else:
        target = dump.target_version[last]
        _check_target(dump, target, ends, order, last, np.diff(np.r_[0, borders, len(order)]))
    intra, inter = np.empty_like(ends), np.empty_like(ends)
    for version in np.unique(target):
        rows = np.flatnonzero(target == version)
        versions = torch.from_numpy(np.stack([starts[rows], ends[rows]], axis=1))
        found = staleness(versions, torch.ones(versions.shape, dtype=torch.bool), int(version))
        intra[rows], inter[rows] = found.intra.numpy(), found.inter.numpy()
    summary = {}
    if version_first is not None:
        summary["intra"] = _spread(intra)
    if dump.target_version is not None:
        summary["inter"] = _spread(inter)
    return summary, notes


def plausibility(dump: Dump, usable: np.ndarray) -> list[str]:
    """What looks wrong with the signals, in plain words; `usable` [tokens] are those with finite signals.

    For tokens drawn from the full distribution the mean of -log mu estimates the mean entropy: a clear difference
    says that the two are not of one distribution.
    """
    notes = [f"{column.name} {column.caution}" for column in dump.columns.values() if column.caution]
    behavior = dump.behavior_logprob[usable].astype(np.float64)
    delta = np.abs(dump.target_logprob[usable] - behavior)
    names = f"{dump.columns['target_logprob'].name} and {dump.columns['behavior_logprob'].name}"
    if not delta.any():
        notes.append(
            f"{names} are equal on every token, so no rule masks anything: verl's bypass mode copies one to the other; "
            "the log-prob under the trained weights must come from the training engine"
        )
    elif np.median(delta) > LARGE_LOG_RATIO:
        notes.append(
            f"{names} differ by {np.median(delta):.2g} nats on half of the tokens: are both of the sampled token, "
            "at the same temperature, and aligned?"
        )
    low, high = (float(entropy[usable].mean(dtype=np.float64)) for entropy in (dump.entropy[0], dump.entropy[-1]))
    surprisal, error = float(-behavior.mean()), float(behavior.std() / np.sqrt(len(behavior)))
    distance = max(low - surprisal, surprisal - high, 0.0)
    if distance > max(STANDARD_ERRORS * error, ENTROPY_DISAGREEMENT * surprisal):
        found = f"{low:.3f}" if low == high else f"between {low:.3f} and {high:.3f}"
        notes.append(
            f"mean entropy is {found} nats, but mean -{dump.columns['behavior_logprob'].name} is {surprisal:.3f}; they "
            "agree if both are of the distribution that was sampled from (top-p or top-k sampling, another "
            "temperature or another policy set them apart)"
        )
    return notes


def _check_target(
    dump: Dump, target: np.ndarray, ends: np.ndarray, order: np.ndarray, last: np.ndarray, sizes: np.ndarray
) -> None:
    assert dump.target_version is not None
    column = dump.columns["target_version"].name
    changes = dump.target_version[order] != np.repeat(target, sizes)
    if changes.any():
        token = int(order[changes.argmax()])
        raise UserError(f"{dump.path}: column {column!r}: {dump.place(token)}: its trajectory has two target versions")
    newer = np.flatnonzero(ends > target)
    if len(newer):
        token = int(last[newer[0]])
        raise UserError(
            f"{dump.path}: column {column!r}: {dump.place(token)}: the weights being trained have version "
            f"{target[newer[0]]}, the token was sampled by version {ends[newer[0]]}"
        )


def _spread(values: np.ndarray) -> Spread:
    found, counts = np.unique(values, return_counts=True)
    histogram = {str(value): int(count) for value, count in zip(found, counts, strict=True)}
    return Spread(float(values.mean()), int(values.min()), int(values.max()), histogram)
