"""Bad input: one clear message, the agreed exit code, no traceback, nothing stored or changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from program import SPEC, Program


@pytest.fixture(scope="module")
def spec(program: Program) -> str:
    return program.write("good.yaml", SPEC.format(name="good"))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("serach.x=1", "Did you mean search?"),
        ("search={}", "search space is empty"),
        ("budget.trials=0", "greater than or equal to 1"),
        ("objectives={acuracy: max}", "Did you mean accuracy?"),
        ("task.data={name: npz, path: nowhere.npz}", "does not exist"),
        ("prices=nowhere.yaml", "nowhere.yaml"),
        ("name=../up", "letters, digits"),
        ("noequals", "a.b=c"),
    ],
)
def test_a_wrong_spec_is_refused_before_anything_starts(program: Program, spec: str, override: str, words: str) -> None:
    done = program("sweep", spec, "--set", override)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ")
    assert not list(program.store.glob("*")) if program.store.exists() else True


def test_labels_out_of_range_are_named(program: Program, spec: str) -> None:
    import numpy as np

    np.savez(program.folder / "holes.npz", x=np.random.rand(20, 4), y=np.array([0] * 19 + [1000]))
    done = program("sweep", spec, "--set", "task.data={name: npz, path: holes.npz}")
    assert done.returncode == 2
    assert "label 1000 in row 19 is out of range" in done.stderr


def test_the_message_names_file_and_line(program: Program) -> None:
    program.write("typo.yaml", SPEC.format(name="typo").replace("epochs: 3", "epochss: 3"))
    done = program("sweep", "typo.yaml")
    assert done.returncode == 2
    assert "typo.yaml:3 unknown key train.epochss. Did you mean epochs?" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("status", "nothing"),
        ("pareto", "nothing"),
        ("best", "nothing"),
        ("show", "nothing", "t0000"),
        ("stop", "nothing"),
        ("report", "nothing"),
        ("sweep", "--resume", "nothing"),
    ],
)
def test_an_unknown_sweep(program: Program, arguments: tuple[str, ...]) -> None:
    done = program(*arguments)
    assert done.returncode == 2
    assert "there is no sweep 'nothing'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["../etc", "a/b", "%2e%2e", "x" * 65, ""])
def test_a_name_that_no_sweep_can_have(program: Program, name: str) -> None:
    done = program("status", name)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_debug_shows_the_traceback(program: Program) -> None:
    assert "Traceback" in program("status", "nothing", "--debug").stderr


@pytest.mark.parametrize(
    "arguments", [("sweep",), ("nonsense",), ("pareto",), ("pareto", "x", "--format", "xml"), ("train",)]
)
def test_wrong_usage(program: Program, arguments: tuple[str, ...]) -> None:
    done = program(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("config", ["missing.yaml", "."])
def test_a_training_config_that_cannot_be_read(program: Program, config: str) -> None:
    done = program("train", "--config", config)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_model_file_that_is_not_there_or_defines_nothing(program: Program) -> None:
    program.write("t.yaml", "epochs: 1\n")
    program.write("empty_model.py", "x = 1\n")
    assert "does not exist" in program("train", "--config", "t.yaml", "--model-path", "nowhere.py").stderr
    done = program("train", "--config", "t.yaml", "--model-path", "empty_model.py")
    assert done.returncode == 2
    assert "build_model" in done.stderr


def test_a_model_of_ones_own(program: Program) -> None:
    program.write("t.yaml", "epochs: 2\ntask: {data: {name: iris}}\n")
    program.write("own_model.py", "import torch\ndef build_model():\n    return torch.nn.Linear(4, 3)\n")
    done = program("train", "--config", "t.yaml", "--model-path", "own_model.py")
    assert done.returncode == 0, done.stderr
    assert "epoch 2/2" in done.stderr


@pytest.mark.skipif(
    os.geteuid() == 0 and not Path("/proc/version").exists(), reason="needs a path that nobody can write"
)
def test_a_store_that_cannot_be_written(program: Program, spec: str) -> None:
    done = program("sweep", spec, "--store", "/proc/nowhere")
    assert done.returncode == 2
    assert "/proc/nowhere" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_store_that_cannot_be_reached(program: Program) -> None:
    done = program("status", "any", "--store", "s3://bucket/sweeps?endpoint_override=http://127.0.0.1:9")
    assert done.returncode == 5, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.ray
def test_a_cluster_that_is_not_there(program: Program, spec: str) -> None:
    done = program("sweep", spec, "--address", "127.0.0.1:9")
    assert done.returncode == 5, done.stderr
    assert "127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr
