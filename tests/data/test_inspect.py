"""`data check`: each kind of fault is found, and clean data pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muse_spark_ray.data import DataConfig
from muse_spark_ray.data.findings import Finding, worst
from muse_spark_ray.data.inspect import inspect_data


def _found(tmp_path: Path, x: Any, y: Any, **settings: Any) -> dict[str, Finding]:
    np.savez(tmp_path / "d.npz", x=x, y=y)
    found = inspect_data(DataConfig(name="npz", path=str(tmp_path / "d.npz"), **settings))
    assert len({finding.check for finding in found}) == len(found)
    return {finding.check: finding for finding in found}


def _clean(samples: int = 200) -> tuple[Any, Any]:
    generator = np.random.default_rng(0)
    return generator.normal(size=(samples, 3)), np.arange(samples) % 4


def test_clean_data_pass(tmp_path: Path) -> None:
    assert worst(list(_found(tmp_path, *_clean()).values())) == "ok"
    assert worst(inspect_data(DataConfig(name="digits"))) == "ok"


def test_missing_values_are_counted(tmp_path: Path) -> None:
    x, y = _clean()
    x[[3, 9], 1] = np.nan
    found = _found(tmp_path, x, y)
    assert found["missing values"].level == "failure"
    assert "2 of 200 samples" in found["missing values"].evidence
    assert "columns [1]" in found["missing values"].evidence


def test_duplicates_and_leaks_are_counted(tmp_path: Path) -> None:
    x, y = _clean()
    x[100:], y[100:] = x[:100], y[:100]
    found = _found(tmp_path, x, y)
    assert found["leaks"].level == found["duplicates in training"].level == "warning"
    assert found["contradictions"].level == "ok"
    y[100:] = (y[100:] + 1) % 4
    assert "occur with different targets" in _found(tmp_path, x, y)["contradictions"].evidence


def test_rare_and_absent_classes_are_named(tmp_path: Path) -> None:
    x, y = _clean()
    y[:] = 0
    y[:3], y[3:23] = 1, 2
    found = _found(tmp_path, x, y, split="random", split_seed=3)
    assert found["class balance"].level == "warning"
    assert "class_weights" in found["class balance"].advice
    assert found["classes in both parts"].level in ("warning", "failure")
    assert "class 1" in found["classes in both parts"].evidence


def test_constant_columns_and_drift_are_named(tmp_path: Path) -> None:
    x, y = _clean()
    x[:, 2] = 7.0
    found = _found(tmp_path, x, y)
    assert (found["constant columns"].level, found["constant columns"].evidence) == ("note", "columns [2] never vary")
    table = tmp_path / "t.csv"
    rows = [f"{v},{v + 0.1 * (i % 7)},{i},{i % 2}" for i, v in enumerate(np.linspace(0, 9, 100))]
    table.write_text("a,b,when,y\n" + "\n".join(rows))
    drifted = inspect_data(DataConfig(name="csv", path=str(table), split="time", time="when"))
    assert {f.check: f.level for f in drifted}["drift"] == "warning"


@pytest.mark.parametrize(("y", "words"), [([0, 1, -3, 1], "label -3 in row 2"), ([0, 0, 0, 0], "all labels are 0")])
def test_labels_that_cannot_be_are_a_failure(tmp_path: Path, y: list[int], words: str) -> None:
    finding = _found(tmp_path, np.eye(4), np.array(y))["labels and shapes"]
    assert finding.level == "failure"
    assert words in finding.evidence


def test_a_file_that_is_not_there_is_a_failure() -> None:
    (finding,) = inspect_data(DataConfig(name="npz", path="nowhere.npz"))
    assert (finding.check, finding.level) == ("reading", "failure")
    assert "does not exist" in finding.evidence
