"""Picking one row: the knee, the cheapest above, the best below (P3), and bounds as text."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.pareto import (
    Bound,
    best_below,
    best_within,
    cheapest_above,
    front,
    knee,
    parse_bound,
    total_violation,
)

BOTH = {"cost": "min", "accuracy": "max"}


def table_of(*rows, index=None):
    return pd.DataFrame(list(rows), columns=["cost", "accuracy"], index=index)


@pytest.fixture
def p1():
    costs = [1, 2, 2, 3, 4, 4, np.inf, 0.5, 1, 6]
    accuracies = [0.80, 0.85, 0.85, 0.84, 0.90, np.nan, 0.99, 0.60, 0.78, 0.90]
    return pd.DataFrame({"cost": costs, "accuracy": accuracies}, index=list("abcdefghij"))


def test_knee_is_farthest_below_the_line_through_the_extremes(p1):
    # Scaled: h (0, 1), a (1/7, 1/3), b (3/7, 1/6), e (1, 0): below the line by 0, 11/21, 17/42, 0.
    assert knee(front(p1, BOTH), BOTH) == "a"
    assert knee(p1, BOTH) == "a"


def test_knee_does_not_depend_on_units(p1):
    scaled = p1.assign(cost=p1["cost"] * 1e6, accuracy=p1["accuracy"] * 100 - 3)
    assert knee(scaled, BOTH) == "a"


def test_knee_of_a_straight_or_concave_front_is_nearest_to_the_ideal():
    assert knee(table_of((0, 0), (1, 1), (2, 2), (3, 3), (4, 4)), BOTH) == 2
    # Scaled: (0, 1), (.8, .7), (1, 0): the extremes are nearer, and equally near; the cheaper one wins.
    assert knee(table_of((0.0, 0.0), (8, 3), (10, 10)), BOTH) == 0


def test_knee_of_few_points():
    assert knee(table_of(), BOTH) is None
    assert knee(table_of((1, math.nan)), BOTH) is None
    assert knee(table_of((5, 0.5)), BOTH) == 0
    assert knee(table_of((5, 0.5), (5, 0.5)), BOTH) == 0
    assert knee(table_of((5, 0.9), (1, 0.5)), BOTH) == 1
    assert knee(table_of((5, 0.9), (1, 0.5)), {"accuracy": "max", "cost": "min"}) == 0


def test_knee_of_one_and_of_three_objectives():
    assert knee(table_of((5, 0.9), (1, 0.5)), {"accuracy": "max"}) == 0
    table = pd.DataFrame({"x": [0, 9, 9, 3], "y": [9, 0, 9, 3], "z": [9, 9, 0, 3]}, index=list("abcd"))
    assert knee(table, {"x": "min", "y": "min", "z": "min"}) == "d"


def test_cheapest_above_takes_the_more_accurate_of_equally_cheap(p1):
    assert list(cheapest_above(p1, accuracy="accuracy", minimum=0.85, cost="cost").index) == ["b"]
    assert list(cheapest_above(p1, accuracy="accuracy", minimum=0.7, cost="cost").index) == ["a"]
    assert cheapest_above(p1, accuracy="accuracy", minimum=0.7, cost="cost").attrs["message"] is None


def test_best_below_takes_the_cheaper_of_equally_accurate(p1):
    assert list(best_below(p1, cost="cost", maximum=100, accuracy="accuracy").index) == ["e"]
    assert list(best_below(p1, cost="cost", maximum=3, accuracy="accuracy").index) == ["b"]


def test_case_p3_pick_names_the_closest_row_and_its_miss(p1):
    none = cheapest_above(p1, accuracy="accuracy", minimum=0.95, cost="cost")
    assert none.empty
    assert list(none.columns) == ["cost", "accuracy"]
    assert none.attrs["message"] == (
        "no row has accuracy >= 0.95; closest is row e: accuracy is 0.9 and misses accuracy >= 0.95 by 0.05"
    )
    too_dear = best_below(p1.assign(trial=list("ABCDEFGHIJ")), cost="cost", maximum=0.25, accuracy="accuracy")
    assert "closest is trial H: cost is 0.5 and misses cost <= 0.25 by 0.25" in too_dear.attrs["message"]


def test_pick_from_nothing_says_so(p1):
    assert (
        best_below(p1.head(0), cost="cost", maximum=1, accuracy="accuracy").attrs["message"] == "the table has no rows"
    )
    only_nan = cheapest_above(p1.loc[["f"]], accuracy="accuracy", minimum=0.1, cost="cost")
    assert only_nan.attrs["message"] == "none of the 1 rows is a candidate: 1 nan"


def test_best_within_works_for_a_loss_and_several_bounds():
    table = pd.DataFrame({"loss": [0.5, 0.2, 0.3], "hours": [1, 9, 2], "gb": [4, 4, 64]})
    bounds = [parse_bound("hours<=5"), parse_bound("gb <= 16")]
    assert list(best_within(table, {"loss": "min"}, bounds=bounds).index) == [0]


def test_bounds_from_text():
    assert parse_bound(" accuracy >=0.95 ") == Bound("accuracy", ">=", 0.95)
    assert parse_bound("cost_usd<=1e-2") == Bound("cost_usd", "<=", 0.01)
    assert str(parse_bound("val acc >= 2")) == "val acc >= 2"


@pytest.mark.parametrize(
    "text", ["", "accuracy", "accuracy > 1", "accuracy == 1", ">= 1", "accuracy >= much", "cost<=nan"]
)
def test_text_that_is_no_bound_is_refused(text):
    with pytest.raises(ConfigError):
        parse_bound(text)


def test_bound_operator_is_checked():
    with pytest.raises(ConfigError, match="'<'"):
        Bound("cost", "<", 1.0)


def test_a_missing_value_does_not_meet_a_bound():
    table = table_of((1, 0.9), (2, 0.95)).assign(hours=[None, 1.0])
    found = front(table, BOTH, bounds=[Bound("hours", "<=", 2)])
    assert list(found.index) == [1]


def test_par_7_total_violation_is_the_sum_of_positive_parts():
    assert [total_violation(values) for values in ([0.5], [-1], [0], [2, -9], [0.2, 0.2], [])] == [0.5, 0, 0, 2, 0.4, 0]
    assert total_violation([math.nan, -1]) == math.inf
