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
    order: Tensor, *, batch_size: int, accumulation: int, rank: int = 0, world_size: int = 1, drop_last: bool = False
) -> list[PlannedWindow]:
    """Cut an order into windows of micro-batches and take one rank's share of each.

    A micro-batch holds up to `batch_size` samples on each rank. The last one of the epoch may hold fewer; it is
    dealt out as evenly as possible, and nothing is repeated or, unless `drop_last`, left out.

    Args:
        order: [M] int64 samples of the epoch, the same on all ranks.
        batch_size: Samples in a micro-batch on one rank.
        accumulation: Micro-batches in a window.
        rank: This rank.
        world_size: Number of ranks.
        drop_last: Leave out a last micro-batch that is not full.

    Returns:
        The windows in order.
    """
    across = batch_size * world_size
    usable = len(order) - len(order) % across if drop_last else len(order)
    chunks = torch.split(order[:usable], across) if usable else ()
    windows = []
    for start in range(0, len(chunks), accumulation):
        group = chunks[start : start + accumulation]
        windows.append(PlannedWindow(tuple(_share(c, rank, world_size) for c in group), sum(len(c) for c in group)))
    return windows


def _share(chunk: Tensor, rank: int, world_size: int) -> Share:
    if world_size == 1:
        return Share(chunk)
    part = torch.tensor_split(chunk, world_size)[rank]
    return Share(part) if len(part) else Share(chunk[:1], is_padding=True)
