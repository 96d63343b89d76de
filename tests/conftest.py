"""Settings that all tests share."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# A machine under load is no reason to fail, and a run of the suite is no lottery: the same examples every time.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
for folder in ("training", "cli", "strategies"):
    sys.path.insert(0, str(Path(__file__).parent / folder))

LIMIT_SECONDS = 240.0


@pytest.fixture
def wait_until() -> Callable[..., None]:
    """Return a function that waits for an event, with a generous limit."""

    def wait(condition: Callable[[], bool], *, why: str, limit_seconds: float = LIMIT_SECONDS) -> None:
        deadline = time.monotonic() + limit_seconds
        while not condition():
            assert time.monotonic() < deadline, f"waited {limit_seconds} s in vain: {why}"
            time.sleep(0.05)

    return wait
