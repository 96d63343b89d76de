"""Writes the tables of a sweep: one small Parquet file per append, merged now and then."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.ledger.names import check_name
from muse_spark_ray.ledger.reader import scan
from muse_spark_ray.ledger.schema import TABLES, epochs_table, intervals_table, merge_tables, trials_table
from muse_spark_ray.ledger.segments import Segment, encode, live, parse_segments
from muse_spark_ray.ledger.store import Store

if TYPE_CHECKING:
    from muse_spark_ray.cost import Interval


# After so many appends to a table their files are merged into one, so that readers of a long sweep open few.
MERGE_AFTER = (4096, 64)


def create_sweep(store: Store, sweep: str, *, spec: str, prices: Mapping[str, Any]) -> None:
    """Make a sweep: its spec as YAML text and the price book it starts with, neither ever written again.

    Args:
        store: where to keep it.
        sweep: a name that is not used yet.
        spec: the resolved spec as YAML text.
        prices: the price book as plain data (`PriceBook.to_dict()`).

    Raises:
        ConfigError: if the name is used or not allowed, or the store is not writable.
        StoreError: if the store cannot be reached.
    """
    check_name("sweep", sweep)
    store.require_writable()
    try:
        store.write_new(f"{sweep}/spec.yaml", spec.encode())
    except FileExistsError as error:
        raise ConfigError(
            f"sweep {sweep!r} is already in {store.uri}; each sweep needs a name of its own",
            hint=f"Continue it with: muse-spark sweep --resume {sweep}, or choose another name.",
        ) from error
    store.write_atomic(f"{sweep}/prices.json", json.dumps(prices, indent=1).encode())


class LedgerWriter:
    """The one writer of a sweep's tables; what `append` returned from survives a kill of anything.

    Args:
        store: where the sweep is.
        sweep: its name; numbering goes on after the highest segment that is there.
    """

    def __init__(self, store: Store, sweep: str) -> None:
        self.store = store
        self.sweep = check_name("sweep", sweep)
        self._next = {table: self._highest(table) + 1 for table in TABLES}

    def append(
        self,
        *,
        trials: Sequence[Mapping[str, Any]] = (),
        epochs: Sequence[Mapping[str, Any]] = (),
        intervals: Sequence[Interval] = (),
    ) -> None:
        """Write rows durably, intervals first and trials last, one file per table that has any.

        Raises:
            LedgerError: for a row of the wrong form; nothing is written then.
            ConfigError, StoreError: if the store cannot be written.
        """
        tables = {
            "intervals": intervals_table(intervals),
            "epochs": epochs_table(epochs),
            "trials": trials_table(trials, updated=time.time()),
        }
        for table in tables.values():
            _check_trials(table)
        for name in TABLES:
            if tables[name].num_rows:
                self._append(name, tables[name])

    def compact(self) -> None:
        """Merge the files of each table into one; unreadable files stay where they are, between merged ranges."""
        for table in TABLES:
            self._compact(table, since=1)

    def _append(self, table: str, rows: pa.Table) -> None:
        number = self._next[table]
        self._write(table, Segment(number, number), rows)
        self._next[table] += 1
        block = next((size for size in MERGE_AFTER if number % size == 0), None)
        if block is not None:
            self._compact(table, since=number - block + 1)

    def _compact(self, table: str, *, since: int) -> None:
        parts = scan(self.store, self.sweep, table, since=since).parts
        for run in _adjacent(list(parts)):
            if len(run) > 1:
                self._write(table, Segment(run[0].first, run[-1].last), merge_tables([parts[each] for each in run]))
        segments = self._segments(table)
        for covered in set(segments) - set(live(segments)):
            self.store.delete(f"{self.sweep}/{table}/{covered.name}")

    def _write(self, table: str, segment: Segment, rows: pa.Table) -> None:
        self.store.write_atomic(f"{self.sweep}/{table}/{segment.name}", encode(rows))

    def _segments(self, table: str) -> list[Segment]:
        return parse_segments(self.store.list(f"{self.sweep}/{table}"))

    def _highest(self, table: str) -> int:
        return max((segment.last for segment in self._segments(table)), default=0)


def _adjacent(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Yield runs of segments whose numbers follow each other without a hole."""
    run_of: dict[Segment, int] = {}
    run = 0
    for position, segment in enumerate(segments):
        if position and segments[position - 1].last + 1 != segment.first:
            run += 1
        run_of[segment] = run
    for _, group in groupby(segments, key=run_of.__getitem__):
        yield list(group)


def _check_trials(table: pa.Table) -> None:
    # An empty trial is what the whole sweep shares: idle gangs, the driver.
    for trial in set(table["trial"].to_pylist()) - {""}:
        check_name("trial", trial)
