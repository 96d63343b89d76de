"""Reads the tables of a sweep, while another process may be writing or compacting them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from muse_spark_ray.ledger.names import check_name
from muse_spark_ray.ledger.schema import INTERVALS, TRIALS, empty_table, merge_tables
from muse_spark_ray.ledger.segments import Segment, decode, gaps, live, parse_segments
from muse_spark_ray.ledger.store import Store

if TYPE_CHECKING:
    import pandas as pd

# A compaction moves rows to another file between our listing and our reading; each round needs another
# compaction in just that moment, so few are enough.
_ROUNDS = 20


class LedgerWarning(UserWarning):
    """A part of a ledger was set aside, the rest was read."""


@dataclass(frozen=True)
class Scan:
    """What one look at a table found: each readable live segment's rows, and what was set aside and why."""

    parts: Mapping[Segment, pa.Table]
    problems: tuple[str, ...]


def scan(store: Store, sweep: str, table: str, *, since: int = 1) -> Scan:
    """Read every live segment of a table.

    Args:
        store: where the sweep is.
        sweep: its name.
        table: "trials", "epochs" or "intervals".
        since: number of an append; segments that begin before it are left out.

    Returns:
        The rows by segment, in order of writing; torn, garbled and missing segments as problems, none deleted.

    Raises:
        LedgerError: if a newer muse_spark_ray wrote a segment.
        StoreError: if the store cannot be read.
    """
    folder = f"{check_name('sweep', sweep)}/{table}"
    cache: dict[Segment, pa.Table] = {}
    result = Scan({}, ())
    for _ in range(_ROUNDS):
        segments = [each for each in live(parse_segments(store.list(folder))) if each.first >= since]
        missing = gaps(segments, since=since)
        try:
            result = _read_all(store, folder, segments, cache)
        except FileNotFoundError:
            continue
        if not missing:
            return result
    lost = tuple(f"{folder}: appends {first} to {last} are missing" for first, last in missing)
    return Scan(result.parts, result.problems + lost)


def read_table(store: Store, sweep: str, table: str) -> pa.Table:
    """Return all rows of a table as written, with null and NaN kept apart; warns of segments set aside.

    Args:
        store: where the sweep is.
        sweep: its name.
        table: "trials", "epochs" or "intervals".
    """
    found = scan(store, sweep, table)
    for problem in found.problems:
        warnings.warn(f"{problem}; the rest was read", LedgerWarning, stacklevel=2)
    return merge_tables([empty_table(table), *found.parts.values()])


def read_trials(store: Store, sweep: str) -> pd.DataFrame:
    """Return one row per trial, in order of first appearance, each field at its newest value that is not null."""
    rows = merge_events(read_table(store, sweep, "trials").to_pylist())
    return to_frame(pa.Table.from_pylist(rows, schema=TRIALS), nullable=True)


def read_epochs(store: Store, sweep: str) -> pd.DataFrame:
    """Return one row per (trial, epoch); where an epoch was repeated, that of the latest attempt.

    A metric without nulls has a plain numpy dtype. One with nulls has a dtype with `pd.NA`: Int64, boolean, or
    `double[pyarrow]`, where NaN stays NaN and only a null is NA.
    """
    frame = to_frame(read_table(store, sweep, "epochs"))
    repeated = frame.duplicated(["trial", "epoch"], keep=False)
    if not repeated.any():
        return frame
    newest = frame[repeated].sort_values("attempt", kind="stable").drop_duplicates(["trial", "epoch"], keep="last")
    kept = frame.index[~repeated].union(newest.index)
    return frame.loc[kept].reset_index(drop=True)


def read_intervals(store: Store, sweep: str) -> pd.DataFrame:
    """Return the cost intervals in order of writing, each counted once however often it was written."""
    table = read_table(store, sweep, "intervals").select(INTERVALS.names)
    return to_frame(table).drop_duplicates(ignore_index=True)


def merge_events(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per trial from event rows: each field's last value that is not None."""
    merged: dict[str, dict[str, Any]] = {}
    for row in rows:
        trial = merged.setdefault(row["trial"], {})
        trial.update((name, value) for name, value in row.items() if value is not None)
    return list(merged.values())


def to_frame(table: pa.Table, *, nullable: bool = False) -> pd.DataFrame:
    """Return an Arrow table as a DataFrame in which null and NaN stay different.

    Args:
        table: null, bool, int64, double and string columns.
        nullable: whether integers get the same dtype (Int64) with and without nulls.
    """
    import pandas as pd

    masked = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype(), pa.float64(): pd.ArrowDtype(pa.float64())}
    columns = {}
    for field, column in zip(table.schema, table.columns, strict=True):
        if pa.types.is_null(field.type):
            column = column.cast(pa.float64())
        needs_mask = column.null_count > 0 or (nullable and pa.types.is_integer(column.type))
        if needs_mask and column.type in masked:
            columns[field.name] = column.to_pandas(types_mapper=masked.get)
        else:
            columns[field.name] = column.to_pandas()
    return pd.DataFrame(columns, columns=table.column_names)


def _read_all(store: Store, folder: str, segments: list[Segment], cache: dict[Segment, pa.Table]) -> Scan:
    parts: dict[Segment, pa.Table] = {}
    problems = []
    for segment in segments:
        where = f"{folder}/{segment.name}"
        try:
            if segment not in cache:
                cache[segment] = _checked(decode(store.read_bytes(where), where=where), folder)
            parts[segment] = cache[segment]
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            problems.append(f"{where} is unreadable and was set aside ({str(error).splitlines()[0][:160]})")
    return Scan(parts, tuple(problems))


def _checked(table: pa.Table, folder: str) -> pa.Table:
    if "trial" not in table.column_names:
        raise ValueError(f"it has no column 'trial', so it is no part of {folder}")
    return table
