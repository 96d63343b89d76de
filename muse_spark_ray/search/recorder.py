"""Writes what happens to the ledger, and keeps the sums and points that the running sweep needs of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from muse_spark_ray.cost import Interval, Phase, PriceBook
from muse_spark_ray.ledger import LedgerWriter, Store
from muse_spark_ray.runtime.book import GangSpan
from muse_spark_ray.search.events import Resources, Rows, Timeline, epoch_row
from muse_spark_ray.search.meter import Meter
from muse_spark_ray.search.trials import Trial
from muse_spark_ray.spec.sweep import COSTS

Event = dict[str, Any]


class Recorder:
    """The ledger's writing end, with a meter of costs and the points of all epochs so far.

    Args:
        store: Holds the sweep.
        name: The sweep.
        prices: Its price book.
        intervals: What earlier runs of the sweep have booked.
        points: What they have reported, one dictionary an epoch.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        prices: PriceBook,
        *,
        intervals: Sequence[Interval],
        points: Sequence[dict[str, Any]],
    ) -> None:
        self._writer = LedgerWriter(store, name)
        self.meter = Meter(prices)
        self.meter.add(intervals)
        self._points = {(point["trial"], point["epoch"]): point for point in points}

    @property
    def points(self) -> list[dict[str, Any]]:
        """Every epoch of every trial as of now: trial, epoch, metrics and costs."""
        return list(self._points.values())

    def new_trial(self, trial: Trial, *, seed: int) -> None:
        """Write a trial before it is started, so that no id is given twice whatever happens."""
        row = {
            "trial": trial.name,
            "number": trial.number,
            "state": "pending",
            "attempt": trial.attempt,
            "config": trial.config,
            "config_hash": trial.identity,
            "drawn": json.dumps(trial.values),
            "seed": seed,
        }
        self._writer.append(trials=[row])

    def new_attempt(self, trial: Trial) -> None:
        """Write that a trial starts once more."""
        self._writer.append(trials=[{"trial": trial.name, "state": "pending", "attempt": trial.attempt}])

    def take(self, events: Sequence[Event], trial: Trial, timeline: Timeline, *, ending: dict[str, Any] | None) -> None:
        """Write what a trial said, in one append.

        Args:
            events: As the proxy passes them on.
            trial: Whose; its epoch and metrics move on.
            timeline: The intervals of this attempt.
            ending: The last row of the attempt, if `events` holds its end.
        """
        rows = Rows()
        for event in events:
            self._take_one(event, trial, timeline, rows)
        if ending is not None:
            rows.trials.append({"trial": trial.name, "epochs": trial.epoch, **ending})
        self._writer.append(trials=rows.trials, epochs=rows.epochs, intervals=rows.intervals)

    def _take_one(self, event: Event, trial: Trial, timeline: Timeline, rows: Rows) -> None:
        kind = event["kind"]
        if kind == "Started":
            timeline.begin(event["at"])
            trial.started = event["at"]
            rows.trials.append(
                {"trial": trial.name, "state": "running", "attempt": trial.attempt, "started": trial.started}
            )
        elif kind == "Failed":
            self._book(timeline.finish(event["at"], "lost"), rows)
        else:
            payload = event["payload"] or {}
            self._book(timeline.take(payload), rows)
            for epoch, metrics in enumerate(payload.get("restored", ()), 1):
                if epoch > trial.epoch:
                    self._take_epoch({"epoch": epoch, "metrics": metrics, "ended": payload["ended"]}, trial, rows)
            if "metrics" in payload:
                self._take_epoch(payload, trial, rows)
        if kind == "Finished":
            self._book(timeline.finish(event["at"], "overhead"), rows)

    def _take_epoch(self, payload: dict[str, Any], trial: Trial, rows: Rows) -> None:
        rows.epochs.append(epoch_row(trial.name, trial.attempt, payload))
        use = self.meter.trials[trial.name]
        trial.epoch = payload["epoch"]
        trial.metrics = {**payload["metrics"], **{name: getattr(use, name) for name in COSTS}}
        point = {"trial": trial.name, "epoch": trial.epoch, "state": "running", **trial.metrics}
        self._points[trial.name, trial.epoch] = point

    def _book(self, intervals: list[Interval], rows: Rows) -> None:
        rows.intervals += intervals
        self.meter.add(intervals)

    def drop_points(self, trial: Trial) -> None:
        """Take a failed trial's epochs out of the running front."""
        self._points = {key: point for key, point in self._points.items() if point["trial"] != trial.name}

    def lost(self, trial: str, *, attempt: int, start: float, end: float, held: Resources) -> None:
        """Write what a trial held unreported when its driver died.

        Args:
            trial: Its id.
            attempt: The start of it that was cut short.
            start: UTC seconds up to which it is booked.
            end: UTC seconds of the driver's last sign of life.
            held: Amount of each resource.
        """
        if end > start:
            intervals = [
                Interval(trial, name, amount, start, end, Phase.lost, attempt) for name, amount in held.items()
            ]
            self._writer.append(intervals=intervals)
            self.meter.add(intervals)

    def gangs(self, spans: Sequence[GangSpan], *, expected: Resources) -> None:
        """Write the time in which gangs were held without a trial."""
        intervals = [
            Interval("", resource, amount, span.start, span.end, span.phase, span.incarnation, span.gang)
            for span in spans
            for resource, amount in (span.resources or expected).items()
            if span.end > span.start
        ]
        if intervals:
            self._writer.append(intervals=intervals)
            self.meter.add(intervals)

    def compact(self) -> None:
        """Merge the ledger's small files."""
        self._writer.compact()
