"""Focal loss: samples that are classified well count less."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from muse_spark_ray.strategy import Batch, Card, Stage, Step, Strategy, StrategyConfig, Trait, as_probabilities, knob


def focus(losses: Tensor, scores: Tensor, targets: Tensor, *, gamma: float) -> Tensor:
    """Multiply each loss by (1 - p)^gamma, with p the probability given to the target.

    Args:
        losses: [B] float32.
        scores: [B, classes] logits.
        targets: [B, classes] float32 probabilities; p is their scalar product with the softmax of the scores.
        gamma: 0 changes nothing.

    Returns:
        [B] float32.

    Source: Lin et al. 2017, Focal Loss for Dense Object Detection, equation 4.
    """
    hit = (scores.float().softmax(1) * targets).sum(1)
    return losses * (1.0 - hit).clamp_min(0.0) ** gamma


class FocalLoss(Strategy):
    """Weigh each sample's loss down as its class becomes certain."""

    stage = Stage.LOSS
    needs = frozenset({Trait.CLASS_TARGETS, Trait.PER_SAMPLE_LOSSES})
    makes = frozenset({Trait.OWN_LOSS})
    refuses = frozenset({Trait.OWN_LOSS})
    card = Card(
        saves="accuracy on rare classes",
        costs="one softmax of the outputs",
        pays="classes of very different size",
        hurts="noisy labels; probabilities that must be calibrated",
        source="Lin et al. 2017, equation 4",
    )

    class Config(StrategyConfig):
        """Settings of the focal loss."""

        gamma: float = knob(2.0, ge=0, le=10, search=(0.5, 4.0), doc="how fast certain samples lose their weight")

    def loss(self, losses: Tensor, outputs: Any, batch: Batch, step: Step) -> Tensor:
        targets = as_probabilities(batch.targets, self.context.classes)
        return focus(losses, outputs, targets, gamma=self.config.gamma)
