"""A table in Iceberg's format, written with pyiceberg.

    FOLDER/iceberg.db         the catalog of all Iceberg tables of the folder, in SQLite
    FOLDER/NAME/data/         data files, those of tasks that were killed included
    FOLDER/NAME/metadata/     metadata, manifests

A commit adds a snapshot and, in the same step, sets the table's property `walproxy.batch.WRITER`: so the last batch is
found without walking through snapshots, however many were expired. The snapshot's summary has it too. The step is
the catalog's: it changes where the table's metadata is, provided that it is where we read it.

pyiceberg syncs nothing. Its files are synced as they are closed (synced_io.py), before the catalog names them.

Iceberg's metadata holds absolute paths: the folder cannot be moved.
"""

import contextlib
import itertools
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.io.pyarrow import (
    UnsupportedPyArrowTypeException,
    _pyarrow_to_schema_without_ids,
    parquet_file_to_data_file,
)
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table as PyIcebergTable
from pyiceberg.table import Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotsUpdate
from pyiceberg.types import LongType
from sqlalchemy.exc import IntegrityError, OperationalError, SQLAlchemyError

from safekeeper.base.errors import ConfigurationError, StorageFailed
from walproxy.pipeline.choices import TableFormat
from walproxy.pipeline.tables.disk import storage_errors, sync_folder
from walproxy.pipeline.tables.parquet_files import LiveFile, first_line
from walproxy.pipeline.tables.table import (
    COMMIT_ATTEMPTS,
    Batch,
    CheckedFile,
    Removal,
    Table,
    remove_files,
    unused_since,
)

CATALOG_FILE: Final = "iceberg.db"
CATALOG_NAME: Final = "walproxy"
NAMESPACE: Final = "wal"
BATCH_PROPERTY: Final = "walproxy.batch."
_BUSY_TIMEOUT_S: Final = 60
_LOOKED_INTO: Final = 20
"""Of this number of old snapshots, one is read to find files that are no longer needed."""
SNAPSHOTS_MAX: Final = 200
"""The most snapshots that `expire` keeps, however young: every commit writes the list of all of them again."""


class IcebergTable(Table):
    """A table in Iceberg's format."""

    format: ClassVar[TableFormat] = "iceberg"

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        super().__init__(folder, schema)
        self._identifier = (NAMESPACE, self.name)
        self._catalog: SqlCatalog | None = None
        self._loaded: PyIcebergTable | None = None
        self._lists: dict[str, list[ManifestFile]] = {}
        self._manifests: dict[str, list[str]] = {}

    @property
    def _new_files(self) -> Path:
        return self.folder / "data"

    @classmethod
    def check_schema(cls, schema: pa.Schema) -> None:
        try:
            _pyarrow_to_schema_without_ids(schema)
        except (TypeError, ValueError, NotImplementedError, UnsupportedPyArrowTypeException) as error:
            raise ConfigurationError(f"Iceberg cannot have such a column: {first_line(error)}") from error

    def prepare(self) -> None:
        with self._failures("make"):
            catalog = self._opened_catalog()
            try:
                self._loaded = catalog.load_table(self._identifier)
            except NoSuchTableError:
                self._loaded = self._created(catalog)
            except FileNotFoundError as error:
                raise ConfigurationError(
                    f"the Iceberg table {self.folder} is not where its catalog expects it: such a table "
                    "cannot be moved, move it back"
                ) from error
        where = self._loaded.location()
        if Path(where) != self.folder:
            raise ConfigurationError(
                f"the Iceberg table {self.folder} is a copy of {where}: such a table cannot be copied, use that one"
            )

    def _created(self, catalog: SqlCatalog) -> PyIcebergTable:
        self._new_files.mkdir(exist_ok=True)
        (self.folder / "metadata").mkdir(exist_ok=True)
        sync_folder(self.folder)
        with contextlib.suppress(NamespaceAlreadyExistsError, IntegrityError):
            catalog.create_namespace(NAMESPACE)
        with contextlib.suppress(TableAlreadyExistsError):
            catalog.create_table(self._identifier, self.schema, location=str(self.folder), properties=TABLE_PROPERTIES)
        sync_folder(self.folder.parent)
        return catalog.load_table(self._identifier)

    def last_batch(self, writer: str) -> int | None:
        with self._failures("read"):
            return last_batch_of(self._refreshed(), writer)

    def _append(self, batch: Batch | None, files: Sequence[CheckedFile], properties: dict[str, str]) -> bool | None:
        with self._failures("commit to"):
            table = self._refreshed()
            summary = {f"walproxy.{name}": value for name, value in properties.items()}
            if batch is not None:
                if batch.is_in(last_batch_of(table, batch.writer), self.folder):
                    return False
                summary |= {"walproxy.writer": batch.writer, "walproxy.batch": str(batch.number)}
            sync_folder(self._new_files)
            try:
                with bound_transaction(table) as transaction:
                    if batch is not None:
                        transaction.set_properties({f"{BATCH_PROPERTY}{batch.writer}": str(batch.number)})
                    if files:
                        transaction.add_files([str(file.path) for file in files], summary, check_duplicate_files=False)
            except CommitFailedException:
                return None
            return True

    def _settle(self) -> None:
        """SQLite has done it."""

    def _replace(self, old: Sequence[LiveFile], new: Sequence[CheckedFile]) -> bool:
        with self._failures("compact"):
            table = self._refreshed()
            current = {task.file.file_path: task.file for task in table.scan().plan_files()}
            if any(file.path not in current for file in old):
                return False
            sync_folder(self._new_files)
            try:
                with bound_transaction(table) as transaction:
                    summary = {"walproxy.operation": "compact"}
                    with transaction.update_snapshot(snapshot_properties=summary).overwrite() as snapshot:
                        for file in old:
                            snapshot.delete_data_file(current[file.path])
                        for path, _ in new:
                            snapshot.append_data_file(
                                parquet_file_to_data_file(table.io, transaction.table_metadata, str(path))
                            )
            except CommitFailedException:
                return False
            return True

    def expire(self, keep_s: float, *, dry_run: bool = False) -> Removal:
        with self._failures("remove old states of"):
            for _ in range(COMMIT_ATTEMPTS):
                table = self._refreshed()
                old = old_snapshots(table, keep_s)
                if not old:
                    return Removal()
                gone = {snapshot.snapshot_id for snapshot in old}
                kept = [snapshot for snapshot in in_order(table) if snapshot.snapshot_id not in gone]
                unneeded = self._files_of(table, to_look_into(old, kept))
                unneeded.update(snapshot.manifest_list for snapshot in old)
                unneeded -= self._files_of(table, kept[:1] if is_linear(table) else kept)
                if not dry_run:
                    try:
                        transaction = _Transaction(table)
                        transaction._stage((RemoveSnapshotsUpdate(snapshot_ids=sorted(gone)),))
                        transaction.commit_transaction()
                    except CommitFailedException:
                        continue
                removed = remove_files((Path(path) for path in sorted(unneeded)), dry_run=dry_run)
                return removed._replace(versions=len(old))
            raise StorageFailed(f"could not remove old states of the table {self.folder}: too many commits meanwhile")

    def _orphans(self, older_than_s: float) -> Iterator[Path]:
        with self._failures("clean"):
            # First list the existing files, then the needed ones: a commit in between only adds needed ones.
            candidates = [
                path
                for folder in (self._new_files, self.folder / "metadata")
                for path in folder.iterdir()
                if unused_since(path, older_than_s)
            ]
            table = self._refreshed()
            needed = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
            snapshots = in_order(table)
            # Mostly the newest snapshot needs them all, and the lists of the others need not be read.
            for some in (snapshots[-1:], snapshots):
                needed |= self._files_of(table, some) | {snapshot.manifest_list for snapshot in snapshots}
                candidates = [path for path in candidates if str(path) not in needed]
                if not candidates:
                    break
            yield from candidates

    def live_files(self) -> list[LiveFile]:
        with self._failures("read"):
            table = self._refreshed()
            longs = {field.field_id: field for field in table.schema().fields if isinstance(field.field_type, LongType)}
            found = []
            for task in table.scan().plan_files():
                if task.delete_files:
                    raise ConfigurationError(
                        f"another program deleted rows of the Iceberg table {self.folder}: read it with that program"
                    )
                file = task.file
                bounds = {
                    field.name: (
                        from_bytes(LongType(), file.lower_bounds[key]),
                        from_bytes(LongType(), file.upper_bounds[key]),
                    )
                    for key, field in longs.items()
                    if key in (file.lower_bounds or {}) and key in (file.upper_bounds or {})
                }
                found.append(LiveFile(file.file_path, file.record_count, file.file_size_in_bytes, bounds))
            return found

    def _files_of(self, table: PyIcebergTable, snapshots: Sequence[Snapshot]) -> set[str]:
        """Return the manifest lists, manifests and data files of snapshots. None ever changes, so each is read once."""
        found = set()
        for snapshot in snapshots:
            found.add(snapshot.manifest_list)
            if snapshot.manifest_list not in self._lists:
                self._lists[snapshot.manifest_list] = snapshot.manifests(table.io)
            for manifest in self._lists[snapshot.manifest_list]:
                path = manifest.manifest_path
                if path not in found:
                    if path not in self._manifests:
                        entries = manifest.fetch_manifest_entry(table.io)
                        self._manifests[path] = [entry.data_file.file_path for entry in entries]
                    found.update((path, *self._manifests[path]))
        return found

    def close(self) -> None:
        catalog, self._catalog, self._loaded = self._catalog, None, None
        if catalog is not None:
            catalog.close()

    def _refreshed(self) -> PyIcebergTable:
        if self._loaded is None:
            self._loaded = self._opened_catalog().load_table(self._identifier)
        else:
            self._loaded.refresh()
        return self._loaded

    def _opened_catalog(self) -> SqlCatalog:
        if self._catalog is None:
            self._catalog = open_catalog(self.folder.parent)
        return self._catalog

    @contextlib.contextmanager
    def _failures(self, verb: str) -> Iterator[None]:
        """Tell what pyiceberg and SQLite refuse as one line."""
        try:
            with storage_errors(f"{verb} the Iceberg table {self.folder}"):
                yield
        except (SQLAlchemyError, NoSuchTableError, *DAMAGE_ERRORS) as error:
            raise StorageFailed(f"could not {verb} the Iceberg table {self.folder}: {first_line(error)}") from error


class _Transaction(Transaction):
    """pyiceberg's, which copies all metadata each time that they are read: 20 times in a commit.

    With 600 snapshots a commit takes 0.2 s of a core this way, and 0.8 s without.
    """

    _copied: tuple[Any, Any, Any] = (None, None, None)

    @property
    def table_metadata(self) -> TableMetadata:
        base, updates, copy = self._copied
        if base is not self._table.metadata or updates is not self._updates:
            copy = super().table_metadata
            self._copied = self._table.metadata, self._updates, copy
        return copy


@contextlib.contextmanager
def bound_transaction(table: PyIcebergTable) -> Iterator[Transaction]:
    """Change the table in one step, provided that no snapshot was added since it was read.

    Raises:
        CommitFailedException: one was.
    """
    transaction = _Transaction(table)
    snapshot = table.current_snapshot()
    seen = AssertRefSnapshotId(ref="main", snapshot_id=snapshot.snapshot_id if snapshot else None)
    transaction._stage((), (seen,))
    yield transaction
    transaction.commit_transaction()


DAMAGE_ERRORS: Final = (ValidationError, ValueError, TypeError, EOFError, LookupError, zlib.error)
"""What pyiceberg raises when it reads metadata or a manifest that is damaged."""

TABLE_PROPERTIES: Final[dict[str, str]] = {
    "commit.manifest-merge.enabled": "true",
    "commit.retry.num-retries": "0",  # A commit is tried again by us, after a look at what the other writer did.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.parquet.compression-codec": "zstd",
}


def open_catalog(folder: Path) -> SqlCatalog:
    """Open the catalog of the Iceberg tables of a folder; it is made if it is missing."""
    uri = f"sqlite:///{folder / CATALOG_FILE}?timeout={_BUSY_TIMEOUT_S}"
    properties: dict[str, Any] = {
        "uri": uri,
        "warehouse": str(folder),
        "py-io-impl": "walproxy.pipeline.tables.synced_io.SyncedFileIO",
    }
    try:
        return SqlCatalog(CATALOG_NAME, **properties)
    except OperationalError:
        # Two processes made it at once: it is there now.
        return SqlCatalog(CATALOG_NAME, **properties)


def in_order(table: PyIcebergTable) -> list[Snapshot]:
    """Return the snapshots of a table in the order in which they were committed."""
    return sorted(table.snapshots(), key=lambda snapshot: snapshot.sequence_number or 0)


def old_snapshots(table: PyIcebergTable, keep_s: float) -> list[Snapshot]:
    """Return the snapshots that have not been the newest one for that time, and those beyond what can be kept."""
    snapshots = in_order(table)
    limit_ms = (time.time() - keep_s) * 1000
    young = next(
        (n for n, successor in enumerate(snapshots[1:]) if successor.timestamp_ms >= limit_ms), len(snapshots) - 1
    )
    named = {reference.snapshot_id for reference in table.refs().values()}
    old = snapshots[: max(young, len(snapshots) - SNAPSHOTS_MAX, 0)]
    return [snapshot for snapshot in old if snapshot.snapshot_id not in named]


def is_linear(table: PyIcebergTable) -> bool:
    """Return whether each snapshot follows the one before it: then what a later one does not need never comes back."""
    pairs = itertools.pairwise(in_order(table))
    return len(table.refs()) <= 1 and all(after.parent_snapshot_id == before.snapshot_id for before, after in pairs)


def to_look_into(old: Sequence[Snapshot], kept: Sequence[Snapshot]) -> list[Snapshot]:
    """Return those of the old snapshots whose manifests are read to find files that are no longer needed.

    Reading a list of 100 manifests takes 25 ms. Those before a change that removed files name all that it removed.
    A manifest that came and went between two of the others is found by `remove_orphans`.
    """
    changed = {
        after.parent_snapshot_id
        for after in (*old, *kept)
        if after.summary and after.summary.operation != Operation.APPEND
    }
    return [
        snapshot
        for index, snapshot in enumerate(old)
        if snapshot.snapshot_id in changed or index % _LOOKED_INTO == 0 or index == len(old) - 1
    ]


def last_batch_of(table: PyIcebergTable, writer: str) -> int | None:
    """Return the number of the writer's last batch in a table, None if there is none."""
    value = table.properties.get(f"{BATCH_PROPERTY}{writer}")
    return int(value) if value is not None else None
