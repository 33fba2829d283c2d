"""Entropy of each row of a batch of logits at its own temperature (Eq. 8): a fused kernel on CUDA, torch elsewhere."""

import torch
from torch import Tensor

from estr.algorithm import entropy_from_logits


def row_entropy(logits: Tensor, temperatures: Tensor) -> Tensor:
    """H of softmax(logits / temperature) per row, in nats.

    Args:
        logits: float [batch, vocabulary], -inf allowed; not changed.
        temperatures: float [batch, 1] or [batch], > 0.

    Returns:
        float32 [batch], in memory of its own.
    """
    if logits.is_cuda:
        from estr.cluster.sglang.kernel import fused_row_entropy

        return fused_row_entropy(logits, temperatures)
    return entropy_from_logits(logits.float() / temperatures.reshape(-1, 1), 1.0).to(torch.float32)
