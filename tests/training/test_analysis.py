"""The hardest samples and decision thresholds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from toys import blobs, in_order, small_net, trained

from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.errors import ConfigError
from muse_spark_ray.testing.ranks import on_ranks
from muse_spark_ray.training.analysis import best_thresholds


def _with_wrong_labels() -> TensorDataset:
    x, y = blobs(90).tensors
    y = y.clone()
    y[[7, 30, 61]] = (y[[7, 30, 61]] + 1) % 3
    return TensorDataset(x, y)


def test_wrong_labels_are_the_hardest_samples() -> None:
    data = _with_wrong_labels()
    trainer = trained(small_net(), data, epochs=30, batch_size=16, analysis={"hardest_samples": 3})
    found = trainer.hardest_samples(3)
    assert {row["index"] for row in found} == {7, 30, 61}
    assert all(row["predicted"] != row["target"] == int(data.tensors[1][row["index"]]) for row in found)
    assert [row["loss"] for row in found] == sorted((row["loss"] for row in found), reverse=True)
    assert trainer.fit(30)["hardest_samples"] == found


def _on_a_rank() -> list[dict[str, Any]]:
    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    trainer = MuseSparkTrainer(net, optimizer, None, in_order(_with_wrong_labels(), 8), None, {})
    trainer.fit(20)
    return trainer.hardest_samples(4)


def test_ranks_find_the_same() -> None:
    first, second = on_ranks(_on_a_rank, 2)
    assert first == second
    assert {7, 30, 61} <= {row["index"] for row in first}


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([(torch.zeros(4), 0)] * 4)


def test_a_stream_has_no_samples_to_name() -> None:
    trainer = MuseSparkTrainer(small_net(), None, nn.CrossEntropyLoss(), DataLoader(Stream(), 2), None, {})
    with pytest.raises(ConfigError, match="known only for data whose order"):
        trainer.hardest_samples()


def test_a_threshold_is_the_best_of_all() -> None:
    generator = np.random.default_rng(0)
    y = (generator.random(300) < 0.2).astype(int)
    p = np.clip(0.3 * y + 0.5 * generator.random(300), 0, 1)
    (_, one) = best_thresholds(np.stack([1 - p, p], 1), y, goal="f1")
    every = [f1_score(y, p >= t) for t in np.unique(p)]
    assert one["value"] == pytest.approx(max(every))
    assert f1_score(y, p >= one["threshold"]) == pytest.approx(max(every))
    assert one["at_half"] == pytest.approx(f1_score(y, p >= 0.5))
    costly = best_thresholds(np.stack([1 - p, p], 1), y, goal="utility", utility=[[0, -9], [0, 1]])[1]
    assert costly["threshold"] > one["threshold"]


def test_a_class_that_does_not_occur_has_no_threshold() -> None:
    p = np.full((4, 3), 1 / 3)
    assert [row["class"] for row in best_thresholds(p, np.array([0, 0, 2, 2]), goal="youden")] == [0, 2]


def test_thresholds_come_from_the_validation_set() -> None:
    trainer = trained(small_net(), blobs(), epochs=5, validation=blobs(30, seed=1), analysis={"thresholds": "f1"})
    assert [row["class"] for row in trainer.fit(5)["thresholds"]] == [0, 1, 2]
    with pytest.raises(ConfigError, match="val_loader is None"):
        trained(small_net(), blobs(), epochs=1).tune_thresholds()
