"""The job: tables of a folder, or of an object store, follow those of a database, through one slot.

The slot is streamed in one session, as long as the job runs (change_feed.py). A step compares the catalogs with what is
known of each table, takes a range of the stream, merges it into the tables, copies tables that need it, notes the
position in the job's file, and confirms it to the server, which moves the slot: in this order, so that a crash at any
point leaves work to be done again, and nothing that is missing. A session begins at the position of the job's file.
What is held of a range is bounded: when there is too much of it, all tables take what they have, with a position in the
middle of the range, even of a transaction.

The catalogs are read after the end of the range was fixed. So what was altered below that end is seen, and what was
altered beyond it is seen early, which costs a copy at worst.

A table that is published and not in the job's file is copied, at the start or in the step in which it appears. A copy
is newer than the current range, by its position. tables.py decides about single tables.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import Final

import msgspec

from safekeeper.base.errors import ArchiveError, ArchiveUnavailable, ConfigurationError, StorageFailed
from safekeeper.base.lsn import Lsn, format_lsn
from walproxy.pipeline.cdc.apply.copying import Snapshot
from walproxy.pipeline.cdc.apply.following import Position
from walproxy.pipeline.cdc.apply.job_file import Job, job_state, only_job, read_job, write_job
from walproxy.pipeline.cdc.apply.options import ApplyOptions
from walproxy.pipeline.cdc.apply.parallel_copy import CopyOptions, CopyProgress, require_room_for
from walproxy.pipeline.cdc.apply.status_files import StatusFiles
from walproxy.pipeline.cdc.apply.tables import Tables
from walproxy.pipeline.cdc.change_feed import ChangeFeed
from walproxy.pipeline.cdc.changes import Change, ChangedRows
from walproxy.pipeline.cdc.publication import TableName, require_publications
from walproxy.pipeline.cdc.reading import HELD_BYTES_MAX, QUORUM_TIMEOUT_S, AskedQuorum, require_position
from walproxy.pipeline.cdc.safe_lsn import SafeLsn
from walproxy.pipeline.cdc.server import (
    Connection,
    SourceRefused,
    SourceUnavailable,
    connect,
    require_server,
    server_major,
    system_id,
)
from walproxy.pipeline.cdc.slot import (
    create_slot,
    drop_slot,
    have_flushed,
    is_held_back,
    protocol_version,
    read_slot,
    usable_slot,
)
from walproxy.pipeline.cdc.slot_stream import SlotStream, Stopped
from walproxy.pipeline.choices import NEW_ARRAYS
from walproxy.pipeline.lake.opening import check_format
from walproxy.pipeline.lake.probe import require_single_winner
from walproxy.pipeline.lake.state import StateObject
from walproxy.postgres.logical_replication import WAITING_READER

__all__ = ["ApplyJob", "ApplyOptions", "TablesQuarantined", "no_report", "opened_job", "run_apply"]

_log = logging.getLogger(__name__)
_RETRY_S: Final = 5.0
_TIDY_S: Final = 3600.0
_COPY_REPORT_S: Final = 1.0


class TablesQuarantined(SourceRefused):
    """Some tables do not follow: everything else is done."""


class _SlotTooFarBehind(SourceUnavailable):
    """The slot retains more WAL than it may."""


def no_report(progress: CopyProgress) -> None:
    """Do nothing: the progress is not shown."""


def run_apply(
    options: ApplyOptions,
    *,
    once: bool,
    stop: threading.Event | None = None,
    on_copy: Callable[[CopyProgress], None] = no_report,
) -> None:
    """Follow the database, indefinitely or up to where it is now.

    Args:
        stop: when set, the job ends after the current step, or within it if nothing comes from the server.
        on_copy: called when the copy of a table begins, and after each of its ranges.

    Raises:
        WalproxyError: what an operator must look at. Without `once`, a server that does not answer is waited for.
    """
    stop = stop or threading.Event()
    status = StatusFiles(options.location)
    with only_job(options.location), _served(options, status):
        begins = True
        while True:
            try:
                with opened_job(options, first=begins, ends=once, stop=stop, status=status, on_copy=on_copy) as job:
                    begins = False
                    job.copy_missing()
                    if once:
                        job.follow_until_now(stop)
                        job.require_all()
                        return
                    while not stop.is_set():
                        if not job.step():
                            stop.wait(options.interval_s)
                    return
            except Stopped as error:
                _log.info("%s", error)
                return
            except _SlotTooFarBehind as error:
                _log.error("%s", error)
                status.problem = str(error)
                continue
            except (SourceUnavailable, ArchiveUnavailable) as error:
                if once:
                    raise
                _log.warning("%s; retrying in %.0f s", error, _RETRY_S)
                status.problem = str(error)
            if stop.wait(_RETRY_S):
                return


@contextmanager
def _served(options: ApplyOptions, status: StatusFiles) -> Iterator[None]:
    """Serve the status in the block, if the options say so."""
    if options.http_listen is None:
        yield
        return
    from walproxy.pipeline.cdc.apply.status_pages import served_pages

    with served_pages(
        status, options.http_listen, options.http_tls, options.http_allow, options.http_access
    ) as address:
        _log.info("%s on %s", "HTTPS" if options.http_tls is not None else "HTTP", address)
        yield


@contextmanager
def opened_job(
    options: ApplyOptions,
    *,
    first: bool,
    ends: bool,
    stop: threading.Event | None = None,
    status: StatusFiles | None = None,
    on_copy: Callable[[CopyProgress], None] = no_report,
) -> Iterator["ApplyJob"]:
    """Give the job, with its connections.

    Args:
        first: tables are to be copied again on request.
        ends: it ends when all tables are up to now; copies wait for open transactions as long as it takes.
        stop: when set, a step does not wait for a server that sends nothing.
        status: what the job reports to.
        on_copy: as for `run_apply`.
    """
    stop, status = stop or threading.Event(), status or StatusFiles(options.location)
    if options.location.folder is None and first:
        check_format(options.location, options.format)
        require_single_winner(options.location.object_store())
    with ExitStack() as stack:
        asking = stack.enter_context(closing(connect(options.conninfo, application_name=WAITING_READER)))
        require_publications(asking, options.publications)
        require_room_for(asking, options.copy_sessions)
        state = job_state(options.location)
        job = _job_of(options, state, asking, start_over=options.start_over and first)
        if first and options.copy_again:
            again = {str(table) for table in options.copy_again}
            for name in again - job.tables.keys():
                raise ConfigurationError(f"--copy-again: this job has no table {name}")
            tables = {name: known for name, known in job.tables.items() if name not in again}
            copying = {name: copy for name, copy in job.copying.items() if name not in again}
            job = msgspec.structs.replace(job, tables=tables, copying=copying)
        job = msgspec.structs.replace(job, owner=uuid.uuid4().hex)
        feed = stack.enter_context(
            closing(ChangeFeed(options.conninfo, options.slot, options.publications, job.position_lsn, beside=asking))
        )
        require_server(asking, feed.server_start)
        require_position(asking, options.slot, job.position_lsn)  # the session holds the slot: no other one moves it
        # A job that does not get the slot has not disturbed the one that has it.
        write_job(state, job)
        opened = ApplyJob(options, state, job, feed, asking, stop, status, ends=ends, on_copy=on_copy)
        yield stack.enter_context(closing(opened))


def _job_of(options: ApplyOptions, state: StateObject, connection: Connection, *, start_over: bool) -> Job:
    """Return the job of the location; a new one, with a slot, if there is none yet.

    Raises:
        ConfigurationError: the location has a job that is about something else.
        SourceRefused: the slot is not the one that the job has read so far.
    """
    identity, database = system_id(connection), connection.info.dbname
    job = read_job(state)
    if job is not None and job.mode != options.mode:
        raise ConfigurationError(
            f"the tables in {options.location} are kept with --mode {job.mode}, not {options.mode}: add --mode "
            f"{job.mode}, or name another folder"
        )
    arrays = options.arrays or (NEW_ARRAYS if job is None else job.arrays)
    if job is None or start_over or job.starts_over:
        if job is not None and job.starts_over and read_slot(connection, options.slot) is not None:
            drop_slot(connection, options.slot)
        if read_slot(connection, options.slot) is None:
            _log.info("creating slot %s: waiting for the transactions in progress", options.slot)
            create_slot(connection, options.slot)
        position_lsn = usable_slot(connection, options.slot)[1]
        return Job(
            identity,
            database,
            options.slot,
            list(options.publications),
            options.format,
            position_lsn,
            {},
            mode=options.mode,
            arrays=arrays,
        )
    asked: list[tuple[str, object, object]] = [
        ("the cluster", job.system_id, identity),
        ("the database", job.database, database),
        ("the slot", job.slot, options.slot),
        ("the publications", sorted(job.publications), sorted(options.publications)),
        ("the format", job.format, options.format),
    ]
    for what, of_job, of_options in asked:
        if of_job != of_options:
            raise ConfigurationError(
                f"the tables in {options.location} follow {what} {of_job}, not {of_options}: name another folder"
            )
    if read_slot(connection, options.slot) is None:
        raise SourceRefused(
            f"slot {options.slot!r} is missing: changes since {format_lsn(job.position_lsn)} may be lost; begin with a "
            "new slot and new copies: --start-over"
        )
    usable_slot(connection, options.slot)
    return msgspec.structs.replace(job, arrays=arrays)


class ApplyJob:
    """The tables, the position and the connections of a job that runs."""

    def __init__(
        self,
        options: ApplyOptions,
        state: StateObject,
        job: Job,
        feed: ChangeFeed,
        asking: Connection,
        stop: threading.Event,
        status: StatusFiles,
        *,
        ends: bool,
        on_copy: Callable[[CopyProgress], None],
    ) -> None:
        self._options = options
        self._on_copy = on_copy
        self._state = state
        self._job = job
        self._feed = feed
        self._asking = asking
        self._safe_lsn = SafeLsn(options.status)
        self._quorum = AskedQuorum(self._safe_lsn, asking, QUORUM_TIMEOUT_S)
        self._stream = SlotStream(
            feed,
            self._quorum,
            job.position_lsn,
            version=protocol_version(server_major(asking)),
            held_bytes_max=min(HELD_BYTES_MAX, options.memory_bytes),
            is_held_back=lambda: is_held_back(asking, options.slot),
            stop=stop,
        )
        self._status = status
        self._tidied_at: dict[TableName, float] = {}
        self._copy_reported_at = 0.0
        copies = CopyOptions(options.copy_sessions, options.copy_range_bytes, stop, self._report_copy)
        self.tables = Tables(options, asking, job, copies, waits_for_copies=ends)

    def close(self) -> None:
        """Close the tables."""
        self.tables.close()

    @property
    def position_lsn(self) -> Lsn:
        """Every table that follows has what was committed below it."""
        return self._job.position_lsn

    def copy_missing(self) -> None:
        """Copy every table that is published and not known, or of which only a part may be there.

        Raises:
            SourceRefused, SourceUnavailable, StorageFailed, StorageFull.
        """
        self.tables.look()
        self._copy()
        self._note(self._job.position_lsn)

    def follow_until_now(self, stop: threading.Event) -> None:
        """Read up to what is on the quorum now, and tidy the tables."""
        self.follow_until(self._safe_lsn.read(self._asking), stop)
        for target in self.tables:
            self._tidy(target.table)

    def follow_until(self, target_lsn: Lsn, stop: threading.Event) -> None:
        """Read up to a position, which must be on the quorum."""
        while self._job.position_lsn < target_lsn and not stop.is_set():
            self.step(target_lsn)

    def require_all(self) -> None:
        """See that no table is quarantined. Raises TablesQuarantined."""
        quarantined = self.tables.quarantined
        if quarantined:
            reasons = "; ".join(f"{name}: {quarantined[name].reason}" for name in sorted(quarantined))
            raise TablesQuarantined(f"{len(quarantined)} tables are quarantined, all others follow: {reasons}")

    def step(self, target_lsn: Lsn | None = None) -> bool:
        """Read and apply one range; return whether more is there to be read at once.

        Raises:
            WalproxyError: nothing that was done is lost; another job reads the range again.
        """
        self._feed.check()
        retained_bytes = self._check_slot()
        begin_lsn = self._job.position_lsn
        safe_lsn = self._safe_lsn.read(self._asking) if target_lsn is None else target_lsn
        end_lsn = min(safe_lsn, begin_lsn + self._options.max_bytes)
        if end_lsn <= begin_lsn:
            if self.tables.is_retry_due():
                self.copy_missing()
            self._status.write(self._job, self.tables, 0, retained_bytes)
            return False
        self.tables.look()
        if self.tables.known() != self._job.tables:
            # After a crash the changes of this step must not count as older than what was followed just now.
            self._note(begin_lsn)
        count = self._take(end_lsn)
        self._flush(Position(end_lsn, 0))
        self.tables.settle(is_current=end_lsn == safe_lsn)
        self._copy()
        self._note(end_lsn)
        self._feed.confirm(end_lsn)
        self._status.write(self._job, self.tables, safe_lsn - end_lsn, retained_bytes)
        if count:
            _log.info("%d changes, up to %s", count, format_lsn(end_lsn))
        return end_lsn < safe_lsn

    def _check_slot(self) -> int:
        """Return how much WAL the slot retains. Raises _SlotTooFarBehind."""
        state = read_slot(self._asking, self._options.slot)
        retained_bytes = 0 if state is None else state.retained_bytes or 0
        limit = self._options.max_retained_bytes
        if limit is not None and retained_bytes > limit:
            self._job = msgspec.structs.replace(self._job, starts_over=True)
            write_job(self._state, self._job)
            raise _SlotTooFarBehind(
                f"slot {self._options.slot!r} retains {retained_bytes} bytes of WAL, more than max_retained allows "
                f"({limit}): it is dropped, and all tables are copied again"
            )
        return retained_bytes

    def _take(self, end_lsn: Lsn) -> int:
        """Hold the changes of the range up to a position, as many as may be held; return their number."""
        count = held_bytes = 0
        with closing(self._stream.read(end_lsn, lambda: have_flushed(self._asking))) as changes:
            for change in changes:
                if isinstance(change, Change):
                    parts: Iterable[Change | ChangedRows] = (change,)
                    end_sequence = change.sequence + 1
                else:
                    parts, end_sequence = change.parts, change.end_sequence
                is_taken = False
                for part in parts:
                    target = None if part.relation is None else self.tables.target_of(part.relation)
                    if target is not None:
                        count += self.tables.take(target, part)
                        is_taken = True
                if is_taken:
                    held_bytes += change.size if isinstance(change, Change) else change.held_bytes
                # Only here: the changes of one part have numbers between those of another.
                if held_bytes >= self._options.memory_bytes:
                    self._flush(Position(change.transaction.commit_lsn, end_sequence))
                    held_bytes = 0
        return count

    def _flush(self, position: Position) -> None:
        for table in self.tables.flush(position):
            if time.monotonic() - self._tidied_at.setdefault(table, time.monotonic()) > _TIDY_S:
                self._tidy(table)

    def copy_again(self, tables: Iterable[TableName], reason: str) -> None:
        """Copy tables again at once. Raises as `copy_missing`."""
        for table in tables:
            self.tables.copy_again(table, reason)
        self._copy()
        self._note(self._job.position_lsn)

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """Give the tables as of a position of the job's server. Raises as `copying.snapshot`."""
        return self._options.snapshot(self._asking)

    def wait_for_quorum(self, lsn: Lsn) -> None:
        """Return when a position is on the quorum. Raises SourceUnavailable."""
        self._quorum.wait_for(lsn)

    def _copy(self) -> None:
        self.tables.copy(self.wait_for_quorum, lambda: self._note(self._job.position_lsn))

    def _report_copy(self, progress: CopyProgress) -> None:
        """Report how far a copy is: to the caller each time, in the files from time to time."""
        self._on_copy(progress)
        if not progress.ranges or time.monotonic() - self._copy_reported_at < _COPY_REPORT_S:
            return
        self._copy_reported_at = time.monotonic()
        slot = read_slot(self._asking, self._options.slot)
        retained_bytes = 0 if slot is None else slot.retained_bytes or 0
        lag_bytes = max(progress.lsn - self._job.position_lsn, 0)
        self._status.write(self._job, self.tables, lag_bytes, retained_bytes, copying=progress)

    def _note(self, position_lsn: Lsn) -> None:
        self._job = msgspec.structs.replace(
            self._job,
            position_lsn=position_lsn,
            tables=self.tables.known(),
            copying=self.tables.copying(),
            quarantined=dict(self.tables.quarantined),
            to_copy=self.tables.to_copy(),
        )
        write_job(self._state, self._job)

    def _tidy(self, table: TableName) -> None:
        self._tidied_at[table] = time.monotonic()
        try:
            self.tables.following(table).tidy(self._options.keep)
        except (StorageFailed, ArchiveError) as error:
            _log.warning("%s; retrying later", error)
