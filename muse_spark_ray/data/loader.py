"""From a data set or a user's DataLoader to windows of micro-batches.

Three ways in, chosen once by `open_source`:

* `TensorSource`: tensors in memory are sliced by the planned order, a batch at a time.
* `IndexedSource`: a map-style data set behind an ordinary DataLoader; the trainer takes over the order, so that it
  is seeded, shared among ranks without padding, and open to strategies that choose samples.
* `ForeignSource`: loaders with their own sampler or an iterable data set are read as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from muse_spark_ray.data.order import Cut, PlannedWindow, Share, epoch_order, plan_windows
from muse_spark_ray.data.streams import ParquetStream
from muse_spark_ray.errors import DataError
from muse_spark_ray.strategy import Batch, seeded

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


class Source(Protocol):
    """Where windows come from.

    `samples` is the size of the training set over all ranks, None if it is not known; `is_indexed` says if the
    trainer controls the order; `targets` are those of all samples, [samples, ...], None if they cannot be had without
    reading the data; `lengths` those of sequences, [samples] int64, where the data set says them; `windows_per_epoch` is None if it is not known before the epoch has run.
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

    def windows(self, epoch: int, reorder: Reorder | None = None, reorder_every: int | None = None) -> Iterator[Window]:
        """Yield the windows of one epoch."""
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


class _Planned:
    """What the two sources whose order is ours have in common: planning, and re-planning between updates."""

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
        count = self.samples if samples is None else samples
        window = self._cut.window_at(epoch)
        unit = min(self._cut.across, window)
        usable = count - count % unit if self._drop_last else count
        return -(-usable // window)

    def window_size(self, epoch: int) -> int:
        return self._cut.window_at(epoch)

    def plans(self, epoch: int, reorder: Reorder | None, reorder_every: int | None) -> Iterator[list[PlannedWindow]]:
        """Yield lists of windows; after each list the samples left are ordered anew."""
        left = epoch_order(self.samples, seed=self._cut.seed, epoch=epoch, shuffle=self._shuffle)
        while len(left):
            order = left if reorder is None else reorder(left)
            planned = self._plan(order, epoch)
            if reorder is None or reorder_every is None or len(planned) <= reorder_every:
                yield planned
                return
            planned = planned[:reorder_every]
            yield planned
            used = order[: sum(window.samples for window in planned)]
            left = left[~torch.isin(left, used)]

    def _plan(self, order: Tensor, epoch: int) -> list[PlannedWindow]:
        c = self._cut
        return plan_windows(
            order,
            batch_size=c.batch_size,
            window=c.window_at(epoch),
            rank=c.rank,
            world_size=c.world_size,
            drop_last=self._drop_last,
        )


class TensorSource(_Planned):
    """Tensors in memory, sliced a batch at a time."""

    def __init__(self, data: TensorDataset, cut: Cut, *, shuffle: bool = True, drop_last: bool = False) -> None:
        super().__init__(len(data), cut, shuffle=shuffle, drop_last=drop_last)
        self._inputs, self.targets = data.tensors
        self.lengths = known_lengths(data)

    def windows(self, epoch: int, reorder: Reorder | None = None, reorder_every: int | None = None) -> Iterator[Window]:
        for planned in self.plans(epoch, reorder, reorder_every):
            for window in planned:
                yield Window([self._batch(share) for share in window.shares], window.samples, window.samples)

    def read(self) -> Iterator[Batch]:
        return map(self._batch, self.own_shares())

    def _batch(self, share: Share) -> Batch:
        indices = share.indices
        return Batch(self._inputs[indices], self.targets[indices], indices, _padding_weights(share))


class IndexedSource(_Planned):
    """A map-style data set read through the user's collate function, in the trainer's order."""

    def __init__(self, loader: DataLoader[Any], cut: Cut, *, shuffle: bool) -> None:
        super().__init__(len(loader.dataset), cut, shuffle=shuffle, drop_last=loader.drop_last)  # type: ignore[arg-type]
        self._loader = loader
        self._collate = loader.collate_fn
        self._many = getattr(loader.dataset, "__getitems__", None)
        self.targets = known_targets(loader.dataset)
        self.lengths = known_lengths(loader.dataset)
        self.workers = loader.num_workers

    def windows(self, epoch: int, reorder: Reorder | None = None, reorder_every: int | None = None) -> Iterator[Window]:
        for part, planned in enumerate(self.plans(epoch, reorder, reorder_every)):
            shares = [share for window in planned for share in window.shares]
            fetched = self._fetch_all(shares, seeded(self._cut.seed, epoch, part, self._cut.rank))
            for window in planned:
                # No name holds a batch here, so that its memory is free when the next one is made.
                batches = [
                    Batch(*split_pair(next(fetched)), share.indices, _padding_weights(share)) for share in window.shares
                ]
                yield Window(batches, window.samples, window.samples)
                del batches

    @property
    def own_samples(self) -> int:
        """Samples of this rank's share of all."""
        return sum(len(share.indices) for share in self.own_shares())

    def read(self, most: int | None = None) -> Iterator[Batch]:
        shares = self.own_shares()[:most]
        for share, raw in zip(shares, self._fetch_all(shares, seeded(self._cut.seed, self._cut.rank)), strict=True):
            yield Batch(*split_pair(raw), share.indices)

    def _fetch_all(self, shares: list[Share], seed: torch.Generator) -> Iterator[Any]:
        return map(self._fetch, shares) if self.workers == 0 else self._fetch_by_workers(shares, seed)

    def _fetch(self, share: Share) -> Any:
        indices = share.indices.tolist()
        if self._many is not None:
            return self._collate(self._many(indices))
        return self._collate([self._loader.dataset[i] for i in indices])

    def _fetch_by_workers(self, shares: list[Share], seed: torch.Generator) -> Iterator[Any]:
        """Read by worker processes; torch gives each its own seeds of `random`, NumPy and torch, drawn from `seed`."""
        theirs = self._loader
        return iter(
            DataLoader(
                theirs.dataset,
                batch_sampler=[share.indices.tolist() for share in shares],
                num_workers=self.workers,
                collate_fn=theirs.collate_fn,
                pin_memory=theirs.pin_memory,
                timeout=theirs.timeout,
                worker_init_fn=theirs.worker_init_fn,
                multiprocessing_context=theirs.multiprocessing_context,
                prefetch_factor=theirs.prefetch_factor if theirs.num_workers else None,
                generator=seed,
            )
        )


class ForeignSource:
    """A loader with an order of its own: each rank reads its loader, windows are sized by what comes."""

    is_indexed = False
    samples: int | None = None
    targets: Tensor | None = None
    lengths: Tensor | None = None

    def __init__(self, loader: DataLoader[Any], cut: Cut) -> None:
        self._loader = loader
        self._stream = loader.dataset if isinstance(loader.dataset, ParquetStream) else None
        self.batch_size: int | None = loader.batch_size if self._stream is None else self._stream.batch_size
        self._cut = replace(cut, batch_size=self.batch_size or cut.batch_size)

    def windows(self, epoch: int, reorder: Reorder | None = None, reorder_every: int | None = None) -> Iterator[Window]:
        for owner in (self._loader.sampler, self._loader.dataset):
            if hasattr(owner, "set_epoch"):
                owner.set_epoch(epoch)
        groups = self._groups(self._cut.accumulation_at(epoch))
        if self._cut.world_size == 1:
            for group in groups:
                samples = sum(batch.size for batch in group)
                yield Window(group, samples, samples)
        else:
            yield from self._together(groups)

    def _groups(self, accumulation: int) -> Iterator[list[Batch]]:
        group: list[Batch] = []
        for raw in self._loader:
            batch = Batch(*split_pair(raw))
            if batch.size == 0:
                continue
            group.append(batch)
            if len(group) == accumulation:
                yield group
                group = []
        if group:
            yield group

    def _together(self, groups: Iterator[list[Batch]]) -> Iterator[Window]:
        """Yield windows until the last rank has no more; a rank that ends earlier goes on with a sample of no weight.

        Raises:
            DataError: On every rank, if the shard of one holds no batch at all.
        """
        spare: Batch | None = None
        while True:
            group = next(groups, [])
            own = sum(batch.size for batch in group)
            spare = padding(group[0]) if group else spare
            total, empty = _sum_over_ranks(own, int(spare is None))
            if total == 0:
                return
            if empty or spare is None:
                raise DataError(
                    f"{empty} of {self._cut.world_size} workers find no batch in their shard of the data, the others do.",
                    hint="use at least as many shards as workers, or fewer workers",
                )
            yield Window(group or [spare], total, total)
            del group

    def read(self) -> Iterator[Batch]:
        return iter(())

    def windows_per_epoch(self, epoch: int, samples: int | None = None) -> int | None:
        if self._stream is not None:
            batches = self._stream.batches(epoch, self._loader.num_workers)
        else:
            try:
                batches = len(self._loader)
            except TypeError:
                return None
        return -(-batches // self._cut.accumulation_at(epoch))

    def window_size(self, epoch: int) -> int | None:
        return None if self.batch_size is None else self._cut.accumulation_at(epoch) * self._cut.across


def padding(batch: Batch) -> Batch:
    """Return the first sample of a batch, without weight: for a rank that must take part and has no sample left."""
    first = slice(0, 1)
    return Batch(_rows(batch.inputs, first), _rows(batch.targets, first), None, torch.zeros(1))


def _rows(value: Any, rows: slice) -> Any:
    if isinstance(value, dict):
        return {key: _rows(part, rows) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_rows(part, rows) for part in value)
    return value[rows]


def _sum_over_ranks(*values: int) -> list[int]:
    """Add numbers over all ranks, on the device that the process group works with."""
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    total = torch.tensor(values, dtype=torch.int64, device=device)
    dist.all_reduce(total)
    return [int(value) for value in total]


def open_source(data: DataLoader[Any] | TensorDataset, cut: Cut) -> Source:
    """Choose how to read `data`.

    Args:
        data: A DataLoader, or tensors in memory that are shuffled and cut by `cut`.
        cut: How epochs are cut; a DataLoader's own batch size wins over `cut.batch_size`.

    Returns:
        The source.

    Raises:
        DataError: If `data` is of another kind or empty.
    """
    if isinstance(data, TensorDataset):
        return TensorSource(_not_empty(data), cut)
    if not isinstance(data, DataLoader):
        raise DataError(
            f"the training data is a {type(data).__name__}; it must be a torch DataLoader or a TensorDataset."
        )
    if not _order_is_ours(data):
        return ForeignSource(data, cut)
    _not_empty(data.dataset)
    own = replace(cut, batch_size=data.batch_size or cut.batch_size)
    shuffle = isinstance(data.sampler, RandomSampler)
    if type(data.dataset) is TensorDataset and len(data.dataset.tensors) == 2 and _has_default_collate(data):
        return TensorSource(data.dataset, own, shuffle=shuffle, drop_last=data.drop_last)
    return IndexedSource(data, own, shuffle=shuffle)


def known_targets(data: Any) -> Tensor | None:
    """Return the targets of a map-style data set where it holds them all.

    Args:
        data: A TensorDataset of two tensors, a Subset, or a data set with an attribute `targets` or `labels`.

    Returns:
        [N, ...], or None.
    """
    if isinstance(data, Subset):
        whole = known_targets(data.dataset)
        return None if whole is None else whole[torch.as_tensor(data.indices)]
    if isinstance(data, TensorDataset):
        return data.tensors[1] if len(data.tensors) == 2 else None
    for name in ("targets", "labels"):
        held = getattr(data, name, None)
        if held is None or not hasattr(held, "__len__") or len(held) != len(data):
            continue
        try:
            return torch.as_tensor(held)
        except (TypeError, ValueError, RuntimeError):  # names instead of numbers, ragged lists
            return None
    return None


def known_lengths(data: Any) -> Tensor | None:
    """Return the lengths of a data set's samples where it has an attribute `lengths`, [N] int64, else None."""
    if isinstance(data, Subset):
        whole = known_lengths(data.dataset)
        return None if whole is None else whole[torch.as_tensor(data.indices)]
    held = getattr(data, "lengths", None)
    return torch.as_tensor(held, dtype=torch.int64) if held is not None and len(held) == len(data) else None


def split_pair(raw: Any) -> tuple[Any, Any]:
    """Take (inputs, targets) from what a loader yields.

    Raises:
        DataError: If it is not a pair.
    """
    if isinstance(raw, list | tuple) and len(raw) == 2:
        return raw[0], raw[1]
    seen = f"{type(raw).__name__} of length {len(raw)}" if hasattr(raw, "__len__") else type(raw).__name__
    raise DataError(f"a loader yielded a {seen}; each batch must be a pair (inputs, targets). Wrap it in a collate_fn.")


def _order_is_ours(loader: DataLoader[Any]) -> bool:
    if isinstance(loader.dataset, IterableDataset) or loader.batch_size is None:
        return False
    if type(loader.batch_sampler) is not BatchSampler:
        return False
    sampler = loader.sampler
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(loader.dataset)  # type: ignore[arg-type]
    return type(sampler) is SequentialSampler


def _has_default_collate(loader: DataLoader[Any]) -> bool:
    return loader.num_workers == 0 and loader.collate_fn is torch.utils.data.default_collate


def _not_empty(data: Any) -> Any:
    if len(data) == 0:
        raise DataError("the training data has 0 samples; at least 1 is needed.")
    return data


def _padding_weights(share: Share) -> Tensor | None:
    return torch.zeros(1) if share.is_padding else None
