"""Distillation: learn from a teacher's probabilities as well as from the labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.strategy import (
    Batch,
    Card,
    Context,
    Stage,
    Step,
    Strategy,
    StrategyConfig,
    Trait,
    import_object,
    knob,
)

FACTORY_NAMES = ("build_teacher", "make_teacher", "teacher", "build_model", "make_model", "model")


def distillation_losses(scores: Tensor, teacher_scores: Tensor, *, temperature: float) -> Tensor:
    """Return T^2 * KL(teacher || student) of each sample, both softened by the temperature T.

    Args:
        scores: [B, classes] logits of the student.
        teacher_scores: [B, classes] logits of the teacher.
        temperature: Above 0.

    Returns:
        [B] float32. The factor T^2 keeps the size of the gradients as T changes.

    Source: Hinton et al. 2015, Distilling the Knowledge in a Neural Network, section 2.
    """
    student = (scores.float() / temperature).log_softmax(1)
    teacher = (teacher_scores.float() / temperature).log_softmax(1)
    return temperature**2 * (teacher.exp() * (teacher - student)).sum(1)


class Distillation(Strategy):
    """Learn from a teacher's probabilities as well as from the labels.

    The teacher is built by a function of the user's, optionally loaded with the weights of a checkpoint, stays in
    eval mode and has no gradients. It sees the same inputs as the student, after all other changes of the batch.
    """

    stage = Stage.LOSS
    needs = frozenset({Trait.CLASS_TARGETS, Trait.PER_SAMPLE_LOSSES})
    card = Card(
        saves="size and time of the model that is used in the end",
        costs="one forward pass of the teacher for each micro-batch",
        pays="a good teacher is there already; students a fraction of its size",
        hurts="teachers trained with strong label smoothing; students that can learn the task as well alone",
        source="Hinton et al. 2015, section 2",
    )

    class Config(StrategyConfig):
        """Settings of distillation."""

        teacher: str = knob(
            ...,
            doc="module:function or path.py:function that returns the teacher, an nn.Module with the student's outputs",
        )
        weights: str | None = knob(
            None, doc="file of the teacher's weights: a state dict, or the state.pt of a checkpoint"
        )
        temperature: float = knob(4.0, gt=0, le=100, search=(1.0, 10.0), doc="softens both distributions")
        weight: float = knob(0.5, ge=0, le=1, search=(0.1, 0.9), doc="weight of the teacher; the labels have the rest")
        fade_epochs: int | None = knob(
            None, ge=1, doc="epochs over which the weight falls linearly to 0; none: it stays"
        )

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__(config, context)
        self._teacher = load_teacher(config.teacher, config.weights).to(context.device)

    def loss(self, losses: Tensor, outputs: Any, batch: Batch, step: Step) -> Tensor:
        share = self._share(step.epoch)
        if share == 0.0:
            return losses
        with torch.no_grad():
            taught = self._teacher(batch.inputs)
        if taught.shape != outputs.shape:
            raise ConfigError(
                f"strategies.distillation: the teacher returns {tuple(taught.shape)}, the student {tuple(outputs.shape)}; "
                "both must give one score for each class."
            )
        return losses.lerp(distillation_losses(outputs, taught, temperature=self.config.temperature), share)

    def _share(self, epoch: int) -> float:
        c = self.config
        fade = 1.0 if c.fade_epochs is None else max(0.0, 1.0 - epoch / c.fade_epochs)
        return float(c.weight * fade)


def load_teacher(reference: str, weights: str | None) -> nn.Module:
    """Build a teacher in eval mode, without gradients.

    Raises:
        ConfigError: If the function or the file of weights cannot be used.
    """
    made = import_object(reference, names=FACTORY_NAMES, what="strategies.distillation.teacher")
    teacher = made if isinstance(made, nn.Module) else made()
    if not isinstance(teacher, nn.Module):
        raise ConfigError(f"{reference} returned a {type(teacher).__name__}; a teacher is a torch.nn.Module.")
    if weights is not None:
        try:
            saved = torch.load(weights, map_location="cpu", weights_only=True)
            teacher.load_state_dict(saved.get("model", saved))
        except Exception as error:  # a missing, damaged or foreign file each fail in their own way
            first = str(error).splitlines()[0]
            raise ConfigError(f"strategies.distillation.weights {weights!r} cannot be loaded: {first}") from error
    return teacher.eval().requires_grad_(False)
