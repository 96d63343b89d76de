"""What a reader finds, and the files that a path in a config means."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from muse_spark_ray.data.config import DataConfig
from muse_spark_ray.errors import ConfigError, DataError

Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class Arrays:
    """What a reader found.

    Args:
        inputs: [N, ...] numbers.
        targets: [N] class ids (integers) or [N, ...] real values.
        fixed: The first so many rows are for training, the rest for validation; None leaves it to the split.
        labels: Names of the classes, where the source has them.
        keys: [N] values of the column by which rows are grouped or ordered.
        skipped: Files or records that could not be read.
    """

    inputs: Array
    targets: Array
    fixed: int | None = None
    labels: list[str] | None = None
    keys: Array | None = None
    skipped: list[str] | None = None


def needed_file(config: DataConfig) -> Path:
    path = needed_path(config)
    if not path.is_file():
        raise _absent(path, "file")
    return path


def needed_folder(config: DataConfig) -> Path:
    path = needed_path(config)
    if not path.is_dir():
        raise _absent(path, "folder")
    return path


def needed_paths(config: DataConfig, pattern: str) -> list[Path]:
    """Return the files that a path means: itself, those in a folder, or those that match it."""
    path = needed_path(config)
    found = [path] if path.is_file() else sorted(path.glob(pattern) if path.is_dir() else path.parent.glob(path.name))
    if not found:
        raise _absent(path, "file")
    return found


def needed_path(config: DataConfig) -> Path:
    if config.path is None:
        raise ConfigError(f"task.data.path is missing; data of the kind {config.name} needs the path of its file.")
    return Path(config.path).expanduser()


def _absent(path: Path, kind: str) -> DataError:
    return DataError(
        f"data {kind} {path} does not exist.", hint="correct task.data.path; relative paths start in the current folder"
    )


def stacked(rows: list[Array], where: str) -> Array:
    shapes = sorted({row.shape for row in rows})
    if len(shapes) > 1:
        raise DataError(
            f"{where}: samples have the shapes {shapes[:4]}; all must have the same.",
            hint="set task.data.image_size for pictures",
        )
    if not rows:
        raise DataError(f"{where}: no sample was found.")
    return np.stack(rows).astype(np.float32)
