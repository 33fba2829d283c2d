"""Bounds of a distribution's entropy from its k largest log-probabilities."""

import numpy as np

SUM_TOLERANCE = 0.02  # log-probs in bfloat16 are off by up to 2^-8 of their size


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
    Rows with NaN give NaN. Log-probs that were rounded (`rounding`) are known within an interval; the bounds are then
    those over all of it, and no longer sharp.

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
    error = rounding(logprobs)
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
    probabilities = np.exp(logprobs)
    known_error = (probabilities * np.expm1(error)).sum(1)
    smallest = smallest + error.max(1)  # at most
    room = (vocabulary - k) * np.exp(smallest)
    least, most = (np.minimum(np.clip(1 - known + sign * known_error, 0, None), room) for sign in (-1, 1))
    head = _entropy(logprobs).sum(1)
    # |d(-p log p)| <= |1 + log p| p |d log p|, at its largest within the interval
    slope = np.abs(1 + np.where(np.isfinite(logprobs), logprobs, 0)) + error
    head_error = (probabilities * slope * np.exp(error) * error).sum(1)
    even = np.clip((vocabulary - k) / np.e, least, most)  # where the upper bound is largest
    with np.errstate(divide="ignore", invalid="ignore"):
        kink = np.where(most > 0, np.floor(most / np.exp(smallest)) * np.exp(smallest), most).clip(least, most)
        lower = np.minimum.reduce([_least_entropy(tail, smallest) for tail in (least, kink, most)])
        upper = np.where(even > 0, even * np.log((vocabulary - k) / even), even)
    lower, upper = np.maximum(head - head_error + lower, 0), head + head_error + upper
    return lower, np.maximum(lower, upper)


def rounding(logprobs: np.ndarray) -> np.ndarray:
    """How far each log-prob may be from what was rounded to it, as the coarsest kind of number shows that holds all.

    These are bfloat16, float16, one to four decimals, and float32; anything finer counts as exact.
    """
    values = np.where(np.isfinite(logprobs), logprobs, 0).astype(np.float64)
    single = values.astype(np.float32)
    exact = bool((single == values).all())
    if exact and not (single.view(np.uint32) & 0xFFFF).any():
        return np.abs(values) * 2.0**-8
    for decimals in range(1, 5):
        scaled = values * 10**decimals
        if np.allclose(scaled, np.rint(scaled), rtol=0, atol=1e-3):
            return np.full_like(values, 0.5 * 10.0**-decimals)
    if not exact:
        return np.zeros_like(values)
    with np.errstate(over="ignore"):
        half = (values.astype(np.float16) == values).all()
    return np.abs(values) * (2.0**-11 if half else 2.0**-24)


def _least_entropy(tail: np.ndarray, largest: np.ndarray) -> np.ndarray:
    """Of a mass `tail` in tokens of at most exp(largest) each."""
    full = np.where(tail > 0, np.floor(tail / np.exp(largest)), tail)
    rest = np.log(np.clip(tail - full * np.exp(largest), 0, None))
    least: np.ndarray = np.where(full > 0, full * _entropy(largest), full) + _entropy(rest)
    return least


def _entropy(logprobs: np.ndarray) -> np.ndarray:
    """-p log p, 0 at p = 0."""
    terms: np.ndarray = -np.exp(logprobs) * np.where(logprobs == -np.inf, 0.0, logprobs)
    return terms


def _check(wrong: np.ndarray, reason: str, values: np.ndarray) -> None:
    if wrong.any():
        token = int(wrong.argmax())
        raise NotTopK(token, reason.format(values[token]))
