"""The copy of one table: its columns, its ranges, and the commit that puts its rows in.

A table is read in ranges of its blocks, a small one in one range (copy_ranges.py). Each range becomes Parquet files,
durable before they count. When all are there, one commit puts all rows in, with the position of the snapshot. Before
that the job's file names the copy: after a crash, a table that has this position is not copied again.

The state of a copy of several ranges is kept (copy_state.py). When the job was killed, the next copy has another
snapshot, and ranges may have changed. Each range that is copied is compared with the new snapshot, which sends two
numbers in place of its rows; those that are not the same are read again. So the copy is that of the new snapshot in any
case.
"""

import contextlib
import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from safekeeper.base.errors import ConfigurationError, RemoteProtocolError, StorageFailed, WalproxyError
from safekeeper.base.lsn import format_lsn
from walproxy.pipeline.cdc.apply.copies import Copy, plan_copy, put_copy
from walproxy.pipeline.cdc.apply.copy_ranges import CopyRange, is_comparable, is_same, ranges_of
from walproxy.pipeline.cdc.apply.copy_state import CopiedRange, CopyBasis, CopyState
from walproxy.pipeline.cdc.apply.copying import Snapshot, copied_rows
from walproxy.pipeline.cdc.apply.following import FollowingTable, Position, library_errors
from walproxy.pipeline.cdc.apply.job_file import Copying, KnownTable
from walproxy.pipeline.cdc.apply.options import ApplyOptions
from walproxy.pipeline.cdc.apply.source_columns import fields_of, known_of, text_arrays
from walproxy.pipeline.cdc.published_tables import PublishedTable
from walproxy.pipeline.cdc.server import Connection, SourceRefused, one_line_errors
from walproxy.pipeline.cdc.slot_stream import Stopped
from walproxy.pipeline.lake.disk import make_folder, storage_errors, sync_folder
from walproxy.pipeline.lake.files import NewLakeFile, read_footer_of
from walproxy.pipeline.lake.parquet_files import DataFile, parts_of

_log = logging.getLogger(__name__)

TABLE_ERRORS: Final = (SourceRefused, RemoteProtocolError, ConfigurationError, StorageFailed)
"""Errors of one table that do not affect the others. A full disk affects all."""


class Task(NamedTuple):
    """A range of a table, by its number, and what it had become in an earlier snapshot."""

    copy: "TableCopy"
    number: int
    copied: CopiedRange | None


class TableCopy:
    """The copy of one table as of a snapshot.

    Args:
        source: the snapshot, with a lock on the table.
        made: the table as the snapshot shows it.
        following: the table that is to have its rows.
        bad_text: columns that are text because of their values; further ones are added.
        lists: arrays are lists.
        reason: why it is copied.

    Attributes:
        ranges: of the table, once it was begun.
        error: why the copy has failed.
    """

    def __init__(
        self,
        source: Snapshot,
        made: PublishedTable,
        following: FollowingTable,
        options: ApplyOptions,
        bad_text: set[str],
        *,
        lists: bool,
        reason: str,
    ) -> None:
        self.made = made
        self.position = Position(source.lsn, 0)
        self.ranges: list[CopyRange] = []
        self.error: WalproxyError | None = None
        self._source = source
        self._following = following
        self._options = options
        self._as_text = options.text_columns(made.table)
        self._bad_text = bad_text
        self._lists = lists
        self._reason = reason
        self._state_file = options.copy_state_file(following)
        self._found = 0
        self._changed = 0
        self._may_be_committed = False

    @property
    def copying(self) -> Copying:
        """What the job's file is to have of the copy before it is committed. Raises SourceRefused."""
        return Copying(self.known, self.position.lsn)

    @property
    def known(self) -> KnownTable:
        """What is to be remembered of the table. Raises SourceRefused: it cannot be followed."""
        return known_of(
            self.made,
            self._as_text,
            self._bad_text,
            self._options.mode,
            bad_as_null=self._options.on_bad_value == "null",
            lists=self._lists,
        )

    @property
    def is_in_ranges(self) -> bool:
        """Whether the table has more than one range, so that a state is kept."""
        return len(self.ranges) > 1

    @property
    def done(self) -> int:
        """The number of ranges that are copied."""
        return self._state.done

    @property
    def is_complete(self) -> bool:
        """Whether all ranges are copied."""
        return self.done == len(self.ranges)

    def begin(self, range_bytes: int, note: Callable[[], None]) -> list[Task]:
        """Decide about the columns; return what is to be read, or only compared with what was copied before.

        Args:
            range_bytes: of a table that a range has, about.
            note: notes the copy in the job's file. Raises TableMoved: another job has replaced that.

        Raises:
            SourceUnavailable, SourceRefused, ConfigurationError, StorageFailed, StorageFull, ArchiveError.
        """
        self._require_copyable()
        as_text = [*self._as_text, *self._bad_text]
        fields = fields_of(self.made, type(self._following), as_text, lists=self._lists)
        self._plan = plan_copy(self._following, self._options.mode, fields)
        self._bad_text |= self._plan.as_text
        _log.info("copying %s as of %s: %s", self.made.table, format_lsn(self.position.lsn), self._reason)
        is_direct = self._options.mode == "mirror" and self._following.takes_files(self._plan.schema)
        schema = self._following.file_schema(self._plan.schema, require_only_job=note) if is_direct else None
        schema = schema or self._plan.schema
        with self._source.connection.transaction():
            self.ranges = ranges_of(self._source.connection, self.made, range_bytes)
            state = self._begun(
                CopyBasis(
                    self._source.origin,
                    self.made.fingerprint,
                    schema.to_string(show_field_metadata=True),
                    sorted(self._null_if_bad),
                    self.made.row_filter,
                    is_direct,
                )
            )
        location = self._state_file.files_location(state)
        if location.folder is not None:
            with storage_errors(f"make {location.folder}"):
                make_folder(location.folder)
        if self.is_in_ranges:
            self._state_file.write(state)
        if self.is_in_ranges or not is_direct:
            self._state_file.remove_files(state, kept=state.files)
        self._new_file = NewLakeFile(location, state.id, schema)
        self._before = state.copied
        self._found = state.done
        self._state = msgspec.structs.replace(state, copied=[None] * len(state.ranges))
        tasks = [Task(self, number, copied) for number, copied in enumerate(self._before)]
        # The ranges that are only compared come first: whether they count is known then.
        return sorted(tasks, key=lambda task: task.copied is None)

    def _begun(self, basis: CopyBasis) -> CopyState:
        """Return the state of a copy that was interrupted, if it is of use; else a new one."""
        found = self._state_file.read()
        if found is None or found.basis != basis or not self.is_in_ranges or self._is_committed(found):
            self._state_file.forget(found)
            return CopyState.new(basis, self.ranges)
        self.ranges = found.ranges
        copied = [
            each
            if each is not None
            and each.lsn <= self._source.lsn
            and is_comparable(self._source.connection, each.horizon_xid)
            else None
            for each in found.copied
        ]
        return msgspec.structs.replace(found, copied=copied)

    def _is_committed(self, state: CopyState) -> bool:
        """Return whether the table has the files already: a commit whose reply was lost."""
        return state.basis.is_direct and not self._following.live_files().isdisjoint(file.path for file in state.files)

    def read(self, session: Connection, task: Task, is_over: Callable[[], bool]) -> CopiedRange:
        """Read a range into files, or see that it has not changed.

        Args:
            session: one of the snapshot, which can read another range after an error.
            is_over: returns whether the files are of use no longer.

        Raises:
            BadValue: a value cannot be one of its column's type.
            Stopped: the files are of use no longer.
            SourceUnavailable, SourceRefused, StorageFailed, StorageFull, ArchiveError.
        """
        each, snapshot = self.ranges[task.number], self._source
        doing = f"copy {self.made.table}"
        # What Arrow refuses of one table must not end the copies of the others.
        with (
            library_errors(doing, self._new_file.location.folder),
            one_line_errors(doing),
            session.transaction(),
        ):
            # The planner may take a scan of all blocks for cheaper, for each range.
            session.execute("SET LOCAL enable_seqscan = on" if each.is_whole else "SET LOCAL enable_seqscan = off")
            if task.copied is not None and self._is_same(session, each, task.copied):
                return msgspec.structs.replace(task.copied, lsn=snapshot.lsn, horizon_xid=snapshot.horizon_xid)
            files: list[DataFile] = []
            try:
                with contextlib.closing(self._rows(session, each)) as rows:
                    for part in parts_of(_until(is_over, rows)):
                        file = self._new_file.write(part)
                        files += [file] if file is not None else []
            except BaseException:
                for file in files:
                    self._new_file.remove(file)
                raise
        return CopiedRange(snapshot.lsn, snapshot.horizon_xid, sum(file.rows for file in files), files)

    def _rows(self, session: Connection, each: CopyRange) -> Generator[pa.RecordBatch]:
        condition, nulls = each.condition(self.made.row_filter), self._null_if_bad
        return copied_rows(session, each.source(), condition, self.made.table, self._new_file.schema, nulls)

    def _is_same(self, session: Connection, each: CopyRange, copied: CopiedRange) -> bool:
        store = self._new_file.location.store()
        try:
            if any(read_footer_of(store, file).rows != file.rows for file in copied.files):
                return False
        except ConfigurationError:  # A file is missing, or another one.
            return False
        return is_same(session, each, self.made.row_filter, copied.horizon_xid, copied.rows)

    def take(self, results: Sequence[tuple[Task, CopiedRange | WalproxyError]]) -> None:
        """Take over what `read` has returned or raised, durably. Raises the first of the errors."""
        copied = list(self._state.copied)
        for task, result in results:
            if isinstance(result, CopiedRange):
                copied[task.number] = result
                self._changed += task.copied is not None and task.copied.files != result.files
        location = self._new_file.location
        if location.folder is not None:
            with storage_errors(f"sync {location.folder}"):
                sync_folder(location.folder)
        self._state = msgspec.structs.replace(self._state, copied=copied)
        if self.is_in_ranges:
            # Those that are not compared yet are kept, too: the job may end.
            kept = [now or before for now, before in zip(copied, self._before, strict=True)]
            self._state_file.write(msgspec.structs.replace(self._state, copied=kept))
        for _, result in results:
            if isinstance(result, WalproxyError):
                raise result

    def leave(self, results: Sequence[tuple[Task, CopiedRange | WalproxyError]]) -> None:
        """Keep what was read of several ranges for the next copy, and remove the files of a single one.

        The files stay if the table has them, or may get them: a store may make a commit whose reply was lost later.
        """
        with contextlib.suppress(WalproxyError):
            if self.is_in_ranges:
                self.take(results)
            elif not self._may_be_committed:
                self._state_file.remove_files(self._state)

    def commit(self, note: Callable[[], None]) -> None:
        """Put the rows in. Arguments and errors as those of `begin`."""
        state, is_direct = self._state, self._state.basis.is_direct
        if self._found:
            _log.info(
                "%s: %d of %d ranges had been copied before, and %d of them had changed up to %s",
                self.made.table,
                self._found,
                len(self.ranges),
                self._changed,
                format_lsn(self.position.lsn),
            )
        if self.is_in_ranges:
            self._state_file.remove_files(state, kept=state.files)
        rows, files = self._state_file.rows(state), state.files if is_direct else None
        copy = Copy(self._plan, self.made.key, rows, self.position, self._source.unix_us, files)
        self._may_be_committed = is_direct and self._new_file.location.folder is None
        # Only the job that can note something is the one that may replace a table.
        put_copy(self._following, self._options.mode, copy, require_only_job=note)
        if not is_direct:
            self._state_file.remove_files(state)
        if self.is_in_ranges:
            self._state_file.remove()

    def _require_copyable(self) -> None:
        if self.made.problem is not None:
            raise SourceRefused(f"{self.made.table} cannot be followed: {self.made.problem}")
        if self._following.is_foreign():
            raise ConfigurationError(f"{self._following.location} is a table of another program: name another folder")
        if self._lists:
            self._bad_text |= text_arrays(self.made)
        _ = self.known  # Whether it can be followed.

    @property
    def _null_if_bad(self) -> frozenset[str]:
        """The columns of which values become null that their type cannot hold."""
        if self._options.on_bad_value != "null":
            return frozenset()
        return frozenset(self._plan.schema.names) - set(self.made.key)


def _until(is_over: Callable[[], bool], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches. Raises Stopped when the work is over."""
    for batch in batches:
        if is_over():
            raise Stopped("the copy is over")
        yield batch
