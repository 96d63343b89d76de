"""Fixtures for the tests of the command line."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import psutil
import pytest
from program import LIMIT_SECONDS, Program


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """One store for the tests of a module; no process of theirs is left at the end."""
    own = Program(tmp_path_factory.mktemp("cli"))
    yield own
    here = str(own.folder)
    left = [p for p in psutil.process_iter(["pid", "cmdline"]) if here in " ".join(p.info["cmdline"] or ())]
    for process in left:
        process.kill()


@pytest.fixture
def wait_until() -> Callable[..., None]:
    """Return a function that waits for an event, with a generous limit."""

    def wait(condition: Callable[[], bool], *, why: str, limit_seconds: float = LIMIT_SECONDS) -> None:
        deadline = time.monotonic() + limit_seconds
        while not condition():
            assert time.monotonic() < deadline, f"waited {limit_seconds} s in vain: {why}"
            time.sleep(0.05)

    return wait
