"""Checkpoints: folders that are complete or not there, verified before they are trusted.

A checkpoint is a folder `epoch_000012`, or `epoch_000012_step_000345` after so many updates in the epoch that follows,
with

    model.safetensors   the weights as they are
    best.safetensors    the weights of the best epoch so far
    state.pt            all else that continues the training: tensors and plain containers, loaded with `weights_only`
    manifest.json       epoch, metric, size and SHA-256 of each file, and what the checkpoint comes from

It is written under another name, flushed to disk and renamed, so that a crash leaves either the whole checkpoint or
none. Only then are older ones deleted; the best, the `keep_last` newest and those that someone is loading stay. The
links `last` and `best` beside the folders lead to the newest and to the best one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import math
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from muse_spark_ray.errors import ConfigError, DataError
from muse_spark_ray.training.weights import put_weights, save_weights, take_weights

logger = logging.getLogger(__name__)
FORMATS = (1, 2, 3)
_NAME = re.compile(r"epoch_(\d{6,})(?:_step_(\d{6,}))?")


class CheckpointWriteError(OSError):
    """A checkpoint could not be written: no room, no permission, a storage that does not answer."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint on disk.

    Args:
        path: Its folder.
        epoch: Epochs done when it was written.
        step: Updates done when it was written within an epoch; 0 between two.
        metric: Value that says how good it is; None where nothing was measured, never NaN.
    """

    path: Path
    epoch: int
    step: int
    metric: float | None

    @property
    def order(self) -> tuple[int, int]:
        """Sorts checkpoints by how far the training had come."""
        return self.epoch, self.step


class Checkpoints:
    """The checkpoints of one training.

    Args:
        folder: Made if it is not there.
        keep_last: Newest ones to keep, None or -1 for all.
        higher_is_better: Direction of the metric.
    """

    def __init__(self, folder: str | Path, *, keep_last: int | None, higher_is_better: bool) -> None:
        self.folder = Path(folder).expanduser()
        self._keep_last = keep_last
        self._sign = 1.0 if higher_is_better else -1.0
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"checkpoint.save_dir {self.folder} cannot be made: {error}. Choose a folder that can be written."
            ) from error

    def save(
        self,
        state: dict[str, Any],
        *,
        epoch: int,
        metric: float | None,
        step: int = 0,
        about: dict[str, Any] | None = None,
    ) -> Path:
        """Write a checkpoint, then delete what is not kept.

        Args:
            state: Tensors, numbers, strings, lists, dictionaries.
            epoch: Epochs done.
            metric: How good it is; a value that is not finite counts as unknown.
            step: Updates done, if it is written within an epoch.
            about: What the checkpoint comes from, as JSON can hold it.

        Returns:
            The new folder.

        Raises:
            CheckpointWriteError: If it cannot be written; what was there before is untouched.
        """
        final = self.folder / (f"epoch_{epoch:06d}_step_{step:06d}" if step else f"epoch_{epoch:06d}")
        partial = self.folder / f".{final.name}.{os.getpid()}.partial"
        known = metric if metric is not None and math.isfinite(metric) else None
        told = {"epoch": epoch, "step": step, "metric": known, "about": about or {}}
        shutil.rmtree(partial, ignore_errors=True)
        try:
            _write(partial, state, told)
        except (OSError, SafetensorError, RuntimeError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            if isinstance(error, RuntimeError) and "StreamWriter" not in str(error):
                raise
            raise CheckpointWriteError(f"{final}: {_reason(error)}") from error
        if final.exists():
            shutil.rmtree(final)
        partial.rename(final)
        _flush(self.folder)
        self._retain()
        self._link()
        return final

    def saved(self) -> list[Saved]:
        """Return the complete checkpoints, oldest first; a folder without a readable manifest is none."""
        found = []
        for path in self.folder.iterdir():
            match = _NAME.fullmatch(path.name)
            manifest = _read_manifest(path) if match else None
            if match and manifest is not None:
                found.append(Saved(path, int(match[1]), int(match[2] or 0), manifest.get("metric")))
        return sorted(found, key=lambda saved: saved.order)

    def best(self) -> Saved | None:
        """Return the best one with a known metric, the earlier of equals."""
        known = [saved for saved in self.saved() if saved.metric is not None]
        return max(known, key=lambda saved: (self._sign * (saved.metric or 0.0), -saved.epoch), default=None)

    def load_newest(self) -> tuple[Saved, dict[str, Any]] | None:
        """Load the newest checkpoint that is whole, passing over damaged ones with a warning.

        Returns:
            The checkpoint and its state, or None if there is none to load.
        """
        for saved in reversed(self.saved()):
            try:
                return saved, load_state(saved.path)
            except DataError as error:
                logger.warning("%s Trying the one before it.", error)
        return None

    def _retain(self) -> None:
        if self._keep_last is None or self._keep_last == -1:
            return
        saved, best = self.saved(), self.best()
        for old in saved[: -self._keep_last]:
            if (best is None or old.path != best.path) and not _is_in_use(old.path):
                shutil.rmtree(old.path, ignore_errors=True)

    def _link(self) -> None:
        """Let `last` and `best` lead to the newest and the best checkpoint, where the file system has links."""
        saved, best = self.saved(), self.best()
        for name, target in (("last", saved[-1] if saved else None), ("best", best)):
            with contextlib.suppress(OSError):
                partial = self.folder / f".{name}.{os.getpid()}.partial"
                partial.unlink(missing_ok=True)
                if target is not None:
                    partial.symlink_to(target.path.name, target_is_directory=True)
                    partial.replace(self.folder / name)


def _write(folder: Path, state: dict[str, Any], told: dict[str, Any]) -> None:
    """Write the files of a checkpoint, the manifest last, each of them flushed to disk."""
    folder.mkdir()
    rest, weights = take_weights(state)
    for name, tensors in weights.items():
        save_weights(tensors, folder / name)
    torch.save(rest, folder / "state.pt")
    files = [*weights, "state.pt"]
    for name in files:
        _flush(folder / name)
    manifest = {"format": FORMATS[-1], **told, "files": {name: _fingerprint(folder / name) for name in files}}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))
    _flush(folder / "manifest.json")
    _flush(folder)


def _reason(error: Exception) -> str:
    """Return what the operating system said, where a library hides it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error).splitlines()[0]


def load_state(folder: str | Path) -> dict[str, Any]:
    """Load and verify one checkpoint folder.

    Raises:
        DataError: If a file is missing, cut short, changed, or holds anything but tensors and plain containers.
    """
    path = Path(folder)
    with _in_use(path):
        return _load(path)


def _load(path: Path) -> dict[str, Any]:
    manifest = _read_manifest(path)
    if manifest is None:
        raise DataError(f"checkpoint {path} has no readable manifest.json; it is not complete.")
    for name in dict.fromkeys([*manifest["files"], "state.pt"]):
        if not (path / name).is_file() or _fingerprint(path / name) != manifest["files"].get(name):
            raise DataError(
                f"checkpoint {path} is damaged: {name} does not match the size and checksum of its manifest."
            )
    file = path / "state.pt"
    try:
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise DataError(f"checkpoint {file} cannot be loaded safely: {str(error).splitlines()[0]}") from error
    put_weights(state, path)
    return state


def about_checkpoint(folder: str | Path) -> dict[str, Any]:
    """Return what a checkpoint comes from: config, code, environment, and what the user gave; empty if unknown."""
    manifest = _read_manifest(Path(folder)) or {}
    told: dict[str, Any] = manifest.get("about", {})
    return told


@contextlib.contextmanager
def _in_use(path: Path) -> Iterator[None]:
    """Keep others from deleting a checkpoint, where the file system has locks."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            file = stack.enter_context((path / "manifest.json").open("rb"))
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield


def _is_in_use(path: Path) -> bool:
    try:
        with (path / "manifest.json").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _read_manifest(path: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads((path / "manifest.json").read_text())
    except (OSError, ValueError):
        return None
    if (
        not isinstance(manifest, dict)
        or manifest.get("format") not in FORMATS
        or not isinstance(manifest.get("files"), dict)
    ):
        return None
    return manifest


def _fingerprint(path: Path) -> dict[str, Any]:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def _flush(path: Path) -> None:
    """Ask the disk to keep a file, or a folder's list of names, through a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
