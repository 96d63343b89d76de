"""Loaders with an order of their own: a sampler of the user's, or an iterable data set, read as they are."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader

from muse_spark_ray.data.dealing import Dealing
from muse_spark_ray.data.known import split_pair
from muse_spark_ray.data.order import Cut
from muse_spark_ray.data.streams import ParquetStream
from muse_spark_ray.data.window import Position, Reorder, Window
from muse_spark_ray.errors import DataError
from muse_spark_ray.strategy import Batch
from muse_spark_ray.strategy.rng import load_rng_state, rng_state

logger = logging.getLogger(__name__)


class ForeignSource:
    """Each rank reads its loader; windows are sized by what comes.

    Going on in mid-epoch asks the loader first: torchdata's StatefulDataLoader and our own streams know where they
    stood. Any other loader is read again from the epoch's first batch with the random numbers of that moment, and what
    was trained on is thrown away.
    """

    is_indexed = False
    samples: int | None = None
    targets: Tensor | None = None
    lengths: Tensor | None = None

    def __init__(self, loader: DataLoader[Any], cut: Cut) -> None:
        self._loader = loader
        self._stream = loader.dataset if isinstance(loader.dataset, ParquetStream) else None
        self.batch_size: int | None = loader.batch_size if self._stream is None else self._stream.batch_size
        self._cut = replace(cut, batch_size=self.batch_size or cut.batch_size)

    def windows(
        self,
        epoch: int,
        reorder: Reorder | None = None,
        reorder_every: int | None = None,
        position: Position | None = None,
    ) -> Iterator[Window]:
        at = position if position is not None else Position()
        for owner in (self._loader.sampler, self._loader.dataset):
            if hasattr(owner, "set_epoch"):
                owner.set_epoch(epoch)
        groups = self._groups(self._cut.accumulation_at(epoch), self._open(epoch, at), at)
        if self._cut.world_size == 1:
            for group in groups:
                samples = sum(batch.size for batch in group)
                at.move(samples)
                yield Window(group, samples, samples)
        else:
            yield from self._together(groups, at)

    def keep_window(self, samples: int) -> None:
        self._cut = replace(self._cut, target=samples)

    def where(self, at: Position) -> dict[str, Any] | None:
        if at.loader is None:
            return None
        state = getattr(self._loader, "state_dict", None) if self._stream is None else None
        return {**at.loader, "loader": state() if state is not None else None}

    def _open(self, epoch: int, at: Position) -> Iterator[Any]:
        """Begin to read where a position is, and let it know what finding that place again takes."""
        before, size, workers = at.loader, self._cut.world_size, self._loader.num_workers
        at.loader = {"batches": 0, "world_size": size, "rng": rng_state(), "loader": None, "dealing": None}
        if before is None:
            if self._stream is not None:
                at.loader["dealing"] = self._stream.dealing(workers).state()
            return iter(self._loader)
        if self._stream is not None:
            dealing = Dealing.from_state(before["dealing"])
            at.loader["dealing"] = self._stream.go_on(epoch, dealing, before["ranks"], workers=workers).state()
            self._forget_workers()
            return _undisturbed(self._loader)
        is_same = before["world_size"] == size
        passed_over = before["batches"] if is_same else self._share_of(before)
        at.loader |= {"batches": passed_over, "rng": before["rng"]}
        if is_same and before["loader"] is not None:
            # What it holds without a state of its own, such as a sampler, it passes over as well.
            self._loader.load_state_dict(before["loader"])  # type: ignore[attr-defined]
            return _undisturbed(self._loader, as_at=before["rng"])
        return _undisturbed(self._loader, as_at=before["rng"], passing_over=passed_over)

    def _share_of(self, before: dict[str, Any]) -> int:
        """Return how many batches each rank passes over when others, in another number, had read some."""
        size, was, done = self._cut.world_size, int(before["world_size"]), int(before["batches"])
        share = round(done * was / size)
        logger.warning(
            "the loader has an order of its own and %d ranks had read %d batches each: each of %d ranks passes over its "
            "first %d. That repeats and leaves out nothing if rank r reads every %d-th batch of one common order.",
            was,
            done,
            size,
            share,
            size,
        )
        return share

    def _forget_workers(self) -> None:
        """Let workers that outlive an epoch be started anew: those there are know nothing of a resume."""
        if getattr(self._loader, "_iterator", None) is not None:
            self._loader._iterator = None

    def _groups(self, accumulation: int, batches: Iterator[Any], at: Position) -> Iterator[list[Batch]]:
        group: list[Batch] = []
        for raw in batches:
            batch = Batch(*split_pair(raw))
            if at.loader is not None:
                at.loader["batches"] += 1
            if batch.size == 0:
                continue
            group.append(batch)
            if len(group) == accumulation:
                yield group
                group = []
        if group:
            yield group

    def _together(self, groups: Iterator[list[Batch]], at: Position) -> Iterator[Window]:
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
            at.move(total)
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


def _undisturbed(
    loader: DataLoader[Any], *, as_at: dict[str, Any] | None = None, passing_over: int = 0
) -> Iterator[Any]:
    """Open a loader in mid-epoch, leaving the random streams as they are: the epoch's beginning drew from them before.

    Args:
        loader: The user's.
        as_at: Random streams to open and read it with.
        passing_over: Batches that are read for nothing.
    """
    now = rng_state()
    if as_at is not None:
        load_rng_state(as_at)
    batches = iter(loader)
    for _ in islice(batches, passing_over):
        pass
    load_rng_state(now)
    return batches


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
