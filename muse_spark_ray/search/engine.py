"""The sweep's decisions: which config next, what to do when a trial ends, when to stop."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from muse_spark_ray.cost import Interval, PriceBook
from muse_spark_ray.ledger import Store, read_state, stop_requested
from muse_spark_ray.pareto import front
from muse_spark_ray.runtime.book import GangStatus
from muse_spark_ray.runtime.lease import JobKey
from muse_spark_ray.runtime.pool import Pool
from muse_spark_ray.runtime.trial import RUNNER
from muse_spark_ray.search.budget import Spent, exhausted, hopeless
from muse_spark_ray.search.events import Resources, Timeline
from muse_spark_ray.search.meter import SECONDS_PER_HOUR
from muse_spark_ray.search.optuna import Study
from muse_spark_ray.search.recorder import Event, Recorder
from muse_spark_ray.search.trials import News, Trial, trial_name
from muse_spark_ray.spec.sweep import SweepSpec
from muse_spark_ray.sweep import Sweep

# Trials save at the end of an epoch once so many seconds have passed, and at their end.
SAVE_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why no more trials start.

    Args:
        state: finished, stopped, interrupted or failed, as the ledger says it.
        reason: In words.
        keeps_trials: Running trials end as pending, so that a resumed sweep takes them up again.
    """

    state: str
    reason: str
    keeps_trials: bool = False


class Engine:
    """One run of a sweep. Tune's thread and the ticker's share it under one lock.

    Args:
        spec: What is searched.
        store: Where the sweep is kept; it exists already, and trials that it holds are not drawn again.
        pool: Its gangs.
        prices: The price book that the sweep began with.
        proxies: Light trials at a time: more than gangs, so that the next config waits when a gang becomes free.
        resources: What one gang is expected to hold until it says so itself.
        predecessor_died: UTC seconds of the last heartbeat of a driver that ended without a word, if that was so.
    """

    def __init__(
        self,
        spec: SweepSpec,
        store: Store,
        *,
        pool: Pool,
        prices: PriceBook,
        proxies: int,
        resources: Resources,
        predecessor_died: float | None = None,
    ) -> None:
        self._spec = spec
        self._store = store
        self._pool = pool
        self._proxies = proxies
        self._resources = resources
        self._lock = threading.RLock()
        self._live: dict[str, tuple[Trial, Timeline]] = {}
        self._again: deque[Trial] = deque()
        self._news: deque[News] = deque()
        self._verdict: Verdict | None = None
        self._gang_states: list[GangStatus] = []
        self._finished = self._failed = self._drawn = 0
        self._wall_before = float(read_state(store, spec.name).get("wall_seconds", 0.0))
        self._began = time.monotonic()
        sweep = Sweep(store, spec.name)
        self._study = Study(spec, draws_before=len(sweep.trials()))
        booked = _intervals(sweep)
        self._recorder = Recorder(store, spec.name, prices, intervals=booked, points=_records(sweep.points()))
        if predecessor_died is not None:
            self._book_lost(sweep, booked, predecessor_died)
        self._take_up(sweep)

    def _book_lost(self, sweep: Sweep, booked: list[Interval], died: float) -> None:
        """Book what trials had spent and not reported when their driver died."""
        for row in _records(sweep.trials()):
            if row["state"] == "running":
                own = [each for each in booked if each.trial == row["trial"] and each.attempt == row["attempt"]]
                start = max([row["started"], *(each.end for each in own)])
                held = {each.resource: each.amount for each in own} or self._resources
                self._recorder.lost(row["trial"], attempt=row["attempt"], start=start, end=died, held=held)

    def _take_up(self, sweep: Sweep) -> None:
        """Go on from what the ledger holds: trials that ended are told to the study, the others will run again."""
        last = {point["trial"]: point for point in sorted(self._recorder.points, key=lambda point: point["epoch"])}
        for row in _records(sweep.trials()):
            self._drawn = max(self._drawn, row["number"] + 1)
            drawn = json.loads(row["drawn"] or "{}")
            if row["state"] in ("pending", "running"):
                self._again.append(_taken_up(row, drawn, last.get(row["trial"])))
                self._study.replay_running(row["config_hash"], drawn)
                continue
            is_failed = row["state"] == "failed"
            self._count(is_failed=is_failed)
            self._study.replay(row["config_hash"], drawn, None if is_failed else last.get(row["trial"]))

    # ---------------------------------------------------------------- what Tune asks and tells

    @property
    def is_over(self) -> bool:
        """No trial runs or will be started any more."""
        with self._lock:
            return self._verdict is not None and not self._live

    def next_job(self, tune_id: str) -> dict[str, Any] | None:
        """Return the job of the next trial for Tune, None for 'not now' or 'no more'."""
        with self._lock:
            if self._verdict is not None or len(self._live) >= self._proxies:
                return None
            trial = self._again_or_new()
            if trial is None:
                return None
            self._live[tune_id] = (trial, Timeline(trial.name, trial.attempt, self._resources))
            return {"broker": self._pool.broker, "job": self._job(trial)}

    def take(self, tune_id: str, events: list[Event]) -> None:
        """Take in what a trial said: one append to the ledger, then the study and the views."""
        with self._lock:
            if tune_id not in self._live or not events:
                return
            trial, timeline = self._live[tune_id]
            is_over = events[-1]["kind"] in ("Finished", "Failed")
            if is_over:
                trial.epoch = max(
                    [trial.epoch, *(e["payload"]["epoch"] for e in events if "epoch" in (e.get("payload") or {}))]
                )
            ending = self._ending(trial, events[-1]) if is_over else None
            self._recorder.take(events, trial, timeline, ending=ending)
            if ending is not None:
                del self._live[tune_id]
                self._settle(trial, ending)

    def lost(self, tune_id: str) -> None:
        """Take in that the light trial itself died; the training runs again."""
        event = {"kind": "Failed", "reason": "its Tune process died", "error": "", "failure": "lost", "retryable": True}
        self.take(tune_id, [{**event, "at": time.time()}])

    def _again_or_new(self) -> Trial | None:
        if self._again:
            trial = self._again.popleft()
            self._recorder.new_attempt(trial)
            return trial
        limit = self._spec.budget.trials
        if limit is not None and self._drawn >= limit:
            self._nothing_left(f"all {limit} trials of the budget are done")
            return None
        proposal = self._study.ask()
        if proposal is None:
            self._nothing_left("every config of the search space has been tried")
            return None
        config = proposal.config.model_dump_json(exclude={"checkpoint"})
        name = trial_name(self._drawn)
        trial = Trial(name, self._drawn, proposal.values, config, proposal.identity, proposal.config.last_epoch)
        self._drawn += 1
        self._recorder.new_trial(trial, seed=proposal.config.seed)
        return trial

    def _nothing_left(self, reason: str) -> None:
        """End the sweep, unless a trial that still runs may have to run again."""
        if not self._live:
            self._verdict = Verdict("finished", reason)

    def _job(self, trial: Trial) -> dict[str, Any]:
        extra: dict[str, Any] = {}
        folder = self._store.local_path(f"{self._spec.name}/checkpoints/{trial.name}")
        if folder is not None:
            wanted = self._spec.train.get("checkpoint") or {}
            extra["checkpoint"] = {"save_freq": SAVE_SECONDS, "keep_last": 1, **wanted, "save_dir": str(folder)}
        job = {"trial": trial.name, "attempt": trial.attempt, "config": trial.config}
        return {**job, "runner": RUNNER, "extra": json.dumps(extra)}

    def _ending(self, trial: Trial, event: Event) -> dict[str, Any]:
        """Return the last row of an attempt: what became of it, and why."""
        keeps = self._verdict is not None and self._verdict.keeps_trials
        reason = self._verdict.reason if self._verdict is not None else None
        if event["kind"] == "Finished":
            payload = event["payload"] or {}
            state = payload.get("state", "finished")
            if state == "stopped" and keeps and trial.epoch < trial.epochs:
                state = "pending"
            row = {
                "state": state,
                "checkpoint": payload.get("checkpoint"),
                "reason": reason if state != "finished" else None,
            }
        else:
            row = {
                "state": self._state_after_failure(trial, event, keeps),
                "reason": event["reason"],
                "error": event["error"] or None,
            }
        return {**row, "ended": event["at"]}

    def _state_after_failure(self, trial: Trial, event: Event, keeps: bool) -> str:
        if keeps and event["failure"] != "user":
            return "pending"
        if event["failure"] == "stopped":
            return "stopped"
        is_again = event["retryable"] and trial.attempt < self._spec.resources.max_retries and self._verdict is None
        return "pending" if is_again else "failed"

    def _settle(self, trial: Trial, ending: dict[str, Any]) -> None:
        """Act on the end of an attempt: run the trial again, or tell the study."""
        state, reason = ending["state"], ending["reason"] or ""
        if state == "pending":
            if self._verdict is None:
                self._again.append(replace(trial, attempt=trial.attempt + 1, started=None))
                self._news.append(News(trial.name, "again", trial.epoch, trial.metrics, reason))
            return
        is_failed = state == "failed"
        self._count(is_failed=is_failed)
        self._study.tell(trial.identity, None if is_failed else trial.metrics)
        if is_failed:
            self._recorder.drop_points(trial)
        self._news.append(News(trial.name, state, trial.epoch, trial.metrics, reason))
        self._look_at_limits()

    def _count(self, *, is_failed: bool) -> None:
        self._failed += is_failed
        self._finished += not is_failed

    # ---------------------------------------------------------------- what the ticker does

    def tick(self) -> None:
        """Book the gangs' time; look at the budget and at requests to stop."""
        self._gang_states = self._pool.status()
        self.book_gangs()
        if stop_requested(self._store, self._spec.name):
            self.stop(Verdict("stopped", "muse-spark stop was asked for", keeps_trials=True))
        self._look_at_limits()

    def _look_at_limits(self) -> None:
        """End the sweep if its budget is used up, or if too many trials fail."""
        spent = self.spent()
        if (reason := exhausted(self._spec.budget, spent)) is not None:
            self.stop(Verdict("stopped", reason))
        if (reason := hopeless(self._spec.budget, spent)) is not None:
            self.stop(Verdict("failed", reason))

    def stop(self, verdict: Verdict) -> None:
        """Start no more trials and ask the running ones to stop at their next epoch; the first verdict stands."""
        with self._lock:
            if self._verdict is not None:
                return
            self._verdict = verdict
            keys = [JobKey(trial.name, trial.attempt) for trial, _ in self._live.values()]
        for key in keys:
            self._pool.broker.stop.remote(key)

    @property
    def is_stopping(self) -> bool:
        """The sweep has been told to end."""
        return self._verdict is not None

    def book_gangs(self) -> None:
        """Book the time in which gangs were held without a trial since the last call."""
        spans = self._pool.drain_intervals()
        with self._lock:
            self._recorder.gangs(spans, expected=self._resources)

    def close(self) -> Verdict:
        """Merge the ledger's files and return why the sweep ended."""
        with self._lock:
            self._recorder.compact()
            return self._verdict or Verdict("finished", "done")

    # ---------------------------------------------------------------- what views read

    def spent(self) -> Spent:
        """Return what is used so far, time that is being spent right now included."""
        with self._lock:
            meter, now = self._recorder.meter, time.time()
            cost, gpu_hours = meter.sweep.cost_usd, meter.sweep.gpu_hours
            for interval in (i for _, timeline in self._live.values() for i in timeline.not_booked(now)):
                usd = meter.price(interval)
                cost = None if cost is None or usd is None else cost + usd
                gpu_hours += (
                    interval.resource_seconds / SECONDS_PER_HOUR if interval.resource.startswith("gpu") else 0.0
                )
            return Spent(cost, gpu_hours, self.wall_seconds, self._finished, self._failed)

    @property
    def wall_seconds(self) -> float:
        """Time in which a driver was running, earlier runs included."""
        return self._wall_before + time.monotonic() - self._began

    def running(self) -> list[Trial]:
        """Return the trials that have begun."""
        with self._lock:
            return [trial for trial, _ in self._live.values() if trial.started is not None]

    def current_front(self) -> pd.DataFrame:
        """Return the front over all epochs reported so far."""
        with self._lock:
            table = pd.DataFrame(self._recorder.points)
        if table.empty:
            return pd.DataFrame(columns=["trial", "epoch", *self._spec.objectives])
        return front(table, self._spec.objectives)

    def news(self) -> list[News]:
        """Return what happened since the last call."""
        with self._lock:
            said = list(self._news)
            self._news.clear()
            return said

    def gangs_line(self) -> str:
        """Return the gangs' states in words, as of the last tick."""
        states = Counter(status.state.value for status in self._gang_states)
        return f"{len(self._gang_states)} gangs: " + ", ".join(f"{count} {state}" for state, count in states.items())


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a table's rows as dictionaries, missing values as None."""
    plain = table.astype(object)
    return [
        {str(name): value for name, value in row.items()} for row in plain.where(plain.notna(), None).to_dict("records")
    ]


def _intervals(sweep: Sweep) -> list[Interval]:
    return [Interval(**row) for row in _records(sweep.intervals())]


def _taken_up(row: dict[str, Any], drawn: dict[str, Any], last: dict[str, Any] | None) -> Trial:
    config = json.loads(row["config"])
    return Trial(
        row["trial"],
        row["number"],
        drawn,
        row["config"],
        row["config_hash"],
        config["stop_epoch"] or config["epochs"],
        attempt=(row["attempt"] or 0) + 1,
        metrics=last or {},
        epoch=last["epoch"] if last else 0,
    )
