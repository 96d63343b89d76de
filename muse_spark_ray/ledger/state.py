"""What a sweep's driver says about itself: `state.json`, and the marker that asks it to stop."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from muse_spark_ray.errors import ConfigError, LedgerError
from muse_spark_ray.ledger.names import check_name
from muse_spark_ray.ledger.store import Store

STATE_SCHEMA = 1
STALE_AFTER_SECONDS = 30.0
SWEEP_STATES = ("running", "finished", "stopped", "interrupted", "failed")


def read_state(store: Store, sweep: str) -> dict[str, Any]:
    """Return `state.json` as written, or an empty dict before the first driver.

    Raises:
        LedgerError: if it is no JSON object or a newer muse_spark_ray wrote it.
    """
    path = f"{check_name('sweep', sweep)}/state.json"
    try:
        state = json.loads(store.read_bytes(path))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise LedgerError(f"{path} is no JSON: {error}", hint="Remove the file; the trials are not in it.") from error
    if not isinstance(state, dict) or state.get("schema", 0) > STATE_SCHEMA:
        raise LedgerError(
            f"{path} has another form than schema {STATE_SCHEMA}", hint="Upgrade: pip install -U muse-spark-ray."
        )
    return state


def effective_state(state: Mapping[str, Any], *, now: float) -> str:
    """Return the state of a sweep as it is, where its driver may have died without a word.

    Args:
        state: what `read_state` returned.
        now: UTC seconds.

    Returns:
        One of `SWEEP_STATES`; "interrupted" for a sweep said to run whose driver is dead or silent, and for one
        that no driver has started yet.
    """
    said = str(state.get("state", "interrupted"))
    return "interrupted" if said == "running" and not _is_alive(state, now) else said


def request_stop(store: Store, sweep: str) -> None:
    """Ask the driver of a sweep to stop cleanly; it looks for the request with every heartbeat."""
    store.write_atomic(_stop_path(sweep), b"")


def stop_requested(store: Store, sweep: str) -> bool:
    """Return whether the driver has been asked to stop."""
    return store.exists(_stop_path(sweep))


class Driver:
    """The hold of one process on a sweep: its heartbeat, and the state it leaves behind.

    Construct it with `Driver.claim`; `beat` at least every 10 s; `close` once.

    Attributes:
        predecessor_died: UTC seconds of the last heartbeat of the driver before this one, if it ended without a word.
    """

    def __init__(self, store: Store, sweep: str, state: dict[str, Any], *, predecessor_died: float | None) -> None:
        self.store = store
        self.sweep = sweep
        self.predecessor_died = predecessor_died
        self._state = state
        self._wall_seconds_before = float(state["wall_seconds"])
        self._claimed = time.monotonic()

    @classmethod
    def claim(cls, store: Store, sweep: str, **fields: Any) -> Driver:
        """Become the driver of a sweep that has no living one; an old request to stop is withdrawn.

        Args:
            store: where the sweep is.
            sweep: its name.
            fields: more to keep in `state.json`.

        Raises:
            ConfigError: if another process drives it, naming host and process.
        """
        with store.exclusive(f"{check_name('sweep', sweep)}/.claim"):
            return cls._claim(store, sweep, fields)

    @classmethod
    def _claim(cls, store: Store, sweep: str, fields: Mapping[str, Any]) -> Driver:
        now = time.time()
        before = read_state(store, sweep)
        if before.get("state") == "running" and _is_alive(before, now) and not _is_own(before):
            raise ConfigError(
                f"sweep {sweep!r} is being run by process {before['pid']} on {before['host']}, "
                f"last heard of {max(0.0, now - before['heartbeat']):.0f} s ago; one driver at a time",
                hint=f"Stop it with: muse-spark stop {sweep}, or wait for it to end.",
            )
        store.delete(_stop_path(sweep))
        driver = cls(
            store,
            sweep,
            {
                "started": now,
                "wall_seconds": 0.0,
                **before,
                **fields,
                "schema": STATE_SCHEMA,
                "pid": os.getpid(),
                "host": socket.gethostname(),
            },
            predecessor_died=before["heartbeat"] if before.get("state") == "running" else None,
        )
        driver._write("running", None)
        return driver

    def beat(self, **fields: Any) -> None:
        """Say that the driver lives, with more fields for `state.json` if there are any."""
        self._state.update(fields)
        self._write("running", None)

    def close(self, state: str, *, reason: str | None = None) -> None:
        """Write the last word about the sweep.

        Args:
            state: one of `SWEEP_STATES` but "running".
            reason: why it ended, for people.
        """
        if state not in SWEEP_STATES or state == "running":
            raise LedgerError(f"the final state is {state!r}; it must be one of {', '.join(SWEEP_STATES[1:])}")
        self._write(state, reason)

    def _write(self, state: str, reason: str | None) -> None:
        self._state.update(
            state=state,
            reason=reason,
            heartbeat=time.time(),
            wall_seconds=self._wall_seconds_before + time.monotonic() - self._claimed,
        )
        self.store.write_atomic(f"{self.sweep}/state.json", json.dumps(self._state, indent=1).encode())


def _is_alive(state: Mapping[str, Any], now: float) -> bool:
    if now - float(state.get("heartbeat", 0.0)) > STALE_AFTER_SECONDS:
        return False
    return state.get("host") != socket.gethostname() or _has_process(int(state.get("pid", 0)))


def _is_own(state: Mapping[str, Any]) -> bool:
    return state.get("host") == socket.gethostname() and state.get("pid") == os.getpid()


def _has_process(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _stop_path(sweep: str) -> str:
    return f"{check_name('sweep', sweep)}/control/stop"
