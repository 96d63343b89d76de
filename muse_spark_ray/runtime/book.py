"""Who runs what: the bookkeeping of leases and gangs as plain, synchronous state.

Nothing here waits, sleeps or talks to another process, so every rule is tested without Ray. `Broker` puts it behind
an actor. Ray may deliver a caller's messages to an async actor in another order than they were sent, so what rank 0 says
about a job is numbered and taken in that order. Rules kept here: a job is given to one gang at a time and in the order of submission; its events are
Started, Reported ..., one final; what an earlier incarnation of a gang still says is ignored; a job that was handed
out but never began goes back to the head of the queue when its gang is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.runtime.lease import (
    Event,
    Failed,
    FailureKind,
    Finished,
    Job,
    JobKey,
    Reported,
    Started,
    is_final,
)
from muse_spark_ray.runtime.policy import GangFacts


class GangState(Enum):
    """What a gang is doing."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    RESTARTING = "restarting"
    DEAD = "dead"


@dataclass(frozen=True)
class Member:
    """One worker process of a gang, as it introduced itself."""

    rank: int
    pid: int
    node: str
    resources: dict[str, float]


@dataclass(frozen=True)
class GangStatus:
    """A gang as it is now.

    Args:
        since: UTC seconds of the last change of state.
        pids: worker processes, in rank order; of the last worker group while another one starts.
        resources: sum over its workers.
        reason: why it last restarted or died; "" if it never did.
    """

    gang: str
    state: GangState
    since: float
    incarnation: int
    nodes: list[str]
    pids: list[int]
    resources: dict[str, float]
    reason: str


@dataclass(frozen=True)
class GangSpan:
    """A span in which a gang held its resources while no trial ran on it.

    Args:
        phase: "start", "idle" or "restart".
        start: UTC seconds on the broker's clock.
        end: UTC seconds on the broker's clock.
        resources: sum over the gang's workers, e.g. {"cpu": 2.0}; empty where no worker ever introduced itself.
    """

    gang: str
    incarnation: int
    phase: str
    start: float
    end: float
    nodes: list[str]
    resources: dict[str, float]


@dataclass(frozen=True)
class Began:
    """Rank 0: every rank has the job; `at` is UTC seconds on the worker's clock, as are all times of a trial."""

    at: float


@dataclass(frozen=True)
class Returned:
    """Rank 0: the runner returned on every rank."""

    payload: dict[str, Any] | None
    at: float


@dataclass(frozen=True)
class Raised:
    """Any rank: the runner raised."""

    reason: str
    error: str
    at: float


Message = Began | Reported | Returned | Raised
PHASES = {GangState.STARTING: "start", GangState.IDLE: "idle", GangState.RESTARTING: "restart"}


@dataclass
class _Lease:
    job: Job
    events: list[Event] = field(default_factory=list)
    gang: str | None = None
    has_begun: bool = False
    stop: bool = False
    next_number: int = 0
    inbox: dict[int, Message] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return bool(self.events) and is_final(self.events[-1])


@dataclass
class _Gang:
    name: str
    state: GangState
    since: float
    incarnation: int = 0
    members: list[Member] = field(default_factory=list)
    key: JobKey | None = None
    trial_ended_at: float | None = None
    reason: str = ""
    start_failures: int = 0
    losses_in_a_row: int = 0

    @property
    def resources(self) -> dict[str, float]:
        total: dict[str, float] = {}
        for member in self.members:
            for name, amount in member.resources.items():
                total[name] = total.get(name, 0.0) + amount
        return total

    @property
    def nodes(self) -> list[str]:
        return sorted({member.node for member in self.members})


class LeaseBook:
    """All leases and gangs of one pool.

    Args:
        gangs: names of every gang the pool will ever have.
        clock: returns UTC seconds.
    """

    def __init__(self, gangs: Sequence[str], *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._queue: deque[JobKey] = deque()
        self._leases: dict[JobKey, _Lease] = {}
        self._ended: set[JobKey] = set()
        self._gangs = {name: _Gang(name, GangState.STARTING, clock()) for name in gangs}
        self._spans: list[GangSpan] = []
        self.is_closing = False

    # ---------------------------------------------------------------- the trial's side

    def submit(self, job: Job) -> None:
        """Queue a job.

        Raises:
            ConfigError: an attempt of this name was submitted before.
        """
        if job.key in self._leases or job.key in self._ended:
            raise ConfigError(f"trial {job.trial!r} attempt {job.attempt} was submitted before; count the attempt up")
        self._leases[job.key] = _Lease(job)
        if self.is_closing:
            self._end(job.key, "the pool is closing", kind="stopped", retryable=False)
        elif self.are_all_dead():
            self._end(job.key, self._why_all_dead(), kind="lost", retryable=False)
        else:
            self._queue.append(job.key)

    def events(self, key: JobKey, after: int) -> list[Event]:
        """Events of a lease from number `after` on.

        Raises:
            ConfigError: there is no such lease.
        """
        lease = self._leases.get(key)
        if lease is None:
            raise ConfigError(f"there is no lease {key}; it ended and was read, or was never submitted")
        return lease.events[after:]

    def forget(self, key: JobKey) -> None:
        """Drop the events of an ended lease; its key stays used."""
        lease = self._leases.get(key)
        if lease is not None and lease.is_over:
            del self._leases[key]
            self._ended.add(key)

    def stop(self, key: JobKey) -> None:
        """Raise the stop flag of a running job, or end a job that still waits."""
        lease = self._leases.get(key)
        if lease is None or lease.is_over:
            return
        lease.stop = True
        if lease.gang is None:
            self._end(key, "stopped before it began", kind="stopped", retryable=False)

    def cancel(self, key: JobKey) -> None:
        """End a lease now; a running job also gets its stop flag."""
        lease = self._leases.get(key)
        if lease is None or lease.is_over:
            return
        lease.stop = True
        self._end(key, "cancelled", kind="stopped", retryable=False)

    # ---------------------------------------------------------------- the gang's side

    def hello(self, name: str, members: Sequence[Member]) -> int:
        """A worker group introduces itself.

        Returns:
            Its incarnation: 1 for the first, one more for each restart.
        """
        gang = self._gangs[name]
        if gang.key is not None:
            self._lose_job(gang, "a new worker group took over")
        gang.members = list(members)
        self._move(gang, GangState.IDLE)
        gang.incarnation += 1
        gang.start_failures = 0
        return gang.incarnation

    def is_current(self, name: str, incarnation: int) -> bool:
        """Whether this worker group is the one the gang now has."""
        gang = self._gangs[name]
        return gang.incarnation == incarnation and gang.state in (GangState.IDLE, GangState.BUSY)

    def take(self, name: str, incarnation: int) -> Job | None:
        """Hand the oldest waiting job to a gang that asks for work.

        Returns:
            The job, or None when there is none or when the end of the gang's last job has not arrived yet.
        """
        gang = self._gangs[name]
        if not self.is_current(name, incarnation) or not self._has_left_trial(gang):
            return None
        if not self._queue or self.is_closing:
            return None
        key = self._queue.popleft()
        lease = self._leases[key]
        lease.gang, gang.key, gang.trial_ended_at = name, key, None
        lease.next_number = 0
        return lease.job

    def deliver(self, key: JobKey, name: str, incarnation: int, number: int, message: Message) -> None:
        """Take message `number` of rank 0 about its job, and those after it that arrived before it."""
        lease = self._running(key, name, incarnation)
        if lease is None:
            return
        lease.inbox[number] = message
        while lease.next_number in lease.inbox and not lease.is_over:
            self._apply(lease, lease.inbox.pop(lease.next_number))
            lease.next_number += 1

    def fail(self, key: JobKey, name: str, incarnation: int, message: Raised) -> None:
        """The running job raised on a rank other than 0; the first rank to say so is believed."""
        lease = self._running(key, name, incarnation)
        if lease is not None:
            self._begin(lease, message.at)
            self._apply(lease, message)

    def should_stop(self, key: JobKey) -> bool:
        """Whether a running job was asked to stop or its lease is over."""
        lease = self._leases.get(key)
        return lease is None or lease.stop or lease.is_over

    # ---------------------------------------------------------------- the controller's side

    def hold(self, name: str) -> None:
        """The resources of a gang that starts are granted; what it waited for them before is not held."""
        gang = self._gangs[name]
        if gang.state is GangState.STARTING:
            gang.since = self._clock()

    def restart(self, name: str, reason: str) -> GangFacts:
        """The worker group of a gang is gone; its running job is lost, one that never began goes back to the queue.

        Returns:
            What the restart policy needs to know.
        """
        gang = self._gangs[name]
        if gang.state in (GangState.STARTING, GangState.RESTARTING):
            gang.start_failures += 1
        elif not self._has_failed_by_itself(gang):
            gang.losses_in_a_row += 1
        self._lose_job(gang, reason)
        if gang.state is not GangState.STARTING:
            self._move(gang, GangState.RESTARTING)
        gang.reason = reason
        return GangFacts(
            start_failures=gang.start_failures,
            losses_in_a_row=gang.losses_in_a_row,
            is_closing=self.is_closing,
        )

    def bury(self, name: str, reason: str) -> None:
        """A gang will not come back; when it was the last one, waiting jobs fail instead of hanging."""
        gang = self._gangs[name]
        self._lose_job(gang, reason)
        self._move(gang, GangState.DEAD)
        gang.reason = reason
        if self.are_all_dead():
            for key in tuple(self._queue):
                self._end(key, self._why_all_dead(), kind="lost", retryable=False)

    def close(self) -> None:
        """Hand out nothing more and end the jobs that wait."""
        self.is_closing = True
        for key in tuple(self._queue):
            self._end(key, "the pool is closing", kind="stopped", retryable=False)

    def are_all_dead(self) -> bool:
        """Whether no gang is left that could take a job."""
        return all(gang.state is GangState.DEAD for gang in self._gangs.values())

    def status(self) -> list[GangStatus]:
        """Every gang as it is now, in the order of their names."""
        return [
            GangStatus(
                gang=gang.name,
                state=gang.state,
                since=gang.since,
                incarnation=gang.incarnation,
                nodes=gang.nodes,
                pids=[member.pid for member in gang.members],
                resources=gang.resources,
                reason=gang.reason,
            )
            for gang in self._gangs.values()
        ]

    def is_over(self, key: JobKey) -> bool:
        """Whether a lease has its final event."""
        lease = self._leases.get(key)
        return lease is None or lease.is_over

    def has_unread(self) -> bool:
        """Whether some lease is over and its final event was not fetched yet."""
        return any(lease.is_over for lease in self._leases.values())

    def open_keys(self) -> list[JobKey]:
        """Keys of all leases that are not over."""
        return [key for key, lease in self._leases.items() if not lease.is_over]

    def drain_spans(self) -> list[GangSpan]:
        """Spans that ended since the last call."""
        spans, self._spans = self._spans, []
        return spans

    def spans(self) -> list[GangSpan]:
        """Spans not drained yet, the open ones cut at now."""
        open_spans = [self._span(gang, self._clock()) for gang in self._gangs.values() if gang.state in PHASES]
        return [*self._spans, *open_spans]

    # ---------------------------------------------------------------- inside

    def _apply(self, lease: _Lease, message: Message) -> None:
        match message:
            case Began(at):
                self._begin(lease, at)
            case Reported():
                lease.events.append(message)
            case Returned(payload, at):
                self._close_lease(lease, Finished(payload, self._in_order(lease, at)))
            case Raised(reason, error, at):
                self._close_lease(lease, Failed(reason, error, "user", False, self._in_order(lease, at)))
        if lease.is_over and lease.gang is not None:
            gang = self._gangs[lease.gang]
            gang.losses_in_a_row = 0
            self._leave_trial(gang)

    def _begin(self, lease: _Lease, at: float) -> None:
        if lease.has_begun or lease.gang is None:
            return
        lease.has_begun = True
        gang = self._gangs[lease.gang]
        self._move(gang, GangState.BUSY, at=self._in_order(lease, at))
        lease.events.append(Started(gang.since, gang.name, gang.incarnation))

    def _in_order(self, lease: _Lease, at: float) -> float:
        """A worker's time, not before what its gang was last known to do; clocks of two nodes may differ."""
        return at if lease.gang is None else max(at, self._gangs[lease.gang].since)

    def _running(self, key: JobKey, name: str, incarnation: int) -> _Lease | None:
        lease = self._leases.get(key)
        if lease is None or lease.is_over or lease.gang != name or not self.is_current(name, incarnation):
            return None
        return lease

    def _end(self, key: JobKey, reason: str, *, kind: FailureKind, retryable: bool, error: str = "") -> None:
        lease = self._leases[key]
        if lease.gang is None and key in self._queue:
            self._queue.remove(key)
        self._close_lease(lease, Failed(reason, error, kind, retryable, self._clock()))

    def _close_lease(self, lease: _Lease, final: Finished | Failed) -> None:
        lease.events.append(final)
        if lease.gang is not None:
            self._gangs[lease.gang].trial_ended_at = final.at

    def _leave_trial(self, gang: _Gang) -> None:
        if gang.state is GangState.BUSY:
            self._move(gang, GangState.IDLE, at=gang.trial_ended_at)

    def _has_failed_by_itself(self, gang: _Gang) -> bool:
        """Whether the worker group left on purpose after a job had ended, as it does after a user's error."""
        return gang.key is not None and gang.trial_ended_at is not None

    def _has_left_trial(self, gang: _Gang) -> bool:
        """Whether a gang that asks for work is rid of its last job, as far as is known here."""
        lease = self._leases.get(gang.key) if gang.key is not None else None
        if lease is not None and not lease.is_over:
            return False
        gang.key = None
        self._leave_trial(gang)
        return True

    def _lose_job(self, gang: _Gang, reason: str) -> None:
        key, gang.key = gang.key, None
        lease = self._leases.get(key) if key is not None else None
        if key is not None and lease is not None and not lease.is_over:
            if lease.has_begun:
                self._end(key, f"gang {gang.name} was lost: {reason}", kind="lost", retryable=True)
            elif lease.stop or self.is_closing:
                self._end(key, "stopped before it began", kind="stopped", retryable=False)
            else:
                lease.gang = None
                lease.inbox.clear()
                self._queue.appendleft(key)
        self._leave_trial(gang)

    def _move(self, gang: _Gang, state: GangState, *, at: float | None = None) -> None:
        now = self._clock() if at is None else at
        if gang.state in PHASES and now > gang.since:
            self._spans.append(self._span(gang, now))
        gang.state, gang.since = state, now

    def _span(self, gang: _Gang, end: float) -> GangSpan:
        return GangSpan(
            gang=gang.name,
            incarnation=gang.incarnation,
            phase=PHASES[gang.state],
            start=gang.since,
            end=end,
            nodes=gang.nodes,
            resources=gang.resources,
        )

    def _why_all_dead(self) -> str:
        reasons = sorted({gang.reason for gang in self._gangs.values() if gang.reason})
        return f"no gang is left to run this job (ClusterError): {'; '.join(reasons) or 'all were closed'}"
