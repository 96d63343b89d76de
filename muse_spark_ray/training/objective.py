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
_SMALLEST_WEIGHT = 1e-12


class Objective:
    """Turns a user's criterion into window shares that add up to the mean over all samples of the window.

    A criterion that averages is used as it is as long as no strategy looks at single samples and no class weighs
    more than another. Otherwise a copy with `reduction='none'` gives one loss per sample, and class weights become
    sample weights: the weight of a sample's true class multiplies its whole loss, smoothed targets included, and
    the window's mean is taken over the sum of these weights. Where targets hold several labels a sample (tokens,
    pixels), those equal to the criterion's `ignore_index` weigh nothing, and the mean is over the others of the whole
    window, however they are spread over micro-batches and ranks.

    Args:
        criterion: Maps (outputs, targets) to a scalar mean loss; torch losses with `reduction` work best.
        stack: The strategies that are on.
        world_size: DDP averages gradients over ranks; shares are multiplied by this so that the sum is right.
        targets: [N, ...] of the training set, None if not known; they say if labels to ignore can occur.
    """

    def __init__(
        self, criterion: Criterion, stack: StrategyStack, *, world_size: int, targets: Tensor | None = None
    ) -> None:
        reduction = getattr(criterion, "reduction", None)
        if reduction == "sum":
            raise ConfigError(
                "criterion has reduction='sum': its loss would grow with the batch. Use reduction='mean'; "
                "windows of any size are then weighted by their samples."
            )
        self._class_weights: Tensor | None = getattr(criterion, "weight", None)
        self._ignored: int | None = _ignored_label(criterion, targets)
        self.weighs = self._class_weights is not None or self._ignored is not None
        needs_samples = stack.uses("loss") or stack.uses("transform_batch") or self.weighs
        self.is_per_sample = reduction == "none" or (reduction is not None and needs_samples)
        self._criterion = per_sample(criterion) if self.is_per_sample else criterion
        self._stack = stack
        self._world_size = world_size

    def weigh(self, window: Window) -> float:
        """Give each sample the weight of its class, or of its labels that are not ignored.

        Returns:
            The sum of this rank's weights.
        """
        for batch in window.batches:
            weights = self._label_weights(batch.targets)
            if weights is not None:
                own = weights.flatten(1).sum(1) if weights.ndim > 1 else weights
                batch.weights = own.cpu() if batch.weights is None else own.cpu() * batch.weights
        return sum(batch.weight for batch in window.batches)

    def _label_weights(self, targets: Any) -> Tensor | None:
        """Return what each label weighs, [as targets] float32; None if all weigh 1 or targets are no class ids."""
        if not isinstance(targets, Tensor) or targets.is_floating_point():
            return None
        counts = None if self._ignored is None else targets != self._ignored
        if self._class_weights is None:
            return None if counts is None or (targets.ndim == 1 and bool(counts.all())) else counts.float()
        weights = self._class_weights.to(targets.device, torch.float32)
        if counts is None:
            return weights[targets]
        return torch.where(counts, weights[targets.clamp_min(0)], 0.0)

    def _each(self, outputs: Any, targets: Any) -> Tensor:
        """Return one loss a sample, [B] float32: the mean over its labels by their weights."""
        losses = self._criterion(outputs, targets).float()
        if losses.ndim <= 1:
            return losses
        weights = self._label_weights(targets) if losses.shape == getattr(targets, "shape", None) else None
        if weights is None:
            return losses.flatten(1).mean(1)
        weights = weights.flatten(1)
        return (losses.flatten(1) * weights).sum(1) / weights.sum(1).clamp_min(_SMALLEST_WEIGHT)

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
        losses = self._stack.loss(self._each(outputs, batch.targets), outputs, batch, step)
        total = losses.sum() if batch.weights is None else (losses * batch.weights.to(losses.device)).sum()
        return total * (self._world_size / (window_weight or 1.0))

    def sums(self, outputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
        """Return (sum of weighted losses, sum of weights) of an evaluation batch, as scalars on its device."""
        if not self.is_per_sample:
            count = torch.tensor(float(len(targets)), device=outputs.device)
            return self._criterion(outputs, targets) * count, count
        losses, weights = self._each(outputs, targets), self._label_weights(targets)
        if weights is None:
            return losses.sum(), losses.new_tensor(float(len(losses)))
        weights = weights.flatten(1).sum(1) if weights.ndim > 1 else weights
        return (losses * weights).sum(), weights.sum()


def _ignored_label(criterion: Criterion, targets: Tensor | None) -> int | None:
    """Return the label that a criterion ignores, None if it cannot occur in the training set."""
    label = getattr(criterion, "ignore_index", None)
    if label is None or targets is None:
        return label
    is_labels = not targets.is_floating_point()
    return label if is_labels and (targets.ndim > 1 or bool((targets == label).any())) else None


def can_be_per_sample(criterion: Criterion) -> bool:
    """Say if one loss per sample can be had from a criterion."""
    return hasattr(criterion, "reduction")


def per_sample(criterion: Any) -> Criterion:
    """Return a copy of a criterion that gives one loss a sample and does not weigh classes."""
    own = copy.deepcopy(criterion)
    own.reduction = "none"
    if getattr(own, "weight", None) is not None:
        own.weight = None
    return own  # type: ignore[no-any-return]


def default_criterion(classes: int | None) -> nn.Module:
    """Return cross entropy for classes, mean squared error otherwise."""
    return nn.MSELoss() if classes is None else nn.CrossEntropyLoss()
