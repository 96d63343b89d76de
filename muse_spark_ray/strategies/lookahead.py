"""Lookahead: every k updates, go back part of the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from muse_spark_ray.strategy import Card, Context, Stage, Step, Strategy, StrategyConfig, Trait, knob


@torch.no_grad()
def synchronise(slow: list[Tensor], fast: list[Tensor], *, alpha: float) -> None:
    """Move the slow weights towards the fast ones and put the fast ones there.

    Args:
        slow: Slow weights, changed in place.
        fast: The model's parameters, changed in place.
        alpha: Part of the way, in (0, 1].

    Source: Zhang et al. 2019, Lookahead Optimizer: k steps forward, 1 step back, algorithm 1.
    """
    torch._foreach_lerp_(slow, fast, alpha)
    torch._foreach_copy_(fast, slow)


class Lookahead(Strategy):
    """Every k updates, set the weights back between where they were then and where they are now."""

    stage = Stage.UPDATE
    refuses = frozenset({Trait.CHANGING_SHAPES, Trait.WEIGHTS_APART})
    card = Card(
        saves="the tuning of the learning rate; the variance of large ones",
        costs="one more copy of the weights; one pass over them every k updates",
        pays="high learning rates, small batches",
        hurts="short trainings with a small rate, which it makes slower",
        source="Zhang et al. 2019, algorithm 1",
    )

    class Config(StrategyConfig):
        """Settings of lookahead."""

        every: int = knob(5, ge=1, search=(3, 10), doc="updates between two steps of the slow weights (k)")
        alpha: float = knob(0.5, gt=0, le=1, search=(0.3, 0.8), doc="part of the way that the slow weights go")

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__(config, context)
        self._slow: list[Tensor] = []
        self._updates = 0

    def prepare_model(self, model: nn.Module) -> nn.Module:
        self._slow = [parameter.detach().clone() for parameter in model.parameters()]
        return model

    def after_update(self, model: nn.Module, step: Step) -> None:
        self._updates += 1
        if self._updates % self.config.every == 0:
            synchronise(self._slow, list(model.parameters()), alpha=self.config.alpha)

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self._updates, "slow": [weights.clone() for weights in self._slow]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._updates = int(state["updates"])
        for own, saved in zip(self._slow, state["slow"], strict=True):
            own.copy_(saved)
