"""From a lease's events to what the ledger stores: a trial's time without gaps, its epochs, how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from muse_spark_ray.cost import Interval, Phase

Resources = Mapping[str, float]


@dataclass(slots=True)
class Timeline:
    """The intervals of one attempt, joined so that every second of the lease is in one.

    Args:
        trial: Its id.
        attempt: Which start of it.
        held: What the gang holds; the first report says it exactly.
        cursor: UTC seconds up to which the lease is booked; None before the gang has begun.
    """

    trial: str
    attempt: int
    held: Resources
    cursor: float | None = None

    def begin(self, at: float) -> None:
        """Note when the gang took the job."""
        self.cursor = at

    def take(self, payload: Mapping[str, Any] | None) -> list[Interval]:
        """Book the spans of a report; a gap before the first is part of starting."""
        payload = payload or {}
        self.held = payload.get("resources") or self.held
        booked: list[Interval] = []
        for phase, start, end in payload.get("spans", ()):
            booked += self._up_to(start, Phase.start)
            booked += self._up_to(end, phase)
        return booked

    def finish(self, at: float, phase: str) -> list[Interval]:
        """Book what is left up to the end of the lease."""
        return self._up_to(at, phase)

    def not_booked(self, now: float) -> list[Interval]:
        """Return what is held right now and not reported yet, without booking it."""
        start = self.cursor
        if start is None or now <= start:
            return []
        return [
            Interval(self.trial, name, amount, start, now, Phase.train, self.attempt)
            for name, amount in self.held.items()
        ]

    def _up_to(self, end: float, phase: str) -> list[Interval]:
        start = self.cursor
        if start is None or end <= start:
            return []
        self.cursor = end
        return [
            Interval(self.trial, resource, amount, start, end, phase, self.attempt)
            for resource, amount in self.held.items()
        ]


@dataclass(slots=True)
class Rows:
    """Rows that one batch of events adds to the ledger."""

    trials: list[dict[str, Any]] = field(default_factory=list)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    intervals: list[Interval] = field(default_factory=list)


def epoch_row(trial: str, attempt: int, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ledger's row of one reported epoch."""
    row = {"trial": trial, "attempt": attempt, "epoch": payload["epoch"], "end": payload["ended"]}
    return {**payload["metrics"], **row}
