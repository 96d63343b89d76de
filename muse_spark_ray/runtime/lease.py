"""What a trial and a gang say to each other: a job goes in, events come out.

The search side sees only this module and `Pool`. A proxy submits a `Job` through a `LeaseClient` and reads events
until the final one, always in the order Started, Reported ..., then exactly one of Finished or Failed. A job that
never reached a worker ends with Failed alone. Importing this module loads neither ray nor torch.
"""

from __future__ import annotations

import importlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from muse_spark_ray.errors import ClusterError, ConfigError

FailureKind = Literal["user", "lost", "stopped"]
Emit = Callable[[dict[str, Any]], bool]


class JobKey(NamedTuple):
    """Identity of one attempt of one trial."""

    trial: str
    attempt: int


@dataclass(frozen=True)
class Job:
    """One attempt of one trial.

    Args:
        trial: name of the trial, unique in its pool.
        attempt: 0 for the first try, counted up by whoever retries.
        config: JSON text, read by the runner only.
        runner: "module:function", imported in the worker and called there on every rank.
        extra: JSON text for the runner that is not part of the trial's identity.
    """

    trial: str
    attempt: int
    config: str
    runner: str = "muse_spark_ray.runtime.trial:run_trial"
    extra: str = "{}"

    @property
    def key(self) -> JobKey:
        """Identity of this attempt."""
        return JobKey(self.trial, self.attempt)


@dataclass(frozen=True)
class WorkerContext:
    """What a runner may know about the process it runs in.

    Args:
        device: "cpu" or "cuda:i", already chosen for this worker.
        resources: what this one worker holds, e.g. {"cpu": 1.0} or {"gpu:NAME": 1.0, "host_cpu": 4.0}.
        incarnation: 1 for the first worker group of this gang, one more after each restart.
        cache: lives as long as the worker process; keep data sets here.
    """

    rank: int
    local_rank: int
    world_size: int
    device: str
    resources: dict[str, float]
    gang: str
    node: str
    incarnation: int
    cache: dict[str, Any] = field(default_factory=dict, init=False)


Runner = Callable[[Job, Emit, WorkerContext], "dict[str, Any] | None"]


@dataclass(frozen=True)
class Started:
    """A gang has begun with the job; `at` is UTC seconds on its clock."""

    at: float
    gang: str
    incarnation: int


@dataclass(frozen=True)
class Reported:
    """One report of the running job."""

    payload: dict[str, Any]


@dataclass(frozen=True)
class Finished:
    """The runner returned; from `at` on the gang is free again."""

    payload: dict[str, Any] | None
    at: float


@dataclass(frozen=True)
class Failed:
    """The job ended without a result.

    Args:
        reason: one line for people.
        error: traceback text, or "".
        kind: "user" the runner raised; "lost" its worker or gang went away; "stopped" it was cancelled.
        retryable: whether the same job may succeed on another try.
    """

    reason: str
    error: str
    kind: FailureKind
    retryable: bool
    at: float


Event = Started | Reported | Finished | Failed


def is_final(event: Event) -> bool:
    """Whether no event follows this one."""
    return isinstance(event, Finished | Failed)


def resolve_runner(name: str) -> Runner:
    """Import the function a job names.

    Raises:
        ConfigError: `name` is not "module:function" or does not name a function.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ConfigError(f"job.runner is {name!r}; it must be 'module:function'")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"job.runner {name!r} cannot be imported in the worker: {error}") from error
    if not callable(found):
        raise ConfigError(f"job.runner {name!r} is a {type(found).__name__}; it must be a function")
    return found  # type: ignore[no-any-return]


class LeaseClient:
    """One proxy's end of a lease: submit a job, read its events, stop or cancel it.

    A client follows one job at a time; submit the next one after the final event of the last.

    Args:
        broker: `Pool.broker`, the handle of the pool's broker actor.
    """

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self._key: JobKey | None = None
        self._buffer: deque[Event] = deque()
        self._received = 0
        self._pending: Any = None

    def submit(self, job: Job) -> None:
        """Queue a job; returns when it is queued, about a millisecond later.

        Raises:
            ConfigError: this client's last job has not ended, or the same attempt was submitted before.
            ClusterError: the broker is gone.
        """
        import ray

        if self._pending is not None:
            raise ConfigError(f"job {self._key} has not ended; cancel it before submitting {job.key}")
        # Waited for: calls to the broker may overtake each other, and the queue is in the order of submission.
        try:
            ray.get(self._broker.submit.remote(job))
        except ray.exceptions.RayTaskError as error:
            raise _unwrap(error) from error
        except ray.exceptions.RayError as error:
            raise ClusterError(f"the broker of the pool is gone; job {job.key} was not queued: {error}") from error
        self._key = job.key
        self._received = 0
        self._buffer.clear()
        self._pending = self._broker.events.remote(job.key, 0)

    def next_event(self, *, timeout: float | None = None) -> Event | None:
        """Wait for the next event of the job.

        Args:
            timeout: seconds; None waits until there is one.

        Returns:
            The event, or None when the time ran out or the job has already ended.

        Raises:
            ClusterError: the broker is gone, so nothing more will be known about this job.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._buffer and self._pending is not None:
            remaining = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            if not self._receive(timeout=remaining):
                return None
        return self._buffer.popleft() if self._buffer else None

    def stop(self) -> None:
        """Ask the job to stop at its next report; it then ends with Finished as usual."""
        self._broker.stop.remote(self._known_key())

    def cancel(self) -> None:
        """End the lease now with Failed(kind="stopped"); a running job also stops at its next report."""
        self._broker.cancel.remote(self._known_key())

    def _known_key(self) -> JobKey:
        if self._key is None:
            raise ConfigError("no job was submitted with this client yet")
        return self._key

    def _receive(self, *, timeout: float | None) -> bool:
        import ray

        try:
            events: list[Event] = ray.get(self._pending, timeout=timeout)
        except ray.exceptions.GetTimeoutError:
            return False
        except ray.exceptions.RayTaskError as error:
            self._pending = None
            raise _unwrap(error) from error
        except ray.exceptions.RayError as error:
            self._pending = None
            raise ClusterError(f"the broker of the pool is gone while job {self._key} was leased: {error}") from error
        self._received += len(events)
        self._buffer.extend(events)
        ended = bool(events) and is_final(events[-1])
        self._pending = None if ended else self._broker.events.remote(self._known_key(), self._received)
        return True


def _unwrap(error: Any) -> Exception:
    """The broker's own exception, out of Ray's wrapper."""
    cause = error.cause
    return cause if isinstance(cause, Exception) else ClusterError(f"the broker of the pool failed: {error}")
