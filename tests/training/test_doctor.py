"""The doctor: a healthy task passes; each illness is found by the check that is there for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from muse_spark_ray.data import load_task
from muse_spark_ray.spec.load import load_task_config, train_config
from muse_spark_ray.training.doctor import Patient, examine

MODELS = """
import os
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
    def forward(self, x):
        return self.inner(x.flatten(1))

def mlp(*more): return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10), *more)
def softmax(): return Net(mlp(nn.Softmax(1)))
def dead():
    net = Net(mlp())
    nn.init.constant_(net.inner[0].bias, -1e4)
    return net
def frozen():
    net = Net(mlp())
    net.inner[0].requires_grad_(False)
    return net
class Deaf(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(10))
    def forward(self, x): return self.bias.expand(len(x), 10)
class Restless(Net):
    def forward(self, x):
        return super().forward(x) * (1 + 1e-3 * os.urandom(1)[0])
def restless(): return Restless(mlp())
def nan():
    net = Net(mlp())
    nn.init.constant_(net.inner[2].bias, float("nan"))
    return net
def narrow(): return Net(nn.Sequential(nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 10)))
def broken(): return Net(nn.Linear(3, 10))
"""


def _patient(folder: Path, model: str, **config: Any) -> Patient:
    (folder / "models.py").write_text(MODELS)
    task = {
        "data": {"name": "digits", "max_samples": 300},
        "model": {"name": "factory", "factory": f"{folder}/models.py:{model}"},
    }
    settings = train_config({"task": task, "batch_size": 32, "device": "cpu", **config})
    return Patient(settings, load_task(settings.task.data))


def test_a_healthy_task_passes_every_check() -> None:
    config = train_config({"task": {"data": {"name": "digits", "max_samples": 300}}, "device": "cpu"})
    found = {finding.check: finding for finding in examine(config)}
    assert {f.check for f in found.values() if f.level in ("warning", "failure")} <= {"disk", "loader speed"}
    assert {"versions", "GPU", "leaks", "overfit one batch", "learning rate range", "repeatability", "resume"} <= set(
        found
    )


@pytest.mark.parametrize(
    ("model", "check", "level", "words"),
    [
        ("softmax", "output", "warning", "are probabilities already"),
        ("nan", "output", "failure", "not all finite"),
        ("dead", "gradient_flow", "warning", "none: inner.0.weight"),
        ("frozen", "gradient_flow", "note", "frozen: inner.0.weight"),
        ("Deaf", "overfits", "warning", "on 16 samples"),
        ("Deaf", "rate_range", "warning", "does not fall"),
        ("restless", "repeats", "note", "differ by up to"),
        ("restless", "resumes", "warning", "a resumed training differs"),
    ],
)
def test_each_illness_is_found(tmp_path: Path, model: str, check: str, level: str, words: str) -> None:
    finding = getattr(_patient(tmp_path, model), check)()
    assert finding.level == level
    assert words in finding.evidence
    assert finding.advice


def test_a_rate_that_is_too_high_is_told(tmp_path: Path) -> None:
    finding = _patient(tmp_path, "frozen", optimizer={"lr": 90.0}).rate_range()
    assert (finding.level, finding.check) == ("warning", "learning rate range")
    assert finding.advice.startswith("lower optimizer.lr to about")


def test_batch_norm_on_few_samples_is_told(tmp_path: Path) -> None:
    finding = _patient(tmp_path, "narrow", batch_size=4).room()
    assert (finding.level, finding.evidence) == ("warning", "BatchNorm sees 4 samples at a time")


def test_a_model_that_cannot_run_fails_its_checks_but_not_the_doctor(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(MODELS)
    model = {"name": "factory", "factory": f"{tmp_path}/models.py:broken"}
    config = train_config({"task": {"data": {"name": "digits", "max_samples": 100}, "model": model}, "device": "cpu"})
    found = [finding for finding in examine(config) if finding.level == "failure"]
    assert len(found) >= 5
    assert any("mat1 and mat2 shapes cannot be multiplied" in finding.evidence for finding in found)


def test_after_broken_data_nothing_is_trained(tmp_path: Path) -> None:
    config = train_config({"task": {"data": {"name": "npz", "path": str(tmp_path / "no.npz")}}, "device": "cpu"})
    assert [finding.check for finding in examine(config)][-1] == "reading"


@pytest.mark.parametrize(
    "text",
    [
        "name: s\ntask: {data: {name: wine}}\ntrain: {epochs: 7}\nsearch: {optimizer.lr: [0.1]}\nbudget: {trials: 1}\n",
        "task: {data: {name: wine}}\nepochs: 7\n",
        "data: {name: wine}\n",
    ],
)
def test_any_file_that_names_a_task_will_do(tmp_path: Path, text: str) -> None:
    (tmp_path / "f.yaml").write_text(text)
    config = load_task_config(tmp_path / "f.yaml", overrides=["batch_size=16"])
    assert (config.task.data.name, config.batch_size) == ("wine", 16)
    assert config.epochs == (7 if "7" in text else 10)


def test_the_state_of_the_process_is_left_alone(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    _patient(tmp_path, "frozen").repeats()
    assert torch.get_num_threads() == before
