"""Bounds of a distribution's entropy from its k largest log-probabilities."""

import numpy as np

SUM_TOLERANCE = 0.02  # log-probs in bfloat16 are off by up to 2^-9 of their size


class NotTopK(ValueError):
    """The numbers of one token cannot be the largest log-probabilities of a distribution; `token` is its index."""

    def __init__(self, token: int, reason: str) -> None:
        super().__init__(reason)
        self.token = token


def entropy_bounds(logprobs: np.ndarray, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """Sharp lower and upper bound of H (nats) given the k largest of `vocabulary` log-probabilities.

    With H_K = -sum p log p over the k, r = 1 - sum p the mass of the tail and p_K the smallest of the k, no tail
    token has more than p_K. H is least if as many tail tokens as possible have exactly p_K, with one for the rest
    of r, and greatest if all vocabulary - k share r equally:

        H_K + n p_K log(1/p_K) + s log(1/s) <= H <= H_K + r log((vocabulary - k) / r)

    with n = floor(r / p_K) and s = r - n p_K. Both are H itself at k = vocabulary. The log-probs must be those of
    the full distribution at the sampling temperature, before any top-p or top-k; their order does not matter.
    Rows with NaN give NaN.

    Args:
        logprobs: float [tokens, k]; -inf is a probability of 0.
        vocabulary: number of tokens of the distribution, >= k.

    Returns:
        (lower, upper), float64 [tokens].

    Raises:
        NotTopK: a row sums to more than 1, or its tail cannot hold the mass that is left.
        ValueError: k is larger than the vocabulary.
    """
    k = logprobs.shape[1]
    if k > vocabulary:
        raise ValueError(f"{k} log-probs per token, but a vocabulary of {vocabulary}")
    logprobs = logprobs.astype(np.float64)
    smallest = logprobs.min(1)
    known = np.exp(logprobs).sum(1)
    room = (vocabulary - k) * np.exp(smallest)
    _check(known > 1 + SUM_TOLERANCE, "the probabilities sum to {:.3f}", known)
    _check(
        1 - known > room + SUM_TOLERANCE,
        f"a mass of {{:.3f}} is left, more than {vocabulary - k} other tokens can hold: "
        "these are not the largest log-probs, or --vocabulary is wrong",
        1 - known,
    )
    tail = np.minimum(np.clip(1 - known, 0, None), room)
    head = _entropy(logprobs).sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        full = np.where(tail > 0, np.floor(tail / np.exp(smallest)), tail)
        rest = np.log(np.clip(tail - full * np.exp(smallest), 0, None))
        lower = head + np.where(full > 0, full * _entropy(smallest), full) + _entropy(rest)
        upper = head + np.where(tail > 0, tail * np.log((vocabulary - k) / tail), tail)
    return lower, np.maximum(lower, upper)


def _entropy(logprobs: np.ndarray) -> np.ndarray:
    """-p log p, 0 at p = 0."""
    terms: np.ndarray = -np.exp(logprobs) * np.where(logprobs == -np.inf, 0.0, logprobs)
    return terms


def _check(wrong: np.ndarray, reason: str, values: np.ndarray) -> None:
    if wrong.any():
        token = int(wrong.argmax())
        raise NotTopK(token, reason.format(values[token]))
