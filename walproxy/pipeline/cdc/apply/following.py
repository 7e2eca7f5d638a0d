"""The interface of a table that follows another, for every format. One process writes it.

Every change of it is one commit that holds rows and position, durable when the call returns. Readers see the table as
it was at some position. Rows are identified by the columns of the key, which are never null.

A second process that writes it does no harm: a merge names the position that it continues (rule X1), and is committed
only to a table that has it. A copy continues none: it is committed only to the version of the table that was there
while the job was the only one, as its file shows (job_file.py).

An object store may carry out a commit and not reply. Then the table is read again, and its position decides.
"""

import contextlib
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds

from safekeeper.base.errors import ArchiveError, StorageFailed, StorageFull, WalproxyError
from safekeeper.base.lsn import Lsn, format_lsn
from walproxy.pipeline.cdc.publication import TableName
from walproxy.pipeline.lake.dataset import filesystem_of
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.parquet_files import DataFile, first_line
from walproxy.pipeline.lake.position import require_position

SMALL_FILE_BYTES: Final = 16 << 20
SMALL_FILES_MAX: Final = 16
"""Number of small files that are merged into one; each merge leaves at least one."""

_FULL_BYTES: Final = 1 << 20
_SIGNS_OF_FULL: Final = ("os error 28", "os error 122", "disk is full")
"""ENOSPC and EDQUOT as delta-rs prints them, and SQLite's message."""

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")


class Position(NamedTuple):
    """Changes below it are in, by the LSN of their commit record and their number in the transaction."""

    lsn: Lsn
    sequence: int

    def __str__(self) -> str:
        return f"{format_lsn(self.lsn)}/{self.sequence}"


class Merge(NamedTuple):
    """The next state of a table.

    Attributes:
        truncated: first all rows go.
        upserts: new rows, in place of those that have the same key; without a key they are added.
        deleted: keys of rows that go.
    """

    truncated: bool
    upserts: pa.Table
    deleted: pa.Table


def no_check() -> None:
    """Do nothing: the caller knows that it is the only job."""


class FollowingTable(ABC):
    """A table that follows.

    Every method may raise StorageFailed or StorageFull, and ArchiveError if it is in an object store.

    Args:
        tables: where the tables are.

    Attributes:
        table: its name at the source.
        location: of the table.
    """

    def __init__(self, tables: LakeLocation, table: TableName) -> None:
        self.table = table
        self.location = tables.below(folder_name(table))

    @staticmethod
    def storable(data_type: pa.DataType) -> pa.DataType:
        """Return the type in which the format keeps values of a type."""
        return data_type

    @abstractmethod
    def position(self) -> Position | None:
        """Return the table's position, None if there is no table of ours."""

    @abstractmethod
    def is_foreign(self) -> bool:
        """Return whether there is a table that is none of ours."""

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Return the table's columns, all nullable."""

    @abstractmethod
    def replace(
        self,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        position: Position,
        *,
        require_only_job: Callable[[], None] = no_check,
    ) -> None:
        """Make the table, or give it other columns and rows, in one step.

        Args:
            require_only_job: called when the version is known that the commit follows. Raises TableMoved.

        Raises:
            TableMoved: another job has written to the table since.
        """

    @abstractmethod
    def file_schema(self, schema: pa.Schema, *, require_only_job: Callable[[], None] = no_check) -> pa.Schema:
        """Return the columns that files need which `replace_by_files` is to put in; Iceberg makes the table for it.

        Args:
            schema: the columns that the table is to have.
            require_only_job: called before the table is made. Raises TableMoved.

        Raises:
            StorageFailed: the format cannot have such columns.
        """

    @abstractmethod
    def takes_files(self, schema: pa.Schema) -> bool:
        """Return whether files with these columns can be put in as they are: the table has no others, if it exists."""

    @abstractmethod
    def replace_by_files(
        self,
        schema: pa.Schema,
        files: Sequence[DataFile],
        position: Position,
        *,
        require_only_job: Callable[[], None] = no_check,
    ) -> None:
        """Make the table of files that were written to its location, or give it these in place of its own, in one step.

        Args:
            schema: the columns of the table, of which `takes_files` is true.
            files: durable, with the columns that `file_schema` has returned.
            require_only_job: as for `replace`.

        Raises:
            TableMoved: another job has written to the table since.
            ConfigurationError: a file is missing.
        """

    @abstractmethod
    def live_files(self) -> set[str]:
        """Return the files of the table by their path within it; none if there is no table."""

    def _is_replaced(self, found: Position | None, position: Position, before: Position | None) -> bool:
        """Decide about a replacement that failed although the table has another version now.

        What a library reports of a commit that was faster differs; the version and the position do not.

        Args:
            found: the table's position now.
            position: that of the replacement.
            before: the table's position before it.

        Returns:
            True: only the reply was lost.

        Raises:
            TableMoved: another job has written to the table.
        """
        if found == position and self.location.folder is None:
            return True
        if found != position:
            require_position(self.location, before, found)
        return False

    @abstractmethod
    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        """Add columns that it has not; they are null in the rows that it has."""

    def widen(self, name: str, data_type: pa.DataType) -> bool:
        """Give a column a type that holds every value of the present one; False if the format cannot."""
        return False

    def merge(self, merge: Merge, key: Sequence[str], position: Position, *, expected: Position) -> None:
        """Put changes in.

        Args:
            expected: the table's position so far.

        Raises:
            TableMoved: it has another one: another job writes to it.
        """
        if merge.truncated:
            self.rewrite(merge.upserts.to_batches(), position, expected=expected)
        elif not key:
            self.append(merge.upserts.to_batches(), position, expected=expected)
        else:
            with self._continuing(position, expected):
                self._merge(merge.upserts, merge.deleted, key, position, expected)

    def append(self, batches: Iterable[pa.RecordBatch], position: Position, *, expected: Position) -> None:
        """Add rows.

        Args:
            batches: with the table's columns, in their order.
            expected: the table's position so far.

        Raises:
            TableMoved: it has another one: another job writes to it.
        """
        with self._continuing(position, expected):
            self._put(batches, position, expected, overwrites=False)

    def rewrite(self, batches: Iterable[pa.RecordBatch], position: Position, *, expected: Position) -> None:
        """Put other rows in place of all. Arguments and errors as those of `append`."""
        with self._continuing(position, expected):
            self._put(batches, position, expected, overwrites=True)

    @contextlib.contextmanager
    def _continuing(self, position: Position, expected: Position) -> Iterator[None]:
        """Decide about a commit that failed in the block. Raises TableMoved."""
        try:
            yield
        except (StorageFailed, ArchiveError):
            # What a library reports of a commit that was faster differs; the position does not.
            found = self.position()
            if found == position != expected and self.location.folder is None:
                return  # Only the reply was lost.
            if found not in (None, position):
                require_position(self.location, expected, found)
            raise

    @abstractmethod
    def _merge(
        self, upserts: pa.Table, deleted: pa.Table, key: Sequence[str], position: Position, expected: Position
    ) -> None:
        """Put changes in by key, provided that the table has the expected position when they are committed."""

    @abstractmethod
    def _put(
        self, batches: Iterable[pa.RecordBatch], position: Position, expected: Position, *, overwrites: bool
    ) -> None:
        """Add rows, or put them in place of all, provided that the table has the expected position then."""

    @abstractmethod
    def lookup(self, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        """Return these columns, and those of the key, of the rows that have one of the keys."""

    @abstractmethod
    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Return these columns of all rows, in this order, as the table is at the call."""

    @abstractmethod
    def dataset(self) -> ds.Dataset:
        """Return all rows as they are now, of which a reader gets the columns that it asks for."""

    def _dataset_of(self, sizes: Mapping[str, int], schema: pa.Schema) -> ds.Dataset:
        """Return the rows of files.

        Args:
            sizes: in bytes, by the path within the table.
        """
        filesystem = filesystem_of(self.location, sizes)
        return ds.dataset(list(sizes), schema=schema, format="parquet", filesystem=filesystem)

    @abstractmethod
    def tidy(self, keep: timedelta) -> None:
        """Forget versions that are older than `keep`, and remove files that are no longer needed."""

    @abstractmethod
    def to_arrow(self) -> pa.Table:
        """Return all rows."""

    def close(self) -> None:  # noqa: B027  some formats hold nothing open
        """Let go of what is held open."""


def folder_name(table: TableName) -> str:
    """Return the folder of a table: `schema.name`, with `~` and hexadecimal digits for what is unusual in a path."""
    return ".".join(safe_name(part) for part in table)


def safe_name(name: str) -> str:
    """Return a name made of letters, digits, `_`, `-` and `~`; different ones for different names."""
    return _UNSAFE.sub(lambda match: "".join(f"~{byte:02x}" for byte in match[0].encode()), name)


def key_filter(rows: pa.Table, keys: pa.Table, *, keep_matches: bool) -> pa.Table:
    """Return the rows whose key is among `keys`, or is not. `keys` has the columns of the key and nothing else."""
    names = keys.column_names
    number = unused_name("_row", names)
    numbered = rows.select(names).append_column(number, pa.array(range(rows.num_rows), pa.int64()))
    numbers = numbered.join(keys, names, join_type="left semi" if keep_matches else "left anti")[number]
    return rows.take(numbers.combine_chunks().sort())


def unused_name(name: str, names: Iterable[str]) -> str:
    """Return a name that no column has, whether case counts or not."""
    taken = {each.lower() for each in names}
    while name in taken:
        name += "_"
    return name


@contextlib.contextmanager
def library_errors(doing: str, folder: Path | None) -> Iterator[None]:
    """Turn what the library of a format raises in the block into one line: "could not `doing`: reason".

    Any exception counts: delta-rs raises some that have no class of their own. A table that its library does not take
    must not end the job of the others.

    Raises:
        StorageFull: the file system of the table has no space.
        StorageFailed: anything else.
    """
    try:
        yield
    except WalproxyError:
        raise
    except Exception as error:
        kind = StorageFull if folder is not None and _is_full(error, folder) else StorageFailed
        raise kind(f"could not {doing}: {first_line(error) or type(error).__name__}") from error


def _is_full(error: Exception, folder: Path) -> bool:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return any(sign in str(error) for sign in _SIGNS_OF_FULL) or shutil.disk_usage(existing).free < _FULL_BYTES
