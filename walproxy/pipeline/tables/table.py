"""What a table can do, whatever its format.

Tasks write files into a place that no reader looks at, or that readers pass over until the files are committed; one
process commits them. `commit` is atomic and durable when it returns. It is told who commits (`writer`) and the number
of the batch; a writer's numbers rise. What was committed last is part of the table itself, in the same atomic step as
the rows, so that a batch which comes again after a crash is recognised.

Writers of different names may commit to one table at once, from several processes or machines.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs

from safekeeper.errors import ConfigurationError, StorageFailed
from walproxy.pipeline.tables.disk import storage_errors
from walproxy.pipeline.tables.parquet_files import DataFile, Footer, NewFile, read_footer, schema_difference
from walproxy.pipeline.tables.table_folder import TableFormat

COMMIT_ATTEMPTS: Final = 50
"""How often a commit is tried again because other writers were faster each time."""


class LiveFile(NamedTuple):
    """A file of the table as it is now.

    Attributes:
        path: absolute.
        bounds: the least and the greatest value of columns of 64-bit integers, where known.
    """

    path: str
    rows: int
    bytes: int
    bounds: dict[str, tuple[int, int]]


class CheckedFile(NamedTuple):
    """A file that is about to be committed, with what its footer says."""

    path: Path
    footer: Footer


class Table(ABC):
    """One table. Not thread-safe; any number of processes may open it.

    Attributes:
        folder: where it lies, absolute.
        name: the last part of that.
        schema: of its rows.
    """

    format: ClassVar[TableFormat]
    _suffix: ClassVar[str] = ".parquet"

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self.folder = folder
        self.name = folder.name
        self.schema = schema

    def new_file(self, stem: str = "part") -> NewFile:
        """Return where a task writes a file; it can be sent to the task."""
        return NewFile(str(self._new_files), stem, self.schema, self._suffix)

    @abstractmethod
    def prepare(self) -> None:
        """Make what is missing of a table that has an identity; `open_table` does it.

        Raises:
            StorageFull, StorageFailed.
        """

    @property
    @abstractmethod
    def _new_files(self) -> Path:
        """The folder of files that are being written."""

    @abstractmethod
    def last_batch(self, writer: str) -> int | None:
        """Return the number of the writer's last batch that is in the table, None if there is none.

        Raises:
            StorageFailed: the table's metadata cannot be read.
        """

    def commit(
        self,
        writer: str | None,
        batch: int | None,
        files: Sequence[DataFile],
        properties: Mapping[str, str] | None = None,
    ) -> bool:
        """Add the rows of the files to the table, all or none, durably.

        Args:
            writer: who writes; None for rows that are added once and never again.
            batch: the number of the batch; the writer's numbers rise. None exactly if there is no writer.
            files: from `new_file` of this table. A batch may have none.
            properties: kept in the table's log with the batch.

        Returns:
            False: this batch of this writer is in already, or a later one. Then the files are removed.

        Raises:
            ConfigurationError: a file has other columns than the table. Nothing is written; the files stay.
            StorageFull, StorageFailed: as they say. Whether the batch is in is told by `last_batch`.
        """
        if (writer is None) != (batch is None):
            raise ConfigurationError("a batch has a number exactly if it has a writer")
        with storage_errors(f"commit to the table {self.folder}"):
            if writer is not None and batch is not None and self._is_in(writer, batch):
                self.discard(files)
                return False
            checked = [self._checked(file) for file in files]
            for _ in range(COMMIT_ATTEMPTS):
                outcome = self._append(writer, batch, checked, dict(properties or {}))
                if outcome is not None:
                    break
            else:
                raise StorageFailed(
                    f"could not commit to the table {self.folder}: other writers were faster {COMMIT_ATTEMPTS} times; "
                    "let fewer write to it"
                )
            if not outcome:
                self.discard(files)
            return outcome

    def _is_in(self, writer: str, batch: int) -> bool:
        last = self.last_batch(writer)
        return last is not None and batch <= last

    @abstractmethod
    def _append(
        self, writer: str | None, batch: int | None, files: Sequence[CheckedFile], properties: dict[str, str]
    ) -> bool | None:
        """Try to commit: True if it is done, False if the batch was in already, None if another commit was faster."""

    def _checked(self, file: DataFile) -> CheckedFile:
        path = Path(file.path)
        if path.parent != self._new_files:
            raise ConfigurationError(
                f"{path} is no new file of the table {self.folder}: write to what new_file returns"
            )
        footer = read_footer(file.path)
        difference = schema_difference(self.schema, footer.schema)
        if difference is not None:
            raise ConfigurationError(f"{path} does not fit the table {self.folder}: {difference}")
        if (footer.rows, footer.bytes) != (file.rows, file.bytes):
            raise ConfigurationError(
                f"{path} has {footer.rows} rows and {footer.bytes} bytes, its task wrote {file.rows} and {file.bytes}: "
                "write it again"
            )
        return CheckedFile(path, footer)

    def discard(self, files: Sequence[DataFile]) -> None:
        """Remove files that are not to be committed; those that are part of the table are left.

        Raises:
            StorageFailed.
        """
        with storage_errors(f"remove files of the table {self.folder}"):
            paths = {file.path for file in files if Path(file.path).exists()}
            if not paths:
                return
            for path in paths - {file.path for file in self.live_files()}:
                Path(path).unlink(missing_ok=True)

    @abstractmethod
    def live_files(self) -> list[LiveFile]:
        """Return the files that make up the table now: each row once, of whole batches only.

        Raises:
            StorageFailed: the table's metadata cannot be read.
        """

    def dataset(self) -> ds.Dataset:
        """Return the table as it is now. A filter on columns with bounds opens only the files that can match."""
        files = self.live_files()
        return ds.FileSystemDataset.from_paths(
            [file.path for file in files],
            schema=self.schema,
            format=ds.ParquetFileFormat(),
            filesystem=pyarrow.fs.LocalFileSystem(),
            partitions=[_guarantee(file) for file in files],
        )

    def to_arrow(self, columns: Sequence[str] | None = None, filter: ds.Expression | None = None) -> pa.Table:
        """Return rows of the table as it is now, in no order."""
        names = list(columns) if columns is not None else None
        return self.dataset().to_table(columns=names, filter=filter)

    def close(self) -> None:  # noqa: B027  most tables hold nothing open
        """Release what the table holds open. Closing twice is harmless."""

    def __enter__(self) -> "Table":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


def _guarantee(file: LiveFile) -> ds.Expression:
    bounds = [(ds.field(name) >= low) & (ds.field(name) <= high) for name, (low, high) in file.bounds.items()]
    return list(itertools.accumulate(bounds, lambda left, right: left & right))[-1] if bounds else ds.scalar(True)
