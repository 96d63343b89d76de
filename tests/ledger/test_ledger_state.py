from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from muse_spark_ray.errors import ConfigError, LedgerError
from muse_spark_ray.ledger import Driver, Store, effective_state, read_state, request_stop, stop_requested


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path)


@pytest.fixture
def dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def running(*, pid: int, host: str = socket.gethostname(), age_seconds: float = 0.0) -> dict[str, Any]:
    return {"state": "running", "pid": pid, "host": host, "heartbeat": 1000.0 - age_seconds}


def test_state_of_a_silent_or_dead_driver_is_interrupted(dead_pid: int) -> None:
    assert effective_state(running(pid=os.getpid()), now=1000.0) == "running"
    assert effective_state(running(pid=os.getpid(), age_seconds=31), now=1000.0) == "interrupted"
    assert effective_state(running(pid=dead_pid), now=1000.0) == "interrupted"
    assert effective_state(running(pid=dead_pid, host="elsewhere"), now=1000.0) == "running"
    assert effective_state({"state": "finished", "heartbeat": 0.0}, now=1000.0) == "finished"
    assert effective_state({}, now=1000.0) == "interrupted"


def test_wall_seconds_add_up_over_drivers(store: Store) -> None:
    first = Driver.claim(store, "s", sampler="tpe")
    first.beat(spent=1)
    first.close("stopped", reason="asked to")
    before = read_state(store, "s")
    assert (before["state"], before["reason"], before["sampler"], before["spent"]) == ("stopped", "asked to", "tpe", 1)
    Driver.claim(store, "s").close("finished")
    after = read_state(store, "s")
    assert after["wall_seconds"] > before["wall_seconds"] > 0
    assert after["started"] == before["started"]
    assert after["schema"] == 1


def test_a_driver_knows_when_one_before_it_died_without_a_word(store: Store, dead_pid: int) -> None:
    assert Driver.claim(store, "s").predecessor_died is None
    store.write_atomic("s/state.json", json.dumps({"wall_seconds": 1.0, **running(pid=dead_pid)}).encode())
    heir = Driver.claim(store, "s")
    assert heir.predecessor_died == 1000.0
    heir.close("stopped")
    assert Driver.claim(store, "s").predecessor_died is None


def test_second_driver_is_refused_by_process_and_host(store: Store) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        Driver.claim(store, "s", note="kept")
        taken = read_state(store, "s") | {"pid": other.pid, "heartbeat": time.time()}
        store.write_atomic("s/state.json", json.dumps(taken).encode())
        with pytest.raises(ConfigError, match=f"process {other.pid} on {socket.gethostname()}"):
            Driver.claim(store, "s")
        assert read_state(store, "s") == taken
        other.communicate(b"\n")
    Driver.claim(store, "s")
    assert read_state(store, "s")["pid"] == os.getpid()


CLAIMER = """
import sys
from muse_spark_ray.errors import ConfigError
from muse_spark_ray.ledger import Driver, Store

store = Store.open(sys.argv[1])
print("ready", flush=True)
input()
try:
    Driver.claim(store, "s")
    print("drives", flush=True)
except ConfigError:
    print("refused", flush=True)
input()
"""


def test_of_drivers_that_claim_at_once_one_is_let_in(store: Store, tmp_path: Path) -> None:
    command = [sys.executable, "-c", CLAIMER, str(tmp_path)]
    claimers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) for _ in range(4)
    ]
    try:
        assert [_line(claimer) for claimer in claimers] == ["ready"] * 4
        for claimer in claimers:
            print(file=claimer.stdin)
        assert sorted(_line(claimer) for claimer in claimers) == ["drives", "refused", "refused", "refused"]
    finally:
        for claimer in claimers:
            claimer.communicate("\n", timeout=60)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_request_to_stop_lasts_until_the_next_driver(store: Store) -> None:
    assert not stop_requested(store, "s")
    request_stop(store, "s")
    assert stop_requested(store, "s")
    Driver.claim(store, "s")
    assert not stop_requested(store, "s")


def test_state_file_that_is_no_json_or_newer_is_refused(store: Store) -> None:
    store.write_atomic("s/state.json", b'{"schema": 1, "sta')
    with pytest.raises(LedgerError, match=r"s/state\.json is no JSON"):
        read_state(store, "s")
    store.write_atomic("s/state.json", b'{"schema": 2}')
    with pytest.raises(LedgerError, match="another form"):
        read_state(store, "s")


def test_final_state_must_be_one(store: Store) -> None:
    with pytest.raises(LedgerError, match="'running'"):
        Driver.claim(store, "s").close("running")
