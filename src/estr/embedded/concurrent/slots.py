"""A continuous batch: as many trajectories at once as there are slots, each at its own length.

The rows in use are the first `active` ones. Every step reads the last token of each of them and samples the next. So a
refilled slot, a dialogue behind a tool's output and a trajectory that goes on under new weights all start alike: what
stands before their last token is in the cache.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from estr.embedded.concurrent.folded import FoldedPolicy, RowCache
from estr.embedded.policy import Policy


@dataclass(frozen=True)
class Prompts:
    """Prompts that the policy has read: `tokens` int64 `[n, longest]` right-padded, `lengths` int64 `[n]`."""

    tokens: Tensor
    lengths: Tensor
    cache: RowCache


@dataclass(frozen=True)
class Response:
    """What stands behind a row's prompt, each `[length]`: `tokens`, `logprob`, `entropy`, `version`.

    Log-prob and entropy are in nats at the sampling temperature, the version is that of the weights that sampled the
    token. Tool output has version -1, log-prob and entropy 0.
    """

    tokens: NDArray[np.int64]
    logprob: NDArray[np.float32]
    entropy: NDArray[np.float32]
    version: NDArray[np.int64]


class SlotSampler:
    """Samples with a copy of the weights it was last given; prompts have at most `prompt_length` tokens.

    A response has at most `max_tokens`, tool output included. Who owns the sampler decides what a row that ends a turn
    does: it goes on (`append`), makes place for another (`place`), or leaves its slot empty (`drop`).
    """

    def __init__(
        self,
        policy: Policy,
        version: int,
        *,
        slots: int,
        prompt_length: int,
        max_tokens: int,
        end_id: int,
        pad_id: int,
        temperature: float,
        generator: torch.Generator,
    ) -> None:
        self.slots, self.max_tokens, self.end_id, self.pad_id = slots, max_tokens, end_id, pad_id
        self.temperature, self.generator = temperature, generator
        self.version, self.weights = version, FoldedPolicy(policy, temperature)
        self.active = 0
        columns = prompt_length + max_tokens
        self._shape = policy.shape
        self._cache = RowCache.empty(policy.shape, slots, columns)
        self._tokens = torch.full((slots, columns), pad_id)
        self._version = torch.full((slots, columns), -1)
        self._logprob, self._entropy = torch.zeros(slots, columns), torch.zeros(slots, columns)
        self._prompt_length, self._length = torch.zeros(2, slots, dtype=torch.int64)
        self._first_cell = torch.arange(slots) * columns
        self._rows = (self._tokens, self._version, self._logprob, self._entropy, self._prompt_length, self._length)

    @torch.inference_mode()
    def read_prompts(self, prompts: Sequence[Sequence[int]]) -> Prompts:
        """Read prompts under the present weights, to be put into slots as often as wanted."""
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        longest = int(lengths.max())
        tokens = torch.tensor([[*prompt, *[self.pad_id] * (longest - len(prompt))] for prompt in prompts])
        cache = RowCache.empty(self._shape, len(prompts), longest)
        self.weights.read(tokens, torch.zeros_like(lengths), cache)
        return Prompts(tokens, lengths, cache)

    @torch.inference_mode()
    def place(self, rows: Sequence[int], prompts: Prompts, which: Sequence[int]) -> None:
        """Start row `rows[i]` over with prompt `which[i]`; rows are those in use, or the next ones behind them."""
        self.active = max(self.active, max(rows) + 1)
        self._put_prompts(torch.tensor(rows), prompts, torch.tensor(which))

    def _put_prompts(self, row: Tensor, prompts: Prompts, source: Tensor) -> None:
        self._cache.put(row, prompts.cache.rows(source))
        self._tokens[row, : prompts.tokens.shape[1]] = prompts.tokens[source]
        self._prompt_length[row] = self._length[row] = prompts.lengths[source]
        self._version[row] = -1
        self._logprob[row] = self._entropy[row] = 0.0

    @torch.inference_mode()
    def step(self) -> list[int]:
        """Sample a token in every row; returns the rows that wrote the end of a turn or reached the token limit."""
        length = self._length[: self.active]
        last = self._first_cell[: self.active] + length - 1
        scores = self.weights.scores(self._tokens.view(-1)[last], length - 1, self._cache)
        log_probability = scores.log_softmax(-1)
        probability = log_probability.exp()
        # by inversion: one random number a row
        cumulative = probability.cumsum(-1, dtype=torch.float64)
        uniform = torch.rand(self.active, 1, dtype=torch.float64, generator=self.generator) * cumulative[:, -1:]
        chosen = torch.searchsorted(cumulative, uniform, right=True).clamp_(max=scores.shape[1] - 1)
        cell = last + 1
        self._tokens.view(-1).index_copy_(0, cell, chosen[:, 0])
        self._logprob.view(-1).index_copy_(0, cell, log_probability.gather(-1, chosen)[:, 0])
        self._entropy.view(-1).index_copy_(0, cell, -(probability * log_probability).sum(-1))
        self._version.view(-1).index_fill_(0, cell, self.version)
        length += 1
        over = length - self._prompt_length[: self.active] >= self.max_tokens
        ended: list[int] = ((chosen[:, 0] == self.end_id) | over).nonzero()[:, 0].tolist()
        return ended

    @torch.inference_mode()
    def responses(self, rows: Sequence[int]) -> list[Response]:
        """What the rows hold so far."""
        row = torch.tensor(rows)
        columns = [table[row].numpy() for table in (self._tokens, self._logprob, self._entropy, self._version)]
        bounds = zip(self._prompt_length[row].tolist(), self._length[row].tolist(), strict=True)
        return [
            Response(*(column[index, start:stop] for column in columns)) for index, (start, stop) in enumerate(bounds)
        ]

    @torch.inference_mode()
    def append(self, outputs: Mapping[int, Sequence[int]]) -> None:
        """Write a tool's output behind rows that have just ended a turn; it leaves room for a token at least."""
        row = torch.tensor(list(outputs))
        longest = max(map(len, outputs.values()))
        written = torch.tensor([[*output, *[self.pad_id] * (longest - len(output))] for output in outputs.values()])
        count = torch.tensor([len(output) for output in outputs.values()])
        start = self._length[row]
        real = torch.arange(longest) < count[:, None]
        cell = (self._first_cell[row] + start)[:, None] + torch.arange(longest)
        self._tokens.view(-1)[cell[real]] = written[real]
        self._length[row] = start + count
        before = torch.cat([torch.full((len(row), 1), self.end_id), written[:, :-1]], dim=1)
        self.weights.read(before, start - 1, self._cache, row)

    @torch.inference_mode()
    def drop(self, rows: Sequence[int]) -> list[tuple[int, int]]:
        """Take rows out of use. The last ones in use move into their places; returns these moves (from, to)."""
        gone, self.active = set(rows), self.active - len(rows)
        moved = [row for row in range(self.active, self.active + len(rows)) if row not in gone]
        holes = [row for row in rows if row < self.active]
        if moved:
            source, target = torch.tensor(moved), torch.tensor(holes)
            self._cache.put(target, self._cache.rows(source))
            for table in self._rows:
                table[target] = table[source]
        return list(zip(moved, holes, strict=True))

    def load(self, policy: Policy, version: int) -> None:
        """Sample with these weights from the next step on; the cache stays as it is."""
        self.version, self.weights = version, FoldedPolicy(policy, self.temperature)

    @torch.inference_mode()
    def retract(self, prompts: Prompts, which: Sequence[int]) -> None:
        """Compute the cache of every row in use again under the present weights; row i has prompt `which[i]`."""
        if self.active == 0:
            return
        self._cache.put(torch.arange(self.active), prompts.cache.rows(torch.tensor(which)))
        start = self._prompt_length[: self.active]
        longest = int((self._length[: self.active] - start).max()) - 1
        if longest > 0:
            column = (start[:, None] + torch.arange(longest)).clamp(max=self._cache.columns - 1)
            self.weights.read(self._tokens[: self.active].gather(1, column), start, self._cache)

    @property
    def written(self) -> list[int]:
        """Tokens behind the prompt, of each row in use."""
        written: list[int] = (self._length - self._prompt_length)[: self.active].tolist()
        return written
