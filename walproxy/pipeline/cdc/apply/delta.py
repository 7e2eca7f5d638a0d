"""A table that follows, in Delta Lake's format, written with delta-rs, in a folder or an object store.

The position is kept by two `txn` actions of each commit: Delta's own means for "this is in already", a number for an
application. Two commits that carry the same application conflict by Delta's rules, so a second job cannot put the same
changes in. No commit is retried: it is made against the version whose position was read, or fails.

In an object store a commit is a put that must not replace anything, and is durable when it returns. In a folder
delta-rs syncs nothing: the files that a commit names, and the log, are synced before the call returns.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction, write_deltalake
from deltalake.exceptions import TableNotFoundError
from deltalake.transaction import AddAction, create_table_with_add_actions

from safekeeper.base.errors import ArchiveError, StorageFailed, WalproxyError
from walproxy.pipeline.cdc.apply.following import (
    SMALL_FILE_BYTES,
    SMALL_FILES_MAX,
    FollowingTable,
    Position,
    key_filter,
    library_errors,
    no_check,
    unused_name,
)
from walproxy.pipeline.cdc.publication import TableName
from walproxy.pipeline.lake.delta import add_actions, log_entry, statistics_of, sync_version
from walproxy.pipeline.lake.disk import storage_errors, sync_file, sync_folder
from walproxy.pipeline.lake.errors import lake_error
from walproxy.pipeline.lake.files import read_footer_of
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.parquet_files import DataFile
from walproxy.pipeline.lake.position import require_position

_LSN_APPLICATION: Final = "walproxy.apply.lsn"
_SEQUENCE_APPLICATION: Final = "walproxy.apply.sequence"
_OPERATION: Final = "_walproxy_is_row"
_HOUR: Final = timedelta(hours=1)
_STORE_CONFIGURATION: Final = {"delta.checkpointInterval": "10"}
"""A merge reads each entry of the log since the last checkpoint, twice; delta-rs would write one after 100 entries."""


class DeltaFollowing(FollowingTable):
    """A table in Delta Lake's format."""

    def __init__(self, tables: LakeLocation, table: TableName) -> None:
        super().__init__(tables, table)
        self._opened: DeltaTable | None = None

    def position(self) -> Position | None:
        table = self._current()
        return None if table is None else _position_of(table)

    def is_foreign(self) -> bool:
        table = self._current()
        return table is not None and _position_of(table) is None

    def schema(self) -> pa.Schema:
        with self._failures("read"):
            return pa.schema(self._refreshed().schema().to_arrow())

    def replace(
        self,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        position: Position,
        *,
        require_only_job: Callable[[], None] = no_check,
    ) -> None:
        failures: list[WalproxyError] = []

        def write(table: DeltaTable | None) -> None:
            write_deltalake(
                self.location.url if table is None else table,
                _reader(schema, batches, failures),
                mode="error" if table is None else "overwrite",
                schema_mode=None if table is None else "overwrite",
                configuration=self._configuration,
                storage_options=self.location.delta_options(),
                commit_properties=_properties(position),
            )

        self._replace(write, position, require_only_job, failures)

    def file_schema(self, schema: pa.Schema, *, require_only_job: Callable[[], None] = no_check) -> pa.Schema:
        with self._failures("write"):
            Schema.from_arrow(schema)
        return schema

    def takes_files(self, schema: pa.Schema) -> bool:
        return self._current() is None or self.schema() == schema

    def replace_by_files(
        self,
        schema: pa.Schema,
        files: Sequence[DataFile],
        position: Position,
        *,
        require_only_job: Callable[[], None] = no_check,
    ) -> None:
        store, now_ms = self.location.store(), round(time.time() * 1000)
        actions = [
            AddAction(file.path, file.bytes, {}, now_ms, True, statistics_of(read_footer_of(store, file)))
            for file in files
        ]

        def write(table: DeltaTable | None) -> None:
            columns, properties = Schema.from_arrow(schema), _properties(position)
            if table is not None:
                table.create_write_transaction([*actions], "overwrite", columns, commit_properties=properties)
                return
            create_table_with_add_actions(
                self.location.url,
                columns,
                actions,
                mode="error",
                configuration=self._configuration,
                storage_options=self.location.delta_options(),
                commit_properties=properties,
            )

        self._replace(write, position, require_only_job, [])

    def live_files(self) -> set[str]:
        table = self._current()
        with self._failures("read"):
            return set() if table is None else {action["path"] for action in add_actions(table)}

    @property
    def _configuration(self) -> dict[str, str | None] | None:
        return None if self.location.folder is not None else dict(_STORE_CONFIGURATION)

    def _replace(
        self,
        write: Callable[[DeltaTable | None], None],
        position: Position,
        require_only_job: Callable[[], None],
        failures: list[WalproxyError],
    ) -> None:
        """Make the table by `write`, or give it other rows. `failures` has those of the rows, once it was called."""
        table = self._current()
        version, before = (None, None) if table is None else (table.version(), _position_of(table))
        require_only_job()
        try:
            with _first_of(failures), self._commit("write"):
                write(table)
        except (StorageFailed, ArchiveError):
            table = None if failures else self._current()
            if table is None or table.version() == version:
                raise
            if not self._is_replaced(_position_of(table), position, before):
                raise

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        known = set(self.schema().names)
        new = [Field.from_arrow(field) for field in fields if field.name not in known]
        if not new:
            return
        try:
            with self._commit("add columns to"):
                self._refreshed().alter.add_columns(new)
        except (StorageFailed, ArchiveError):
            if self.location.folder is not None or not {field.name for field in new} <= set(self.schema().names):
                raise

    def _put(
        self, batches: Iterable[pa.RecordBatch], position: Position, expected: Position, *, overwrites: bool
    ) -> None:
        failures: list[WalproxyError] = []
        with _first_of(failures), self._commit("write"):
            table = self._at(expected)
            write_deltalake(
                table,
                _reader(pa.schema(table.schema().to_arrow()), batches, failures),
                mode="overwrite" if overwrites else "append",
                commit_properties=_properties(position),
            )

    def _merge(
        self, upserts: pa.Table, deleted: pa.Table, key: Sequence[str], position: Position, expected: Position
    ) -> None:
        is_row = pa.repeat(pa.scalar(True), upserts.num_rows)
        is_gone = pa.repeat(pa.scalar(False), deleted.num_rows)
        operation = unused_name(_OPERATION, upserts.column_names)
        source = pa.concat_tables(
            [upserts.append_column(operation, is_row), deleted.append_column(operation, is_gone)],
            promote_options="default",
        )
        with self._commit("merge into"):
            table = self._at(expected)
            version = table.version()
            merger = table.merge(
                source,
                " AND ".join(f"s.{_quoted(name)} = t.{_quoted(name)}" for name in key),
                source_alias="s",
                target_alias="t",
                # Only then files are left out by their statistics, which are exact for these types alone.
                streamed_exec=not all(_has_exact_statistics(source.schema.field(name).type) for name in key),
                commit_properties=_properties(position),
            )
            merger = merger.when_matched_delete(predicate=f"NOT s.{_quoted(operation)}")
            merger = merger.when_matched_update_all(except_cols=[operation])
            merger.when_not_matched_insert_all(predicate=f"s.{_quoted(operation)}", except_cols=[operation]).execute()
        if table.version() == version:
            # delta-rs commits nothing if no row changes.
            self._put((), position, expected, overwrites=False)

    def lookup(self, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        names = keys.column_names
        with self._failures("read"):
            actions = add_actions(self._refreshed())
        wanted = [*names, *(column for column in columns if column not in names)]
        name = names[0]
        # Files of delta-rs state their texts' bounds in a type that pyarrow does not compare with text.
        among = ds.field(name).isin(keys[name].combine_chunks()) if _is_integer(keys, name) else None
        schema = self.schema()
        with self._failures("read"):
            dataset = self._dataset([action for action in actions if _may_hold(action, keys)], schema)
            batches = dataset.to_batches(columns=wanted, filter=among)
            parts = [key_filter(pa.Table.from_batches([batch]), keys, keep_matches=True) for batch in batches]
        return pa.concat_tables([pa.schema([schema.field(each) for each in wanted]).empty_table(), *parts])

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        # What is committed while they are read must find the table free.
        dataset = self.dataset()

        def rows() -> Iterator[pa.RecordBatch]:
            with self._failures("read"):
                yield from dataset.to_batches(columns=list(columns))

        return rows()

    def dataset(self) -> ds.Dataset:
        with self._failures("read"):
            return self._dataset(add_actions(self._refreshed()), self.schema())

    def _dataset(self, actions: Sequence[dict[str, Any]], schema: pa.Schema) -> ds.Dataset:
        """Return the rows of files of the log."""
        return self._dataset_of({action["path"]: action["size_bytes"] for action in actions}, schema)

    def tidy(self, keep: timedelta) -> None:
        table = self._refreshed()
        sizes = [action["size_bytes"] for action in add_actions(table)]
        if sum(size < SMALL_FILE_BYTES for size in sizes) > SMALL_FILES_MAX:
            with self._commit("compact"):
                table.optimize.compact()
        with self._commit("remove old files of"):
            hours = max(round(keep / _HOUR), 0)
            self._refreshed().vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False)

    def to_arrow(self) -> pa.Table:
        with self._failures("read"):
            return self._refreshed().to_pyarrow_table()

    def _at(self, expected: Position) -> DeltaTable:
        """Return the table as it is now: what is committed against it fails if another commit was faster.

        Raises:
            TableMoved: it has another position.
        """
        table = self._refreshed()
        require_position(self.location, expected, _position_of(table))
        return table

    def _current(self) -> DeltaTable | None:
        """Return the table as it is now, None if there is none."""
        with self._failures("read"):
            try:
                return self._refreshed()
            except TableNotFoundError:
                return None

    def _refreshed(self) -> DeltaTable:
        if self._opened is None:
            self._opened = DeltaTable(self.location.url, storage_options=self.location.delta_options())
        else:
            self._opened.update_incremental()
        return self._opened

    @contextlib.contextmanager
    def _commit(self, verb: str) -> Iterator[None]:
        """Make durable what the block commits."""
        folder = self.location.folder
        before = self._current() if folder is not None else None
        version = -1 if before is None else before.version()
        with self._failures(verb):
            try:
                yield
            except BaseException:
                self._opened = None  # Its state may be incomplete.
                raise
        if folder is not None:
            self._sync(folder, range(version + 1, self._refreshed().version() + 1))

    def _sync(self, folder: Path, versions: Sequence[int]) -> None:
        """Put on disk what these commits may have written."""
        with storage_errors(f"sync the table {folder}"):
            for version in versions:
                for line in log_entry(folder, version).read_text().splitlines():
                    added = json.loads(line).get("add")
                    if added is not None:
                        sync_file(folder / added["path"])
                sync_version(folder, version)
            if 0 in versions:
                sync_folder(folder.parent)

    @contextlib.contextmanager
    def _failures(self, verb: str) -> Iterator[None]:
        """Report what delta-rs refuses as one line."""
        doing = f"{verb} the table {self.location}"
        if self.location.folder is not None:
            with library_errors(doing, self.location.folder):
                yield
            return
        try:
            yield
        except WalproxyError:
            raise
        except Exception as error:  # delta-rs raises some that have no class of their own.
            raise lake_error(error, doing, self.location) from error


def _reader(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], failures: list[WalproxyError]
) -> pa.RecordBatchReader:
    """Return what delta-rs reads rows from. It makes text of errors: those of the rows are noted as they are."""

    def noting() -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except WalproxyError as error:
            failures.append(error)
            raise

    return pa.RecordBatchReader.from_batches(schema, noting())


@contextlib.contextmanager
def _first_of(failures: list[WalproxyError]) -> Iterator[None]:
    """Raise the first of the failures that were noted in the block, instead of what became of it."""
    try:
        yield
    except (StorageFailed, ArchiveError):
        if failures:
            raise failures[0] from None
        raise


def _position_of(table: DeltaTable) -> Position | None:
    lsn = table.transaction_version(_LSN_APPLICATION)
    sequence = table.transaction_version(_SEQUENCE_APPLICATION)
    return None if lsn is None or sequence is None else Position(lsn, sequence)


def _properties(position: Position) -> CommitProperties:
    transactions = [
        Transaction(_LSN_APPLICATION, position.lsn),
        Transaction(_SEQUENCE_APPLICATION, position.sequence),
    ]
    return CommitProperties({"walproxy.position": str(position)}, 0, transactions)


def _may_hold(action: dict[str, Any], keys: pa.Table) -> bool:
    """Return whether a file may hold one of the keys, by the bounds of the key's first column."""
    name = keys.column_names[0]
    low, high = action.get(f"min.{name}"), action.get(f"max.{name}")
    if not _is_integer(keys, name) or low is None or high is None:
        return True
    return bool(pc.any(pc.and_(pc.greater_equal(keys[name], low), pc.less_equal(keys[name], high))).as_py())


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _is_integer(keys: pa.Table, name: str) -> bool:
    return bool(pa.types.is_integer(keys.schema.field(name).type))


def _has_exact_statistics(data_type: Any) -> bool:
    return pa.types.is_integer(data_type) or pa.types.is_string(data_type)
