"""One row out of many: the knee, the cheapest that is good enough, the best that is cheap enough."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import pandas as pd

from muse_spark_ray.pareto.bounds import Bound
from muse_spark_ray.pareto.candidates import Positions, describe_closest, find_candidates
from muse_spark_ray.pareto.front import nondominated
from muse_spark_ray.pareto.objectives import Direction, Floats, label_at, minimised


def knee(front_table: pd.DataFrame, objectives: Mapping[str, Direction]) -> Hashable | None:
    """Index label of the front's most balanced row; None for an empty table.

    Objectives are scaled to [0, 1] over the front. With two of them the knee is the point farthest below the line
    through the two extremes; where no point lies below it (a concave front, fewer than three points), and with more
    objectives, it is the point nearest to the ideal one (every objective at its best). Equal ones: the best in the
    first objective, then the first row.

    Args:
        front_table: a front, or any table: only its non-dominated candidate rows are looked at.
        objectives: {column: 'max' or 'min'}, the one that matters most first.

    Raises:
        ConfigError: as for `front`.

    Source:
        Das 1999, Structural Optimization 18, 107-115 (the point farthest from the extremes' line); Branke, Deb,
        Dierolf and Osswald 2004, PPSN VIII (why users want it); Yu 1973, Management Science 19(8) (nearest to ideal).
    """
    candidates = find_candidates(front_table, objectives)
    at = nondominated(candidates.values).positions
    if not len(at):
        return None
    points = _scaled(candidates.values[at])
    chosen = _farthest_below_chord(points)
    if chosen is None:
        # Rounded, so that points equally near do not win by their last digit.
        chosen = int(np.lexsort((points[:, 0], np.round(np.linalg.norm(points, axis=1), 12)))[0])
    return label_at(front_table, int(candidates.positions[at[chosen]]))


def cheapest_above(table: pd.DataFrame, *, accuracy: str, minimum: float, cost: str) -> pd.DataFrame:
    """The cheapest row whose accuracy is at least `minimum`; of equally cheap ones the most accurate.

    Args:
        table: as for `front`.
        accuracy: column where more is better.
        minimum: least accuracy, in that column's unit.
        cost: column where less is better.

    Returns:
        One row; or none, with `.attrs["message"]` naming the closest row and by how much it misses.

    Raises:
        ConfigError: as for `front`.
    """
    return best_within(table, {cost: "min", accuracy: "max"}, bounds=[Bound(accuracy, ">=", minimum)])


def best_below(table: pd.DataFrame, *, cost: str, maximum: float, accuracy: str) -> pd.DataFrame:
    """The most accurate row that costs at most `maximum`; of equally accurate ones the cheapest.

    Args:
        table: as for `front`.
        cost: column where less is better.
        maximum: greatest cost, in that column's unit.
        accuracy: column where more is better.

    Returns:
        One row; or none, with `.attrs["message"]` naming the closest row and by how much it misses.

    Raises:
        ConfigError: as for `front`.
    """
    return best_within(table, {accuracy: "max", cost: "min"}, bounds=[Bound(cost, "<=", maximum)])


def best_within(
    table: pd.DataFrame, preferences: Mapping[str, Direction], *, bounds: Sequence[Bound] = ()
) -> pd.DataFrame:
    """The row that is best in the first preference among those within the bounds; further ones break ties.

    Args:
        table: as for `front`.
        preferences: {column: 'max' or 'min'}, the deciding one first.
        bounds: limits that the row has to meet.

    Returns:
        One row; or none, with `.attrs["message"]` naming the closest row and by how much it misses.

    Raises:
        ConfigError: as for `front`.
    """
    candidates = find_candidates(table, preferences, bounds=bounds)
    order = np.lexsort(candidates.values.T[::-1])
    row = table.iloc[candidates.positions[order[:1]]].copy()
    message = candidates.message
    if len(candidates.closest):
        message = describe_closest(table, _preferred(table, preferences, candidates.closest), bounds, violation=None)
    row.attrs["message"] = message
    return row


def _preferred(table: pd.DataFrame, preferences: Mapping[str, Direction], among: Positions) -> int:
    values = minimised(table.iloc[among], preferences)
    return int(among[np.lexsort(values.T[::-1])[0]])


def _scaled(values: Floats) -> Floats:
    lowest = values.min(axis=0)
    spread = values.max(axis=0) - lowest
    scaled: Floats = (values - lowest) / np.where(spread > 0, spread, 1.0)
    return scaled


def _farthest_below_chord(points: Floats) -> int | None:
    if points.shape[1] != 2:
        return None
    below = np.round(1.0 - points.sum(axis=1), 12)
    # One distinct point is its own extreme on both sides: there is no line to be below.
    if not points.any() or below.max() <= 0:
        return None
    return int(np.lexsort((points[:, 0], -below))[0])
