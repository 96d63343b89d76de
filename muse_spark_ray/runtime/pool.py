"""A pool: some gangs of one shape and the broker that joins them to trials."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from muse_spark_ray.errors import ClusterError, ConfigError
from muse_spark_ray.runtime.book import GangSpan, GangStatus
from muse_spark_ray.runtime.broker import start_broker
from muse_spark_ray.runtime.gang import Gang, GangShape
from muse_spark_ray.runtime.policy import RestartLimits
from muse_spark_ray.runtime.session import worker_environment

ANSWER_SECONDS = 60.0
# Proxies that still listen fetch the end of their lease within this time after the pool was closed.
LAST_READ_SECONDS = 0.5
# Workers die with their placement group; Ray Train's thread notices at its next poll, or never if they were just
# about to start.
KILL_SECONDS = 3.0


class Pool:
    """Gangs that wait for jobs; make one with `Pool.start`, end it with `close` or as a context manager."""

    def __init__(self, broker: Any, gangs: list[Gang]) -> None:
        self.broker = broker
        self._gangs = gangs
        self._is_closed = False
        self._last_status: list[GangStatus] = []
        self._last_spans: list[GangSpan] = []

    @classmethod
    def start(
        cls,
        shape: GangShape,
        gangs: int,
        *,
        storage_dir: str | Path,
        name: str,
        limits: RestartLimits | None = None,
    ) -> Pool:
        """Start a broker and, in the background, the gangs; jobs may be submitted at once.

        Args:
            shape: what each gang is made of.
            gangs: how many.
            storage_dir: folder (or URI) for the few files Ray Train keeps of each gang.
            name: prefix of the gangs' names.
            limits: how much failure in a row a gang may have.

        Raises:
            ConfigError: no gang was asked for.
            ClusterError: Ray is not running, an embedded Ray is too small, or the broker did not start.
        """
        if gangs < 1:
            raise ConfigError(f"a pool of {gangs} gangs was asked for; it needs at least 1")
        _check_fit(shape, gangs)
        names = [f"{name}-g{index}" for index in range(gangs)]
        broker = _start_broker(names)
        members = [
            Gang(
                each,
                shape,
                broker,
                storage_dir=str(storage_dir),
                limits=limits or RestartLimits(),
                worker_env=worker_environment(),
            )
            for each in names
        ]
        for member in members:
            member.start()
        return cls(broker, members)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def status(self) -> list[GangStatus]:
        """Every gang as it is now; after `close`, as it was last."""
        return self._last_status if self._is_closed else self._ask("status")

    def intervals(self) -> list[GangSpan]:
        """Spans in which a gang was held without a trial and that were not drained yet; open ones are cut at now."""
        return list(self._last_spans) if self._is_closed else self._ask("spans")

    def drain_intervals(self) -> list[GangSpan]:
        """Such spans that ended since the last call; after `close`, the rest of them, once."""
        if not self._is_closed:
            return self._ask("drain_spans")  # type: ignore[no-any-return]
        spans, self._last_spans = self._last_spans, []
        return spans

    def close(self, timeout: float = 30.0) -> None:
        """End the pool: waiting jobs end as stopped, running ones may finish, what is left then is killed.

        Args:
            timeout: seconds that running jobs are given.
        """
        if self._is_closed:
            return
        import ray

        try:
            self._ask("close")
            self._end_gangs(time.monotonic() + timeout)
            self._ask("settle", LAST_READ_SECONDS)
            self._last_status, self._last_spans = self._ask("status"), self._ask("spans")
        except ClusterError:
            self._kill_gangs()
        self._is_closed = True
        ray.kill(self.broker)

    def _end_gangs(self, deadline: float) -> None:
        for gang in self._gangs:
            gang.close()
        late = [gang for gang in self._gangs if not gang.join(max(deadline - time.monotonic(), 0.0))]
        if late:
            self._ask("abandon")
            self._kill_gangs()

    def _kill_gangs(self) -> None:
        for gang in self._gangs:
            gang.kill()
        deadline = time.monotonic() + KILL_SECONDS
        for gang in self._gangs:
            gang.join(max(deadline - time.monotonic(), 0.0))

    def _ask(self, method: str, *args: Any) -> Any:
        import ray

        try:
            return ray.get(getattr(self.broker, method).remote(*args), timeout=ANSWER_SECONDS)
        except ray.exceptions.RayError as error:
            raise ClusterError(f"the pool's broker does not answer {method!r}: {error}") from error


def _check_fit(shape: GangShape, gangs: int) -> None:
    """Refuse at once what an embedded Ray can never hold; a joined cluster may grow."""
    import ray

    if not ray.is_initialized():
        raise ClusterError("Ray is not running", hint="open it with muse_spark_ray.runtime.open_ray()")
    if worker_environment() is not None:
        return
    there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    for resource, per_worker in {"CPU": shape.cpus_per_worker, "GPU": shape.gpus_per_worker}.items():
        needed = gangs * shape.workers * per_worker
        if needed > there.get(resource, 0.0):
            raise ClusterError(
                f"{gangs} gangs of {shape.workers} workers with {per_worker:g} {resource} each need {needed:g} "
                f"{resource}; this Ray has {there.get(resource, 0.0):g}",
                hint="use fewer or smaller gangs, or join a larger cluster",
            )


def _start_broker(names: list[str]) -> Any:
    import ray

    try:
        return start_broker(names)
    except ray.exceptions.RayError as error:
        raise ClusterError(f"the pool's broker did not start: {error}") from error
