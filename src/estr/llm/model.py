"""SmolLM2 on the embedded engine: the Llama architecture as a `Policy`, in float32 and as a bfloat16 engine runs it."""

import copy
import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from estr.embedded.policy import Extend, Policy, PolicyShape, _rotate, attention_weights
from estr.errors import UserError


class Llama(Policy):
    """A Llama causal language model with tied embeddings; parameter names are those of `LlamaForCausalLM`.

    It is the embedded engine's Qwen2 without the biases of the attention.
    """

    rounded = False
    """True in a bfloat16 engine, see `bfloat16_engine`."""

    def __init__(self, shape: PolicyShape) -> None:
        super().__init__(shape)
        for layer in self.model.layers:
            layer.self_attn = GroupedQueryAttention(shape)

    def head(self, hidden: Tensor) -> Tensor:
        logits = super().head(hidden)
        return as_bfloat16(logits) if self.rounded else logits


class GroupedQueryAttention(nn.Module):
    """Attention without biases, whose query heads share key-value heads that are never copied."""

    rounded = False

    def __init__(self, shape: PolicyShape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = (
            shape.num_attention_heads,
            shape.num_key_value_heads,
            shape.head_dim,
        )
        self.q_proj = nn.Linear(shape.hidden_size, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, shape.hidden_size, bias=False)

    def forward(
        self, x: Tensor, rotation: tuple[Tensor, Tensor], extend: Extend, mask: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        rows, length, _ = x.shape
        q = _rotate(self.q_proj(x).view(rows, length, self.heads, self.head_dim), rotation)
        k = _rotate(self.k_proj(x).view(rows, length, self.kv_heads, self.head_dim), rotation)
        if self.rounded:
            q, k = as_bfloat16(q), as_bfloat16(k)
        v = self.v_proj(x).view(rows, length, self.kv_heads, self.head_dim)
        k, v = extend(k.transpose(1, 2), v.transpose(1, 2))
        # query heads of one key head side by side: [rows, kv_heads, heads / kv_heads * length, head_dim]
        q = q.transpose(1, 2).reshape(rows, self.kv_heads, -1, self.head_dim)
        scores = (q @ k.transpose(2, 3)).view(rows, self.heads, length, -1) * self.head_dim**-0.5
        weights = attention_weights(scores, mask)
        if self.rounded:
            weights = as_bfloat16(weights)
        mixed = (weights.view(rows, self.kv_heads, -1, weights.shape[-1]) @ v).view(rows, self.heads, length, -1)
        return self.o_proj(mixed.transpose(1, 2).reshape(rows, length, -1)), (k, v)


def load_llama(folder: Path) -> Llama:
    """Read a Llama folder in the Hugging Face format, into float32.

    Raises:
        UserError: a file is missing or damaged, or the model differs from `Llama` (biases, untied embeddings, scaled
            rotary embedding).
    """
    try:
        config = json.loads((folder / "config.json").read_text())
        rope = config["rope_parameters"]
        expected = {"model_type": "llama", "hidden_act": "silu", "tie_word_embeddings": True, "attention_bias": False}
        found = {key: config[key] for key in expected}
        if found != expected or rope["rope_type"] != "default":
            raise ValueError(f"{found | rope}, expected {expected} and rope_type default")
        names = PolicyShape.__dataclass_fields__.keys() - {"rope_theta"}
        shape = PolicyShape(**{name: config[name] for name in names}, rope_theta=rope["rope_theta"])
        model = Llama(shape)
        model.load_state_dict(load_file(folder / "model.safetensors"), assign=True)
        model.float()
    except Exception as error:
        raise UserError(f"{folder}: not a Llama model that the embedded engine can read ({error})") from error
    return model


@torch.no_grad()
def bfloat16_engine(model: Llama) -> Llama:
    """A copy that computes like a bfloat16 inference engine; it carries no gradient.

    Rounded to bfloat16 are the weights, operands and results of every linear layer, the norms, the residual stream, the
    rotated queries and keys, the attention weights and the logits; products accumulate in float32, as tensor cores do,
    and scores and softmax are float32, as in flash attention. The values are kept in float32 tensors: a CPU without
    bfloat16 instructions multiplies bfloat16 ones many times slower.
    """
    engine = copy.deepcopy(model).requires_grad_(False)
    for parameter in engine.parameters():
        parameter.copy_(parameter.bfloat16())
    for name, module in engine.named_modules():
        if isinstance(module, Llama | GroupedQueryAttention):
            module.rounded = True
        if isinstance(module, nn.Linear | nn.RMSNorm):
            module.register_forward_hook(lambda module, inputs, output: as_bfloat16(output))
        # in place, since the input of a norm is the residual stream; the other layers read the output of a norm
        if name.endswith(("norm", "o_proj", "down_proj")):
            module.register_forward_pre_hook(lambda module, inputs: (inputs[0].copy_(inputs[0].bfloat16()),))
    return engine


def as_bfloat16(x: Tensor) -> Tensor:
    """Rounded to bfloat16, in its own dtype."""
    return x.bfloat16().to(x.dtype)
