"""The embedded engine's Llama is the one of transformers, in float32 and in bfloat16."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from estr.embedded.policy import response_logits
from estr.errors import UserError
from estr.llm.model import Llama, as_bfloat16, bfloat16_engine, load_llama


def padded(rows: int, length: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(0, vocabulary, (rows, length), generator=torch.Generator().manual_seed(0))
    return tokens, torch.arange(length) >= torch.arange(rows)[:, None] % 4


def logits_of(reference: LlamaForCausalLM, tokens: Tensor, valid: Tensor) -> Tensor:
    position = (valid.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        return reference(input_ids=tokens, attention_mask=valid.long(), position_ids=position).logits[valid].float()


def test_equals_transformers_on_a_left_padded_batch(reference: LlamaForCausalLM, model: Llama) -> None:
    tokens, valid = padded(6, 20, 40)
    with torch.no_grad():
        ours, _ = model(tokens, valid=valid)
    expected = logits_of(reference, tokens, valid)
    assert expected.std() > 1
    torch.testing.assert_close(ours[valid], expected, atol=2e-5, rtol=1e-5)


def test_token_by_token_equals_one_pass(model: Llama) -> None:
    tokens, valid = padded(4, 9, 40)
    with torch.no_grad():
        whole, _ = model(tokens, valid=valid)
        logits, cache = model(tokens[:, :4], valid=valid[:, :4])
        cache = cache.expand(1, room=5)
        parts = [logits]
        for t in range(4, 9):
            logits, cache = model(tokens[:, t : t + 1], cache)
            parts.append(logits)
    torch.testing.assert_close(torch.cat(parts, 1)[valid], whole[valid], atol=2e-5, rtol=1e-5)


def test_gradients_equal_those_of_transformers(reference: LlamaForCausalLM, model: Llama) -> None:
    tokens, _ = padded(1, 12, 40)
    prompt, response = tokens[:, :5], tokens[:, 5:]
    mask = torch.ones_like(response, dtype=torch.bool)
    reference.requires_grad_(True)
    for logits in (
        response_logits(model.requires_grad_(True), prompt, torch.ones_like(prompt, dtype=torch.bool), response, mask),
        reference(input_ids=tokens).logits[0, 4:-1],
    ):
        logits.log_softmax(-1).gather(-1, response[0, :, None]).sum().backward()
    expected = dict(reference.named_parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name].grad, atol=1e-3, rtol=1e-3)


def test_engine_deviates_as_far_as_a_bfloat16_model(reference: LlamaForCausalLM, model: Llama) -> None:
    """As far from float32 as transformers in bfloat16, where rounded weights alone do not get."""
    tokens, valid = padded(16, 60, 40)
    exact = logits_of(reference, tokens, valid)
    with torch.no_grad():
        engine = bfloat16_engine(model)(tokens, valid=valid)[0][valid]
        model.load_state_dict({name: as_bfloat16(weight) for name, weight in model.state_dict().items()})
        weights_only = model(tokens, valid=valid)[0][valid]
    native = logits_of(reference.to(torch.bfloat16), tokens, valid)
    size = [float((logits - exact).square().mean().sqrt()) for logits in (engine, native, weights_only)]
    assert size[0] == pytest.approx(size[1], rel=0.25)
    assert size[2] < 0.7 * size[1]


def test_engine_rounds_what_it_stores(model: Llama) -> None:
    engine = bfloat16_engine(model)
    tokens, valid = padded(3, 8, 40)
    stored: list[Tensor] = []
    for name, module in engine.named_modules():
        if name.endswith("norm"):
            module.register_forward_hook(lambda module, inputs, output: stored.extend((inputs[0], output)))
    with torch.no_grad():
        logits, cache = engine(tokens, valid=valid)
    stored += [logits, *engine.parameters(), *(tensor for layer in cache.layers for tensor in layer)]
    assert all(torch.equal(x, as_bfloat16(x)) for x in stored)
    assert not all(torch.equal(weight, as_bfloat16(weight)) for weight in model.parameters())
    assert not any(parameter.requires_grad for parameter in engine.parameters())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "qwen2"),
        ("tie_word_embeddings", False),
        ("attention_bias", True),
        ("rope_parameters", {"rope_type": "llama3", "rope_theta": 1.0}),
        ("num_hidden_layers", 4),
    ],
)
def test_refuses_what_it_would_compute_wrongly(folder: Path, key: str, value: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(UserError, match="not a Llama model"):
        load_llama(folder)
