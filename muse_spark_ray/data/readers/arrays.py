"""Arrays as they are: bundled sets, IDX and npz files, functions of the user's."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from muse_spark_ray.data.config import DataConfig
from muse_spark_ray.data.readers.found import Array, Arrays, needed_file
from muse_spark_ray.errors import ConfigError, DataError
from muse_spark_ray.strategy.factories import import_object

FASHION_MNIST_ROOT = "/usr/share/datasets/fashion-mnist"


def read_bundled(config: DataConfig) -> Arrays:
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{config.name}")()
    inputs = bunch.images[:, None] if config.name == "digits" else bunch.data
    return Arrays(inputs, bunch.target, labels=[str(name) for name in bunch.target_names])


def read_fashion_mnist(config: DataConfig) -> Arrays:
    root = Path(config.path or FASHION_MNIST_ROOT)
    parts = [
        (_idx(root / f"{part}-images-idx3-ubyte.gz"), _idx(root / f"{part}-labels-idx1-ubyte.gz"))
        for part in ("train", "t10k")
    ]
    images = np.concatenate([images for images, _ in parts])[:, None]
    labels = np.concatenate([labels for _, labels in parts]).astype(np.int64)
    return Arrays(images, labels, fixed=len(parts[0][1]))


def _idx(path: Path) -> Array:
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


def read_npz(config: DataConfig) -> Arrays:
    path = needed_file(config)
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            missing = {"x", "y"} - set(arrays.files)
            if missing:
                raise DataError(f"{path} has the arrays {arrays.files}; it must have x (inputs) and y (targets).")
            return Arrays(arrays["x"], arrays["y"])
    except DataError:
        raise
    except Exception as error:  # damaged bytes make NumPy's reader fail in a dozen ways
        raise DataError(
            f"data file {path} cannot be read as an npz archive: {error}. Write it with numpy.savez."
        ) from error


def read_factory(config: DataConfig) -> Arrays:
    if not config.factory:
        raise ConfigError("task.data.factory is missing; data of the kind factory needs module:function.")
    make = import_object(config.factory, names=("load_data", "make_data"), what="task.data.factory")
    try:
        made = make()
    except Exception as error:
        raise DataError(f"{config.factory} failed: {type(error).__name__}: {error}") from error
    if not isinstance(made, tuple) or len(made) != 2:
        raise DataError(f"{config.factory} returned a {type(made).__name__}; it must return (inputs, targets).")
    return Arrays(np.asarray(made[0]), np.asarray(made[1]))
