"""Loss scaling, clipping and losses that are not numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from toys import GradientLog, Line, blobs, in_order, small_net, trained, weights

from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.errors import ConfigError
from muse_spark_ray.training.precision import choose_kind

FP16 = {"precision": {"amp": "fp16", "init_scale": 1024.0}}


class Overflowing(nn.Module):
    """A line whose gradient is infinite at the chosen calls."""

    def __init__(self, at: set[int]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))
        self.calls = 0
        self.at = at
        self.w.register_hook(self._spoil)

    def _spoil(self, gradient: Tensor) -> Tensor:
        self.calls += 1
        return torch.full_like(gradient, math.inf) if self.calls - 1 in self.at else gradient

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x


def _run(model: nn.Module, updates: int, **config: Any) -> tuple[MuseSparkTrainer, GradientLog]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    log = GradientLog(optimizer)
    data = in_order(TensorDataset(torch.ones(updates), torch.zeros(updates)), 1)
    trainer = MuseSparkTrainer(model, optimizer, nn.MSELoss(), data, None, config)
    trainer.fit(epochs=1)
    return trainer, log


def test_a_step_that_scaling_skips_moves_nothing_t3() -> None:
    trainer, log = _run(Overflowing({2}), 5, dynamic_lr_scheduler={"type": "constant", "warmup_steps": 100}, **FP16)
    report = trainer.get_training_report()
    assert report["updates"] == 4
    assert report["skipped_steps"] == 1
    assert report["history"][0]["lr"] == pytest.approx(0.1 * 5 / 100)
    assert len(log.gradients) == 4


def test_schedule_and_ema_count_applied_updates_only_amp_1() -> None:
    model = Overflowing({0, 1, 4})
    config = {
        "dynamic_lr_scheduler": {"type": "constant", "warmup_steps": 10},
        "strategies": {"ema": {"decay": 0.9}},
        **FP16,
    }
    trainer, log = _run(model, 8, **config)
    report = trainer.get_training_report()
    assert log.rates == pytest.approx([0.01, 0.02, 0.03, 0.04, 0.05])
    assert report["history"][0]["lr"] == pytest.approx(0.06)
    assert (report["updates"], report["skipped_steps"]) == (5, 3)
    assert trainer._run.stack.state_dict()["ema"]["updates"] == 5


def test_gradients_are_clipped_at_their_true_size_amp_3() -> None:
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    log = GradientLog(optimizer)
    data = in_order(TensorDataset(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 1)), 1)
    config = {"clip_norm": 1.0, **FP16}
    MuseSparkTrainer(model, optimizer, lambda outputs, targets: outputs.float().mean(), data, None, config).fit(
        epochs=1
    )
    assert log.gradients[0] == pytest.approx([0.6, 0.8], rel=1e-3)


@pytest.mark.parametrize("clip", [None, 1.0])
def test_one_bad_loss_is_passed_over_and_leaves_the_weights_finite(clip: float | None) -> None:
    x = torch.ones(6)
    x[2] = math.nan
    model = Line()
    report = trained(
        model, in_order(TensorDataset(x, torch.ones(6)), 1), epochs=1, criterion=nn.MSELoss(), clip_norm=clip
    ).get_training_report()
    assert report["bad_steps"] == 1
    assert report["updates"] == 5
    assert bool(torch.isfinite(weights(model)).all())
    assert math.isfinite(report["history"][0]["train_loss"])


def test_bad_losses_in_a_row_end_with_a_diagnosis() -> None:
    x = torch.full((9,), math.nan)
    report = trained(
        Line(), in_order(TensorDataset(x, x), 1), epochs=3, criterion=nn.MSELoss(), max_bad_steps=4
    ).get_training_report()
    assert report["state"] == "diverged"
    assert report["bad_steps"] == 4
    assert "4 windows in a row" in report["diagnosis"]
    assert "check the inputs" in report["diagnosis"]


def test_a_validation_loss_that_is_nan_is_never_best_best_5() -> None:
    values = iter([1.0, 0.9, math.nan, math.nan])

    class Scripted(nn.MSELoss):
        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            loss = super().forward(outputs, targets)
            return loss if outputs.requires_grad else loss * 0 + next(values)

    model = Line()
    data = TensorDataset(torch.ones(4, 1), torch.ones(4, 1))
    trainer = trained(model, in_order(data, 4), epochs=4, validation=data, criterion=Scripted())
    report = trainer.get_training_report()
    assert report["best_val_loss"] == pytest.approx(0.9)
    assert report["best_epoch"] == 2
    assert bool(torch.isfinite(weights(trainer.get_best_model())).all())


def test_bf16_trains_like_fp32_within_its_precision() -> None:
    plain, mixed = small_net(), small_net()
    trained(plain, in_order(blobs(), 8), epochs=3)
    trained(mixed, in_order(blobs(), 8), epochs=3, precision={"amp": "bf16"})
    assert torch.allclose(weights(plain), weights(mixed), atol=0.05)
    assert not torch.equal(weights(plain), weights(mixed))


@pytest.mark.parametrize(("amp", "kind"), [("auto", "off"), ("on", "bf16"), ("off", "off"), ("fp16", "fp16")])
def test_precision_on_a_cpu(amp: str, kind: str) -> None:
    assert choose_kind(amp, torch.device("cpu")) == kind


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_auto_is_mixed_on_a_gpu() -> None:
    assert choose_kind("auto", torch.device("cuda")) in ("bf16", "fp16")


class Large(nn.Module):
    """Its inner values are beyond fp16, its outputs are not."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.inner.weight, 3e5)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inner(x).float() * 1e-5
        return result


def _large(folder: Any, **precision: Any) -> dict[str, Any]:
    data = in_order(TensorDataset(torch.ones(20, 1), torch.ones(20, 1)), 1)
    config = {
        "precision": {"amp": "fp16", "init_scale": 8.0, **precision},
        "max_bad_steps": 6,
        "checkpoint": {"save_dir": str(folder)},
    }
    model = Large()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    return MuseSparkTrainer(model, optimizer, nn.MSELoss(), data, None, config).fit(2)


def test_a_training_that_fp16_cannot_hold_goes_on_in_fp32(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    report = _large(tmp_path)
    assert report["state"] == "finished"
    assert report["bad_steps"] == 3
    assert report["updates"] == 37
    assert report["precision_report"]["fell_back_from"] == "fp16"
    assert "going on in fp32" in caplog.text
    resumed = _large(tmp_path)
    assert (resumed["resumed_from"], resumed["precision"]) == (2, "off")


def test_without_fallback_it_ends_with_a_diagnosis(tmp_path: Any) -> None:
    report = _large(tmp_path, fallback=False)
    assert report["state"] == "diverged"
    assert report["precision_report"]["fell_back_from"] is None


def test_overflows_are_counted() -> None:
    trainer, _ = _run(Overflowing({0, 3}), 6, **FP16)
    told = trainer.get_training_report()["precision_report"]
    assert (told["kind"], told["overflows"], told["smallest_scale"]) == ("fp16", 2, 256.0)


def test_tf32_is_set_for_all_products() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        trained(
            Line(),
            in_order(TensorDataset(torch.ones(2), torch.ones(2)), 1),
            epochs=1,
            criterion=nn.MSELoss(),
            precision={"tf32": True},
        )
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


def test_fp8_without_the_hardware_is_told() -> None:
    with pytest.raises(
        ConfigError, match=r"precision\.fp8 needs a GPU of compute capability 8\.9 or more .* here is cpu"
    ):
        trained(small_net(), blobs(), epochs=1, precision={"fp8": True}, device="cpu")
