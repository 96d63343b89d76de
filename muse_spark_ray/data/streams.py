"""Data larger than memory: row groups of Parquet files, dealt out to ranks and loader workers, mixed in a buffer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from muse_spark_ray.data.dealing import Dealing
from muse_spark_ray.data.order import epoch_order
from muse_spark_ray.data.readers.parquet import ParquetTable
from muse_spark_ray.data.survey import Survey
from muse_spark_ray.strategy.randomness import seeded

BUFFER_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class StreamPart:
    """One part of a table, for training or validation; it holds no rows itself.

    Args:
        table: The table.
        parts: Numbers of the row groups that belong to this part.
        survey: What is known of the whole table.
    """

    table: ParquetTable
    parts: tuple[int, ...]
    survey: Survey

    def __len__(self) -> int:
        return sum(self.survey.rows[part] for part in self.parts)

    def loader(
        self, batch_size: int, *, seed: int = 0, shuffle: bool = True, workers: int = 0
    ) -> DataLoader[tuple[Tensor, Tensor]]:
        """Return a loader of batches for MuseSparkTrainer or a loop of one's own.

        Args:
            batch_size: Rows in a batch; the last one of a rank or worker may have fewer.
            seed: Of the order.
            shuffle: False for the stored order.
            workers: Processes that read and decode.
        """
        stream = ParquetStream(self, batch_size, seed=seed, shuffle=shuffle)
        return DataLoader(stream, batch_size=None, num_workers=workers, persistent_workers=workers > 0)


class ParquetStream(IterableDataset[tuple[Tensor, Tensor]]):
    """Batches of a table's rows, each row once an epoch over all ranks and loader workers.

    An epoch's row groups are put in a random order and dealt out: each goes to the reader that has the fewest rows so
    far. A reader mixes its rows in a buffer. All of it is a function of seed and epoch, so no rank asks another.

    Args:
        part: The rows.
        batch_size: Rows in a batch.
        seed: Of the order.
        shuffle: False for the stored order.
        buffer_rows: Rows that are mixed with each other, over as many row groups as that takes.

    Yields:
        (inputs [B, columns] float32, scaled; targets [B] int64 class ids or [B, 1] float32).
    """

    def __init__(
        self, part: StreamPart, batch_size: int, *, seed: int = 0, shuffle: bool = True, buffer_rows: int = BUFFER_ROWS
    ) -> None:
        self._part = part
        self.batch_size = batch_size
        self._seed = seed
        self._shuffle = shuffle
        self._buffer_rows = buffer_rows
        # Shared with loader workers that outlive an epoch.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._rank, self._world_size = 0, 1
        self._resumed: tuple[int, Dealing] | None = None
        self._look_at_ranks()

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next pass."""
        self._epoch.fill_(epoch)

    def batches(self, epoch: int, workers: int) -> int:
        """Return how many batches the rank with the most of them yields in an epoch, with so many loader workers."""
        self._look_at_ranks()
        dealing = Dealing.fresh(self._world_size, max(1, workers))
        sizes = self._sizes(self._dealt(epoch, dealing.hands))
        return max(dealing.batches_left(sizes, rank) for rank in range(self._world_size))

    def dealing(self, workers: int) -> Dealing:
        """Return who reads what, with so many loader workers, when an epoch begins."""
        self._look_at_ranks()
        return Dealing.fresh(self._world_size, max(1, workers))

    def go_on(self, epoch: int, before: Dealing, done: Sequence[int], *, workers: int) -> Dealing:
        """Begin that epoch, the next time it is read, where others stopped.

        Args:
            epoch: Epoch, from 0.
            before: Who read what.
            done: Batches that each rank took, then.
            workers: Loader workers of a rank now.

        Returns:
            Who reads what from now on; the epochs after this one are dealt afresh.
        """
        self._look_at_ranks()
        sizes = self._sizes(self._dealt(epoch, before.hands))
        dealing = before.go_on(sizes, done, ranks=self._world_size, workers=max(1, workers))
        self._resumed = (epoch, dealing)
        return dealing

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self._look_at_ranks()
        worker = get_worker_info()
        number, readers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        epoch, reader = int(self._epoch), self._rank * readers + number
        dealing = Dealing.fresh(self._world_size, readers)
        if self._resumed is not None and self._resumed[0] == epoch:
            dealing = self._resumed[1]
        dealt = self._dealt(epoch, dealing.hands)
        for hand, done in dealing.readers[reader]:
            yield from islice(self._read_hand(epoch, hand, dealt[hand], threads=worker is None), done, None)

    def _read_hand(
        self, epoch: int, hand: int, parts: Sequence[int], *, threads: bool
    ) -> Iterator[tuple[Tensor, Tensor]]:
        generator = seeded(self._seed, epoch, hand)
        held: list[tuple[Tensor, Tensor]] = []
        rows = 0
        for part in parts:
            held.append(self._read(part, threads=threads))
            rows += len(held[-1][0])
            if rows >= max(self._buffer_rows, self.batch_size):
                batches = self._cut(held, generator)
                held = [batches.pop()] if rows % self.batch_size else []
                rows %= self.batch_size
                yield from batches
        if rows:
            yield from self._cut(held, generator)

    def __getstate__(self) -> dict[str, Any]:
        self._look_at_ranks()  # a loader worker that is started afresh knows of no process group
        return self.__dict__

    def _look_at_ranks(self) -> None:
        if dist.is_available() and dist.is_initialized():
            self._rank, self._world_size = dist.get_rank(), dist.get_world_size()

    def _dealt(self, epoch: int, readers: int) -> list[list[int]]:
        order = epoch_order(len(self._part.parts), seed=self._seed, epoch=epoch, shuffle=self._shuffle)
        dealt: list[list[int]] = [[] for _ in range(readers)]
        loads = [0] * readers
        for number in order.tolist():
            part = self._part.parts[number]
            reader = loads.index(min(loads))
            dealt[reader].append(part)
            loads[reader] += self._rows([part])
        return dealt

    def _sizes(self, dealt: Sequence[Sequence[int]]) -> list[int]:
        """Return the batches in each hand."""
        return [-(-self._rows(parts) // self.batch_size) for parts in dealt]

    def _rows(self, parts: Sequence[int]) -> int:
        return sum(self._part.survey.rows[part] for part in parts)

    def _read(self, part: int, *, threads: bool) -> tuple[Tensor, Tensor]:
        table, survey = self._part.table, self._part.survey
        found = table.read([part], threads=threads)
        return survey.scaled(table.inputs_of(found)), survey.encoded(table.targets_of(found))

    def _cut(self, held: list[tuple[Tensor, Tensor]], generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
        inputs, targets = (torch.cat(values) for values in zip(*held, strict=True))
        if self._shuffle:
            mixed = torch.randperm(len(inputs), generator=generator)
            inputs, targets = inputs[mixed], targets[mixed]
        return list(zip(torch.split(inputs, self.batch_size), torch.split(targets, self.batch_size), strict=True))


def held_out_parts(table: ParquetTable, *, fraction: float, seed: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Choose row groups for validation, at random, until they hold about `fraction` of the rows.

    Returns:
        (training parts, held-out parts), each in the stored order and neither empty; there must be two parts.
    """
    sizes = np.array([table.rows_in(part) for part in range(len(table.parts))])
    order = np.random.default_rng(seed).permutation(len(sizes))
    count = 1 + int(np.searchsorted(np.cumsum(sizes[order]), fraction * sizes.sum()))
    held_out = order[: min(count, len(sizes) - 1)]
    train = np.setdiff1d(order, held_out)
    return tuple(train.tolist()), tuple(sorted(held_out.tolist()))
