"""Class weights: errors on rare classes count more."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import model_validator
from torch import Tensor

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
    as_probabilities,
    knob,
)

Rule = Literal["balanced", "sqrt", "effective", "given"]


def weights_of(counts: Tensor, *, rule: str, beta: float) -> Tensor:
    """Return the weight of each class, scaled so that the mean over all samples is 1.

    Args:
        counts: [C] samples of each class.
        rule: `balanced`: 1 / count; `sqrt`: its root; `effective`: (1 - beta) / (1 - beta^count).
        beta: In [0, 1); 0 weighs all classes alike, near 1 is `balanced`.

    Returns:
        [C] float32; 0 for a class without samples.

    Source: Cui et al. 2019, Class-Balanced Loss Based on Effective Number of Samples, equation 2.
    """
    n = counts.double().clamp_min(1.0)
    raw = {"balanced": 1.0 / n, "sqrt": n**-0.5, "effective": (1.0 - beta) / (1.0 - beta**n)}[rule]
    return normalised(torch.where(counts > 0, raw, 0.0), counts)


def normalised(weights: Tensor, counts: Tensor) -> Tensor:
    """Scale class weights so that their mean over all samples is 1; [C] float32."""
    return (weights * (counts.sum() / (weights * counts).sum().clamp_min(1e-12))).float()


class ClassWeights(Strategy):
    """Multiply each sample's loss by the weight of its class.

    The weights average 1 over the training set, so that the learning rate keeps its meaning; validation losses stay
    unweighted. A soft target has the mean weight of its classes.
    """

    stage = Stage.LOSS
    needs = frozenset({Trait.KNOWN_CLASSES, Trait.CLASS_TARGETS, Trait.PER_SAMPLE_LOSSES})
    card = Card(
        saves="accuracy on rare classes",
        costs="one multiplication a sample",
        pays="classes of different size",
        hurts="very rare classes: their few gradients become large and noisy; plain accuracy",
        source="Cui et al. 2019, section 3",
    )

    class Config(StrategyConfig):
        """Settings of the class weights."""

        rule: Rule = knob(
            "balanced",
            search=["balanced", "sqrt", "effective"],
            doc="from class sizes: inverse, inverse root, effective number; or `given` in weights",
        )
        beta: float = knob(0.999, ge=0, lt=1, doc="effective: near 1 is nearer to balanced")
        weights: list[float] | None = knob(None, doc="given: one weight for each class")

        @model_validator(mode="after")
        def _given_means_weights(self) -> ClassWeights.Config:
            if (self.rule == "given") != (self.weights is not None):
                raise ValueError("rule: given and weights belong together; set both or neither")
            if self.weights is not None and (min(self.weights, default=-1) < 0 or not any(self.weights)):
                raise ValueError(f"weights must be 0 or more and not all 0; got {self.weights}")
            return self

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__(config, context)
        if context.targets is None or context.classes is None:
            raise ValueError("class weights were built without classes, although they need them")
        counts = torch.bincount(context.targets, minlength=context.classes)
        if config.weights is not None and len(config.weights) != context.classes:
            raise ConfigError(
                f"strategies.class_weights.weights has {len(config.weights)} values, the model {context.classes} classes; "
                "give one each."
            )
        given = config.weights is not None
        self.weights = (
            normalised(torch.tensor(config.weights, dtype=torch.float64), counts)
            if given
            else weights_of(counts, rule=config.rule, beta=config.beta)
        ).to(context.device)

    def loss(self, losses: Tensor, outputs: Any, batch: Batch, step: Step) -> Tensor:
        return losses * (as_probabilities(batch.targets, self.context.classes) @ self.weights)

    def report(self) -> dict[str, Any]:
        return {"weights": [round(float(weight), 6) for weight in self.weights]}
