"""The per-token columns that travel with a trajectory from the rollout server to the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FIELD = "estr_columns"
"""Where a `TokenColumns` lies in verl's `extra_fields`."""
OUTSIDE = -1
"""Weight version of a token that no policy generated."""


class MissingColumns(RuntimeError):
    """The rollout server did not return entropy or version, or not one of each per token."""


@dataclass(frozen=True)
class TokenColumns:
    """Entropy (float32, nats) and weight version (int64) of consecutive tokens, both [tokens].

    An object of its own, not two lists: verl turns the lists of a batch into one array where their lengths agree.

    Raises:
        MissingColumns: the lengths differ.
    """

    entropy: np.ndarray
    weight_version: np.ndarray

    def __post_init__(self) -> None:
        if self.entropy.shape != self.weight_version.shape or self.entropy.ndim != 1:
            raise MissingColumns(
                f"entropy has shape {self.entropy.shape}, weight_version {self.weight_version.shape}; both need [tokens]"
            )

    @classmethod
    def of(cls, entropy: Sequence[float], weight_version: Sequence[int]) -> TokenColumns:
        return cls(np.asarray(entropy, np.float32), np.asarray(weight_version, np.int64))

    def __len__(self) -> int:
        return len(self.entropy)

    def extend(self, more: TokenColumns) -> TokenColumns:
        return TokenColumns(
            np.concatenate([self.entropy, more.entropy]), np.concatenate([self.weight_version, more.weight_version])
        )

    def first(self, tokens: int) -> TokenColumns:
        return TokenColumns(self.entropy[:tokens], self.weight_version[:tokens])


def outside(tokens: int) -> TokenColumns:
    """Columns of tokens that no policy generated: tool output, boundaries of turns."""
    return TokenColumns(np.full(tokens, np.nan, np.float32), np.full(tokens, OUTSIDE, np.int64))
