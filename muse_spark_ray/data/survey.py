"""One pass over a table that is too large for memory: what training on it needs to know beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from muse_spark_ray.data.checks import check_finite, check_labels
from muse_spark_ray.data.readers.found import Array
from muse_spark_ray.data.readers.parquet import ParquetTable
from muse_spark_ray.errors import DataError


@dataclass(frozen=True, slots=True)
class Survey:
    """What is known of a table.

    Args:
        rows: Rows of each row group that fulfil the conditions.
        mean: [columns] float64, over the training part.
        deviation: [columns] float64, likewise; 1 for columns that do not vary.
        classes: Number of classes, None for real targets.
        labels: Names of the classes, where the targets are text.
    """

    rows: tuple[int, ...]
    mean: Array
    deviation: Array
    classes: int | None
    labels: list[str] | None

    def scaled(self, inputs: Array) -> Tensor:
        """Scale columns to the training part's mean 0 and deviation 1."""
        return torch.from_numpy(((inputs - self.mean) / self.deviation).astype(np.float32))

    def encoded(self, targets: Array) -> Tensor:
        """Return targets as the criterion takes them: [B] int64 class ids, or [B, 1] float32 values."""
        if self.labels is not None:
            targets = np.searchsorted(np.asarray(self.labels), targets.astype(str))
        if self.classes is not None:
            return torch.from_numpy(targets.astype(np.int64))
        return torch.from_numpy(targets.astype(np.float32))[:, None]


class _Moments:
    """Mean and deviation of columns, gathered piece by piece (Chan, Golub, LeVeque 1983)."""

    def __init__(self, columns: int) -> None:
        self._count = 0
        self.mean, self._squares = np.zeros(columns), np.zeros(columns)

    def add(self, values: Array) -> None:
        piece = values.astype(np.float64)
        mean, count = piece.mean(0), self._count + len(piece)
        shift = mean - self.mean
        self._squares += ((piece - mean) ** 2).sum(0) + shift**2 * (self._count * len(piece) / count)
        self.mean += shift * (len(piece) / count)
        self._count = count

    @property
    def deviation(self) -> Array:
        deviation = np.sqrt(self._squares / max(1, self._count))
        return np.where(deviation > 0, deviation, 1.0)


def survey(table: ParquetTable, train: Sequence[int], *, where: str) -> Survey:
    """Read a table once, a row group at a time.

    Args:
        table: The table.
        train: Row groups of the training part.
        where: What messages call the table.

    Raises:
        DataError: If inputs are no numbers or not finite, or labels are out of range; rows are counted over all files.
    """
    import pyarrow.types as kinds

    _check_columns(table, where)
    kind = table.schema.field(table.target).type
    is_real = kinds.is_floating(kind)
    is_text = not (is_real or kinds.is_integer(kind) or kinds.is_boolean(kind))
    moments, chosen = _Moments(len(table.columns or table.schema.names) - 1), set(train)
    first_rows: dict[Any, int] = {}  # of each label
    rows: list[int] = []
    total = 0
    for part in range(len(table.parts)):
        found = table.read([part])
        inputs, targets = table.inputs_of(found), table.targets_of(found)
        rows.append(len(targets))
        if not len(targets):
            continue
        check_finite(inputs, where=where, name="inputs", first_row=total)
        if is_text:
            _check_none_missing(targets, table.target, where=where, first_row=total)
        check_finite(targets, where=where, name="targets", first_row=total)
        if not is_real:
            values, places = np.unique(targets.astype(str) if is_text else targets, return_index=True)
            for value, place in zip(values.tolist(), places.tolist(), strict=True):
                first_rows.setdefault(value, total + place)
        if part in chosen:
            moments.add(inputs)
        total += len(targets)
    if not total:
        raise DataError(f"{where}: no row was found.", hint="loosen task.data.where")
    labels = sorted(first_rows) if is_text else None
    classes = None if is_real else _count_classes(first_rows, labels, where)
    return Survey(tuple(rows), moments.mean, moments.deviation, classes, labels)


def _count_classes(first_rows: dict[Any, int], labels: list[str] | None, where: str) -> int:
    if labels is None:
        check_labels(np.array(list(first_rows)), where=where, rows=np.array(list(first_rows.values())))
        return int(max(first_rows)) + 1
    if len(labels) < 2:
        raise DataError(f"{where}: all labels are {labels[0]!r}; at least 2 classes are needed.")
    return len(labels)


def _check_none_missing(targets: Array, name: str, *, where: str, first_row: int) -> None:
    missing = [row for row, target in enumerate(targets) if target is None]
    if missing:
        raise DataError(f"{where}: the target {name} is missing, first in row {first_row + missing[0]}.")


def _check_columns(table: ParquetTable, where: str) -> None:
    import pyarrow.types as kinds

    names = [name for name in table.columns or table.schema.names if name != table.target]
    if not names:
        raise DataError(f"{where}: there is no column besides the target {table.target}.")
    numbers = (kinds.is_integer, kinds.is_floating, kinds.is_boolean, kinds.is_decimal)
    if text := [name for name in names if not any(is_kind(table.schema.field(name).type) for is_kind in numbers)]:
        raise DataError(f"{where}: columns {text} are not numbers; encode or drop them.")
