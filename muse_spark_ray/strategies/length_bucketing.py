"""Length bucketing: sequences of like length share a batch, so that little padding is computed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from muse_spark_ray.strategy import Card, Context, Stage, Step, Strategy, StrategyConfig, Trait, knob, seeded


def bucketed(order: Tensor, lengths: Tensor, *, chunk: int, batch: int, generator: torch.Generator) -> Tensor:
    """Sort each chunk of an order by length, then shuffle its batches.

    Args:
        order: [M] int64 samples.
        lengths: [N] int64 of all samples.
        chunk: Samples that are sorted together; more means less padding and less randomness.
        batch: Samples that stay together.
        generator: Of the shuffle.

    Returns:
        [M] int64, a permutation of `order`.
    """
    parts = []
    for piece in torch.split(order, max(chunk // batch, 1) * batch):
        batches = torch.split(piece[torch.argsort(lengths[piece], stable=True)], batch)
        # A batch that is not full stays last, or all after it would be cut across two lengths.
        full = len(batches) - (len(batches[-1]) < batch)
        parts += [batches[i] for i in torch.randperm(full, generator=generator).tolist()] + list(batches[full:])
    return torch.cat(parts) if parts else order


class LengthBucketing(Strategy):
    """Put sequences of like length into one batch; the loader's collate function then pads little.

    The data set says its lengths by an attribute `lengths`, one number a sample. Samples stay shuffled: those that
    share a batch differ from epoch to epoch, and batches of all lengths alternate.
    """

    stage = Stage.SAMPLES
    needs = frozenset({Trait.INDEXED_SAMPLES, Trait.KNOWN_LENGTHS})
    card = Card(
        saves="computing of padding, often half of all tokens",
        costs="one sort of a chunk",
        pays="texts, speech, anything whose samples have many lengths and are padded to the longest of a batch",
        hurts="data of one length; packing (muse_spark_ray.data.pack_sequences) saves more where it can be used",
        source="Khomenko et al. 2016, Accelerating Recurrent Neural Network Training Using Sequence Bucketing",
    )

    class Config(StrategyConfig):
        """Settings of length bucketing."""

        chunk: int = knob(4096, ge=2, search=(256, 16384, "log"), doc="samples that are sorted together by length")

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__(config, context)
        lengths = context.tools.lengths
        if lengths is None:
            raise ValueError("length bucketing was built without lengths, although it needs them")
        self._lengths = lengths

    def order_samples(self, order: Tensor, step: Step) -> Tensor:
        across = (self.context.tools.batch_size or 1) * self.context.world_size
        generator = seeded(self.context.seed, step.epoch)
        return bucketed(order, self._lengths, chunk=self.config.chunk, batch=across, generator=generator)
