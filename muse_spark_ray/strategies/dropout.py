"""Dropout: set the rate of all dropout layers, for all of the training or for a part of it."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.strategy import Batch, Card, Stage, Step, Strategy, StrategyConfig, knob


class Dropout(Strategy):
    """Set the rate of the model's dropout layers, whatever it was built with."""

    stage = Stage.UPDATE
    card = Card(
        saves="a search over the model's own argument; epochs, if only the first or the last ones have dropout",
        costs="nothing",
        pays="models that overfit; with `last_epoch`, ones that underfit (early dropout)",
        hurts="networks with BatchNorm after the dropout",
        source="Srivastava et al. 2014; Liu et al. 2023, Dropout Reduces Underfitting (early and late)",
    )

    class Config(StrategyConfig):
        """Settings of dropout."""

        rate: float = knob(0.1, ge=0, lt=1, search=(0.0, 0.5), doc="share of units that are dropped")
        first_epoch: int = knob(1, ge=1, doc="first epoch with dropout; before it there is none")
        last_epoch: int | None = knob(None, ge=1, doc="last epoch with dropout; after it there is none")

    def __init__(self, config: Any, context: Any) -> None:
        super().__init__(config, context)
        self._layers: list[_DropoutNd] = []
        self._epoch = -1

    def prepare_model(self, model: nn.Module) -> nn.Module:
        self._layers = [module for module in model.modules() if isinstance(module, _DropoutNd)]
        if not self._layers:
            raise ConfigError(
                "strategies.dropout: the model has no dropout layer whose rate could be set.",
                hint="build it with one, as in task.model.dropout: 0.1, or remove the block",
            )
        self._set(0)
        return model

    def transform_batch(self, batch: Batch, step: Step) -> Batch:
        if step.epoch != self._epoch:
            self._set(step.epoch)
        return batch

    def _set(self, epoch: int) -> None:
        c, self._epoch = self.config, epoch
        is_on = c.first_epoch <= epoch + 1 and (c.last_epoch is None or epoch + 1 <= c.last_epoch)
        for layer in self._layers:
            layer.p = c.rate if is_on else 0.0
