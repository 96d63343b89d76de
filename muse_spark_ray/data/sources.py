"""The data sets that a spec can name, and how each is read."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from muse_spark_ray.data.checks import check_arrays
from muse_spark_ray.data.sets import Task, TensorSet
from muse_spark_ray.data.splits import random_split
from muse_spark_ray.errors import ConfigError, DataError
from muse_spark_ray.strategy.factories import import_object

Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
Name = Literal["digits", "wine", "iris", "breast_cancer", "fashion_mnist", "npz", "csv", "factory"]
FASHION_MNIST_ROOT = "/usr/share/datasets/fashion-mnist"


class DataConfig(BaseModel):
    """Which data to train and validate on."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: Name = Field("digits", description="a bundled set, a file (npz, csv), or `factory` for your own function")
    path: str | None = Field(None, description="file of npz and csv, folder of fashion_mnist")
    target: str | None = Field(None, description="csv: the column with the class or value to predict; default the last")
    factory: str | None = Field(
        None, description="module:function or path.py:function that returns (inputs, targets) arrays"
    )
    validation_fraction: float = Field(0.2, gt=0, lt=1, description="share held out, where the set has no fixed split")
    max_samples: int | None = Field(None, ge=2, description="use only so many training samples, for quick trials")
    split_seed: int = Field(0, ge=0, description="seed of the split; the same for all trials of a sweep")


def load_task(config: DataConfig) -> Task:
    """Read, check and split a data set.

    Args:
        config: What to read.

    Returns:
        Inputs scaled by the training part's mean and deviation, split into training and validation.

    Raises:
        DataError: If a file is missing or corrupt, or values are not finite or labels out of range.
        ConfigError: If a setting that the source needs is missing.
    """
    (inputs, targets), fixed = _READERS[config.name](config)
    check_arrays(inputs, targets, where=_where(config))
    is_classes = np.issubdtype(targets.dtype, np.integer)
    if fixed is None:
        train, held_out = random_split(
            targets, fraction=config.validation_fraction, seed=config.split_seed, stratified=is_classes
        )
    else:
        train, held_out = np.arange(fixed), np.arange(fixed, len(targets))
    train = train[: config.max_samples]
    values = _standardise(inputs, train)
    labels = torch.from_numpy(targets.astype(np.int64 if is_classes else np.float32))
    labels = labels if is_classes or labels.ndim > 1 else labels[:, None]
    parts = [TensorSet(values[rows], labels[rows]) for rows in (torch.from_numpy(train), torch.from_numpy(held_out))]
    return Task(parts[0], parts[1], int(targets.max()) + 1 if is_classes else None, tuple(inputs.shape[1:]))


def _standardise(inputs: np.ndarray[Any, Any], train: np.ndarray[Any, Any]) -> torch.Tensor:
    """Scale images by one mean and deviation, and table columns each by its own, measured on the training part."""
    values = inputs.astype(np.float32)
    axis = None if values.ndim > 2 else 0
    mean, deviation = values[train].mean(axis=axis), values[train].std(axis=axis)
    return torch.from_numpy((values - mean) / np.where(deviation > 0, deviation, 1.0)).float()


def _where(config: DataConfig) -> str:
    return f"data {config.name}" + (f" ({config.path})" if config.path else "")


def _bundled(config: DataConfig) -> tuple[Arrays, int | None]:
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{config.name}")()
    inputs = bunch.images[:, None] if config.name == "digits" else bunch.data
    return (inputs, bunch.target), None


def _fashion_mnist(config: DataConfig) -> tuple[Arrays, int | None]:
    root = Path(config.path or FASHION_MNIST_ROOT)
    parts = [
        (_idx(root / f"{part}-images-idx3-ubyte.gz"), _idx(root / f"{part}-labels-idx1-ubyte.gz"))
        for part in ("train", "t10k")
    ]
    images = np.concatenate([images for images, _ in parts])[:, None]
    labels = np.concatenate([labels for _, labels in parts]).astype(np.int64)
    return (images, labels), len(parts[0][1])


def _idx(path: Path) -> np.ndarray[Any, Any]:
    """Read one file of the IDX format (a magic number, the dimensions, then bytes)."""
    if not path.is_file():
        raise DataError(
            f"data file {path} does not exist.",
            hint="install the data set (Debian: apt-get install dataset-fashion-mnist) or set task.data.path to its folder",
        )
    try:
        raw = gzip.decompress(path.read_bytes())
        dimensions = raw[3]
        shape = np.frombuffer(raw, ">u4", count=dimensions, offset=4)
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
    except (OSError, EOFError, ValueError, IndexError, zlib.error) as error:
        raise DataError(f"data file {path} is corrupt: {error}. Fetch it again.") from error


def _npz(config: DataConfig) -> tuple[Arrays, int | None]:
    path = _needed_file(config)
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            missing = {"x", "y"} - set(arrays.files)
            if missing:
                raise DataError(f"{path} has the arrays {arrays.files}; it must have x (inputs) and y (targets).")
            return (arrays["x"], arrays["y"]), None
    except DataError:
        raise
    except Exception as error:  # damaged bytes make NumPy's reader fail in a dozen ways
        raise DataError(
            f"data file {path} cannot be read as an npz archive: {error}. Write it with numpy.savez."
        ) from error


def _csv(config: DataConfig) -> tuple[Arrays, int | None]:
    import pandas as pd

    path = _needed_file(config)
    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise DataError(f"data file {path} cannot be read as CSV: {error}.") from error
    target = config.target or str(table.columns[-1])
    if target not in table.columns:
        raise ConfigError(f"task.data.target is {target!r}; {path} has the columns {list(map(str, table.columns))}.")
    features = table.drop(columns=target)
    text = [str(c) for c in features.columns if not pd.api.types.is_numeric_dtype(features[c])]
    if text:
        raise DataError(f"{path}: columns {text} are not numbers; encode or drop them.")
    labels = table[target]
    if not pd.api.types.is_numeric_dtype(labels):
        labels = labels.astype("category").cat.codes
    return (features.to_numpy(np.float32), labels.to_numpy()), None


def _factory(config: DataConfig) -> tuple[Arrays, int | None]:
    if not config.factory:
        raise ConfigError("task.data.factory is missing; data of the kind factory needs module:function.")
    make = import_object(config.factory, names=("load_data", "make_data"), what="task.data.factory")
    try:
        made = make()
    except Exception as error:
        raise DataError(f"{config.factory} failed: {type(error).__name__}: {error}") from error
    if not isinstance(made, tuple) or len(made) != 2:
        raise DataError(f"{config.factory} returned a {type(made).__name__}; it must return (inputs, targets).")
    return (np.asarray(made[0]), np.asarray(made[1])), None


def _needed_file(config: DataConfig) -> Path:
    if config.path is None:
        raise ConfigError(f"task.data.path is missing; data of the kind {config.name} needs the path of its file.")
    path = Path(config.path).expanduser()
    if not path.is_file():
        raise DataError(
            f"data file {path} does not exist.",
            hint="correct task.data.path; relative paths start in the current folder",
        )
    return path


_READERS: dict[str, Callable[[DataConfig], tuple[Arrays, int | None]]] = {
    **dict.fromkeys(("digits", "wine", "iris", "breast_cancer"), _bundled),
    "fashion_mnist": _fashion_mnist,
    "npz": _npz,
    "csv": _csv,
    "factory": _factory,
}
