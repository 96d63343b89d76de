"""Real processes: readers beside a writer, and a writer that is killed at any moment."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from muse_spark_ray.ledger import LedgerWriter, Store, read_epochs, read_intervals, read_trials

KILLS = 24

WRITER = """
import sys
from muse_spark_ray.cost import Interval
from muse_spark_ray.ledger import LedgerWriter, Store

root, sweep, first, last, every = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
writer = LedgerWriter(Store.open(root), sweep)
for number in range(first, last):
    trial = f"t{number}"
    writer.append(
        trials=[{"trial": trial, "number": number, "state": "finished"}],
        epochs=[{"trial": trial, "epoch": each, "end": float(each), "acc": each / 7} for each in range(2)],
        intervals=[Interval(trial, "cpu", 1.0, float(each), each + 1.0, "train") for each in range(3)],
    )
    print(trial, flush=True)
    if number % every == every - 1:
        writer.compact()
"""


def start_writer(root: Path, *, first: int, last: int, compact_every: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", WRITER, str(root), "s", str(first), str(last), str(compact_every)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


@pytest.mark.filterwarnings("error")
def test_a_killed_writer_loses_no_committed_trial(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    chance = random.Random(7)
    committed: set[str] = set()
    for kill in range(KILLS):
        process = start_writer(tmp_path, first=kill * 100_000, last=(kill + 1) * 100_000, compact_every=3)
        assert process.stdout is not None
        committed.add(process.stdout.readline().strip())
        # Spread over several rounds of append and compact; whatever moment it hits is a valid one.
        timer = threading.Timer(chance.uniform(0.0, 0.12), process.send_signal, [signal.SIGKILL])
        timer.start()
        committed.update(line.strip() for line in process.stdout if line.endswith("\n"))
        timer.join()
        assert process.wait() == -signal.SIGKILL
        process.stdout.close()
        trials, epochs, intervals = (read(store, "s") for read in (read_trials, read_epochs, read_intervals))
        assert committed <= set(trials["trial"])
        assert set(trials["state"]) == {"finished"}
        assert (epochs[epochs["trial"].isin(trials["trial"])].groupby("trial").size() == 2).all()
        assert (intervals.groupby("trial").size() == 3).all()
        assert set(trials["trial"]) <= set(epochs["trial"]) <= set(intervals["trial"])
    LedgerWriter(store, "s").compact()
    assert committed <= set(read_trials(store, "s")["trial"])
    visible = [path.name for path in (tmp_path / "s" / "trials").iterdir() if not path.name.startswith(".")]
    assert len(visible) == 1


@pytest.mark.filterwarnings("error")
def test_store_1_readers_beside_a_writer_see_no_error(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    failures: list[BaseException] = []
    reads = [0, 0]
    done = threading.Event()

    def poll(reader: int) -> None:
        seen = 0
        while not done.is_set():
            try:
                found = len(read_trials(store, "s"))
                assert found >= seen, "a row was seen and then not seen"
            except BaseException as error:
                failures.append(error)
                return
            seen = found
            reads[reader] += 1

    began = time.monotonic()
    readers = [threading.Thread(target=poll, args=[reader]) for reader in range(2)]
    process = start_writer(tmp_path, first=0, last=400, compact_every=25)
    for reader in readers:
        reader.start()
    process.communicate()
    done.set()
    for reader in readers:
        reader.join()
    assert process.returncode == 0
    assert failures == []
    assert min(reads) > 3
    assert sorted(read_trials(store, "s")["number"]) == list(range(400))
    assert len(read_epochs(store, "s")) == 800
    assert time.monotonic() - began < 60
