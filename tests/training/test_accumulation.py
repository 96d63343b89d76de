"""Windows of micro-batches: a window's gradient is the mean over its samples, whatever its shape."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from toys import Batches, GradientLog, Line, blobs, half_squared_error, in_order, small_net, trained, weights

from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.errors import ConfigError


def test_accumulation_equals_the_big_batch_t1() -> None:
    small, big = nn.Linear(4, 3), nn.Linear(4, 3)
    big.load_state_dict(small.state_dict())
    data = blobs(96)
    trained(small, in_order(data, 8), epochs=3, gradient_accumulation_steps=4)
    trained(big, in_order(data, 32), epochs=3)
    assert torch.allclose(weights(small), weights(big), atol=1e-6)


def test_ragged_last_window_t2() -> None:
    x = torch.arange(10.0)
    model = Line()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    log = GradientLog(optimizer)
    loader = in_order(TensorDataset(x, 2 * x), 4)
    MuseSparkTrainer(model, optimizer, nn.MSELoss(), loader, None, {"gradient_accumulation_steps": 2}).fit(epochs=1)
    assert [gradient[0] for gradient in log.gradients] == pytest.approx([-70.0, -290.0])


def _tokens() -> list[tuple[torch.Tensor, torch.Tensor]]:
    a = torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.0, 1.0], [1.0, 3.0]])
    b = torch.tensor([[3.0, 2.0]])
    return [(a[:, 0], a[:, 1]), (b[:, 0], b[:, 1])]


def test_micro_batches_of_unequal_size_weigh_by_their_tokens_norm_1() -> None:
    model = Line()
    trainer = trained(
        model, Batches(_tokens()).loader(), epochs=1, criterion=half_squared_error, gradient_accumulation_steps=2
    )
    assert model.w.item() == pytest.approx(0.28)
    assert trainer.get_training_report()["history"][0]["train_loss"] == pytest.approx(1.9)


def test_an_epoch_shorter_than_the_window_still_updates_norm_6() -> None:
    model = Line()
    batches = [(torch.tensor([c]), torch.zeros(1)) for c in (3.0, 6.0, 9.0)]
    trainer = MuseSparkTrainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda outputs, targets: -outputs.mean(),
        Batches(batches).loader(),
        None,
        {"gradient_accumulation_steps": 4},
    )
    trainer.fit(epochs=1)
    assert model.w.item() == pytest.approx(0.6)
    assert trainer.fit(epochs=2)["updates"] == 2
    assert model.w.item() == pytest.approx(1.2)


def test_class_weights_are_normalised_over_the_window_loss_3() -> None:
    z = torch.tensor([[2.0, 1, 0], [0, 1, 2], [1, 1, 1]])
    y = torch.tensor([0, 2, 1])
    bias = nn.Linear(3, 3)
    nn.init.eye_(bias.weight)
    nn.init.zeros_(bias.bias)
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2, 4]))
    batches = Batches([(z[:2], y[:2]), (z[2:], y[2:])]).loader()
    trainer = trained(bias, batches, epochs=1, lr=0.0, criterion=criterion, gradient_accumulation_steps=2)
    assert trainer.get_training_report()["history"][0]["train_loss"] == pytest.approx(0.605036, abs=1e-6)


@pytest.mark.parametrize("accumulation", [1, 3, 4, 7])
@pytest.mark.parametrize("batch_size", [1, 5, 16])
def test_every_sample_counts_once_an_epoch(accumulation: int, batch_size: int) -> None:
    trainer = trained(small_net(), in_order(blobs(50), batch_size), epochs=2, gradient_accumulation_steps=accumulation)
    history = trainer.get_training_report()["history"]
    assert [epoch["samples"] for epoch in history] == [50, 50]
    batches = -(-50 // batch_size)
    assert history[-1]["updates"] == 2 * -(-batches // accumulation)


def test_a_criterion_that_sums_is_refused() -> None:
    with pytest.raises(ConfigError, match="reduction='sum'"):
        trained(small_net(), in_order(blobs(), 8), epochs=1, criterion=nn.CrossEntropyLoss(reduction="sum"))


class Tagger(nn.Module):
    """Scores [B, 3, T] for tokens [B, T]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(5, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.table(tokens)
        return scores.transpose(1, 2)


def _sentences() -> TensorDataset:
    torch.manual_seed(1)
    tokens, labels = torch.randint(5, (12, 6)), torch.randint(3, (12, 6))
    labels[torch.arange(12)[:, None] % 6 < torch.arange(6)[None]] = -100
    return TensorDataset(tokens, labels)


@pytest.mark.parametrize("weight", [None, torch.tensor([1.0, 2.0, 4.0])])
@pytest.mark.parametrize("strategies", [{}, {"adaptive_sampling": {"warmup_epochs": 5}}])
def test_ignored_tokens_weigh_nothing_however_windows_are_cut(weight: Any, strategies: dict[str, Any]) -> None:
    """The gradient of a window is that of the mean over its tokens, as torch's criterion takes it in one batch."""
    whole, cut, data = Tagger(), Tagger(), _sentences()
    loss = nn.CrossEntropyLoss(weight=weight)(whole(data.tensors[0]), data.tensors[1])
    loss.backward()
    optimizer = torch.optim.SGD(cut.parameters(), lr=0.0)
    log = GradientLog(optimizer)
    trainer = MuseSparkTrainer(
        cut,
        optimizer,
        nn.CrossEntropyLoss(weight=weight),
        in_order(data, 5),
        data,
        {"gradient_accumulation_steps": 3, "strategies": strategies},
    )
    history = trainer.fit(1)["history"]
    assert whole.table.weight.grad is not None
    assert log.gradients[0] == pytest.approx(whole.table.weight.grad.flatten().tolist(), abs=1e-6)
    assert history[0]["train_loss"] == pytest.approx(loss.item(), abs=1e-6)
    assert history[0]["val_loss"] == pytest.approx(loss.item(), abs=1e-6)


def test_ignored_class_ids_weigh_nothing() -> None:
    x, y = torch.eye(3)[torch.arange(6) % 3], torch.tensor([0, -100, 1, 2, -100, -100])
    model = nn.Linear(3, 3)
    expected = nn.CrossEntropyLoss()(model(x), y).item()
    trainer = trained(model, in_order(TensorDataset(x, y), 2), epochs=1, lr=0.0, gradient_accumulation_steps=3)
    assert trainer.history[0]["train_loss"] == pytest.approx(expected, abs=1e-6)


def test_a_target_batch_size_sets_the_samples_of_an_update() -> None:
    trainer = trained(
        nn.Linear(4, 3), in_order(blobs(96), 8), epochs=2, target_batch_size=20, batch_growth={"every": 1, "limit": 48}
    )
    report = trainer.get_training_report()
    assert [epoch["effective_batch_size"] for epoch in report["history"]] == [20, 40]
    assert report["updates"] == 5 + 3


def test_two_ways_to_say_the_samples_of_an_update_are_refused() -> None:
    with pytest.raises(ConfigError, match="target_batch_size"):
        trained(nn.Linear(4, 3), blobs(), epochs=1, target_batch_size=20, gradient_accumulation_steps=2)
