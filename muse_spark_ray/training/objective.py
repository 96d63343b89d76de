"""The criterion as the loop needs it: each micro-batch's share of its window's mean loss."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from muse_spark_ray.data import Window
from muse_spark_ray.errors import ConfigError
from muse_spark_ray.strategy import Batch, Step, StrategyStack

Criterion = Callable[[Any, Any], Tensor]


class Objective:
    """Turns a user's criterion into window shares that add up to the mean over all samples of the window.

    A criterion that averages is used as it is as long as no strategy looks at single samples and no class weighs
    more than another. Otherwise a copy with `reduction='none'` gives one loss per sample, and class weights become
    sample weights: the weight of a sample's true class multiplies its whole loss, smoothed targets included, and
    the window's mean is taken over the sum of these weights.

    Args:
        criterion: Maps (outputs, targets) to a scalar mean loss; torch losses with `reduction` work best.
        stack: The strategies that are on.
        world_size: DDP averages gradients over ranks; shares are multiplied by this so that the sum is right.
    """

    def __init__(self, criterion: Criterion, stack: StrategyStack, *, world_size: int) -> None:
        reduction = getattr(criterion, "reduction", None)
        if reduction == "sum":
            raise ConfigError(
                "criterion has reduction='sum': its loss would grow with the batch. Use reduction='mean'; "
                "windows of any size are then weighted by their samples."
            )
        self._class_weights: Tensor | None = getattr(criterion, "weight", None)
        self.weighs_classes = self._class_weights is not None
        needs_samples = stack.uses("loss") or stack.uses("transform_batch") or self.weighs_classes
        self.is_per_sample = reduction == "none" or (reduction is not None and needs_samples)
        self._criterion = _per_sample(criterion) if self.is_per_sample else criterion
        self._stack = stack
        self._world_size = world_size

    def weigh(self, window: Window) -> float:
        """Give each sample the weight of its class.

        Returns:
            The sum of this rank's weights.
        """
        if self._class_weights is not None:
            weights = self._class_weights.to(device="cpu", dtype=torch.float32)
            for batch in window.batches:
                own = weights[batch.targets.cpu()]
                batch.weights = own if batch.weights is None else own * batch.weights
        return sum(batch.weight for batch in window.batches)

    def __call__(self, outputs: Any, batch: Batch, step: Step, window_weight: float) -> Tensor:
        """Return this micro-batch's part of the window's mean loss, a scalar to call `backward` on.

        Args:
            outputs: What the model returned for the batch.
            batch: The micro-batch.
            step: Where training stands.
            window_weight: Sum of the window's sample weights over all ranks.
        """
        if not self.is_per_sample:
            loss = self._criterion(outputs, batch.targets)
            factor = batch.weight * self._world_size / window_weight
            return loss if factor == 1.0 else loss * factor
        losses = self._criterion(outputs, batch.targets).float()
        losses = self._stack.loss(losses.flatten(1).mean(1) if losses.ndim > 1 else losses, outputs, batch, step)
        total = losses.sum() if batch.weights is None else (losses * batch.weights.to(losses.device)).sum()
        return total * (self._world_size / window_weight)

    def sums(self, outputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
        """Return (sum of weighted losses, sum of weights) of an evaluation batch, as scalars on its device."""
        if not self.is_per_sample:
            count = torch.tensor(float(len(targets)), device=outputs.device)
            return self._criterion(outputs, targets) * count, count
        losses = self._criterion(outputs, targets).float()
        losses = losses.flatten(1).mean(1) if losses.ndim > 1 else losses
        weights = torch.ones_like(losses) if self._class_weights is None else self._class_weights.to(losses)[targets]
        return (losses * weights).sum(), weights.sum()


def can_be_per_sample(criterion: Criterion) -> bool:
    """Say if one loss per sample can be had from a criterion."""
    return hasattr(criterion, "reduction")


def _per_sample(criterion: Any) -> Criterion:
    own = copy.deepcopy(criterion)
    own.reduction = "none"
    if getattr(own, "weight", None) is not None:
        own.weight = None
    return own  # type: ignore[no-any-return]


def default_criterion(classes: int | None) -> nn.Module:
    """Return cross entropy for classes, mean squared error otherwise."""
    return nn.MSELoss() if classes is None else nn.CrossEntropyLoss()
