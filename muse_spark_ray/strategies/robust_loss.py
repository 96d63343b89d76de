"""Losses that forgive wrong labels."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from muse_spark_ray.strategy import Batch, Card, Stage, Step, Strategy, StrategyConfig, Trait, as_probabilities, knob

_LOG_OF_ZERO = -4.0
_SMALLEST = 1e-7


def generalised_cross_entropy(scores: Tensor, targets: Tensor, *, q: float) -> Tensor:
    """Return (1 - p^q) / q for the target's probability p: cross entropy for q near 0, mean absolute error for 1.

    Args:
        scores: [B, classes] logits.
        targets: [B, classes] float32 probabilities.
        q: In (0, 1].

    Returns:
        [B] float32.

    Source: Zhang and Sabuncu 2018, Generalized Cross Entropy Loss, equation 6.
    """
    guessed = scores.float().softmax(1).clamp_min(_SMALLEST)
    return (targets * (1.0 - guessed**q) / q).sum(1)


def symmetric_cross_entropy(scores: Tensor, targets: Tensor, *, alpha: float, beta: float) -> Tensor:
    """Return alpha * cross entropy + beta * reverse cross entropy, in which log 0 is -4.

    Args:
        scores: [B, classes] logits.
        targets: [B, classes] float32 probabilities.
        alpha: Weight of the cross entropy.
        beta: Weight of the reverse one.

    Returns:
        [B] float32.

    Source: Wang et al. 2019, Symmetric Cross Entropy for Robust Learning with Noisy Labels, section 3.
    """
    forward = -(targets * scores.float().log_softmax(1)).sum(1)
    reverse = -(scores.float().softmax(1) * targets.log().clamp_min(_LOG_OF_ZERO)).sum(1)
    return alpha * forward + beta * reverse


class RobustLoss(Strategy):
    """Replace the training loss by one that a wrong label cannot make large."""

    stage = Stage.LOSS
    needs = frozenset({Trait.CLASS_TARGETS, Trait.PER_SAMPLE_LOSSES})
    makes = frozenset({Trait.OWN_LOSS})
    refuses = frozenset({Trait.OWN_LOSS})
    card = Card(
        saves="accuracy lost to wrong labels",
        costs="one softmax of the outputs",
        pays="labels of which a tenth or more are wrong",
        hurts="clean labels, many classes: it learns more slowly",
        source="Zhang and Sabuncu 2018; Wang et al. 2019",
    )

    class Config(StrategyConfig):
        """Settings of the robust loss."""

        kind: Literal["generalised", "symmetric"] = knob(
            "generalised", search=["generalised", "symmetric"], doc="generalised or symmetric cross entropy"
        )
        q: float = knob(
            0.7, gt=0, le=1, search=(0.1, 0.9), doc="generalised: 0 is near cross entropy, 1 absolute error"
        )
        alpha: float = knob(0.5, ge=0, le=10, doc="symmetric: weight of the cross entropy")
        beta: float = knob(1.0, ge=0, le=10, doc="symmetric: weight of the reverse cross entropy")

    def loss(self, losses: Tensor, outputs: Any, batch: Batch, step: Step) -> Tensor:
        c, targets = self.config, as_probabilities(batch.targets, self.context.classes)
        if c.kind == "generalised":
            return generalised_cross_entropy(outputs, targets, q=c.q)
        return symmetric_cross_entropy(outputs, targets, alpha=c.alpha, beta=c.beta)
