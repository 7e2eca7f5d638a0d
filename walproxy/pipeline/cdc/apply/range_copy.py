"""Copy one large table in ranges of its blocks, by several sessions, and resume a copy that was interrupted.

Each range becomes one Parquet file, durable before it counts (`copy_state.py`). The sessions share the snapshot, so
whichever range they read at which time, all rows are those of one position. A session that is lost costs its range: it
is read again by another session, as long as the first session of the snapshot lives.

When the job was killed, the next copy has another snapshot, and other ranges may have changed. Each range that is
copied is compared with the new snapshot (`copy_ranges.py`), which sends two numbers in place of its rows; those that
are not the same are read again. So the copy is that of the new snapshot in any case.

Threads do the work (`session_workers.py`): what takes time, Arrow's readers and writers and the server, does not need
Python's lock. The caller's thread alone writes the state and reports the progress.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import Lsn, format_lsn
from walproxy.pipeline.cdc.apply.copy_ranges import CopyRange, horizon, is_comparable, is_same
from walproxy.pipeline.cdc.apply.copy_state import CopiedRange, CopyBasis, CopyState, CopyStateFile
from walproxy.pipeline.cdc.apply.copying import Snapshot, copied_rows
from walproxy.pipeline.cdc.apply.following import FollowingTable
from walproxy.pipeline.cdc.apply.session_workers import SessionWorkers, Turn
from walproxy.pipeline.cdc.publication import TableName
from walproxy.pipeline.cdc.published_tables import PublishedTable
from walproxy.pipeline.cdc.server import Connection, SourceUnavailable, one_value, system_id
from walproxy.pipeline.cdc.slot_stream import Stopped
from walproxy.pipeline.lake.disk import make_folder, storage_errors, sync_folder
from walproxy.pipeline.lake.files import NewLakeFile, read_footer_of
from walproxy.pipeline.lake.parquet_files import DataFile

_log = logging.getLogger(__name__)

_POLL_S: Final = 1.0
_OTHER_SESSIONS: Final = 2
"""The session that is asked, and the first one of the snapshot. Replication has connections of its own."""

_SESSIONS_MAX: Final = """
    SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
"""
_TIMELINE: Final = "SELECT left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)"


class CopyProgress(NamedTuple):
    """How far the copy of a table is.

    Attributes:
        lsn: of the copy.
        done: ranges of `ranges` that are copied. Both are 0 for a table that is read as a whole.
    """

    table: TableName
    lsn: Lsn
    done: int
    ranges: int


class Task(NamedTuple):
    """A range, by its number, and what it had become in an earlier snapshot."""

    number: int
    range: CopyRange
    copied: CopiedRange | None


class RangeOptions(NamedTuple):
    """How tables are copied.

    Attributes:
        sessions: that read at the same time.
        range_bytes: of a table that a range has; a table of one range is read as a whole.
        stop: when set, a copy ends with Stopped.
        report: called with the progress, before the first range and after each one.
    """

    sessions: int
    range_bytes: int
    stop: threading.Event
    report: Callable[[CopyProgress], None]


def require_room_for(connection: Connection, sessions: int) -> None:
    """See that the server permits the sessions of a copy, beside those that the job has all the time.

    Raises:
        ConfigurationError: it does not.
        SourceUnavailable, SourceRefused.
    """
    limit = int(one_value(connection, _SESSIONS_MAX, doing="ask for max_connections"))
    most = max(limit - _OTHER_SESSIONS, 1)
    if sessions > most:
        raise ConfigurationError(
            f"copy_sessions {sessions}: the server permits {limit} connections (max_connections without those that "
            f"are reserved for superusers), of which the job needs {_OTHER_SESSIONS} more: give at most {most}"
        )


class RangeCopy:
    """The copy of one table.

    Args:
        source: the snapshot, with a lock on the table.
        table: as the snapshot shows it.
        ranges: of the table.
        columns: returns the columns of the files, and whether they are to be those of the table. Then the columns are
            those of `FollowingTable.file_schema`.
        null_if_bad: columns of which values become null that their type cannot hold.
    """

    def __init__(
        self,
        source: Snapshot,
        table: PublishedTable,
        ranges: Sequence[CopyRange],
        following: FollowingTable,
        state_file: CopyStateFile,
        columns: Callable[[], tuple[pa.Schema, bool]],
        null_if_bad: Set[str],
    ) -> None:
        self._source = source
        self._table = table
        self._ranges = ranges
        self._following = following
        self._state_file = state_file
        self._columns = columns
        self._null_if_bad = null_if_bad

    def copy(self, options: RangeOptions) -> CopyState:
        """Copy all ranges; return the state, whose files are the rows of the table.

        Raises:
            BadValue: a value cannot be one of its column's type.
            Stopped: on request. What was copied stays.
            TableMoved: another job copies the table.
            SourceRefused, SourceUnavailable, StorageFailed, StorageFull, ArchiveError.
        """
        found = self._state_file.read()
        schema, is_direct = self._columns()
        basis = self._basis(schema, is_direct=is_direct)
        if found is not None and found.basis == basis and not self._is_committed(found):
            state = self._comparable(found)
        else:
            self._state_file.forget(found)
            state = CopyState.new(basis, self._ranges)
        location = self._state_file.files_location(state)
        if location.folder is not None:
            with storage_errors(f"make {location.folder}"):
                make_folder(location.folder)
        self._state_file.write(state)
        self._state_file.remove_files(state, kept=state.files)
        state = self._all_copied(state, NewLakeFile(location, state.id, schema), options)
        # The locks of the first session kept others from rewriting the table all the time.
        self._source.check()
        self._state_file.remove_files(state, kept=state.files)
        return state

    def _basis(self, schema: pa.Schema, *, is_direct: bool) -> CopyBasis:
        connection = self._source.connection
        timeline = one_value(connection, _TIMELINE, doing="look at the WAL")
        return CopyBasis(
            f"{system_id(connection)}/{timeline}/{connection.info.dbname}",
            self._table.fingerprint,
            schema.to_string(show_field_metadata=True),
            sorted(self._null_if_bad),
            self._table.row_filter,
            is_direct,
        )

    def _is_committed(self, state: CopyState) -> bool:
        """Return whether the table has the files already: a commit whose reply was lost."""
        return state.basis.is_direct and not self._following.live_files().isdisjoint(file.path for file in state.files)

    def _comparable(self, state: CopyState) -> CopyState:
        """Return the state without ranges of which it cannot be known whether they are the same now."""
        copied = [
            each
            if each is not None
            and each.lsn <= self._source.lsn
            and is_comparable(self._source.connection, each.horizon_xid)
            else None
            for each in state.copied
        ]
        return msgspec.structs.replace(state, copied=copied)

    def _all_copied(self, state: CopyState, new_file: NewLakeFile, options: RangeOptions) -> CopyState:
        tasks = [Task(number, state.ranges[number], copied) for number, copied in enumerate(state.copied)]
        # The ranges that are only compared come first: whether they count is known then.
        tasks.sort(key=lambda task: task.copied is None)
        found = state.done
        state = msgspec.structs.replace(state, copied=[None] * len(state.ranges))
        report = CopyProgress(self._table.table, self._source.lsn, 0, len(state.ranges))
        options.report(report)
        xid = horizon(self._source.connection)

        def work(connection: Connection, task: Task, turn: Turn) -> CopiedRange:
            if task.copied is not None and self._is_same(connection, task, new_file):
                return msgspec.structs.replace(task.copied, lsn=self._source.lsn, horizon_xid=xid)
            file = new_file.write(_until(turn.is_over, self._rows(connection, task, new_file.schema)))
            file = file or DataFile("", 0, 0)
            return CopiedRange(self._source.lsn, xid, file.rows, file.path, file.bytes)

        again = 0
        workers = SessionWorkers(self._session, work, tasks, options.sessions, "range")
        try:
            with workers:
                while state.done < len(state.ranges):
                    results = workers.results(_POLL_S)
                    if results:
                        state, again = self._with_results(state, tasks, results, again)
                        options.report(report._replace(done=state.done))
                    else:
                        self._source.check()
                    if options.stop.is_set() and state.done < len(state.ranges):
                        raise Stopped(f"stopped while {self._table.table} was copied: its ranges are kept")
        except (Stopped, SourceUnavailable):
            self._with_results(state, tasks, workers.left(), again)
            raise
        if found:
            _log.info(
                "%s: %d of %d ranges had been copied before, and %d of them had changed up to %s",
                self._table.table,
                found,
                len(state.ranges),
                again,
                format_lsn(self._source.lsn),
            )
        return state

    def _with_results(
        self, state: CopyState, tasks: Sequence[Task], results: Sequence[tuple[Task, CopiedRange]], again: int
    ) -> tuple[CopyState, int]:
        """Note ranges durably; return the state, and how many copied ones had changed so far."""
        copied = list(state.copied)
        before = {task.number: task.copied for task in tasks}
        for task, each in results:
            copied[task.number] = each
            again += task.copied is not None and task.copied.path != each.path
        location = self._state_file.files_location(state)
        if location.folder is not None:
            with storage_errors(f"sync {location.folder}"):
                sync_folder(location.folder)
        state = msgspec.structs.replace(state, copied=copied)
        # Those that are not compared yet are kept, too: the job may end.
        kept = [now or before[number] for number, now in enumerate(copied)]
        self._state_file.write(msgspec.structs.replace(state, copied=kept))
        return state, again

    def _session(self) -> Connection:
        connection = self._source.session()
        try:
            # The planner may take a scan of all blocks for cheaper, for each range.
            connection.execute("SET LOCAL enable_seqscan = off")
            connection.execute("SET LOCAL max_parallel_workers_per_gather = 0")
        except BaseException:
            connection.close()
            raise
        return connection

    def _is_same(self, connection: Connection, task: Task, new_file: NewLakeFile) -> bool:
        copied = task.copied
        assert copied is not None
        if copied.file is not None:
            try:
                footer = read_footer_of(new_file.location.store(), copied.file)
            except ConfigurationError:  # It is missing, or another one.
                return False
            if footer.rows != copied.rows:
                return False
        return is_same(connection, task.range, self._table.row_filter, copied.horizon_xid, copied.rows)

    def _rows(self, connection: Connection, task: Task, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        condition = task.range.condition(self._table.row_filter)
        source = task.range.source()
        return copied_rows(connection, source, condition, self._table.table, schema, self._null_if_bad)


def _until(is_over: Callable[[], bool], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches. Raises Stopped when the work is over."""
    for batch in batches:
        if is_over():
            raise Stopped("the copy is over")
        yield batch
