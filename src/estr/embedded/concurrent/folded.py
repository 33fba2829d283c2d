"""The policy's function for sampling: fewer and larger operations, and a cache in which every row has its own length.

A token step of a tiny policy costs as much in calls as in arithmetic. So what stays the same between two weight updates
is folded into the weights: norms into the projections behind them, the attention's scale into the queries, the sampling
temperature into the head, and the rotary embedding's half-turn R, for cos * W h + sin * R (W h) needs only R W, which
has the entries of W. Values differ from `Policy`'s by rounding alone, about 1e-6.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from estr.embedded.policy import Policy, PolicyShape, rotation_table


class RowCache:
    """Keys and values, each `[layers, rows, kv_heads, columns, head_dim]`: a row's token at position p is in column p.

    Columns behind a row's tokens hold anything; they are written before they are looked at.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values

    @classmethod
    def empty(cls, shape: PolicyShape, rows: int, columns: int) -> "RowCache":
        size = (shape.num_hidden_layers, rows, shape.num_key_value_heads, columns, shape.head_dim)
        return cls(torch.zeros(size), torch.zeros(size))

    @property
    def columns(self) -> int:
        return self.keys.shape[3]

    def rows(self, chosen: Tensor) -> "RowCache":
        """A copy of the chosen rows, int64 `[n]`."""
        return RowCache(self.keys[:, chosen], self.values[:, chosen])

    def put(self, chosen: Tensor, other: "RowCache") -> None:
        """Overwrite the first columns of the chosen rows with those of `other`, row by row."""
        self.keys[:, chosen, :, : other.columns] = other.keys
        self.values[:, chosen, :, : other.columns] = other.values


class _Layer(NamedTuple):
    project: Tensor  # to q, k, R q, R k, v of all heads
    project_bias: Tensor
    mix: Tensor
    gate_up: Tensor
    down: Tensor


class FoldedPolicy:
    """The weights that `policy` has now, folded for sampling at `temperature`; the policy may change afterwards."""

    def __init__(self, policy: Policy, temperature: float) -> None:
        shape = policy.shape
        self.eps, self.head_dim, self.kv_heads = shape.rms_norm_eps, shape.head_dim, shape.num_key_value_heads
        self.group = shape.num_attention_heads // shape.num_key_value_heads
        cos, sin = rotation_table(shape)
        column = torch.arange(shape.max_position_embeddings)
        later = torch.zeros(len(column), len(column)).masked_fill(column > column[:, None], -torch.inf)
        self._by_position = (cos, sin, later)
        weights = {name: tensor.detach().clone() for name, tensor in policy.named_parameters()}
        self.embedding = weights["model.embed_tokens.weight"]
        self.head = self.embedding * weights["model.norm.weight"] / temperature
        self.layers = [self._fold(weights, f"model.layers.{index}.") for index in range(shape.num_hidden_layers)]

    def _fold(self, weights: dict[str, Tensor], prefix: str) -> _Layer:
        folded = []
        for kind in ("weight", "bias"):
            q, k, v = (weights[f"{prefix}self_attn.{name}_proj.{kind}"] for name in "qkv")
            turned = torch.cat([q * self.head_dim**-0.5, k])
            folded.append(torch.cat([turned, self._half_turn(turned), v]))
        gate_up = torch.cat([weights[f"{prefix}mlp.{name}_proj.weight"] for name in ("gate", "up")])
        return _Layer(
            project=folded[0] * weights[f"{prefix}input_layernorm.weight"],
            project_bias=folded[1],
            mix=weights[f"{prefix}self_attn.o_proj.weight"],
            gate_up=gate_up * weights[f"{prefix}post_attention_layernorm.weight"],
            down=weights[f"{prefix}mlp.down_proj.weight"],
        )

    def _half_turn(self, rows: Tensor) -> Tensor:
        """R of the `head_dim` rows of every head: (first half, second half) -> (-second, first)."""
        first, second = rows.unflatten(0, (-1, 2, self.head_dim // 2)).unbind(1)
        return torch.stack([-second, first], 1).flatten(0, 2)

    def scores(self, tokens: Tensor, position: Tensor, cache: RowCache) -> Tensor:
        """Read a token into each of the cache's first rows; logits / temperature `[rows, vocab]` of what follows.

        `tokens` and `position` are int64 `[rows]`.
        """
        hidden = self._run(tokens[:, None], position[:, None], cache, None, self.layers)
        return F.linear(self._norm(hidden[:, 0]), self.head)

    def read(self, tokens: Tensor, start: Tensor, cache: RowCache, rows: Tensor | None = None) -> None:
        """Put `tokens` int64 `[n, length]` into `rows` of the cache (int64 `[n]`, default the first n).

        Row i's tokens go to the positions from `start[i]` on (int64 `[n]`). A token sees what the cache holds of its
        row at positions up to its own. Padding may reach beyond the last column: it falls on it.
        """
        position = (start[:, None] + torch.arange(tokens.shape[1])).clamp(max=cache.columns - 1)
        self._run(tokens, position, cache, rows, self.layers[:-1])

    def _run(
        self, tokens: Tensor, position: Tensor, cache: RowCache, rows: Tensor | None, whole: list[_Layer]
    ) -> Tensor:
        """Hidden states `[n, length, hidden_size]` behind the layers `whole`; a further one fills its cache only."""
        count, length = tokens.shape
        flat = position.flatten()
        seen = int(flat.max()) + 1
        cos, sin, later = (table.index_select(0, flat).view(count, length, 1, -1) for table in self._by_position)
        later = later[..., :seen].view(count, 1, 1, length, seen)
        row = torch.arange(count) if rows is None else rows
        head = row[:, None, None] * self.kv_heads + torch.arange(self.kv_heads)
        slot = (head * cache.columns + position[:, :, None]).flatten()
        turning = (self.group + 1) * self.kv_heads
        x = self.embedding[tokens]
        for index, layer in enumerate(self.layers[: len(whole) + 1]):
            mixed = F.linear(self._norm(x), layer.project, layer.project_bias).view(count, length, -1, self.head_dim)
            plain, turned, v = mixed.split([turning, turning, self.kv_heads], dim=2)
            q, k = torch.addcmul(plain * cos, turned, sin).split([turning - self.kv_heads, self.kv_heads], dim=2)
            keys, values = cache.keys[index], cache.values[index]
            keys.view(-1, self.head_dim).index_copy_(0, slot, k.reshape(-1, self.head_dim))
            values.view(-1, self.head_dim).index_copy_(0, slot, v.reshape(-1, self.head_dim))
            if index == len(whole):
                break
            keys, values = (t[:count, :, :seen] if rows is None else t[rows, :, :seen] for t in (keys, values))
            x = x + F.linear(self._attend(q, keys, values, later), layer.mix)
            gate, up = F.linear(self._norm(x), layer.gate_up).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, layer.down)
        return x

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, later: Tensor) -> Tensor:
        """`q` `[n, length, heads, head_dim]` on `[n, kv_heads, seen, head_dim]` -> `[n, length, heads * head_dim]`.

        The query heads that share a key head are further queries of one product.
        """
        rows, length = q.shape[:2]
        kv, group, width = self.kv_heads, self.group, self.head_dim
        q = q.view(rows, length, kv, group, width).permute(0, 2, 3, 1, 4).reshape(rows, kv, group * length, width)
        weights = ((q @ keys.transpose(2, 3)).view(rows, kv, group, length, -1) + later).softmax(dim=-1)
        mixed = (weights.view(rows, kv, group * length, -1) @ values).view(rows, kv, group, length, width)
        return mixed.permute(0, 3, 1, 2, 4).reshape(rows, length, -1)

    def _norm(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], eps=self.eps)
