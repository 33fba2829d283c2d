"""torch's AdamW without the class around it, whose first use imports torch's compiler: three seconds per process."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim.adamw import adamw


class AdamW:
    """Bit for bit `torch.optim.AdamW` with its default betas and epsilon, at a constant learning rate.

    `state` holds `step`, `exp_avg` and `exp_avg_sq` of every parameter that has had a gradient, as torch's does.
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float, weight_decay: float) -> None:
        self.parameters = list(parameters)
        self.lr, self.weight_decay = lr, weight_decay
        self.state: dict[Tensor, dict[str, Tensor]] = {}

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        pairs = [(parameter, parameter.grad) for parameter in self.parameters if parameter.grad is not None]
        for parameter, _ in pairs:
            if parameter not in self.state:
                self.state[parameter] = {
                    "step": torch.tensor(0.0),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
        states = [self.state[parameter] for parameter, _ in pairs]
        adamw(
            [parameter for parameter, _ in pairs],
            [gradient for _, gradient in pairs],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self.lr,
            weight_decay=self.weight_decay,
            eps=1e-8,
            maximize=False,
        )
