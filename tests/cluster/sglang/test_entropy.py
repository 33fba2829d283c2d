"""The fused kernel and its torch form against float64."""

import pytest
import torch

from estr.cluster.sglang.entropy import row_entropy
from estr.cluster.sglang.kernel import fused_row_entropy


def cases() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    spread = torch.randn(6, 9_001) * torch.tensor([0.01, 0.5, 1, 3, 10, 40])[:, None]
    masked = spread.clone()
    masked[:, ::3] = -torch.inf
    masked[2, :5_000] = -torch.inf  # a whole block
    one = torch.full((2, 4_100), -torch.inf)
    one[0, 4_099], one[1, 0] = 3.0, -7.0
    return {"spread": spread, "masked": masked, "one token": one, "half": spread.to(torch.bfloat16)}


@pytest.mark.parametrize("name", cases())
@pytest.mark.parametrize("entropy", [fused_row_entropy, row_entropy])
def test_equals_float64(name: str, entropy) -> None:
    logits = cases()[name]
    before = logits.clone()
    temperatures = torch.linspace(0.5, 1.5, len(logits))[:, None]
    scaled = logits.double() / temperatures
    p = scaled.softmax(-1)
    expected = -torch.where(p > 0, p * scaled.log_softmax(-1), 0).sum(-1)
    found = entropy(logits, temperatures)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, atol=3e-6, rtol=1e-6)
    assert torch.equal(logits, before)
