"""Many small files become a few large ones: what is merged with what, and how.

A stream makes one file per batch and task. Files that are smaller than half of the target size are taken in the order
of their rows and merged up to the target size, sorted by the column with a row's position in the log. Rows of WAL
arrive in that order, so the files mostly only have to be concatenated, and then no more than a few row groups are in
memory. Where their ranges overlap, all rows of one new file are sorted in memory.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from safekeeper.base.errors import ConfigurationError, StorageFailed
from walproxy.pipeline.lake.disk import storage_errors
from walproxy.pipeline.lake.files import NewLakeFile
from walproxy.pipeline.lake.parquet_files import DataFile, LiveFile

if TYPE_CHECKING:
    import pyarrow.fs

TARGET_BYTES: Final = 128 << 20
REPLACED_AT_ONCE_BYTES: Final = 1 << 30
"""A compaction commits each time that it has merged this size: a failure later does not lose it."""

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


class Replacement(NamedTuple):
    """A file that holds the rows of others."""

    old: list[LiveFile]
    new: DataFile


def compact(
    files: Sequence[LiveFile],
    target_bytes: int,
    column: str | None,
    merged: Callable[[Sequence[LiveFile]], DataFile],
    replaced: Callable[[Sequence[Replacement]], Compaction],
    *,
    dry_run: bool,
    progress: Callable[[int, int], None] | None,
) -> Compaction:
    """Merge small files of a table into large ones. See `LakeTable.compact`.

    Args:
        files: of the table.
        column: what its rows are sorted by.
        merged: writes the rows of files into a new one.
        replaced: commits new files in the place of old ones.

    Raises:
        ConfigurationError: the target size is not positive.
    """
    if target_bytes <= 0:
        raise ConfigurationError(f"files of {target_bytes} bytes cannot be made")
    groups = plan(files, target_bytes, column)
    total = sum(file.bytes for group in groups for file in group)
    done = Compaction()
    pending: list[Replacement] = []
    merged_bytes = 0
    for group in groups:
        if dry_run:
            size, rows = sum(file.bytes for file in group), sum(file.rows for file in group)
            done = done.plus(Compaction(len(group), 1, rows, size))
            continue
        pending.append(Replacement(group, merged(group)))
        merged_bytes += sum(file.bytes for file in group)
        if group is groups[-1] or sum(each.new.bytes for each in pending) >= REPLACED_AT_ONCE_BYTES:
            done = done.plus(replaced(pending))
            pending = []
        if progress is not None:
            progress(merged_bytes, total)
    return done


def outcome_of(replacements: Sequence[Replacement]) -> Compaction:
    """Return the result of a compaction that has put new files in the place of old ones."""
    old = [file for each in replacements for file in each.old]
    rows, before = sum(file.rows for file in old), sum(file.bytes for file in old)
    return Compaction(len(old), len(replacements), rows, before, sum(each.new.bytes for each in replacements))


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


def merge(
    files: Sequence[LiveFile],
    new_file: NewLakeFile,
    column: str | None,
    filesystem: "pyarrow.fs.FileSystem | None" = None,
) -> DataFile:
    """Write the rows of the files into one new file, sorted by `column`.

    Args:
        filesystem: where the files are; None for the local one, whose errors are raised as those of this program.

    Raises:
        StorageFull, StorageFailed.
    """
    rows = sum(file.rows for file in files)
    paths = [file.path for file in files]
    schema = new_file.schema
    rows_in_order = _in_order(paths, schema, filesystem)
    if not _is_in_order(paths, column, filesystem):
        rows_in_order = _sorted(rows_in_order, schema, str(column))
    merged = new_file.write(rows_in_order)
    if merged is None or merged.rows != rows:
        found = 0 if merged is None else merged.rows
        raise StorageFailed(f"{len(files)} files from {paths[0]} on have {found} rows, {rows} by their table")
    return merged


def _reading(path: str, filesystem: "pyarrow.fs.FileSystem | None") -> contextlib.AbstractContextManager[None]:
    return storage_errors(f"read {path}") if filesystem is None else contextlib.nullcontext()


def _is_in_order(paths: Sequence[str], column: str | None, filesystem: "pyarrow.fs.FileSystem | None") -> bool:
    """Return whether the rows are sorted if the files are read one after the other."""
    if column is None:
        return True
    import pyarrow.compute as pc  # It takes 50 ms, and who only reads tables needs it not.
    import pyarrow.parquet as pq

    last = None
    for path in paths:
        with _reading(path, filesystem), pq.ParquetFile(path, filesystem=filesystem) as file:
            values = file.read([column])[column].combine_chunks()
        if not len(values):
            continue
        if values.null_count or (last is not None and values[0].as_py() < last):
            return False
        if not pc.all(pc.less_equal(values[:-1], values[1:]), min_count=0).as_py():
            return False
        last = values[-1].as_py()
    return True


def _in_order(
    paths: Sequence[str], schema: pa.Schema, filesystem: "pyarrow.fs.FileSystem | None"
) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq

    for path in paths:
        with _reading(path, filesystem), pq.ParquetFile(path, filesystem=filesystem) as file:
            for batch in file.iter_batches(_BATCH_ROWS):
                # Another program may have written the file, with views of strings for instance.
                yield batch if batch.schema.equals(schema) else batch.cast(schema)


def _sorted(rows: Iterator[pa.RecordBatch], schema: pa.Schema, column: str) -> Iterator[pa.RecordBatch]:
    table = pa.Table.from_batches(rows, schema)
    yield from table.sort_by(column).to_batches(_BATCH_ROWS)
