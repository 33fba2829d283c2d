"""The per-token columns that travel with a trajectory from the rollout server to the loss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

FIELD = "estr_columns"
"""Where a `TokenColumns` lies in verl's `extra_fields`."""
OUTSIDE = -1
"""Weight version of a token that no policy generated."""


class MissingColumns(RuntimeError):
    """The rollout server did not return entropy or version, or not one of each per token."""


class TokenColumns:
    """Entropy (float32, nats) and weight version (int64) of consecutive tokens, both [tokens].

    Neither two lists, which verl would turn into one array where the lengths of a batch agree, nor a dataclass, which
    its queue would turn into a dict: an object of a class that both leave alone.

    Raises:
        MissingColumns: the lengths differ.
    """

    def __init__(self, entropy: np.ndarray, weight_version: np.ndarray) -> None:
        if entropy.shape != weight_version.shape or entropy.ndim != 1:
            raise MissingColumns(
                f"entropy has shape {entropy.shape}, weight_version {weight_version.shape}; both need [tokens]"
            )
        self.entropy, self.weight_version = entropy, weight_version

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
