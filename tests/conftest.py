"""Settings that all tests share."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

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
