"""Reads the sources that a spec can name into arrays."""

from __future__ import annotations

import logging
from collections.abc import Callable

from muse_spark_ray.data.config import DataConfig
from muse_spark_ray.data.readers.arrays import read_bundled, read_factory, read_fashion_mnist, read_npz
from muse_spark_ray.data.readers.cache import read_cached
from muse_spark_ray.data.readers.found import Arrays
from muse_spark_ray.data.readers.parquet import read_parquet
from muse_spark_ray.data.readers.samples import read_images, read_tfrecords, read_webdataset
from muse_spark_ray.data.readers.tables import read_csv, read_huggingface

logger = logging.getLogger(__name__)
_READERS: dict[str, Callable[[DataConfig], Arrays]] = {
    **dict.fromkeys(("digits", "wine", "iris", "breast_cancer"), read_bundled),
    "fashion_mnist": read_fashion_mnist,
    "npz": read_npz,
    "csv": read_csv,
    "parquet": read_parquet,
    "images": read_images,
    "webdataset": read_webdataset,
    "tfrecord": read_tfrecords,
    "huggingface": read_huggingface,
    "factory": read_factory,
}


def read(config: DataConfig) -> Arrays:
    """Read a source.

    Raises:
        DataError: If a file is missing or corrupt.
        ConfigError: If a setting that the source needs is missing.
    """
    reader = _READERS[config.name]
    found = reader(config) if config.cache is None else read_cached(config, reader)
    if found.skipped:
        logger.warning(
            "%d of the data's files or records could not be read and are left out, first %s.",
            len(found.skipped),
            found.skipped[0],
        )
    return found
