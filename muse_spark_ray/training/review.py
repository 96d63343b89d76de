"""A look at all training samples through a model: for scores, teachers and reports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from muse_spark_ray.data import Source
from muse_spark_ray.strategy import Batch
from muse_spark_ray.training.devices import to_device
from muse_spark_ray.training.distributed import World
from muse_spark_ray.training.objective import Criterion, can_be_per_sample, per_sample
from muse_spark_ray.training.precision import Precision

Reviewed = tuple[Batch, Any, Tensor | None]


class Review:
    """Passes this rank's share of the training samples through a model in eval mode, without gradients.

    Args:
        source: Its order must be the trainer's.
        criterion: Asked for one loss a sample, if it can tell.
        precision: Autocast as in training.
        world: This rank among its peers.
    """

    def __init__(self, source: Source, criterion: Criterion, precision: Precision, world: World) -> None:
        self._source = source
        self._criterion = per_sample(criterion) if can_be_per_sample(criterion) else None
        self._precision = precision
        self._world = world

    def __call__(self, model: nn.Module) -> Iterator[Reviewed]:
        """Yield (batch, outputs, losses [B] float32 or None) in the stored order; modes of the model come back."""
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            for raw in self._source.read():
                yield self._one(model, to_device(raw, self._world.device))
        finally:
            for module, was_training in modes:
                module.training = was_training

    @torch.no_grad()
    def _one(self, model: nn.Module, batch: Batch) -> Reviewed:
        with self._precision.autocast():
            outputs = model(batch.inputs)
            losses = None if self._criterion is None else self._criterion(outputs, batch.targets).float()
        return batch, outputs, losses if losses is None or losses.ndim <= 1 else losses.flatten(1).mean(1)
