"""Which column of a dump holds which signal: named by the user, or one of the names that trainers give it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from estr.errors import UserError

TRAINER_ENTROPY = (
    "is the entropy under the training engine's weights; the rule wants the behavior policy's, so verdicts are "
    "approximate where the policy has moved"
)


@dataclass(frozen=True)
class Column:
    """A column of the dump: its name, whose name that is, and what to know before trusting it."""

    name: str
    source: str
    caution: str = ""


KNOWN: dict[str, tuple[Column, ...]] = {
    "behavior_logprob": (
        Column("behavior_logprob", "estr"),
        Column("rollout_log_probs", "verl"),
        Column("sampling_per_token_logps", "TRL"),
        Column("logprobs", "AReaL"),
    ),
    "target_logprob": (
        Column("target_logprob", "estr"),
        Column("old_log_probs", "verl", "is verl's proximal policy: the target of the first mini-batch of an update"),
        Column("per_token_logps", "TRL"),
        Column("old_per_token_logps", "TRL", "is scored before the update: the target of its first optimizer step"),
        Column("prox_logp", "AReaL", "is AReaL's proximal policy: the target of the first mini-batch of an update"),
    ),
    "entropy": (
        Column("entropy", "estr"),
        Column("rollout_entropy", "estr with verl"),
        Column("entropys", "verl", TRAINER_ENTROPY),
        Column("entropies", "TRL", TRAINER_ENTROPY),
    ),
    "advantage": (Column("advantage", "estr"), Column("advantages", "verl, TRL, AReaL")),
    "response_mask": (
        Column("response_mask", "verl"),
        Column("completion_mask", "TRL"),
        Column("loss_mask", "AReaL"),
    ),
    "step": (Column("step", "estr"), Column("global_step", "TRL")),
    "sequence": (Column("sequence", "estr"), Column("sequence_id", "generic")),
    "position": (Column("position", "estr"),),
    "weight_version": (
        Column("weight_version", "estr"),
        Column("rollout_versions", "estr with verl"),
        Column("versions", "AReaL"),
    ),
    "version_first": (Column("version_first", "estr"), Column("min_global_steps", "verl")),
    "version_last": (Column("version_last", "estr"), Column("max_global_steps", "verl")),
    "target_version": (Column("target_version", "estr"),),
}
"""Per signal, the names that are looked for, in this order."""

ENTROPY_MISSING = (
    "no entropy of the behavior policy (looked for {names}). Name its column with --map entropy=COLUMN, bound it "
    "by --entropy-from-topk COLUMN --vocabulary N from top-k log-probs, or record it: docs/diagnose.md, 'Entropy'"
)


def parse_mapping(options: Sequence[str]) -> dict[str, str]:
    """`field=column` options as a dictionary.

    Raises:
        UserError: an option is malformed, names an unknown field, or one that another option names.
    """
    mapping: dict[str, str] = {}
    for option in options:
        field, equals, column = option.partition("=")
        if not equals or not column:
            raise UserError(f"--map {option}: write FIELD=COLUMN, for example --map entropy=entropys")
        if field not in KNOWN:
            raise UserError(f"--map {option}: unknown field {field!r}, there are {', '.join(KNOWN)}")
        if field in mapping:
            raise UserError(f"--map {option}: {field} is already mapped to {mapping[field]!r}")
        mapping[field] = column
    return mapping


def choose_columns(
    path: Path, available: Sequence[str], mapping: Mapping[str, str], topk: str | None
) -> dict[str, Column]:
    """The column of every signal that the dump has; `topk` stands for the entropy.

    A column that the user has mapped is not taken for anything else.

    Raises:
        UserError: a named column does not exist, or a log-prob or the entropy is not found.
    """
    chosen = {field: Column(name, "--map") for field, name in mapping.items()}
    if topk is not None:
        if "entropy" in chosen:
            raise UserError("--map entropy and --entropy-from-topk exclude each other")
        chosen["entropy"] = Column(topk, "--entropy-from-topk")
    for field, column in chosen.items():
        if column.name not in available:
            option = f"--map {field}={column.name}" if column.source == "--map" else f"{column.source} {column.name}"
            raise UserError(f"{path}: {option}: no such column; there are {_listed(available)}")
    taken = {column.name for column in chosen.values()}
    for field, columns in KNOWN.items():
        if field not in chosen:
            found = next((column for column in columns if column.name in available and column.name not in taken), None)
            if found is not None:
                chosen[field] = found
    if "entropy" not in chosen:
        raise UserError(f"{path}: {ENTROPY_MISSING.format(names=_names('entropy'))}")
    for field in ("behavior_logprob", "target_logprob"):
        if field not in chosen:
            raise UserError(
                f"{path}: no column for {field} (looked for {_names(field)}); name it with --map {field}=COLUMN; "
                f"there are {_listed(available)}"
            )
    if chosen["behavior_logprob"].name == chosen["target_logprob"].name:
        raise UserError("behavior_logprob and target_logprob are mapped to one column: every log-ratio would be 0")
    return {field: chosen[field] for field in KNOWN if field in chosen}


def _listed(columns: Sequence[str]) -> str:
    short = [" ".join(name.split())[:40] for name in columns[:40]]
    return ", ".join([*short, "..."] if len(columns) > len(short) else short)


def _names(field: str) -> str:
    return ", ".join(column.name for column in KNOWN[field])
