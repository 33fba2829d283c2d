"""Resume state of a training run: weights, optimizer moments, the stored past weights, and both tables so far.

A checkpoint is a set of files `step<N>.*`, whose note `step<N>.json` is written last and has the SHA-256 of the others.
Random streams and the data order are functions of (seed, step), so the step is all that they need. Nothing is
pickled. The last two checkpoints are kept; a damaged one is reported and the one before it is used.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from estr.embedded.optimizer import AdamW
from estr.embedded.policy import Policy, save_tensors
from estr.errors import UserError
from estr.provenance import check_files, file_digests, read_json, write_json
from estr.records import write_table

KEPT = 2
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingState:
    """After `step` updates: the policy's weights, AdamW's moments, the behavior weights by version (bfloat16), and the
    rows of `metrics.parquet` and `tokens.parquet`.
    """

    step: int
    weights: dict[str, Tensor]
    moments: dict[str, Tensor]
    versions: dict[int, dict[str, Tensor]]
    metrics: pa.Table
    tokens: pa.Table


def capture(
    step: int,
    policy: Policy,
    optimizer: AdamW,
    versions: Mapping[int, Mapping[str, Tensor]],
    metrics: pa.Table,
    tokens: pa.Table,
) -> TrainingState:
    moments = {}
    for name, parameter in policy.named_parameters():
        for key, value in optimizer.state[parameter].items():
            moments[f"{name}/{key}"] = value.detach().clone()
    weights = {name: tensor.detach().clone() for name, tensor in policy.state_dict().items()}
    rounded = {v: {name: tensor.bfloat16() for name, tensor in w.items()} for v, w in versions.items()}
    return TrainingState(step, weights, moments, rounded, metrics, tokens)


def restore(state: TrainingState, policy: Policy, optimizer: AdamW) -> None:
    policy.load_state_dict(state.weights)
    for name, parameter in policy.named_parameters():
        prefix = f"{name}/"
        optimizer.state[parameter] = {
            key.removeprefix(prefix): value for key, value in state.moments.items() if key.startswith(prefix)
        }


def save_state(state: TrainingState, folder: Path) -> None:
    """Write a checkpoint and remove all but the last `KEPT`; one without its note does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"weights/{name}": tensor for name, tensor in state.weights.items()}
    tensors |= {f"moments/{name}": tensor for name, tensor in state.moments.items()}
    for version, weights in state.versions.items():
        tensors |= {f"versions/{version}/{name}": tensor for name, tensor in weights.items()}
    name = f"step{state.step:07d}"
    save_tensors(tensors, folder / f"{name}.safetensors")
    write_table(state.metrics, folder / f"{name}.metrics.parquet")
    write_table(state.tokens, folder / f"{name}.tokens.parquet")
    files = file_digests(folder, [f"{name}.safetensors", f"{name}.*.parquet"])
    write_json(folder / f"{name}.json", {"step": state.step, "files": files})
    kept = {note.stem for note in sorted(folder.glob("step*.json"))[-KEPT:]}
    for old in sorted(folder.glob("step*")):  # a note before the files that it lists
        if old.name.partition(".")[0] not in kept:
            old.unlink()


def load_state(folder: Path) -> TrainingState | None:
    """The newest intact checkpoint, or None if there is none.

    Raises:
        UserError: there are checkpoints, but all of them are damaged.
    """
    notes = sorted(folder.glob("step*.json"), reverse=True)
    for note in notes:
        try:
            check_files(note)
            return _read(note, read_json(note)["step"])
        except (UserError, KeyError, OSError, ValueError, SafetensorError) as error:
            logger.warning("the checkpoint %s is damaged (%s); trying the one before it", note, error)
    if notes:
        raise UserError(f"{folder}: every checkpoint is damaged; delete it to start this run over")
    return None


def _read(note: Path, step: int) -> TrainingState:
    metrics, tokens = (pq.read_table(note.with_suffix(f".{name}.parquet")) for name in ("metrics", "tokens"))
    state = TrainingState(step, {}, {}, {}, metrics, tokens)
    for full, tensor in load_file(note.with_suffix(".safetensors")).items():
        kind, _, name = full.partition("/")
        if kind == "versions":
            version, _, name = name.partition("/")
            state.versions.setdefault(int(version), {})[name] = tensor
        else:
            (state.weights if kind == "weights" else state.moments)[name] = tensor
    return state
