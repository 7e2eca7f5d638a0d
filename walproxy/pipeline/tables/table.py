"""The interface of a table, for every format.

Tasks write files into a place that no reader looks at, or that readers pass over until the files are committed; one
process commits them. `commit` is atomic and durable when it returns. It takes the name of the `writer` and the number
of the batch; a writer's numbers rise. What was committed last is part of the table itself, in the same atomic step as
the rows, so that a batch which comes again after a crash is recognised. A writer whose batches continue each other
names the last one too (`After`): two processes that write under one name cannot add the same rows twice.

Writers of different names may commit to one table at once, from several processes or machines.
"""

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import pyarrow as pa

from safekeeper.base.errors import ConfigurationError, StorageFailed
from walproxy.pipeline.choices import TableFormat
from walproxy.pipeline.tables.compaction import (
    TARGET_BYTES,
    Compaction,
    Replacement,
    compact,
    merge,
    order_column,
    outcome_of,
)
from walproxy.pipeline.tables.disk import storage_errors
from walproxy.pipeline.tables.parquet_files import DataFile, Footer, LiveFile, NewFile, read_footer, schema_difference
from walproxy.pipeline.tables.position import TableMoved, require_position

if TYPE_CHECKING:
    import pyarrow.dataset as ds

COMMIT_ATTEMPTS: Final = 50
"""Attempts of a commit, if other writers are faster each time."""

_STEM: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class CheckedFile(NamedTuple):
    """A file that is about to be committed, with its footer's content."""

    path: Path
    footer: Footer


class After(NamedTuple):
    """What a writer believes to be its last batch in a table.

    Attributes:
        batch: its number; None if the table has none of this writer.
        show: how a message prints a number.
    """

    batch: int | None
    show: Callable[[int], str] = str


class Batch(NamedTuple):
    """A batch that is to be committed.

    Attributes:
        after: the batch that it continues; None if that does not matter.
    """

    writer: str
    number: int
    after: After | None = None

    def is_in(self, last: int | None, table: object) -> bool:
        """Return whether a table has this batch, by the number of the writer's last batch in it.

        Raises:
            TableMoved: it has not, and another process has committed a batch that this one does not know.
        """
        if last == self.number or (self.after is None and last is not None and last > self.number):
            return True
        if self.after is not None:
            expected, found = (
                self.after.show(number) if number is not None else None for number in (self.after.batch, last)
            )
            require_position(table, expected, found)
        return False


class Removal(NamedTuple):
    """The files that were removed, or would be.

    Attributes:
        versions: how many former states of the table can no longer be read.
    """

    files: int = 0
    bytes: int = 0
    versions: int = 0

    def plus(self, other: "Removal") -> "Removal":
        """Return the sum of both."""
        return Removal(*(mine + its for mine, its in zip(self, other, strict=True)))


class Table(ABC):
    """One table. Not thread-safe; any number of processes may open it.

    Attributes:
        folder: absolute.
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
        """Return where a task writes a file; it can be sent to the task.

        Raises:
            ConfigurationError: no file's name can begin with `stem`.
        """
        if _STEM.fullmatch(stem) is None:
            raise ConfigurationError(f"the name of a table's file cannot begin with {stem!r}")
        return NewFile(str(self._new_files), stem, self.schema, self._suffix)

    @classmethod
    @abstractmethod
    def check_schema(cls, schema: pa.Schema) -> None:
        """See that the format has a type for each column.

        Raises:
            ConfigurationError: it has not.
        """

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
        after: After | None = None,
    ) -> bool:
        """Add the rows of the files to the table, all or none, durably.

        Args:
            writer: who writes; None for rows that are added once and never again.
            batch: the number of the batch; the writer's numbers rise. None exactly if there is no writer.
            files: from `new_file` of this table. A batch may have none.
            properties: kept in the table's log with the batch.
            after: the writer's last batch, which this one continues; None for any one.

        Returns:
            False: this batch of this writer is in already, or, without `after`, a later one. Then the files are
            removed.

        Raises:
            ConfigurationError: a file has other columns than the table. Nothing is written; the files stay.
            TableMoved: the table has another last batch than `after`. Nothing is written; the files are removed.
            StorageFull, StorageFailed: see there. `last_batch` shows whether the batch is in.
        """
        if (writer is None) != (batch is None):
            raise ConfigurationError("a batch has a number exactly if it has a writer")
        named = Batch(writer, batch, after) if writer is not None and batch is not None else None
        with storage_errors(f"commit to the table {self.folder}"):
            try:
                done = self._committed(named, files, dict(properties or {}))
            except TableMoved:
                self.discard(files)
                raise
            return done or self._passed_over(files)

    def _committed(self, batch: Batch | None, files: Sequence[DataFile], properties: dict[str, str]) -> bool:
        if batch is not None and self._is_in(batch):
            return False
        checked = [self._checked(file) for file in files]
        for _ in range(COMMIT_ATTEMPTS):
            outcome = self._append(batch, checked, properties)
            if outcome is not None:
                return outcome
        raise StorageFailed(
            f"could not commit to the table {self.folder}: other writers were faster {COMMIT_ATTEMPTS} times; reduce "
            "their number"
        )

    def _is_in(self, batch: Batch) -> bool:
        return batch.is_in(self.last_batch(batch.writer), self.folder)

    def _passed_over(self, files: Sequence[DataFile]) -> bool:
        self._settle()
        self.discard(files)
        return False

    @abstractmethod
    def _settle(self) -> None:
        """Put on disk what was committed by a process that may have been killed before it did so."""

    @abstractmethod
    def _append(self, batch: Batch | None, files: Sequence[CheckedFile], properties: dict[str, str]) -> bool | None:
        """Try to commit: True if it is done, False if the batch was in already, None if another commit was faster.

        Raises:
            TableMoved: see `Batch.is_in`.
        """

    def _checked(self, file: DataFile) -> CheckedFile:
        path = Path(file.path)
        if path.parent != self._new_files:
            raise ConfigurationError(
                f"{path} is not a new file of the table {self.folder}: write to what new_file returns"
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

    def dataset(self) -> "ds.Dataset":
        """Return the table as it is now. A filter on columns with bounds opens only the files that can match."""
        from walproxy.pipeline.tables.dataset import LOCAL, dataset_of  # It imports pandas: longer than a short query.

        return dataset_of(self.live_files(), self.schema, LOCAL)

    def to_arrow(self, columns: Sequence[str] | None = None, filter: "ds.Expression | None" = None) -> pa.Table:
        """Return rows of the table as it is now, in no order."""
        names = list(columns) if columns is not None else None
        return self.dataset().to_table(columns=names, filter=filter)

    def compact(
        self,
        target_bytes: int = TARGET_BYTES,
        *,
        dry_run: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Compaction:
        """Put few large files in the place of many small ones. Commits go on meanwhile; readers see each row once.

        The small files stay until `expire`: a reader that has begun to read them can continue.

        Args:
            target_bytes: how large a file shall be; those of half that size are left alone.
            dry_run: only return what would be done.
            progress: called with (bytes done, bytes in all).

        Raises:
            StorageFull, StorageFailed.
        """
        column = order_column(self.schema)
        return compact(
            self.live_files(),
            target_bytes,
            column,
            lambda group: merge(group, self.new_file("compacted"), column),
            self._replaced,
            dry_run=dry_run,
            progress=progress,
        )

    def _replaced(self, replacements: Sequence[Replacement]) -> Compaction:
        """Make the new files part of the table in the place of the old ones, in one step."""
        with storage_errors(f"compact the table {self.folder}"):
            checked = [self._checked(each.new) for each in replacements]
            old = [file for each in replacements for file in each.old]
            for _ in range(COMMIT_ATTEMPTS):
                if {file.path for file in old} - {file.path for file in self.live_files()}:
                    break  # Another compaction was faster: then these rows are in its files.
                if self._replace(old, checked):
                    return outcome_of(replacements)
            self.discard([each.new for each in replacements])
            return Compaction()

    @abstractmethod
    def _replace(self, old: Sequence[LiveFile], new: Sequence[CheckedFile]) -> bool:
        """Put new files in the place of old ones, which were part of the table a moment ago.

        False: something else was committed meanwhile, nothing is done.
        """

    @abstractmethod
    def expire(self, keep_s: float, *, dry_run: bool = False) -> Removal:
        """Remove what only states of the table need that are older than `keep_s`, and old parts of its log.

        A reader that began longer ago than that may find its files gone.

        Raises:
            StorageFailed.
        """

    def remove_orphans(self, older_than_s: float, *, dry_run: bool = False) -> Removal:
        """Remove files that no commit ever named and that no process has written to for `older_than_s`.

        Tasks that were killed leave them. The age must exceed the time that the slowest batch takes.

        Raises:
            StorageFailed.
        """
        with storage_errors(f"clean the table {self.folder}"):
            return remove_files(self._orphans(older_than_s), dry_run=dry_run)

    @abstractmethod
    def _orphans(self, older_than_s: float) -> Iterable[Path]:
        """Yield the files that `remove_orphans` may remove."""

    def close(self) -> None:  # noqa: B027  most tables hold nothing open
        """Release what the table holds open. Closing twice is harmless."""

    def __enter__(self) -> "Table":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


def remove_files(paths: Iterable[Path], *, dry_run: bool = False) -> Removal:
    """Remove files; those that are gone already do not count. Raises OSError."""
    count, size = 0, 0
    for path in paths:
        try:
            bytes_ = path.stat().st_size
            if not dry_run:
                path.unlink()
        except FileNotFoundError:
            continue
        count, size = count + 1, size + bytes_
    return Removal(count, size)


def unused_since(path: Path, age_s: float) -> bool:
    """Return whether a file was last written more than `age_s` ago; False if it is gone. Raises OSError."""
    try:
        return path.stat().st_mtime < time.time() - age_s
    except FileNotFoundError:
        return False
