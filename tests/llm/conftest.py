from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from estr.config import SampleSettings
from estr.llm.model import Llama, load_llama
from estr.llm.problems import WordProblem

torch.set_num_threads(1)

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = "{% for m in messages %}<|im_start|> {{ m['content'] }} <|im_end|>{% endfor %}<|im_start|>"


@pytest.fixture
def reference() -> LlamaForCausalLM:
    """Random weights large enough for distributions far from uniform; three query heads to a key head."""
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        parameter.mul_(8.0 if "embed" in name else 4.0 if "proj" in name else 1.0)
    return model


@pytest.fixture
def folder(reference: LlamaForCausalLM, tmp_path: Path) -> Path:
    reference.save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


@pytest.fixture
def model(folder: Path) -> Llama:
    return load_llama(folder)


@pytest.fixture
def tokenizer() -> Any:
    """Every word of the vocabulary is a digit; token 2 ends a turn."""
    vocabulary = {word: i for i, word in enumerate([*SPECIAL, "<unk>", *(str(n) for n in range(36))])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.add_special_tokens(list(SPECIAL))
    return PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token=SPECIAL[2], pad_token=SPECIAL[0], chat_template=TEMPLATE
    )


@pytest.fixture
def problems() -> list[WordProblem]:
    """Prompts of different lengths."""
    return [WordProblem(" ".join(str(n) for n in range(3, 5 + 2 * i)), float(7 * i)) for i in range(5)]


@pytest.fixture
def settings() -> SampleSettings:
    return SampleSettings(
        prompts=5, group=3, max_tokens=12, gradient_steps=2, learning_rate=1e-2, switches=2, temperature=0.8, seed=1
    )
