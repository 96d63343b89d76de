"""Fixtures for the tests of the command line."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest
from program import Program


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """One store for the tests of a module; no process of theirs is left at the end."""
    own = Program(tmp_path_factory.mktemp("cli"))
    yield own
    here = str(own.folder)
    left = [p for p in psutil.process_iter(["pid", "cmdline"]) if here in " ".join(p.info["cmdline"] or ())]
    for process in left:
        process.kill()
