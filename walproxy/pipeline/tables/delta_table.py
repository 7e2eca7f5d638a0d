"""A table in Delta Lake's format, written with delta-rs.

    NAME/*.parquet       data files, those of tasks that were killed included
    NAME/_delta_log/     the log: the table's truth

A commit is one entry of the log: files added, and a `txn` action that names the writer and the batch. Two
commits of one writer at once conflict by Delta's own rules; those of different writers follow each other. delta-rs
syncs nothing, so the log's files are synced here before a commit returns.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from safekeeper.base.errors import ConfigurationError, StorageFailed
from walproxy.pipeline.choices import TableFormat
from walproxy.pipeline.tables.delta_statistics import statistics_of
from walproxy.pipeline.tables.disk import storage_errors, sync_file, sync_folder
from walproxy.pipeline.tables.parquet_files import LiveFile, first_line, read_footer
from walproxy.pipeline.tables.table import Batch, CheckedFile, Removal, Table, remove_files, unused_since

_PREFIX: Final = "walproxy."
_MILLISECONDS: Final = 1000
_READ_ATTEMPTS: Final = 5
_Answer = TypeVar("_Answer")
_WRITTEN_BACK_S: Final = 3600
"""After that time the operating system has written a file back by itself; it takes half a minute."""


class DeltaLakeTable(Table):
    """A table in Delta Lake's format."""

    format: ClassVar[TableFormat] = "delta"

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        super().__init__(folder, schema)
        self._opened: DeltaTable | None = None

    @property
    def _new_files(self) -> Path:
        return self.folder

    @property
    def _delta_log(self) -> Path:
        return self.folder / "_delta_log"

    @classmethod
    def check_schema(cls, schema: pa.Schema) -> None:
        try:
            Schema.from_arrow(schema)
        except Exception as error:  # That is the class that delta-rs raises.
            raise ConfigurationError(f"Delta cannot have such a column: {first_line(error)}") from error

    def prepare(self) -> None:
        try:
            if DeltaTable.is_deltatable(str(self.folder)):
                return
            DeltaTable.create(str(self.folder), Schema.from_arrow(self.schema), mode="ignore", name=self.name)
        except DeltaError as error:
            raise self._failure("make", error) from error
        with storage_errors(f"create the table {self.folder}"):
            self._sync_log(0)
            sync_folder(self.folder)

    def last_batch(self, writer: str) -> int | None:
        return self._read(lambda table: table.transaction_version(writer))

    def _append(self, batch: Batch | None, files: Sequence[CheckedFile], properties: dict[str, str]) -> bool | None:
        table, last = self._read(lambda table: (table, table.transaction_version(batch.writer) if batch else None))
        if batch is not None and batch.is_in(last, self.folder):
            return False
        sync_folder(self.folder)
        now_ms = int(time.time() * _MILLISECONDS)
        actions = [
            AddAction(path.name, footer.bytes, {}, now_ms, True, statistics_of(footer)) for path, footer in files
        ]
        metadata = {f"{_PREFIX}{name}": value for name, value in properties.items()}
        transactions = []
        if batch is not None:
            metadata |= {f"{_PREFIX}writer": batch.writer, f"{_PREFIX}batch": str(batch.number)}
            transactions.append(Transaction(batch.writer, batch.number, now_ms))
        return self._commit_actions(table, actions, CommitProperties(metadata, 0, transactions))

    def _commit_actions(self, table: DeltaTable, actions: list[Any], properties: CommitProperties) -> bool | None:
        """Commit at the version after the one that was read; None if another writer was faster."""
        before = table.version()
        try:
            table.create_write_transaction(
                actions,
                "append",
                Schema.from_arrow(self.schema),
                commit_properties=properties,
                # Old entries are removed by `expire` only: two that remove the same ones disturb each other.
                post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
            )
        except CommitFailedError:
            self._opened = None
            return None
        except (DeltaError, FileNotFoundError) as error:
            # Perhaps what it had to look at was removed from the log meanwhile: then the log has gone on.
            self._opened = None
            if self._read(DeltaTable.version) == before:
                raise self._failure("commit to", error) from error
            return None
        self._sync_log(before + 1)
        return True

    def _replace(self, old: Sequence[LiveFile], new: Sequence[CheckedFile]) -> bool:
        table, live = self._read(lambda table: (table, self._live(table)))
        current = {file.path for file in live}
        if any(file.path not in current for file in old):
            return False
        sync_folder(self.folder)
        now_ms = int(time.time() * _MILLISECONDS)
        removed = [RemoveAction(Path(file.path).name, False, now_ms, file.bytes, {}) for file in old]
        added = [AddAction(path.name, footer.bytes, {}, now_ms, False, statistics_of(footer)) for path, footer in new]
        properties = CommitProperties({f"{_PREFIX}operation": "compact"}, 0)
        return self._commit_actions(table, [*removed, *added], properties) is True

    def expire(self, keep_s: float, *, dry_run: bool = False) -> Removal:
        retention = f"interval {math.ceil(keep_s)} seconds"
        wanted = {"delta.logRetentionDuration": retention, "delta.deletedFileRetentionDuration": retention}
        with storage_errors(f"remove old states of the table {self.folder}"):
            try:
                removed = remove_files(self._dead_files(keep_s, full=False), dry_run=dry_run)
                entries = self._log_entries()
                if dry_run:
                    gone = [path for path in entries if unused_since(path, keep_s)]
                else:
                    self._clean_log(wanted)
                    gone = [path for path in entries if not path.exists()]
            except DeltaError as error:
                self._opened = None
                raise self._failure("remove old states of", error) from error
            return removed.plus(Removal(len(gone), sum(entries[path] for path in gone), len(gone)))

    def _clean_log(self, wanted: dict[str, str]) -> None:
        """Write a checkpoint, and remove entries of the log that are below it and old enough by these properties."""
        table = self._refreshed()
        if {name: table.metadata().configuration.get(name) for name in wanted} != wanted:
            table.alter.set_table_properties(wanted)
        table = self._refreshed()
        with contextlib.suppress(FileNotFoundError):  # Another process removes them, too.
            table.create_checkpoint()
            self._sync_log(table.version())
            table.cleanup_metadata()

    def _orphans(self, older_than_s: float) -> Iterator[Path]:
        former = set(self._dead_files(older_than_s, full=False))
        for path in self._dead_files(older_than_s, full=True):
            if path not in former and unused_since(path, older_than_s):
                yield path

    def _dead_files(self, age_s: float, *, full: bool) -> list[Path]:
        """Return files that have not been part of the table for that time; `full`: also those that never were."""
        hours = math.ceil(age_s / 3600)
        names = self._read(lambda table: table.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=full))
        return [self.folder / name for name in names]

    def _log_entries(self) -> dict[Path, int]:
        """Return the entries of the log with their sizes."""
        sizes = {}
        for path in self._delta_log.glob("*.json"):
            with contextlib.suppress(FileNotFoundError):
                sizes[path] = path.stat().st_size
        return sizes

    def live_files(self) -> list[LiveFile]:
        return self._read(self._live)

    def _live(self, table: DeltaTable) -> list[LiveFile]:
        if (
            "deletionVectors" in (table.protocol().reader_features or ())
            and table.deletion_vectors().read_all().num_rows
        ):
            raise ConfigurationError(
                f"another program deleted rows of the Delta table {self.folder}: read it with that program"
            )
        files = []
        for action in add_actions(table):
            path, rows = str(self.folder / action["path"]), action["num_records"]
            if rows is None:  # Another program added it.
                rows = read_footer(path).rows
            files.append(LiveFile(path, rows, action["size_bytes"], bounds_of(action)))
        return files

    def _read(self, read: Callable[[DeltaTable], _Answer]) -> _Answer:
        """Read the table as it is now. The log may be shortened meanwhile; then it is opened and read again."""
        for attempt in range(1, _READ_ATTEMPTS + 1):
            try:
                return read(self._refreshed())
            except (DeltaError, FileNotFoundError) as error:
                self._opened = None
                if attempt == _READ_ATTEMPTS:
                    raise self._failure("read", error) from error
        raise AssertionError("the last attempt returns or raises above")

    def _refreshed(self) -> DeltaTable:
        if self._opened is None:
            self._opened = DeltaTable(str(self.folder))
        else:
            self._opened.update_incremental()
        return self._opened

    def _sync_log(self, version: int) -> None:
        """Put on disk what a commit of this version may have written. Raises OSError."""
        for path in (
            self._delta_log / f"{version:020d}.json",
            self._delta_log / f"{version:020d}.checkpoint.parquet",
            self._delta_log / "_last_checkpoint",
        ):
            with contextlib.suppress(FileNotFoundError):
                sync_file(path)
        sync_folder(self._delta_log)

    def _settle(self) -> None:
        for path in self._delta_log.iterdir():
            if not unused_since(path, _WRITTEN_BACK_S):
                with contextlib.suppress(FileNotFoundError):
                    sync_file(path)
        sync_folder(self._delta_log)

    def _failure(self, verb: str, error: Exception) -> StorageFailed:
        return StorageFailed(f"could not {verb} the table {self.folder}: {first_line(error)}")


def add_actions(table: DeltaTable) -> list[dict[str, Any]]:
    """Return the files of a table as its log states them, with their bounds as `min.NAME` and `max.NAME`."""
    # pyarrow.table would import pandas, if it is installed, to see whether this is one of its frames: 0.3 s.
    return pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all().to_pylist()


def bounds_of(action: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Return the bounds of 64-bit integers that an add action states."""
    bounds = {}
    for key, low in action.items():
        if key.startswith("min.") and isinstance(low, int) and not isinstance(low, bool):
            name = key.removeprefix("min.")
            high = action.get(f"max.{name}")
            if isinstance(high, int):
                bounds[name] = low, high
    return bounds
