"""The number of loader workers is found by trying."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.data import Cut, open_source
from muse_spark_ray.data.autotune import tune_workers
from muse_spark_ray.data.loader import IndexedSource


class Slow(Dataset[Any]):
    """Waits for each sample, as a disk would."""

    def __init__(self, seconds: float, samples: int = 64) -> None:
        self.seconds, self.samples = seconds, samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(self.seconds)
        return torch.tensor([float(index)]), index % 2


class SlowInTheTraining(Slow):
    """Waits only where no worker reads: what a worker brings is then far above the noise of a busy machine."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return super().__getitem__(index) if get_worker_info() is None else (torch.tensor([float(index)]), 0)


def _source(data: Dataset[Any]) -> IndexedSource:
    source = open_source(DataLoader(data, 4, shuffle=True), Cut(4, 1))
    assert isinstance(source, IndexedSource)
    return source


def test_data_at_hand_are_read_without_workers() -> None:
    source = _source(Slow(0.0))
    tried = tune_workers(source, seconds=0.2, most=4)
    assert source.workers == 0
    assert [trial.workers for trial in tried][:2] == [0, 1]


def test_slow_data_get_workers_of_their_own() -> None:
    source = _source(SlowInTheTraining(0.2, samples=1000))
    tried = tune_workers(source, seconds=0.5, most=2)
    assert source.workers > 0
    assert tried[1].workers == 1
    assert tried[1].samples_per_second > 1.5 * tried[0].samples_per_second
    order = [int(i) for window in source.windows(0) for batch in window.batches for i in batch.inputs]
    assert sorted(order) == list(range(1000))


def test_the_trainer_tells_what_it_tried() -> None:
    config = {"loader": "auto"}
    report = MuseSparkTrainer(nn.Linear(1, 2), None, None, DataLoader(Slow(0.0), 8), None, config).fit(1)
    assert report["loader"][0]["workers"] == 0
    assert report["loader"][0]["samples_per_second"] > 0
    plain = MuseSparkTrainer(nn.Linear(1, 2), None, None, DataLoader(Slow(0.0), 8), None, {}).fit(1)
    assert plain["loader"] == []
