"""Time of `pareto.front` on a table against moocore's own on the bare array, in the same run.

    python experiments/benchmarks/front.py [--json front.json] [--repeats 7] [--points 1000000]

Each case is timed alternately, ours and theirs, and the medians are compared; `front` also excludes rows that cannot
take part, marks ties and builds the table, which moocore does not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import moocore
import numpy as np
import numpy.typing as npt
import pandas as pd
from rich.console import Console
from rich.table import Table

from muse_spark_ray.pareto import Direction, front

LIMIT = 1.5


@dataclass(frozen=True)
class Timing:
    """Median and smallest seconds of both, and the ratio of the medians (ours / moocore)."""

    case: str
    points: int
    objectives: int
    front_points: int
    front_seconds: float
    moocore_seconds: float
    front_fastest_seconds: float
    moocore_fastest_seconds: float
    ratio: float


def cases(points: int) -> dict[str, npt.NDArray[np.float64]]:
    """Point sets [N, D] to be minimised."""
    rng = np.random.default_rng(0)
    x = rng.random(points)
    few = max(1, points // 10)
    directions = np.abs(rng.normal(size=(few, 3)))
    return {
        "2-D uniform": rng.random((points, 2)),
        "2-D all on a front": np.column_stack([x, 1 - x]),
        "2-D near a front": np.column_stack([x, 1 - x + rng.normal(0, 1e-3, points)]),
        "2-D rounded, many ties": np.round(rng.random((points, 2)), 2),
        "3-D uniform": rng.random((few, 3)),
        "3-D all on a front": 1 - directions / np.linalg.norm(directions, axis=1, keepdims=True),
    }


def compare(case: str, values: npt.NDArray[np.float64], *, repeats: int) -> Timing:
    """Time both on the same points, alternately."""
    names = [f"objective_{at}" for at in range(values.shape[1])]
    table = pd.DataFrame({name: values[:, at].copy() for at, name in enumerate(names)})
    objectives: dict[str, Direction] = dict.fromkeys(names, "min")
    expected = np.flatnonzero(moocore.is_nondominated(values, keep_weakly=True))
    found = front(table, objectives)
    if not np.array_equal(found.index.to_numpy(), expected):
        raise SystemExit(f"{case}: front has {len(found)} rows, moocore {len(expected)}, and they are not the same")
    ours, theirs = [], []
    for _ in range(repeats):
        ours.append(seconds(lambda: front(table, objectives)))
        theirs.append(seconds(lambda: moocore.is_nondominated(values, keep_weakly=True)))
    return Timing(
        case=case,
        points=len(values),
        objectives=len(names),
        front_points=len(found),
        front_seconds=statistics.median(ours),
        moocore_seconds=statistics.median(theirs),
        front_fastest_seconds=min(ours),
        moocore_fastest_seconds=min(theirs),
        ratio=statistics.median(ours) / statistics.median(theirs),
    )


def seconds(call: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def show(timings: list[Timing]) -> None:
    """Print one line per case."""
    table = Table(title=f"front against moocore {moocore.__version__} (limit {LIMIT} in 2-D)")
    for heading in ("case", "points", "on front", "front, s", "moocore, s", "ratio"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for timing in timings:
        numbers = (timing.front_seconds, timing.moocore_seconds, timing.ratio)
        counts = (timing.points, timing.front_points)
        table.add_row(timing.case, *(f"{count:,}" for count in counts), *(f"{number:.3f}" for number in numbers))
    Console().print(table)


def main() -> None:
    """Run all cases; exit 1 where a 2-D case is slower than the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for the timings")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--points", type=int, default=1_000_000, help="in 2-D; a tenth of it in 3-D")
    arguments = parser.parse_args()
    timings = [compare(case, values, repeats=arguments.repeats) for case, values in cases(arguments.points).items()]
    show(timings)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(timing) for timing in timings], indent=2) + "\n")
    if any(timing.ratio > LIMIT for timing in timings if timing.objectives == 2):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
