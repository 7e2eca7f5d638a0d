"""A table that follows, in Iceberg's format, written with pyiceberg and a catalog (`lake/catalog.py`).

    TABLES/SCHEMA.NAME/data-*.parquet   data files
    TABLES/SCHEMA.NAME/metadata/        metadata, manifests

In the catalog a table is SCHEMA.NAME; NAMESPACE_SCHEMA.NAME if the location names a namespace. A commit is the
catalog's: it demands the snapshot that was read (rule X1). A request whose reply was lost may have been carried out:
then the table is read again, and its position decides. A folder has a catalog of its own (`iceberg.db`).

The position is a property of the table, set in the same step as the files are changed. A merge writes the files again
in which a row of the batch may be, without that row (copy on write), and one file with the new rows. Files carry
Iceberg's ids of columns, so a column that goes and comes again under the same name is another one.
"""

import contextlib
import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.dataset as ds
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import (
    ArrowScan,
    _pyarrow_to_schema_without_ids,
    parquet_file_to_data_file,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Transaction
from pyiceberg.table import Table as PyIcebergTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import DecimalType, IntegerType, LongType, StringType
from sqlalchemy.exc import IntegrityError

from safekeeper.base.errors import ArchiveError, ConfigurationError, StorageFailed, WalproxyError
from walproxy.pipeline.cdc.apply.following import (
    SMALL_FILE_BYTES,
    SMALL_FILES_MAX,
    FollowingTable,
    Position,
    key_filter,
    library_errors,
    no_check,
    safe_name,
)
from walproxy.pipeline.cdc.publication import TableName
from walproxy.pipeline.lake.catalog import catalog_error, given_namespace, missing_files, open_catalog
from walproxy.pipeline.lake.disk import sync_folder
from walproxy.pipeline.lake.files import NewLakeFile, read_end_of
from walproxy.pipeline.lake.iceberg import require_location, unneeded
from walproxy.pipeline.lake.iceberg_files import FileEnds
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.parquet_files import DataFile as LakeFile
from walproxy.pipeline.lake.parquet_files import parts_of
from walproxy.pipeline.lake.position import require_position


def _small(data_type: pa.DataType) -> pa.DataType:
    """pyiceberg may prefer Arrow's large types."""
    if pa.types.is_large_string(data_type):
        return pa.string()
    if pa.types.is_large_list(data_type) or pa.types.is_list(data_type):
        # The field of the elements has their id in its metadata.
        return pa.list_(data_type.value_field.with_type(_small(data_type.value_type)))
    return pa.binary() if pa.types.is_large_binary(data_type) else data_type


def arrow_schema(table: PyIcebergTable) -> pa.Schema:
    return file_schema(table.metadata)


def file_schema(metadata: TableMetadata) -> pa.Schema:
    """Return the columns of the table's files, with Iceberg's ids."""
    schema = schema_to_pyarrow(metadata.schema())
    return pa.schema([pa.field(field.name, _small(field.type), metadata=field.metadata) for field in schema])


def files_with(table: PyIcebergTable, tasks: Sequence[FileScanTask], keys: pa.Table) -> list[FileScanTask]:
    """Return the files in which one of the keys may be, by the bounds of the key's first column."""
    name = keys.column_names[0]
    field = table.schema().find_field(name)
    if not isinstance(field.field_type, IntegerType | LongType | StringType):
        return list(tasks)
    values = sorted(keys[name].unique().to_pylist())
    found = []
    for task in tasks:
        lower = (task.file.lower_bounds or {}).get(field.field_id)
        upper = (task.file.upper_bounds or {}).get(field.field_id)
        if lower is not None and upper is not None:
            index = bisect_left(values, from_bytes(field.field_type, lower))
            if index == len(values) or values[index] > from_bytes(field.field_type, upper):
                continue
        found.append(task)
    return found


def read_rows(table: PyIcebergTable, tasks: Sequence[FileScanTask]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files with the table's columns as they are now."""
    for task in tasks:
        scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
        yield from scan.to_record_batches([task])


def rows_of(table: PyIcebergTable, tasks: Sequence[FileScanTask]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files with the table's columns and their types, in their order."""
    schema = arrow_schema(table)
    for batch in read_rows(table, tasks):
        yield from pa.Table.from_batches([batch]).select(schema.names).cast(schema).to_batches()


_POSITION: Final = "walproxy.apply.position"
_OURS: Final = "walproxy.apply.table"
_PROPERTIES: Final = {
    "commit.retry.num-retries": "0",  # One process writes; if there is a second one, one of them must fail.
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


class IcebergFollowing(FollowingTable):
    """A table in Iceberg's format.

    Args:
        tables: their location, with a catalog.
    """

    def __init__(self, tables: LakeLocation, table: TableName) -> None:
        super().__init__(tables, table)
        schema, namespace = safe_name(table.schema), given_namespace(tables)
        self._identifier = (schema if namespace is None else f"{namespace}_{schema}", safe_name(table.name))
        self._catalog: Catalog | None = None

    @staticmethod
    def storable(data_type: pa.DataType) -> pa.DataType:
        if pa.types.is_list(data_type):
            return pa.list_(IcebergFollowing.storable(data_type.value_type))
        return pa.int32() if data_type == pa.int16() else data_type

    def position(self) -> Position | None:
        with self._failures("read"):
            table = self._loaded()
        return _position_of(table) if table is not None else None

    def is_foreign(self) -> bool:
        with self._failures("read"):
            table = self._loaded()
            return table is not None and _OURS not in table.properties

    def schema(self) -> pa.Schema:
        with self._failures("read"):
            return pa.schema([field.remove_metadata() for field in arrow_schema(self._existing())])

    def replace(
        self,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        position: Position,
        *,
        require_only_job: Callable[[], None] = no_check,
    ) -> None:
        def write(transaction: Transaction, old: Sequence[DataFile]) -> None:
            self._exchange(transaction, old, batches, position)

        self._replace(schema, write, position, require_only_job)

    def file_schema(self, schema: pa.Schema, *, require_only_job: Callable[[], None] = no_check) -> pa.Schema:
        with self._failures("write"):
            table = self._loaded()
            if table is None:
                require_only_job()
                table = self._make(schema)
            return file_schema(table.metadata) if self.takes_files(schema) else schema

    def takes_files(self, schema: pa.Schema) -> bool:
        with self._failures("read"):
            return self._loaded() is None or self.schema() == schema

    def replace_by_files(
        self,
        schema: pa.Schema,
        files: Sequence[LakeFile],
        position: Position,
        *,
        require_only_job: Callable[[], None] = no_check,
    ) -> None:
        def write(transaction: Transaction, old: Sequence[DataFile]) -> None:
            self._put_files(transaction, old, self._described(transaction.table_metadata, files), position)

        self._replace(schema, write, position, require_only_job)

    def live_files(self) -> set[str]:
        beginning = f"{self.location}/"
        with self._failures("read"):
            table = self._loaded()
            tasks = () if table is None else table.scan().plan_files()
            return {task.file.file_path.removeprefix(beginning) for task in tasks}

    def _replace(
        self,
        schema: pa.Schema,
        write: Callable[[Transaction, Sequence[DataFile]], None],
        position: Position,
        require_only_job: Callable[[], None],
    ) -> None:
        """Make the table, or give it other columns, and rows by `write`, which gets its files."""
        with self._failures("read"):
            table = self._loaded()
        before, version = (None, None) if table is None else (_position_of(table), table.metadata_location)
        require_only_job()
        try:
            with self._failures("write"):
                if table is None:
                    table = self._make(schema)
                    version = table.metadata_location
                with table.transaction() as transaction:
                    _set_schema(transaction, table, schema)
                    write(transaction, [task.file for task in table.scan().plan_files()])
        except (StorageFailed, ArchiveError):
            with self._failures("read"):
                table = self._loaded()
            if table is None or table.metadata_location == version:
                raise
            if not self._is_replaced(_position_of(table), position, before):
                raise

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        try:
            with self._failures("add columns to"), self._existing().update_schema() as update:
                update.union_by_name(pa.schema(fields))
        except (StorageFailed, ArchiveError):
            if self.location.folder is not None or not {field.name for field in fields} <= set(self.schema().names):
                raise

    def widen(self, name: str, data_type: pa.DataType) -> bool:
        old = self.schema().field(name).type
        if not (pa.types.is_decimal(old) and pa.types.is_decimal(data_type) and old.scale == data_type.scale):
            return False
        if old.precision > data_type.precision:
            return False
        try:
            with self._failures("widen a column of"), self._existing().update_schema() as update:
                update.update_column((name,), DecimalType(data_type.precision, data_type.scale))
        except (StorageFailed, ArchiveError):
            if self.location.folder is not None or self.schema().field(name).type != data_type:
                raise
        return True

    def _put(
        self, batches: Iterable[pa.RecordBatch], position: Position, expected: Position, *, overwrites: bool
    ) -> None:
        with self._failures("write"):
            table, tasks = self._at(expected)
            kept: Iterable[pa.RecordBatch] = ()
            if not overwrites:
                tasks = _too_small(tasks)
                kept = rows_of(table, tasks)
            self._exchange_at(table, tasks, itertools.chain(kept, batches), position)

    def _merge(
        self, upserts: pa.Table, deleted: pa.Table, key: Sequence[str], position: Position, expected: Position
    ) -> None:
        with self._failures("merge into"):
            table, tasks = self._at(expected)
            keys = pa.concat_tables([upserts.select(key), deleted.select(key)])
            touched = files_with(table, tasks, keys)
            touched += [task for task in _too_small(tasks) if task not in touched]
            kept = (
                batch
                for rows in rows_of(table, touched)
                for batch in key_filter(pa.Table.from_batches([rows]), keys, keep_matches=False).to_batches()
            )
            self._exchange_at(table, touched, itertools.chain(kept, upserts.to_batches()), position)

    def _at(self, expected: Position) -> tuple[PyIcebergTable, list[FileScanTask]]:
        """Return the table as it is now, and its files. Raises TableMoved: it has another position."""
        table = self._existing()
        require_position(self.location, expected, _position_of(table))
        return table, list(table.scan().plan_files())

    def _exchange_at(
        self,
        table: PyIcebergTable,
        tasks: Sequence[FileScanTask],
        rows: Iterable[pa.RecordBatch],
        position: Position,
    ) -> None:
        """Put rows in place of files of the table, provided that nothing was committed since it was read."""
        with table.transaction() as transaction:
            self._exchange(transaction, [task.file for task in tasks], rows, position)

    def lookup(self, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        names = keys.column_names
        with self._failures("read"):
            table = self._existing()
            tasks = files_with(table, list(table.scan().plan_files()), keys)
            wanted = [*names, *(column for column in columns if column not in names)]
            schema = pa.schema([self.schema().field(name) for name in wanted])
            parts = [
                key_filter(pa.Table.from_batches([batch]).select(wanted).cast(schema), keys, keep_matches=True)
                for batch in read_rows(table, tasks)
            ]
        return pa.concat_tables([schema.empty_table(), *parts])

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with self._failures("read"):
            table = self._existing()
            known = self.schema()
            tasks = list(table.scan().plan_files())
        schema = pa.schema([known.field(name) for name in columns])

        def rows() -> Iterator[pa.RecordBatch]:
            with self._failures("read"):
                for batch in rows_of(table, tasks):
                    yield from pa.Table.from_batches([batch]).select(schema.names).cast(schema).to_batches()

        return rows()

    def dataset(self) -> ds.Dataset:
        with self._failures("read"):
            tasks = list(self._existing().scan().plan_files())
            if any(task.delete_files for task in tasks):
                raise ConfigurationError(
                    f"another program deleted rows of the Iceberg table {self.location}: read it with that program"
                )
            beginning = f"{self.location}/"
            sizes = {task.file.file_path.removeprefix(beginning): task.file.file_size_in_bytes for task in tasks}
            return self._dataset_of(sizes, self.schema())

    def tidy(self, keep: timedelta) -> None:
        horizon = datetime.now(UTC) - keep
        with self._failures("remove old files of"):
            table = self._existing()
            table.maintenance.expire_snapshots().older_than(horizon.replace(tzinfo=None)).commit()
            table.refresh()
            self._remove_unused(table, horizon)

    def to_arrow(self) -> pa.Table:
        with self._failures("read"):
            return self._existing().scan().to_arrow().cast(self.schema())

    def close(self) -> None:
        catalog, self._catalog = self._catalog, None
        if catalog is not None:
            catalog.close()

    def _exchange(
        self, transaction: Transaction, old: Sequence[DataFile], rows: Iterable[pa.RecordBatch], position: Position
    ) -> None:
        """Put files with these rows in place of old ones, and set the position, when the transaction commits."""
        metadata = transaction.table_metadata
        plain = file_schema(metadata)
        parts = ((batch.select(plain.names).cast(plain) for batch in part) for part in parts_of(rows))
        self._put_files(transaction, old, self._described(metadata, self._write(plain, parts)), position)

    @staticmethod
    def _put_files(
        transaction: Transaction, old: Sequence[DataFile], new: Iterable[DataFile], position: Position
    ) -> None:
        """Put files in place of old ones, and set the position, when the transaction commits."""
        # Without files too: with a snapshot, pyiceberg demands that the one before it is the one that was read.
        update = transaction.update_snapshot(snapshot_properties={_POSITION: str(position)})
        with update.overwrite() if old else update.merge_append() as snapshot:
            for file in old:
                snapshot.delete_data_file(file)
            for file in new:
                snapshot.append_data_file(file)
        transaction.set_properties({_POSITION: f"{position.lsn}/{position.sequence}"})

    def _make(self, schema: pa.Schema) -> PyIcebergTable:
        catalog = self._opened_catalog()
        self._prepare_place()
        with contextlib.suppress(NamespaceAlreadyExistsError, IntegrityError):
            catalog.create_namespace(self._identifier[0])
        properties = _PROPERTIES | {_OURS: str(self.table)}
        return catalog.create_table(self._identifier, schema, location=self.location.url, properties=properties)

    def _loaded(self) -> PyIcebergTable | None:
        try:
            return self._existing()
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def _existing(self) -> PyIcebergTable:
        table = self._opened_catalog().load_table(self._identifier)
        require_location(table, self._identifier, self.location)
        return table

    def _opened_catalog(self) -> Catalog:
        if self._catalog is None:
            self._catalog = open_catalog(self.location)
        return self._catalog

    def _prepare_place(self) -> None:
        # Files are stored only when the table exists, so that files without a table are those of another catalog.
        has_files = any(name.endswith(".parquet") for name in self.location.store().entries()[1])
        if has_files and self._loaded() is None:  # Another job may have made it meanwhile.
            raise ConfigurationError(
                f"{self.location} has files of a table that this catalog does not have: name its catalog, or another "
                "prefix"
            )

    def _write(self, schema: pa.Schema, parts: Iterable[Iterator[pa.RecordBatch]]) -> list[LakeFile]:
        """Write a file for each part that has rows, durably."""
        new = NewLakeFile(self.location, "data", schema)
        files = [file for part in parts if (file := new.write(part)) is not None]
        if self.location.folder is not None and files:
            sync_folder(self.location.folder)
        return files

    def _described(self, metadata: TableMetadata, files: Iterable[LakeFile]) -> list[DataFile]:
        """Return files that were written as the table's metadata list them."""
        store = self.location.store()
        ends = {f"{self.location}/{file.path}": (read_end_of(store, file)[1], file.bytes) for file in files}
        return [parquet_file_to_data_file(FileEnds(ends), metadata, url) for url in ends]

    def _remove_unused(self, table: PyIcebergTable, horizon: datetime) -> None:
        """Remove files that no snapshot names and that are older than a time."""
        store = self.location.store()
        # First list the existing files, then the needed ones: a commit in between only adds needed ones.
        old = [info for info in store.list() if info.modified < horizon.timestamp()]
        store.delete(info.key for info in unneeded(table.refresh(), self.location, old))

    @contextlib.contextmanager
    def _failures(self, verb: str) -> Iterator[None]:
        """Raise what pyiceberg and its catalog raise in the block as one line."""
        doing = f"{verb} the Iceberg table {self.location}"
        if self.location.folder is not None:
            with library_errors(doing, self.location.folder), missing_files(doing):
                yield
            return
        try:
            with missing_files(doing):
                yield
        except WalproxyError:
            raise
        except Exception as error:  # Any one: a table that pyiceberg does not take must not end the job of the others.
            raise catalog_error(error, doing, self.location) from error


def _position_of(table: PyIcebergTable) -> Position | None:
    value = table.properties.get(_POSITION)
    if value is None:
        return None
    lsn, _, sequence = value.partition("/")
    return Position(int(lsn), int(sequence))


def _set_schema(transaction: Transaction, table: PyIcebergTable, wanted: pa.Schema) -> None:
    """Give a table these columns. One of another type is another column, of which nothing of the old rows stays."""
    known = pa.schema([field.remove_metadata() for field in arrow_schema(table)])
    same = [field for field in wanted if field.name not in known.names or known.field(field.name).type == field.type]
    others = [field for field in wanted if field not in same]
    with transaction.update_schema(allow_incompatible_changes=True) as update:
        for name in {*known.names} - {field.name for field in same}:
            update.delete_column((name,))
        update.union_by_name(pa.schema(same))
        for field in _pyarrow_to_schema_without_ids(pa.schema(others)).fields:
            update.add_column((field.name,), field.field_type)
    if others:
        with transaction.update_schema() as update:  # pyiceberg does not move a column that it has just added.
            update.move_first(wanted.names[0])
            for before, name in itertools.pairwise(wanted.names):
                update.move_after(name, before)


def _too_small(tasks: Sequence[FileScanTask]) -> list[FileScanTask]:
    """Return the small files if there are too many: they become one with the next commit."""
    small = [task for task in tasks if task.file.file_size_in_bytes < SMALL_FILE_BYTES]
    return small if len(small) > SMALL_FILES_MAX else []
