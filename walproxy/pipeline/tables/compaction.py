"""Many small files become a few large ones: what is merged with what, and how.

A stream makes one file per batch and task. Files that are smaller than half of the target size are taken in the order
of their rows and merged up to the target size, sorted by the column with a row's position in the log. Rows of WAL
arrive in that order, so the files mostly only have to be concatenated, and then no more than a few row groups are in
memory. Where their ranges overlap, all rows of one new file are sorted in memory.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from safekeeper.base.errors import StorageFailed
from walproxy.pipeline.tables.disk import storage_errors
from walproxy.pipeline.tables.parquet_files import DataFile, LiveFile, NewFile

TARGET_BYTES: Final = 128 << 20
_BATCH_ROWS: Final = 1 << 16


class Compaction(NamedTuple):
    """The result of a compaction, or of one that is only planned.

    Attributes:
        files_removed: small files that are no longer part of the table.
        files_added: what holds their rows now.
        bytes_before, bytes_after: of these files; `bytes_after` is 0 if nothing was done yet.
    """

    files_removed: int = 0
    files_added: int = 0
    rows: int = 0
    bytes_before: int = 0
    bytes_after: int = 0

    def plus(self, other: "Compaction") -> "Compaction":
        """Return the sum of both."""
        return Compaction(*(mine + its for mine, its in zip(self, other, strict=True)))


def order_column(schema: pa.Schema) -> str | None:
    """Return the column with a row's position in the log: the first LSN; None if there is none."""
    for field in schema:
        if field.type == pa.int64() and (field.name == "lsn" or field.name.endswith("_lsn")):
            return str(field.name)
    return None


def plan(files: Sequence[LiveFile], target_bytes: int, column: str | None) -> list[list[LiveFile]]:
    """Return which files are to be merged with each other: groups of two or more."""
    small = sorted((file for file in files if file.bytes < target_bytes // 2), key=lambda file: _place(file, column))
    groups: list[list[LiveFile]] = []
    size = target_bytes
    for file in small:
        if size + file.bytes > target_bytes:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.bytes
    return [group for group in groups if len(group) > 1]


def _place(file: LiveFile, column: str | None) -> tuple[int, str]:
    bounds = file.bounds.get(column) if column is not None else None
    return bounds[0] if bounds is not None else 0, file.path


def merge(files: Sequence[LiveFile], new_file: NewFile, column: str | None) -> DataFile:
    """Write the rows of the files into one new file, sorted by `column`.

    Raises:
        StorageFull, StorageFailed.
    """
    rows = sum(file.rows for file in files)
    paths = [file.path for file in files]
    schema = new_file.schema
    in_order = _is_in_order(paths, column)
    merged = new_file.write(_in_order(paths, schema) if in_order else _sorted(paths, schema, str(column)))
    if merged is None or merged.rows != rows:
        found = 0 if merged is None else merged.rows
        raise StorageFailed(f"{len(files)} files from {paths[0]} on have {found} rows, {rows} by their table")
    return merged


def _is_in_order(paths: Sequence[str], column: str | None) -> bool:
    """Return whether the rows are sorted if the files are read one after the other."""
    if column is None:
        return True
    last = None
    for path in paths:
        with storage_errors(f"read {path}"):
            values = pq.read_table(path, columns=[column], partitioning=None)[column].combine_chunks()
        if not len(values):
            continue
        if values.null_count or (last is not None and values[0].as_py() < last):
            return False
        if not pc.all(pc.less_equal(values[:-1], values[1:]), min_count=0).as_py():
            return False
        last = values[-1].as_py()
    return True


def _in_order(paths: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for path in paths:
        with storage_errors(f"read {path}"), pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH_ROWS):
                # Another program may have written the file, with views of strings for instance.
                yield batch if batch.schema.equals(schema) else batch.cast(schema)


def _sorted(paths: Sequence[str], schema: pa.Schema, column: str) -> Iterator[pa.RecordBatch]:
    table = pa.Table.from_batches(_in_order(paths, schema), schema)
    yield from table.sort_by(column).to_batches(_BATCH_ROWS)
