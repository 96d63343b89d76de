"""Imports point downwards, and what answers quickly loads nothing heavy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "muse_spark_ray"
HEAVY = {"torch", "ray", "optuna"}
LIGHT = (
    "muse_spark_ray",
    "muse_spark_ray.sweep",
    "muse_spark_ray.report.tables",
    "muse_spark_ray.cli.main",
    "muse_spark_ray.pareto",
    "muse_spark_ray.cost",
    "muse_spark_ray.ledger",
)


def _check_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the package in `folder`, with the contracts of the pyproject.toml there."""
    program = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    command = [sys.executable, "-c", program, "--no-cache", "--no-logo"]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_all_import_contracts_are_kept() -> None:
    checked = _check_imports(ROOT)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "0 broken" in checked.stdout


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("sweep.py", "import torch", "Queries and reports need neither torch nor ray nor optuna"),
        ("training/loop.py", "import muse_spark_ray.strategies.ema", "The loop names no strategy"),
        ("strategies/ema.py", "import muse_spark_ray.strategies.label_smoothing", "Strategies do not know each other"),
        ("pareto/front.py", "import muse_spark_ray.ledger", "Imports point downwards only"),
        ("training/loop.py", "import ray", "Training runs without ray"),
    ],
)
def test_a_forbidden_import_is_caught(tmp_path: Path, file: str, line: str, contract: str) -> None:
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / PACKAGE.name / file).open("a", encoding="utf-8") as source:
        source.write(f"\n{line}\n")
    checked = _check_imports(tmp_path)
    assert checked.returncode == 1, checked.stdout + checked.stderr
    assert f"{contract} BROKEN" in checked.stdout


@pytest.mark.parametrize("name", LIGHT)
def test_it_loads_neither_torch_nor_ray_nor_optuna(name: str) -> None:
    program = f"import sys, {name}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert HEAVY & set(done.stdout.split()) == set()
