from __future__ import annotations

import itertools
import os
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muse_spark_ray.cost import Phase, PhaseClock, Span
from muse_spark_ray.errors import ConfigError

WALL = 1_790_000_000.0


class FakeTime:
    """A monotonic clock that is set by hand."""

    def __init__(self) -> None:
        self.seconds = 500.0

    def __call__(self) -> float:
        return self.seconds


def clock_at(fake: FakeTime) -> PhaseClock:
    return PhaseClock(monotonic=fake, wall=lambda: WALL)


def test_phases_lie_side_by_side_in_order_of_first_appearance():
    fake = FakeTime()
    clock = clock_at(fake)
    clock.enter(Phase.train)
    fake.seconds += 4
    with clock.phase(Phase.evaluate):
        fake.seconds += 2
    fake.seconds += 1
    clock.add(Phase.data_wait, 0.5)
    assert clock.drain() == [
        Span(Phase.train, WALL, WALL + 4.5),
        Span(Phase.evaluate, WALL + 4.5, WALL + 6.5),
        Span(Phase.data_wait, WALL + 6.5, WALL + 7),
    ]
    fake.seconds += 3
    assert clock.drain() == [Span(Phase.train, WALL + 7, WALL + 10)]
    assert clock.now() == WALL + 10


def test_outer_phase_comes_back_after_an_error():
    fake = FakeTime()
    clock = clock_at(fake)
    clock.enter(Phase.train)

    def fail() -> None:
        with clock.phase(Phase.checkpoint):
            fake.seconds += 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    fake.seconds += 1
    assert [(span.phase, span.seconds) for span in clock.drain()] == [(Phase.train, 1), (Phase.checkpoint, 1)]


def test_moved_seconds_are_at_most_what_the_present_phase_has_had():
    fake = FakeTime()
    clock = clock_at(fake)
    clock.enter(Phase.train)
    fake.seconds += 2
    clock.add(Phase.data_wait, 100)
    clock.add(Phase.data_wait, 100)
    clock.add(Phase.compile, -1)
    clock.add(Phase.compile, float("nan"))
    fake.seconds += 1
    assert [(span.phase, span.seconds) for span in clock.drain()] == [(Phase.train, 1), (Phase.data_wait, 2)]


def test_a_drain_without_time_still_says_when_and_in_which_phase():
    clock = clock_at(FakeTime())
    assert clock.drain() == [Span(Phase.overhead, WALL, WALL)]


def test_unknown_phase_is_refused():
    clock = clock_at(FakeTime())
    with pytest.raises(ConfigError, match="trian"):
        clock.enter("trian")  # type: ignore[arg-type]


def test_wall_clock_set_back_makes_no_negative_time():
    """COST-7: the wall clock is read once."""
    fake, walls = FakeTime(), iter([WALL, WALL - 3600])
    clock = PhaseClock(monotonic=fake, wall=lambda: next(walls))
    fake.seconds += 5
    (span,) = clock.drain()
    assert (span.start, span.end) == (WALL, WALL + 5)


def test_change_from_summer_time_does_not_change_a_duration(monkeypatch):
    """COST-7: 2026-10-25 00:30Z and 40 minutes in Berlin are 2400 s."""
    monkeypatch.setitem(os.environ, "TZ", "Europe/Berlin")
    time.tzset()
    try:
        fake, began = FakeTime(), 1_792_888_200.0
        clock = PhaseClock(monotonic=fake, wall=lambda: began)
        fake.seconds += 40 * 60
        (span,) = clock.drain()
        assert time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(span.start)) == "2026-10-25T00:30Z"
        assert span.seconds == 2400
    finally:
        monkeypatch.undo()
        time.tzset()


operations = st.lists(
    st.tuples(
        st.sampled_from(["enter", "add", "nest", "drain"]),
        st.sampled_from(list(Phase)),
        st.floats(0, 1000),
        st.floats(0, 2000),
    ),
    max_size=40,
)


@given(operations)
def test_every_second_is_in_exactly_one_phase(steps):
    """C4's identity: spans have no gap, no overlap, and sum to what has passed, exactly."""
    fake = FakeTime()
    clock = clock_at(fake)
    spans: list[list[Span]] = []
    for what, phase, passing, moved in steps:
        if what == "enter":
            clock.enter(phase)
            fake.seconds += passing
        elif what == "add":
            fake.seconds += passing
            clock.add(phase, moved)
        elif what == "nest":
            with clock.phase(phase):
                fake.seconds += passing
        else:
            spans.append(clock.drain())
    spans.append(clock.drain())
    flat = [span for part in spans for span in part]
    assert flat[0].start == WALL
    assert flat[-1].end == clock.now()
    assert all(one.end == other.start for one, other in itertools.pairwise(flat))
    assert all(span.end >= span.start for span in flat)
    assert all(len({span.phase for span in part}) == len(part) for part in spans)
    assert sum(Fraction(span.end) - Fraction(span.start) for span in flat) == Fraction(clock.now()) - Fraction(WALL)


@given(st.lists(st.tuples(st.sampled_from(list(Phase)), st.integers(0, 1000)), max_size=30))
def test_each_phase_gets_what_passed_in_it(steps):
    fake = FakeTime()
    clock = clock_at(fake)
    right: dict[Phase, int] = {}
    for phase, passing in steps:
        clock.enter(phase)
        fake.seconds += passing
        right[phase] = right.get(phase, 0) + passing
    got = {span.phase: span.seconds for span in clock.drain()}
    assert {phase: seconds for phase, seconds in got.items() if seconds} == {k: v for k, v in right.items() if v}
