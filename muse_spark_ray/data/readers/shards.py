"""Shard formats, read record by record: tar files as WebDataset writes them, and TFRecord with tf.train.Example."""

from __future__ import annotations

import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from muse_spark_ray.errors import DataError

_LENGTH, _CRC = 8, 4
_BYTES_LIST, _FLOAT_LIST, _INT_LIST = 1, 2, 3


def read_tar(path: Path) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield (name, {extension: content}) of the samples of a tar shard, in order.

    Files that follow each other and are equal up to the first dot of their name are one sample.

    Raises:
        DataError: If the file is damaged.
    """
    key = ""
    parts: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as shard:
            for member in shard:
                if not member.isfile():
                    continue
                folder, _, name = member.name.rpartition("/")
                stem, _, suffix = name.partition(".")
                own = f"{folder}/{stem}" if folder else stem
                if own != key and parts:
                    yield key, parts
                    parts = {}
                file = shard.extractfile(member)
                key = own
                parts[suffix] = b"" if file is None else file.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"shard {path} is corrupt: {error}.") from error
    if parts:
        yield key, parts


def read_tfrecord(path: Path) -> Iterator[dict[str, Any]]:
    """Yield {feature: array} of the records of a TFRecord file.

    Lengths and contents are checked by their masked CRC-32C where the package google-crc32c is installed; a file that
    ends within a record is damaged in any case.

    Source: https://www.tensorflow.org/tutorials/load_data/tfrecord (format), tensorflow/core/example/feature.proto.

    Raises:
        DataError: If the file is damaged.
    """
    with path.open("rb") as file:
        number = 0
        while head := file.read(_LENGTH + _CRC):
            if len(head) < _LENGTH + _CRC:
                raise _damaged(path, number, "it ends within a length")
            (size,) = struct.unpack("<Q", head[:_LENGTH])
            if not _checks(head[:_LENGTH], head[_LENGTH:]):
                raise _damaged(path, number, "the checksum of its length is wrong")
            content, mark = file.read(size), file.read(_CRC)
            if len(content) < size or len(mark) < _CRC:
                raise _damaged(path, number, "it ends within its content")
            if not _checks(content, mark):
                raise _damaged(path, number, "the checksum of its content is wrong")
            try:
                yield parse_example(content)
            except (ValueError, IndexError, struct.error, UnicodeDecodeError) as error:
                raise _damaged(path, number, f"it is no tf.train.Example ({error})") from error
            number += 1


def parse_example(raw: bytes) -> dict[str, Any]:
    """Read a serialised tf.train.Example.

    Returns:
        {feature: int64 or float32 array, or list of bytes}.
    """
    features: dict[str, Any] = {}
    for _, message in _fields(raw, 1):
        for _, entry in _fields(message, 1):
            name = b"".join(value for _, value in _fields(entry, 1)).decode()
            for kind, holder in [pair for _, value in _fields(entry, 2) for pair in _fields(value)]:
                features[name] = _values(kind, holder)
    return features


def _values(kind: int, raw: bytes) -> Any:
    if kind == _BYTES_LIST:
        return [value for _, value in _fields(raw, 1)]
    if kind == _FLOAT_LIST:
        # Packed values are one field of many bytes, others are fields of four bytes each.
        return np.frombuffer(b"".join(value for _, value in _fields(raw, 1)), "<f4").copy()
    if kind != _INT_LIST:
        raise ValueError(f"feature of the unknown kind {kind}")
    numbers: list[int] = []
    for _, value in _fields(raw, 1):
        position = 0
        while position < len(value):
            number, position = _varint(value, position)
            numbers.append(number - (1 << 64) if number >= 1 << 63 else number)
    return np.asarray(numbers, np.int64)


def _fields(raw: bytes, wanted: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield (number, content) of the fields of a protocol-buffer message; a varint's content is its own bytes."""
    position = 0
    while position < len(raw):
        tag, position = _varint(raw, position)
        number, kind = tag >> 3, tag & 7
        start = position
        if kind == 0:
            _, position = _varint(raw, position)
        elif kind == 1:
            position += 8
        elif kind == 5:
            position += 4
        elif kind == 2:
            size, start = _varint(raw, position)
            position = start + size
        else:
            raise ValueError(f"wire type {kind}")
        if position > len(raw):
            raise ValueError("a field ends after its message")
        if wanted is None or number == wanted:
            yield number, raw[start:position]


def _varint(raw: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


def _checks(content: bytes, mark: bytes) -> bool:
    try:
        import google_crc32c
    except ImportError:
        return True
    crc = google_crc32c.value(content)
    masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    return bool(masked == struct.unpack("<I", mark)[0])


def _damaged(path: Path, number: int, problem: str) -> DataError:
    return DataError(f"shard {path} is corrupt at record {number}: {problem}.")
