"""Names of segment files, and which of them count.

`0000000007.parquet` is the seventh append; `0000000001-0000000007.parquet` holds the first seven merged. A file
whose range lies inside another's is covered: the merge wrote the wider one first and removes this one next.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from muse_spark_ray.errors import LedgerError
from muse_spark_ray.ledger.schema import SCHEMA_VERSION, VERSION_KEY

_NAME = re.compile(r"(\d{10})(?:-(\d{10}))?\.parquet")
_ROWS_WORTH_A_CODEC = 1000


@dataclass(frozen=True, order=True)
class Segment:
    """A file that holds the appends numbered `first` to `last`."""

    first: int
    last: int

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{self.first:010d}{'' if self.first == self.last else f'-{self.last:010d}'}.parquet"


def parse_segments(names: Iterable[str]) -> list[Segment]:
    """Return the segments among file names, in order; other files are none of ours."""
    found = []
    for name in names:
        match = _NAME.fullmatch(name)
        if match:
            first = int(match[1])
            found.append(Segment(first, int(match[2] or first)))
    return sorted(found)


def live(segments: Iterable[Segment]) -> list[Segment]:
    """Return the segments that no wider one covers, in order."""
    kept: list[Segment] = []
    for segment in sorted(segments, key=lambda each: (each.first, -each.last)):
        if not kept or segment.last > kept[-1].last:
            kept.append(segment)
    return kept


def gaps(segments: Sequence[Segment], *, since: int = 1) -> list[tuple[int, int]]:
    """Return the runs of append numbers, from `since` to the highest, that no live segment holds."""
    missing = []
    expected = since
    for segment in segments:
        if segment.first > expected:
            missing.append((expected, segment.first - 1))
        expected = segment.last + 1
    return missing


def encode(table: pa.Table) -> bytes:
    """Return a table as the bytes of one Parquet file that says its schema version."""
    stamped = table.replace_schema_metadata({VERSION_KEY: str(SCHEMA_VERSION).encode()})
    # For a few rows a codec and dictionaries cost three times what they wrap, to write and to read; and plain
    # columns with zstd are smaller and faster than dictionary pages for many rows, too.
    codec = "zstd" if table.num_rows >= _ROWS_WORTH_A_CODEC else "none"
    sink = pa.BufferOutputStream()
    pq.write_table(
        stamped, sink, compression=codec, use_dictionary=False, write_statistics=False, write_page_checksum=True
    )
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode(data: bytes, *, where: str) -> pa.Table:
    """Return the table in the bytes of a segment.

    Raises:
        LedgerError: if a newer muse_spark_ray wrote it.
        pyarrow.ArrowException, OSError, ValueError: if the bytes are no whole Parquet file.
    """
    # Not read_table: it would load pyarrow.dataset, a third of a second for nothing we use.
    with pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True) as file:
        version = int((file.schema_arrow.metadata or {}).get(VERSION_KEY, b"0"))
        if version > SCHEMA_VERSION:
            raise LedgerError(
                f"{where} has ledger schema {version}; this muse_spark_ray reads up to {SCHEMA_VERSION}",
                hint="Upgrade: pip install -U muse-spark-ray.",
            )
        table: pa.Table = file.read(use_threads=False)
    return table.replace_schema_metadata(None)
