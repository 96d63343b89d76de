"""Balanced sampling: draw rare classes more often than they occur."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import field_validator
from torch import Tensor

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.strategy import Card, Context, Stage, Step, Strategy, StrategyConfig, Trait, knob, seeded


def class_odds(counts: Tensor, *, power: float) -> Tensor:
    """Return how much more often a sample of each class is drawn: 1 / count^power, 0 for a class without samples.

    Args:
        counts: [C] samples of each class.
        power: 0 draws as the data are, 1 every class equally often.

    Returns:
        [C] float64.
    """
    counts = counts.double()
    return torch.where(counts > 0, counts.clamp_min(1.0) ** -power, 0.0)


class BalancedSampling(Strategy):
    """Draw each epoch's samples with replacement, rare classes more often than they occur.

    All ranks draw the same list, of which each takes its share; it depends on the seed and the epoch alone.
    """

    stage = Stage.SAMPLES
    needs = frozenset({Trait.KNOWN_CLASSES, Trait.INDEXED_SAMPLES})
    makes = frozenset({Trait.REPEATED_SAMPLES})
    card = Card(
        saves="epochs until rare classes are learnt",
        costs="samples of large classes that an epoch leaves out",
        pays="classes of very different size, balanced accuracy or recall as the objective",
        hurts="rare classes of a few samples: they are learnt by heart; calibrated probabilities",
        source="Kang et al. 2020, Decoupling Representation and Classifier, equation 1",
    )

    class Config(StrategyConfig):
        """Settings of balanced sampling."""

        power: float = knob(
            1.0, ge=0, le=2, search=(0.3, 1.0), doc="0: as the data are; 1: every class equally often; 0.5: between"
        )
        class_weights: list[float] | None = knob(
            None, doc="how often a sample of each class is drawn, relative to the others; in place of power"
        )
        draws: int | None = knob(
            None, ge=1, doc="samples drawn in an epoch over all workers; none: as many as there are"
        )

        @field_validator("class_weights")
        @classmethod
        def _weights_are_odds(cls, value: list[float] | None) -> list[float] | None:
            if value is not None and (min(value, default=-1) < 0 or not any(value)):
                raise ValueError(f"class_weights must be 0 or more and not all 0, one for each class; got {value}")
            return value

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__(config, context)
        self.epoch_samples = config.draws
        if context.targets is None or context.classes is None:
            raise ValueError("balanced sampling was built without classes, although it needs them")
        self._odds = self._class_odds(context.targets, context.classes)[context.targets]

    def _class_odds(self, targets: Tensor, classes: int) -> Tensor:
        given = self.config.class_weights
        if given is None:
            return class_odds(torch.bincount(targets, minlength=classes), power=self.config.power)
        if len(given) != classes:
            raise ConfigError(
                f"strategies.balanced_sampling.class_weights has {len(given)} values, the model {classes} classes; give one each."
            )
        return torch.tensor(given, dtype=torch.float64)

    def order_samples(self, order: Tensor, step: Step) -> Tensor:
        odds, generator = self._odds[order], seeded(self.context.seed, step.epoch)
        if not odds.any():
            raise ConfigError("strategies.balanced_sampling.class_weights are 0 for every class that occurs.")
        # Through the cumulative sum and not torch.multinomial, which ends at 2^24 samples.
        edges = odds.cumsum(0)
        draws = torch.rand(self.epoch_samples or len(order), generator=generator, dtype=torch.float64) * edges[-1]
        return order[torch.searchsorted(edges, draws, right=True).clamp_max(len(order) - 1)]
