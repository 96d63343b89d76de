"""Local SGD: the same as exchanging gradients where it meets in each update, and far fewer bytes where it does not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.errors import ConfigError
from muse_spark_ray.testing.ranks import on_ranks


def _problem(*, bad: bool = False) -> tuple[nn.Module, TensorDataset]:
    torch.manual_seed(0)
    centres = torch.randn(4, 16, generator=torch.Generator().manual_seed(5))
    noise = torch.randn(320, 16, generator=torch.Generator().manual_seed(6))
    inputs = centres[torch.arange(320) % 4] + noise
    if bad:
        inputs[3] = torch.nan
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 4)), TensorDataset(inputs, torch.arange(320) % 4)


def _train(
    block: dict[str, Any], folder: str | None = None, momentum: float = 0.9, bad: bool = False
) -> tuple[Tensor, dict[str, Any]]:
    net, data = _problem(bad=bad)
    checkpoint = {} if folder is None else {"save_dir": folder, "every_steps": 13, "keep_last": -1}
    config = {"strategies": block, "checkpoint": checkpoint, "max_bad_steps": 5}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=momentum)
    validation = None if bad else data
    loader = DataLoader(data, 16, shuffle=True)
    trainer = MuseSparkTrainer(net, optimizer, nn.CrossEntropyLoss(), loader, validation, config)
    report = trainer.fit(4)
    return torch.cat([p.detach().flatten() for p in net.parameters()]), report


def test_averaging_after_each_update_is_exchanging_gradients() -> None:
    plain = on_ranks(_train, 2, {}, None, 0.0)[0][0]
    local = on_ranks(_train, 2, {"local_sgd": {"every": 1, "begin": 0}}, None, 0.0)[0][0]
    assert torch.allclose(plain, local, atol=1e-5)


def test_it_learns_as_well_with_a_part_of_the_exchanges() -> None:
    plain = on_ranks(_train, 2, {})[0][1]
    (first, report), (second, _) = on_ranks(_train, 2, {"local_sgd": {"every": 5, "begin": 10}})
    assert torch.equal(first, second)
    assert report["best_val_acc"] >= plain["best_val_acc"] - 2.0
    told = report["strategy_reports"]["local_sgd"]
    # Of 40 updates, 10 with an exchange; after 15, 20 ... 40 of them the ranks meet, and at each epoch's end.
    assert told["bytes_sent"] / told["bytes_uncompressed"] == pytest.approx((10 + 6) / 40, abs=0.06)


def test_a_resume_while_ranks_are_apart_is_exact(tmp_path: Path) -> None:
    block = {"local_sgd": {"every": 5, "begin": 3}}
    whole = on_ranks(_train, 2, block, str(tmp_path / "a"))
    name = "epoch_000001_step_000013"
    shutil.copytree(tmp_path / "a" / name, tmp_path / "b" / name)
    resumed = on_ranks(_train, 2, block, str(tmp_path / "b"))
    for (before, _), (after, report) in zip(whole, resumed, strict=True):
        assert torch.equal(before, after)
        assert report["exact_resume"] is True
    shutil.copytree(tmp_path / "a" / name, tmp_path / "c" / name)
    _, alone = _train(block, str(tmp_path / "c"))
    assert (alone["state"], alone["resized"]["to"]) == ("finished", 1)


def test_all_ranks_skip_an_update_that_is_bad_on_one() -> None:
    (first, report), (second, other) = on_ranks(_train, 2, {"local_sgd": {"every": 4, "begin": 0}}, None, 0.9, True)
    assert report["bad_steps"] == other["bad_steps"] == 4
    assert report["updates"] == other["updates"] == 36
    assert first.isfinite().all()
    assert torch.equal(first, second)


@pytest.mark.parametrize("other", ["ema", "swa", "lookahead", "magnitude_pruning"])
def test_averages_over_time_are_refused_beside_it(other: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"strategies.{other} does not work with weights that differ between workers"
    ):
        _train({"local_sgd": True, other: True})


def test_only_one_strategy_replaces_the_exchange() -> None:
    with pytest.raises(AssertionError, match="both replace the gradient exchange"):
        on_ranks(_train, 2, {"local_sgd": True, "gradient_compression": True})
