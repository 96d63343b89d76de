"""SAM: step by the gradient at the worst point nearby, towards flat minima."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from muse_spark_ray.strategy import Card, Context, Stage, Strategy, StrategyConfig, Trait, knob


@torch.no_grad()
def ascent(parameters: list[nn.Parameter], *, rho: float, adaptive: bool) -> list[Tensor]:
    """Return the step to the worst point nearby: rho * g / |g|, or rho * w^2 g / | |w| g | if adaptive.

    Args:
        parameters: With gradients.
        rho: Length of the step, above 0.
        adaptive: Measure length relative to each weight's size.

    Returns:
        One tensor a parameter.

    Source: Foret et al. 2021, equation 2; Kwon et al. 2021, equation 5 (adaptive).
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    scaled = [p.abs() * g for p, g in zip(parameters, gradients, strict=True)] if adaptive else gradients
    length = nn.utils.get_total_norm(scaled)
    steps = [p.abs() * g for p, g in zip(parameters, scaled, strict=True)] if adaptive else gradients
    return [step * (rho / (length + 1e-12)) for step in steps]


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Let passes through BatchNorm layers leave their running statistics alone."""
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    before = [(layer, layer.momentum, layer.num_batches_tracked) for layer in layers]
    for layer in layers:
        layer.momentum = 0.0
    try:
        yield
    finally:
        for layer, momentum, _ in before:
            layer.momentum = momentum
            if layer.num_batches_tracked is not None:
                layer.num_batches_tracked -= 1


class SharpnessAware(torch.optim.Optimizer):
    """An optimizer that asks for the gradients at the worst point nearby before it lets the inner one step.

    Groups and state are the inner one's own, so that schedules and checkpoints see no difference. `step` takes a
    closure that computes the gradients of the same window at the weights as they are.
    """

    repeats_window = True

    def __init__(self, inner: torch.optim.Optimizer, config: SharpnessAwareMinimisation.Config) -> None:
        self.inner = inner
        self.model: nn.Module = nn.Module()
        self._config = config
        self._steps = 0

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.inner.state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Step the inner optimizer by the gradient at the worst point nearby."""
        self._steps += 1
        if closure is not None and (self._steps - 1) % self._config.every == 0:
            parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
            before = [p.detach().clone() for p in parameters]
            for parameter, away in zip(
                parameters, ascent(parameters, rho=self._config.rho, adaptive=self._config.adaptive), strict=True
            ):
                parameter.add_(away)
            with torch.enable_grad(), frozen_statistics(self.model):
                closure()
            torch._foreach_copy_(parameters, before)
        self.inner.step()

    def train(self) -> None:
        """Pass on to a schedule-free inner optimizer that training goes on."""
        getattr(self.inner, "train", lambda: None)()

    def eval(self) -> None:
        """Pass on to a schedule-free inner optimizer that the weights are to be used."""
        getattr(self.inner, "eval", lambda: None)()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)


class SharpnessAwareMinimisation(Strategy):
    """Step by the gradient at the worst point nearby, so that training ends in a flat minimum.

    Each such update passes the window forward and backward twice; with `every: k` only each k-th one does.
    """

    stage = Stage.UPDATE
    refuses = frozenset({Trait.LOSS_SCALING})
    card = Card(
        saves="epochs to a given accuracy where the test error is far above the training error",
        costs="a second forward and backward pass an update; a third of that with every: 3",
        pays="small sets, long trainings, models that overfit",
        hurts="tight budgets: at equal cost it must beat twice the epochs",
        source="Foret et al. 2021, algorithm 1; Du et al. 2022 (every k-th update)",
    )

    class Config(StrategyConfig):
        """Settings of SAM."""

        rho: float = knob(0.05, gt=0, le=10, search=(0.01, 0.5, "log"), doc="distance to the worst point nearby")
        adaptive: bool = knob(False, search=[False, True], doc="measure the distance relative to each weight (ASAM)")
        every: int = knob(1, ge=1, search=(1, 5), doc="updates from one with a second pass to the next")

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__(config, context)
        self._model: nn.Module = nn.Module()
        self._optimizer: SharpnessAware | None = None

    def prepare_model(self, model: nn.Module) -> nn.Module:
        self._model = model
        return model

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        self._optimizer = SharpnessAware(optimizer, self.config)
        self._optimizer.model = self._model
        return self._optimizer

    def state_dict(self) -> dict[str, Any]:
        return {"steps": 0 if self._optimizer is None else self._optimizer._steps}

    def load_state_dict(self, state: Any) -> None:
        if self._optimizer is not None:
            self._optimizer._steps = int(state["steps"])
