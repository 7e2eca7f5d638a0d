"""The job: tables of a folder follow those of a database, through one slot.

A step reads a range of the slot, merges it into the tables, copies tables that need it, notes the position in the
job's file, and moves the slot: in this order, so that a crash at any point leaves work to be done again, and nothing
that is missing. What is held of a range is bounded: when there is too much of it, all tables take what they have, with
a position in the middle of the range, even of a transaction.

A table that is published and not in the job's file is copied: at the start, when its first change comes, or when
nothing else helps (target.py). A copy is newer than the range at hand: its position says so.
"""

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from safekeeper.errors import ConfigurationError
from safekeeper.lsn import Lsn, format_lsn
from walproxy.pipeline.cdc.apply.copying import snapshot
from walproxy.pipeline.cdc.apply.following import FollowingFormat, FollowingTable, Position
from walproxy.pipeline.cdc.apply.job_file import Job, KnownTable, only_job, read_job, write_job
from walproxy.pipeline.cdc.apply.target import Catalogs, Target, fields_of, known_of
from walproxy.pipeline.cdc.publication import (
    PublishedTable,
    TableName,
    require_all_changes,
    require_publications,
)
from walproxy.pipeline.cdc.reading import SlotReader
from walproxy.pipeline.cdc.safe_lsn import SafeLsn
from walproxy.pipeline.cdc.server import Connection, SourceRefused, SourceUnavailable, connect, system_id
from walproxy.pipeline.cdc.slot import advance, create_slot, read_slot

_log = logging.getLogger(__name__)
_RETRY_S: Final = 5.0
_TIDY_S: Final = 3600.0


class ApplyOptions(NamedTuple):
    """What a job does.

    Attributes:
        tables: those that are followed, all of the publications if empty.
        as_text: columns that are read as text, as `schema.table.column`.
        copy_again: tables that are copied again first.
        start_over: all of them, and the position is that of the slot, which is made if it is missing.
        status: who knows what is on a quorum (safe_lsn.py).
        max_bytes: WAL that a step reads.
        memory_bytes: of changes that are held at once.
        keep: how long old versions of the tables can be read.
    """

    conninfo: str
    slot: str
    publications: tuple[str, ...]
    folder: Path
    format: FollowingFormat
    tables: frozenset[TableName] = frozenset()
    as_text: frozenset[str] = frozenset()
    copy_again: frozenset[TableName] = frozenset()
    start_over: bool = False
    status: str | None = None
    interval_s: float = 5.0
    max_bytes: int = 256 << 20
    memory_bytes: int = 128 << 20
    keep: timedelta = timedelta(days=1)


def run_apply(options: ApplyOptions, *, once: bool, stop: threading.Event | None = None) -> None:
    """Follow the database, for ever or up to where it is now.

    Args:
        stop: when set, the job ends after the step at hand.

    Raises:
        WalproxyError: what an operator must look at. Without `once`, a server that does not answer is waited for.
    """
    stop = stop or threading.Event()
    with only_job(options.folder):
        begins = True
        while True:
            try:
                with _opened(options, first=begins) as job:
                    begins = False
                    job.copy_missing()
                    if once:
                        job.follow_until_now(stop)
                        return
                    while not stop.is_set():
                        if not job.step():
                            stop.wait(options.interval_s)
                    return
            except SourceUnavailable as error:
                if once:
                    raise
                _log.warning("%s; trying again in %.0f s", error, _RETRY_S)
            if stop.wait(_RETRY_S):
                return


def following_table(folder: Path, table_format: FollowingFormat, table: TableName) -> FollowingTable:
    """Return a table of a folder, whether it is there or not."""
    if table_format == "delta":
        from walproxy.pipeline.cdc.apply.delta import DeltaFollowing

        return DeltaFollowing(folder, table)
    from walproxy.pipeline.cdc.apply.iceberg import IcebergFollowing

    return IcebergFollowing(folder, table)


@contextmanager
def _opened(options: ApplyOptions, *, first: bool) -> Iterator["_ApplyJob"]:
    """Give the job, with its connections. Only the first time tables are to be copied again on request."""
    with ExitStack() as stack:
        reading = stack.enter_context(closing(connect(options.conninfo, application_name="walproxy apply")))
        asking = stack.enter_context(closing(connect(options.conninfo, application_name="walproxy apply")))
        require_publications(asking, options.publications)
        require_all_changes(asking, options.publications)
        job = _job_of(options, asking, start_over=options.start_over and first)
        if first and options.copy_again:
            again = {str(table) for table in options.copy_again}
            for name in again - job.tables.keys():
                raise ConfigurationError(f"--copy-again: this job has no table {name}")
            tables = {name: known for name, known in job.tables.items() if name not in again}
            job = msgspec.structs.replace(job, tables=tables)
        write_job(options.folder, job)
        yield stack.enter_context(closing(_ApplyJob(options, job, reading, asking)))


def _job_of(options: ApplyOptions, connection: Connection, *, start_over: bool) -> Job:
    """Return the job of the folder; a new one, with a slot, if there is none yet.

    Raises:
        ConfigurationError: the folder has a job that is about something else.
        SourceRefused: the slot is not the one that the job has read so far.
    """
    identity, database = system_id(connection), connection.info.dbname
    job = read_job(options.folder)
    if job is None or start_over:
        if read_slot(connection, options.slot) is None:
            _log.info("making slot %s: waiting for the transactions that are under way", options.slot)
            create_slot(connection, options.slot)
        position_lsn = _reader(options).check(connection)
        return Job(identity, database, options.slot, list(options.publications), options.format, position_lsn, {})
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
                f"the tables in {options.folder} follow {what} {of_job}, not {of_options}: name another folder"
            )
    state = read_slot(connection, options.slot)
    if state is None:
        raise SourceRefused(
            f"slot {options.slot!r} is gone: changes since {format_lsn(job.position_lsn)} may be lost; begin with a "
            "new slot and new copies: --start-over"
        )
    return job


def _reader(options: ApplyOptions) -> SlotReader:
    return SlotReader(options.slot, options.publications, SafeLsn(options.status))


class _ApplyJob:
    """The tables, the position and the connections of a job that runs."""

    def __init__(self, options: ApplyOptions, job: Job, reading: Connection, asking: Connection) -> None:
        self._options = options
        self._job = job
        self._reading = reading
        self._asking = asking
        self._reader = _reader(options)
        self._reader.check(reading)
        self._catalogs = Catalogs(asking, options.publications)
        self._followings: dict[TableName, FollowingTable] = {}
        self._targets: dict[TableName, Target] = {}
        self._strange: dict[TableName, str] = {}  # tables to be copied, and why
        self._tidied_at: dict[TableName, float] = {}
        for table in self._published():
            self._add_known(table)

    def close(self) -> None:
        """Let go of the tables."""
        for following in self._followings.values():
            following.close()

    def copy_missing(self) -> None:
        """Copy every table that is published and not known, or of which only a part may be there.

        Raises:
            SourceRefused, SourceUnavailable, StorageFailed, StorageFull.
        """
        missing = [table for table in self._published() if table not in self._targets]
        for table in missing:
            self._strange.setdefault(table, "it was not copied yet")
        self._copy()

    def follow_until_now(self, stop: threading.Event) -> None:
        """Read up to what is on the quorum now, and tidy the tables."""
        target_lsn = self._reader.safe_lsn.read(self._asking)
        while self._job.position_lsn < target_lsn and not stop.is_set():
            self.step(target_lsn)
        for table in list(self._targets):
            self._tidy(table)

    def step(self, target_lsn: Lsn | None = None) -> bool:
        """Read and apply one range; return whether more is there to be read at once.

        Raises:
            WalproxyError: nothing that was done is lost; the range is read again.
        """
        begin_lsn = self._job.position_lsn
        safe_lsn = self._reader.safe_lsn.read(self._asking) if target_lsn is None else target_lsn
        end_lsn = min(safe_lsn, begin_lsn + self._options.max_bytes)
        if end_lsn <= begin_lsn:
            return False
        count = self._take(begin_lsn, end_lsn)
        self._flush(Position(end_lsn, 0))
        self._copy()
        self._note(end_lsn)
        advance(self._asking, self._options.slot, end_lsn)
        if count:
            _log.info("%d changes, up to %s", count, format_lsn(end_lsn))
        return end_lsn < safe_lsn

    def _take(self, begin_lsn: Lsn, end_lsn: Lsn) -> int:
        """Hold the changes of a range, as many as may be held; return their number."""
        count = held_bytes = 0
        relation, target = None, None
        with closing(self._reader.read(self._reading, begin_lsn, end_lsn)) as changes:
            for change in changes:
                if change.relation is not relation:
                    relation = change.relation
                    target = None if relation is None else self._target_of(TableName(relation.schema, relation.name))
                if target is None:
                    continue
                target.take(change)
                count += 1
                held_bytes += change.size
                if held_bytes >= self._options.memory_bytes:
                    self._flush(Position(change.transaction.commit_lsn, change.sequence + 1))
                    held_bytes = 0
        return count

    def _target_of(self, table: TableName) -> Target | None:
        """Return the table that follows this one; None if there is none, or it is to be copied."""
        target = self._targets.get(table)
        if target is None and table not in self._strange and self._is_wanted(table):
            self._strange[table] = "it came into the publication"
        return target

    def _flush(self, position: Position) -> None:
        for target in self._targets.values():
            if target.flush(position):
                self._tidy_sometimes(target.table)

    def _copy(self) -> None:
        """Copy the tables that need it, all as of one position."""
        for table, target in self._targets.items():
            if target.copy_reason is not None:
                self._strange[table] = target.copy_reason
        if not self._strange:
            return
        reasons, self._strange = self._strange, {}
        _log.info("waiting for the transactions that are under way, to copy tables")
        with snapshot(self._options.conninfo, self._options.publications) as source:
            # What the copy shows must be on the quorum before anybody reads it here.
            self._reader.safe_lsn.wait_for(self._asking, source.lsn, self._reader.quorum_timeout_s)
            published = {each.table: each for each in source.tables}
            for table, reason in reasons.items():
                self._targets.pop(table, None)
                if table not in published:
                    _log.warning("%s is not in the publication any more: its copy stays as it is", table)
                    continue
                made = published[table]
                text = self._as_text(table)
                known = known_of(made, text)
                following = self._following(table)
                if following.is_foreign():
                    raise ConfigurationError(
                        f"{following.folder} is a table that another program made: name another folder"
                    )
                schema = pa.schema(fields_of(made, type(following), text))
                _log.info("copying %s as of %s: %s", table, format_lsn(source.lsn), reason)
                following.replace(schema, source.rows(made, schema), Position(source.lsn, 0))
                self._note(self._job.position_lsn, {str(table): known})
                self._add_known(table)

    def _note(self, position_lsn: Lsn, copied: Mapping[str, KnownTable] | None = None) -> None:
        tables = {**self._job.tables, **{str(table): target.known for table, target in self._targets.items()}}
        self._job = msgspec.structs.replace(self._job, position_lsn=position_lsn, tables={**tables, **(copied or {})})
        write_job(self._options.folder, self._job)

    def _add_known(self, table: TableName) -> None:
        """Take up a table that was copied before."""
        known = self._job.tables.get(str(table))
        if known is None:
            return
        following = self._following(table)
        position = following.position()
        if position is None:
            raise ConfigurationError(
                f"the table {following.folder} is gone, or another program made it: copy it again with --copy-again "
                f"{table}, or name another folder"
            )
        if known.as_text != self._as_text(table):
            raise ConfigurationError(
                f"{table} was copied with other columns as text, {known.as_text}: copy it again with "
                f"--copy-again {table}"
            )
        self._targets[table] = Target(following, known, self._catalogs, position)

    def _following(self, table: TableName) -> FollowingTable:
        if table not in self._followings:
            self._followings[table] = following_table(self._options.folder, self._options.format, table)
        return self._followings[table]

    def _published(self) -> dict[TableName, PublishedTable]:
        return {table: made for table, made in self._catalogs.published().items() if self._is_wanted(table)}

    def _is_wanted(self, table: TableName) -> bool:
        return not self._options.tables or table in self._options.tables

    def _as_text(self, table: TableName) -> list[str]:
        prefix = f"{table}."
        return sorted(name.removeprefix(prefix) for name in self._options.as_text if name.startswith(prefix))

    def _tidy_sometimes(self, table: TableName) -> None:
        now = time.monotonic()
        if now - self._tidied_at.setdefault(table, now) > _TIDY_S:
            self._tidy(table)

    def _tidy(self, table: TableName) -> None:
        self._tidied_at[table] = time.monotonic()
        self._following(table).tidy(self._options.keep)
