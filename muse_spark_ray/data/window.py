"""What training reads: windows of micro-batches, and how far into an epoch it has come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from torch import Tensor

from muse_spark_ray.strategy import Batch

Reorder = Callable[[Tensor], Tensor]


@dataclass(slots=True)
class Window:
    """The micro-batches of one update on this rank.

    Args:
        batches: At least one.
        weight: Sum of the sample weights over all ranks and micro-batches.
        samples: Samples over all ranks.
    """

    batches: list[Batch]
    weight: float
    samples: int


@dataclass(slots=True)
class Position:
    """How far an epoch has come: all that reading the rest of it takes, on this or another number of ranks.

    A source moves it on when it hands out a window, so it is true between two windows. An epoch has one part, or
    several if strategies choose samples anew within it.

    Args:
        windows: Windows handed out in this epoch.
        samples: Samples, over all ranks, handed out in this part.
        order: [M] int64 samples of this part as a strategy chose them; None where seed and epoch say the order.
        left: [K] int64 samples that the epoch had left when the part began; None: all.
        is_last_part: No part follows.
        loader: Where a loader with an order of its own stands, as its source's `where` wrote it; of this rank alone,
            with `ranks`, the batches that each rank had taken, where it was put together from several.
    """

    windows: int = 0
    samples: int = 0
    order: Tensor | None = None
    left: Tensor | None = None
    is_last_part: bool = True
    loader: dict[str, Any] | None = None

    def move(self, samples: int) -> None:
        """Count a window."""
        self.windows += 1
        self.samples += samples

    def state_dict(self) -> dict[str, Any]:
        """Return it as tensors and plain containers."""
        return asdict(self)


class Source(Protocol):
    """Where windows come from.

    `samples` is the size of the training set over all ranks, None if it is not known; `is_indexed` says if the
    trainer controls the order; `targets` are those of all samples, [samples, ...], None if they cannot be had without
    reading the data; `lengths` those of sequences, [samples] int64, where the data set says them; `windows_per_epoch`
    is None if it is not known before the epoch has run.
    """

    @property
    def samples(self) -> int | None: ...

    @property
    def is_indexed(self) -> bool: ...

    @property
    def batch_size(self) -> int | None: ...

    @property
    def targets(self) -> Tensor | None: ...

    @property
    def lengths(self) -> Tensor | None: ...

    def windows(
        self,
        epoch: int,
        reorder: Reorder | None = None,
        reorder_every: int | None = None,
        position: Position | None = None,
    ) -> Iterator[Window]:
        """Yield the windows of one epoch, or those that follow a position in it; the position is moved on."""
        ...

    def read(self) -> Iterator[Batch]:
        """Yield this rank's share of all samples once, in the stored order; nothing if the order is not ours."""
        ...

    def windows_per_epoch(self, epoch: int, samples: int | None = None) -> int | None:
        """Return how many windows that epoch has if it uses so many samples; None: all of them."""
        ...

    def window_size(self, epoch: int) -> int | None:
        """Return the samples in a window over all ranks."""
        ...

    def keep_window(self, samples: int) -> None:
        """Begin with windows of so many samples over all ranks, whatever their number is now."""
        ...

    def where(self, at: Position) -> dict[str, Any] | None:
        """Return what this rank's loader needs to go on from a position, None where the position says it all."""
        ...
