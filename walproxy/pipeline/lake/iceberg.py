"""The two primitives of a table in Iceberg's format, by pyiceberg and a catalog (`catalog.py`).

    NAME/*.parquet     data files, those of tasks that were killed included
    NAME/metadata/     metadata, manifests

In a folder, the catalog of all its tables is `iceberg.db` in it. Metadata have absolute paths: the folder cannot be
moved.

Every commit, also one without files, makes a snapshot, and pyiceberg then demands from the catalog that the snapshot
before it is the one that was read. In the same step it sets the table's property `walproxy.batch.WRITER`: the position
(rule X1). pyiceberg must not repeat a refused commit by itself, because it would put it upon the snapshot of another
writer: `commit.retry.num-retries` is 0.

The property `walproxy.arrow_schema` has the exact columns, which Iceberg's types are not, and marks the table as ours.
"""

import base64
import contextlib
import itertools
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import ClassVar, Final

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io.pyarrow import (
    UnsupportedPyArrowTypeException,
    _pyarrow_to_schema_without_ids,
    parquet_file_to_data_file,
)
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.table import Table as PyIcebergTable
from pyiceberg.table import TableProperties
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.types import LongType
from sqlalchemy.exc import IntegrityError

from safekeeper.archive.objects import ObjectInfo
from safekeeper.base.errors import ConfigurationError, ObjectMissing, StorageFailed
from walproxy.pipeline.choices import TableFormat
from walproxy.pipeline.lake.catalog import CATALOG_ERRORS, catalog_error, catalog_errors, namespace_of, open_catalog
from walproxy.pipeline.lake.iceberg_files import FileEnds
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.parquet_files import LiveFile, first_line, normal_schema
from walproxy.pipeline.lake.position import Batch
from walproxy.pipeline.lake.table import COMMIT_ATTEMPTS, LakeTable, RemovedFiles, StoredFile, Version

_LOOKED_INTO: Final = 20
"""Of this number of old snapshots, one is read to find files that are no longer needed."""

SNAPSHOTS_MAX: Final = 200
"""The most snapshots that `expire` keeps, however young: every commit writes the list of all of them again."""


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


def unneeded(table: PyIcebergTable, location: LakeLocation, stored: Sequence[ObjectInfo]) -> list[ObjectInfo]:
    """Return those of the objects of a location that no snapshot of its table needs, nor the log of its metadata."""
    snapshots = in_order(table)
    needed = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    needed |= {snapshot.manifest_list for snapshot in snapshots}
    orphans = list(stored)
    # Mostly the newest snapshot needs them all, and the lists of the others need not be read.
    for some in (snapshots[-1:], snapshots):
        needed |= files_named(table, some)
        orphans = [info for info in orphans if f"{location}/{info.key}" not in needed]
        if not orphans:
            break
    return orphans


def files_named(table: PyIcebergTable, snapshots: Sequence[Snapshot]) -> set[str]:
    """Return the manifest lists, manifests and data files of snapshots."""
    found = set()
    for snapshot in snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in found:
                entries = manifest.fetch_manifest_entry(table.io)
                found |= {manifest.manifest_path, *(entry.data_file.file_path for entry in entries)}
    return found


_PREFIX: Final = "walproxy."
BATCH_PROPERTY: Final = "walproxy.batch."
_SCHEMA: Final = "walproxy.arrow_schema"
TABLE_PROPERTIES: Final[dict[str, str]] = {
    "commit.manifest-merge.enabled": "true",
    "commit.retry.num-retries": "0",  # A commit is tried again by us, after a look at what the other writer did.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.parquet.compression-codec": "zstd",
}
_RETRIES: Final = TableProperties.COMMIT_NUM_RETRIES


class IcebergVersion(Version):
    """A version of an Iceberg table.

    Attributes:
        table: pyiceberg's.
    """

    def __init__(self, table: PyIcebergTable, location: LakeLocation) -> None:
        self.table = table
        self._location = location

    def last_batch(self, writer: str) -> int | None:
        value = self.table.properties.get(f"{BATCH_PROPERTY}{writer}")
        return int(value) if value is not None else None

    @cached_property
    def files(self) -> dict[str, IcebergFile]:
        """pyiceberg's files that make up the table, by their keys within it."""
        found = {}
        with catalog_errors(f"read the table {self._location}", self._location):
            for task in self.table.scan().plan_files():
                if task.delete_files:
                    raise ConfigurationError(
                        f"another program deleted rows of the Iceberg table {self._location}: read it with that program"
                    )
                found[self._key(task.file.file_path)] = task.file
        return found

    def live_files(self) -> list[LiveFile]:
        return [
            LiveFile(key, file.record_count, file.file_size_in_bytes, self._bounds(file))
            for key, file in self.files.items()
        ]

    def _bounds(self, file: IcebergFile) -> dict[str, tuple[int, int]]:
        lower, upper = file.lower_bounds or {}, file.upper_bounds or {}
        return {
            field.name: (from_bytes(LongType(), lower[field.field_id]), from_bytes(LongType(), upper[field.field_id]))
            for field in self.table.schema().fields
            if isinstance(field.field_type, LongType) and field.field_id in lower and field.field_id in upper
        }

    def _key(self, url: str) -> str:
        beginning = f"{self._location}/"
        if not url.startswith(beginning):
            raise ConfigurationError(
                f"the Iceberg table {self._location} has the file {url} of another program outside: read it with that "
                "program"
            )
        return url.removeprefix(beginning)


class IcebergLake(LakeTable[IcebergVersion]):
    """A table in Iceberg's format. Made by `open`. Close it: it holds a connection to its catalog."""

    format: ClassVar[TableFormat] = "iceberg"

    def __init__(self, location: LakeLocation, schema: pa.Schema, catalog: Catalog) -> None:
        super().__init__(location, schema)
        self._catalog = catalog

    @classmethod
    def open(cls, location: LakeLocation, schema: pa.Schema | None = None) -> "IcebergLake | None":
        """Return the table of a location, None if its catalog has none.

        Args:
            schema: make the table if it is not there, with these columns.

        Raises:
            ConfigurationError: Iceberg has no type for a column, another program made the table, the catalog has it at
                another location, or another catalog has it.
            ArchiveError, StorageFailed: see LakeTable.
        """
        if schema is not None:
            _check_schema(schema)
        catalog = open_catalog(location)
        try:
            with catalog_errors(f"open the table {location}", location):
                found = _found(catalog, location) or (_made(catalog, location, schema) if schema is not None else None)
            if found is None:
                catalog.close()
                return None
            return cls(location, _schema_of(found, location), catalog)
        except BaseException:
            catalog.close()
            raise

    @property
    def is_ours(self) -> bool:
        return True  # `open` refuses others.

    def close(self) -> None:
        self._catalog.close()

    def _load(self) -> IcebergVersion:
        with catalog_errors(f"read the table {self.location}", self.location):
            return IcebergVersion(self._catalog.load_table(_identifier(self.location)), self.location)

    def _commit(
        self,
        version: IcebergVersion,
        batch: Batch | None,
        files: Sequence[StoredFile],
        properties: Mapping[str, str],
        removed: Sequence[LiveFile] = (),
    ) -> bool:
        table = version.table
        if table.properties.get(_RETRIES) != TABLE_PROPERTIES[_RETRIES]:
            raise ConfigurationError(
                f"another program changed the property {_RETRIES} of the table {self.location}: set it to 0"
            )
        summary = {f"{_PREFIX}{name}": value for name, value in properties.items()}
        changed = {TableProperties.DEFAULT_NAME_MAPPING: table.schema().name_mapping.model_dump_json()}
        if batch is not None:
            summary |= {f"{_PREFIX}writer": batch.writer, f"{_PREFIX}batch": str(batch.number)}
            changed[f"{BATCH_PROPERTY}{batch.writer}"] = str(batch.number)
        ends = FileEnds({f"{self.location}/{file.key}": (file.end, file.footer.bytes) for file in files})
        try:
            with table.transaction() as transaction:
                transaction.set_properties(changed)
                update = transaction.update_snapshot(snapshot_properties=summary)
                with update.overwrite() if removed else update.merge_append() as snapshot:
                    for file in removed:
                        snapshot.delete_data_file(version.files[file.path])
                    metadata = transaction.table_metadata  # pyiceberg copies all of it each time.
                    for url in ends.ends:
                        snapshot.append_data_file(parquet_file_to_data_file(ends, metadata, url))
        except CATALOG_ERRORS as error:
            if self._load().table.metadata_location == table.metadata_location:
                raise catalog_error(error, f"commit to the table {self.location}", self.location) from error
            return False
        return True

    def expire(self, keep_s: float, *, dry_run: bool = False) -> RemovedFiles:
        with catalog_errors(f"remove old states of the table {self.location}", self.location):
            for _ in range(COMMIT_ATTEMPTS):
                table = self._load().table
                old = old_snapshots(table, keep_s)
                if not old:
                    return RemovedFiles()
                gone = {snapshot.snapshot_id for snapshot in old}
                kept = [snapshot for snapshot in in_order(table) if snapshot.snapshot_id not in gone]
                unneeded = files_named(table, to_look_into(old, kept)) | {each.manifest_list for each in old}
                unneeded -= files_named(table, kept[:1] if is_linear(table) else kept)
                if not dry_run:
                    try:
                        table.maintenance.expire_snapshots().by_ids(sorted(gone)).commit()
                    except CommitFailedException:
                        continue
                stored = self.location.store().list()
                named = [info for info in stored if f"{self.location}/{info.key}" in unneeded]
                return self._removed(named, len(old), dry_run=dry_run)
        raise StorageFailed(f"could not remove old states of the table {self.location}: too many commits meanwhile")

    def _orphans(self, stored: Sequence[ObjectInfo]) -> list[ObjectInfo]:
        with catalog_errors(f"clean the table {self.location}", self.location):
            return unneeded(self._load().table, self.location, stored)


def _identifier(location: LakeLocation) -> tuple[str, str]:
    return namespace_of(location), location.name


def _check_schema(schema: pa.Schema) -> None:
    try:
        _pyarrow_to_schema_without_ids(normal_schema(schema))
    except (TypeError, ValueError, NotImplementedError, UnsupportedPyArrowTypeException) as error:
        raise ConfigurationError(f"Iceberg cannot have such a column: {first_line(error)}") from error


def _found(catalog: Catalog, location: LakeLocation) -> PyIcebergTable | None:
    try:
        return catalog.load_table(_identifier(location))
    except (NoSuchTableError, NoSuchNamespaceError):
        return None
    except ObjectMissing as error:
        if location.folder is None:
            raise
        raise ConfigurationError(
            f"the Iceberg table {location} is not where its catalog expects it ({error}): such a table cannot be "
            "moved, move it back"
        ) from error


def _made(catalog: Catalog, location: LakeLocation, schema: pa.Schema) -> PyIcebergTable:
    # Tasks store files only when the table exists, so that files without a table are those of another catalog.
    if any(name == "_delta_log" or name.endswith(".parquet") for names in location.store().entries() for name in names):
        found = _found(catalog, location)  # Another process may have made it at the same time.
        if found is None:
            raise ConfigurationError(
                f"{location} has files of a table that this catalog does not have: name its catalog, or another prefix"
            )
        return found
    schema = normal_schema(schema)
    with contextlib.suppress(NamespaceAlreadyExistsError, IntegrityError):
        catalog.create_namespace(namespace_of(location))
    properties = TABLE_PROPERTIES | _schema_property(schema)
    with contextlib.suppress(TableAlreadyExistsError):
        return catalog.create_table(_identifier(location), schema, location=location.url, properties=properties)
    return catalog.load_table(_identifier(location))


def _schema_property(schema: pa.Schema) -> dict[str, str]:
    """Return the property of a table that has its columns, and marks it as ours."""
    return {_SCHEMA: base64.b64encode(schema.serialize().to_pybytes()).decode()}


def _schema_of(table: PyIcebergTable, location: LakeLocation) -> pa.Schema:
    """Return the columns of a table. Raises ConfigurationError if it is not ours, or not at this location."""
    require_location(table, _identifier(location), location)
    content = table.properties.get(_SCHEMA)
    if content is None:
        raise ConfigurationError(
            f"{location} is an Iceberg table that another program made: name another namespace or table"
        )
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(content)))
    except (ValueError, pa.ArrowInvalid) as error:
        raise ConfigurationError(f"the property {_SCHEMA} of the table {location} is damaged") from error


def require_location(table: PyIcebergTable, identifier: tuple[str, str], location: LakeLocation) -> None:
    """See that a table is at the location where its catalog has it. Raises ConfigurationError."""
    if table.location().rstrip("/") != location.url:
        raise ConfigurationError(
            f"the catalog has the table {'.'.join(identifier)} at {table.location()}, not at {location}: name another "
            "namespace, or that location"
        )


def table_names(location: LakeLocation) -> list[str]:
    """Return the names of the tables that the catalog of a location has in its namespace.

    Raises:
        ConfigurationError, ArchiveError, StorageFailed: the catalog cannot be read.
    """
    catalog = open_catalog(location)
    try:
        with catalog_errors(f"list the tables in {location}", location):
            try:
                found = catalog.list_tables(namespace_of(location))
            except NoSuchNamespaceError:
                return []
            return sorted(identifier[-1] for identifier in found)
    finally:
        catalog.close()
