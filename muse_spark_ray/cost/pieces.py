"""Arithmetic on many intervals at once: columns of a table, cut at price changes, summed up to given times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from muse_spark_ray.cost.interval import Interval, Phase
from muse_spark_ray.cost.prices import SECONDS_PER_HOUR, PriceBook
from muse_spark_ray.errors import DataError

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Codes = NDArray[np.intp]

NEEDED = ("trial", "resource", "amount", "start", "end", "phase")
COLUMNS = (*NEEDED, "attempt", "device")


def interval_table(intervals: Iterable[Interval] | pd.DataFrame) -> pd.DataFrame:
    """Return intervals as a table without exact repeats: a repeat is one interval written twice.

    Raises:
        DataError: if a table lacks a column.
    """
    import pandas as pd

    if not isinstance(intervals, pd.DataFrame):
        table = pd.DataFrame([asdict(each) for each in intervals], columns=list(COLUMNS))
    else:
        missing = [name for name in NEEDED if name not in intervals.columns]
        if missing:
            raise DataError(f"the table of intervals has no column {missing[0]!r}; it needs {', '.join(NEEDED)}")
        table = intervals[[name for name in COLUMNS if name in intervals.columns]]
    numbers = {name: table[name].astype("float64") for name in ("amount", "start", "end")}
    return table.assign(**numbers, phase=table["phase"].astype(str)).drop_duplicates(ignore_index=True)


def without(table: pd.DataFrame, *phases: Phase) -> pd.DataFrame:
    """Return the intervals of all other phases."""
    return table[~table["phase"].isin([str(phase) for phase in phases])].reset_index(drop=True)


def union_of(groups: Codes, start: Floats, end: Floats) -> tuple[Codes, Floats, Floats]:
    """Return (group, start, end) of spans that cover the same times as the given ones, each time once per group."""
    import pandas as pd

    order = np.lexsort((start, groups))
    groups, start, end = groups[order], start[order], end[order]
    reached = pd.Series(end).groupby(groups).cummax().to_numpy()
    is_first = np.r_[True, groups[1:] != groups[:-1]][: len(groups)]
    before = np.where(is_first, -np.inf, np.r_[-np.inf, reached[:-1]][: len(groups)])
    begins = np.maximum(start, before)
    is_new = end > begins
    return groups[is_new], begins[is_new], end[is_new]


@dataclass(frozen=True, slots=True)
class Pieces:
    """Intervals cut where their price changes.

    Args:
        row: position in the table that each piece comes from [P].
        start: seconds [P].
        end: seconds [P].
        usd_per_second: price of the amount held [P].
        unpriced: positions of the rows that are held, billed and without a price.
    """

    row: Codes
    start: Floats
    end: Floats
    usd_per_second: Floats
    unpriced: Codes


def priced_pieces(table: pd.DataFrame, prices: PriceBook) -> Pieces:
    """Return pieces of the intervals of a table in which the price stays the same."""
    start, end, amount = (table[name].to_numpy() for name in ("start", "end", "amount"))
    is_held = (end > start) & (amount > 0)
    parts, unpriced = [(np.empty(0, np.intp), np.empty(0), np.empty(0), np.empty(0))], [np.empty(0, np.intp)]
    for resource, rows in table.groupby("resource", sort=False).indices.items():
        positions = np.asarray(rows, np.intp)
        held = positions[is_held[positions]]
        schedule = prices.schedule(str(resource))
        if schedule is None:
            unpriced.append(held)
            continue
        row, begins, ends, usd = _cut(start[held], end[held], schedule)
        parts.append((held[row], begins, ends, usd * amount[held[row]] / SECONDS_PER_HOUR))
    rows, starts, stops, rates = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return Pieces(rows, starts, stops, rates, np.concatenate(unpriced))


def accumulated(groups: Codes, start: Floats, end: Floats, rate: Floats, *, at_groups: Codes, at: Floats) -> Floats:
    """Return for each (group, time) how much spans of that group, each growing at its rate, have given until then.

    Args:
        groups: of each span, as `rate` and both borders [N].
        start: seconds.
        end: seconds.
        rate: per second.
        at_groups: group of each question [M].
        at: time of each question [M], seconds.

    Returns:
        [M], 0 for a group without spans, NaN for a time that is NaN.
    """
    import pandas as pd

    if not len(groups):
        return np.where(np.isnan(at), np.nan, 0.0)
    # Times are taken from each group's beginning: rate x seconds since 1970 would lose digits.
    origins = np.zeros(max(groups.max(), at_groups.max(initial=0)) + 1)
    origins[groups[::-1]] = start[::-1]
    nothing = np.zeros(len(at))
    group = np.concatenate([groups, groups, at_groups])
    moment = np.concatenate([start, end, at]) - origins[group]
    change = np.concatenate([rate, -rate, nothing])
    order = np.lexsort((moment, group))
    known = np.where(np.isnan(moment), 0.0, moment)
    sums = pd.DataFrame({"rate": change[order], "moment": (change * known)[order]}).groupby(group[order]).cumsum()
    reached = np.empty(len(order))
    reached[order] = moment[order] * sums["rate"].to_numpy() - sums["moment"].to_numpy()
    return reached[2 * len(groups) :]


def _cut(start: Floats, end: Floats, schedule: tuple[tuple[float, float], ...]) -> tuple[Codes, Floats, Floats, Floats]:
    borders = np.array([-np.inf, *(begins for begins, _ in schedule[1:]), np.inf])
    usd = np.array([price for _, price in schedule])
    first = np.searchsorted(borders, start, side="right") - 1
    last = np.searchsorted(borders, end, side="left") - 1
    counts = np.maximum(last - first + 1, 1)
    row = np.repeat(np.arange(len(start)), counts)
    step = first[row] + np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    return row, np.maximum(start[row], borders[step]), np.minimum(end[row], borders[step + 1]), usd[step]
