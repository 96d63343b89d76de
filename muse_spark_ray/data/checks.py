"""Checks that cost seconds and save a sweep on broken data."""

from __future__ import annotations

from typing import Any

import numpy as np

from muse_spark_ray.errors import DataError


def check_arrays(inputs: np.ndarray[Any, Any], targets: np.ndarray[Any, Any], *, where: str) -> None:
    """Refuse data that no training can use.

    Args:
        inputs: [N, ...] numbers.
        targets: [N] class ids (integers from 0) or real values.
        where: Name of the data for the message.

    Raises:
        DataError: Naming the first offending row.
    """
    if inputs.ndim < 2 or 0 in inputs.shape[1:]:
        raise DataError(
            f"{where}: inputs have the shape {inputs.shape}; they need a row for each sample and at least one value in it."
        )
    if targets.ndim < 1 or len(inputs) != len(targets):
        raise DataError(
            f"{where}: {len(inputs)} inputs but targets of the shape {targets.shape}; each input needs one target."
        )
    if len(inputs) < 2:
        raise DataError(f"{where}: {len(inputs)} samples; at least 2 are needed, one to train on and one to validate.")
    for name, values in (("inputs", inputs), ("targets", targets)):
        if not np.issubdtype(values.dtype, np.number):
            raise DataError(f"{where}: {name} are of type {values.dtype}; they must be numbers.")
        check_finite(values, where=where, name=name)
    if np.issubdtype(targets.dtype, np.integer):
        check_labels(targets, where=where)


def check_finite(values: np.ndarray[Any, Any], *, where: str, name: str, first_row: int = 0) -> None:
    """Refuse values that float32 cannot hold as finite numbers; `first_row` is the number of the first one."""
    if not np.issubdtype(values.dtype, np.floating):
        return
    with np.errstate(over="ignore"):  # what float32 cannot hold is not finite either
        bad = ~np.isfinite(values.reshape(len(values), -1).astype(np.float32)).all(axis=1)
    if bad.any():
        row = first_row + int(np.flatnonzero(bad)[0])
        raise DataError(
            f"{where}: {int(bad.sum())} of {len(values)} {name} are not finite, first in row {row}. Clean or drop these rows."
        )


def check_labels(targets: np.ndarray[Any, Any], *, where: str, rows: np.ndarray[Any, Any] | None = None) -> None:
    """Refuse labels that are not a small range of integers from 0; `rows` are the rows' numbers if not counted from 0."""
    numbers = np.arange(len(targets)) if rows is None else rows
    if targets.ndim != 1:
        raise DataError(f"{where}: class targets have the shape {targets.shape}; they must be one number a sample.")
    low, high = int(targets.min()), int(targets.max())
    present = len(np.unique(targets))
    if low < 0:
        row = int(numbers[targets < 0][0])
        raise DataError(f"{where}: label {low} in row {row} is out of range; class labels are integers from 0.")
    if high >= max(2 * present, present + 16):
        row = int(numbers[np.argmax(targets)])
        raise DataError(
            f"{where}: label {high} in row {row} is out of range: only {present} different labels occur, so they should run "
            f"from 0 to {present - 1}. Renumber the labels."
        )
    if present < 2:
        raise DataError(f"{where}: all labels are {low}; at least 2 classes are needed.")
