"""EMA: evaluate an exponential moving average of the weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from muse_spark_ray.strategy import Card, Context, Stage, Step, Strategy, StrategyConfig, Trait, knob


def warm_decay(decay: float, updates: int) -> float:
    """Return the decay after `updates` updates: short memory first, `decay` in the end.

    Source: the `num_updates` rule of TensorFlow's ExponentialMovingAverage, min(decay, (1 + n) / (10 + n)).
    """
    return min(decay, (1 + updates) / (10 + updates))


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module, *, decay: float) -> None:
    """Move the average's parameters towards the model's; buffers, such as BatchNorm statistics, are copied."""
    torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1.0 - decay)
    for mean, current in zip(average.buffers(), model.buffers(), strict=True):
        mean.copy_(current)


class ExponentialMovingAverage(Strategy):
    """Evaluate and keep an average of the weights over the last updates; training itself is untouched."""

    stage = Stage.AVERAGE
    refuses = frozenset({Trait.CHANGING_SHAPES, Trait.WEIGHTS_APART})
    card = Card(
        saves="the last part of a decaying schedule: the average is good earlier",
        costs="one more copy of the model; one pass over the weights an update",
        pays="noisy updates: high learning rates, small batches, short schedules",
        hurts="very short runs, where the average still holds the first weights",
        source="Polyak and Juditsky 1992; Tarvainen and Valpola 2017, section 2",
    )

    class Config(StrategyConfig):
        """Settings of the average."""

        decay: float = knob(0.99, ge=0, lt=1, search=(0.9, 0.9999), doc="weight of the old average in each update")

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__(config, context)
        self._average: nn.Module | None = None
        self._updates = 0

    def prepare_model(self, model: nn.Module) -> nn.Module:
        self._average = copy.deepcopy(model).requires_grad_(False).eval()
        return model

    def after_update(self, model: nn.Module, step: Step) -> None:
        update_average(self._shadow, model, decay=warm_decay(self.config.decay, self._updates))
        self._updates += 1

    def evaluation_model(self, model: nn.Module) -> nn.Module:
        return self._shadow

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self._updates, "average": dict(self._shadow.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._updates = int(state["updates"])
        self._shadow.load_state_dict(state["average"])

    @property
    def _shadow(self) -> nn.Module:
        if self._average is None:
            raise RuntimeError("prepare_model must run before the average is used")
        return self._average
