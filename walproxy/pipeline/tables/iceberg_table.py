"""A table in Iceberg's format, written with pyiceberg.

    FOLDER/iceberg.db         the catalog of all Iceberg tables of the folder, in SQLite
    FOLDER/NAME/data/         data files, those of tasks that were killed included
    FOLDER/NAME/metadata/     metadata, manifests

A commit adds a snapshot and, in the same step, sets the table's property `walproxy.batch.WRITER`: so the last batch is
found without walking through snapshots, however many were expired. The snapshot's summary says the same. The step is
the catalog's: it changes where the table's metadata is, provided that it is where we read it.

pyiceberg syncs nothing. Its files are synced as they are closed (synced_io.py), before the catalog names them.

Iceberg's metadata holds absolute paths: the folder cannot be moved.
"""

import contextlib
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
)
from pyiceberg.table import Table as PyIcebergTable
from pyiceberg.table.update import AssertRefSnapshotId
from pyiceberg.types import LongType
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from safekeeper.errors import ConfigurationError, StorageFailed
from walproxy.pipeline.tables.disk import sync_folder
from walproxy.pipeline.tables.table import CheckedFile, LiveFile, Table
from walproxy.pipeline.tables.table_folder import TableFormat

CATALOG_FILE: Final = "iceberg.db"
CATALOG_NAME: Final = "walproxy"
NAMESPACE: Final = "wal"
_BATCH_PROPERTY: Final = "walproxy.batch."
_BUSY_TIMEOUT_S: Final = 60


class IcebergTable(Table):
    """A table in Iceberg's format."""

    format: ClassVar[TableFormat] = "iceberg"

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        super().__init__(folder, schema)
        self._identifier = (NAMESPACE, self.name)
        self._catalog: SqlCatalog | None = None
        self._loaded: PyIcebergTable | None = None

    @property
    def _new_files(self) -> Path:
        return self.folder / "data"

    def prepare(self) -> None:
        with self._failures("make"):
            self._new_files.mkdir(exist_ok=True)
            (self.folder / "metadata").mkdir(exist_ok=True)
            sync_folder(self.folder)
            catalog = self._opened_catalog()
            with contextlib.suppress(NamespaceAlreadyExistsError):
                catalog.create_namespace(NAMESPACE)
            try:
                self._loaded = catalog.load_table(self._identifier)
            except NoSuchTableError:
                with contextlib.suppress(TableAlreadyExistsError):
                    catalog.create_table(
                        self._identifier, self.schema, location=str(self.folder), properties=_PROPERTIES
                    )
                self._loaded = catalog.load_table(self._identifier)
            sync_folder(self.folder.parent)
        where = self._loaded.location()
        if Path(where) != self.folder:
            raise ConfigurationError(
                f"the Iceberg table {self.folder} was made as {where}: an Iceberg table cannot be moved, move it back"
            )

    def last_batch(self, writer: str) -> int | None:
        with self._failures("read"):
            return _last_batch(self._refreshed(), writer)

    def _append(
        self, writer: str | None, batch: int | None, files: Sequence[CheckedFile], properties: dict[str, str]
    ) -> bool | None:
        with self._failures("commit to"):
            table = self._refreshed()
            summary = {f"walproxy.{name}": value for name, value in properties.items()}
            if writer is not None and batch is not None:
                last = _last_batch(table, writer)
                if last is not None and last >= batch:
                    return False
                summary |= {"walproxy.writer": writer, "walproxy.batch": str(batch)}
            sync_folder(self._new_files)
            try:
                transaction = table.transaction()
                snapshot = table.current_snapshot()
                seen = AssertRefSnapshotId(ref="main", snapshot_id=snapshot.snapshot_id if snapshot else None)
                transaction._stage((), (seen,))
                if writer is not None:
                    transaction.set_properties({f"{_BATCH_PROPERTY}{writer}": str(batch)})
                if files:
                    transaction.add_files([str(file.path) for file in files], summary, check_duplicate_files=False)
                transaction.commit_transaction()
            except CommitFailedException:
                return None
            return True

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
            yield
        except (SQLAlchemyError, NoSuchTableError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise StorageFailed(f"could not {verb} the Iceberg table {self.folder}: {reason}") from error


_PROPERTIES: Final[dict[str, str]] = {
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


def _last_batch(table: PyIcebergTable, writer: str) -> int | None:
    value = table.properties.get(f"{_BATCH_PROPERTY}{writer}")
    return int(value) if value is not None else None
