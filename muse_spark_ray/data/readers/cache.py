"""Decoded data on disk: pictures and shards are decoded once, and mapped into memory from then on."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from muse_spark_ray.data.config import DataConfig
from muse_spark_ray.data.readers.found import Arrays, needed_path

logger = logging.getLogger(__name__)
_READING = ("name", "target", "columns", "where", "image_size", "greyscale", "on_corrupt", "group", "time")
_ARRAYS = ("inputs", "targets", "keys")
_FORMAT = 1


def read_cached(config: DataConfig, reader: Callable[[DataConfig], Arrays]) -> Arrays:
    """Read a source from its decoded copy, and make that copy where there is none yet.

    The copy's name is a hash of what decides its content: the settings of reading, and the name, size and time of
    change of each source file. A changed source therefore gets another copy; old ones may be deleted at any time.
    Processes that make the same copy at once do so each for itself, and the first one to be done wins.

    Args:
        config: `cache` is the folder of the copies.
        reader: Reads the source itself.

    Returns:
        What `reader` returns; inputs are mapped copy-on-write, so that processes on one node share their memory.
    """
    folder = Path(str(config.cache)).expanduser() / _key(config)
    if (folder / "about.json").is_file():
        try:
            return _load(folder)
        except (OSError, ValueError, KeyError) as error:
            logger.warning("the decoded copy %s cannot be read (%s) and is made anew.", folder, error)
            shutil.rmtree(folder, ignore_errors=True)
    found = reader(config)
    if found.keys is not None and found.keys.dtype == object and not all(isinstance(key, str) for key in found.keys):
        return found  # groups without a name, or of mixed kinds: the split has something to say about them
    try:
        _store(found, folder)
    except OSError as error:  # a full disk: the data are in memory, and training can begin
        logger.warning("decoded data are not kept in %s: %s.", folder.parent, error)
    return found


def _key(config: DataConfig) -> str:
    root = needed_path(config)
    files = sorted(root.rglob("*") if root.is_dir() else root.parent.glob(root.name))
    about = {
        "format": _FORMAT,
        "path": str(root.resolve()),
        "reading": config.model_dump(mode="json", include=set(_READING)),
        "files": [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in files if f.is_file()],
    }
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:20]


def _store(found: Arrays, folder: Path) -> None:
    """Write a copy beside its place, then move it there as a whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix="partial-", dir=folder.parent))
    try:
        for name in _ARRAYS:
            values = getattr(found, name)
            if values is not None:
                # Text of any length is a column of objects; a file that needs no pickle holds text of one width.
                np.save(partial / f"{name}.npy", values.astype(str) if values.dtype == object else values)
        about = {"fixed": found.fixed, "labels": found.labels, "skipped": found.skipped}
        (partial / "about.json").write_text(json.dumps(about))
        if not folder.exists():
            partial.rename(folder)
    except OSError:
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _load(folder: Path) -> Arrays:
    arrays = {
        name: np.load(folder / f"{name}.npy", mmap_mode="c") for name in _ARRAYS if (folder / f"{name}.npy").exists()
    }
    return Arrays(**arrays, **json.loads((folder / "about.json").read_text()))
