"""What every keep rule drops from a dump, at its published threshold and at ESTR's budget."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from estr.algorithm import (
    BinaryKL,
    EntropyScaled,
    FixedMagnitude,
    RatioInterval,
    SecondMoment,
    ThresholdRule,
    TokenSignals,
    calibrate,
)
from estr.diagnose.dump import Dump
from estr.errors import UserError
from estr.report.scaling_fit import bulk_bins, second_moment_fit

DEFAULT_TAUS = (1.6, 1.0)  # the paper's: DAPO-Math and GSM8K; BrowseComp-Plus

Tokens = slice | np.ndarray
"""Which tokens of a dump."""


@dataclass(frozen=True)
class Candidate:
    """A rule under examination; `key` names its column keep_<key>."""

    key: str
    title: str
    rule: ThresholdRule


@dataclass(frozen=True)
class Verdict:
    """What a rule drops from the usable tokens.

    Attributes:
        title: the rule's name for people.
        thresholds: its thresholds.
        masked, fraction: tokens dropped, and as a fraction of the usable tokens.
        sequences_masked: trajectories with a dropped token; None if the dump does not tell them apart.
        masked_entropy: mean entropy of the dropped tokens, nats; NaN if there is none.
        only_estr, only_rule, both: tokens that only ESTR, only this rule, and both drop.
    """

    title: str
    thresholds: dict[str, Any]
    masked: int
    fraction: float
    sequences_masked: int | None
    masked_entropy: float
    only_estr: int
    only_rule: int
    both: int


@dataclass(frozen=True)
class Reading:
    """The dump as seen with one entropy per token.

    Attributes:
        mean_entropy: over the usable tokens, nats.
        rules: verdicts at published thresholds, by key; the first is ESTR, with which the others are compared.
        budget: masked fraction that `matched` is calibrated to.
        matched: verdicts at thresholds that mask this fraction, by key; empty if there is no budget to match.
        coefficient, r_squared, bins: a_B (1/nats) and R^2 of E[delta^2 | H] = a_B H (Eq. 28) over so many bins of
            entropy, those of the report; NaN if fewer than two bins hold enough tokens.
        problems: why a rule is not in `matched`.
    """

    mean_entropy: float
    rules: dict[str, Verdict]
    budget: float
    matched: dict[str, Verdict]
    coefficient: float
    r_squared: float
    bins: int
    problems: list[str]


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Everything that is said about a dump.

    Attributes:
        usable: bool [tokens], those with finite signals, on which everything else is computed.
        first_nonfinite: place and values of the first other one.
        readings: one for a measured entropy; for bounds, with the lower and with the upper one.
        keep: by key of a rule and per reading, bool [tokens]; False on non-finite tokens.
        undecided: by key, tokens whose verdict depends on which bound of the entropy holds.
    """

    usable: np.ndarray
    first_nonfinite: str | None
    readings: list[Reading]
    keep: dict[str, list[np.ndarray]]
    undecided: dict[str, int]


def published(taus: Sequence[float] = DEFAULT_TAUS) -> list[Candidate]:
    """Every rule at its published threshold; the paper has none for the fixed magnitude, which is at ln 2.

    Raises:
        UserError: a tau is out of range, or given twice.
    """
    if len(set(taus)) < len(taus):
        raise UserError("--tau: a value is given twice")
    try:
        estr = [EntropyScaled(tau=tau) for tau in taus]
    except ValueError as error:
        raise UserError(f"--tau: {error}") from error
    keys = ["estr", *(f"estr_tau_{rule.tau:g}" for rule in estr[1:])]
    return [
        *(Candidate(key, f"ESTR, tau {rule.tau:g}", rule) for key, rule in zip(keys, estr, strict=True)),
        Candidate("icepop", "IcePop", RatioInterval()),
        Candidate("kpop", "KPop", BinaryKL()),
        Candidate("m2po", "M2PO", SecondMoment()),
        Candidate("fixed_magnitude", "fixed |delta|", FixedMagnitude(c=math.log(2))),
    ]


def examine(dump: Dump, taus: Sequence[float] = DEFAULT_TAUS, budget: float | None = None) -> Diagnosis:
    """Judge every token with every rule; one update is one step of the dump.

    Args:
        dump: the tokens.
        taus: ESTR's thresholds; the first is the one that the other rules are compared with.
        budget: masked fraction to calibrate every rule to; default: what ESTR masks.

    Raises:
        UserError: no token has finite signals, or a tau is out of range.
    """
    candidates = published(taus)
    usable = np.logical_and.reduce([_signals(dump, entropy).finite.numpy()[0] for entropy in dump.entropy])
    if not usable.any():
        raise UserError(f"{dump.path}: no response token has finite signals; the first is {_values(dump, 0)}")
    first = None if usable.all() else _values(dump, int((~usable).argmax()))
    dump = _only(dump, usable)
    updates = _updates(dump.step, len(dump))

    readings, masks = [], []
    with tqdm(total=2 * len(candidates) * len(dump.entropy), desc="rules", disable=None, leave=False) as progress:
        for entropy in dump.entropy:
            judge = _Judge(dump, entropy, updates, progress)
            reading, keep = judge.read(candidates, budget)
            readings.append(reading)
            masks.append(keep)
    keys = [candidate.key for candidate in candidates]
    undecided = {key: int((masks[0][key] != masks[-1][key]).sum()) for key in keys}
    return Diagnosis(
        usable=usable,
        first_nonfinite=first,
        readings=readings,
        keep={key: [_scatter(mask[key], usable) for mask in masks] for key in keys},
        undecided=undecided,
    )


class _Judge:
    """Rules against the tokens of one dump with one entropy."""

    def __init__(self, dump: Dump, entropy: np.ndarray, updates: list[Tokens], progress: "tqdm[Any]") -> None:
        self._entropy = entropy
        self._sequence = dump.sequence
        self._updates = updates
        self._progress = progress
        self._signals = [_signals(dump, entropy, update) for update in updates]
        self._delta = dump.target_logprob - dump.behavior_logprob

    def read(self, candidates: list[Candidate], budget: float | None) -> tuple[Reading, dict[str, np.ndarray]]:
        masks = {one.key: self._keep(one.rule) for one in candidates}
        rules = {one.key: self._verdict(one, masks[one.key], masks["estr"]) for one in candidates}
        wanted = rules["estr"].fraction if budget is None else budget
        matched: dict[str, Verdict] = {}
        problems = []
        if wanted == 0:
            problems.append("ESTR masks no token: there is no budget to match")
        else:
            if budget is None:
                matched["estr"] = rules["estr"]
            problems = self._match(
                [one for one in candidates if one.key not in matched], wanted, masks["estr"], matched
            )
        mean = float(self._entropy.mean(dtype=np.float64))
        return Reading(mean, rules, wanted, matched, *self._fit(), problems), masks

    def _match(
        self, candidates: list[Candidate], wanted: float, estr: np.ndarray, matched: dict[str, Verdict]
    ) -> list[str]:
        """Add each rule at the threshold that masks the wanted fraction; the reasons why some cannot."""
        problems = []
        for one in candidates:
            if one.key.startswith("estr_tau_"):  # every tau calibrates to the same rule
                continue
            try:
                rule = calibrate(one.rule, self._signals, wanted).rule
            except ValueError as error:
                problems.append(f"not calibrated: {error}")
                continue
            keep = self._keep(rule)
            if one.key == "estr":
                estr = keep
            matched[one.key] = self._verdict(replace(one, rule=rule), keep, estr)
        return problems

    def _keep(self, rule: ThresholdRule) -> np.ndarray:
        keep = np.empty(len(self._entropy), bool)
        for update, signals in zip(self._updates, self._signals, strict=True):
            keep[update] = rule.keep(signals)[0].numpy()
        self._progress.update()
        return keep

    def _verdict(self, candidate: Candidate, keep: np.ndarray, estr_keep: np.ndarray) -> Verdict:
        masked, estr = ~keep, ~estr_keep
        count = int(masked.sum())
        return Verdict(
            title=candidate.title,
            thresholds=asdict(candidate.rule),
            masked=count,
            fraction=count / len(keep),
            sequences_masked=None if self._sequence is None else len(np.unique(self._sequence[masked])),
            masked_entropy=float(self._entropy[masked].mean(dtype=np.float64)) if count else math.nan,
            only_estr=int((estr & keep).sum()),
            only_rule=int((masked & ~estr).sum()),
            both=int((masked & estr).sum()),
        )

    def _fit(self) -> tuple[float, float, int]:
        tokens = pd.DataFrame({"entropy": self._entropy, "log_ratio": self._delta}, copy=False)
        fit = second_moment_fit(tokens)
        return fit.coefficient, fit.r_squared, len(bulk_bins(tokens))


def _signals(dump: Dump, entropy: np.ndarray, tokens: Tokens = slice(None)) -> TokenSignals:
    """The tokens of one update as one row, [1, tokens]; arrays are shared, not copied, where `tokens` is a slice."""

    def row(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values[tokens])[None]

    behavior = row(dump.behavior_logprob)
    shape = behavior.shape
    return TokenSignals(
        behavior_logprob=behavior,
        target_logprob=row(dump.target_logprob),
        entropy=row(entropy),
        advantage=torch.zeros(1, 1).expand(shape) if dump.advantage is None else row(dump.advantage),
        response_mask=torch.ones(1, 1, dtype=torch.bool).expand(shape),
        weight_version=torch.zeros(1, 1, dtype=torch.int64).expand(shape),
    )


def _updates(step: np.ndarray | None, tokens: int) -> list[Tokens]:
    """The tokens of each step, in increasing order of the steps."""
    if step is None:
        return [slice(0, tokens)]
    if (np.diff(step) >= 0).all():
        borders = [0, *(np.flatnonzero(np.diff(step)) + 1).tolist(), tokens]
        return [slice(first, last) for first, last in pairwise(borders)]
    order = np.argsort(step, kind="stable")
    return list(np.split(order, np.flatnonzero(np.diff(step[order])) + 1))


def _only(dump: Dump, usable: np.ndarray) -> Dump:
    """The dump without the other tokens; `response` still tells where these stood in the file."""
    if usable.all():
        return dump
    per_token = ("behavior_logprob", "target_logprob", "advantage", "step", "sequence")
    kept = {name: getattr(dump, name)[usable] for name in per_token if getattr(dump, name) is not None}
    return replace(dump, entropy=tuple(entropy[usable] for entropy in dump.entropy), **kept)


def _scatter(keep: np.ndarray, usable: np.ndarray) -> np.ndarray:
    full = np.zeros(len(usable), bool)
    full[usable] = keep
    return full


def _values(dump: Dump, token: int) -> str:
    signals = {
        dump.columns["behavior_logprob"].name: dump.behavior_logprob[token],
        dump.columns["target_logprob"].name: dump.target_logprob[token],
        "entropy": dump.entropy[0][token],
    }
    if dump.advantage is not None:
        signals[dump.columns["advantage"].name] = dump.advantage[token]
    return f"{dump.place(token)}: " + ", ".join(f"{name} {value:g}" for name, value in signals.items())
