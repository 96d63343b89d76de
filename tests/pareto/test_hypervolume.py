"""Hypervolume: cases P2 and PAR-5, and its laws against counting unit cells."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.pareto import Bound, hypervolume, hypervolume_trace, reference_point

BOTH = {"cost": "min", "accuracy": "max"}


def minima(points):
    dimensions = len(points[0])
    names = list("xyzw"[:dimensions])
    return pd.DataFrame(points, columns=names), dict.fromkeys(names, "min")


def at(value, objectives):
    return dict.fromkeys(objectives, value)


@pytest.fixture
def p1():
    costs = [1, 2, 2, 3, 4, 4, np.inf, 0.5, 1, 6]
    accuracies = [0.80, 0.85, 0.85, 0.84, 0.90, np.nan, 0.99, 0.60, 0.78, 0.90]
    return pd.DataFrame({"cost": costs, "accuracy": accuracies}, index=list("abcdefghij"))


@pytest.mark.parametrize(("cost", "volume"), [(5, 1.45), (3, 0.70)])
def test_case_p2_points_beyond_the_reference_add_nothing(p1, cost, volume):
    assert hypervolume(p1, BOTH, reference={"cost": cost, "accuracy": 0.5}) == pytest.approx(volume, rel=1e-12)
    assert hypervolume(p1, BOTH, {"cost": cost, "accuracy": 0.5}) == pytest.approx(volume, rel=1e-12)


@pytest.mark.parametrize("kind", [int, float])
def test_par_5_one_by_one(kind):
    table, objectives = minima([(4, 1), (2, 2), (1, 4), (3, 3), (2, 2)])
    table = table.astype(kind)
    volumes = [hypervolume(table.head(count), objectives, reference=at(kind(5), objectives)) for count in range(1, 6)]
    assert volumes == [4, 10, 11, 11, 11]
    trace = hypervolume_trace(table.assign(usd=range(5)), objectives, order_by="usd", reference=at(5, objectives))
    assert trace["hypervolume"].tolist() == volumes


@pytest.mark.parametrize("kind", [int, float])
def test_par_5_three_objectives(kind):
    table, objectives = minima([(1, 2, 3), (2, 1, 3), (3, 3, 1), (2, 2, 2)])
    assert hypervolume(table.astype(kind), objectives, reference=at(4, objectives)) == 13


def test_one_objective_and_no_rows():
    table = pd.DataFrame({"accuracy": [0.5, 0.75, None]})
    assert hypervolume(table, {"accuracy": "max"}, reference={"accuracy": 0.25}) == 0.5
    assert hypervolume(table.head(0), {"accuracy": "max"}, reference={"accuracy": 0.25}) == 0
    assert hypervolume(table, {"accuracy": "max"}, reference={"accuracy": 0.75}) == 0


def test_excluded_and_infeasible_rows_count_for_nothing(p1):
    reference = {"cost": 5, "accuracy": 0.5}
    failed = p1.assign(state=["finished"] * 4 + ["failed"] + ["finished"] * 5)
    assert hypervolume(failed, BOTH, reference=reference) == pytest.approx(1.40)
    within = hypervolume(p1, BOTH, reference=reference, bounds=[Bound("accuracy", ">=", 0.85)])
    assert within == pytest.approx(3 * 0.35 + 1 * 0.05)


def test_reference_point_is_the_worst_of_each_candidate_objective(p1):
    assert reference_point(p1, BOTH) == {"cost": 6.0, "accuracy": 0.6}
    assert reference_point(p1.head(0), BOTH) == {}


@pytest.mark.parametrize(
    ("reference", "seen"),
    [({"cost": 5}, "lacks 'accuracy'"), ({"cost": np.nan, "accuracy": 0}, "reference.cost is nan")],
)
def test_incomplete_reference_is_refused(p1, reference, seen):
    with pytest.raises(ConfigError, match=seen):
        hypervolume(p1, BOTH, reference=reference)


def test_trace_follows_spend_and_leaves_out_rows_without_it(p1):
    spend = [30, 20, 20, 50, 40, 5, 5, 10, None, 60]
    trace = hypervolume_trace(p1.assign(usd=spend), BOTH, order_by="usd", reference={"cost": 5, "accuracy": 0.5})
    assert list(trace.columns) == ["usd", "hypervolume"]
    assert trace["usd"].tolist() == [10, 20, 20, 30, 40, 50, 60]
    assert trace["hypervolume"].tolist() == pytest.approx([0.45, 1.2, 1.2, 1.4, 1.45, 1.45, 1.45])


def test_trace_can_be_ordered_by_an_objective_or_by_time(p1):
    reference = {"cost": 5, "accuracy": 0.5}
    by_cost = hypervolume_trace(p1, BOTH, order_by="cost", reference=reference)
    assert by_cost["hypervolume"].iloc[-1] == pytest.approx(1.45)
    times = pd.date_range("2026-01-01", periods=10, freq="h")
    by_time = hypervolume_trace(p1.assign(at=times), BOTH, order_by="at", reference=reference)
    assert by_time["hypervolume"].iloc[-1] == pytest.approx(1.45)
    assert hypervolume_trace(p1.head(0), BOTH, order_by="cost", reference=reference).empty


def cells_dominated(points, corner):
    """Unit cells of an integer grid, by their lower corner, that some point reaches: the volume by counting."""
    grid = product(range(corner), repeat=len(points[0]))
    return sum(any(all(p <= c for p, c in zip(point, cell, strict=True)) for point in points) for cell in grid)


points_of_any_dimension = st.integers(1, 4).flatmap(
    lambda dimensions: st.lists(
        st.lists(st.integers(0, 5), min_size=dimensions, max_size=dimensions), min_size=1, max_size=10
    )
)


@given(points=points_of_any_dimension)
def test_volume_equals_counted_cells(points):
    table, objectives = minima(points)
    assert hypervolume(table, objectives, reference=at(4, objectives)) == cells_dominated(points, 4)
    negated = dict.fromkeys(objectives, "max")
    assert hypervolume(-table, negated, reference=at(-4, objectives)) == cells_dominated(points, 4)


@given(points=points_of_any_dimension)
def test_trace_is_the_volume_of_each_beginning_and_never_falls(points):
    table, objectives = minima(points)
    trace = hypervolume_trace(
        table.assign(spent=range(len(table))), objectives, order_by="spent", reference=at(4, objectives)
    )
    volumes = trace["hypervolume"].tolist()
    assert volumes == [cells_dominated(points[: count + 1], 4) for count in range(len(points))]
    assert volumes == sorted(volumes)


@given(
    points=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=30),
    extra=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_volume_grows_with_points_and_ignores_their_order(points, extra):
    table, objectives = minima(points)
    reference = at(1, objectives)
    volume = hypervolume(table, objectives, reference=reference)
    more, _ = minima([*points, extra])
    assert hypervolume(more, objectives, reference=reference) >= volume - 1e-12
    assert hypervolume(table.iloc[::-1], objectives, reference=reference) == pytest.approx(volume, abs=1e-12)
