"""Samples one by one: folders of pictures, tar shards, TFRecord files; a damaged one fails or is left out."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from muse_spark_ray.data.config import DataConfig
from muse_spark_ray.data.readers.found import Array, Arrays, needed_folder, needed_paths, stacked
from muse_spark_ray.data.readers.shards import read_tar, read_tfrecord
from muse_spark_ray.errors import ConfigError, DataError

_PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".pgm", ".ppm")


def read_images(config: DataConfig) -> Arrays:
    """Read a folder with one folder of pictures for each class; `train` and `val` in it are a fixed split."""
    root = needed_folder(config)
    parts = [root / "train", root / "val"] if (root / "train").is_dir() and (root / "val").is_dir() else [root]
    labels = sorted({folder.name for part in parts for folder in part.iterdir() if folder.is_dir()})
    if len(labels) < 2:
        raise DataError(
            f"{root} holds {len(labels)} folder(s) of classes; images need one folder for each of 2 classes."
        )
    images: list[Array] = []
    targets: list[int] = []
    skipped: list[str] = []
    fixed = None
    for part in parts:
        for number, label in enumerate(labels):
            for file in sorted(p for p in (part / label).glob("*") if p.suffix.lower() in _PICTURES):
                picture = _picture(file.read_bytes(), config, where=str(file), skipped=skipped)
                if picture is not None:
                    images.append(picture)
                    targets.append(number)
        fixed = len(targets) if fixed is None and len(parts) == 2 else fixed
    return Arrays(stacked(images, str(root)), np.asarray(targets, np.int64), fixed, labels, skipped=skipped)


def read_webdataset(config: DataConfig) -> Arrays:
    """Read tar shards in which files of one name belong together: a picture or array, and `.cls` with the class id."""
    images: list[Array] = []
    targets: list[int] = []
    skipped: list[str] = []
    for path in needed_paths(config, "*.tar"):
        for key, parts in _readable(read_tar(path), path, config, skipped):
            value = _sample_of(parts, config, where=f"{path}: {key}", skipped=skipped)
            if value is not None:
                images.append(value[0])
                targets.append(value[1])
    return Arrays(stacked(images, str(config.path)), np.asarray(targets, np.int64), skipped=skipped)


def _sample_of(
    parts: dict[str, bytes], config: DataConfig, *, where: str, skipped: list[str]
) -> tuple[Array, int] | None:
    try:
        label = int(parts["cls"])
        if "npy" in parts:
            return np.load(io.BytesIO(parts["npy"]), allow_pickle=False), label
        suffix = next(suffix for suffix in parts if f".{suffix.lower()}" in _PICTURES)
    except (KeyError, ValueError, StopIteration, EOFError, OSError) as error:
        problem = f"{where} has the parts {sorted(parts)}; it needs cls and a picture or npy ({error})"
        if config.on_corrupt == "fail":
            raise DataError(f"{problem}.", hint="set task.data.on_corrupt: skip to leave such samples out") from error
        skipped.append(problem)
        return None
    picture = _picture(parts[suffix], config, where=where, skipped=skipped)
    return None if picture is None else (picture, label)


def read_tfrecords(config: DataConfig) -> Arrays:
    """Read records of tf.train.Example: the target's feature, all others side by side as inputs."""
    rows: list[Array] = []
    targets: list[float] = []
    skipped: list[str] = []
    for path in needed_paths(config, "*.tfrecord*"):
        for number, features in enumerate(_readable(read_tfrecord(path), path, config, skipped)):
            target = config.target or sorted(features)[-1]
            if target not in features:
                raise ConfigError(f"task.data.target is {target!r}; record {number} of {path} has {sorted(features)}.")
            targets.append(features[target][0])
            rows.append(np.concatenate([np.ravel(features[name]) for name in sorted(features) if name != target]))
    whole = np.asarray(targets)
    ids = whole.astype(np.int64) if np.issubdtype(whole.dtype, np.integer) else whole.astype(np.float32)
    return Arrays(stacked(rows, str(config.path)), ids, skipped=skipped)


def _readable(records: Iterator[Any], path: Path, config: DataConfig, skipped: list[str]) -> Iterator[Any]:
    """Yield records until one cannot be read; then stop, or leave out the rest of the file."""
    try:
        yield from records
    except DataError as error:
        if config.on_corrupt == "fail":
            raise DataError(
                str(error), hint="set task.data.on_corrupt: skip to leave out what cannot be read"
            ) from error
        skipped.append(str(error))


def _picture(raw: bytes, config: DataConfig, *, where: str, skipped: list[str]) -> Array | None:
    """Decode a picture to [channels, height, width] float32 in [0, 1]; None if it is skipped."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(raw)) as opened:
            picture = opened.convert("L" if config.greyscale else "RGB")
            if config.image_size is not None:
                picture = picture.resize((config.image_size, config.image_size), Image.Resampling.BILINEAR)
            pixels = np.asarray(picture, dtype=np.float32) / 255.0
    except (OSError, ValueError, SyntaxError) as error:
        if config.on_corrupt == "fail":
            raise DataError(
                f"picture {where} cannot be read: {error}.",
                hint="set task.data.on_corrupt: skip to leave such files out",
            ) from error
        skipped.append(where)
        return None
    return pixels[None] if config.greyscale else np.moveaxis(pixels, -1, 0)
