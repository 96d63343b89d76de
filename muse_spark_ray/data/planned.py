"""Sources whose order is the trainer's: seeded, shared among ranks without padding, open to strategies that choose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from muse_spark_ray.data.fetch import Batches, read_by_workers
from muse_spark_ray.data.known import known_lengths, known_targets, split_pair
from muse_spark_ray.data.order import Cut, PlannedWindow, Share, epoch_order, plan_windows
from muse_spark_ray.data.window import Position, Reorder, Window
from muse_spark_ray.strategy import Batch, seeded


class Planned:
    """What the two sources have in common: planning, planning anew between updates, and going on in mid-epoch."""

    is_indexed = True

    def __init__(self, samples: int, cut: Cut, *, shuffle: bool, drop_last: bool) -> None:
        self.samples = samples
        self.batch_size = cut.batch_size
        self._cut = cut
        self._shuffle = shuffle
        self._drop_last = drop_last

    def own_shares(self) -> list[Share]:
        """Cut this rank's share of all samples into micro-batches."""
        c = self._cut
        own = torch.tensor_split(torch.arange(self.samples), c.world_size)[c.rank]
        return [Share(part) for part in torch.split(own, c.batch_size)] if len(own) else []

    def windows_per_epoch(self, epoch: int, samples: int | None = None) -> int:
        usable = self._usable(self.samples if samples is None else samples, epoch)
        return -(-usable // self._cut.window_at(epoch))

    def window_size(self, epoch: int) -> int:
        return self._cut.window_at(epoch)

    def keep_window(self, samples: int) -> None:
        self._cut = replace(self._cut, target=samples)

    def where(self, at: Position) -> dict[str, Any] | None:
        return None

    def parts(
        self, epoch: int, reorder: Reorder | None, reorder_every: int | None, at: Position
    ) -> Iterator[list[PlannedWindow]]:
        """Yield lists of windows, from a position on; after each list the samples left are ordered anew."""
        while True:
            if reorder is None:
                order = self._trimmed(self._order(epoch), epoch)
            elif at.order is None:
                order = self._begin_part(epoch, reorder, reorder_every, at)
            else:
                order = at.order
            yield self._plan(order[at.samples :], epoch)
            if reorder is None or at.is_last_part:
                return
            left = self._order(epoch) if at.left is None else at.left
            at.left, at.order, at.samples = left[~torch.isin(left, order)], None, 0
            if not len(at.left):
                return

    def _begin_part(self, epoch: int, reorder: Reorder, reorder_every: int | None, at: Position) -> Tensor:
        chosen = self._trimmed(reorder(self._order(epoch) if at.left is None else at.left), epoch)
        most = None if reorder_every is None else reorder_every * self._cut.window_at(epoch)
        at.is_last_part = most is None or len(chosen) <= most
        at.order = chosen if at.is_last_part else chosen[:most]
        return at.order

    def _order(self, epoch: int) -> Tensor:
        return epoch_order(self.samples, seed=self._cut.seed, epoch=epoch, shuffle=self._shuffle)

    def _trimmed(self, order: Tensor, epoch: int) -> Tensor:
        return order[: self._usable(len(order), epoch)]

    def _usable(self, count: int, epoch: int) -> int:
        unit = min(self._cut.across, self._cut.window_at(epoch))
        return count - count % unit if self._drop_last else count

    def _plan(self, order: Tensor, epoch: int) -> list[PlannedWindow]:
        c = self._cut
        return plan_windows(
            order, batch_size=c.batch_size, window=c.window_at(epoch), rank=c.rank, world_size=c.world_size
        )


class TensorSource(Planned):
    """Tensors in memory, sliced a batch at a time."""

    def __init__(self, data: TensorDataset, cut: Cut, *, shuffle: bool = True, drop_last: bool = False) -> None:
        super().__init__(len(data), cut, shuffle=shuffle, drop_last=drop_last)
        self._inputs, self.targets = data.tensors
        self.lengths = known_lengths(data)

    def windows(
        self,
        epoch: int,
        reorder: Reorder | None = None,
        reorder_every: int | None = None,
        position: Position | None = None,
    ) -> Iterator[Window]:
        at = position if position is not None else Position()
        for planned in self.parts(epoch, reorder, reorder_every, at):
            for window in planned:
                at.move(window.samples)
                yield Window([self._batch(share) for share in window.shares], window.samples, window.samples)

    def read(self) -> Iterator[Batch]:
        return map(self._batch, self.own_shares())

    def _batch(self, share: Share) -> Batch:
        indices = share.indices
        return Batch(self._inputs[indices], self.targets[indices], indices, _padding_weights(share))


class IndexedSource(Planned):
    """A map-style data set read through the user's collate function, in the trainer's order."""

    def __init__(self, loader: DataLoader[Any], cut: Cut, *, shuffle: bool) -> None:
        super().__init__(len(loader.dataset), cut, shuffle=shuffle, drop_last=loader.drop_last)  # type: ignore[arg-type]
        self._loader = loader
        self._batches = Batches(loader.dataset, loader.collate_fn)
        self.targets = known_targets(loader.dataset)
        self.lengths = known_lengths(loader.dataset)
        self.workers = loader.num_workers

    def windows(
        self,
        epoch: int,
        reorder: Reorder | None = None,
        reorder_every: int | None = None,
        position: Position | None = None,
    ) -> Iterator[Window]:
        at = position if position is not None else Position()
        for planned in self.parts(epoch, reorder, reorder_every, at):
            shares = [share for window in planned for share in window.shares]
            numbers = [(w, i) for w, window in enumerate(planned, at.windows) for i in range(len(window.shares))]
            fetched = self._fetch_all(shares, [(epoch, *pair) for pair in numbers])
            for window in planned:
                # No name holds a batch here, so that its memory is free when the next one is made.
                batches = [
                    Batch(*split_pair(next(fetched)), share.indices, _padding_weights(share)) for share in window.shares
                ]
                at.move(window.samples)
                yield Window(batches, window.samples, window.samples)
                del batches

    @property
    def own_samples(self) -> int:
        """Samples of this rank's share of all."""
        return sum(len(share.indices) for share in self.own_shares())

    def read(self, most: int | None = None) -> Iterator[Batch]:
        shares = self.own_shares()[:most]
        fetched = self._fetch_all(shares, [(number,) for number in range(len(shares))])
        for share, raw in zip(shares, fetched, strict=True):
            yield Batch(*split_pair(raw), share.indices)

    def _fetch_all(self, shares: list[Share], numbers: list[tuple[int, ...]]) -> Iterator[Any]:
        """Read micro-batches; in worker processes, random numbers depend on seed, rank and the batch's own numbers."""
        samples = (share.indices.tolist() for share in shares)
        if self.workers == 0:
            return map(self._batches.fetch, samples)
        c = self._cut
        names = [((c.seed, c.rank, *own), indices) for own, indices in zip(numbers, samples, strict=True)]
        seed = seeded(c.seed, c.rank, *(numbers[0] if numbers else ())).initial_seed()
        return read_by_workers(self._loader, self._batches, names, workers=self.workers, seed=seed)


def _padding_weights(share: Share) -> Tensor | None:
    return torch.zeros(1) if share.is_padding else None
