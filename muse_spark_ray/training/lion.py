"""Lion: steps of one size, in the direction of a momentum's sign."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


class Lion(torch.optim.Optimizer):
    """Move each weight by the rate, in the direction of the sign of a mean of gradients.

    One buffer a parameter, half of Adam's. Rates are about a tenth of AdamW's, weight decay ten times as large.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate.
        betas: Weight of the momentum in the direction of the step, and in its own update.
        weight_decay: Decoupled, times the rate.

    Source: Chen et al. 2023, Symbolic Discovery of Optimization Algorithms, algorithm 2.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the weights; a closure is called first, for new gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            weights = [p for p in group["params"] if p.grad is not None]
            if weights:
                self._step_group(group, weights)
        return loss

    def _step_group(self, group: dict[str, Any], weights: list[torch.Tensor]) -> None:
        first, second = group["betas"]
        gradients = [p.grad for p in weights if p.grad is not None]
        means = [self._mean(p) for p in weights]
        steps = torch._foreach_lerp(means, gradients, 1.0 - first)
        torch._foreach_sign_(steps)
        if group["weight_decay"]:
            torch._foreach_mul_(weights, 1.0 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(weights, steps, alpha=-group["lr"])
        torch._foreach_lerp_(means, gradients, 1.0 - second)

    def _mean(self, parameter: torch.Tensor) -> torch.Tensor:
        state = self.state[parameter]
        if "mean" not in state:
            state["mean"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        mean: torch.Tensor = state["mean"]
        return mean
