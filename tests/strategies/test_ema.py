"""EMA: the average itself, its buffers, its counter over a resume, and that training does not notice it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from toys import Batches, Line, blobs, half_squared_error, weights

from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.strategies.ema import ExponentialMovingAverage, warm_decay
from muse_spark_ray.strategy import Context, Step

EMA_2 = [0.9, 1.8, 2.7, 3.6, 4.5, 5.4]


class Normed(nn.Module):
    """BatchNorm over one feature, then a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1, momentum=0.1)
        self.out = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x))  # type: ignore[no-any-return]


def _average(model: nn.Module, decay: float) -> ExponentialMovingAverage:
    strategy = ExponentialMovingAverage(ExponentialMovingAverage.Config(decay=decay), Context(1))
    strategy.prepare_model(model)
    return strategy


def _values_after(strategy: ExponentialMovingAverage, model: Line, values: list[float]) -> list[float]:
    seen = []
    for value in values:
        model.w.data.fill_(value)
        strategy.after_update(model, Step(0, 0))
        seen.append(float(strategy.evaluation_model(model).w.detach()))  # type: ignore[operator, union-attr]
    return seen


def test_the_average_of_a_rising_weight_ema_2() -> None:
    model = Line()
    assert _values_after(_average(model, 0.9), model, [1, 2, 3, 4, 5, 6]) == pytest.approx(EMA_2, abs=1e-5)


def test_the_counter_goes_on_after_a_resume_ema_2() -> None:
    model = Line()
    before = _average(model, 0.9)
    _values_after(before, model, [1, 2, 3])
    resumed = _average(Line(), 0.9)
    resumed.load_state_dict(before.state_dict())
    assert _values_after(resumed, model, [4, 5, 6]) == pytest.approx(EMA_2[3:], abs=1e-5)


@given(decay=st.floats(0, 0.9999), updates=st.integers(0, 10**7))
def test_the_decay_warms_up_to_its_limit(decay: float, updates: int) -> None:
    assert warm_decay(decay, updates) <= decay
    assert warm_decay(decay, updates) <= warm_decay(decay, updates + 1)
    assert warm_decay(decay, 10**9) == pytest.approx(decay, abs=1e-7)


def test_batch_norm_statistics_are_copied_ema_1() -> None:
    batches = [(torch.tensor([[m - 1.0], [m + 1.0]]), torch.zeros(2, 1)) for m in (2.0, 4.0)]
    trainer = _fit(Normed(), Batches(batches).loader(), {"strategies": {"ema": {"decay": 0.99}}}, nn.MSELoss(), lr=0.0)
    norm: Any = trainer.get_best_model().norm
    assert float(norm.running_mean) == pytest.approx(0.58)
    assert int(norm.num_batches_tracked) == 2
    assert not norm.num_batches_tracked.is_floating_point()


def test_batch_norm_sees_micro_batches_and_says_so_ema_5(caplog: pytest.LogCaptureFixture) -> None:
    batches = [(torch.tensor([[low], [high]]), torch.zeros(2, 1)) for low, high in ((1.0, 3.0), (3.0, 5.0))]
    model = Normed()
    with caplog.at_level(logging.WARNING):
        _fit(model, Batches(batches).loader(), {"gradient_accumulation_steps": 2}, nn.MSELoss())
    assert float(model.norm.running_mean) == pytest.approx(0.58)  # type: ignore[arg-type]
    assert float(model.norm.running_var) == pytest.approx(1.19)  # type: ignore[arg-type]
    found = [record.getMessage() for record in caplog.records if "BatchNorm" in record.getMessage()]
    assert len(found) == 1
    assert "gradient_accumulation_steps is 2" in found[0]


@pytest.mark.parametrize(("model", "steps"), [(Normed(), 1), (nn.Linear(1, 1), 2)])
def test_no_warning_without_both_ema_5(model: nn.Module, steps: int, caplog: pytest.LogCaptureFixture) -> None:
    data = TensorDataset(torch.randn(8, 1), torch.randn(8, 1))
    with caplog.at_level(logging.WARNING):
        _fit(model, data, {"gradient_accumulation_steps": steps}, nn.MSELoss())
    assert "BatchNorm" not in caplog.text


@pytest.mark.parametrize("ema", [False, True])
def test_what_is_evaluated_is_the_average(ema: bool) -> None:
    """One update moves w from 0 to 1 (gradient -1 at lr 1); the first decay is 1 / 10, so the average is 0.9."""
    model = Line()
    data = TensorDataset(torch.ones(1), torch.ones(1))
    trainer = _fit(model, data, {"strategies": {"ema": ema}}, half_squared_error, lr=1.0, validation=data)
    expected = 0.9 if ema else 1.0
    assert float(model.w.detach()) == pytest.approx(1.0)
    assert float(weights(trainer.get_best_model())) == pytest.approx(expected)
    report = trainer.get_training_report()
    assert report["history"][0]["val_loss"] == pytest.approx(0.5 * (1 - expected) ** 2)


def test_an_update_left_out_does_not_count() -> None:
    batches = [(torch.full((1,), x), torch.ones(1)) for x in (1.0, float("nan"), 1.0)]
    model = Line()
    trainer = _fit(model, Batches(batches).loader(), {"strategies": {"ema": True}}, half_squared_error, lr=0.5)
    # w: 0.5, (left out), 0.75; average: 0.9 * 0.5 = 0.45, then 2/11 * 0.45 + 9/11 * 0.75
    assert float(weights(trainer.get_best_model())) == pytest.approx(2 / 11 * 0.45 + 9 / 11 * 0.75)


def test_training_does_not_notice_the_average_ema_3(tmp_path: Path) -> None:
    """Ten updates, evaluated after each: raw weights are the same bits with and without, also over a resume."""
    bare, _ = _ten_updates(tmp_path / "bare", ema=False)
    averaged, trainer = _ten_updates(tmp_path / "ema", ema=True)
    _ten_updates(tmp_path / "parts", ema=True, until=4)
    resumed, _ = _ten_updates(tmp_path / "parts", ema=True)
    assert torch.equal(weights(bare), weights(averaged))
    assert torch.equal(weights(bare), weights(resumed))
    assert not torch.equal(weights(averaged), weights(trainer.get_best_model()))


def _ten_updates(folder: Path, *, ema: bool, until: int = 10) -> tuple[nn.Module, MuseSparkTrainer]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    config = {"strategies": {"ema": ema}, "checkpoint": {"save_dir": str(folder)}}
    loader = DataLoader(blobs(30), 30, shuffle=True)
    trainer = MuseSparkTrainer(net, optimizer, None, loader, blobs(12, seed=1), config)
    trainer.fit(10, on_epoch=lambda record: record.epoch == until)
    return net, trainer


def _fit(
    model: nn.Module, data: Any, config: dict[str, Any], criterion: Any, *, lr: float = 0.1, validation: Any = None
) -> MuseSparkTrainer:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    trainer = MuseSparkTrainer(model, optimizer, criterion, data, validation, config)
    trainer.fit(1)
    return trainer
