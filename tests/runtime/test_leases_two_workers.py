"""Leases of a gang of two workers joined by gloo, on a real Ray."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from muse_spark_ray.runtime import Event, Failed, Finished, GangShape, Job, LeaseClient, Pool, RaySession, Reported
from muse_spark_ray.runtime.lease import is_final

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]
LIMIT_SECONDS = 120.0


@pytest.fixture(scope="module")
def pool(ray_session: RaySession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with Pool.start(GangShape(workers=2), 1, storage_dir=tmp_path_factory.mktemp("gangs"), name="two") as pool:
        yield pool


def submit(pool: Pool, trial: str, runner: str, config: dict[str, Any] | None = None) -> LeaseClient:
    client = LeaseClient(pool.broker)
    client.submit(Job(trial, 0, json.dumps(config or {}), f"muse_spark_ray.testing.runners:{runner}"))
    return client


def read(client: LeaseClient) -> Event:
    event = client.next_event(timeout=LIMIT_SECONDS)
    assert event is not None, "no event in time"
    return event


def final_of(client: LeaseClient) -> Event:
    event = read(client)
    while not is_final(event):
        event = read(client)
    return event


def test_all_ranks_run_the_job_together(pool: Pool) -> None:
    final = final_of(submit(pool, "sum", "sum_ranks"))
    assert isinstance(final, Finished)
    assert final.payload == {"total": 3.0}
    assert pool.status()[0].resources == {"cpu": 2.0}
    assert len(set(pool.status()[0].pids)) == 2


def test_both_ranks_stop_at_the_same_report(pool: Pool) -> None:
    client = submit(pool, "stop", "report_until_stopped")
    while not isinstance(read(client), Reported):
        pass
    client.stop()
    assert isinstance(final_of(client), Finished)
    assert isinstance(final_of(submit(pool, "after-stop", "sum_ranks")), Finished)


def test_ranks_that_fail_alike_go_on(pool: Pool) -> None:
    before = pool.status()[0]
    failed = final_of(submit(pool, "both-fail", "fail"))
    assert isinstance(failed, Failed)
    assert failed.kind == "user"
    final = final_of(submit(pool, "after-both", "sum_ranks"))
    assert isinstance(final, Finished)
    assert final.payload == {"total": 3.0}
    assert pool.status()[0].pids == before.pids


def test_one_rank_that_fails_renews_the_gang(pool: Pool) -> None:
    before = pool.status()[0]
    failed = final_of(submit(pool, "one-fails", "fail", {"ranks": [1]}))
    assert isinstance(failed, Failed)
    assert failed.reason == "ValueError on rank 1: on purpose in trial one-fails"
    final = final_of(submit(pool, "after-one", "report_twice"))
    assert isinstance(final, Finished)
    assert final.payload == {"world_size": 2, "incarnation": before.incarnation + 1}


def test_a_killed_rank_loses_the_trial_and_the_gang_comes_back(pool: Pool) -> None:
    running = submit(pool, "lost", "report_until_stopped")
    while not isinstance(read(running), Reported):
        pass
    before = pool.status()[0]
    os.kill(before.pids[1], signal.SIGKILL)
    lost = final_of(running)
    assert isinstance(lost, Failed)
    final = final_of(submit(pool, "after-lost", "report_twice"))
    assert isinstance(final, Finished)
    assert final.payload == {"world_size": 2, "incarnation": before.incarnation + 1}
