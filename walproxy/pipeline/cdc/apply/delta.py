"""A table that follows, in Delta Lake's format, written with delta-rs.

The position is kept by two `txn` actions of each commit: Delta's own means for "this is in already", a number for an
application. Two commits that carry the same application conflict by Delta's rules, so a second job cannot put the same
changes in. delta-rs syncs nothing: the files that a commit names, and the log, are synced before the call returns.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Field, Transaction, write_deltalake

from safekeeper.base.errors import StorageFailed, WalproxyError
from walproxy.pipeline.cdc.apply.following import (
    SMALL_FILE_BYTES,
    SMALL_FILES_MAX,
    FollowingTable,
    Merge,
    Position,
    key_filter,
    library_errors,
    unused_name,
)
from walproxy.pipeline.cdc.publication import TableName
from walproxy.pipeline.tables.disk import storage_errors, sync_file, sync_folder
from walproxy.pipeline.tables.position import require_position

_LSN_APPLICATION: Final = "walproxy.apply.lsn"
_SEQUENCE_APPLICATION: Final = "walproxy.apply.sequence"
_OPERATION: Final = "_walproxy_is_row"
_VERSION_DIGITS: Final = 20
_HOUR: Final = timedelta(hours=1)


class DeltaFollowing(FollowingTable):
    """A table in Delta Lake's format."""

    def __init__(self, folder: Path, table: TableName) -> None:
        super().__init__(folder, table)
        self._opened: DeltaTable | None = None

    def position(self) -> Position | None:
        with self._failures("read"):
            if not DeltaTable.is_deltatable(str(self.folder)):
                return None
            return _position_of(self._refreshed())

    def is_foreign(self) -> bool:
        with self._failures("read"):
            return DeltaTable.is_deltatable(str(self.folder)) and self.position() is None

    def schema(self) -> pa.Schema:
        with self._failures("read"):
            return pa.schema(self._refreshed().schema().to_arrow())

    def replace(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch], position: Position) -> None:
        failures: list[WalproxyError] = []
        with _first_of(failures), self._commit("write"):
            write_deltalake(
                str(self.folder),
                pa.RecordBatchReader.from_batches(schema, _noting_failures(batches, failures)),
                mode="overwrite",
                schema_mode="overwrite",
                commit_properties=_properties(position),
            )

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        known = set(self.schema().names)
        new = [Field.from_arrow(field) for field in fields if field.name not in known]
        if new:
            with self._commit("add columns to"):
                self._refreshed().alter.add_columns(new)

    def _merge(self, merge: Merge, key: Sequence[str], position: Position, expected: Position) -> None:
        if merge.truncated or not key:
            with self._commit("write"):
                write_deltalake(
                    self._at(expected),
                    merge.upserts,
                    mode="overwrite" if merge.truncated else "append",
                    commit_properties=_properties(position),
                )
            return
        is_row = pa.repeat(pa.scalar(True), merge.upserts.num_rows)
        is_gone = pa.repeat(pa.scalar(False), merge.deleted.num_rows)
        operation = unused_name(_OPERATION, merge.upserts.column_names)
        source = pa.concat_tables(
            [merge.upserts.append_column(operation, is_row), merge.deleted.append_column(operation, is_gone)],
            promote_options="default",
        )
        with self._commit("merge into"):
            merger = self._at(expected).merge(
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

    def lookup(self, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        names = keys.column_names
        with self._failures("read"):
            actions = pa.table(self._refreshed().get_add_actions(flatten=True)).to_pylist()
        paths = [str(self.folder / action["path"]) for action in actions if _may_hold(action, keys)]
        wanted = [*names, *(column for column in columns if column not in names)]
        name = names[0]
        # Files of delta-rs state their texts' bounds in a type that pyarrow does not compare with text.
        among = ds.field(name).isin(keys[name].combine_chunks()) if _is_integer(keys, name) else None
        schema = self.schema()
        with storage_errors(f"read the table {self.folder}"):
            batches = ds.dataset(paths, schema=schema, format="parquet").to_batches(columns=wanted, filter=among)
            parts = [key_filter(pa.Table.from_batches([batch]), keys, keep_matches=True) for batch in batches]
        return pa.concat_tables([pa.schema([schema.field(each) for each in wanted]).empty_table(), *parts])

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with self._failures("read"):
            actions = pa.table(self._refreshed().get_add_actions(flatten=True)).to_pylist()
        paths = [str(self.folder / action["path"]) for action in actions]
        with storage_errors(f"read the table {self.folder}"):
            yield from ds.dataset(paths, schema=self.schema(), format="parquet").to_batches(columns=list(columns))

    def tidy(self, keep: timedelta) -> None:
        table = self._refreshed()
        sizes = pa.table(table.get_add_actions())["size_bytes"].to_pylist()
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
        require_position(self.folder, expected, _position_of(table))
        return table

    def _refreshed(self) -> DeltaTable:
        if self._opened is None:
            self._opened = DeltaTable(str(self.folder))
        else:
            self._opened.update_incremental()
        return self._opened

    @contextlib.contextmanager
    def _commit(self, verb: str) -> Iterator[None]:
        """Put on disk what the block commits."""
        with self._failures(verb):
            before = self._refreshed().version() if DeltaTable.is_deltatable(str(self.folder)) else -1
            try:
                yield
            except BaseException:
                self._opened = None  # Its state may be incomplete.
                raise
            after = self._refreshed().version()
        with storage_errors(f"sync the table {self.folder}"):
            for version in range(before + 1, after + 1):
                self._sync(version)
            sync_folder(self.folder)
            sync_folder(self.folder / "_delta_log")
            if before < 0:
                sync_folder(self.folder.parent)

    def _sync(self, version: int) -> None:
        log = self.folder / "_delta_log"
        entry = log / f"{version:0{_VERSION_DIGITS}d}.json"
        for line in entry.read_text().splitlines():
            added = json.loads(line).get("add")
            if added is not None:
                sync_file(self.folder / added["path"])
        for path in (entry, log / f"{version:0{_VERSION_DIGITS}d}.checkpoint.parquet", log / "_last_checkpoint"):
            if path.exists():
                sync_file(path)

    @contextlib.contextmanager
    def _failures(self, verb: str) -> Iterator[None]:
        """Tell what delta-rs refuses as one line."""
        with library_errors(f"{verb} the table {self.folder}", self.folder):
            yield


def _noting_failures(batches: Iterable[pa.RecordBatch], failures: list[WalproxyError]) -> Iterator[pa.RecordBatch]:
    """delta-rs makes text of the errors of what it reads from: keep them as they are."""
    try:
        yield from batches
    except WalproxyError as error:
        failures.append(error)
        raise


@contextlib.contextmanager
def _first_of(failures: list[WalproxyError]) -> Iterator[None]:
    """Raise the first of the failures that were noted in the block, instead of what became of it."""
    try:
        yield
    except StorageFailed:
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
