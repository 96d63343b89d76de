"""Running out of memory: smaller micro-batches that mean the same, and the search for the largest that fits."""

from __future__ import annotations

import logging
import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toys import blobs, in_order, small_net, trained, weights

from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.errors import TrialError
from muse_spark_ray.strategy import Batch
from muse_spark_ray.testing.ranks import on_ranks
from muse_spark_ray.training.memory import cut_batch, fits_in_memory, largest_batch


class Crowded(nn.Module):
    """A network that runs out of memory for more than so many samples in training."""

    def __init__(self, largest: int) -> None:
        super().__init__()
        self.inner = small_net()
        self.largest = largest
        self.sizes: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.sizes.append(len(x))
            if len(x) > self.largest:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        result: Tensor = self.inner(x)
        return result


def test_a_batch_that_does_not_fit_is_halved_and_means_the_same_oom_3(caplog: pytest.LogCaptureFixture) -> None:
    roomy, crowded = Crowded(16), Crowded(8)
    with caplog.at_level(logging.WARNING):
        reports = [trained(m, in_order(blobs(64), 16), epochs=2).get_training_report() for m in (roomy, crowded)]
    assert torch.allclose(weights(roomy), weights(crowded), atol=1e-6)
    assert [r["updates"] for r in reports] == [8, 8]
    assert [r["effective_batch_size"] for r in reports] == [16, 16]
    assert [r["micro_batch"] for r in reports] == [16, 8]
    assert reports[0]["history"][1]["train_loss"] == pytest.approx(reports[1]["history"][1]["train_loss"], abs=1e-6)
    assert crowded.sizes == [16] + [8] * 16
    assert [r.message for r in caplog.records] == [
        "out of memory with a micro-batch of 16 samples: going on with 8 and as many more of them in an update; the "
        "effective batch size and the loss stay the same."
    ]


def test_halving_ends_at_the_floor_oom_3() -> None:
    model = Crowded(2)
    with pytest.raises(TrialError, match=r"micro-batch of 4 sample\(s\); the floor min_micro_batch is 3"):
        trained(model, in_order(blobs(64), 16), epochs=1, min_micro_batch=3)
    assert model.sizes == [16, 8, 4]


def test_a_single_sample_that_does_not_fit_ends_the_training_oom_3() -> None:
    with pytest.raises(TrialError, match="out of memory with a micro-batch of 1 sample"):
        trained(Crowded(0), in_order(blobs(8), 4), epochs=1)


def test_an_odd_size_is_halved_upwards() -> None:
    model = Crowded(4)
    trained(model, in_order(blobs(7), 7), epochs=1)
    assert model.sizes == [7, 4, 3]


def _on_a_rank(folder: str) -> tuple[list[float], list[int]]:
    rank = int(os.environ["RANK"])
    model = Crowded(4 if rank == 0 else 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config: dict[str, Any] = {"gradient_accumulation_steps": 2}
    MuseSparkTrainer(model, optimizer, nn.CrossEntropyLoss(), in_order(blobs(64), 8), None, config).fit(2)
    return weights(model).tolist(), model.sizes


def test_one_rank_may_cut_its_micro_batches_alone(tmp_path: Any) -> None:
    (first, sizes), (second, others) = on_ranks(_on_a_rank, 2, str(tmp_path))
    assert first == second
    assert sizes == [8] + [4] * 16
    assert others == [8] * 8
    whole = small_net()
    trained(whole, in_order(blobs(64), 32), epochs=2)
    assert torch.allclose(torch.tensor(first), weights(whole), atol=1e-6)


def test_pieces_of_a_batch_hold_it_all() -> None:
    batch = Batch({"a": torch.arange(5), "b": [torch.arange(5) * 2]}, torch.arange(5), torch.arange(5), torch.rand(5))
    pieces = cut_batch(batch, 2)
    assert [piece.size for piece in pieces] == [2, 2, 1]
    assert torch.cat([piece.inputs["a"] for piece in pieces]).tolist() == [0, 1, 2, 3, 4]
    assert torch.cat([piece.inputs["b"][0] for piece in pieces]).tolist() == [0, 2, 4, 6, 8]
    assert sum(piece.weight for piece in pieces) == pytest.approx(batch.weight)
    assert cut_batch(batch, 5) == [batch]


@pytest.mark.parametrize(("room", "start", "tries", "found"), [(8, 2, 3, 8), (5, 2, 3, 4), (3, 16, 9, 2), (1, 2, 9, 1)])
def test_the_largest_batch_is_one_that_was_tried_oom_1(room: int, start: int, tries: int, found: int) -> None:
    tried = []

    def step(size: int) -> None:
        tried.append(size)
        if size > room:
            raise torch.OutOfMemoryError("out of memory")

    assert largest_batch(fits_in_memory(step), start=start, tries=tries) == found
    assert found in tried
    assert len(tried) <= tries


def test_nothing_fits_oom_1() -> None:
    with pytest.raises(TrialError, match=r"no batch size fits into memory: 1 sample\(s\) did not"):
        largest_batch(lambda size: False, start=2, tries=9)
