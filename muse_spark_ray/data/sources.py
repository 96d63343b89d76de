"""From a data config to a task: read, checked, split, scaled."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from muse_spark_ray.data.checks import check_arrays
from muse_spark_ray.data.config import DataConfig
from muse_spark_ray.data.readers import read
from muse_spark_ray.data.readers.found import Arrays
from muse_spark_ray.data.readers.parquet import open_parquet
from muse_spark_ray.data.sets import Task, TensorSet
from muse_spark_ray.data.splits import Rows, split_rows
from muse_spark_ray.data.streams import StreamPart, held_out_parts
from muse_spark_ray.data.survey import survey
from muse_spark_ray.errors import DataError


def load_task(config: DataConfig) -> Task[Any]:
    """Read, check and split a data set.

    Args:
        config: What to read.

    Returns:
        Inputs scaled by the training part's mean and deviation, split into training and validation.

    Raises:
        DataError: If a file is missing or corrupt, or values are not finite or labels out of range.
        ConfigError: If a setting that the source needs is missing.
    """
    return open_stream(config) if config.stream else load_in_memory(config)


def load_in_memory(config: DataConfig) -> Task[TensorSet]:
    """Do as `load_task`, with all samples in memory; of a stream, a sample of them."""
    found, train, held_out = read_and_split(config)
    inputs, targets = found.inputs, found.targets
    is_classes = np.issubdtype(targets.dtype, np.integer)
    values, scaling = _standardise(inputs, train)
    labels = torch.from_numpy(targets.astype(np.int64 if is_classes else np.float32))
    labels = labels if is_classes or labels.ndim > 1 else labels[:, None]
    parts = [TensorSet(values[rows], labels[rows]) for rows in (torch.from_numpy(train), torch.from_numpy(held_out))]
    about = {"labels": found.labels, "preprocessing": scaling}
    classes = int(targets.max()) + 1 if is_classes else None
    return Task(parts[0], parts[1], classes, tuple(inputs.shape[1:]), about)


def open_stream(config: DataConfig) -> Task[StreamPart]:
    """Do as `load_task`, with row groups that are read when they are needed; one pass over them comes first."""
    table, where = open_parquet(config), where_of(config)
    if len(table.parts) < 2:
        raise DataError(
            f"{where}: {len(table.parts)} row groups; stream needs 2, one to train on and one to validate.",
            hint="leave stream out, or write the files with smaller row groups",
        )
    train, held_out = held_out_parts(table, fraction=config.validation_fraction, seed=config.split_seed)
    known = survey(table, train, where=where)
    for name, parts in (("training", train), ("validation", held_out)):
        if not sum(known.rows[part] for part in parts):
            raise DataError(
                f"{where}: no row of the {name} part fulfils task.data.where.", hint="leave stream out, or loosen where"
            )
    scaling = {"mean": known.mean.tolist(), "deviation": known.deviation.tolist()}
    about = {"labels": known.labels, "preprocessing": scaling}
    shape = (len(known.mean),)
    return Task(StreamPart(table, train, known), StreamPart(table, held_out, known), known.classes, shape, about)


def read_and_split(config: DataConfig) -> tuple[Arrays, Rows, Rows]:
    """Read and check a data set.

    Returns:
        (what was read, training rows, validation rows).

    Raises:
        DataError: As `load_task`.
        ConfigError: As `load_task`.
    """
    found = read(config)
    check_arrays(found.inputs, found.targets, where=where_of(config))
    train, held_out = split_rows(found.targets, config, fixed=found.fixed, keys=found.keys)
    return found, train[: config.max_samples], held_out


def where_of(config: DataConfig) -> str:
    """Return how messages call a source."""
    return f"data {config.name}" + (f" ({config.path})" if config.path else "")


def _standardise(inputs: np.ndarray[Any, Any], train: Rows) -> tuple[torch.Tensor, dict[str, Any]]:
    """Scale images by one mean and deviation, and table columns each by its own, measured on the training part."""
    values = inputs.astype(np.float32)
    axis = None if values.ndim > 2 else 0
    mean, deviation = values[train].mean(axis=axis), values[train].std(axis=axis)
    deviation = np.where(deviation > 0, deviation, 1.0)
    scaling = {"mean": np.asarray(mean).tolist(), "deviation": np.asarray(deviation).tolist()}
    return torch.from_numpy((values - mean) / deviation).float(), scaling
