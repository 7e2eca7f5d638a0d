"""All tables of a job: which ones follow, which ones are to be copied, and which ones are quarantined.

What is wrong with one table does not stop the others. One that does not take its changes is copied again; one that
cannot be copied is *quarantined* with the reason. Its changes are passed over, so the slot advances; when the problem
is over the table is copied again, which brings what it missed. That is tried when its definition changed, and after a
delay that doubles with each failure.
"""

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import Lsn, parse_lsn
from walproxy.pipeline.cdc.apply.copying import Snapshot, SnapshotDelayed
from walproxy.pipeline.cdc.apply.fingerprint import Fingerprint
from walproxy.pipeline.cdc.apply.following import FollowingTable, Position
from walproxy.pipeline.cdc.apply.job_file import Copying, Job, KnownTable, Quarantined
from walproxy.pipeline.cdc.apply.options import ApplyOptions
from walproxy.pipeline.cdc.apply.parallel_copy import CopyOptions, copy_tables
from walproxy.pipeline.cdc.apply.table_copy import TABLE_ERRORS, TableCopy
from walproxy.pipeline.cdc.apply.target import TargetTable
from walproxy.pipeline.cdc.changes import Change, ChangedRows
from walproxy.pipeline.cdc.column_types import BadValue, arrow_type, is_array
from walproxy.pipeline.cdc.messages import NotUnderstood, Relation
from walproxy.pipeline.cdc.publication import TableName, base_type
from walproxy.pipeline.cdc.published_tables import PublishedTable, published_tables
from walproxy.pipeline.cdc.server import Connection, SourceRefused, one_value

_log = logging.getLogger(__name__)

_RETRY_MIN_S: Final = 60.0
_RETRY_MAX_S: Final = 3600.0
_SNAPSHOT_WAIT_S: Final = 10.0
_SNAPSHOT_WAIT_MAX_S: Final = 600.0
_COPY_ATTEMPTS: Final = 3
_NOT_COPIED_YET: Final = "it was not copied yet"


class _Problem(NamedTuple):
    """Of a quarantined table: when to try again, and what its source looked like."""

    fingerprint: Fingerprint | None
    delay_s: float
    retry_at: float


class Tables:
    """The tables of a job.

    Attributes:
        quarantined: why tables are not followed at present, by `schema.name`.
        copies: number of copies that were made.
    """

    def __init__(
        self, options: ApplyOptions, asking: Connection, job: Job, copy_options: CopyOptions, *, waits_for_copies: bool
    ) -> None:
        """Take up the tables of a job.

        Args:
            copy_options: how tables are copied.
            waits_for_copies: a copy waits for open transactions as long as it takes; else the other tables go on.
        """
        self._options = options
        self._asking = asking
        self._copy_options = copy_options
        self._snapshot_wait_s = None if waits_for_copies else _SNAPSHOT_WAIT_S
        self._lists = job.arrays == "list"
        self._types: dict[tuple[int, int], pa.DataType] = {}
        self._followings: dict[TableName, FollowingTable] = {}
        self._targets: dict[TableName, TargetTable] = {}
        self._by_oid: dict[int, TargetTable] = {}
        self._to_copy: dict[TableName, str] = {}
        self._being_copied: dict[TableName, str] = {}
        self._copying: dict[TableName, Copying] = {}
        self._bad_text: dict[TableName, set[str]] = {}
        self._problems: dict[TableName, _Problem] = {}
        self.quarantined = dict(job.quarantined)
        self.copies = 0
        published = {str(table): table for table in self.published()}
        for name, known in job.tables.items():
            if name in published:
                self._take_up(published[name], known)
            else:
                _log_unpublished(name)
        for name, copying in job.copying.items():
            if name in published and name not in job.tables:
                self._take_up_copy(published[name], copying)
        for name, reason in job.to_copy.items():
            if name in self.quarantined:
                continue
            if name not in published:
                _log_unpublished(name)
            elif published[name] not in self._targets:
                self._to_copy.setdefault(published[name], reason)

    def __iter__(self) -> Iterator[TargetTable]:
        return iter(list(self._targets.values()))

    def close(self) -> None:
        """Close the tables."""
        for following in self._followings.values():
            following.close()

    def known(self) -> dict[str, KnownTable]:
        """Return what is to be remembered of the tables that follow."""
        return {str(table): target.known for table, target in self._targets.items()}

    def copying(self) -> dict[str, Copying]:
        """Return the copies that may have been committed, and are not known otherwise."""
        return {str(table): each for table, each in self._copying.items()}

    def to_copy(self) -> dict[str, str]:
        """Return why tables are to be copied again, but for those that were not copied yet."""
        reasons = self._being_copied | self._to_copy
        return {str(table): reason for table, reason in reasons.items() if reason != _NOT_COPIED_YET}

    def following(self, table: TableName) -> FollowingTable:
        """Return a table of the folder, whether it exists or not."""
        if table not in self._followings:
            self._followings[table] = self._options.following(table)
        return self._followings[table]

    def look(self) -> None:
        """Compare the catalogs, as they are now, with what is known of each table.

        Raises:
            SourceRefused, SourceUnavailable, StorageFull.
        """
        published = self.published()
        for table, target in list(self._targets.items()):
            if table not in published:
                self._drop(table)
                _log_unpublished(str(table))
                continue
            now = published[table]
            with self._quarantining(table, now):
                if now.problem is not None:
                    raise SourceRefused(f"{table} cannot be followed: {now.problem}")
                target.look(now, self)
        for name in self.quarantined.keys() - {str(table) for table in published}:
            del self.quarantined[name]
            _log_unpublished(name)
        for table, now in published.items():
            if table not in self._targets:
                self._look_at_absent(table, now)

    def is_retry_due(self) -> bool:
        """Return whether a quarantined table is to be tried again, though its source may not have changed."""
        now = time.monotonic()
        return any(str(table) in self.quarantined and each.retry_at <= now for table, each in self._problems.items())

    def target_of(self, relation: Relation) -> TargetTable | None:
        """Return the table that follows a relation, None if there is none."""
        return self._by_oid.get(relation.oid)

    def take(self, target: TargetTable, change: Change | ChangedRows) -> int:
        """Have a table take its next changes; return their number. Raises SourceUnavailable, StorageFull."""
        with self._copied_instead(target):
            if isinstance(change, Change):
                target.take(change)
            else:
                target.take_rows(change)
        return 1 if isinstance(change, Change) else len(change.indices)

    def flush(self, position: Position) -> list[TableName]:
        """Put what is held into the tables; return those that changed. Raises SourceUnavailable, StorageFull."""
        changed = []
        for target in self:
            with self._copied_instead(target):
                if target.flush(position):
                    changed.append(target.table)
        return changed

    def settle(self, *, is_current: bool) -> None:
        """End a step: `is_current` if it took all changes that the catalogs may show already."""
        for target in self:
            target.settle(is_current=is_current)

    def copy_again(self, table: TableName, reason: str) -> None:
        """Copy a table with the next `copy`."""
        self._drop(table)
        self._to_copy[table] = reason

    def copy(self, wait_for_quorum: Callable[[Lsn], None], note: Callable[[], None]) -> None:
        """Copy the tables that need it, all as of one position; `note` is called before each commit.

        A table that is altered between the snapshot and its lock, or one of whose columns becomes text because of a
        value, is copied with another snapshot. If open transactions
        delay the snapshot, the tables are quarantined, and the next snapshot is waited for twice as long.

        Raises:
            SourceRefused, SourceUnavailable, StorageFull.
        """
        for attempt in itertools.count(1):
            for target in self:
                if target.copy_reason is not None:
                    self.copy_again(target.table, target.copy_reason)
            if not self._to_copy:
                return
            _log.info("waiting for the transactions in progress before tables are copied")
            try:
                with self._options.snapshot(self._asking, wait_s=self._snapshot_wait_s) as source:
                    # What the copy shows must be on the quorum before any client reads it here.
                    wait_for_quorum(source.lsn)
                    if self._snapshot_wait_s is not None:
                        self._snapshot_wait_s = _SNAPSHOT_WAIT_S
                    self._copy_as_of(source, note, is_last=attempt >= _COPY_ATTEMPTS)
            except SnapshotDelayed as error:
                self._put_off(str(error))
                return

    def _put_off(self, reason: str) -> None:
        assert self._snapshot_wait_s is not None  # it waits as long as it takes
        self._snapshot_wait_s = min(2 * self._snapshot_wait_s, _SNAPSHOT_WAIT_MAX_S)
        published = self.published()
        for table in list(self._to_copy):
            with self._quarantining(table, published.get(table)):
                raise SourceRefused(reason)

    def _copy_as_of(self, source: Snapshot, note: Callable[[], None], *, is_last: bool) -> None:
        published = {each.table: each for each in source.tables}
        reasons, self._to_copy = self._to_copy, {}
        self._being_copied = dict(reasons)
        locked = set()
        for table in reasons:
            if table in published:
                with self._quarantining(table, published[table]):
                    source.lock(published[table])
                    locked.add(table)
        # The lock has come after the snapshot: what was altered in between does not fit what the snapshot shows.
        now = self.published()
        copies = []
        for table, reason in reasons.items():
            if table in now and table not in published:
                self._to_copy[table] = reason
            if table not in now or table not in locked:
                continue
            made = published[table]
            with self._quarantining(table, made):
                if made.fingerprint == now[table].fingerprint:
                    following, bad_text = self.following(table), self._bad_text.setdefault(table, set())
                    copies.append(
                        TableCopy(source, made, following, self._options, bad_text, lists=self._lists, reason=reason)
                    )
                elif is_last:
                    raise SourceRefused(f"{table} could not be copied: it is altered continually")
                else:
                    self._to_copy[table] = reason

        def note_copy(copy: TableCopy) -> None:
            self._copying[copy.made.table] = copy.copying
            note()

        with contextlib.closing(copy_tables(source, copies, self._copy_options, note_copy)) as results:
            for copy, error in results:
                table = copy.made.table
                if isinstance(error, BadValue) and self._keep_as_text(table, error):
                    self._copying.pop(table, None)
                    column = error.column.rpartition(".")[2]
                    self._to_copy[table] = f"{reasons[table]}; its column {column} is kept as text from now on"
                    continue
                with self._quarantining(table, copy.made):
                    if error is not None:
                        raise error
                    self._end_copy(copy)
        self._being_copied.clear()

    def _end_copy(self, copy: TableCopy) -> None:
        """Follow a table whose copy is committed. The job's file has that with the next note."""
        table = copy.made.table
        self.copies += 1
        self._being_copied.pop(table, None)
        del self._copying[table]
        self._end_quarantine(table)
        self._follow(table, copy.known, copy.position)

    def _keep_as_text(self, table: TableName, error: BadValue) -> bool:
        """Note that a column becomes text because of a value, if it is to; return whether it was not text before."""
        column, texts = error.column.removeprefix(f"{table}."), self._bad_text.setdefault(table, set())
        if self._options.on_bad_value != "text" or column in texts:
            return False
        texts.add(column)
        return True

    def _take_up(self, table: TableName, known: KnownTable) -> None:
        """Follow a table that was copied before."""
        self._bad_text[table] = set(known.bad_text)
        if known.as_text != self._options.text_columns(table):
            raise ConfigurationError(
                f"{table} was copied with other columns as text, {known.as_text}: copy it again with "
                f"--copy-again {table}"
            )
        if known.bad_as_null and not self._bad_as_null:
            self._to_copy[table] = "values that its columns cannot hold are no longer to be null"
            return
        if known.lists != self._lists and any(is_array(each.type_oid) for each in known.fingerprint.columns.values()):
            self._to_copy[table] = f"its arrays are to be {'lists' if self._lists else 'text'}"
            return
        known = msgspec.structs.replace(known, bad_as_null=self._bad_as_null, lists=self._lists)
        with self._quarantining(table):
            position = self.following(table).position()
            if position is None:
                self._to_copy[table] = "its table is gone, or another program made it"
            else:
                self._follow(table, known, position)

    def _take_up_copy(self, table: TableName, copying: Copying) -> None:
        """Follow a table whose copy was committed just before the job ended; else it is copied later."""
        with self._quarantining(table):
            following = self.following(table)
            if following.position() == Position(copying.lsn, 0):
                self._options.copy_state_file(following).remove()  # Its files are the table's.
                self._take_up(table, copying.known)
                self._end_quarantine(table)

    def _follow(self, table: TableName, known: KnownTable, position: Position) -> None:
        target = TargetTable(self.following(table), known, self._type_of, position, self._options.mode)
        self._targets[table] = self._by_oid[known.fingerprint.oid] = target

    @property
    def _bad_as_null(self) -> bool:
        return self._options.on_bad_value == "null"

    def _drop(self, table: TableName) -> None:
        target = self._targets.pop(table, None)
        if target is not None and self._by_oid.get(target.source_oid) is target:
            del self._by_oid[target.source_oid]

    def _look_at_absent(self, table: TableName, now: PublishedTable) -> None:
        """Decide whether a table that is published and does not follow is to be copied now."""
        if table in self._to_copy:
            return
        problem = self._problems.get(table)
        quarantined = self.quarantined.get(str(table))
        if problem is not None and problem.fingerprint == now.fingerprint and problem.retry_at > time.monotonic():
            return
        if now.problem is not None:
            with self._quarantining(table, now):
                raise SourceRefused(f"{table} cannot be followed: {now.problem}")
        elif quarantined is None:
            self._to_copy[table] = _NOT_COPIED_YET
        else:
            self._to_copy[table] = f"it was quarantined ({quarantined.reason})"

    @contextlib.contextmanager
    def _quarantining(self, table: TableName, now: PublishedTable | None = None) -> Iterator[None]:
        """Quarantine a table if what is done with it in the block fails."""
        try:
            yield
        except TABLE_ERRORS as error:
            self._drop(table)
            self._to_copy.pop(table, None)
            self._being_copied.pop(table, None)
            self._copying.pop(table, None)
            before = self._problems.get(table)
            delay_s = _RETRY_MIN_S if before is None else min(2 * before.delay_s, _RETRY_MAX_S)
            fingerprint = now.fingerprint if now is not None else None
            self._problems[table] = _Problem(fingerprint, delay_s, time.monotonic() + delay_s)
            known = self.quarantined.get(str(table))
            if known is None or known.reason != str(error):
                _log.error("%s is quarantined, the other tables continue: %s", table, error)
                since = time.time() if known is None else known.since
                self.quarantined[str(table)] = Quarantined(str(error), since)

    @contextlib.contextmanager
    def _copied_instead(self, target: TargetTable) -> Iterator[None]:
        """Copy a table again if it does not take its changes in the block; if that fails too, it is quarantined."""
        try:
            yield
        except NotUnderstood:
            raise  # A copy would not help: the next change is not understood either.
        except TABLE_ERRORS as error:
            if isinstance(error, BadValue):
                self._keep_as_text(target.table, error)
            target.must_be_copied(str(error))

    def _end_quarantine(self, table: TableName) -> None:
        self._problems.pop(table, None)
        if self.quarantined.pop(str(table), None) is not None:
            _log.info("%s is no longer quarantined", table)

    def published(self) -> Mapping[TableName, PublishedTable]:
        """Return the tables that are published now, and selected. Raises SourceRefused, SourceUnavailable."""
        listed = published_tables(self._asking, self._options.publications)
        return {each.table: each for each in listed if self._options.is_wanted(each.table)}

    def is_empty(self, oid: int) -> bool:
        """Return whether a relation has no page. Raises SourceRefused, SourceUnavailable."""
        query = "SELECT pg_relation_size(%(oid)s::oid) = 0"
        return bool(one_value(self._asking, query, {"oid": oid}, doing="look at a partition"))

    def insert_lsn(self) -> Lsn:
        """Return the end of the source's WAL. Raises SourceRefused, SourceUnavailable."""
        query = "SELECT pg_current_wal_insert_lsn()::text"
        return parse_lsn(one_value(self._asking, query, doing="look at the WAL"))

    def _type_of(self, type_oid: int, type_modifier: int) -> pa.DataType:
        key = (type_oid, type_modifier)
        if key not in self._types:
            self._types[key] = arrow_type(*base_type(self._asking, *key), lists=self._lists)
        return self._types[key]


def _log_unpublished(name: str) -> None:
    _log.warning("%s is not followed: it is no longer published: its copy stays as it is", name)
