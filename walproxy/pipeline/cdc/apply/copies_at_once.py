"""Copy the tables of a snapshot: several small ones at the same time, large ones one after the other.

Each session takes the next table, reads it, and commits it, until all are done. A table of some 16 MB of text or more
is written while it is read, which one session does at a time. A table that is to be read in ranges is left until the
others are done, because its ranges occupy all sessions.

The tables of one snapshot do not depend on each other, and each has a commit of its own. What they share is the job's
file: it names each copy before its commit. The caller's thread alone writes it, once for all copies that wait for it.
So when the job is killed, several copies are named in the file, and each table has its commit or has not.
"""

import functools
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Final

from safekeeper.base.errors import WalproxyError
from walproxy.pipeline.cdc.apply.copying import Snapshot
from walproxy.pipeline.cdc.apply.range_copy import CopyProgress, RangeOptions
from walproxy.pipeline.cdc.apply.session_workers import SessionWorkers, Turn
from walproxy.pipeline.cdc.apply.table_copy import TABLE_ERRORS, TableCopy
from walproxy.pipeline.cdc.server import Connection
from walproxy.pipeline.cdc.slot_stream import Stopped

_POLL_S: Final = 1.0


def copy_tables(
    source: Snapshot,
    copies: Sequence[TableCopy],
    options: RangeOptions,
    begin: Callable[[Sequence[TableCopy]], None],
) -> Generator[tuple[TableCopy, WalproxyError | None]]:
    """Yield each copy when it is committed, or with the error of its table. Close the iterator.

    Args:
        begin: called in the thread that iterates, before each commit, with the copies that are to be committed. It
            notes them durably. Raises TableMoved: another job has replaced the job's file.

    Raises:
        Stopped: on request. Tables that were copied stay so.
        SourceUnavailable, StorageFull, ArchiveError, TableMoved.
    """
    large = []
    remaining = len(copies)
    streaming = threading.Lock()

    def work(session: Connection, copy: TableCopy, turn: Turn) -> WalproxyError | None:
        try:
            copy.put_whole(session, options.range_bytes, streaming, turn.request)
        except TABLE_ERRORS as error:
            return error
        return None

    def on_requests(waiting: Sequence[TableCopy]) -> None:
        for copy in waiting:
            options.report(CopyProgress(copy.made.table, copy.position.lsn, 0, 0))
        begin(waiting)

    with SessionWorkers(source.session, work, copies, options.sessions, "table", on_requests) as workers:
        while remaining:
            for copy, error in workers.results(_POLL_S):
                remaining -= 1
                if copy.ranges and error is None:
                    large.append(copy)
                else:
                    yield copy, error
            if options.stop.is_set() and remaining:
                raise Stopped(f"stopped while tables were copied: {len(copies) - remaining} of {len(copies)} are done")
    for copy in large:
        error = None
        try:
            copy.put_ranges(options, functools.partial(begin, [copy]))
        except TABLE_ERRORS as problem:
            error = problem
        yield copy, error
