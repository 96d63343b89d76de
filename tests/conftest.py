"""Settings that all tests share."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
for folder in ("training", "cli"):
    sys.path.insert(0, str(Path(__file__).parent / folder))
