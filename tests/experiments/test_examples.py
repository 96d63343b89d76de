"""The example scripts and tables of `experiments/` run as they stand."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def run(script: str, folder: Path, *arguments: str) -> str:
    command = [sys.executable, str(EXPERIMENTS / script), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def best(output: str) -> float:
    found = re.search(r"best: ([\d.]+) %", output)
    assert found, output
    return float(found[1])


def test_the_seven_steps_keep_the_accuracy_and_go_on_when_run_again(tmp_path: Path) -> None:
    plain = best(run("examples/train.py", tmp_path))
    first = run("examples/train_with_muse.py", tmp_path)
    assert best(first) > plain - 3.0
    report = json.loads((tmp_path / "checkpoints" / "report.json").read_text())
    assert report["epochs"] == 10
    assert report["best_val_acc"] == pytest.approx(best(first), abs=0.01)
    again = run("examples/train_with_muse.py", tmp_path)
    assert best(again) == best(first)
    assert json.loads((tmp_path / "checkpoints" / "report.json").read_text())["resumed_from"] == 10
