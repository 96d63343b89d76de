"""Learning rates, counted in applied updates."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from toys import GradientLog, Line, in_order

from muse_spark_ray import MuseSparkTrainer

CYCLES = {"type": "cosine_with_warmup_restarts", "warmup_steps": 4, "cycle_length": 8}


def _trainer(
    updates: int, schedule: dict[str, Any], *, base: float = 0.1, batch: int = 1, **config: Any
) -> tuple[MuseSparkTrainer, list[float]]:
    model = Line()
    optimizer = torch.optim.SGD(model.parameters(), lr=base)
    log = GradientLog(optimizer)
    data = in_order(TensorDataset(torch.zeros(updates), torch.zeros(updates)), batch)
    return MuseSparkTrainer(
        model, optimizer, nn.MSELoss(), data, None, {"dynamic_lr_scheduler": schedule, **config}
    ), log.rates


def test_cosine_with_warmup_restarts_t13() -> None:
    trainer, rates = _trainer(13, CYCLES)
    trainer.fit(epochs=1)
    expected = [0.025, 0.05, 0.075, 0.1, 0.1, 0.096194, 0.085355, 0.069134, 0.05, 0.030866, 0.014645, 0.003806, 0.1]
    assert rates == pytest.approx(expected, abs=1e-6)


def test_a_step_schedule_counts_updates_not_micro_batches_lr_1() -> None:
    trainer, rates = _trainer(100, {"type": "step", "step_size": 20, "gamma": 0.1}, gradient_accumulation_steps=2)
    report = trainer.fit(epochs=1)
    assert len(rates) == 50
    assert rates == pytest.approx([0.1] * 20 + [0.01] * 20 + [0.001] * 10)
    assert report["history"][-1]["lr"] == pytest.approx(1e-3)


def test_a_resumed_cosine_goes_on_where_it_was_lr_2(tmp_path: Any) -> None:
    save = {"checkpoint": {"save_dir": str(tmp_path), "save_freq": "epoch"}}
    first, _ = _trainer(5, {"type": "cosine"}, **save)
    first.fit(epochs=20, on_epoch=lambda record: record.epoch == 9)
    second, rates = _trainer(5, {"type": "cosine"}, **save)
    second.fit(epochs=20)
    assert rates[0] == pytest.approx(0.05782172, abs=1e-7)
    assert rates[1] == pytest.approx(0.05626666, abs=1e-7)
    assert len(rates) == 55


def test_more_epochs_stretch_a_one_cycle_run_lr_5(tmp_path: Any) -> None:
    save = {"checkpoint": {"save_dir": str(tmp_path)}}
    first, rates = _trainer(10, {"type": "onecycle"}, **save)
    first.fit(epochs=2)
    assert max(rates) == pytest.approx(0.1, rel=1e-2)
    assert rates[-1] < 0.005
    second, rates = _trainer(10, {"type": "onecycle"}, **save)
    report = second.fit(epochs=4)
    assert report["epochs"] == 4
    assert len(rates) == 20
    assert rates[0] == pytest.approx(_one_cycle_at(0.5), rel=1e-6)
    assert rates[-1] < rates[0]


def _one_cycle_at(progress: float) -> float:
    last = 0.1 / 25 / 1e4
    return last + (0.1 - last) * 0.5 * (1 + math.cos(math.pi * (progress - 0.3) / 0.7))


def test_a_warm_cosine_ends_at_zero() -> None:
    trainer, rates = _trainer(20, {"type": "cosine_with_warmup", "warmup_steps": 4})
    trainer.fit(epochs=1)
    assert rates[:4] == pytest.approx([0.025, 0.05, 0.075, 0.1])
    assert rates[4:] == pytest.approx([0.05 * (1 + math.cos(math.pi * k / 16)) for k in range(16)])
    assert trainer.get_training_report()["history"][-1]["lr"] == pytest.approx(0.0, abs=1e-12)


def test_plateau_drops_after_its_patience() -> None:
    model = Line()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.zeros(2, 1), torch.ones(2, 1))
    schedule = {"type": "plateau", "patience": 1, "gamma": 0.5}
    trainer = MuseSparkTrainer(model, optimizer, nn.MSELoss(), in_order(data, 2), data, {"schedule": schedule})
    history = trainer.fit(epochs=6)["history"]
    # The loss never falls: the best is check 1, so the rate drops after checks 3 and 5.
    assert [epoch["lr"] for epoch in history] == pytest.approx([0.1, 0.1, 0.1, 0.05, 0.05, 0.025])


def test_each_parameter_group_keeps_its_own_base_rate() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD([{"params": [model.weight], "lr": 1.0}, {"params": [model.bias], "lr": 0.1}])
    data = in_order(TensorDataset(torch.zeros(2, 1), torch.zeros(2, 1)), 1)
    MuseSparkTrainer(
        model, optimizer, nn.MSELoss(), data, None, {"schedule": {"type": "cosine", "warmup_steps": 4}}
    ).fit(epochs=1)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.75, 0.075])


@pytest.mark.parametrize(("rule", "factor"), [("linear", 4.0), ("sqrt", 2.0), ("none", 1.0)])
def test_the_rate_follows_the_batch_size(rule: str, factor: float) -> None:
    trainer, rates = _trainer(32, {"type": "constant", "lr_scaling": rule, "reference_batch_size": 2}, batch=8)
    trainer.fit(epochs=1)
    assert rates == pytest.approx([0.1 * factor] * 4)


def test_a_warm_up_rises_from_the_unscaled_rate_to_the_scaled_one() -> None:
    schedule = {"type": "constant", "lr_scaling": "linear", "reference_batch_size": 2, "warmup_steps": 3}
    trainer, rates = _trainer(40, schedule, batch=8)
    trainer.fit(epochs=1)
    assert rates == pytest.approx([0.2, 0.3, 0.4, 0.4, 0.4])


def test_the_rate_grows_with_the_batch() -> None:
    schedule = {"type": "constant", "lr_scaling": "sqrt", "reference_batch_size": 4}
    trainer, rates = _trainer(16, schedule, batch=4, batch_growth={"factor": 4.0, "every": 1})
    trainer.fit(epochs=2)
    assert rates == pytest.approx([0.1] * 4 + [0.2])
