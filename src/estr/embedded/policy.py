"""The tiny policy: the Qwen2 architecture in plain torch, stored in the Hugging Face format.

`transformers` defines the architecture; this module computes the same function (a test holds the two together to
1e-5) without its import time and per-call overhead, which on a laptop would cost more than the arithmetic.
Any engine that loads a `Qwen2ForCausalLM` folder loads this policy.

A batch is a set of prompts with `group` responses each. The prompt is computed once per group, in sampling and in
training alike; gradients flow through the shared keys and values.
"""

import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from estr.errors import UserError


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

    `valid` is bool `[rows, slots]`: False marks the left padding of a prompt.
    """

    layers: list[tuple[Tensor, Tensor]]
    valid: Tensor

    def expand(self, group: int) -> "KeyValueCache":
        """Repeat every row `group` times, so that the responses of one prompt share its keys and values."""
        layers = [(k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)) for k, v in self.layers]
        return KeyValueCache(layers, self.valid.repeat_interleave(group, 0))


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
        self, x: Tensor, rotation: tuple[Tensor, Tensor], past: tuple[Tensor, Tensor] | None, mask: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        rows, length, _ = x.shape
        q = _rotate(self.q_proj(x).view(rows, length, self.heads, self.head_dim), rotation).transpose(1, 2)
        k = _rotate(self.k_proj(x).view(rows, length, self.kv_heads, self.head_dim), rotation).transpose(1, 2)
        v = self.v_proj(x).view(rows, length, self.kv_heads, self.head_dim).transpose(1, 2)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        repeat = self.heads // self.kv_heads
        keys, values = (k, v) if repeat == 1 else (k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1))
        scores = (q @ keys.transpose(2, 3)) * self.head_dim**-0.5
        weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1)
        mixed = (weights @ values).transpose(1, 2).reshape(rows, length, -1)
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
        self, x: Tensor, rotation: tuple[Tensor, Tensor], past: tuple[Tensor, Tensor] | None, mask: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        mixed, present = self.self_attn(self.input_layernorm(x), rotation, past, mask)
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
        self._cos, self._sin = _rotation_table(shape)

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
        length = tokens.shape[1]
        valid = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid
        known = valid if cache is None else torch.cat([cache.valid, valid], dim=1)
        past = known.shape[1] - length
        position = (known.cumsum(1) - 1).clamp(min=0)[:, past:]
        rotation = (self._cos[position].unsqueeze(2), self._sin[position].unsqueeze(2))
        causal = torch.ones(length, past + length, dtype=torch.bool).tril(diagonal=past)
        mask = (causal & known.unsqueeze(1)).unsqueeze(1)
        x = self.model.embed_tokens(tokens)
        layers = []
        for index, layer in enumerate(self.model.layers):
            x, present = layer(x, rotation, None if cache is None else cache.layers[index], mask)
            layers.append(present)
        logits = F.linear(self.model.norm(x), self.model.embed_tokens.weight)
        return logits, KeyValueCache(layers, known)


@cache
def _rotation_table(shape: PolicyShape) -> tuple[Tensor, Tensor]:
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


def response_logits(policy: Policy, prompts: Tensor, prompt_valid: Tensor, responses: Tensor) -> Tensor:
    """Teacher-forced logits `[rows, length, vocab]` that predict each token of `responses` `[rows, length]`.

    `prompts` and `prompt_valid` are `[rows / group, prompt_length]`, left-padded; rows of one group are adjacent.
    """
    logits, cache = policy(prompts, valid=prompt_valid)
    group = responses.shape[0] // prompts.shape[0]
    first: Tensor = logits[:, -1:].repeat_interleave(group, 0)
    if responses.shape[1] == 1:
        return first
    rest, _ = policy(responses[:, :-1], cache.expand(group))
    return torch.cat([first, rest], dim=1)


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
    (folder / "config.json").write_text(json.dumps(head | asdict(policy.shape), indent=2) + "\n")
    weights = {name: tensor.detach().contiguous() for name, tensor in policy.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def load_policy(folder: Path) -> Policy:
    """Read a policy that `save_policy` wrote. Raises `UserError` if a file is missing, truncated or does not fit."""
    try:
        config = json.loads((folder / "config.json").read_text())
        shape = PolicyShape(**{key: config[key] for key in PolicyShape.__dataclass_fields__})
        policy = Policy(shape)
        policy.load_state_dict(load_file(folder / "model.safetensors"))
    except Exception as error:
        raise UserError(f"{folder}: not a readable policy folder ({error}); delete it and rerun the rule") from error
    return policy
