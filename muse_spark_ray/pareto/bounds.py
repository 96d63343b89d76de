"""Bounds on columns, and how far a row is from meeting them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.pareto.objectives import Floats, numeric_column

_BOUND = re.compile(r"\s*(?P<column>[^<>=]*[^<>=\s])\s*(?P<op>>=|<=)\s*(?P<value>\S+)\s*")


@dataclass(frozen=True)
class Bound:
    """A limit that a row has to meet; a row whose value is missing does not meet it.

    Args:
        column: name of the column, in the column's own unit.
        op: '>=' for at least, '<=' for at most.
        value: the limit, in the column's unit.

    Raises:
        ConfigError: another operator, or a value that is not a finite number.
    """

    column: str
    op: Literal[">=", "<="]
    value: float

    def __post_init__(self) -> None:
        if self.op not in (">=", "<="):
            raise ConfigError(f"the bound on {self.column!r} has operator {self.op!r}; allowed are '>=' and '<='")
        if not math.isfinite(self.value):
            raise ConfigError(
                f"the bound {self} has the value {self.value!r}; it must be a finite number",
                hint="Leave the bound out where there is no limit.",
            )

    def __str__(self) -> str:
        return f"{self.column} {self.op} {self.value:.10g}"

    def misses(self, table: pd.DataFrame) -> Floats:
        """How far each row is from the bound: [N], in the column's unit, 0 where met, inf where missing."""
        column = numeric_column(table, self.column)
        beyond = self.value - column if self.op == ">=" else column - self.value
        return np.where(np.isnan(beyond), np.inf, np.maximum(beyond, 0.0))


def parse_bound(text: str) -> Bound:
    """Read a bound from text such as 'accuracy >= 0.95'.

    Raises:
        ConfigError: the text is not column, operator, number.
    """
    found = _BOUND.fullmatch(text)
    try:
        if found is None:
            raise ValueError(text)
        value = float(found["value"])
    except ValueError:
        raise ConfigError(
            f"the bound {text!r} cannot be read; allowed is a column, '>=' or '<=', and a number",
            hint="Write it like 'accuracy>=0.95' or 'cost_usd<=0.01'.",
        ) from None
    return Bound(found["column"], ">=" if found["op"] == ">=" else "<=", value)


def total_violation(values: Sequence[float]) -> float:
    """Sum of the positive parts of constraint values, where a constraint is met at <= 0.

    Args:
        values: one number per constraint; NaN counts as not met by an unknown amount.

    Returns:
        0 when all are met, inf when one is NaN.
    """
    return math.fsum(math.inf if math.isnan(value) else max(0.0, value) for value in values)


def violations(table: pd.DataFrame, bounds: Sequence[Bound], *, violation: str | None) -> Floats:
    """Total violation per row, [N]: 0 is feasible, inf is missing by an unknown amount.

    Each bound counts as a share of its own value (as it is where that is 0), so that 0.01 of accuracy and
    0.01 USD can be added; the `violation` column is added as it stands.
    """
    total = np.zeros(len(table), dtype=np.float64)
    if violation is not None:
        column = numeric_column(table, violation)
        total += np.where(np.isnan(column), np.inf, np.maximum(column, 0.0))
    for bound in bounds:
        total += bound.misses(table) / (abs(bound.value) or 1.0)
    return total


def describe_misses(row: pd.DataFrame, bounds: Sequence[Bound], *, violation: str | None) -> str:
    """In words, by how much a table of one row misses each bound that it does not meet."""
    parts = []
    for bound in bounds:
        miss = float(bound.misses(row)[0])
        if miss > 0:
            value = float(numeric_column(row, bound.column)[0])
            parts.append(f"{bound.column} is {value:.6g} and misses {bound} by {miss:.6g}")
    if violation is not None:
        seen = float(numeric_column(row, violation)[0])
        if math.isnan(seen):
            parts.append(f"{violation} is missing")
        elif seen > 0:
            parts.append(f"its {violation} is {seen:.6g}, which must be at most 0")
    return "; ".join(parts)
