"""Where sweeps are kept: a folder, or a bucket behind a URI, with the few operations the ledger needs."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from muse_spark_ray.errors import ConfigError

STORE_VARIABLE = "MUSE_SPARK_STORE"


class Store(ABC):
    """A tree of small files; paths are relative, with "/" between their parts.

    `write_atomic` makes a file appear whole or not at all, at any moment of a crash; nothing is ever appended to.
    """

    uri: str

    @staticmethod
    def open(location: str | os.PathLike[str] | Store | None = None) -> Store:
        """Return the store at a path or URI.

        Args:
            location: a local path, a URI that pyarrow knows (`file://`, `s3://`, `gs://`, ...), a store that is
                open already, or None for `$MUSE_SPARK_STORE` and else the user's data folder.

        Raises:
            StoreError: if the file system or bucket cannot be reached.
            ConfigError: if the URI is of no known kind.
        """
        if isinstance(location, Store):
            return location
        text = os.fspath(location) if location else default_location()
        scheme = urlsplit(text).scheme
        # One letter is a Windows drive; "a:b" without slashes is a file name.
        if len(scheme) > 1 and scheme != "file" and "://" in text:
            from muse_spark_ray.ledger.remote import open_remote

            return open_remote(text)
        from muse_spark_ray.ledger.local import LocalStore

        return LocalStore(_path_of_uri(text) if scheme == "file" else Path(text).expanduser())

    @abstractmethod
    def require_writable(self) -> None:
        """Make the root if it is missing; ConfigError or StoreError if nothing can be written there."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Return whether there is a file or folder at `path`."""

    @abstractmethod
    def list(self, path: str = "") -> list[str]:
        """Return the names directly inside a folder, sorted; none if there is no such folder."""

    @abstractmethod
    def read_bytes(self, path: str) -> bytes:
        """Return a whole file; FileNotFoundError if it is not there."""

    @abstractmethod
    def write_atomic(self, path: str, data: bytes) -> None:
        """Write or replace a whole file durably; folders above it are made as needed."""

    @abstractmethod
    def write_new(self, path: str, data: bytes) -> None:
        """Write a file that must not be there yet; FileExistsError if it is."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove a file if it is there."""

    @contextlib.contextmanager
    def exclusive(self, path: str) -> Iterator[None]:
        """Keep other processes out of the block under the same `path`, where the store has locks: local folders do."""
        yield

    def local_path(self, path: str) -> Path | None:
        """Return where `path` lies on this machine's disk, None if the store is elsewhere."""
        return None

    def __repr__(self) -> str:
        return f"Store({self.uri!r})"


def default_location() -> str:
    """Return `$MUSE_SPARK_STORE`, or `muse_spark_ray/sweeps` in the user's data folder."""
    chosen = os.environ.get(STORE_VARIABLE)
    if chosen:
        return chosen
    data = os.environ.get("XDG_DATA_HOME") or os.path.join("~", ".local", "share")
    return str(Path(data).expanduser() / "muse_spark_ray" / "sweeps")


def _path_of_uri(uri: str) -> Path:
    parts = urlsplit(uri)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise ConfigError(f"store is {uri!r}; a file URI needs an absolute path", hint="Write file:///path/to/store.")
    return Path(unquote(parts.path))
