"""The stage and its commands, on a tiny model in the place of the real one; one test is on the real one."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from estr.config import SampleSettings
from estr.errors import UserError
from estr.layout import Layout
from estr.llm.model import as_bfloat16, bfloat16_engine, load_llama
from estr.llm.problems import word_problems
from estr.llm.sample import TokenStudy
from estr.llm.weights import NOTE, prepare_weights
from estr.provenance import read_json, write_json
from estr.report.samples import load_sample
from estr.sampling_study import sample_llm


def estr(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from estr.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def layout(tmp_path: Path, reference: LlamaForCausalLM, tokenizer: Any) -> Layout:
    """With the tiny model where the weights belong."""
    folder = tmp_path / "cache" / "smollm2"
    reference.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_json(folder / NOTE, {"model": "tiny/tiny", "licence": "none", "sha256": "0", "package": "tiny 1"})
    return Layout(tmp_path, "smoke")


def test_sample_is_what_the_report_reads(layout: Layout, settings: SampleSettings) -> None:
    sample_llm(layout, "smollm2", settings)
    found = load_sample(layout.sample("smollm2"))
    assert (found.model, found.licence, found.prompts) == ("tiny/tiny", "none", 5)
    assert {name: scenario.gradient_steps for name, scenario in found.scenarios.items()} == {
        "mismatch": 0,
        "stale": 2,
        "switch": 2,
    }
    tokens = {name: found.read_tokens(name) for name in found.scenarios}
    assert sum(map(len, tokens.values())) == pq.read_metadata(found.path / "tokens.parquet").num_rows
    record = read_json(found.path / "sample.json")
    assert record["settings"] == settings.model_dump()
    assert record["sha256"] == "0"
    assert record["packages"]["reasoning-gym"] == "0.1.25"
    assert len(record["updates"]) == settings.gradient_steps


def test_a_finished_sample_is_made_again_only_for_other_settings(layout: Layout, settings: SampleSettings) -> None:
    sample_llm(layout, "smollm2", settings)
    path = layout.sample("smollm2") / "tokens.parquet"
    before, path_time = pq.read_table(path), path.stat().st_mtime_ns
    sample_llm(layout, "smollm2", settings)
    assert path.stat().st_mtime_ns == path_time
    sample_llm(layout, "smollm2", settings.model_copy(update={"seed": 7}))
    assert not pq.read_table(path).equals(before)
    assert read_json(path.with_name("sample.json"))["settings"]["seed"] == 7


def test_missing_weights_name_the_command(tmp_path: Path, settings: SampleSettings) -> None:
    with pytest.raises(UserError, match=r"source\.json is missing: `estr llm weights` makes it"):
        sample_llm(Layout(tmp_path, "smoke"), "smollm2", settings)


def test_unknown_names() -> None:
    done = estr("llm", "sample", "gpt")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "key 'samples' lacks 'gpt'; it has smollm2" in done.stderr


@pytest.mark.slow
def test_the_real_model(tmp_path: Path) -> None:
    """Dequantised it speaks; float32 is that of transformers; bfloat16 deviates as that of transformers does."""
    folder = tmp_path / "smollm2"
    try:
        prepare_weights(folder)
    except UserError as error:
        if "cannot be downloaded" not in str(error):
            raise
        pytest.skip(str(error))
    tokenizer, model = AutoTokenizer.from_pretrained(folder), load_llama(folder)
    assert all(torch.equal(weight, as_bfloat16(weight)) for weight in model.parameters())
    text = "The capital of France is Paris. The capital of Italy is"
    tokens = tokenizer(text, return_tensors="pt")["input_ids"]
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        ours, theirs = model(tokens)[0].log_softmax(-1), reference(tokens).logits.log_softmax(-1)
        engine = bfloat16_engine(model)(tokens)[0].log_softmax(-1)
        native = reference.bfloat16()(tokens).logits.float().log_softmax(-1)
    assert tokenizer.decode(ours[0, -1].argmax()) == " Rome"
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=0)
    noise = [float((theirs.exp() * (x - theirs).square()).sum(-1).mean().sqrt()) for x in (engine, native)]
    assert 0.5 < noise[0] / noise[1] < 2

    prompt = tokenizer.apply_chat_template(word_problems(1, 0)[0].prompt, add_generation_prompt=True, tokenize=False)
    assert prompt.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.decode(tokenizer(prompt, add_special_tokens=False)["input_ids"]) == prompt
    settings = SampleSettings(
        prompts=2, group=2, max_tokens=6, gradient_steps=1, learning_rate=2e-6, switches=1, temperature=1.0, seed=0
    )
    tables = TokenStudy(model, tokenizer, word_problems(2, 0), settings).run()
    for table in tables.values():
        frame = table.to_pandas()
        assert frame["entropy"].between(0, math.log(49152)).all()
        assert 1e-3 < (frame["target_logprob"] - frame["behavior_logprob"]).abs().mean() < 0.2
