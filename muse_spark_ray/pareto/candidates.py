"""Which rows take part in a front, and why the others do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.pareto.bounds import Bound, describe_misses, violations
from muse_spark_ray.pareto.objectives import Direction, Floats, column_of, label_at, minimised

Bools: TypeAlias = npt.NDArray[np.bool_]
Positions: TypeAlias = npt.NDArray[np.intp]

REASONS = ("nan", "inf", "failed", "infeasible", "pruned", "running")

# Our own names, those of Optuna's TrialState and those of Ray Tune's Trial.
_STATES = {
    "finished": "finished",
    "complete": "finished",
    "completed": "finished",
    "terminated": "finished",
    "stopped": "pruned",
    "pruned": "pruned",
    "running": "running",
    "pending": "running",
    "waiting": "running",
    "paused": "running",
    "failed": "failed",
    "fail": "failed",
    "error": "failed",
}


@dataclass(frozen=True)
class Candidates:
    """The rows that take part, by position, and the positions left out for each reason.

    Args:
        positions: [C], ascending.
        values: [C, D], objectives so that less is better; all finite.
        excluded: {reason: positions}, every reason of `REASONS`.
        closest: positions of least total violation where bounds leave no row; empty otherwise.
        message: why there is no candidate; None where there is one.
    """

    positions: Positions
    values: Floats
    excluded: Mapping[str, Positions]
    closest: Positions
    message: str | None


def find_candidates(
    table: pd.DataFrame,
    objectives: Mapping[str, Direction],
    *,
    bounds: Sequence[Bound] = (),
    violation: str | None = None,
) -> Candidates:
    """Sort rows into candidates and excluded ones; the first reason that applies counts.

    In order: a failed trial; a missing objective (counted under `running` or `pruned` where the state says so,
    else `nan`); an infinite objective; a bound or a constraint not met.

    Raises:
        ConfigError: an unknown column, direction or state, or text among the values.
    """
    values = minimised(table, objectives)
    excluded = _unusable(table, values)
    usable = ~np.logical_or.reduce(list(excluded.values()))
    total = violations(table, bounds, violation=violation) if bounds or violation is not None else None
    excluded["infeasible"] = np.zeros(len(table), dtype=bool) if total is None else usable & (total > 0)
    kept = usable & ~excluded["infeasible"]
    positions = {reason: np.flatnonzero(excluded[reason]) for reason in REASONS}
    closest = np.empty(0, dtype=np.intp)
    message = None
    if not kept.any():
        if total is not None:
            closest = _least(total, positions["infeasible"])
        message = _message(table, positions, closest, bounds, violation=violation)
    return Candidates(
        positions=np.flatnonzero(kept),
        values=values if kept.all() else np.asfortranarray(values[kept]),
        excluded=positions,
        closest=closest,
        message=message,
    )


def row_name(table: pd.DataFrame, position: int) -> str:
    """How to call a row: by its trial (and epoch), never by its position; by its index label without a trial."""
    if "trial" not in table.columns:
        return f"row {label_at(table, position)}"
    name = f"trial {table['trial'].iloc[position]}"
    return f"{name}, epoch {table['epoch'].iloc[position]}" if "epoch" in table.columns else name


def describe_closest(table: pd.DataFrame, position: int, bounds: Sequence[Bound], *, violation: str | None) -> str:
    """One sentence: no row fits, which is closest, and by how much it misses."""
    wanted = " and ".join([*map(str, bounds), *([f"{violation} <= 0"] if violation is not None else [])])
    misses = describe_misses(table.iloc[[position]], bounds, violation=violation)
    return f"no row has {wanted}; closest is {row_name(table, position)}: {misses}"


def _unusable(table: pd.DataFrame, values: Floats) -> dict[str, Bools]:
    finite, missing = _finite_and_missing(values)
    excluded = {"inf": ~finite & ~missing}
    if "state" not in table.columns:
        none = np.zeros(len(table), dtype=bool)
        return excluded | {"nan": missing, "failed": none, "pruned": none, "running": none}
    state = _states(table)
    failed = state == "failed"
    missing &= ~failed
    pruned, running = missing & (state == "pruned"), missing & (state == "running")
    excluded["inf"] &= ~failed
    return excluded | {"failed": failed, "pruned": pruned, "running": running, "nan": missing & ~pruned & ~running}


def _finite_and_missing(values: Floats) -> tuple[Bools, Bools]:
    finite: Bools = np.isfinite(values[:, 0])
    for column in values.T[1:]:
        np.logical_and(finite, np.isfinite(column), out=finite)
    if finite.all():
        return finite, np.zeros(len(values), dtype=bool)
    missing = np.isnan(values[:, 0])
    for column in values.T[1:]:
        np.logical_or(missing, np.isnan(column), out=missing)
    return finite, missing


def _states(table: pd.DataFrame) -> npt.NDArray[np.str_]:
    codes, names = pd.factorize(column_of(table, "state"))
    # A missing state has code -1, which reads the last entry: its values alone decide.
    return np.array([*(_state(name) for name in names), "finished"])[codes]


def _state(name: object) -> str:
    text = str(getattr(name, "name", name))
    found = _STATES.get(text.strip().lower())
    if found is None:
        raise ConfigError(
            f"column 'state' holds {text!r}; allowed in any case are {', '.join(_STATES)}",
            hint="Map the state to one of these, or drop the column to let the values decide.",
        )
    return found


def _least(total: Floats, infeasible: Positions) -> Positions:
    among = total[infeasible]
    least = among.min(initial=np.inf)
    if not np.isfinite(least):
        return np.empty(0, dtype=np.intp)
    # Sums of the same violations in another order differ in the last digits.
    nearest: Positions = infeasible[among <= least * (1 + 1e-12)]
    return nearest


def _message(
    table: pd.DataFrame,
    excluded: Mapping[str, Positions],
    closest: Positions,
    bounds: Sequence[Bound],
    *,
    violation: str | None,
) -> str:
    if len(closest):
        return describe_closest(table, int(closest[0]), bounds, violation=violation)
    if not len(table):
        return "the table has no rows"
    counts = ", ".join(f"{len(at)} {reason}" for reason, at in excluded.items() if len(at))
    return f"none of the {len(table)} rows is a candidate: {counts}"
