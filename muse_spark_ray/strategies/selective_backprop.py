"""Selective backprop: look at all samples of a micro-batch, learn from the hard ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

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


def hardest(losses: Tensor, weights: Tensor, fraction: float) -> Tensor:
    """Choose the samples with the largest losses among those that weigh anything.

    Args:
        losses: [B] float32; a loss that is not finite is never chosen before one that is.
        weights: [B] float32.
        fraction: Share of the batch to choose, in (0, 1].

    Returns:
        [K] int64 in the order of the batch, K at least 1.
    """
    usable = torch.isfinite(losses) & (weights > 0)
    count = min(max(1, round(fraction * len(losses))), max(1, int(usable.sum())))
    ranked = torch.where(usable, losses, -torch.inf)
    return ranked.topk(count).indices.sort().values


def selected(batch: Batch, chosen: Tensor) -> Batch:
    """Return the chosen samples, their weights scaled so that they sum to what the whole batch weighed."""
    weights = torch.ones(batch.size) if batch.weights is None else batch.weights
    kept = weights[chosen.to(weights.device)]
    total = kept.sum()
    scaled = (
        kept / total * weights.sum() if total > 0 else kept
    )  # divided first: a tiny total would make the factor infinite
    indices = None if batch.indices is None else batch.indices[chosen.to(batch.indices.device)]
    return Batch(batch.inputs[chosen], batch.targets[chosen], indices, scaled)


class SelectiveBackprop(Strategy):
    """Pass every micro-batch forward, and train on its hardest samples only.

    The scoring pass runs in eval mode and without gradients, so that neither dropout nor BatchNorm statistics see it.
    """

    stage = Stage.SAMPLES
    needs = frozenset({Trait.CLASS_TARGETS})
    card = Card(
        saves="backward passes: at a third of the samples, about half the time of a step",
        costs="one more forward pass of each micro-batch, without gradients",
        pays="large networks, many easy samples",
        hurts="noisy labels, small networks whose step is overhead anyway",
        source="Jiang et al. 2019, Accelerating Deep Learning by Focusing on the Biggest Losers",
    )

    class Config(StrategyConfig):
        """Settings of selective backprop."""

        fraction: float = knob(0.5, gt=0, le=1, search=(0.2, 0.8), doc="share of each micro-batch that is trained on")
        warmup_epochs: int = knob(1, ge=0, search=(0, 3), doc="epochs on all samples first")

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__(config, context)
        self._model: nn.Module = nn.Identity()

    def prepare_model(self, model: nn.Module) -> nn.Module:
        self._model = model
        return model

    def transform_batch(self, batch: Batch, step: Step) -> Batch:
        if step.epoch < self.config.warmup_epochs or batch.size == 1 or batch.weight == 0:
            return batch
        weights = torch.ones(batch.size) if batch.weights is None else batch.weights
        losses = self._score(batch)
        return selected(batch, hardest(losses, weights.to(losses.device), self.config.fraction))

    @torch.no_grad()
    def _score(self, batch: Batch) -> Tensor:
        with evaluating(self._model):
            scores = self._model(batch.inputs)
        targets = as_probabilities(batch.targets, self.context.classes)
        losses: Tensor = -(targets * scores.float().log_softmax(1)).sum(1)
        return losses


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into eval mode, and each of its modules back into its own mode."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
