"""Columns, types and version of the three append-only tables.

    trials     event rows; the newest value of each field that is not null holds
    epochs     one row per reported epoch: fixed columns and any metric columns
    intervals  what was held, how much of it, when and for what

All times are UTC seconds since 1970, float64. Pure functions from rows to Arrow tables; no files here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from muse_spark_ray.errors import LedgerError

if TYPE_CHECKING:
    from muse_spark_ray.cost import Interval

SCHEMA_VERSION = 1
VERSION_KEY = b"muse_spark_ray.ledger_schema"
TABLES = ("intervals", "epochs", "trials")
"""In the order of writing: a trial said finished has its epochs and intervals on disk already."""

TRIAL_STATES = ("pending", "running", "finished", "stopped", "pruned", "failed")

_TEXT, _INT, _FLOAT = pa.string(), pa.int64(), pa.float64()

TRIALS = pa.schema(
    [
        ("trial", _TEXT),
        ("number", _INT),
        ("state", _TEXT),
        ("attempt", _INT),
        ("config", _TEXT),
        ("config_hash", _TEXT),
        ("drawn", _TEXT),
        ("seed", _INT),
        ("error", _TEXT),
        ("reason", _TEXT),
        ("started", _FLOAT),
        ("ended", _FLOAT),
        ("epochs", _INT),
        ("checkpoint", _TEXT),
        ("updated", _FLOAT),
    ]
)
EPOCHS = pa.schema([("trial", _TEXT), ("attempt", _INT), ("epoch", _INT), ("end", _FLOAT)])
INTERVALS = pa.schema(
    [
        ("trial", _TEXT),
        ("attempt", _INT),
        ("resource", _TEXT),
        ("amount", _FLOAT),
        ("start", _FLOAT),
        ("end", _FLOAT),
        ("phase", _TEXT),
        ("device", _TEXT),
    ]
)
FIXED = {"trials": TRIALS, "epochs": EPOCHS, "intervals": INTERVALS}

# From narrow to wide: a column takes the widest type any of its values needs. Integers are double only
# beside real doubles, so that 2**53 + 1 survives in a column of integers.
_WIDTHS = (pa.null(), pa.bool_(), _INT, _FLOAT, _TEXT)


def trials_table(rows: Sequence[Mapping[str, Any]], *, updated: float) -> pa.Table:
    """Return event rows of trials as a table.

    Args:
        rows: each with `trial` and any of the other columns; what is left out stays as it was before.
        updated: UTC seconds for rows that do not say when they happened.

    Raises:
        LedgerError: for an unknown column or state, a missing trial, or a value of another type.
    """
    for row in rows:
        _refuse_unknown_fields(row)
    return _fixed_table(TRIALS, "trials", [{"updated": updated, **row} for row in rows])


def epochs_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return epoch rows as a table: the fixed columns, then each metric in order of first appearance.

    Args:
        rows: each with `trial`, `epoch`, `end`, optionally `attempt`, and metrics: bool, int, float, str or None.

    Raises:
        LedgerError: for a missing trial, epoch or end, or a metric of another type.
    """
    complete = [{"attempt": 0, **row} for row in rows]
    fixed = _fixed_table(EPOCHS, "epochs", complete)
    for name in ("epoch", "end"):
        if fixed[name].null_count:
            raise LedgerError(f"epochs.{name} is missing in a row; each row needs trial, epoch and end")
    metrics = dict.fromkeys(name for row in rows for name in row if name not in EPOCHS.names)
    for name in metrics:
        fixed = fixed.append_column(name, _metric_array(name, [row.get(name) for row in rows]))
    return fixed


def intervals_table(intervals: Iterable[Interval]) -> pa.Table:
    """Return cost intervals as a table, one row each."""
    return _fixed_table(
        INTERVALS, "intervals", [{name: getattr(each, name) for name in INTERVALS.names} for each in intervals]
    )


def empty_table(table: str) -> pa.Table:
    """Return the named table with its fixed columns and no row."""
    return FIXED[table].empty_table()


def merge_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of all tables in one, each column as wide as its widest part, what is missing as null."""
    types: dict[str, pa.DataType] = {}
    for table in tables:
        for field in table.schema:
            types[field.name] = wider(types.get(field.name, pa.null()), field.type)
    return pa.concat_tables([_conform(table, types) for table in tables])


def wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the narrower type that holds values of both: null < bool < int64 < double < string."""
    return max(_known(one), _known(other), key=_WIDTHS.index)


def _conform(table: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table:
    present = set(table.column_names)
    columns = []
    for name, kind in types.items():
        column = table[name] if name in present else pa.nulls(table.num_rows, kind)
        columns.append(column if column.type == kind else column.cast(kind, safe=False))
    return pa.table(columns, names=list(types))


def _known(kind: pa.DataType) -> pa.DataType:
    if kind in _WIDTHS:
        return kind
    if pa.types.is_integer(kind):
        return _INT
    return _FLOAT if pa.types.is_floating(kind) else _TEXT


def _fixed_table(schema: pa.Schema, table: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    columns = []
    for field in schema:
        try:
            columns.append(pa.array([_plain(row.get(field.name)) for row in rows], field.type))
        except (pa.ArrowException, OverflowError) as error:
            raise LedgerError(f"{table}.{field.name} must hold {field.type}: {error}") from error
    result = pa.table(columns, schema=schema)
    if result["trial"].null_count:
        raise LedgerError(f"{table}.trial is missing in a row; each row must name its trial")
    return result


def _metric_array(name: str, values: Sequence[Any]) -> pa.Array:
    plain = [_plain(value) for value in values]
    kind = pa.null()
    for value in plain:
        kind = wider(kind, _type_of(name, value))
    if kind == _TEXT:
        plain = [None if value is None else str(value) for value in plain]
    elif kind == _FLOAT:
        plain = [None if value is None else _float_of(value) for value in plain]
    elif kind == _INT:
        plain = [None if value is None else int(value) for value in plain]
    return pa.array(plain, kind)


def _type_of(name: str, value: object) -> pa.DataType:
    match value:
        case None:
            return pa.null()
        case bool():
            return pa.bool_()
        case int():
            return _INT if -(2**63) <= value < 2**63 else _FLOAT
        case float():
            return _FLOAT
        case str():
            return _TEXT
    raise LedgerError(
        f"epochs.{name} is {value!r} of type {type(value).__name__}; a metric is a bool, int, float, str or None",
        hint="Report one number per metric.",
    )


def _float_of(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def _plain(value: Any) -> Any:
    """Return the Python number inside a zero-dimensional array or numpy scalar, anything else as it is."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    return value


def _refuse_unknown_fields(row: Mapping[str, Any]) -> None:
    unknown = [name for name in row if name not in TRIALS.names]
    if unknown:
        raise LedgerError(f"trials has no column {unknown[0]!r}; its columns are {', '.join(TRIALS.names)}")
    state = row.get("state")
    if state is not None and state not in TRIAL_STATES:
        raise LedgerError(f"trials.state is {state!r}; it must be one of {', '.join(TRIAL_STATES)}")
