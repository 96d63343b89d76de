"""The front: cases P1, P3, P4, PAR-1, PAR-2, PAR-4, PAR-7, PAR-9, and what must hold for any table."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.pareto import Bound, front, total_violation
from muse_spark_ray.pareto.front import nondominated

BOTH = {"cost": "min", "accuracy": "max"}
PAR_1 = [(10, 0.9), (10, 0.9), (5, 0.8), (7, 0.8), (20, 0.95), (np.nan, 0.99), (5, np.nan), (3, 0.6)]
P_1 = {
    "a": (1, 0.80), "b": (2, 0.85), "c": (2, 0.85), "d": (3, 0.84), "e": (4, 0.90),
    "f": (4, np.nan), "g": (np.inf, 0.99), "h": (0.5, 0.60), "i": (1, 0.78), "j": (6, 0.90),
}  # fmt: skip


def table_of(rows, *, index=None, columns=("cost", "accuracy")):
    return pd.DataFrame(rows, columns=list(columns), index=index)


@pytest.fixture
def p1():
    return table_of(list(P_1.values()), index=list(P_1))


def test_case_p1_front_ties_and_exclusions(p1):
    found = front(p1, BOTH)
    assert list(found.index) == ["a", "b", "c", "e", "h"]
    assert list(found.index[found["tie"]]) == ["b", "c"]
    assert found.attrs["excluded"] == {"nan": 1, "inf": 1, "failed": 0, "infeasible": 0, "pruned": 0, "running": 0}
    assert found.attrs["excluded_rows"]["nan"] == ["f"]
    assert found.attrs["excluded_rows"]["inf"] == ["g"]
    assert found.attrs["message"] is None


def test_front_keeps_all_columns_and_leaves_the_table_alone(p1):
    p1["note"] = list("0123456789")
    before = p1.copy()
    assert list(front(p1, BOTH)["note"]) == list("01247")
    pd.testing.assert_frame_equal(p1, before)
    assert p1.attrs == {}


def test_case_p3_all_infeasible_names_the_closest_and_its_miss(p1):
    found = front(p1, BOTH, bounds=[Bound("accuracy", ">=", 0.95), Bound("cost", "<=", 5)])
    assert found.empty
    assert found.attrs["closest"] == ["e"]
    assert "row e: accuracy is 0.9 and misses accuracy >= 0.95 by 0.05" in found.attrs["message"]
    assert found.attrs["excluded"]["infeasible"] == 8


def test_case_p3_message_names_trial_and_epoch_where_there_are_such_columns(p1):
    named = p1.assign(trial=[f"t{at}" for at in range(10)], epoch=3)
    assert (
        "closest is trial t4, epoch 3:" in front(named, BOTH, bounds=[Bound("accuracy", ">=", 0.95)]).attrs["message"]
    )


@pytest.mark.parametrize("columns", [["cost", "accuracy"], ["cost", "accuracy", "state", "trial"]])
def test_case_p3_zero_trials_give_an_empty_front(columns):
    found = front(pd.DataFrame(columns=columns), BOTH, bounds=[Bound("cost", "<=", 1)])
    assert found.empty
    assert set(found.attrs["excluded"].values()) == {0}
    assert found.attrs["closest"] == []
    assert found.attrs["message"] == "the table has no rows"


@pytest.mark.parametrize(
    "index",
    [
        [7, 7, 7],
        ["x", "y", "z"],
        pd.MultiIndex.from_tuples([("t1", 1), ("t2", 1), ("t3", 1)], names=["trial", "epoch"]),
    ],
)
def test_case_p4_failed_trial_between_two_good_ones(index):
    rows = pd.DataFrame(
        {"trial": ["t1", "t2", "t3"], "state": ["finished", "FAILED", "finished"], "cost": [2.0, 0.1, 1.0]}, index=index
    ).assign(accuracy=[0.9, 0.99, 0.8])
    found = front(rows, BOTH)
    assert list(found["trial"]) == ["t1", "t3"]
    assert found.index.equals(rows.index[[0, 2]])
    assert found.attrs["excluded_rows"]["failed"] == [rows.index[1]]


def test_par_1_missing_values_cannot_stay_undominated():
    found = front(table_of(PAR_1), BOTH)
    assert list(found.index) == [0, 1, 2, 4, 7]
    assert found.attrs["excluded_rows"]["nan"] == [5, 6]


def test_par_2_duplicates_stay_and_distinct_view_has_four_points():
    rows = [(1, 5, 0.5), (2, 4, 0.5), (3, 3, 0.9), (3, 3, 0.9), (2, 5, 0.6), (4, 4, 0.8), (1, 6, 0.4)]
    found = front(table_of(rows, columns="xyz"), {"x": "min", "y": "min", "z": "max"})
    assert list(found.index) == [0, 1, 2, 3, 4]
    assert list(found["tie"]) == [False, False, True, True, False]
    assert len(found.drop_duplicates(["x", "y", "z"])) == 4


def test_par_4_trials_without_values_are_excluded_for_their_reason():
    rows = [*PAR_1, (None, None), (None, None), (None, None), (4, None)]
    table = table_of(rows).astype(object).assign(state=["COMPLETE"] * 8 + ["PRUNED", "FAIL", "RUNNING", "COMPLETE"])
    found = front(table, BOTH)
    assert list(found.index) == [0, 1, 2, 4, 7]
    rows_by_reason = {reason: rows for reason, rows in found.attrs["excluded_rows"].items() if rows}
    assert rows_by_reason == {"nan": [5, 6, 11], "pruned": [8], "failed": [9], "running": [10]}


def test_reported_epochs_of_unfinished_trials_are_candidates_but_not_those_of_failed_ones():
    table = table_of([(1, 0.5), (2, 0.6), (3, 0.7), (4, 0.8), (5, 0.9), (6, np.nan), (7, 0.95)])
    table["state"] = ["running", "Stopped", "pruned", "failed", None, "stopped", "Finished"]
    found = front(table, BOTH)
    assert list(found.index) == [0, 1, 2, 4, 6]
    assert found.attrs["excluded_rows"]["failed"] == [3]
    assert found.attrs["excluded_rows"]["pruned"] == [5]


PAR_7 = [(1, 1), (2, 2), (3, 1), (1, 3), (9, 9)]


def test_par_7_constraints_decide_and_unmarked_trials_are_infeasible():
    constraints = [[0.5], [-1], [0], [2, -9], None]
    table = table_of(PAR_7, columns="xy")
    table["over"] = [None if values is None else total_violation(values) for values in constraints]
    found = front(table, {"x": "min", "y": "min"}, violation="over")
    assert list(found.index) == [1, 2]
    assert found.attrs["excluded_rows"]["infeasible"] == [0, 3, 4]


def test_par_7_all_infeasible_lists_the_least_violation():
    table = table_of(PAR_7[:4], columns="xy")
    table["over"] = [total_violation(values) for values in ([0.5], [0.2, 0.2], [3], [0.4, -9])]
    found = front(table, {"x": "min", "y": "min"}, violation="over")
    assert found.empty
    assert found.attrs["closest"] == [1, 3]
    assert "row 1: its over is 0.4" in found.attrs["message"]


def test_rows_without_a_known_violation_are_never_the_closest():
    table = table_of([(1, 0.5), (2, 0.6)]).assign(over=[None, None])
    found = front(table, BOTH, violation="over")
    assert found.attrs["closest"] == []
    assert found.attrs["message"] == "none of the 2 rows is a candidate: 2 infeasible"


def test_par_9_direction_is_obeyed():
    table = table_of(PAR_1[:5])
    assert list(front(table, BOTH).index) == [0, 1, 2, 4]
    assert list(front(table, {"cost": "min", "accuracy": "min"}).index) == [2]


def test_one_objective_keeps_all_of_the_best():
    found = front(table_of(PAR_1), {"cost": "max"})
    assert list(found.index) == [4]
    best = front(table_of([(1, 0.9), (2, 0.9), (3, 0.8)]), {"accuracy": "max"})
    assert list(best.index) == [0, 1]
    assert best["tie"].all()


def test_mixed_numbers_in_object_and_extension_columns():
    table = pd.DataFrame({"cost": [Decimal("1.5"), 1, None, 2.5, True, float("inf")], "accuracy": 1})
    table["accuracy"] = pd.array([3, 2, 9, None, 2, 9], dtype="Int64")
    found = front(table, BOTH)
    assert list(found.index) == [0, 1, 4]
    assert list(found["tie"]) == [False, True, True]
    assert found.attrs["excluded"] == {"nan": 2, "inf": 1, "failed": 0, "infeasible": 0, "pruned": 0, "running": 0}


def test_a_front_of_a_front_is_itself(p1):
    once = front(p1, BOTH)
    twice = front(once, BOTH)
    pd.testing.assert_frame_equal(twice, once, check_like=False)
    assert twice.attrs["excluded"]["nan"] == 0


@pytest.mark.parametrize(
    ("objectives", "seen"),
    [
        ({}, "objectives is empty"),
        ({"acuracy": "max"}, "'acuracy'"),
        ({"accuracy": "maximize"}, "'maximize'"),
        ({"cost": None}, "None"),
    ],
)
def test_wrong_objectives_are_refused_with_the_value_seen(p1, objectives, seen):
    with pytest.raises(ConfigError, match=seen):
        front(p1, objectives)


def test_unknown_column_suggests_the_nearest(p1):
    with pytest.raises(ConfigError) as caught:
        front(p1, {"acuracy": "max"})
    assert "'accuracy'" in caught.value.hint


@pytest.mark.parametrize("dtype", ["object", "str"])
def test_text_names_column_row_and_value(dtype):
    table = table_of([(1, "0.5")], index=["t9"])
    table["accuracy"] = table["accuracy"].astype(dtype)
    with pytest.raises(ConfigError, match=r"'accuracy', row 't9' is '0\.5'"):
        front(table, BOTH)


def test_unknown_state_and_doubled_column_are_refused(p1):
    with pytest.raises(ConfigError, match="'asleep'"):
        front(p1.assign(state="asleep"), BOTH)
    with pytest.raises(ConfigError, match="2 columns named 'cost'"):
        front(pd.concat([p1, p1[["cost"]]], axis=1), BOTH)


def dominates(one, other):
    return (one <= other).all() and (one < other).any()


def small_points(*, dimensions):
    coordinate = st.integers(-2, 3).map(float)
    return st.lists(st.lists(coordinate, min_size=dimensions, max_size=dimensions), min_size=1, max_size=25)


@given(points=st.integers(1, 4).flatmap(lambda dimensions: small_points(dimensions=dimensions)))
def test_front_is_exactly_what_nothing_dominates(points):
    values = np.asfortranarray(points)
    found = nondominated(values)
    expected = [at for at, one in enumerate(values) if not any(dominates(other, one) for other in values)]
    assert found.positions.tolist() == expected
    assert found.tie.tolist() == [(values == values[at]).all(axis=1).sum() > 1 for at in expected]
    for at in set(range(len(values))) - set(expected):
        assert any(dominates(values[kept], values[at]) for kept in expected)


cell = st.one_of(st.integers(0, 4).map(float), st.sampled_from([np.nan, np.inf, -np.inf]))


@given(
    rows=st.lists(st.tuples(cell, cell, st.sampled_from(["finished", "failed", "running"])), max_size=20),
    data=st.data(),
)
def test_front_does_not_depend_on_row_order_and_every_row_is_accounted_for(rows, data):
    table = table_of(rows, columns=("cost", "accuracy", "state"))
    found = front(table, BOTH)
    shuffled = table.loc[data.draw(st.permutations(range(len(table))))] if rows else table
    again = front(shuffled, BOTH)
    pd.testing.assert_frame_equal(again.sort_index(), found)
    assert again.attrs["excluded"] == found.attrs["excluded"]
    excluded = [row for labels in found.attrs["excluded_rows"].values() for row in labels]
    assert len(excluded) == len(set(excluded))
    kept = table.drop(excluded)
    assert np.isfinite(kept[["cost", "accuracy"]].to_numpy(dtype=float)).all()
    assert set(found.index) <= set(kept.index)


def test_import_needs_neither_moocore_nor_torch_nor_ray():
    script = "import sys, muse_spark_ray.pareto; print({'moocore', 'torch', 'ray', 'optuna'} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "set()"
