"""Optimizers by name: what they do, and that a training with each resumes bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from toys import blobs, small_net, weights

from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.errors import ConfigError
from muse_spark_ray.spec.load import train_config
from muse_spark_ray.testing.states import assert_same, repeatable
from muse_spark_ray.training.checkpoint import load_state
from muse_spark_ray.training.lion import Lion
from muse_spark_ray.training.optimizers import Together, build_optimizer

RATES = {
    "sgd": 0.1,
    "adam": 0.1,
    "adamw": 0.1,
    "adafactor": 0.5,
    "lion": 0.05,
    "muon": 0.1,
    "adamw_schedulefree": 0.05,
    "sgd_schedulefree": 0.5,
}


def _trainer(name: str, folder: Path | None = None, **config: Any) -> MuseSparkTrainer:
    if "schedulefree" in name:
        pytest.importorskip("schedulefree")
    settings: dict[str, Any] = {
        "optimizer": {"name": name, "lr": RATES[name], "weight_decay": 0.01},
        "batch_size": 10,
        "schedule": {"type": "step", "step_size": 30},
        **config,
    }
    if folder is not None:
        settings["checkpoint"] = {"save_dir": str(folder)}
    return MuseSparkTrainer(small_net(), None, None, blobs(), blobs(30), settings)


@pytest.mark.parametrize("name", RATES)
def test_each_learns_and_resumes_bit_for_bit(name: str, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert _trainer(name, whole).fit(6)["best_val_acc"] > 90
    _trainer(name, parts).fit(6, on_epoch=lambda record: record.epoch == 3)
    assert _trainer(name, parts).fit(6)["resumed_from"] == 3
    states = [repeatable(load_state(folder / "epoch_000006")) for folder in (whole, parts)]
    assert_same(*states)


@pytest.mark.parametrize("name", ["muon", "adamw_schedulefree"])
def test_wrapped_ones_go_with_sam(name: str) -> None:
    assert _trainer(name, strategies={"sam": {"rho": 0.02}}).fit(8)["best_val_acc"] > 90


def test_lion_by_hand() -> None:
    w = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = Lion([w], lr=0.1, betas=(0.9, 0.5), weight_decay=0.5)
    w.grad = torch.tensor([3.0, -1.0])
    optimizer.step()
    assert w.tolist() == pytest.approx([0.95 - 0.1, -1.9 + 0.1])
    # The momentum is now (1.5, -0.5); 0.9 of it outweighs a small gradient of the other sign.
    w.grad = torch.tensor([-1.0, 20.0])
    optimizer.step()
    assert w.tolist() == pytest.approx([0.85 * 0.95 - 0.1, -1.8 * 0.95 - 0.1])


def test_a_schedule_free_model_shows_its_averaged_weights_after_an_epoch() -> None:
    pytest.importorskip("schedulefree")
    trainer = _trainer("sgd_schedulefree")
    trainer.fit(2)
    shown = weights(trainer._run.module)
    trainer._run.optimizer.train()  # type: ignore[attr-defined]
    assert not torch.equal(shown, weights(trainer._run.module))
    trainer._run.optimizer.eval()  # type: ignore[attr-defined]
    assert torch.allclose(shown, weights(trainer._run.module), atol=1e-6)


def test_muon_takes_hidden_matrices_only() -> None:
    net = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2))
    optimizer = build_optimizer(net, train_config({"optimizer": {"name": "muon"}}).optimizer)
    assert isinstance(optimizer, Together)
    own = [p for group in optimizer.parts[0].param_groups for p in group["params"]]
    assert [p.shape for p in own] == [(6, 4), (6, 6)]
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(net.parameters()))


@pytest.mark.parametrize("kind", ["foreach", "fused"])
def test_implementations_give_the_same_weights(kind: str) -> None:
    nets = []
    for implementation in ("auto", kind):
        trainer = _trainer("adamw", optimizer={"name": "adamw", "lr": 0.01, "implementation": implementation})
        trainer.fit(2)
        nets.append(weights(trainer._run.module))
    assert torch.allclose(*nets, atol=1e-5)


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        ({"name": "lion", "implementation": "fused"}, "implementation: fused is there for sgd, adam, adamw, not lion"),
        ({"name": "lion", "nesterov": True}, "nesterov: true needs name: sgd"),
        ({"name": "adamw_8bit"}, "needs a CUDA device; the model is on cpu"),
    ],
)
def test_what_cannot_be_is_refused(optimizer: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        MuseSparkTrainer(small_net(), None, None, blobs(), None, {"optimizer": optimizer, "device": "cpu"})


def test_muon_without_a_hidden_layer_is_told() -> None:
    with pytest.raises(ConfigError, match="no hidden linear layer"):
        MuseSparkTrainer(nn.Linear(4, 3), None, None, blobs(), None, {"optimizer": {"name": "muon"}})
