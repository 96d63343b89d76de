"""Objectives as numbers: which columns, which direction, and what a cell may hold."""

from __future__ import annotations

import difflib
import math
import numbers
import operator
from collections.abc import Hashable, Iterable, Mapping
from decimal import Decimal
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from muse_spark_ray.errors import ConfigError

Direction: TypeAlias = Literal["max", "min"]
Floats: TypeAlias = npt.NDArray[np.float64]


def check_objectives(objectives: Mapping[str, Direction]) -> None:
    """Refuse an empty mapping or a direction that is neither 'max' nor 'min'.

    Raises:
        ConfigError: names the objective and the value seen.
    """
    if not objectives:
        raise ConfigError(
            "objectives is empty; at least one column with a direction is needed",
            hint='Give a mapping such as {"accuracy": "max", "cost_usd": "min"}.',
        )
    for name, direction in objectives.items():
        if direction not in ("max", "min"):
            raise ConfigError(
                f"objectives.{name} is {direction!r}; allowed are 'max' and 'min'",
                hint="Write the direction out: 'max' where more is better, 'min' where less is.",
            )


def minimised(table: pd.DataFrame, objectives: Mapping[str, Direction]) -> Floats:
    """Objective values with the maximised ones negated, so that less is better everywhere.

    Args:
        table: N rows, one column per objective.
        objectives: D columns with their directions.

    Returns:
        Array [N, D], float64, NaN where a value is missing; columns are contiguous.

    Raises:
        ConfigError: an unknown column, a direction that is not allowed, or text among the values.
    """
    check_objectives(objectives)
    values = np.empty((len(table), len(objectives)), dtype=np.float64, order="F")
    for at, (name, direction) in enumerate(objectives.items()):
        column = numeric_column(table, name)
        if direction == "max":
            np.negative(column, out=values[:, at])
        else:
            values[:, at] = column
    return values


def numeric_column(table: pd.DataFrame, name: str) -> Floats:
    """One column as float64 [N], NaN where missing; None, Decimal, bool and mixed numbers are read.

    Raises:
        ConfigError: the column is unknown, occurs twice, or holds something that is not a number.
    """
    column = column_of(table, name)
    if pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_complex_dtype(column.dtype):
        # numpy columns need no replacement of missing values, and are then not copied
        if isinstance(column.dtype, np.dtype):
            return column.to_numpy(dtype=np.float64)
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    cells = column.astype(object).to_numpy()
    numbers_read = (_number(cell, table=table, name=name, position=at) for at, cell in enumerate(cells))
    return np.fromiter(numbers_read, dtype=np.float64, count=len(cells))


def column_of(table: pd.DataFrame, name: str) -> pd.Series:
    """The one column of that name.

    Raises:
        ConfigError: no such column (the nearest name is suggested), or more than one.
    """
    if name not in table.columns:
        raise ConfigError(
            f"the table has no column {name!r}; it has {_listed(table.columns)}", hint=nearest(name, table)
        )
    column = table[name]
    if isinstance(column, pd.DataFrame):
        raise ConfigError(
            f"the table has {column.shape[1]} columns named {name!r}; exactly one is allowed",
            hint="Rename or drop the others.",
        )
    return column


def nearest(name: str, table: pd.DataFrame) -> str:
    """What to do about an unknown column, naming the nearest one where there is one."""
    close = difflib.get_close_matches(str(name), [str(column) for column in table.columns], n=1, cutoff=0.5)
    return f"Did you mean {close[0]!r}?" if close else "Use a column of the table."


def label_at(table: pd.DataFrame, position: int) -> Hashable:
    """Index label of the row at `position`."""
    label: Hashable = table.index.take([position]).tolist()[0]
    return label


def _listed(columns: Iterable[object], *, most: int = 12) -> str:
    names = [repr(column) for column in columns]
    if not names:
        return "no columns"
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _number(cell: object, *, table: pd.DataFrame, name: str, position: int) -> float:
    if cell is None or cell is pd.NA or cell is pd.NaT:
        return math.nan
    if isinstance(cell, np.bool_):
        return float(cell)
    if isinstance(cell, (numbers.Real, Decimal)):
        try:
            return float(cell)
        except OverflowError:
            return -math.inf if operator.lt(cell, 0) else math.inf
    raise ConfigError(
        f"column {name!r}, row {label_at(table, position)!r} is {cell!r} ({type(cell).__name__}); "
        "allowed are numbers and missing values",
        hint="Convert the column with pandas.to_numeric, or leave the cell empty.",
    )
