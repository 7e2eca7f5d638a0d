"""The interface of a table in a folder or an object store, written once for every format.

Tasks write files (`new_file`), one process commits them (`commit`) under the name of a writer and the number of a
batch. What was committed last is part of the table, changed in the same atomic step as the rows, so that a batch which
comes again after a crash is recognised: its files are removed, and no row comes twice. Writers of different names may
commit to one table at once, from several processes or machines.

A format has two primitives: `_load` returns one version of the table, and `_commit` makes the next one from it, or does
nothing if anything else was committed meanwhile. What a version says and what is committed against it belong together,
so that no lock is needed:

- A commit names the position that its writer believes the table has (rule X1, `position.py`).
- After a commit whose outcome is unclear (no reply, or a refusal of a repeated request) the table is read again, and
  its position decides.
- Files are stored before the commit that names them, under names that no file had, and removed only if no version names
  them.
"""

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NamedTuple, Self, TypeVar

import pyarrow as pa

from safekeeper.archive.objects import ObjectInfo
from safekeeper.base.errors import ConfigurationError, StorageFailed
from walproxy.pipeline.choices import TableFormat
from walproxy.pipeline.lake.compaction import (
    TARGET_BYTES,
    Compaction,
    Replacement,
    compact,
    merge,
    order_column,
    outcome_of,
)
from walproxy.pipeline.lake.disk import storage_errors, sync_folder
from walproxy.pipeline.lake.errors import lake_errors
from walproxy.pipeline.lake.files import NewLakeFile, read_end_of
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.parquet_files import DataFile, Footer, LiveFile, schema_difference
from walproxy.pipeline.lake.position import After, Batch, TableMoved

if TYPE_CHECKING:
    import pyarrow.dataset as ds  # It imports pandas: that takes longer than a short query.
    import pyarrow.fs

COMMIT_ATTEMPTS: Final = 50
"""Attempts of a commit, if other writers are faster each time."""

_NAME_PARTS: Final = "/\\"
_STEM: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class StoredFile(NamedTuple):
    """A file that is about to be committed, with its footer's content.

    Attributes:
        key: within the table.
        end: of the file, at least the footer.
    """

    key: str
    footer: Footer
    end: bytes


class RemovedFiles(NamedTuple):
    """The files that were removed, or would be.

    Attributes:
        versions: how many former states of the table can no longer be read.
    """

    files: int = 0
    bytes: int = 0
    versions: int = 0

    def plus(self, other: "RemovedFiles") -> "RemovedFiles":
        """Return the sum of both."""
        return RemovedFiles(*(mine + its for mine, its in zip(self, other, strict=True)))


class Version(ABC):
    """One version of a table."""

    @abstractmethod
    def last_batch(self, writer: str) -> int | None:
        """Return the number of the writer's last batch, None if there is none."""

    @abstractmethod
    def live_files(self) -> list[LiveFile]:
        """Return the files that make up the table; their paths are keys within it."""


VersionT = TypeVar("VersionT", bound=Version)


class LakeTable(ABC, Generic[VersionT]):
    """One table. Not thread-safe; any number of processes on any number of machines may open it.

    Every method may raise ArchiveUnavailable if the object store does not reply, ArchiveRefused if an operator must
    correct something there, and StorageFailed if the table cannot be read or written.

    Attributes:
        location: of the table.
        name: the last part of that.
        schema: of its rows.
    """

    format: ClassVar[TableFormat]

    def __init__(self, location: LakeLocation, schema: pa.Schema) -> None:
        self.location = location
        self.name = location.name
        self.schema = schema

    @abstractmethod
    def _load(self) -> VersionT:
        """Return the newest version."""

    @abstractmethod
    def _commit(
        self,
        version: VersionT,
        batch: Batch | None,
        files: Sequence[StoredFile],
        properties: Mapping[str, str],
        removed: Sequence[LiveFile] = (),
    ) -> bool:
        """Make the next version: `version` with these files and this batch; it is durable.

        Args:
            removed: files of `version` that are not part of the next one, because `files` have their rows.

        Returns:
            False: there is a newer version by now, which may even be this one.
        """

    @property
    @abstractmethod
    def is_ours(self) -> bool:
        """Whether walproxy has made the table, for rows that are only added."""

    def dataset(self) -> "ds.Dataset":
        """Return the newest version. A filter on columns with bounds opens only the files that can match."""
        from walproxy.pipeline.lake.dataset import dataset_of

        # delta-rs' own dataset would pass over files of other programs whose log lacks limits of a column.
        files = self.live_files()
        return dataset_of(files, self.schema, self._filesystem(files))

    def _filesystem(self, files: Sequence[LiveFile]) -> "pyarrow.fs.FileSystem":
        from walproxy.pipeline.lake.dataset import filesystem_of

        return filesystem_of(self.location, {file.path: file.bytes for file in files})

    def new_file(self, stem: str = "part") -> NewLakeFile:
        """Return where a task writes a file; it can be sent to the task.

        Raises:
            ConfigurationError: no file's name can begin with `stem`.
        """
        if _STEM.fullmatch(stem) is None:
            raise ConfigurationError(f"the name of a table's file cannot begin with {stem!r}")
        return NewLakeFile(self.location, stem, self.schema)

    def last_batch(self, writer: str) -> int | None:
        """Return the number of the writer's last batch that is in the table, None if there is none."""
        return self._load().last_batch(writer)

    def live_files(self) -> list[LiveFile]:
        """Return the files that make up the newest version."""
        return self._load().live_files()

    def to_arrow(self, columns: Sequence[str] | None = None, filter: "ds.Expression | None" = None) -> pa.Table:
        """Return rows of the newest version, in no order."""
        names = list(columns) if columns is not None else self.schema.names
        schema = pa.schema([self.schema.field(name) for name in names])
        return self.dataset().to_table(columns=names, filter=filter).cast(schema)

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
        """
        if (writer is None) != (batch is None):
            raise ConfigurationError("a batch has a number exactly if it has a writer")
        named = Batch(writer, batch, after) if writer is not None and batch is not None else None
        checked: list[StoredFile] | None = None
        for _ in range(COMMIT_ATTEMPTS):
            version = self._load()
            try:
                is_in = named is not None and named.is_in(version.last_batch(named.writer), self.location)
            except TableMoved:
                self.discard(files)
                raise
            if is_in:
                self.discard(files)
                return False
            if checked is None:
                checked = [self._checked(file) for file in files]
                self._sync_names()
            if self._commit(version, named, checked, properties or {}):
                return True
        raise StorageFailed(
            f"could not commit to the table {self.location}: other writers were faster {COMMIT_ATTEMPTS} times; "
            "reduce their number"
        )

    def _checked(self, file: DataFile) -> StoredFile:
        if set(file.path) & set(_NAME_PARTS):
            raise ConfigurationError(
                f"{file.path} is not a new file of the table {self.location}: write to what new_file returns"
            )
        footer, end = read_end_of(self.location.store(), file)
        difference = schema_difference(self.schema, footer.schema)
        if difference is not None:
            raise ConfigurationError(f"{file.path} does not fit the table {self.location}: {difference}")
        if footer.rows != file.rows:
            raise ConfigurationError(f"{file.path} has {footer.rows} rows, its task wrote {file.rows}: write it again")
        return StoredFile(file.path, footer, end)

    def _sync_names(self) -> None:
        """Put the names of new files on disk, if the table is in a folder: those who wrote them have not."""
        if self.location.folder is not None:
            with storage_errors(f"sync the table {self.location}"):
                sync_folder(self.location.folder)

    def discard(self, files: Sequence[DataFile]) -> None:
        """Remove files that are not to be committed; those that are part of the table are left."""
        if files:
            live = {file.path for file in self.live_files()}
            self.location.store().delete(file.path for file in files if file.path not in live)

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
        """
        files = self.live_files()
        column = order_column(self.schema)
        filesystem = self._filesystem(files)
        with lake_errors(f"compact the table {self.location}", self.location):
            return compact(
                files,
                target_bytes,
                column,
                lambda group: merge(group, self.new_file("compacted"), column, filesystem),
                self._replaced,
                dry_run=dry_run,
                progress=progress,
            )

    def _replaced(self, replacements: Sequence[Replacement]) -> Compaction:
        """Make the new files part of the table in the place of the old ones, in one step."""
        checked = [self._checked(each.new) for each in replacements]
        self._sync_names()
        old = [file for each in replacements for file in each.old]
        for _ in range(COMMIT_ATTEMPTS):
            version = self._load()
            if {file.path for file in old} - {file.path for file in version.live_files()}:
                break  # Another compaction was faster: then these rows are in its files.
            if self._commit(version, None, checked, {"operation": "compact"}, old):
                return outcome_of(replacements)
        self.discard([each.new for each in replacements])
        return Compaction()

    @abstractmethod
    def expire(self, keep_s: float, *, dry_run: bool = False) -> RemovedFiles:
        """Remove what only versions need that are older than `keep_s`, and old parts of the log.

        A reader that began longer ago than that may find its files gone.
        """

    def remove_orphans(self, older_than_s: float, *, dry_run: bool = False) -> RemovedFiles:
        """Remove files that no version names and that were stored more than `older_than_s` ago.

        Tasks that were killed leave them. The age must exceed the time that the slowest batch takes.
        """
        # First list the existing files, then the needed ones: a commit in between only adds needed ones.
        limit_s = time.time() - older_than_s
        old = [info for info in self.location.store().list() if info.modified < limit_s]
        return self._removed(self._orphans(old), dry_run=dry_run)

    @abstractmethod
    def _orphans(self, stored: Sequence[ObjectInfo]) -> list[ObjectInfo]:
        """Return those of the objects that no version of the table, and no part of its log, needs."""

    def _removed(self, objects: Sequence[ObjectInfo], versions: int = 0, *, dry_run: bool) -> RemovedFiles:
        """Remove objects of the table; return what that is."""
        if not dry_run:
            self.location.store().delete(info.key for info in objects)
        return RemovedFiles(len(objects), sum(info.size for info in objects), versions)

    def close(self) -> None:
        """Release what the table holds open. Closing twice is harmless."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()
