"""Sequence warm-up: train on short sequences first."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.strategy import Batch, Card, Stage, Step, Strategy, StrategyConfig, Trait, knob


def length_at(update: int, full: int, *, start: int, updates: int, multiple: int) -> int:
    """Return the length of sequences after `update` updates: linear from `start` to `full`, a multiple of `multiple`."""
    if update >= updates or start >= full:
        return full
    grown = start + (full - start) * update / updates
    return min(full, max(multiple, int(grown) // multiple * multiple))


class SequenceWarmup(Strategy):
    """Cut sequences short at first and let them grow to their full length.

    Cuts axis 1 of inputs, and of targets that have one value for each position. Evaluation sees full sequences.
    """

    stage = Stage.BATCH
    makes = frozenset({Trait.CHANGED_INPUTS})
    card = Card(
        saves="compute of early updates; allows larger batches and rates",
        costs="the tokens cut off are not seen in that epoch",
        pays="language models, long sequences",
        hurts="tasks whose answer is at the end of the sequence",
        source="Li et al. 2022, The Stability-Efficiency Dilemma (sequence length warm-up), section 4",
    )

    class Config(StrategyConfig):
        """Settings of the warm-up."""

        start: int = knob(8, ge=1, search=(8, 256, "log"), doc="positions in the first update")
        updates: int = knob(
            1000, ge=1, search=(100, 10000, "log"), doc="updates until sequences have their full length"
        )
        multiple: int = knob(8, ge=1, doc="lengths are multiples of this many positions, which tensor cores like")

    def transform_batch(self, batch: Batch, step: Step) -> Batch:
        inputs = batch.inputs
        if not isinstance(inputs, Tensor) or inputs.ndim < 2:
            raise ConfigError("strategies.sequence_warmup needs inputs that are one tensor [samples, positions, ...].")
        c, full = self.config, inputs.shape[1]
        length = length_at(step.update, full, start=c.start, updates=c.updates, multiple=c.multiple)
        if length == full:
            return batch
        targets: Any = batch.targets
        has_positions = isinstance(targets, Tensor) and targets.ndim >= 2 and targets.shape[1] == full
        return batch.with_(inputs=inputs[:, :length], targets=targets[:, :length] if has_positions else targets)
