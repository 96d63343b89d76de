from __future__ import annotations

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muse_spark_ray.cost import Interval, Phase, distinct, restarts, union_seconds
from muse_spark_ray.errors import ConfigError


def test_phase_given_by_name_becomes_the_enum():
    interval = Interval("t", "gpu", 2, 10, 20, "train")
    assert interval.phase is Phase.train
    assert (interval.seconds, interval.resource_seconds) == (10, 20)
    assert pickle.loads(pickle.dumps(interval)) == interval


def test_waiting_holds_nothing():
    assert Interval("t", "gpu", 2, 0, 60, "wait").resource_seconds == 0
    assert Interval("t", "gpu", 2, 0, 60, "idle").resource_seconds == 120


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ({"amount": -1}, "-1"),
        ({"end": 5}, "5"),
        ({"start": math.nan}, "nan"),
        ({"end": math.inf}, "inf"),
        ({"phase": "trian"}, "trian"),
        ({"resource": ""}, "resource"),
    ],
)
def test_wrong_values_are_refused_and_named(change, seen):
    right = {"trial": "t", "resource": "cpu", "amount": 1, "start": 10, "end": 20, "phase": "train"}
    with pytest.raises(ConfigError) as caught:
        Interval(**(right | change))
    assert seen in caught.value.message


def test_unknown_phase_names_the_nearest():
    with pytest.raises(ConfigError) as caught:
        Interval("t", "cpu", 1, 0, 1, "evalute")
    assert caught.value.hint == "Did you mean evaluate?"


def test_rows_written_twice_count_once_and_attempts_give_restarts():
    """COST-9, first part: rows (trial, attempt, sequence, seconds)."""
    rows = [("t1", 0, 0, 60), ("t1", 0, 1, 60), ("t1", 0, 1, 60), ("t1", 1, 0, 60)]
    intervals = [
        Interval(
            trial, "gpu", 1, 1000 * attempt + 60 * sequence, 1000 * attempt + 60 * sequence + seconds, "train", attempt
        )
        for trial, attempt, sequence, seconds in rows
    ]
    assert sum(each.resource_seconds for each in distinct(intervals)) == 180
    assert restarts(intervals) == {"t1": 1}


def test_overlapping_spans_of_one_device_count_once():
    """COST-9, second part."""
    assert union_seconds([(0, 100), (90, 200), (250, 300)]) == 250
    assert union_seconds([]) == 0


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)).map(lambda pair: (pair[0], pair[0] + pair[1]))))
def test_union_is_the_number_of_covered_seconds(spans):
    assert union_seconds(spans) == len({second for start, end in spans for second in range(start, end)})
