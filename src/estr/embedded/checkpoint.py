"""Resume state of a training run: weights, optimizer moments and the stored past weights, checksummed.

Random streams and the data order are functions of (seed, step), so the step is all that they need. Nothing is
pickled. The last two checkpoints are kept; a damaged one is reported and the one before it is used.
"""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from estr.embedded.optimizer import AdamW
from estr.embedded.policy import Policy
from estr.errors import UserError
from estr.provenance import file_digest

KEPT = 2
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingState:
    """After `step` updates: the policy's weights, AdamW's moments, and the behavior weights by version (bfloat16)."""

    step: int
    weights: dict[str, Tensor]
    moments: dict[str, Tensor]
    versions: dict[int, dict[str, Tensor]]


def capture(step: int, policy: Policy, optimizer: AdamW, versions: Mapping[int, Mapping[str, Tensor]]) -> TrainingState:
    moments = {}
    for name, parameter in policy.named_parameters():
        for key, value in optimizer.state[parameter].items():
            moments[f"{name}/{key}"] = value.detach().clone()
    weights = {name: tensor.detach().clone() for name, tensor in policy.state_dict().items()}
    rounded = {v: {name: tensor.bfloat16() for name, tensor in w.items()} for v, w in versions.items()}
    return TrainingState(step, weights, moments, rounded)


def restore(state: TrainingState, policy: Policy, optimizer: AdamW) -> None:
    policy.load_state_dict(state.weights)
    for name, parameter in policy.named_parameters():
        prefix = f"{name}/"
        optimizer.state[parameter] = {
            key.removeprefix(prefix): value for key, value in state.moments.items() if key.startswith(prefix)
        }


def save_state(state: TrainingState, folder: Path) -> None:
    """Write `step<N>.safetensors`, then its checksum; a checkpoint without a matching checksum does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"weights/{name}": tensor for name, tensor in state.weights.items()}
    tensors |= {f"moments/{name}": tensor for name, tensor in state.moments.items()}
    for version, weights in state.versions.items():
        tensors |= {f"versions/{version}/{name}": tensor for name, tensor in weights.items()}
    stem = folder / f"step{state.step:07d}"
    partial = stem.with_suffix(".partial")
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial)
    except SafetensorError as error:
        raise OSError(f"{partial}: checkpoint not written ({error}); the one before it stays") from error
    note = {"step": state.step, "sha256": file_digest(partial)}
    os.replace(partial, stem.with_suffix(".safetensors"))
    partial.write_text(json.dumps(note) + "\n")
    os.replace(partial, stem.with_suffix(".json"))
    for old in sorted(folder.glob("step*.json"))[:-KEPT]:
        old.unlink()
        old.with_suffix(".safetensors").unlink(missing_ok=True)


def load_state(folder: Path) -> TrainingState | None:
    """The newest intact checkpoint, or None if there is none.

    Raises:
        UserError: there are checkpoints, but all of them are damaged.
    """
    notes = sorted(folder.glob("step*.json"), reverse=True)
    for note in notes:
        path = note.with_suffix(".safetensors")
        try:
            content = json.loads(note.read_text())
            if content["sha256"] != file_digest(path):
                raise ValueError("checksum differs")
            tensors = load_file(path)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            logger.warning("%s is damaged (%s); trying the checkpoint before it", path, error)
            continue
        return _unpack(content["step"], tensors)
    if notes:
        raise UserError(f"{folder}: every checkpoint is damaged; delete it to start this run over")
    return None


def _unpack(step: int, tensors: Mapping[str, Tensor]) -> TrainingState:
    state = TrainingState(step, {}, {}, {})
    for full, tensor in tensors.items():
        kind, _, name = full.partition("/")
        if kind == "versions":
            version, _, name = name.partition("/")
            state.versions.setdefault(int(version), {})[name] = tensor
        else:
            (state.weights if kind == "weights" else state.moments)[name] = tensor
    return state
