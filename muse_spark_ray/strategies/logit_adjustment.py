"""Logit adjustment: train for balanced accuracy by what is known of the class sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from muse_spark_ray.strategy import (
    Batch,
    Card,
    Context,
    Stage,
    Step,
    Strategy,
    StrategyConfig,
    Trait,
    as_probabilities,
    knob,
)


def adjusted_cross_entropy(scores: Tensor, targets: Tensor, log_prior: Tensor, *, tau: float) -> Tensor:
    """Return the cross entropy of scores to which tau * log(class share) was added.

    Args:
        scores: [B, C] logits.
        targets: [B, C] float32 probabilities.
        log_prior: [C] float32.
        tau: 0 is the plain cross entropy; 1 is consistent for the balanced error.

    Returns:
        [B] float32.

    Source: Menon et al. 2021, Long-Tail Learning via Logit Adjustment, equation 10.
    """
    return -(targets * (scores.float() + tau * log_prior).log_softmax(1)).sum(1)


class LogitAdjustment(Strategy):
    """Replace the cross entropy by one whose logits are shifted by the log of the class sizes.

    The network itself then gives scores for classes of equal size; evaluation uses them as they are.
    """

    stage = Stage.LOSS
    needs = frozenset({Trait.KNOWN_CLASSES, Trait.CLASS_TARGETS, Trait.PER_SAMPLE_LOSSES})
    makes = frozenset({Trait.OWN_LOSS})
    refuses = frozenset({Trait.OWN_LOSS})
    card = Card(
        saves="balanced accuracy, without drawing or weighing samples",
        costs="one addition to the scores",
        pays="long-tailed classes; better than weights for networks that can fit every sample",
        hurts="plain accuracy on data as they are",
        source="Menon et al. 2021, equation 10",
    )

    class Config(StrategyConfig):
        """Settings of logit adjustment."""

        tau: float = knob(1.0, ge=0, le=4, search=(0.3, 2.0), doc="strength; 1 aims at the balanced error")

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__(config, context)
        if context.targets is None or context.classes is None:
            raise ValueError("logit adjustment was built without classes, although it needs them")
        counts = torch.bincount(context.targets, minlength=context.classes).float().clamp_min(0.5)
        self._log_prior = (counts / counts.sum()).log().to(context.device)

    def loss(self, losses: Tensor, outputs: Any, batch: Batch, step: Step) -> Tensor:
        targets = as_probabilities(batch.targets, self.context.classes)
        return adjusted_cross_entropy(outputs, targets, self._log_prior, tau=self.config.tau)
