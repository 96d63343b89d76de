"""Gradient compression: what ranks exchange, what they keep for the next time, and what it saves."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.errors import ConfigError
from muse_spark_ray.spec.load import train_config
from muse_spark_ray.strategies.gradient_compression import (
    exchange_factors,
    exchange_int8,
    exchange_largest,
    exchange_rounded,
    is_worth_factors,
    quantised,
)
from muse_spark_ray.strategy.wire import all_reduce_bytes
from muse_spark_ray.testing.ranks import on_ranks
from muse_spark_ray.training.checkpoint import load_state

METHODS = ["fp16", "bf16", "int8", "topk", "powersgd"]
FEEDBACK = ["int8", "topk", "powersgd"]


def _flat(rank: int, length: int) -> Tensor:
    return torch.randn(length, generator=torch.Generator().manual_seed(rank))


def _exchange(method: str, length: int) -> tuple[Tensor, Tensor, Tensor, float]:
    dist.init_process_group("gloo")
    own = _flat(dist.get_rank(), length)
    if method == "int8":
        done = exchange_int8(own)
    elif method == "topk":
        done = exchange_largest(own, 0.1)
    else:
        done = exchange_rounded(own, torch.bfloat16)
    return own, done.mean, done.counted, done.sent


@pytest.mark.parametrize("method", ["bf16", "int8", "topk"])
@pytest.mark.parametrize(("ranks", "length"), [(2, 5000), (3, 4097), (3, 1)])
def test_the_mean_is_that_of_what_counted(method: str, ranks: int, length: int) -> None:
    results = on_ranks(_exchange, ranks, method, length)
    means = [mean for _, mean, _, _ in results]
    assert all(torch.equal(means[0], mean) for mean in means)
    counted = torch.stack([counted for _, _, counted, _ in results]).mean(0)
    # bf16 also rounds the sum; nothing is kept of that.
    assert torch.allclose(means[0], counted, rtol=0, atol=0.02 if method == "bf16" else 1e-5)
    exact = torch.stack([own for own, _, _, _ in results]).mean(0)
    if method != "topk":
        assert torch.allclose(means[0], exact, rtol=0, atol=0.05)


@pytest.mark.parametrize(("method", "at_least"), [("bf16", 2.0), ("int8", 3.9), ("topk", 6.0)])
def test_bytes_sent_by_each_of_two_ranks(method: str, at_least: float) -> None:
    sent = on_ranks(_exchange, 2, method, 40_960)[0][3]
    assert all_reduce_bytes(4 * 40_960, 2) == 4 * 40_960
    assert 4 * 40_960 / sent >= at_least


def test_eight_bits_are_off_by_at_most_half_a_step() -> None:
    values = torch.randn(7, 1024, generator=torch.Generator().manual_seed(0)) * torch.logspace(-8, 3, 7)[:, None]
    numbers, scale = quantised(values)
    assert numbers.dtype == torch.int8
    assert ((numbers * scale - values).abs() <= 0.5001 * scale).all()
    zeros, scale = quantised(torch.zeros(1, 1024))
    assert not (zeros * scale).any()


def _factors(repeats: int) -> tuple[Tensor, Tensor, Tensor]:
    dist.init_process_group("gloo")
    generator = torch.Generator().manual_seed(dist.get_rank())
    low = torch.randn(20, 2, generator=generator) @ torch.randn(2, 30, generator=torch.Generator().manual_seed(9))
    bias = torch.randn(20, generator=generator)
    factors = [torch.randn(30, 2, generator=torch.Generator().manual_seed(3)), None]
    for _ in range(repeats):
        (matrix, vector), _ = exchange_factors([low, bias], factors)
    return torch.cat([low.flatten(), bias]), matrix, vector


def test_a_mean_of_rank_two_is_found_exactly() -> None:
    results = on_ranks(_factors, 2, 2)
    exact = torch.stack([own for own, _, _ in results]).mean(0)
    assert torch.allclose(results[0][1].flatten(), exact[:600], atol=1e-4)
    assert torch.allclose(results[0][2], exact[600:], atol=1e-6)
    assert torch.equal(results[0][1], results[1][1])


def test_factors_are_for_matrices_that_they_shrink_by_half() -> None:
    assert is_worth_factors((64, 64), 8)
    assert is_worth_factors((64, 16, 3, 3), 4)
    assert not is_worth_factors((64, 64), 17)
    assert not is_worth_factors((4096,), 1)


def _problem(seed: int = 0) -> tuple[nn.Module, TensorDataset]:
    torch.manual_seed(seed)
    centres = torch.randn(4, 32, generator=torch.Generator().manual_seed(5))
    noise = torch.randn(320, 32, generator=torch.Generator().manual_seed(6))
    targets = torch.arange(320) % 4
    return nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 4)), TensorDataset(
        centres[targets] + noise, targets
    )


def _train(block: dict[str, Any], folder: str | None = None, epochs: int = 4, **more: Any) -> dict[str, Any]:
    net, data = _problem()
    checkpoint = {} if folder is None else {"save_dir": folder, "every_steps": 13, "keep_last": -1}
    config = {"strategies": block, "checkpoint": checkpoint, **more}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    trainer = MuseSparkTrainer(net, optimizer, nn.CrossEntropyLoss(), DataLoader(data, 16, shuffle=True), data, config)
    report = trainer.fit(epochs)
    return {**report, "weights": torch.cat([p.detach().flatten() for p in net.parameters()])}


def _block(method: str, **more: Any) -> dict[str, Any]:
    return {"gradient_compression": {"method": method, "rank": 2, "density": 0.05, "warmup_updates": 5, **more}}


@pytest.mark.parametrize("method", METHODS)
def test_two_ranks_learn_as_well_and_send_less(method: str) -> None:
    plain = on_ranks(_train, 2, {})[0]
    first, second = on_ranks(_train, 2, _block(method))
    assert torch.equal(first["weights"], second["weights"])
    assert first["best_val_acc"] >= plain["best_val_acc"] - 2.0
    told = first["strategy_reports"]["gradient_compression"]
    assert 0 < told["bytes_sent"] < 0.8 * told["bytes_uncompressed"]
    parameters = len(first["weights"])
    assert told["bytes_uncompressed"] == pytest.approx(4 * parameters * first["updates"], rel=0.01)


@pytest.mark.parametrize("method", FEEDBACK)
def test_what_was_left_out_is_in_the_checkpoint_keys_4(tmp_path: Path, method: str) -> None:
    """Five updates and more after a resume in mid-epoch are those of the run that was not stopped."""
    whole = on_ranks(_train, 2, _block(method), str(tmp_path / "a"))
    folder = tmp_path / "b" / "epoch_000002_step_000026"
    shutil.copytree(tmp_path / "a" / folder.name, folder)
    held = load_state(folder)["strategies"]["gradient_compression"]["residuals"]
    assert len(held) == 2
    assert all(sum(float(residual.norm()) for residual in rank.values()) > 0 for rank in held)
    resumed = on_ranks(_train, 2, _block(method), str(tmp_path / "b"))
    for before, after in zip(whole, resumed, strict=True):
        assert torch.equal(before["weights"], after["weights"])
        assert before["strategy_reports"] == after["strategy_reports"]
    alone = _train(_block(method), _copy(folder, tmp_path / "c"))
    assert alone["resized"]["to"] == 1
    assert alone["state"] == "finished"


def _copy(folder: Path, to: Path) -> str:
    shutil.copytree(folder, to / folder.name)
    return str(to)


def _train_with_a_bad_window(method: str) -> tuple[Tensor, int, bool]:
    net, data = _problem()
    inputs = data.tensors[0]
    inputs[3] = torch.nan
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    config = {"strategies": _block(method), "max_bad_steps": 5}
    trainer = MuseSparkTrainer(net, optimizer, nn.CrossEntropyLoss(), DataLoader(data, 16, shuffle=True), None, config)
    report = trainer.fit(3)
    state = trainer._run.stack.state_dict()["gradient_compression"]
    tensors = [t for rank in state["residuals"] for t in rank.values()] + list(state["factors"].values())
    weights = torch.cat([p.detach().flatten() for p in net.parameters()])
    return weights, report["bad_steps"], all(bool(t.isfinite().all()) for t in tensors)


@pytest.mark.parametrize("method", METHODS)
def test_a_gradient_that_is_not_finite_leaves_nothing_behind(method: str) -> None:
    (first, bad, is_finite), (second, others, _) = on_ranks(_train_with_a_bad_window, 2, method)
    assert bad == others == 3
    assert is_finite
    assert first.isfinite().all()
    assert torch.equal(first, second)


@pytest.mark.parametrize("bad", [{"method": "zip"}, {"density": 0.0}, {"rank": 0}, {"warmup_updates": -1}])
def test_settings_out_of_range_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"gradient_compression\.{next(iter(bad))}"):
        train_config({"strategies": {"gradient_compression": bad}})
