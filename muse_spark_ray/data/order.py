"""The order of samples: a pure function of seed and epoch, cut into windows that are equal on all ranks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from muse_spark_ray.strategy.randomness import seeded


def epoch_order(samples: int, *, seed: int, epoch: int, shuffle: bool = True) -> Tensor:
    """Return the order of one epoch.

    Args:
        samples: Number of samples.
        seed: The run's seed.
        epoch: Epoch, from 0.
        shuffle: False for the stored order.

    Returns:
        [samples] int64; the same for the same arguments on every rank and after every restart.
    """
    if not shuffle:
        return torch.arange(samples)
    return torch.randperm(samples, generator=seeded(seed, epoch))


@dataclass(frozen=True, slots=True)
class Growth:
    """How the samples in an update grow: times `factor` after every `every` epochs, up to `limit` samples.

    Source: Smith et al. 2018, Don't Decay the Learning Rate, Increase the Batch Size.
    """

    factor: float = 1.0
    every: int = 1
    limit: int | None = None

    def at(self, epoch: int, *, first: int) -> int:
        """Return the samples in an update in an epoch, counted from 0, when they begin with `first`."""
        grown = first * self.factor ** (epoch // self.every)
        return max(first, round(grown if self.limit is None else min(grown, self.limit)))


@dataclass(frozen=True, slots=True)
class Cut:
    """How an epoch is cut.

    Args:
        batch_size: Samples in a micro-batch on one rank.
        accumulation: Micro-batches in a window, where `target` does not say otherwise.
        seed: Of the order.
        rank: This rank.
        world_size: Number of ranks.
        target: Samples in a window over all ranks; None for what `accumulation` gives.
        growth: How windows grow over the epochs.
    """

    batch_size: int
    accumulation: int
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    target: int | None = None
    growth: Growth = Growth()

    @property
    def across(self) -> int:
        """Samples in a micro-batch over all ranks."""
        return self.batch_size * self.world_size

    def window_at(self, epoch: int) -> int:
        """Return the samples in a window over all ranks, in an epoch."""
        return self.growth.at(epoch, first=self.target or self.accumulation * self.across)

    def accumulation_at(self, epoch: int) -> int:
        """Return the micro-batches in a window, in an epoch."""
        return max(1, round(self.window_at(epoch) / self.across))


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of a micro-batch that all ranks work on.

    Args:
        indices: [B] int64 positions of this rank's samples.
        is_padding: True if the rank has no sample of its own; then `indices` holds one borrowed sample that
            weighs nothing, so that every rank takes part in the exchange of gradients.
    """

    indices: Tensor
    is_padding: bool = False


@dataclass(frozen=True, slots=True)
class PlannedWindow:
    """The micro-batches of one update on one rank, and the number of samples in it over all ranks."""

    shares: tuple[Share, ...]
    samples: int


def plan_windows(
    order: Tensor, *, batch_size: int, window: int, rank: int = 0, world_size: int = 1
) -> list[PlannedWindow]:
    """Cut an order into windows of micro-batches and take one rank's share of each.

    A micro-batch holds up to `batch_size` samples on each rank. The last one of a window may hold fewer; it is
    dealt out as evenly as possible, and nothing is repeated or left out.

    Args:
        order: [M] int64 samples of the epoch, the same on all ranks.
        batch_size: Samples in a micro-batch on one rank.
        window: Samples in a window, over all ranks.
        rank: This rank.
        world_size: Number of ranks.

    Returns:
        The windows in order.
    """
    across = batch_size * world_size
    windows = []
    for start in range(0, len(order), window):
        group = torch.split(order[start : start + window], across)
        windows.append(PlannedWindow(tuple(_share(c, rank, world_size) for c in group), sum(len(c) for c in group)))
    return windows


def _share(chunk: Tensor, rank: int, world_size: int) -> Share:
    if world_size == 1:
        return Share(chunk)
    part = torch.tensor_split(chunk, world_size)[rank]
    return Share(part) if len(part) else Share(chunk[:1], is_padding=True)
