"""Mixup: train on convex combinations of two samples and of their targets."""

from __future__ import annotations

import torch

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.strategy import Batch, Card, Stage, Step, Strategy, StrategyConfig, Trait, knob, mix


class Mixup(Strategy):
    """Train on convex combinations of two samples and of their targets."""

    stage = Stage.BATCH
    needs = frozenset({Trait.CLASS_TARGETS})
    makes = frozenset({Trait.CHANGED_INPUTS, Trait.SOFT_TARGETS})
    card = Card(
        saves="accuracy that would take more data",
        costs="one pass over the batch in memory",
        pays="long trainings that over-fit, label noise",
        hurts="short trainings and small networks, which under-fit already",
        source="Zhang et al. 2018, mixup",
    )

    class Config(StrategyConfig):
        """Settings of mixup."""

        alpha: float = knob(
            0.2, gt=0, le=10, search=(0.05, 1.0, "log"), doc="both parameters of the Beta distribution of the shares"
        )

    def transform_batch(self, batch: Batch, step: Step) -> Batch:
        inputs = batch.inputs
        if not (isinstance(inputs, torch.Tensor) and inputs.is_floating_point()):
            raise ConfigError("strategies.mixup mixes float tensors, which this task's inputs are not. Switch it off.")
        share = torch.distributions.Beta(self.config.alpha, self.config.alpha).sample().to(inputs.device)
        partners = torch.randperm(batch.size).to(inputs.device)
        mixed = inputs.lerp(inputs[partners], (1.0 - share).to(inputs.dtype))
        return mix(batch, partners, share, mixed, classes=self.context.classes)
