"""A store in a local folder: temporary file, fsync, rename, fsync of the folder."""

from __future__ import annotations

import builtins
import contextlib
import errno
import fcntl
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from muse_spark_ray.errors import ConfigError, StoreError
from muse_spark_ray.ledger.store import Store

TEMPORARY_PREFIX = ".tmp-"

# What a different path would cure; a full disk or a lost mount would come again.
_WRONG_PATH = frozenset({errno.ENOENT, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP})


class LocalStore(Store):
    """Sweeps in a local folder (or one mounted on several hosts); made when first written to."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.uri = str(self.root)

    def require_writable(self) -> None:
        with self._errors_named():
            self._make_folder(self.root)
            probe = self._write_temporary(self.root, b"")
            probe.unlink()

    def local_path(self, path: str) -> Path:
        return self.root / path

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def list(self, path: str = "") -> builtins.list[str]:
        try:
            return sorted(name for name in os.listdir(self.root / path) if not name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise StoreError(f"store folder {self.root / path} cannot be listed: {error.strerror}") from error

    def read_bytes(self, path: str) -> bytes:
        try:
            return (self.root / path).read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreError(f"store file {self.root / path} cannot be read: {error.strerror}") from error

    def write_atomic(self, path: str, data: bytes) -> None:
        with self._placed(path, data) as (temporary, target):
            os.replace(temporary, target)

    def write_new(self, path: str, data: bytes) -> None:
        # A link fails if the name is taken, where a rename would replace it.
        with self._placed(path, data) as (temporary, target):
            try:
                os.link(temporary, target)
            except FileExistsError:
                raise
            except OSError:
                _write_exclusively(target, data)

    def delete(self, path: str) -> None:
        with self._errors_named():
            (self.root / path).unlink(missing_ok=True)

    @contextlib.contextmanager
    def exclusive(self, path: str) -> Iterator[None]:
        with self._errors_named():
            self._make_folder((self.root / path).parent)
        with self._errors_named(), open(self.root / path, "wb") as file:
            # Released with the file, also if this process dies.
            fcntl.lockf(file, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def _placed(self, path: str, data: bytes) -> Iterator[tuple[Path, Path]]:
        target = self.root / path
        with self._errors_named():
            self._make_folder(target.parent)
            temporary = self._write_temporary(target.parent, data)
            try:
                yield temporary, target
            finally:
                temporary.unlink(missing_ok=True)
            _sync_folder(target.parent)

    def _make_folder(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise NotADirectoryError(errno.ENOTDIR, "a file has the name of the folder", str(folder)) from error

    def _write_temporary(self, folder: Path, data: bytes) -> Path:
        temporary = folder / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return temporary

    @contextlib.contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except (PermissionError, NotADirectoryError) as error:
            raise self._not_writable(error) from error
        except FileExistsError:
            raise
        except OSError as error:
            if error.errno in _WRONG_PATH:
                raise self._not_writable(error) from error
            raise StoreError(f"store {error.filename or self.root} cannot be written: {error.strerror}") from error

    def _not_writable(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"store {self.root} is not writable: {error.strerror} ({error.filename or self.root})",
            hint="Give a folder you can write to with --store or MUSE_SPARK_STORE.",
        )


def _write_exclusively(target: Path, data: bytes) -> None:
    # For mounts without hard links; a crash in here may leave the file short, never another's replaced.
    with open(target, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    # The rename itself is durable only once the folder is.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
