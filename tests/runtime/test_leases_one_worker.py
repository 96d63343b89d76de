"""Leases of gangs of one worker, on a real Ray."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from muse_spark_ray.errors import ClusterError, ConfigError
from muse_spark_ray.runtime import (
    Event,
    Failed,
    Finished,
    GangShape,
    GangState,
    Job,
    LeaseClient,
    Pool,
    RaySession,
    Reported,
    RestartLimits,
    Started,
)
from muse_spark_ray.runtime.lease import is_final

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]
LIMIT_SECONDS = 120.0


def read(client: LeaseClient) -> Event:
    event = client.next_event(timeout=LIMIT_SECONDS)
    assert event is not None, "no event in time"
    return event


def read_all(client: LeaseClient) -> list[Event]:
    events = [read(client)]
    while not is_final(events[-1]):
        events.append(read(client))
    assert client.next_event(timeout=0.0) is None
    return events


def lease(pool: Pool, trial: str, runner: str, config: dict[str, Any] | None = None) -> LeaseClient:
    client = LeaseClient(pool.broker)
    client.submit(Job(trial, 0, json.dumps(config or {}), f"muse_spark_ray.testing.runners:{runner}"))
    return client


def result(events: list[Event]) -> dict[str, Any]:
    final = events[-1]
    assert isinstance(final, Finished), final
    assert final.payload is not None
    return final.payload


@pytest.fixture(scope="module")
def pool(ray_session: RaySession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with Pool.start(GangShape(), 1, storage_dir=tmp_path_factory.mktemp("gangs"), name="one") as pool:
        yield pool


def test_a_job_reports_and_finishes_in_a_process_that_stays(pool: Pool) -> None:
    first = read_all(lease(pool, "describe-1", "describe", {"x": 1}))
    second = result(read_all(lease(pool, "describe-2", "describe")))
    assert isinstance(first[0], Started)
    assert first[1] == Reported({"rank": 0})
    payload = result(first)
    assert (payload["config"], payload["device"], payload["gang"]) == ({"x": 1}, "cpu", "one-g0")
    assert (payload["resources"], payload["threads"], payload["runs"]) == ({"cpu": 1.0}, 1, 1)
    assert (second["pid"], second["runs"]) == (payload["pid"], 2)
    assert pool.status()[0].pids == [payload["pid"]]


def test_jobs_submitted_together_run_one_after_the_other_in_order(pool: Pool) -> None:
    clients = [lease(pool, f"fifo-{index}", "report_twice") for index in range(4)]
    leases = [read_all(client) for client in clients]
    ends = [events[-1].at for events in leases if isinstance(events[-1], Finished)]
    starts = [events[0].at for events in leases if isinstance(events[0], Started)]
    assert len(starts) == len(ends) == 4
    assert all(start >= end for end, start in zip(ends, starts[1:], strict=False))


def test_a_users_exception_costs_its_own_trial_only(pool: Pool) -> None:
    before = pool.status()[0]
    *_, failed = read_all(lease(pool, "raises", "fail"))
    assert isinstance(failed, Failed)
    assert (failed.kind, failed.retryable) == ("user", False)
    assert failed.reason == "ValueError on rank 0: on purpose in trial raises"
    assert "testing/runners.py" in failed.error
    result(read_all(lease(pool, "after-raises", "report_twice")))
    assert (pool.status()[0].pids, pool.status()[0].incarnation) == (before.pids, before.incarnation)


def test_a_runner_that_does_not_exist_is_named(pool: Pool) -> None:
    *_, failed = read_all(lease(pool, "no-runner", "no_such_runner"))
    assert isinstance(failed, Failed)
    assert "muse_spark_ray.testing.runners:no_such_runner" in failed.reason


def test_a_running_job_stops_at_a_report_after_it_was_asked_to(pool: Pool) -> None:
    client = lease(pool, "stop", "report_until_stopped")
    while not isinstance(read(client), Reported):
        pass
    client.stop()
    final = read(client)
    while not is_final(final):
        final = read(client)
    assert isinstance(final, Finished)


def test_cancel_ends_a_waiting_job_and_a_running_one(pool: Pool) -> None:
    running = lease(pool, "cancel-running", "report_until_stopped")
    waiting = lease(pool, "cancel-waiting", "report_twice")
    assert isinstance(read(running), Started)
    waiting.cancel()
    running.cancel()
    for client, started in ((running, True), (waiting, False)):
        events = read_all(client)
        final = events[-1]
        assert isinstance(final, Failed)
        assert (final.kind, final.retryable) == ("stopped", False)
        assert started or len(events) == 1
    result(read_all(lease(pool, "after-cancel", "report_twice")))


def test_the_same_attempt_twice_is_refused(pool: Pool) -> None:
    read_all(lease(pool, "twice", "report_twice"))
    with pytest.raises(ConfigError, match="submitted before"):
        lease(pool, "twice", "report_twice")


def test_next_event_gives_none_when_the_time_is_up(pool: Pool) -> None:
    client = lease(pool, "slow", "hang")
    while not isinstance(read(client), Reported):
        pass
    assert client.next_event(timeout=0.01) is None
    os.kill(pool.status()[0].pids[0], signal.SIGKILL)
    read_all(client)


def test_a_killed_worker_loses_its_trial_and_the_gang_comes_back(pool: Pool) -> None:
    running = lease(pool, "lost", "report_until_stopped")
    while not isinstance(read(running), Reported):
        pass
    waiting = lease(pool, "after-lost", "report_twice")
    before = pool.status()[0]
    assert before.state is GangState.BUSY
    os.kill(before.pids[0], signal.SIGKILL)
    lost = read_all(running)[-1]
    assert isinstance(lost, Failed)
    assert (lost.kind, lost.retryable) == ("lost", True)
    assert result(read_all(waiting))["incarnation"] == before.incarnation + 1
    phases = [span.phase for span in pool.intervals()]
    assert phases[0] == "start"
    assert "restart" in phases


def test_out_of_memory_fails_the_trial_and_renews_the_gang(pool: Pool) -> None:
    before = pool.status()[0]
    *_, failed = read_all(lease(pool, "memory", "exhaust_memory"))
    assert isinstance(failed, Failed)
    assert failed.kind == "user"
    assert result(read_all(lease(pool, "after-memory", "report_twice")))["incarnation"] == before.incarnation + 1


def test_an_embedded_ray_that_is_too_small_is_refused_at_once(ray_session: RaySession, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="need 4 CPU; this Ray has 2"):
        Pool.start(GangShape(workers=2), 2, storage_dir=tmp_path, name="big")


def test_jobs_fail_instead_of_hanging_when_no_gang_can_start(
    pool: Pool, ray_session: RaySession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "1")
    limits = RestartLimits(start_failures=2)
    # The other pool holds one of the two CPUs.
    with Pool.start(GangShape(workers=2), 1, storage_dir=tmp_path, name="starved", limits=limits) as starved:
        (failed,) = read_all(lease(starved, "starved", "report_twice"))
        assert isinstance(failed, Failed)
        assert "ClusterError" in failed.reason
        assert "did not start in 2 tries" in failed.reason
        assert not failed.retryable
        assert [status.state for status in starved.status()] == [GangState.DEAD]


def test_close_leaves_no_process_and_no_open_lease(pool: Pool) -> None:
    hanging = lease(pool, "hangs", "hang")
    waiting = lease(pool, "waits", "report_twice")
    while not isinstance(read(hanging), Reported):
        pass
    import ray

    pids = [*pool.status()[0].pids, ray.get(pool.broker.pid.remote())]
    processes = [psutil.Process(pid) for pid in pids]
    pool.close(timeout=1.0)
    for client in (hanging, waiting):
        final = read_all(client)[-1]
        assert isinstance(final, Failed)
        assert final.kind == "stopped"
    _, alive = psutil.wait_procs(processes, timeout=LIMIT_SECONDS)
    assert alive == []
    assert [status.state for status in pool.status()] == [GangState.DEAD]
    assert pool.drain_intervals()
    assert pool.drain_intervals() == []


def test_the_lease_module_loads_neither_ray_nor_torch() -> None:
    code = "import sys, muse_spark_ray.runtime.lease; print('ray' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"]
