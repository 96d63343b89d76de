"""Targets as class probabilities, and their exact mixture when samples are mixed."""

from __future__ import annotations

import torch
from torch import Tensor

from muse_spark_ray.strategy.contract import Batch


def as_probabilities(targets: Tensor, classes: int | None) -> Tensor:
    """Return targets as probabilities.

    Args:
        targets: [B] int64 class ids, or [B, classes] float probabilities, which are returned as they are.
        classes: Number of classes, as the run's context says it.

    Returns:
        [B, classes] float32.
    """
    if targets.ndim > 1:
        return targets
    if classes is None:
        raise ValueError("class ids without a number of classes: the strategy must need CLASS_TARGETS")
    return torch.nn.functional.one_hot(targets, classes).float()


def mix(batch: Batch, partners: Tensor, share: Tensor, inputs: Tensor, *, classes: int | None) -> Batch:
    """Mix the targets of a batch with those of its partners, sample weights included.

    The loss of a mixed sample is `share * w * loss(own) + (1 - share) * w' * loss(partner)`, with w and w' the
    weights of the two: its weight becomes the mixture of the weights, and its target the mixture of the weighted
    targets. Since partners are a permutation of the batch and the share is one number, the sum of weights stays.

    Args:
        batch: The micro-batch.
        partners: [B] int64, a permutation of its rows.
        share: Scalar in [0, 1], what is left of the sample itself.
        inputs: [B, ...] the mixed inputs.
        classes: Number of classes.

    Returns:
        The batch with the given inputs, soft targets, and mixed weights if it had any.
    """
    targets = as_probabilities(batch.targets, classes)
    if batch.weights is None:
        return batch.with_(inputs=inputs, targets=targets.lerp(targets[partners], 1.0 - share))
    own = batch.weights.to(targets.device)
    weights = own.lerp(own[partners], 1.0 - share)
    weighted = (targets * own[:, None]).lerp((targets * own[:, None])[partners], 1.0 - share)
    plain = targets.lerp(targets[partners], 1.0 - share)
    targets = torch.where(weights[:, None] > 0, weighted / weights.clamp_min(1e-12)[:, None], plain)
    return batch.with_(inputs=inputs, targets=targets, weights=weights)
