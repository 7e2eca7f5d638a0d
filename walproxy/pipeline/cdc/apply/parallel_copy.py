"""Copy the tables of a snapshot, by several sessions at the same time.

Each session reads a range of a table, a small table as a whole, and takes the next one. All sessions import the
snapshot, so whichever range they read at which time, all rows are those of one position. A session that is lost costs
its range: another session reads it again, as long as the first session of the snapshot lives.

Threads do the work (`session_workers.py`): what takes time, Arrow's readers and writers and the server, does not need
Python's lock. The caller's thread alone writes files of states, commits each table when all of its ranges are there,
and reports the progress.
"""

import functools
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Sequence
from typing import Final, NamedTuple

from safekeeper.base.errors import ConfigurationError, WalproxyError
from safekeeper.base.lsn import Lsn
from walproxy.pipeline.cdc.apply.copy_state import CopiedRange
from walproxy.pipeline.cdc.apply.copying import Snapshot
from walproxy.pipeline.cdc.apply.session_workers import SessionWorkers
from walproxy.pipeline.cdc.apply.table_copy import TABLE_ERRORS, TableCopy, Task
from walproxy.pipeline.cdc.publication import TableName
from walproxy.pipeline.cdc.server import Connection, one_value
from walproxy.pipeline.cdc.slot_stream import Stopped

_POLL_S: Final = 1.0
_OTHER_SESSIONS: Final = 2
"""The session that is asked, and the first one of the snapshot. Replication has connections of its own."""

_SESSIONS_MAX: Final = """
    SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
"""
_Results = dict[TableCopy, list[tuple[Task, CopiedRange | WalproxyError]]]


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


class CopyOptions(NamedTuple):
    """How tables are copied.

    Attributes:
        sessions: that read at the same time.
        range_bytes: of a table that a range has; a table of one range is read as a whole.
        stop: when set, a copy ends with Stopped.
        report: called with the progress, before the first range of a table and after each one.
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


def copy_tables(
    source: Snapshot, copies: Sequence[TableCopy], options: CopyOptions, note: Callable[[TableCopy], None]
) -> Generator[tuple[TableCopy, WalproxyError | None]]:
    """Yield each copy when it is committed, or with the error of its table. Close the iterator.

    Args:
        note: called before anything of a table changes, and before its commit: it names the copy in the job's file,
            durably. Raises TableMoved: another job has replaced that file.

    Raises:
        Stopped: on request. Tables that were copied stay so, and ranges of others.
        SourceUnavailable, StorageFull, ArchiveError, TableMoved.
    """
    waiting, begun = deque(copies), set[TableCopy]()

    def work(session: Connection, task: Task, is_over: Callable[[], bool]) -> CopiedRange | WalproxyError:
        if options.stop.is_set():
            raise Stopped("the copy is over")
        try:
            return task.copy.error or task.copy.read(session, task, is_over)
        except TABLE_ERRORS as error:
            return error

    def report(copy: TableCopy) -> None:
        done, ranges = (copy.done, len(copy.ranges)) if copy.is_in_ranges else (0, 0)
        options.report(CopyProgress(copy.made.table, source.lsn, done, ranges))

    def has_room() -> bool:
        return bool(waiting) and workers.queued < options.sessions

    workers = SessionWorkers(source.session, work, options.sessions)
    results: _Results = {}
    try:
        with workers:
            while waiting or begun:
                # One at a time: what was read meanwhile is committed before the next one begins.
                if has_room():
                    copy = waiting.popleft()
                    try:
                        tasks = copy.begin(options.range_bytes, functools.partial(note, copy))
                    except TABLE_ERRORS as error:
                        yield copy, error
                        continue
                    begun.add(copy)
                    report(copy)
                    workers.add(tasks)
                waits = not has_room()
                results = _by_copy(workers.results(_POLL_S if waits else 0)) if begun else {}
                if options.stop.is_set() and (waiting or begun):
                    raise Stopped("the copy is over")
                if waits and not results:
                    source.check()
                for copy in [each for each in results if each in begun]:
                    try:
                        copy.take(results.pop(copy))
                        if copy.is_in_ranges:
                            report(copy)
                        if not copy.is_complete:
                            continue
                        # The locks of the first session kept others from rewriting the table all the time.
                        source.check()
                        copy.commit(functools.partial(note, copy))
                    except TABLE_ERRORS as error:
                        copy.error = error
                        if not copy.is_in_ranges:
                            copy.leave(())
                    begun.remove(copy)
                    yield copy, copy.error
    except BaseException as error:  # The iterator may be closed, too.
        left = _by_copy(workers.left())
        for copy in begun:
            copy.leave([*results.get(copy, ()), *left.get(copy, ())])
        if isinstance(error, Stopped):
            done = len(copies) - len(waiting) - len(begun)
            raise Stopped(f"stopped while tables were copied: {done} of {len(copies)} are done") from None
        raise


def _by_copy(results: Sequence[tuple[Task, CopiedRange | WalproxyError]]) -> _Results:
    found: _Results = defaultdict(list)
    for task, result in results:
        found[task.copy].append((task, result))
    return found
