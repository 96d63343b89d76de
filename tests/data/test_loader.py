"""Windows from tensors, map-style data sets and loaders of one's own."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

from muse_spark_ray.data import Cut, open_source, split_pair
from muse_spark_ray.data.loader import ForeignSource, IndexedSource, Source, TensorSource
from muse_spark_ray.errors import DataError


class Numbers(Dataset[Any]):
    """Sample i is i."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[float, int]:
        return float(index), index


class Draws(Numbers):
    """Each sample is drawn anew from the three generators that people use."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        drawn = [float(np.random.rand()), random.random(), float(torch.rand(()))]
        return torch.tensor(drawn, dtype=torch.float64), index


class Stream(IterableDataset[Any]):
    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        return iter([(float(i), i) for i in range(self.samples)])


def tensors(samples: int) -> TensorDataset:
    return TensorDataset(torch.arange(samples, dtype=torch.float32), torch.arange(samples))


CUT = Cut(batch_size=4, accumulation=2, seed=5)


def seen(source: Source, epoch: int = 0, **reorder: Any) -> list[list[list[int]]]:
    """Return the targets of an epoch: windows of micro-batches of samples."""
    return [[batch.targets.tolist() for batch in window.batches] for window in source.windows(epoch, **reorder)]


def flat(windows: list[list[list[int]]]) -> list[int]:
    return [i for window in windows for batch in window for i in batch]


def kinds() -> dict[str, Callable[[], DataLoader[Any] | TensorDataset]]:
    return {
        "tensors": lambda: tensors(22),
        "tensor loader": lambda: DataLoader(tensors(22), 4, shuffle=True),
        "map-style": lambda: DataLoader(Numbers(22), 4, shuffle=True),
        "workers": lambda: DataLoader(Numbers(22), 4, shuffle=True, num_workers=2),
    }


@pytest.mark.parametrize("kind", list(kinds()))
def test_each_kind_of_data_has_the_same_order_and_cut(kind: str) -> None:
    source = open_source(kinds()[kind](), CUT)
    assert source.is_indexed
    windows = seen(source, epoch=3)
    assert windows == seen(open_source(tensors(22), CUT), epoch=3)
    assert sorted(flat(windows)) == list(range(22))
    assert [[len(batch) for batch in window] for window in windows] == [[4, 4], [4, 4], [4, 2]]
    assert source.windows_per_epoch(0) == 3
    assert windows != seen(source, epoch=4)


@pytest.mark.parametrize("kind", list(kinds()))
def test_indices_name_the_samples_and_weights_are_counts(kind: str) -> None:
    for window in open_source(kinds()[kind](), CUT).windows(1):
        for batch in window.batches:
            assert batch.indices is not None
            assert batch.indices.tolist() == batch.targets.tolist() == batch.inputs.long().tolist()
        assert window.weight == window.samples == sum(batch.size for batch in window.batches)


@pytest.mark.parametrize("kind", list(kinds()))
def test_a_strategy_orders_what_is_left_and_nothing_comes_twice(kind: str) -> None:
    asked = []

    def large_ones_first(left: Tensor) -> Tensor:
        asked.append(len(left))
        return left.sort(descending=True).values

    source = open_source(kinds()[kind](), CUT)
    windows = seen(source, reorder=large_ones_first, reorder_every=1)
    assert flat(windows) == list(range(21, -1, -1))
    assert asked == [22, 14, 6]


def test_a_strategy_may_leave_samples_out() -> None:
    source = open_source(tensors(22), CUT)
    windows = seen(source, reorder=lambda left: left[left % 2 == 0])
    assert sorted(flat(windows)) == list(range(0, 22, 2))


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_loaders_own_settings_hold(shuffle: bool, drop_last: bool) -> None:
    loader = DataLoader(Numbers(10), batch_size=3, shuffle=shuffle, drop_last=drop_last)
    source = open_source(loader, CUT)
    assert isinstance(source, IndexedSource)
    batches = [batch for window in seen(source) for batch in window]
    assert [len(batch) for batch in batches] == ([3, 3, 3] if drop_last else [3, 3, 3, 1])
    assert source.windows_per_epoch(0) == 2
    if not shuffle:
        assert [i for batch in batches for i in batch] == list(range(9 if drop_last else 10))


def test_a_batch_may_be_larger_than_the_data() -> None:
    assert [[len(b) for b in window] for window in seen(open_source(tensors(3), Cut(64, 8)))] == [[3]]


def test_a_collate_function_of_ones_own_is_used() -> None:
    def doubled(samples: list[Any]) -> tuple[Tensor, Tensor]:
        return torch.tensor([2 * x for x, _ in samples]), torch.tensor([y for _, y in samples])

    source = open_source(DataLoader(tensors(6), 3, collate_fn=doubled), CUT)
    assert isinstance(source, IndexedSource)
    batch = next(source.windows(0)).batches[0]
    assert batch.inputs.tolist() == [0.0, 2.0, 4.0]


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(tensors(10), 3, sampler=WeightedRandomSampler(torch.ones(10), 10)),
        DataLoader(tensors(10), batch_sampler=[[0, 1, 2], [3, 4], [5]]),
        DataLoader(Stream(10), 3),
        DataLoader(tensors(10), 3, sampler=torch.utils.data.RandomSampler(range(10), replacement=True)),
    ],
    ids=["sampler", "batch sampler", "stream", "with replacement"],
)
def test_an_order_that_is_not_ours_is_left_alone(loader: DataLoader[Any]) -> None:
    source = open_source(loader, CUT)
    assert isinstance(source, ForeignSource)
    assert not source.is_indexed
    windows = list(source.windows(0))
    assert all(batch.indices is None for window in windows for batch in window.batches)
    assert max(len(window.batches) for window in windows) == 2


def test_attributes_of_a_users_data_set_mean_what_the_user_means() -> None:
    class Named(Numbers):
        batches = "mine"
        batch_size = 7

    sampler = WeightedRandomSampler(torch.ones(10), 10)
    source = open_source(DataLoader(Named(10), 3, sampler=sampler), CUT)
    assert (source.batch_size, source.windows_per_epoch(0)) == (3, 2)
    unbatched = open_source(DataLoader(Named(10), None, sampler=sampler), CUT)
    assert unbatched.batch_size is None


@pytest.mark.filterwarnings("ignore")  # importing it reads all names of torch, deprecated ones too
def test_torchdata_loaders_are_read() -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    stream = open_source(stateful(Stream(10), 3), CUT)
    assert isinstance(stream, ForeignSource)
    assert flat(seen(stream)) == list(range(10))
    ours = open_source(stateful(tensors(10), 3, shuffle=True), CUT)
    assert sorted(flat(seen(ours))) == list(range(10))


def test_a_sampler_is_told_the_epoch_data_6() -> None:
    sampler = torch.utils.data.DistributedSampler(tensors(20), num_replicas=2, rank=0, seed=1)
    source = open_source(DataLoader(tensors(20), 5, sampler=sampler), CUT)
    first, second = flat(seen(source, 0)), flat(seen(source, 1))
    assert sorted(first) != sorted(second) or first != second
    assert first == flat(seen(source, 0))


@pytest.mark.parametrize("workers", [1, 2])
def test_two_ranks_share_each_epoch_without_repeats_data_6(workers: int) -> None:
    def epoch(rank: int, number: int) -> list[int]:
        loader = DataLoader(Numbers(20), 4, shuffle=True, num_workers=workers, persistent_workers=True)
        return flat(seen(open_source(loader, Cut(4, 1, seed=5, rank=rank, world_size=2)), number))

    for number in range(2):
        assert sorted(epoch(0, number) + epoch(1, number)) == list(range(20))
    assert epoch(0, 0) == epoch(0, 0) != epoch(0, 1)


def test_workers_draw_numbers_of_their_own_in_every_epoch_rng_1_t11() -> None:
    def drawn(seed: int, **reorder: Any) -> list[list[float]]:
        loader = DataLoader(Draws(8), 2, shuffle=True, num_workers=2)
        source = open_source(loader, Cut(2, 1, seed=seed))
        batches = [b for e in range(2) for window in source.windows(e, **reorder) for b in window.batches]
        return [sample for batch in batches for sample in batch.inputs.tolist()]

    first = drawn(3)
    for column in zip(*first, strict=True):
        assert len(set(column)) == 16
    assert drawn(3) == first
    assert drawn(4) != first
    # Re-ordering within an epoch starts workers anew; their numbers must not start anew as well.
    again = drawn(3, reorder=lambda left: left, reorder_every=2)
    assert all(len(set(column)) == 16 for column in zip(*again, strict=True))


def test_workers_end_with_their_epoch_and_when_it_is_broken_off(wait_until: Callable[..., None]) -> None:
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    source = open_source(DataLoader(Numbers(22), 4, shuffle=True, num_workers=2), CUT)
    seen(source)
    windows = source.windows(1)
    next(windows)
    windows.close()  # type: ignore[attr-defined]
    wait_until(
        lambda: {process.pid for process in psutil.Process().children(recursive=True)} <= before,
        why="the end of the loader's workers",
    )


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (DataLoader(tensors(0), 4), "0 samples"),
        (tensors(0), "0 samples"),
        ([1, 2], "is a list; it must be a torch DataLoader or a TensorDataset"),
        (Numbers(3), "is a Numbers"),
    ],
    ids=["empty loader", "empty tensors", "list", "data set"],
)
def test_what_is_no_training_data_is_named(data: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        open_source(data, CUT)


@pytest.mark.parametrize(
    ("raw", "seen"), [((1, 2, 3), "tuple of length 3"), (7, "int"), ({"x": 1}, "dict of length 1")]
)
def test_a_batch_that_is_no_pair_is_named(raw: Any, seen: str) -> None:
    with pytest.raises(DataError, match=seen):
        split_pair(raw)


def test_tensor_sources_slice_instead_of_collating() -> None:
    assert isinstance(open_source(DataLoader(tensors(8), 4), CUT), TensorSource)
