"""Two and more ranks train and evaluate as one process would."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from toys import Batches, Line, blobs, half_squared_error, in_order, small_net, trained, weights

from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.testing.ranks import on_ranks


class Answers(nn.Module):
    """Returns its input as class scores; nothing is learnt."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def _scores(flags: str) -> TensorDataset:
    """Return scores for two classes, right where the flag is 1; every target is class 0."""
    right = torch.tensor([flag == "1" for flag in flags])
    scores = torch.where(right[:, None], torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    return TensorDataset(scores, torch.zeros(len(flags), dtype=torch.int64))


def _evaluated(flags: str, kind: str) -> tuple[Any, Any]:
    data = _scores(flags)
    loader: Any = data
    if kind == "loader":
        loader = in_order(data, 4)
    if kind == "distributed":
        world = int(os.environ["WORLD_SIZE"])
        loader = DataLoader(data, 4, sampler=DistributedSampler(data, world, 0, shuffle=False))
    trainer = trained(Answers(), in_order(data, 4), epochs=1, lr=0.0, validation=loader)
    metrics = trainer.get_training_report()["history"][0]
    return metrics["accuracy"], metrics["val_loss"]


def test_evaluation_counts_each_sample_once_t4_eval_1() -> None:
    flags = "1" * 15 + "0" * 6
    alone = _evaluated(flags, "tensors")
    assert alone[0] == pytest.approx(15 / 21)
    for kind in ("tensors", "loader", "distributed"):
        for accuracy, loss in on_ranks(_evaluated, 2, flags, kind):
            assert accuracy == pytest.approx(alone[0])
            assert loss == pytest.approx(alone[1])


def test_ten_samples_on_four_ranks_eval_1() -> None:
    assert [accuracy for accuracy, _ in on_ranks(_evaluated, 4, "0011111110", "loader")] == pytest.approx([0.7] * 4)


def test_a_smaller_last_batch_weighs_less_eval_3() -> None:
    assert _evaluated("1111" + "1110" + "00", "loader")[0] == pytest.approx(0.7)


def _token_rank() -> float:
    a = torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.0, 1.0], [1.0, 3.0]])
    b = torch.tensor([[3.0, 2.0]])
    own = a if int(os.environ["RANK"]) == 0 else b
    model = Line()
    trained(model, Batches([(own[:, 0], own[:, 1])]).loader(), epochs=1, criterion=half_squared_error)
    return float(model.w.detach())


def test_ranks_with_unequal_batches_norm_3() -> None:
    assert on_ranks(_token_rank, 2) == pytest.approx([0.28, 0.28])


def _net_weights(batch: int, accumulation: int, config: dict[str, Any]) -> tuple[Tensor, Any]:
    net = small_net()
    trainer = trained(net, in_order(blobs(50), batch), epochs=2, gradient_accumulation_steps=accumulation, **config)
    return weights(net), trainer.get_training_report()["history"][-1]["train_loss"]


@pytest.mark.parametrize("config", [{}, {"clip_norm": 0.5}, {"strategies": {"label_smoothing": True}}])
def test_two_ranks_equal_one_process_with_the_same_effective_batch(config: dict[str, Any]) -> None:
    alone, loss = _net_weights(12, 1, config)
    for together, their_loss in on_ranks(_net_weights, 2, 3, 2, config):
        assert torch.allclose(alone, together, atol=1e-6)
        assert their_loss == pytest.approx(loss, abs=1e-6)


def _sampled() -> tuple[Tensor, list[int]]:
    net = small_net()
    config = {"adaptive_sampling": {"strategy": "high_loss", "update_freq": 3}, "strategies": {"ema": True}}
    trainer = trained(net, DataLoader(blobs(64), 4, shuffle=True), epochs=4, validation=blobs(20, seed=1), **config)
    return weights(net), [epoch["samples"] for epoch in trainer.get_training_report()["history"]]


def test_ranks_choose_the_same_samples_and_stay_equal() -> None:
    (first, counts), (second, other) = on_ranks(_sampled, 2)
    assert torch.equal(first, second)
    assert counts == other
    assert counts[0] == 64
    assert counts[1] < 64


def _one_bad_rank() -> tuple[Any, bool]:
    x = torch.ones(4, 1)
    if int(os.environ["RANK"]) == 1:
        x[1] = float("nan")
    net = nn.Linear(1, 1)
    batches = Batches([(x[i : i + 1], torch.ones(1, 1)) for i in range(4)]).loader()
    report = trained(net, batches, epochs=1, criterion=nn.MSELoss()).get_training_report()
    return (report["updates"], report["bad_steps"]), bool(torch.isfinite(weights(net)).all())


def test_all_ranks_pass_over_a_window_that_is_bad_on_one() -> None:
    assert on_ranks(_one_bad_rank, 2) == [((3, 1), True), ((3, 1), True)]


def _resumed(folder: str, first: int) -> tuple[Tensor, Any]:
    def make() -> tuple[nn.Module, MuseSparkTrainer]:
        net = small_net(dropout=0.3)
        torch.manual_seed(int(os.environ["RANK"]))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        config = {
            "checkpoint": {"save_dir": folder},
            "adaptive_sampling": {"update_freq": 3},
            "strategies": {"ema": True},
        }
        return net, MuseSparkTrainer(
            net, optimizer, nn.CrossEntropyLoss(), DataLoader(blobs(48), 4, shuffle=True), blobs(9), config
        )

    net, trainer = make()
    trainer.fit(epochs=first)
    if first < 5:
        net, trainer = make()
        trainer.fit(epochs=5)
    return weights(net), trainer.get_training_report()["epochs"]


def test_two_ranks_resume_bit_for_bit(tmp_path: Any) -> None:
    whole = on_ranks(_resumed, 2, str(tmp_path / "a"), 5)
    parts = on_ranks(_resumed, 2, str(tmp_path / "b"), 3)
    for (expected, _), (found, epochs) in zip(whole, parts, strict=True):
        assert epochs == 5
        assert torch.equal(expected, found)


class _Shard(IterableDataset[Any]):
    """A stream of which each rank has another number of batches."""

    def __init__(self, counts: list[int]) -> None:
        self.own = counts[int(os.environ["RANK"])]

    def __iter__(self) -> Any:
        data = blobs(8 * 8)
        start = 32 * int(os.environ["RANK"])
        x, y = (tensor[start : start + 4 * self.own].split(4) for tensor in data.tensors)
        return iter(list(zip(x, y, strict=True)))


def _train_on_shards(counts: list[int], criterion: str) -> tuple[list[float], list[int], int]:
    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loss = nn.CrossEntropyLoss() if criterion == "module" else nn.functional.cross_entropy
    trainer = MuseSparkTrainer(net, optimizer, loss, DataLoader(_Shard(counts), batch_size=None), None, {})
    report = trainer.fit(2)
    return weights(net).tolist(), [epoch["samples"] for epoch in report["history"]], report["updates"]


@pytest.mark.parametrize("criterion", ["module", "function"])
def test_shards_of_unequal_length_neither_hang_nor_repeat_samples(criterion: str) -> None:
    (first, samples, updates), (second, others, _) = on_ranks(_train_on_shards, 2, [5, 3], criterion)
    assert first == second
    assert samples == others == [32, 32]
    assert updates == 10


def test_a_rank_without_any_data_says_so() -> None:
    with pytest.raises(AssertionError, match="1 of 2 workers find no batch in their shard"):
        on_ranks(_train_on_shards, 2, [5, 0], "module")
