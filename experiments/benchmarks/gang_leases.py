"""What a trial costs besides its training: leases of an empty job that reports twice, straight from a gang.

    python experiments/benchmarks/gang_leases.py [--gangs 1] [--workers 1] [--trials 200] [--json overhead.json]

Three figures: from the start of this script to the end of the first trial (Ray and gang included); one trial at a
time, each leased after the last has ended; and many trials queued at once, as a sweep does it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from muse_spark_ray.errors import ClusterError
from muse_spark_ray.runtime import Finished, GangShape, Job, LeaseClient, Pool, open_ray
from muse_spark_ray.runtime.lease import is_final

RUNNER = "muse_spark_ray.testing.runners:report_twice"
PROXIES = 20
LIMIT_SECONDS = 300.0
_START = time.perf_counter()
_names = itertools.count()


@dataclass(frozen=True)
class Overhead:
    """Seconds from the start of the script to a ready Ray, the first trial's end; milliseconds per further trial."""

    gangs: int
    workers: int
    trials: int
    ray_ready_seconds: float
    first_trial_seconds: float
    lease_median_milliseconds: float
    lease_p90_milliseconds: float
    queued_milliseconds_per_trial: float
    close_seconds: float
    load_average: float


def submit_next(client: LeaseClient) -> None:
    """Submit one more empty trial, under a name of its own."""
    client.submit(Job(f"empty-{next(_names)}", 0, "{}", RUNNER))


def wait_for_end(client: LeaseClient) -> None:
    """Read a lease's events to the end."""
    event = client.next_event(timeout=LIMIT_SECONDS)
    while event is not None and not is_final(event):
        event = client.next_event(timeout=LIMIT_SECONDS)
    if not isinstance(event, Finished):
        raise ClusterError(f"an empty trial ended with {event}")


def lease_one_by_one(pool: Pool, trials: int) -> list[float]:
    """Seconds of each of `trials` leases, one after the other."""
    client = LeaseClient(pool.broker)
    seconds = []
    for _ in range(trials):
        start = time.perf_counter()
        submit_next(client)
        wait_for_end(client)
        seconds.append(time.perf_counter() - start)
    return seconds


def lease_queued(pool: Pool, rounds: int) -> float:
    """Seconds per trial with up to `PROXIES` trials waiting at any time."""
    clients = [LeaseClient(pool.broker) for _ in range(PROXIES)]
    start = time.perf_counter()
    for _ in range(rounds):
        for client in clients:
            submit_next(client)
        for client in clients:
            wait_for_end(client)
    return (time.perf_counter() - start) / (rounds * PROXIES)


def measure(gangs: int, workers: int, trials: int, *, start: float) -> Overhead:
    """Measure one shape of pool on an embedded Ray of its own."""
    with tempfile.TemporaryDirectory() as storage, open_ray(num_cpus=max(gangs * workers, 2)):
        ray_ready = time.perf_counter() - start
        pool = Pool.start(GangShape(workers=workers), gangs, storage_dir=storage, name="bench")
        lease_one_by_one(pool, 1)
        first_trial = time.perf_counter() - start
        single = lease_one_by_one(pool, trials)
        queued = lease_queued(pool, max(trials // PROXIES, 1))
        closing = time.perf_counter()
        pool.close()
        close = time.perf_counter() - closing
    return Overhead(
        gangs=gangs,
        workers=workers,
        trials=trials,
        ray_ready_seconds=ray_ready,
        first_trial_seconds=first_trial,
        lease_median_milliseconds=1e3 * statistics.median(single),
        lease_p90_milliseconds=1e3 * statistics.quantiles(single, n=10)[-1],
        queued_milliseconds_per_trial=1e3 * queued,
        close_seconds=close,
        load_average=os.getloadavg()[0],
    )


def show(overhead: Overhead) -> None:
    """Print the figures as a table."""
    table = Table(title="Overhead of empty trials, leased from gangs")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in asdict(overhead).items():
        table.add_row(name, f"{value:.2f}" if isinstance(value, float) else str(value))
    Console().print(table)


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gangs", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1, help="workers of each gang")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--json", type=Path, default=None, help="file to write the figures to")
    chosen = parser.parse_args()
    overhead = measure(chosen.gangs, chosen.workers, chosen.trials, start=_START)
    show(overhead)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(asdict(overhead), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
