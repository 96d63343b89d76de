"""The non-dominated rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from muse_spark_ray.pareto.bounds import Bound
from muse_spark_ray.pareto.candidates import Bools, Candidates, Positions, find_candidates
from muse_spark_ray.pareto.objectives import Direction, Floats


@dataclass(frozen=True)
class NonDominated:
    """Positions [F] of the non-dominated points, ascending, and which of them have an equal: [F]."""

    positions: Positions
    tie: Bools


def front(
    table: pd.DataFrame,
    objectives: Mapping[str, Direction],
    *,
    bounds: Sequence[Bound] = (),
    violation: str | None = None,
) -> pd.DataFrame:
    """The rows of `table` that no other candidate row dominates; equal rows all stay.

    Args:
        table: one row per point. Optional columns: `state` (finished, running, stopped, pruned, failed, or Optuna's
            names) keeps failed trials out; `trial` and `epoch` name rows in messages.
        objectives: {column: 'max' or 'min'}, one or more.
        bounds: limits that a row has to meet.
        violation: column with the total constraint violation; > 0 or missing is infeasible.

    Returns:
        The front in the table's row order, with its index, its columns and a bool column `tie` (another front row has
        exactly the same objectives). In `.attrs`: `excluded` {reason: count} and `excluded_rows` {reason: labels} for
        nan, inf, failed, infeasible, pruned, running; `closest`, the labels of least total violation where bounds
        leave no row; `message`, why the front is empty (None where it is not).

    Raises:
        ConfigError: an unknown column, direction or state, or text among the values.
    """
    candidates = find_candidates(table, objectives, bounds=bounds, violation=violation)
    found = nondominated(candidates.values)
    rows = table.iloc[candidates.positions[found.positions]].assign(tie=found.tie)
    rows.attrs.update(_account(table, candidates))
    return rows


def nondominated(values: Floats) -> NonDominated:
    """Non-dominated points among `values` [N, D], finite and less is better; points that are equal all stay.

    Two objectives are swept in order of the first, in O(N log N) (Kung, Luccio and Preparata 1975, J. ACM 22(4));
    numpy's sort makes that faster than moocore, which does the work from three objectives on.
    """
    if not len(values):
        return NonDominated(np.empty(0, dtype=np.intp), np.empty(0, dtype=bool))
    if values.shape[1] == 1:
        best = np.flatnonzero(values[:, 0] == values[:, 0].min())
        return NonDominated(best, np.full(len(best), len(best) > 1))
    return _sweep(values[:, 0], values[:, 1]) if values.shape[1] == 2 else _many(values)


def _sweep(x: Floats, y: Floats) -> NonDominated:
    order = np.argsort(x)
    heights = y[order]
    # Points of one x come in any order, so a record low can still be beaten by a later point of its own x.
    records = np.flatnonzero(heights == np.minimum.accumulate(heights))
    order, heights = order[records], heights[records]
    across = x[order]
    starts = np.flatnonzero(np.concatenate(([True], across[1:] != across[:-1])))
    lowest = np.minimum.reduceat(heights, starts)
    is_lower = np.concatenate(([True], lowest[1:] < lowest[:-1]))
    sizes = np.diff(starts, append=len(order))
    on_front = np.repeat(is_lower, sizes) & (heights == np.repeat(lowest, sizes))
    equals = np.add.reduceat(on_front.astype(np.intp), starts)
    is_front, tie = np.zeros((2, len(x)), dtype=bool)
    is_front[order[on_front]] = True
    tie[order] = on_front & (np.repeat(equals, sizes) > 1)
    positions = np.flatnonzero(is_front)
    return NonDominated(positions, tie[positions])


def _many(values: Floats) -> NonDominated:
    import moocore  # here, because it takes a tenth of a second that two objectives do not need

    positions = np.flatnonzero(moocore.is_nondominated(values, keep_weakly=True))
    tie = np.zeros(len(positions), dtype=bool)
    # Few points share their first coordinate as a rule, and sorting by one is far cheaper than by all.
    shared = np.flatnonzero(_has_equal(values[positions, :1]))
    tie[shared] = _has_equal(values[positions[shared]])
    return NonDominated(positions, tie)


def _has_equal(points: Floats) -> Bools:
    order = np.lexsort(points.T) if points.shape[1] > 1 else np.argsort(points[:, 0])
    same_as_next = (points[order[1:]] == points[order[:-1]]).all(axis=1)
    equal = np.zeros(len(points), dtype=bool)
    equal[order[1:]] |= same_as_next
    equal[order[:-1]] |= same_as_next
    return equal


def _account(table: pd.DataFrame, candidates: Candidates) -> dict[str, object]:
    labels = {reason: table.index.take(at).tolist() for reason, at in candidates.excluded.items()}
    return {
        "excluded": {reason: len(rows) for reason, rows in labels.items()},
        "excluded_rows": labels,
        "closest": table.index.take(candidates.closest).tolist(),
        "message": candidates.message,
    }
