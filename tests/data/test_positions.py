"""An epoch that is broken off goes on where it stopped: same samples, same order, on any number of ranks."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset, WeightedRandomSampler

from muse_spark_ray.data import Cut, DataConfig, Position, StreamPart, load_task, open_source
from muse_spark_ray.data.dealing import Dealing
from muse_spark_ray.data.window import Source
from muse_spark_ray.strategy.rng import load_rng_state, rng_state, seed_everything

SAMPLES = 40


class Draws(Dataset[Any]):
    """Each sample is drawn anew from the three generators that people use."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        drawn = [float(np.random.rand()), random.random(), float(torch.rand(()))]
        return torch.tensor(drawn, dtype=torch.float64), index


def _tensors() -> TensorDataset:
    return TensorDataset(torch.arange(SAMPLES, dtype=torch.float32), torch.arange(SAMPLES))


def _weighted() -> DataLoader[Any]:
    return DataLoader(_tensors(), 4, sampler=WeightedRandomSampler(torch.arange(1.0, SAMPLES + 1), SAMPLES))


def _stateful(workers: int) -> DataLoader[Any]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader: DataLoader[Any] = StatefulDataLoader(
        _tensors(), 4, sampler=WeightedRandomSampler(torch.ones(SAMPLES), SAMPLES), num_workers=workers
    )
    return loader


KINDS: dict[str, Callable[[], Any]] = {
    "tensors": _tensors,
    "map-style": lambda: DataLoader(Draws(), 4, shuffle=True),
    "workers": lambda: DataLoader(Draws(), 4, shuffle=True, num_workers=2, prefetch_factor=3),
    "sampler": _weighted,
    "sampler and workers": lambda: DataLoader(
        Draws(), 4, sampler=WeightedRandomSampler(torch.ones(SAMPLES), SAMPLES), num_workers=2
    ),
}


def _values(windows: Iterator[Any]) -> list[Any]:
    """Read windows, drawing random numbers between them as a network with dropout would."""
    read = []
    for window in windows:
        read.append([(batch.inputs.tolist(), batch.targets.tolist()) for batch in window.batches])
        torch.rand(3)
    return read


def _saved(source: Source, at: Position) -> Position:
    """Return a position as a checkpoint would bring it back, with one rank."""
    state = copy.deepcopy(at.state_dict())
    state["loader"] = copy.deepcopy(source.where(at))
    if state["loader"] is not None:
        state["loader"]["ranks"] = [state["loader"]["batches"]]
    return Position(**state)


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("accumulation", [1, 3])
def test_the_rest_of_an_epoch_is_the_same_data_1(kind: str, accumulation: int) -> None:
    cut = Cut(4, accumulation, seed=5)
    for stop in (1, 2, 3):
        seed_everything(3)
        source, at = open_source(KINDS[kind](), cut), Position()
        windows = source.windows(1, position=at)
        _values(itertools.islice(windows, stop))
        saved, streams = _saved(source, at), rng_state()
        rest = _values(windows)
        seed_everything(99)
        load_rng_state(streams)
        assert _values(open_source(KINDS[kind](), cut).windows(1, position=saved)) == rest
        assert rest


@pytest.mark.filterwarnings("ignore")  # importing it reads all names of torch, deprecated ones too
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_is_asked_where_it_stood(workers: int) -> None:
    cut = Cut(4, 1)
    torch.manual_seed(0)
    source, at = open_source(_stateful(workers), cut), Position()
    windows = source.windows(0, position=at)
    _values(itertools.islice(windows, 4))
    saved = _saved(source, at)
    rest = _values(windows)
    torch.manual_seed(1)
    assert _values(open_source(_stateful(workers), cut).windows(0, position=saved)) == rest
    assert len(rest) == 6


def test_the_first_epoch_after_a_resume_has_its_own_order_data_5() -> None:
    def order(source: Source, epoch: int) -> list[Any]:
        return [batch.targets.tolist() for window in source.windows(epoch) for batch in window.batches]

    def make() -> Source:
        return open_source(DataLoader(Draws(), 4, shuffle=True, num_workers=2), Cut(4, 1, seed=5))

    whole = [order(source, epoch) for source in [make()] for epoch in range(3)]
    assert order(make(), 2) == whole[2] != whole[0]


def _halves(order: Tensor) -> Tensor:
    """Leave out every third of the samples left; those come back when the rest is ordered anew."""
    return order[torch.arange(len(order)) % 3 != 2]


@given(
    samples=st.integers(1, 60),
    batch=st.integers(1, 5),
    before=st.integers(1, 4),
    now=st.integers(1, 4),
    stop=st.integers(0, 12),
    reorders=st.booleans(),
    keeps=st.booleans(),
)
def test_other_ranks_go_on_with_each_sample_once_data_7(
    samples: int, batch: int, before: int, now: int, stop: int, reorders: bool, keeps: bool
) -> None:
    data = TensorDataset(torch.arange(samples, dtype=torch.float32), torch.arange(samples))
    more: dict[str, Any] = {"reorder": _halves, "reorder_every": 2} if reorders else {}

    def read(cut: Cut, at: Position | None = None, most: int | None = None, window: int | None = None) -> Any:
        source, at = open_source(data, cut), at or Position()
        if window is not None:
            source.keep_window(window)
        own = []
        for w in itertools.islice(source.windows(2, position=at, **more), most):
            own.append([i for b in w.batches if b.weight > 0 for i in b.indices.tolist()])
        return own, at

    first = [read(Cut(batch, 1, 7, rank, before), most=stop) for rank in range(before)]
    assert len({(at.windows, at.samples) for _, at in first}) == 1
    kept = batch * before if keeps else None
    second = [read(Cut(batch, 1, 7, rank, now), copy.deepcopy(first[0][1]), window=kept)[0] for rank in range(now)]
    assert len({len(own) for own in second}) == 1
    windows = [[i for own in together for i in own] for together in zip(*second, strict=True)]
    seen = [i for own, _ in first for window in own for i in window] + [i for window in windows for i in window]
    if keeps:
        # The samples of each window are those that it would have had without the change.
        alone, _ = read(Cut(batch * before, 1, 7))
        assert [sorted(window) for window in windows] == [sorted(window) for window in alone[first[0][1].windows :]]
    assert len(seen) == len(set(seen))
    if not reorders:
        assert sorted(seen) == list(range(samples))


def test_eight_of_twenty_done_at_two_ranks_go_on_at_three_data_7() -> None:
    data = TensorDataset(torch.zeros(20), torch.arange(20))
    for done, shares in ((2, [4, 4, 4]), (0, [7, 7, 6])):
        at = Position()
        ranks = [open_source(data, Cut(2, 1, rank=rank, world_size=2)) for rank in range(2)]
        list(itertools.islice(ranks[0].windows(1, position=at), done))
        own = []
        for rank in range(3):
            source = open_source(data, Cut(2, 1, rank=rank, world_size=3))
            windows = source.windows(1, position=copy.deepcopy(at))
            own.append(sum(int(batch.weight) for window in windows for batch in window.batches))
        assert own == shares


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    worlds=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=2, max_size=4),
    data=st.data(),
)
def test_hands_of_a_stream_pass_from_readers_to_readers(
    sizes: list[int], worlds: list[tuple[int, int]], data: st.DataObject
) -> None:
    ranks, workers = worlds[0]
    sizes = (sizes * (ranks * workers))[: ranks * workers]
    dealing = Dealing.fresh(ranks, workers)
    seen: list[tuple[int, int]] = []
    for number, (next_ranks, next_workers) in enumerate([*worlds[1:], (1, 1)]):
        orders = [_batches(dealing, sizes, rank) for rank in range(ranks)]
        is_last = number == len(worlds) - 1
        done = [len(own) if is_last else data.draw(st.integers(0, len(own))) for own in orders]
        seen += [batch for own, count in zip(orders, done, strict=True) for batch in own[:count]]
        assert [dealing.batches_left(sizes, rank) for rank in range(ranks)] == [len(own) for own in orders]
        again = dealing.go_on(sizes, done, ranks=ranks, workers=workers)
        for rank in range(ranks):
            assert _batches(again, sizes, rank) == orders[rank][done[rank] :]
        dealing = Dealing.from_state(dealing.go_on(sizes, done, ranks=next_ranks, workers=next_workers).state())
        ranks, workers = next_ranks, next_workers
    assert sorted(seen) == [(hand, i) for hand, size in enumerate(sizes) for i in range(size)]


def _batches(dealing: Dealing, sizes: Sequence[int], rank: int) -> list[tuple[int, int]]:
    """Return the batches that a rank's loader yields, taking turns among its workers, as (hand, number)."""
    own = dealing.readers[rank * dealing.workers : (rank + 1) * dealing.workers]
    queues = [[(hand, i) for hand, done in reader for i in range(done, sizes[hand])] for reader in own]
    order = []
    while any(queues):
        for queue in queues:
            if queue:
                order.append(queue.pop(0))
    return order


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> StreamPart:
    folder: Path = tmp_path_factory.mktemp("stream")
    for part, numbers in enumerate(np.array_split(np.arange(330), 3)):
        table = pa.table({"number": numbers, "flag": numbers % 3 == 0, "label": numbers % 2})
        pq.write_table(table, folder / f"part{part}.parquet", row_group_size=20)
    part = load_task(DataConfig(name="parquet", path=str(folder), stream=True)).train
    assert isinstance(part, StreamPart)
    return part


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_stream_goes_on_in_its_order(stream: StreamPart, workers: int) -> None:
    cut = Cut(16, 2)
    for stop in (1, 3, 4):
        source, at = open_source(stream.loader(16, seed=4, workers=workers), cut), Position()
        windows = source.windows(1, position=at)
        _values(itertools.islice(windows, stop))
        saved = _saved(source, at)
        rest = _values(windows)
        later = open_source(stream.loader(16, seed=4, workers=workers), cut)
        assert _values(later.windows(1, position=copy.deepcopy(saved))) == rest
        # The same loader, with workers that are still there, goes back as well, and then has whole epochs again.
        assert _values(source.windows(1, position=copy.deepcopy(saved))) == rest
        assert _values(later.windows(2)) == _values(source.windows(2))
        # Others read the same rows in another order.
        other = open_source(stream.loader(16, seed=4, workers=2 - workers), cut)
        assert _rows(_values(other.windows(1, position=copy.deepcopy(saved)))) == _rows(rest)


def _rows(values: list[Any]) -> list[Any]:
    return sorted(row for window in values for inputs, _ in window for row in inputs)
