"""Reading a map-style data set by worker processes, each batch with random numbers of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from muse_spark_ray.strategy.randomness import seeded
from muse_spark_ray.strategy.rng import seed_everything


class Batches(Dataset[Any]):
    """A data set whose items are whole batches, named by what seeds them and the samples in them.

    A batch read by a worker is then the same whether the worker read others before it or a resumed training begins
    with it.

    Args:
        dataset: The user's, map-style.
        collate: Makes a batch of samples.
    """

    def __init__(self, dataset: Any, collate: Callable[[Any], Any]) -> None:
        self.dataset = dataset
        self._collate = collate
        self._many = getattr(dataset, "__getitems__", None)

    def __getitem__(self, name: tuple[Sequence[int], list[int]]) -> Any:
        numbers, indices = name
        seed_everything(seeded(*numbers).initial_seed())
        return self.fetch(indices)

    def fetch(self, indices: list[int]) -> Any:
        """Read a batch with whatever random numbers come next."""
        if self._many is not None:
            return self._collate(self._many(indices))
        return self._collate([self.dataset[i] for i in indices])


def read_by_workers(
    theirs: DataLoader[Any],
    batches: Batches,
    names: Sequence[tuple[Sequence[int], list[int]]],
    *,
    workers: int,
    seed: int,
) -> Iterator[Any]:
    """Read batches in order by new worker processes, with the settings of the user's loader.

    Args:
        theirs: The user's loader.
        batches: Its data set, by batches.
        names: Of the batches: the numbers that seed it, the samples in it.
        workers: Processes.
        seed: Of what `worker_init_fn` draws.
    """
    return iter(
        DataLoader(
            batches,
            batch_size=None,
            sampler=names,
            num_workers=workers,
            collate_fn=_as_it_is,
            pin_memory=theirs.pin_memory,
            timeout=theirs.timeout,
            worker_init_fn=_Initialise(theirs.worker_init_fn),
            multiprocessing_context=theirs.multiprocessing_context,
            prefetch_factor=theirs.prefetch_factor if theirs.num_workers else None,
            generator=torch.Generator().manual_seed(seed),
        )
    )


class _Initialise:
    """Shows the user's `worker_init_fn` the user's data set."""

    def __init__(self, theirs: Callable[[int], Any] | None) -> None:
        self._theirs = theirs

    def __call__(self, worker: int) -> None:
        info: Any = get_worker_info()
        object.__setattr__(info, "dataset", info.dataset.dataset)  # it refuses a plain assignment
        if self._theirs is not None:
            self._theirs(worker)


def _as_it_is(batch: Any) -> Any:
    return batch
