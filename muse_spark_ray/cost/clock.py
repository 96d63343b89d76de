"""One continuous timeline in which every second belongs to exactly one phase."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from muse_spark_ray.cost.interval import Phase, parse_phase


@dataclass(frozen=True, slots=True)
class Span:
    """A phase from `start` to `end`, UTC seconds since 1970."""

    phase: Phase
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Length in seconds."""
        return self.end - self.start


class PhaseClock:
    """Says at any time which phase runs, and how long each one took.

    The wall clock is read once; from then on time advances by the monotonic clock alone, so that a wall clock that is
    set back makes nothing negative. For one thread. `enter` and `add` take well under a microsecond or so.

    Args:
        phase: the phase that the timeline begins with.
        monotonic: seconds of a clock that never goes back.
        wall: UTC seconds since 1970.
    """

    def __init__(
        self,
        *,
        phase: Phase = Phase.overhead,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._monotonic = monotonic
        self._mark = monotonic()
        self._offset_origin, self._wall_origin = self._mark, wall()
        self._drained = self._wall_origin
        self._phase = phase
        self._moved = 0.0
        self._seconds = {phase: 0.0}

    def now(self) -> float:
        """Return UTC seconds since 1970 by this clock."""
        return self._anchored(self._monotonic())

    def enter(self, phase: Phase) -> None:
        """Begin a phase; the one before it ends here."""
        now, seconds = self._monotonic(), self._seconds
        seconds[self._phase] += now - self._mark - self._moved
        if phase not in seconds:
            phase = parse_phase(phase)
            seconds[phase] = 0.0
        self._phase, self._mark, self._moved = phase, now, 0.0

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Be in a phase inside a `with` block, and in the present one again after it."""
        outer = self._phase
        self.enter(phase)
        try:
            yield
        finally:
            self.enter(outer)

    def add(self, phase: Phase, seconds: float) -> None:
        """Move seconds that just passed in the present phase to another one, at most what the present one has had.

        Args:
            phase: where they belong, such as `data_wait`.
            seconds: since the present phase was entered or drained; nothing happens for 0 or less.
        """
        available = self._monotonic() - self._mark - self._moved
        taken = min(seconds, available)
        if taken > 0:
            if phase not in self._seconds:
                phase = parse_phase(phase)
                self._seconds[phase] = 0.0
            self._seconds[phase] += taken
            self._moved += taken

    def drain(self) -> list[Span]:
        """Return what passed since the last call (or the beginning): one span per phase, without a gap.

        Phases come in the order of their first appearance; the parts of one that was entered several times are put
        together. The first span starts where the last call's ended, the last one ends now.
        """
        now = self._monotonic()
        self._seconds[self._phase] += now - self._mark - self._moved
        self._mark, self._moved = now, 0.0
        spans = _laid_out(self._seconds, self._phase, self._drained, self._anchored(now))
        self._drained = spans[-1].end
        self._seconds = {self._phase: 0.0}
        return spans

    def _anchored(self, monotonic: float) -> float:
        return self._wall_origin + (monotonic - self._offset_origin)


def _laid_out(seconds: dict[Phase, float], present: Phase, start: float, end: float) -> list[Span]:
    """Return the phases that took time side by side from `start` to `end`; the present one if none did."""
    passed = [(phase, taken) for phase, taken in seconds.items() if taken > 0] or [(present, 0.0)]
    spans, reached, total = [], start, 0.0
    for phase, taken in passed[:-1]:
        total += taken
        border = min(start + total, end)
        spans.append(Span(phase, reached, border))
        reached = border
    return [*spans, Span(passed[-1][0], reached, end)]
