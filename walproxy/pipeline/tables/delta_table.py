"""A table in Delta Lake's format, written with delta-rs.

    NAME/*.parquet       data files, those of tasks that were killed included
    NAME/_delta_log/     the log: the table's truth

A commit is one entry of the log: files added, and a `txn` action that says which batch of which writer this is. Two
commits of one writer at once conflict by Delta's own rules; those of different writers follow each other. delta-rs
syncs nothing, so the log's files are synced here before a commit returns.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from safekeeper.errors import StorageFailed
from walproxy.pipeline.tables.disk import storage_errors, sync_file, sync_folder
from walproxy.pipeline.tables.parquet_files import Footer
from walproxy.pipeline.tables.table import CheckedFile, LiveFile, Table
from walproxy.pipeline.tables.table_folder import TableFormat

_PREFIX: Final = "walproxy."
_MILLISECONDS: Final = 1000


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

    def prepare(self) -> None:
        try:
            if not DeltaTable.is_deltatable(str(self.folder)):
                DeltaTable.create(str(self.folder), Schema.from_arrow(self.schema), mode="ignore", name=self.name)
        except DeltaError as error:
            raise self._failure("make", error) from error
        with storage_errors(f"make the table {self.folder}"):
            self._sync_log(0)
            sync_folder(self.folder)

    def last_batch(self, writer: str) -> int | None:
        return self._refreshed().transaction_version(writer)

    def _append(
        self, writer: str | None, batch: int | None, files: Sequence[CheckedFile], properties: dict[str, str]
    ) -> bool | None:
        table = self._refreshed()
        if writer is not None and batch is not None:
            last = table.transaction_version(writer)
            if last is not None and last >= batch:
                return False
        sync_folder(self.folder)
        now_ms = int(time.time() * _MILLISECONDS)
        actions = [AddAction(path.name, footer.bytes, {}, now_ms, True, _statistics(footer)) for path, footer in files]
        metadata = {f"{_PREFIX}{name}": value for name, value in properties.items()}
        transactions = []
        if writer is not None and batch is not None:
            metadata |= {f"{_PREFIX}writer": writer, f"{_PREFIX}batch": str(batch)}
            transactions.append(Transaction(writer, batch, now_ms))
        return self._commit_actions(table, actions, CommitProperties(metadata, 0, transactions))

    def _commit_actions(self, table: DeltaTable, actions: list[Any], properties: CommitProperties) -> bool | None:
        """Commit at the version behind the one that we know; None if somebody else was faster."""
        before = table.version()
        try:
            table.create_write_transaction(
                actions, "append", Schema.from_arrow(self.schema), commit_properties=properties
            )
        except CommitFailedError:
            self._opened = None
            return None
        except DeltaError as error:
            self._opened = None
            raise self._failure("commit to", error) from error
        self._sync_log(before + 1)
        return True

    def live_files(self) -> list[LiveFile]:
        table = self._refreshed()
        actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        return [
            LiveFile(str(self.folder / action["path"]), action["num_records"], action["size_bytes"], _bounds(action))
            for action in actions
        ]

    def _refreshed(self) -> DeltaTable:
        try:
            if self._opened is None:
                self._opened = DeltaTable(str(self.folder))
            else:
                self._opened.update_incremental()
        except DeltaError as error:
            self._opened = None
            raise self._failure("read", error) from error
        return self._opened

    def _sync_log(self, version: int) -> None:
        """Put on disk what a commit of this version may have written. Raises OSError."""
        for path in (
            self._delta_log / f"{version:020d}.json",
            self._delta_log / f"{version:020d}.checkpoint.parquet",
            self._delta_log / "_last_checkpoint",
        ):
            if path.exists():
                sync_file(path)
        sync_folder(self._delta_log)

    def _failure(self, verb: str, error: Exception) -> StorageFailed:
        return StorageFailed(f"could not {verb} the table {self.folder}: {str(error).strip().partition(chr(10))[0]}")


def _statistics(footer: Footer) -> str:
    """Return a file's statistics as Delta's log has them."""
    return json.dumps(
        {
            "numRecords": footer.rows,
            "minValues": {name: low for name, (low, _) in footer.bounds.items()},
            "maxValues": {name: high for name, (_, high) in footer.bounds.items()},
            "nullCount": footer.nulls,
        }
    )


def _bounds(action: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Return the bounds of 64-bit integers that an add action states."""
    bounds = {}
    for key, low in action.items():
        if key.startswith("min.") and isinstance(low, int) and not isinstance(low, bool):
            name = key.removeprefix("min.")
            high = action.get(f"max.{name}")
            if isinstance(high, int):
                bounds[name] = low, high
    return bounds
