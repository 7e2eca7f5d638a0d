"""The copy of one table: its columns, its rows, and the commit that puts them in.

A table is read as a whole by one session, or in ranges by several (range_copy.py). Either way one commit puts all rows
in, with the position of the snapshot. Before the commit the job's file names the copy: after a crash, a table that has
this position is not copied again.
"""

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Final

import pyarrow as pa

from safekeeper.base.errors import ConfigurationError, RemoteProtocolError, StorageFailed
from safekeeper.base.lsn import format_lsn
from walproxy.pipeline.cdc.apply.copies import Copy, CopyPlan, plan_copy, put_copy, takes_files
from walproxy.pipeline.cdc.apply.copy_ranges import CopyRange, ranges_of
from walproxy.pipeline.cdc.apply.copying import Snapshot
from walproxy.pipeline.cdc.apply.following import FollowingTable, Position
from walproxy.pipeline.cdc.apply.job_file import Copying, KnownTable
from walproxy.pipeline.cdc.apply.options import TablePolicy
from walproxy.pipeline.cdc.apply.range_copy import RangeCopy, RangeOptions
from walproxy.pipeline.cdc.apply.source_columns import fields_of, known_of, text_arrays
from walproxy.pipeline.cdc.column_types import BadValue
from walproxy.pipeline.cdc.published_tables import PublishedTable
from walproxy.pipeline.cdc.server import Connection, SourceRefused
from walproxy.pipeline.lake.parquet_files import DataFile

_log = logging.getLogger(__name__)

TABLE_ERRORS: Final = (SourceRefused, RemoteProtocolError, ConfigurationError, StorageFailed)
"""Errors of one table that do not affect the others. A full disk affects all."""

_HELD_BATCHES: Final = 2
"""A table that has less is read before it is written. A table of less than a batch has one."""

_Rows = tuple[Iterable[pa.RecordBatch], Sequence[DataFile] | None]


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
        reason: the same, and what was found in the rows.
        ranges: of a table that is not to be read as a whole. `put_whole` finds them.
    """

    def __init__(
        self,
        source: Snapshot,
        made: PublishedTable,
        following: FollowingTable,
        policy: TablePolicy,
        bad_text: set[str],
        *,
        lists: bool,
        reason: str,
    ) -> None:
        self.made = made
        self.reason = reason
        self.ranges: list[CopyRange] = []
        self.position = Position(source.lsn, 0)
        self._source = source
        self._following = following
        self._policy = policy
        self._as_text = policy.text_columns(made.table)
        self._bad_text = bad_text
        self._lists = lists

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
            self._policy.mode,
            bad_as_null=self._policy.on_bad_value == "null",
            lists=self._lists,
        )

    def put_whole(
        self,
        session: Connection,
        range_bytes: int,
        streaming: AbstractContextManager[object],
        begin: Callable[[], None],
    ) -> bool:
        """Read the table as a whole and commit its rows; return False if it is to be read in ranges, which it is not.

        Args:
            session: one of the snapshot.
            streaming: entered while rows are read and written at the same time, as the libraries of the formats may
                need a thread of theirs for each such table: those of delta-rs are as many as the machine has cores.
            begin: notes the copy in the job's file. Raises TableMoved: another job has replaced that.

        Raises:
            SourceUnavailable: nothing was committed.
            SourceRefused, ConfigurationError, StorageFailed, StorageFull, ArchiveError.
        """
        self._require_copyable()
        self.ranges = ranges_of(session, self.made, range_bytes)
        if self.ranges:
            return False
        state_file = self._policy.copy_state_file(self._following)
        state_file.forget(state_file.read())  # It was larger once.

        @contextlib.contextmanager
        def whole(plan: CopyPlan) -> Iterator[_Rows]:
            rows = self._source.rows_by(session, self.made, plan.schema, null_if_bad=self._null_if_bad(plan))
            try:
                first = list(itertools.islice(rows, _HELD_BATCHES))
                is_read = len(first) < _HELD_BATCHES and (self._policy.mode == "mirror" or plan.before is None)
                with contextlib.nullcontext() if is_read else streaming:
                    yield itertools.chain(first, rows), None
            finally:
                try:
                    rows.close()
                except ValueError:  # The commit has failed while a thread of the format's library was reading.
                    session.close()

        self._put(whole, begin)
        return True

    def put_ranges(self, options: RangeOptions, begin: Callable[[], None]) -> None:
        """Read the ranges of the table by sessions of its own, and commit its rows.

        Raises:
            Stopped: on request. What was read stays for the next copy.
            Others: as `put_whole`.
        """
        self._require_copyable()
        state_file = self._policy.copy_state_file(self._following)

        @contextlib.contextmanager
        def in_ranges(plan: CopyPlan) -> Iterator[_Rows]:
            def columns() -> tuple[pa.Schema, bool]:
                begin()
                is_direct = takes_files(self._following, self._policy.mode, plan)
                return self._following.file_schema(plan.schema) if is_direct else plan.schema, is_direct

            made, nulls = self.made, self._null_if_bad(plan)
            copy = RangeCopy(self._source, made, self.ranges, self._following, state_file, columns, nulls)
            with self._source.connection.transaction():
                state = copy.copy(options)
            yield state_file.rows(state), state.files if state.basis.is_direct else None
            if not state.basis.is_direct:
                state_file.remove_files(state)
            state_file.remove()

        self._put(in_ranges, begin)

    def _put(self, reading: Callable[[CopyPlan], AbstractContextManager[_Rows]], begin: Callable[[], None]) -> None:
        mode = self._policy.mode
        while True:
            as_text = [*self._as_text, *self._bad_text]
            plan = plan_copy(
                self._following, mode, fields_of(self.made, type(self._following), as_text, lists=self._lists)
            )
            self._bad_text |= plan.as_text
            _log.info("copying %s as of %s: %s", self.made.table, format_lsn(self.position.lsn), self.reason)
            try:
                with reading(plan) as (rows, files):
                    # Only the job that can note something is the one that may replace a table.
                    copy = Copy(plan, self.made.key, rows, self.position, self._source.unix_us, files)
                    put_copy(self._following, mode, copy, require_only_job=begin)
                return
            except BadValue as error:
                column = error.column.removeprefix(f"{self.made.table}.")
                if self._policy.on_bad_value != "text" or column in self._bad_text:
                    raise
                self._bad_text.add(column)
                self.reason += f"; its column {error.column.rpartition('.')[2]} is kept as text from now on"

    def _require_copyable(self) -> None:
        if self.made.problem is not None:
            raise SourceRefused(f"{self.made.table} cannot be followed: {self.made.problem}")
        if self._following.is_foreign():
            raise ConfigurationError(f"{self._following.location} is a table of another program: name another folder")
        if self._lists:
            self._bad_text |= text_arrays(self.made)
        _ = self.known  # Whether it can be followed.

    def _null_if_bad(self, plan: CopyPlan) -> frozenset[str]:
        return frozenset(plan.schema.names) - set(self.made.key) if self._policy.on_bad_value == "null" else frozenset()
