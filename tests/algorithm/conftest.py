from collections.abc import Callable

import pytest
import torch
from hypothesis import settings

from estr.algorithm import TokenSignals

# the same examples on every run, and no deadline: a first call into torch can take a second
settings.register_profile("algorithm", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("algorithm")


@pytest.fixture(scope="session")
def make_signals() -> Callable[..., TokenSignals]:
    """Signals with given log-ratios ([batch, length] nested lists); everything else has a default."""

    def make(
        delta,
        entropy=0.5,
        advantage=1.0,
        behavior=-1.0,
        mask=True,
        version=0,
        dtype=torch.float64,
    ) -> TokenSignals:
        delta = torch.as_tensor(delta, dtype=dtype)
        behavior = torch.as_tensor(behavior, dtype=dtype).expand_as(delta)
        return TokenSignals(
            behavior_logprob=behavior,
            target_logprob=(behavior + delta).clone(),
            entropy=torch.as_tensor(entropy, dtype=dtype).expand_as(delta),
            advantage=torch.as_tensor(advantage, dtype=dtype).expand_as(delta),
            response_mask=torch.as_tensor(mask).expand_as(delta),
            weight_version=torch.as_tensor(version).expand_as(delta),
        )

    return make


@pytest.fixture(scope="session")
def random_signals() -> Callable[..., TokenSignals]:
    """A right-padded batch with realistic spreads: log-ratios that grow with entropy plus some outliers."""

    def make(seed: int = 0, batch: int = 6, length: int = 40, dtype=torch.float64) -> TokenSignals:
        generator = torch.Generator().manual_seed(seed)

        def normal() -> torch.Tensor:
            return torch.randn(batch, length, generator=generator, dtype=torch.float64)

        def uniform(*shape: int) -> torch.Tensor:
            return torch.rand(*shape, generator=generator, dtype=torch.float64)

        entropy = 3 * uniform(batch, length) ** 3
        behavior = -(entropy + 1e-3) * uniform(batch, length) * 2 - 1e-4
        delta = 0.6 * normal() * (entropy + 0.01).sqrt() + 0.4 * normal() * (uniform(batch, length) < 0.2)
        lengths = torch.randint(1, length + 1, (batch, 1), generator=generator)
        return TokenSignals(
            behavior_logprob=behavior.to(dtype),
            target_logprob=(behavior + delta).clamp(max=-1e-6).to(dtype).requires_grad_(),
            entropy=entropy.to(dtype),
            advantage=normal().to(dtype),
            response_mask=torch.arange(length) < lengths,
            weight_version=torch.zeros(batch, length, dtype=torch.int64),
        )

    return make
