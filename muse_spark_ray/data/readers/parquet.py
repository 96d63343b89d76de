"""Parquet: one table over any number of files, read whole or a row group at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from muse_spark_ray.data.config import DataConfig
from muse_spark_ray.data.readers.found import Array, Arrays, needed_paths
from muse_spark_ray.data.readers.tables import check_names, from_table
from muse_spark_ray.errors import ConfigError, DataError

SAMPLE_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class ParquetTable:
    """The row groups of a table, each of which can be read for itself; it can be sent to other processes.

    Args:
        parts: One pyarrow fragment a row group; those whose statistics rule out every wanted row are not among them.
        schema: Of all files.
        columns: Read from the files; None reads all.
        condition: Rows to read, as a pyarrow expression; None reads all.
        target: The column to predict.
        where: What messages call the table.
    """

    parts: tuple[Any, ...]
    schema: Any
    columns: list[str] | None
    condition: Any
    target: str
    where: str

    def rows_in(self, part: int) -> int:
        """Return the rows of a row group before conditions, as the file's footer has it."""
        return sum(int(group.num_rows) for group in self.parts[part].row_groups)

    def read(self, parts: Sequence[int], *, threads: bool = True) -> Any:
        """Return the wanted rows and columns of some row groups as a pyarrow table."""
        import pyarrow.dataset as ds

        chosen = [self.parts[part] for part in parts]
        with _errors_about(self.where):
            data = ds.FileSystemDataset(chosen, self.schema, ds.ParquetFileFormat())
            return data.to_table(columns=self.columns, filter=self.condition, use_threads=threads)

    def inputs_of(self, table: Any) -> Array:
        """Return the input columns of what `read` returned, [rows, columns] float32; what is missing is NaN."""
        names = [name for name in table.column_names if name != self.target]
        columns = [table.column(name).to_numpy() for name in names]
        return np.stack(columns, axis=1).astype(np.float32) if columns else np.zeros((len(table), 0), np.float32)

    def targets_of(self, table: Any) -> Array:
        """Return the target column of what `read` returned, [rows]; text is an array of objects."""
        values: Array = table.column(self.target).to_numpy()
        return values


def open_parquet(config: DataConfig) -> ParquetTable:
    """Look at the files of a config without reading any row.

    Raises:
        DataError: If a file is missing or no Parquet.
        ConfigError: If a column is not there.
    """
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    paths = needed_paths(config, "*.parquet")
    wanted = [tuple(condition) for condition in config.where or ()]
    with _errors_about(str(config.path)):
        data = ds.dataset([str(path) for path in paths], format="parquet")
        schema, names = data.schema, list(map(str, data.schema.names))
        target = check_names(config, names, where=str(config.path))
        if unknown := sorted({name for name, *_ in wanted} - set(names)):
            raise ConfigError(f"task.data.where names {unknown}; {paths[0]} has the columns {names}.")
        columns = config.columns
        if columns is not None:
            columns = list(dict.fromkeys([*columns, *filter(None, (config.group, config.time)), target]))
        condition = pq.filters_to_expression(wanted) if wanted else None
        parts = tuple(p for file in data.get_fragments(condition) for p in file.split_by_row_group(condition, schema))
    return ParquetTable(parts, schema, columns, condition, target, str(config.path))


def read_parquet(config: DataConfig) -> Arrays:
    """Read only the columns and row groups that are asked for; of a stream, a sample of row groups from all over it."""
    table = open_parquet(config)
    chosen = _sample_of(table) if config.stream else range(len(table.parts))
    return from_table(table.read(chosen).to_pandas(), config, where=table.where)


def _sample_of(table: ParquetTable) -> list[int]:
    """Return row groups, evenly spread, that hold about `SAMPLE_ROWS` rows."""
    rows = sum(map(table.rows_in, range(len(table.parts))))
    step = max(1, round(rows / SAMPLE_ROWS))
    return list(range(0, len(table.parts), step))


@contextmanager
def _errors_about(where: str) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (OSError, KeyError, pa.ArrowException) as error:
        raise DataError(f"data {where} cannot be read as Parquet: {str(error).splitlines()[0]}") from error
