"""Label smoothing: mix each target with the uniform distribution."""

from __future__ import annotations

from torch import Tensor

from muse_spark_ray.strategy import Batch, Card, Stage, Step, Strategy, StrategyConfig, Trait, as_probabilities, knob


def smooth_targets(targets: Tensor, *, classes: int, epsilon: float) -> Tensor:
    """Move the mass `epsilon` of each target to the uniform distribution.

    Args:
        targets: [B] int64 class ids or [B, classes] float probabilities.
        classes: Number of classes.
        epsilon: Mass that is moved, in [0, 1).

    Returns:
        [B, classes] float32 probabilities, each row summing to the sum of its target.

    Source: Szegedy et al. 2016, Rethinking the Inception Architecture, section 7.
    """
    return as_probabilities(targets, classes) * (1.0 - epsilon) + epsilon / classes


class LabelSmoothing(Strategy):
    """Mix each target with the uniform distribution."""

    stage = Stage.BATCH
    needs = frozenset({Trait.CLASS_TARGETS})
    makes = frozenset({Trait.SOFT_TARGETS})
    card = Card(
        saves="epochs to a given accuracy",
        costs="nothing measurable per step",
        pays="many classes, clean labels, networks that grow over-confident",
        hurts="a teacher for distillation; probabilities that must stay calibrated at 0 and 1",
        source="Szegedy et al. 2016, section 7",
    )

    class Config(StrategyConfig):
        """Settings of label smoothing."""

        epsilon: float = knob(0.1, ge=0, lt=1, search=(0.02, 0.3), doc="mass moved to the uniform distribution")

    def transform_batch(self, batch: Batch, step: Step) -> Batch:
        classes = self.context.classes
        if classes is None:
            raise ValueError("label smoothing was built without a number of classes, although it needs class targets")
        return batch.with_(targets=smooth_targets(batch.targets, classes=classes, epsilon=self.config.epsilon))
