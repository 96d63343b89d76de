"""The hypervolume of a table's candidates, at the end and as spending goes on."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.pareto.bounds import Bound
from muse_spark_ray.pareto.candidates import find_candidates
from muse_spark_ray.pareto.front import nondominated
from muse_spark_ray.pareto.objectives import Direction, Floats, column_of


def hypervolume(
    table: pd.DataFrame,
    objectives: Mapping[str, Direction],
    reference: Mapping[str, float],
    *,
    bounds: Sequence[Bound] = (),
    violation: str | None = None,
) -> float:
    """Volume between the candidate rows' front and the reference point.

    Args:
        table: as for `front`; rows that `front` excludes count for nothing here either.
        objectives: {column: 'max' or 'min'}.
        reference: one value per objective, in its unit; rows not better than it in every objective add nothing.
        bounds: limits that a row has to meet.
        violation: column with the total constraint violation.

    Returns:
        The volume, >= 0, in the product of the objectives' units; 0 without such rows.

    Raises:
        ConfigError: as for `front`, or a reference that lacks an objective or is not finite.
    """
    candidates = find_candidates(table, objectives, bounds=bounds, violation=violation)
    return _volume(candidates.values, _corner(objectives, reference))


def reference_point(table: pd.DataFrame, objectives: Mapping[str, Direction]) -> dict[str, float]:
    """The worst value of each objective over the candidate rows; empty without such rows.

    Raises:
        ConfigError: as for `front`.
    """
    values = find_candidates(table, objectives).values
    if not len(values):
        return {}
    worst = values.max(axis=0)
    return {
        name: float(-value if direction == "max" else value)
        for (name, direction), value in zip(objectives.items(), worst, strict=True)
    }


def hypervolume_trace(
    table: pd.DataFrame,
    objectives: Mapping[str, Direction],
    *,
    order_by: str,
    reference: Mapping[str, float],
) -> pd.DataFrame:
    """Hypervolume after each candidate row, as rows are added in ascending `order_by`.

    Args:
        table: as for `front`.
        objectives: {column: 'max' or 'min'}.
        order_by: column such as the spend so far or the time; rows without a value in it are left out.
        reference: as for `hypervolume`.

    Returns:
        Columns `order_by` and `hypervolume`, one row per candidate, neither ever falling.

    Raises:
        ConfigError: as for `hypervolume`, or an unknown `order_by`.
    """
    candidates = find_candidates(table, objectives)
    axis = column_of(table, order_by).iloc[candidates.positions].reset_index(drop=True).dropna()
    axis = axis.sort_values(kind="stable")
    points = candidates.values[axis.index.to_numpy(dtype=np.intp)]
    volumes = np.fromiter(_running(points, _corner(objectives, reference)), dtype=np.float64, count=len(points))
    return pd.DataFrame({order_by: axis.to_numpy(), "hypervolume": volumes})


def _corner(objectives: Mapping[str, Direction], reference: Mapping[str, float]) -> Floats:
    missing = [name for name in objectives if name not in reference]
    if missing:
        raise ConfigError(
            f"reference has {', '.join(map(repr, reference)) or 'no values'}; it lacks {', '.join(map(repr, missing))}",
            hint="Give one finite value per objective.",
        )
    for name in objectives:
        if not math.isfinite(reference[name]):
            raise ConfigError(
                f"reference.{name} is {reference[name]!r}; it must be a finite number",
                hint="reference_point(table, objectives) gives the worst values seen.",
            )
    return np.array([-reference[name] if objectives[name] == "max" else reference[name] for name in objectives], float)


def _volume(points: Floats, corner: Floats) -> float:
    points = points[(points < corner).all(axis=1)]
    points = points[nondominated(points).positions]
    if not len(points):
        return 0.0
    if len(corner) == 1:
        return float(corner[0] - points[0, 0])
    if len(corner) > 2:
        return _moocore_volume(points, corner)
    points = points[np.argsort(points[:, 0])]
    above = np.concatenate((corner[1:], points[:-1, 1]))
    return float(((corner[0] - points[:, 0]) * (above - points[:, 1])).sum())


def _moocore_volume(points: Floats, corner: Floats) -> float:
    import moocore  # here, because it takes a tenth of a second that two objectives do not need

    return float(moocore.hypervolume(np.ascontiguousarray(points), ref=corner))


def _running(points: Floats, corner: Floats) -> Iterator[float]:
    if len(corner) == 2:
        return _running_area(points, corner)
    return _running_volume(points, corner)


def _running_area(points: Floats, corner: Floats) -> Iterator[float]:
    # The staircase, from left to right; its two end steps stand for the reference.
    xs, ys = [-math.inf, float(corner[0])], [float(corner[1]), -math.inf]
    area = 0.0
    for x, y in points.tolist():
        if x < xs[-1] and y < ys[0]:
            area += _add_step(xs, ys, x, y)
        yield area


def _add_step(xs: list[float], ys: list[float], x: float, y: float) -> float:
    """Put a point into the staircase; the area it adds."""
    if ys[bisect_right(xs, x) - 1] <= y:
        return 0.0
    start = end = bisect_left(xs, x)
    left, height, gained = x, ys[start - 1], 0.0
    while ys[end] >= y:
        gained += (xs[end] - left) * (height - y)
        left, height = xs[end], ys[end]
        end += 1
    gained += (xs[end] - left) * (height - y)
    xs[start:end], ys[start:end] = [x], [y]
    return gained


def _running_volume(points: Floats, corner: Floats) -> Iterator[float]:
    kept = np.empty((0, len(corner)), dtype=np.float64)
    volume = 0.0
    for point in points:
        if (point < corner).all() and not (kept <= point).all(axis=1).any():
            kept = np.vstack((kept[~(point <= kept).all(axis=1)], point))
            # Rounding may differ between two sets of points; a point added never takes volume away.
            volume = max(volume, _volume(kept, corner))
        yield volume
