"""Intervals times prices: what was used and what it cost, in all and up to the end of each epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from muse_spark_ray.cost.interval import Interval, Phase, resource_kind
from muse_spark_ray.cost.pieces import accumulated, interval_table, priced_pieces, union_of, without
from muse_spark_ray.cost.prices import SECONDS_PER_HOUR, PriceBook
from muse_spark_ray.errors import DataError

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

CPU_KINDS = ("cpu", "host_cpu")
_USEFUL = (Phase.train, Phase.data_wait, Phase.evaluate, Phase.compile, Phase.shared)

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Totals:
    """What a set of intervals used and cost.

    Args:
        gpu_seconds: GPUs times seconds held, parts of a GPU in proportion.
        cpu_core_seconds: logical CPUs times seconds held, those of GPU hosts included.
        usd: price of all that has one.
        unpriced: resources that were held and have no price; `usd` lacks them.
        seconds_by_phase: wall seconds per phase, waiting included: what overlaps within a trial counts once, the
            trials are added.
        resource_seconds_by_phase: {phase: {resource: units times seconds held}}.
        usd_by_phase: the priced part per phase.
        held_seconds_by_resource: {resource: units times seconds held}, so without waiting.
    """

    gpu_seconds: float
    cpu_core_seconds: float
    usd: float
    unpriced: tuple[str, ...]
    seconds_by_phase: dict[str, float]
    resource_seconds_by_phase: dict[str, dict[str, float]]
    usd_by_phase: dict[str, float]
    held_seconds_by_resource: dict[str, float]

    @property
    def gpu_hours(self) -> float:
        """GPU-hours held."""
        return self.gpu_seconds / SECONDS_PER_HOUR

    @property
    def cpu_core_hours(self) -> float:
        """Logical-CPU-hours held."""
        return self.cpu_core_seconds / SECONDS_PER_HOUR


def totals(intervals: Iterable[Interval] | pd.DataFrame, prices: PriceBook) -> Totals:
    """Return what intervals used and cost.

    A row that repeats another one exactly counts once (see `interval.distinct`).

    Args:
        intervals: records, or a table of their fields as columns (attempt and device may lack).
        prices: of each resource.
    """
    table = interval_table(intervals)
    held = without(table, Phase.wait)
    held = held.assign(seconds=held["amount"] * (held["end"] - held["start"]))
    pieces = priced_pieces(held, prices)
    usd = np.bincount(pieces.row, pieces.usd_per_second * (pieces.end - pieces.start), minlength=len(held))
    by_resource = _sums(held["resource"], held["seconds"])
    return Totals(
        gpu_seconds=_of_kinds(by_resource, "gpu"),
        cpu_core_seconds=_of_kinds(by_resource, *CPU_KINDS),
        usd=float(usd.sum()),
        unpriced=tuple(sorted(held["resource"].iloc[pieces.unpriced].unique())),
        seconds_by_phase=_in_order(_wall_seconds(table)),
        resource_seconds_by_phase=_in_order(
            {str(phase): _sums(rows["resource"], rows["seconds"]) for phase, rows in held.groupby("phase", sort=False)}
        ),
        usd_by_phase=_in_order(_sums(held["phase"], held["seconds"] * 0 + usd)),
        held_seconds_by_resource=by_resource,
    )


def goodput(seconds_by_phase: Mapping[str, float]) -> float | None:
    """Return the useful share of the time that was paid for: training with its data, evaluation and compilation.

    The rest went into starts and restarts, checkpoints, work that was lost, and gangs without a trial. Waiting for
    resources is not paid for.

    Args:
        seconds_by_phase: Phase to seconds.

    Returns:
        In [0, 1]; None if nothing was paid for.
    """
    paid = sum(seconds for phase, seconds in seconds_by_phase.items() if phase != Phase.wait)
    return sum(seconds_by_phase.get(phase, 0.0) for phase in _USEFUL) / paid if paid > 0 else None


def running_totals(intervals: pd.DataFrame, ends: pd.DataFrame, prices: PriceBook) -> pd.DataFrame:
    """Return what each trial had used and cost when each of its epochs ended.

    All attempts of the trial count, so do its start-up and lost work; waiting and idle time do not. An interval that
    runs on past the end counts in proportion.

    Args:
        intervals: a table of the fields of `Interval` as columns.
        ends: trial, epoch, and `end` in seconds on the clock of the intervals.
        prices: of each resource.

    Returns:
        One row per row of `ends`, in its order and with its index: trial, epoch, cost_usd, gpu_hours, cpu_core_hours,
        and hours (wall hours in which the trial held anything). `cost_usd` is NaN in every row of a trial that held
        anything without a price, whenever it did: half a cost would look cheap.

    Raises:
        DataError: if a table lacks a column.
    """
    missing = [name for name in ("trial", "epoch", "end") if name not in ends.columns]
    if missing:
        raise DataError(f"the table of epoch ends has no column {missing[0]!r}; it needs trial, epoch, end")
    table = without(interval_table(intervals), Phase.wait, Phase.idle)
    trials, at_trials = _trial_codes(table["trial"], ends["trial"])
    at = ends["end"].to_numpy(dtype="float64", na_value=np.nan)
    start, end, amount = (table[name].to_numpy() for name in ("start", "end", "amount"))

    pieces = priced_pieces(table, prices)
    usd = accumulated(trials[pieces.row], pieces.start, pieces.end, pieces.usd_per_second, at_groups=at_trials, at=at)
    kinds = table["resource"].map(resource_kind)
    units = {kind: np.where(kinds.isin(names), amount, 0.0) for kind, names in (("gpu", ("gpu",)), ("cpu", CPU_KINDS))}
    groups, begun, ended = union_of(trials, start, end)
    seconds = accumulated(groups, begun, ended, np.ones(len(groups)), at_groups=at_trials, at=at)
    used = {kind: accumulated(trials, start, end, rate, at_groups=at_trials, at=at) for kind, rate in units.items()}
    return ends[["trial", "epoch"]].assign(
        cost_usd=np.where(np.isin(at_trials, trials[pieces.unpriced]), np.nan, usd),
        gpu_hours=used["gpu"] / SECONDS_PER_HOUR,
        cpu_core_hours=used["cpu"] / SECONDS_PER_HOUR,
        hours=seconds / SECONDS_PER_HOUR,
    )


def _wall_seconds(table: pd.DataFrame) -> dict[str, float]:
    groups = np.asarray(table.groupby(["trial", "phase"], sort=False, dropna=False).ngroup(), np.intp)
    names = table["phase"].to_numpy()
    first_rows = np.zeros(groups.max(initial=-1) + 1, np.intp)
    first_rows[groups[::-1]] = np.arange(len(groups))[::-1]
    found, start, end = union_of(groups, table["start"].to_numpy(), table["end"].to_numpy())
    seconds = dict.fromkeys(names, 0.0)
    for phase, taken in zip(names[first_rows], np.bincount(found, end - start, len(first_rows)), strict=True):
        seconds[phase] += float(taken)
    return seconds


def _trial_codes(one: pd.Series, other: pd.Series) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    import pandas as pd

    codes = pd.factorize(
        pd.concat([one.astype(object), other.astype(object)], ignore_index=True), use_na_sentinel=False
    )[0]
    return codes[: len(one)], codes[len(one) :]


def _sums(names: pd.Series, values: pd.Series) -> dict[str, float]:
    return {str(name): float(total) for name, total in values.groupby(names.to_numpy()).sum().items()}


def _of_kinds(by_resource: dict[str, float], *kinds: str) -> float:
    return sum((seconds for resource, seconds in by_resource.items() if resource_kind(resource) in kinds), 0.0)


def _in_order(by_phase: dict[str, _Value]) -> dict[str, _Value]:
    ranks = {str(phase): rank for rank, phase in enumerate(Phase)}
    return dict(sorted(by_phase.items(), key=lambda item: ranks.get(item[0], len(ranks))))
