"""The two primitives of a table in Delta Lake's format, by delta-rs.

    NAME/*.parquet       data files, those of tasks that were killed included
    NAME/_delta_log/     the log: the table's truth

A version is an entry of the log; delta-rs creates it by a put that must not replace anything (If-None-Match), so that
one of two commits fails. In a folder it is a link; delta-rs syncs nothing there, so that is done here.

The table's description marks it as ours: delta-rs takes no property of its own for a new table.
"""

import contextlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from safekeeper.archive.objects import ObjectInfo
from safekeeper.base.errors import ConfigurationError
from walproxy.pipeline.choices import TableFormat
from walproxy.pipeline.lake.disk import storage_errors, sync_file, sync_folder
from walproxy.pipeline.lake.errors import lake_error, lake_errors
from walproxy.pipeline.lake.files import read_footer_of
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.parquet_files import DataFile, Footer, LiveFile, first_line, normal_schema
from walproxy.pipeline.lake.position import Batch
from walproxy.pipeline.lake.table import LakeTable, RemovedFiles, StoredFile, Version

_TEXT_MAX: Final = 32
_GREATEST: Final = "\U0010ffff"


def statistics_of(footer: Footer) -> str:
    """Return a file's statistics."""
    limits = {}
    for field in footer.schema:
        if field.name in footer.limits:
            low, high = footer.limits[field.name]
            limits[field.name] = _noted(low, is_low=True), _noted(high, is_low=False)
        elif pa.types.is_string(field.type) and footer.nulls.get(field.name) != footer.rows:
            limits[field.name] = "", _GREATEST  # Parquet has no limits of texts of kilobytes.
    known = {name: both for name, both in limits.items() if None not in both}
    return json.dumps(
        {
            "numRecords": footer.rows,
            "minValues": {name: low for name, (low, _) in known.items()},
            "maxValues": {name: high for name, (_, high) in known.items()},
            "nullCount": footer.nulls,
        }
    )


def _noted(value: Any, *, is_low: bool) -> Any:
    """Return a limit in the log's notation, None if it has none."""
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        cut = value[:_TEXT_MAX]
        return cut if is_low or cut == value else cut + _GREATEST
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return None
        # Milliseconds; readers add one to the upper limit.
        utc = value.astimezone(UTC)
        return f"{utc:%Y-%m-%dT%H:%M:%S}.{utc.microsecond // 1000:03d}Z"
    return value.isoformat() if isinstance(value, date) else None


_OURS: Final = "WAL as tables, written by walproxy"
_PREFIX: Final = "walproxy."
LOG: Final = "_delta_log"
_READ_ATTEMPTS: Final = 5


class DeltaVersion(Version):
    """A version of a Delta table, until the table is loaded again.

    Attributes:
        table: delta-rs's.
        number: of the version.
    """

    def __init__(self, table: DeltaTable, location: LakeLocation) -> None:
        self.table = table
        self.number = table.version()
        self._location = location

    def last_batch(self, writer: str) -> int | None:
        return self.table.transaction_version(writer)

    def live_files(self) -> list[LiveFile]:
        with lake_errors(f"read the table {self._location}", self._location):
            if self._has_deleted_rows():
                raise ConfigurationError(
                    f"another program deleted rows of the Delta table {self._location}: read it with that program"
                )
            files = []
            for action in add_actions(self.table):
                path, rows, size = action["path"], action["num_records"], action["size_bytes"]
                if rows is None:  # Another program added it.
                    rows = read_footer_of(self._location.store(), DataFile(path, 0, size)).rows
                files.append(LiveFile(path, rows, size, bounds_of(action)))
            return files

    def _has_deleted_rows(self) -> bool:
        has_vectors = "deletionVectors" in (self.table.protocol().reader_features or ())
        return has_vectors and self.table.deletion_vectors().read_all().num_rows > 0


class DeltaLake(LakeTable[DeltaVersion]):
    """A table in Delta Lake's format. Made by `open`."""

    format: ClassVar[TableFormat] = "delta"

    def __init__(self, location: LakeLocation, schema: pa.Schema, opened: DeltaTable) -> None:
        super().__init__(location, schema)
        self._opened: DeltaTable | None = opened

    @classmethod
    def open(cls, location: LakeLocation, schema: pa.Schema | None = None) -> "DeltaLake | None":
        """Return the table of a location, None if it has none.

        Args:
            schema: make the table if it is not there, with these columns.

        Raises:
            ConfigurationError: Delta has no type for a column.
            ArchiveError, StorageFailed: see LakeTable.
        """
        found = _found(location)
        if found is None and schema is not None:
            found = _made(location, schema)
        if found is None:
            return None
        table = cls(location, normal_schema(pa.schema(found.schema().to_arrow())), found)
        if schema is not None:
            table._sync(found.version())  # Its writer may have been killed before it did so.
        return table

    @property
    def is_ours(self) -> bool:
        return self._load().table.metadata().description == _OURS

    def _load(self) -> DeltaVersion:
        opened, self._opened = self._opened, None
        with lake_errors(f"read the table {self.location}", self.location):
            if opened is not None:
                try:
                    opened.update_incremental()
                except (DeltaError, OSError):
                    opened = None  # The log may have been shortened: it is opened again.
            if opened is None:
                opened = self._open_again()
            self._opened = opened
            return DeltaVersion(opened, self.location)

    def _open_again(self) -> DeltaTable:
        """Open the table. In a folder the log may be shortened while delta-rs reads it; then it is read again."""
        for _ in range(_READ_ATTEMPTS - 1 if self.location.folder is not None else 0):
            with contextlib.suppress(DeltaError, OSError):
                return DeltaTable(self.location.url)
        return DeltaTable(self.location.url, storage_options=self.location.delta_options())

    def _commit(
        self,
        version: DeltaVersion,
        batch: Batch | None,
        files: Sequence[StoredFile],
        properties: Mapping[str, str],
        removed: Sequence[LiveFile] = (),
    ) -> bool:
        now_ms = round(time.time() * 1000)
        is_change = not removed  # Of the rows: a compaction keeps them.
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(file.path, is_change, now_ms, file.bytes, {}) for file in removed
        ]
        actions += [
            AddAction(file.key, file.footer.bytes, {}, now_ms, is_change, statistics_of(file.footer)) for file in files
        ]
        metadata = {f"{_PREFIX}{name}": value for name, value in properties.items()}
        transactions = []
        if batch is not None:
            metadata |= {f"{_PREFIX}writer": batch.writer, f"{_PREFIX}batch": str(batch.number)}
            transactions.append(Transaction(batch.writer, batch.number, now_ms))
        try:
            version.table.create_write_transaction(
                actions,
                "append",
                Schema.from_arrow(self.schema),
                commit_properties=CommitProperties(metadata, 0, transactions),
                # Two processes that remove the same old entries disturb each other.
                post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
            )
        except (CommitFailedError, DeltaError, OSError) as error:
            self._opened = None
            if self._load().number == version.number:
                raise lake_error(error, f"commit to the table {self.location}", self.location) from error
            return False
        self._sync(version.number + 1)
        return True

    def expire(self, keep_s: float, *, dry_run: bool = False) -> RemovedFiles:
        retention = f"interval {math.ceil(keep_s)} seconds"
        wanted = {"delta.logRetentionDuration": retention, "delta.deletedFileRetentionDuration": retention}
        limit_s = time.time() - keep_s
        store = self.location.store()
        with lake_errors(f"remove old states of the table {self.location}", self.location):
            dead = self._former_files(keep_s)
            removed = self._removed([info for info in store.list() if info.key in dead], dry_run=dry_run)
            entries = [info for info in store.list(LOG) if info.key.endswith(".json")]
            if dry_run:
                gone = [info for info in entries if info.modified < limit_s]
            else:
                self._clean_log(wanted)
                kept = {info.key for info in store.list(LOG)}
                gone = [info for info in entries if info.key not in kept]
        return removed.plus(RemovedFiles(len(gone), sum(info.size for info in gone), len(gone)))

    def _clean_log(self, wanted: Mapping[str, str]) -> None:
        """Write a checkpoint, and remove entries of the log that are below it and old enough by these properties."""
        table = self._load().table
        if {name: table.metadata().configuration.get(name) for name in wanted} != wanted:
            table.alter.set_table_properties(dict(wanted))
            self._sync(table.version())
        table = self._load().table
        table.create_checkpoint()
        self._sync(table.version())
        table.cleanup_metadata()

    def _former_files(self, age_s: float) -> set[str]:
        """Return files that were part of the table, and have not been for that time, by the log."""
        hours = math.ceil(age_s / 3600)
        return set(self._load().table.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=False))

    def _orphans(self, stored: Sequence[ObjectInfo]) -> list[ObjectInfo]:
        with lake_errors(f"clean the table {self.location}", self.location):
            needed = {file.path for file in self.live_files()} | self._former_files(0)
        # The log is removed by `expire`.
        return [info for info in stored if info.key not in needed and not info.key.startswith(LOG)]

    def _sync(self, number: int) -> None:
        """Put on disk what a commit of this version may have written, if the table is in a folder."""
        if self.location.folder is None:
            return
        with storage_errors(f"sync the table {self.location}"):
            sync_version(self.location.folder, number)


def log_entry(folder: Path, number: int) -> Path:
    """Return the entry of a version in the log of a table in a folder."""
    return folder / LOG / f"{number:020d}.json"


def sync_version(folder: Path, number: int) -> None:
    """Put on disk what a commit of this version may have written, but for the files that it names. Raises OSError."""
    entry = log_entry(folder, number)
    for path in (entry, entry.with_suffix(".checkpoint.parquet"), entry.with_name("_last_checkpoint")):
        with contextlib.suppress(FileNotFoundError):
            sync_file(path)
    sync_folder(entry.parent)
    sync_folder(folder)


def _found(location: LakeLocation) -> DeltaTable | None:
    with lake_errors(f"open the table {location}", location):
        try:
            return DeltaTable(location.url, storage_options=location.delta_options())
        except TableNotFoundError:
            return None


def _made(location: LakeLocation, schema: pa.Schema) -> DeltaTable:
    try:
        columns = Schema.from_arrow(normal_schema(schema))
    except Exception as error:  # That is the class that delta-rs raises.
        raise ConfigurationError(f"Delta cannot have such a column: {first_line(error)}") from error
    try:
        return DeltaTable.create(
            location.url,
            columns,
            mode="error",
            name=location.name,
            description=_OURS,
            storage_options=location.delta_options(),
        )
    except (DeltaError, OSError) as error:
        found = _found(location)  # Another process may have made it at the same time.
        if found is None:
            raise lake_error(error, f"create the table {location}", location) from error
        return found


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
