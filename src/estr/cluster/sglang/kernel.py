"""The same entropy in one pass over the logits, for CUDA; with TRITON_INTERPRET=1 it runs on a CPU, for its test.

With x = z / T, m = max x, Z = sum e^(x - m) and S = sum (x - m) e^(x - m): H = log Z - S / Z. Z and S are kept for the
largest x so far and scaled when a larger one comes.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


@triton.jit
def _row_entropy(  # type: ignore[no-untyped-def]
    logits,
    temperatures,
    entropy,
    vocabulary,
    stride,
    BLOCK: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0)
    inverse = 1.0 / tl.load(temperatures + row)
    largest = -float("inf")
    total = 0.0
    moment = 0.0
    for start in range(0, vocabulary, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < vocabulary
        value = tl.load(logits + row.to(tl.int64) * stride + column, mask=inside, other=-float("inf"))
        value = value.to(tl.float32) * inverse
        new = tl.maximum(largest, tl.max(value, 0))
        # all -inf so far: any finite reference does, every weight below is 0
        reference = tl.where(new == -float("inf"), 0.0, new)
        difference = value - reference
        weight = tl.exp(difference)
        shift = tl.where(largest == -float("inf"), 0.0, largest - reference)
        scale = tl.where(largest == -float("inf"), 0.0, tl.exp(shift))
        moment = scale * (moment + total * shift) + tl.sum(tl.where(weight > 0, difference * weight, 0.0), 0)
        total = total * scale + tl.sum(weight, 0)
        largest = new
    tl.store(entropy + row, tl.log(total) - moment / total)


def fused_row_entropy(logits: Tensor, temperatures: Tensor) -> Tensor:
    """As `row_entropy`; a row of -inf only gives NaN."""
    entropy = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    scales = temperatures.reshape(-1).float().contiguous()
    _row_entropy[(len(logits),)](logits, scales, entropy, logits.shape[1], logits.stride(0), BLOCK=BLOCK)
    return entropy
