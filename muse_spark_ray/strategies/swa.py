"""SWA: evaluate the plain mean of the weights over the later part of the training."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from muse_spark_ray.strategy import Card, Context, Stage, Step, Strategy, StrategyConfig, Trait, knob


@torch.no_grad()
def add_to_mean(mean: nn.Module, model: nn.Module, *, seen: int) -> None:
    """Take one more model into a running mean of parameters; buffers, such as BatchNorm statistics, are copied.

    Args:
        mean: Mean of `seen` models; becomes that of `seen + 1`.
        model: The model to take in.
        seen: Models so far.

    Source: Izmailov et al. 2018, Averaging Weights Leads to Wider Optima, algorithm 1.
    """
    torch._foreach_lerp_(list(mean.parameters()), list(model.parameters()), 1.0 / (seen + 1))
    for own, current in zip(mean.buffers(), model.buffers(), strict=True):
        own.copy_(current)


class StochasticWeightAveraging(Strategy):
    """Evaluate and keep the mean of the weights since a chosen epoch; training itself is untouched."""

    stage = Stage.AVERAGE
    refuses = frozenset({Trait.CHANGING_SHAPES, Trait.WEIGHTS_APART})
    card = Card(
        saves="the last part of a schedule: a constant rate and the mean end where a falling rate would",
        costs="one more copy of the model; one pass over the weights every few updates",
        pays="constant or cyclic learning rates, larger networks",
        hurts="short trainings; networks whose BatchNorm statistics drift",
        source="Izmailov et al. 2018, algorithm 1",
    )

    class Config(StrategyConfig):
        """Settings of the mean."""

        start_epoch: int = knob(5, ge=0, search=(1, 20), doc="epochs before the first weights are taken in")
        every: int = knob(10, ge=1, search=(1, 100, "log"), doc="updates between two weights that are taken in")

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__(config, context)
        self._mean: nn.Module | None = None
        self._seen = 0
        self._waits = 0

    def prepare_model(self, model: nn.Module) -> nn.Module:
        self._mean = copy.deepcopy(model).requires_grad_(False).eval()
        return model

    def after_update(self, model: nn.Module, step: Step) -> None:
        if step.epoch < self.config.start_epoch:
            return
        self._waits += 1
        if self._waits == self.config.every:
            add_to_mean(self._average, model, seen=self._seen)
            self._seen, self._waits = self._seen + 1, 0

    def evaluation_model(self, model: nn.Module) -> nn.Module:
        return self._average if self._seen else model

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self._seen, "waits": self._waits, "mean": dict(self._average.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._seen, self._waits = int(state["seen"]), int(state["waits"])
        self._average.load_state_dict(state["mean"])

    @property
    def _average(self) -> nn.Module:
        if self._mean is None:
            raise RuntimeError("prepare_model must run before the mean is used")
        return self._mean
