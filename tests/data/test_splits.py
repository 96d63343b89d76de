"""Splits: whole groups, the latest rows, folds and folds within folds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muse_spark_ray.data import DataConfig
from muse_spark_ray.data.splits import group_split, split_rows, time_split
from muse_spark_ray.errors import DataError


def _folds(**settings: Any) -> DataConfig:
    return DataConfig(name="csv", path="x", **settings)


@given(st.lists(st.integers(0, 6), min_size=4, max_size=60), st.floats(0.05, 0.9), st.integers(0, 99))
def test_groups_stay_together(groups: list[int], fraction: float, seed: int) -> None:
    values = np.array(groups)
    if len(set(groups)) < 2:
        with pytest.raises(DataError, match=r"all .* rows are of one group"):
            group_split(values, fraction=fraction, seed=seed)
        return
    train, held_out = group_split(values, fraction=fraction, seed=seed)
    assert sorted([*train, *held_out]) == list(range(len(groups)))
    assert len(train) > 0
    assert len(held_out) > 0
    assert not set(values[train]) & set(values[held_out])


@given(st.lists(st.integers(0, 30), min_size=3, max_size=60), st.floats(0.05, 0.9))
def test_the_latest_rows_are_held_out(times: list[int], fraction: float) -> None:
    values = np.array(times)
    if len(set(times)) < 2:
        with pytest.raises(DataError, match="of one time"):
            time_split(values, fraction=fraction)
        return
    train, held_out = time_split(values, fraction=fraction)
    assert sorted([*train, *held_out]) == list(range(len(times)))
    assert values[train].max() < values[held_out].min()


@pytest.mark.parametrize("split", ["random", "stratified", "group", "time"])
def test_folds_hold_each_row_out_once(split: str) -> None:
    targets, keys = np.arange(53) % 5, np.arange(53) // 4
    column = {split: "who"} if split in ("group", "time") else {}
    parts = []
    for fold in range(4):
        config = _folds(split=split, folds=4, fold=fold, **column)
        train, held_out = split_rows(targets, config, fixed=None, keys=keys if column else None)
        assert sorted([*train, *held_out]) == list(range(53))
        if split == "group":
            assert not set(keys[train]) & set(keys[held_out])
        parts.append(held_out)
    assert sorted(np.concatenate(parts)) == list(range(53))
    assert max(map(len, parts)) - min(map(len, parts)) <= (4 if split == "group" else 1)
    if split == "stratified":
        assert all(np.bincount(targets[part], minlength=5).min() >= 2 for part in parts)


def test_inner_folds_never_touch_the_outer_one() -> None:
    targets = np.arange(60) % 3
    outer = split_rows(targets, _folds(folds=3, fold=1), fixed=None, keys=None)[1]
    inner = [split_rows(targets, _folds(folds=3, fold=1, inner_fold=i), fixed=None, keys=None) for i in range(3)]
    for train, held_out in inner:
        assert not {*train, *held_out} & set(outer)
        assert not set(train) & set(held_out)
    assert sorted([*np.concatenate([h for _, h in inner]), *outer]) == list(range(60))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"fold": 1}, "fold and folds belong together"),
        ({"folds": 3, "fold": 3}, "fold 3 is none of 3 folds"),
        ({"split": "group"}, "group: COLUMN belong together"),
        ({"time": "when"}, "time: COLUMN belong together"),
        ({"inner_fold": 0}, "inner_fold needs folds"),
    ],
)
def test_what_does_not_belong_together_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _folds(**settings)
    with pytest.raises(ValueError, match="needs a table"):
        DataConfig(name="digits", split="group", group="who")


def test_more_folds_than_groups_are_refused() -> None:
    config = _folds(split="group", group="who", folds=5, fold=0)
    with pytest.raises(DataError, match="only 3 rows or groups"):
        split_rows(np.zeros(9, int), config, fixed=None, keys=np.arange(9) % 3)
