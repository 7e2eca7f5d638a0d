"""The options of a job that keeps tables which follow those of a database."""

from contextlib import AbstractContextManager
from datetime import timedelta
from typing import NamedTuple

from safekeeper.base.networks import Networks
from safekeeper.base.settings import Address
from safekeeper.net.http_access import OPEN_TO_ALL, HttpAccess
from safekeeper.net.tls import ServerTls
from walproxy.pipeline.cdc.apply.copy_state import CopyStateFile
from walproxy.pipeline.cdc.apply.copying import Snapshot, snapshot
from walproxy.pipeline.cdc.apply.following import FollowingTable
from walproxy.pipeline.cdc.apply.opening import following_table
from walproxy.pipeline.cdc.publication import TableName
from walproxy.pipeline.cdc.server import Connection
from walproxy.pipeline.choices import (
    COPY_RANGE_BYTES,
    COPY_SESSIONS,
    ArrayColumns,
    FollowingMode,
    OnBadValue,
    TableFormat,
)
from walproxy.pipeline.lake.location import LakeLocation


class ApplyOptions(NamedTuple):
    """The options of a job.

    Attributes:
        location: of the tables.
        tables: those that are followed, all of the publications if empty.
        as_text: columns that are read as text, as `schema.table.column`.
        copy_again: tables that are copied again first.
        start_over: all of them, and the position is that of the slot, which is made if it is missing.
        status: where the quorum's commit position is read (safe_lsn.py).
        max_bytes: WAL that a step reads.
        memory_bytes: of changes that are held at once.
        keep: how long old versions of the tables can be read.
        on_bad_value: what becomes of a value that the type of its column cannot hold.
        max_retained_bytes: of WAL that the slot may retain; beyond it the job starts over with a new slot.
        keys_max: rows of a table that a verification names at most.
        http_listen: where the job's status is served over HTTP; None: nowhere.
        http_tls: the certificate of HTTPS, None for HTTP.
        http_allow: the networks from which that is read, None for all.
        http_access: the host names and the password of requests.
        mode: what the tables keep of changes.
        arrays: what arrays are in the tables; None: what they are so far, lists in a new job.
        copy_sessions: that copy tables, or ranges of a large one, at the same time.
        copy_range_bytes: of a table that each of them reads at once.
    """

    conninfo: str
    slot: str
    publications: tuple[str, ...]
    location: LakeLocation
    format: TableFormat
    tables: frozenset[TableName] = frozenset()
    as_text: frozenset[str] = frozenset()
    copy_again: frozenset[TableName] = frozenset()
    start_over: bool = False
    status: str | None = None
    interval_s: float = 5.0
    max_bytes: int = 256 << 20
    memory_bytes: int = 128 << 20
    keep: timedelta = timedelta(days=1)
    on_bad_value: OnBadValue = "stop"
    max_retained_bytes: int | None = None
    keys_max: int = 20
    http_listen: Address | None = None
    http_tls: ServerTls | None = None
    http_allow: Networks | None = None
    http_access: HttpAccess = OPEN_TO_ALL
    mode: FollowingMode = "mirror"
    arrays: ArrayColumns | None = None
    copy_sessions: int = COPY_SESSIONS
    copy_range_bytes: int = COPY_RANGE_BYTES

    def is_wanted(self, table: TableName) -> bool:
        """Return whether a table of the publications is followed."""
        return not self.tables or table in self.tables

    def text_columns(self, table: TableName) -> list[str]:
        """Return the columns of a table that are read as text."""
        prefix = f"{table}."
        return sorted(name.removeprefix(prefix) for name in self.as_text if name.startswith(prefix))

    def following(self, table: TableName) -> FollowingTable:
        """Return a table of the location, whether it exists or not."""
        return following_table(self.location, self.format, table)

    def copy_state_file(self, table: FollowingTable) -> CopyStateFile:
        """Return the state of the copy of a table."""
        return CopyStateFile(self.location, table)

    def snapshot(self, server: Connection, *, wait_s: float | None = None) -> AbstractContextManager[Snapshot]:
        """Give the tables of the publications as of a position, of the server that a connection leads to."""
        return snapshot(self.conninfo, self.publications, server, wait_s=wait_s)
