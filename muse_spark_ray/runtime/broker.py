"""The broker: one async actor per pool that joins proxies and gangs by long polls.

Proxies call `submit`, `events`, `stop`, `cancel`; rank 0 of a gang calls `hello`, `next_job`, `begin`, `report`,
`end`, other ranks `fail`; the driver calls the rest. Every rule lives in `LeaseBook`; here is only the waiting.
An async actor may run calls of one process in any order: what rank 0 says about a job is therefore numbered.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, cast

from muse_spark_ray.runtime.book import Began, GangSpan, GangStatus, LeaseBook, Member, Message, Raised
from muse_spark_ray.runtime.lease import Event, Job, JobKey
from muse_spark_ray.runtime.policy import GangFacts

# A poll is answered empty after this many seconds, so that nobody waits on a peer that went away unseen.
POLL_SECONDS = 20.0
# Waiting polls count as running calls of the actor; Ray's default of 1,000 would be a limit on proxies.
MAX_WAITING_CALLS = 20_000
# Topics besides the key of each lease: a job waits or a gang is free; somebody fetched events.
QUEUE = "queue"
READ = "read"


class _Wakeups:
    """Coroutines that wait for a topic, and the call that wakes them."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, set[asyncio.Future[None]]] = {}

    async def wait(self, topic: Hashable, *, timeout: float) -> None:
        future = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(topic, set())
        waiting.add(future)
        try:
            await asyncio.wait_for(future, timeout)
        except TimeoutError:
            pass
        finally:
            waiting.discard(future)
            if not waiting and self._waiting.get(topic) is waiting:
                del self._waiting[topic]

    async def until(self, topic: Hashable, ready: Callable[[], object], *, timeout: float) -> None:
        """Wait until `ready()` is true, looking again at each wake-up of the topic, or until the time is up."""
        deadline = time.monotonic() + timeout
        while not ready() and (remaining := deadline - time.monotonic()) > 0:
            await self.wait(topic, timeout=remaining)

    def wake(self, topic: Hashable) -> None:
        for future in self._waiting.get(topic, ()):
            if not future.done():
                future.set_result(None)

    def wake_all(self) -> None:
        for topic in tuple(self._waiting):
            self.wake(topic)


class Broker:
    """The actor's class; `start_broker` makes the actor.

    Args:
        gangs: names of every gang of the pool.
        poll_seconds: longest a poll waits before it is answered empty.
    """

    def __init__(self, gangs: Sequence[str], *, poll_seconds: float = POLL_SECONDS) -> None:
        self._book = LeaseBook(gangs, clock=time.time)
        self._wakeups = _Wakeups()
        self._poll_seconds = poll_seconds

    # ---------------------------------------------------------------- the trial's side

    async def submit(self, job: Job) -> None:
        """Queue a job."""
        self._book.submit(job)
        self._wakeups.wake(QUEUE)

    async def events(self, key: JobKey, after: int) -> list[Event]:
        """Wait for events of a lease from number `after` on; empty when none came in time."""
        await self._wakeups.until(key, lambda: self._book.events(key, after), timeout=self._poll_seconds)
        events = self._book.events(key, after)
        self._book.forget(key)
        self._wakeups.wake(READ)
        return events

    async def stop(self, key: JobKey) -> None:
        """Ask a job to stop at its next report."""
        self._book.stop(key)
        self._wakeups.wake(key)

    async def cancel(self, key: JobKey) -> None:
        """End a lease now."""
        self._book.cancel(key)
        self._wakeups.wake(key)

    # ---------------------------------------------------------------- the gang's side

    async def hello(self, gang: str, members: Sequence[Member]) -> int:
        """A worker group introduces itself and learns its incarnation."""
        incarnation = self._book.hello(gang, members)
        self._wakeups.wake_all()
        return incarnation

    async def next_job(self, gang: str, incarnation: int) -> tuple[bool, Job | None]:
        """Wait for a job.

        Returns:
            Whether the worker group goes on, and the job; (True, None) when none came in time.
        """
        job: Job | None = None

        def has_answer() -> bool:
            nonlocal job
            job = self._book.take(gang, incarnation)
            return job is not None or not self._goes_on(gang, incarnation)

        await self._wakeups.until(QUEUE, has_answer, timeout=self._poll_seconds)
        return self._goes_on(gang, incarnation), job

    async def begin(self, key: JobKey, gang: str, incarnation: int, at: float) -> None:
        """A worker group starts on its job (message 0); answered when the job has to stop or is over."""
        await self.report(key, gang, incarnation, 0, Began(at))
        while not self._book.should_stop(key) and self._book.is_current(gang, incarnation):
            await self._wakeups.wait(key, timeout=self._poll_seconds)

    async def report(self, key: JobKey, gang: str, incarnation: int, number: int, message: Message) -> None:
        """Message `number` of rank 0 about its job."""
        self._book.deliver(key, gang, incarnation, number, message)
        self._wakeups.wake(key)
        if self._book.is_over(key):
            self._wakeups.wake(QUEUE)

    async def end(self, key: JobKey, gang: str, incarnation: int, number: int, message: Message) -> None:
        """The last message of rank 0 about its job; answered when all earlier ones have arrived, too."""
        await self.report(key, gang, incarnation, number, message)
        while not self._book.is_over(key) and self._book.is_current(gang, incarnation):
            await self._wakeups.wait(key, timeout=self._poll_seconds)

    async def fail(self, key: JobKey, gang: str, incarnation: int, message: Raised) -> None:
        """The running job raised on a rank other than 0."""
        self._book.fail(key, gang, incarnation, message)
        self._wakeups.wake(key)

    # ---------------------------------------------------------------- the controller's side

    async def hold(self, gang: str) -> None:
        """The resources of a starting gang are granted."""
        self._book.hold(gang)

    async def restart(self, gang: str, reason: str) -> GangFacts:
        """The worker group of a gang is gone."""
        facts = self._book.restart(gang, reason)
        self._wakeups.wake_all()
        return facts

    async def bury(self, gang: str, reason: str) -> None:
        """A gang will not come back."""
        self._book.bury(gang, reason)
        self._wakeups.wake_all()

    async def close(self) -> None:
        """Tell every gang to finish and end the jobs that wait."""
        self._book.close()
        self._wakeups.wake_all()

    async def abandon(self) -> None:
        """End the jobs that still run; their gangs are about to be killed."""
        for key in self._book.open_keys():
            self._book.cancel(key)
        self._wakeups.wake_all()

    async def settle(self, seconds: float) -> None:
        """Give proxies up to `seconds` to fetch the final events of their leases."""
        await self._wakeups.until(READ, lambda: not self._book.has_unread(), timeout=seconds)

    async def status(self) -> list[GangStatus]:
        """Every gang as it is now."""
        return self._book.status()

    async def spans(self) -> list[GangSpan]:
        """Spans without a trial that were not drained yet, open ones cut at now."""
        return self._book.spans()

    async def drain_spans(self) -> list[GangSpan]:
        """Spans without a trial that ended since the last call."""
        return self._book.drain_spans()

    async def pid(self) -> int:
        """Process of the broker itself."""
        return os.getpid()

    def _goes_on(self, gang: str, incarnation: int) -> bool:
        return self._book.is_current(gang, incarnation) and not self._book.is_closing


def start_broker(gangs: Sequence[str]) -> Any:
    """Start a broker actor on this node; it holds no resources and ends with the driver.

    Args:
        gangs: names of every gang of the pool.

    Returns:
        The actor's handle, which may be pickled into other actors.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    # The stubs of ray.remote know neither max_concurrency nor node affinity.
    remote = cast(Any, ray.remote)
    actor = remote(num_cpus=0, max_concurrency=MAX_WAITING_CALLS, scheduling_strategy=here)(Broker)
    return actor.remote(list(gangs))
