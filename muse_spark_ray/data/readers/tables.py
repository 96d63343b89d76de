"""Tables of named columns: CSV, Hugging Face datasets, and what any of them becomes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from muse_spark_ray.data.config import DataConfig
from muse_spark_ray.data.readers.found import Arrays, needed_file
from muse_spark_ray.errors import ConfigError, DataError


def read_csv(config: DataConfig) -> Arrays:
    import pandas as pd

    path = needed_file(config)
    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise DataError(f"data file {path} cannot be read as CSV: {error}.") from error
    return from_table(table, config, where=str(path))


def read_huggingface(config: DataConfig) -> Arrays:
    try:
        import datasets
    except ImportError as error:
        raise ConfigError(
            "task.data.name is huggingface, which needs the package datasets; it is not installed.",
            hint="pip install 'muse-spark-ray[huggingface]'",
        ) from error
    if config.path is None:
        raise ConfigError(
            "task.data.path is missing; data of the kind huggingface needs the name or folder of the set."
        )
    folder = Path(config.path).expanduser()
    found = (
        datasets.load_from_disk(str(folder)) if folder.is_dir() else datasets.load_dataset(config.path, split="train")
    )
    if isinstance(found, datasets.DatasetDict):
        found = found["train"]
    return from_table(found.to_pandas(), config, where=config.path)


def check_names(config: DataConfig, names: list[str], *, where: str) -> str:
    """Return the column to predict, after a look whether all that a config names are there.

    Raises:
        ConfigError: If one is not.
    """
    target = config.target or names[-1]
    key = config.group or config.time
    for role, name in (("target", target), (config.split, key), *(("columns", name) for name in config.columns or ())):
        if name is not None and name not in names:
            raise ConfigError(f"task.data.{role} is {name!r}; {where} has the columns {names}.")
    return target


def from_table(table: Any, config: DataConfig, *, where: str) -> Arrays:
    """Take inputs, targets and the split's column from a pandas table."""
    import pandas as pd

    names = list(map(str, table.columns))
    table.columns = names
    target = check_names(config, names, where=where)
    key = config.group or config.time
    features = table[config.columns] if config.columns is not None else table.drop(columns=target)
    features = features.drop(columns=[name for name in (key, target) if name in features.columns])
    text = [c for c in features.columns if not pd.api.types.is_numeric_dtype(features[c])]
    if text:
        raise DataError(f"{where}: columns {text} are not numbers; encode or drop them.")
    values, labels = table[target], None
    if not pd.api.types.is_numeric_dtype(values):
        if values.isna().any():
            row = int(np.flatnonzero(values.isna())[0])
            raise DataError(
                f"{where}: the target {target} is missing in {int(values.isna().sum())} rows, first in row {row}."
            )
        kinds = values.astype("category").cat
        values, labels = kinds.codes, [str(name) for name in kinds.categories]
    keys = None if key is None else table[key].to_numpy()
    return Arrays(features.to_numpy(np.float32), values.to_numpy(), labels=labels, keys=keys)
