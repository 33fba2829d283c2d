"""The tiny policy: the Qwen2 architecture in plain torch, stored in the Hugging Face format.

`transformers` defines the architecture; this module computes the same function (a test holds the two together to
1e-5) without its import time and per-call overhead, which on a laptop would cost more than the arithmetic.
Any engine that loads a `Qwen2ForCausalLM` folder loads this policy.

A batch is a set of prompts with `group` responses each. The prompt is computed once per group, in sampling and in
training alike; gradients flow through the shared keys and values.
"""

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from safetensors.torch import save as serialize
from torch import Tensor, nn

from estr.errors import UserError
from estr.files.atomic import replacing


@dataclass(frozen=True)
class PolicyShape:
    """Sizes of the policy, with the names that the Hugging Face config uses."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    max_position_embeddings: int
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads


@dataclass
class KeyValueCache:
    """Keys and values of every layer, each `[rows, kv_heads, slots, head_dim]`, and which slots are real.

    `valid` is bool `[rows, slots]`: False marks the left padding of a prompt. A cache with `room` beyond its slots
    takes new tokens in place and shares its memory with the longer cache: for sampling, where no gradient flows.
    """

    layers: list[tuple[Tensor, Tensor]]
    valid: Tensor
    buffers: list[tuple[Tensor, Tensor]] | None = None

    def expand(self, group: int, room: int = 0) -> "KeyValueCache":
        """Repeat every row `group` times, so that the responses of one prompt share its keys and values."""
        layers = [(k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)) for k, v in self.layers]
        valid = self.valid.repeat_interleave(group, 0)
        if room == 0:
            return KeyValueCache(layers, valid)
        slots = valid.shape[1]
        buffers = []
        for k, v in layers:
            rows, heads, _, width = k.shape
            pair = (k.new_empty(rows, heads, slots + room, width), v.new_empty(rows, heads, slots + room, width))
            pair[0][:, :, :slots], pair[1][:, :, :slots] = k, v
            buffers.append(pair)
        return KeyValueCache(layers, valid, buffers)

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's keys and values with those of new tokens behind them."""
        if self.buffers is None:
            return torch.cat([self.layers[layer][0], k], dim=2), torch.cat([self.layers[layer][1], v], dim=2)
        slots = self.valid.shape[1]
        end = slots + k.shape[2]
        keys, values = self.buffers[layer]
        keys[:, :, slots:end], values[:, :, slots:end] = k, v
        return keys[:, :, :end], values[:, :, :end]

    def without_last(self) -> "KeyValueCache":
        """The cache one token earlier."""
        layers = [(k[:, :, :-1], v[:, :, :-1]) for k, v in self.layers]
        return KeyValueCache(layers, self.valid[:, :-1], self.buffers)


Extend = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""A layer's new keys and values -> all of its keys and values."""


def attention_weights(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the slots, the last dimension, where `mask` is True; None: all of them are seen."""
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores.softmax(dim=-1)


class _Attention(nn.Module):
    def __init__(self, shape: PolicyShape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = (
            shape.num_attention_heads,
            shape.num_key_value_heads,
            shape.head_dim,
        )
        width = shape.hidden_size
        self.q_proj = nn.Linear(width, self.heads * self.head_dim)
        self.k_proj = nn.Linear(width, self.kv_heads * self.head_dim)
        self.v_proj = nn.Linear(width, self.kv_heads * self.head_dim)
        self.o_proj = nn.Linear(self.heads * self.head_dim, width, bias=False)

    def forward(
        self, x: Tensor, rotation: tuple[Tensor, Tensor], extend: Extend, mask: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        rows, length, _ = x.shape
        both = torch.cat([self.q_proj(x), self.k_proj(x)], -1).view(rows, length, -1, self.head_dim)
        q, k = _rotate(both, rotation).transpose(1, 2).split([self.heads, self.kv_heads], dim=1)
        v = self.v_proj(x).view(rows, length, self.kv_heads, self.head_dim).transpose(1, 2)
        k, v = extend(k, v)
        repeat = self.heads // self.kv_heads
        keys, values = (k, v) if repeat == 1 else (k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1))
        scores = (q @ keys.transpose(2, 3)) * self.head_dim**-0.5
        mixed = (attention_weights(scores, mask) @ values).transpose(1, 2).reshape(rows, length, -1)
        return self.o_proj(mixed), (k, v)


class _GatedMLP(nn.Module):
    def __init__(self, shape: PolicyShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return mixed


class _Layer(nn.Module):
    def __init__(self, shape: PolicyShape) -> None:
        super().__init__()
        self.self_attn = _Attention(shape)
        self.mlp = _GatedMLP(shape)
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)

    def forward(
        self, x: Tensor, rotation: tuple[Tensor, Tensor], extend: Extend, mask: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        mixed, present = self.self_attn(self.input_layernorm(x), rotation, extend, mask)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), present


class _Decoder(nn.Module):
    def __init__(self, shape: PolicyShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(_Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)


class Policy(nn.Module):
    """A Qwen2 causal language model with tied embeddings; parameter names are those of `Qwen2ForCausalLM`."""

    def __init__(self, shape: PolicyShape) -> None:
        super().__init__()
        self.shape = shape
        self.model = _Decoder(shape)
        self._cos, self._sin = rotation_table(shape)

    def initialize(self, seed: int) -> "Policy":
        """Draw the weights from N(0, 0.02^2) (biases zero, norms one), as the architecture's default does."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            with torch.no_grad():
                if name.endswith("bias"):
                    parameter.zero_()
                elif "norm" in name:
                    parameter.fill_(1.0)
                else:
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
        return self

    def forward(
        self, tokens: Tensor, cache: KeyValueCache | None = None, valid: Tensor | None = None
    ) -> tuple[Tensor, KeyValueCache]:
        """Logits `[rows, length, vocab]` of the next token after each of `tokens` `[rows, length]`, and the new cache.

        `valid` (bool, as `tokens`; default all True) marks real tokens; left padding is False. A token sees the
        valid slots up to its own; its position is the number of valid slots before it.
        """
        hidden, cache = self.read(tokens, cache, valid)
        return self.head(hidden), cache

    def read(
        self, tokens: Tensor, cache: KeyValueCache | None = None, valid: Tensor | None = None
    ) -> tuple[Tensor, KeyValueCache]:
        """`forward` without the last projection: hidden states `[rows, length, hidden_size]`, and the new cache."""
        length = tokens.shape[1]
        valid = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid
        known = valid if cache is None else torch.cat([cache.valid, valid], dim=1)
        past = known.shape[1] - length
        if length == 1:  # a sampling step: the token sees all that is known
            count = known.sum(1, keepdim=True)
            mask = None if known.all() else known[:, None, None]
        else:
            count = known.cumsum(1)[:, past:]
            causal = torch.ones(length, past + length, dtype=torch.bool).tril(diagonal=past)
            mask = (causal & known.unsqueeze(1)).unsqueeze(1)
        position = (count - 1).clamp(min=0)
        rotation = (self._cos[position].unsqueeze(2), self._sin[position].unsqueeze(2))
        x = self.model.embed_tokens(tokens)
        layers = []
        for index, layer in enumerate(self.model.layers):
            extend: Extend = _as_they_are if cache is None else partial(cache.append, index)
            x, present = layer(x, rotation, extend, mask)
            layers.append(present)
        return self.model.norm(x), KeyValueCache(layers, known, None if cache is None else cache.buffers)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits `[..., vocab]` of hidden states `[..., hidden_size]`."""
        return F.linear(hidden, self.model.embed_tokens.weight)


def _as_they_are(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return k, v


@cache
def rotation_table(shape: PolicyShape) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the rotary angles, `[positions, head_dim]`."""
    inverse = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
    angles = torch.outer(torch.arange(shape.max_position_embeddings).float(), inverse)
    doubled = torch.cat([angles, angles], -1)
    return doubled.cos(), doubled.sin()


def _rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary position embedding of `x` `[rows, length, heads, head_dim]`, half-split convention."""
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def response_logits(policy: Policy, prompts: Tensor, prompt_valid: Tensor, responses: Tensor, mask: Tensor) -> Tensor:
    """Teacher-forced logits `[n, vocab]` that predict the n tokens of `responses` where `mask` is True, row by row.

    `responses` and `mask` are `[rows, length]`; `prompts` and `prompt_valid` are `[rows / group, prompt_length]`,
    left-padded; rows of one group are adjacent.
    """
    hidden, cache = policy.read(prompts, valid=prompt_valid)
    group = responses.shape[0] // prompts.shape[0]
    before = hidden[:, -1:].repeat_interleave(group, 0)
    if responses.shape[1] > 1:
        rest, _ = policy.read(responses[:, :-1], cache.expand(group))
        before = torch.cat([before, rest], dim=1)
    return policy.head(before[mask])


def save_policy(policy: Policy, folder: Path) -> None:
    """Write `config.json` and `model.safetensors` so that `AutoModelForCausalLM.from_pretrained(folder)` loads them."""
    folder.mkdir(parents=True, exist_ok=True)
    head = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "torch_dtype": "float32",
        "initializer_range": 0.02,
        "attention_dropout": 0.0,
        "use_cache": True,
    }
    with replacing(folder / "config.json") as new:
        new.write_text(json.dumps(head | asdict(policy.shape), indent=2) + "\n")
    save_tensors(policy.state_dict(), folder / "model.safetensors")


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file that either is whole or does not exist."""
    plain = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as new:
        new.write_bytes(serialize(plain, metadata={"format": "pt"}))  # save_file hides why it failed


def load_policy(folder: Path) -> Policy:
    """Read a policy that `save_policy` wrote. Raises `UserError` if a file is missing, truncated or does not fit."""
    try:
        config = json.loads((folder / "config.json").read_text())
        shape = PolicyShape(**{key: config[key] for key in PolicyShape.__dataclass_fields__})
        policy = Policy(shape)
        policy.load_state_dict(load_file(folder / "model.safetensors"))
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{folder}: not a policy that the embedded engine can read ({reason})") from error
    return policy


def behavior_copy(policy: Policy) -> Policy:
    """The copy that rollouts are sampled from: its weights are rounded to bfloat16.

    That rounding is the train-inference mismatch of this engine. The arithmetic stays float32: a CPU without
    bfloat16 instructions is several times slower in bfloat16.
    """
    copied = copy.deepcopy(policy).requires_grad_(False)
    for parameter in copied.parameters():
        parameter.copy_(parameter.bfloat16())
    return copied
