"""A store behind any pyarrow file system: buckets by URI, one put per file."""

from __future__ import annotations

import builtins
import contextlib
import os
from collections.abc import Iterator
from urllib.parse import parse_qsl, urlencode, urlsplit

import pyarrow as pa
from pyarrow import fs

from muse_spark_ray.errors import ConfigError, StoreError
from muse_spark_ray.ledger.store import Store

# One slow answer is waited for, an endpoint that is not there is told within seconds.
CONNECT_TIMEOUT_SECONDS = 3.0
REQUEST_TIMEOUT_SECONDS = 20.0
RETRY_SECONDS = 10
MAX_ATTEMPTS = 3

_BUCKETS = ("s3", "gcs")
_S3_OPTIONS = ("region", "scheme", "endpoint_override")


class RemoteStore(Store):
    """Sweeps under a root of a pyarrow file system.

    A bucket shows an object only when its upload is complete, which is what `write_atomic` promises.
    """

    def __init__(self, filesystem: fs.FileSystem, root: str, *, uri: str = "") -> None:
        self.filesystem = filesystem
        self.root = root.rstrip("/")
        self.uri = uri or self.root

    def require_writable(self) -> None:
        self.write_atomic(".writable", b"")
        self.delete(".writable")

    def exists(self, path: str) -> bool:
        with self._errors_named():
            found: fs.FileInfo = self.filesystem.get_file_info(self._full(path))
            return bool(found.type != fs.FileType.NotFound)

    def list(self, path: str = "") -> builtins.list[str]:
        with self._errors_named():
            found = self.filesystem.get_file_info(fs.FileSelector(self._full(path), allow_not_found=True))
        return sorted(each.base_name for each in found if not each.base_name.startswith("."))

    def read_bytes(self, path: str) -> bytes:
        with self._errors_named(), self.filesystem.open_input_stream(self._full(path)) as stream:
            return bytes(stream.read())

    def write_atomic(self, path: str, data: bytes) -> None:
        full = self._full(path)
        with self._errors_named():
            folder = full.rpartition("/")[0]
            if folder and self.filesystem.type_name not in _BUCKETS:
                self.filesystem.create_dir(folder, recursive=True)
            with self.filesystem.open_output_stream(full) as stream:
                stream.write(data)

    def write_new(self, path: str, data: bytes) -> None:
        if self.exists(path):
            raise FileExistsError(path)
        self.write_atomic(path, data)

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._errors_named():
            self.filesystem.delete_file(self._full(path))

    def _full(self, path: str) -> str:
        return "/".join(part for part in (self.root, path) if part)

    @contextlib.contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException) as error:
            raise _unreachable(self.uri, error) from error


def open_remote(uri: str) -> RemoteStore:
    """Return the store at a URI, after one look whether its root can be reached.

    Raises:
        StoreError: if it cannot, after a few bounded attempts.
        ConfigError: if pyarrow knows no such kind of URI.
    """
    try:
        filesystem, root = _filesystem_of(uri)
    except (pa.ArrowInvalid, ValueError, NotImplementedError) as error:
        raise ConfigError(
            f"store is {_without_secrets(uri)!r}: {_first_line(error)}",
            hint="Give a path, or a URI like s3://bucket/folder, gs://bucket/folder or file:///path.",
        ) from error
    except OSError as error:
        raise _unreachable(_without_secrets(uri), error) from error
    store = RemoteStore(filesystem, root, uri=_without_secrets(uri))
    store.exists("")
    return store


def _filesystem_of(uri: str) -> tuple[fs.FileSystem, str]:
    parts = urlsplit(uri)
    if parts.scheme == "s3":
        return _s3(uri)
    if parts.scheme in ("gs", "gcs") and "retry_limit_seconds" not in parts.query:
        options = urlencode([*parse_qsl(parts.query), ("retry_limit_seconds", str(RETRY_SECONDS))])
        uri = parts._replace(query=options).geturl()
    filesystem, root = fs.FileSystem.from_uri(uri)
    return filesystem, root


def _s3(uri: str) -> tuple[fs.FileSystem, str]:
    parts = urlsplit(uri)
    options = dict(parse_qsl(parts.query))
    unknown = sorted(set(options) - set(_S3_OPTIONS))
    if unknown or not parts.hostname:
        raise ValueError(f"option {unknown[0]!r} is not one of {', '.join(_S3_OPTIONS)}" if unknown else "no bucket")
    bucket = parts.netloc.rpartition("@")[2]
    if not options.keys() & {"region", "endpoint_override"} and not _environment_names_region():
        options["region"] = fs.resolve_s3_region(bucket)
    filesystem = fs.S3FileSystem(
        access_key=parts.username,
        secret_key=parts.password,
        connect_timeout=CONNECT_TIMEOUT_SECONDS,
        request_timeout=REQUEST_TIMEOUT_SECONDS,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=MAX_ATTEMPTS),
        **options,
    )
    return filesystem, bucket + parts.path


def _environment_names_region() -> bool:
    return any(os.environ.get(name) for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"))


def _unreachable(uri: str, error: Exception) -> StoreError:
    return StoreError(
        f"store {uri} cannot be reached: {_first_line(error)}",
        hint="Check the network, the bucket's name and region, and the credentials in the environment.",
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def _without_secrets(uri: str) -> str:
    parts = urlsplit(uri)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
