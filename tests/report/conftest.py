"""The sweep that most tests of reports look at."""

from __future__ import annotations

import pytest
from report_sweeps import TableSweep, digits_sweep


@pytest.fixture
def digits() -> TableSweep:
    return digits_sweep()
