"""The fields of /status of a safekeeper, in the order of its JSON, and those that a proxy's has in common with it.

docs/guide/operations.md has the same fields, which a test compares. LSNs are text as PostgreSQL prints them; None, null
in JSON, is unknown or absent. Pure.
"""

import msgspec


class RecentTimes(msgspec.Struct, kw_only=True):
    """A summary of a histogram of times."""

    count: int  # Since the start.
    recent_count: int  # Of the last minute.
    p50_s: float | None  # Of the last minute; of all time since the start without a recent one.
    p99_s: float | None


class HistoryTerm(msgspec.Struct, kw_only=True):
    """A term of the log: see HistoryEntry."""

    term: int
    start_lsn: str
    tli: int
    gives_up: bool
    floor: int
    given: int


class PromisedLeader(msgspec.Struct, kw_only=True):
    """The proposer that the safekeeper has promised to follow."""

    term: int
    run: str  # The proposer's id.


class DiskStatus(msgspec.Struct, kw_only=True):
    """The disk of the data folder."""

    free_bytes: int | None  # None before the first measurement.
    total_bytes: int | None
    wal_bytes: int  # Retained WAL.
    low: bool  # Less is free than the configured warning.
    no_room_for: dict[str, str]  # What could not be written, and why.
    busy_s: float  # Duration of the present operation.
    flush: RecentTimes  # Durations of flushes of WAL.


class ReaderStatus(msgspec.Struct, kw_only=True):
    """A client that streams from the safekeeper."""

    connection: int
    application_name: str
    address: str
    user: str
    slot: str | None
    state: str  # `catchup` until it has received everything once, then `streaming`.
    tli: int
    sent_lsn: str  # End of the WAL that was sent to it.
    write_lsn: str  # As it has reported; the next two, too.
    flush_lsn: str
    apply_lsn: str
    lag_bytes: int  # Readable WAL that was not sent to it.
    last_reply_s: float


class SlotStatus(msgspec.Struct, kw_only=True):
    """A replication slot."""

    name: str
    restart_lsn: str | None  # None if it retains nothing yet.
    active: bool  # A client uses it.
    temporary: bool
    idle_s: float  # Since a client used it; 0 while one does.
    retained_bytes: int  # WAL that it retains; none if it is below the oldest retained WAL.


class SafekeeperArchive(msgspec.Struct, kw_only=True):
    """The archive, as one safekeeper has it."""

    url: str
    archiver: bool  # This safekeeper archives.
    archived_lsn: str
    lag_bytes: int  # Readable WAL that may not be archived yet.
    problem: str  # Why it could not archive; empty if it could.
    uploads: int  # Since the start of the process.
    uploaded_bytes: int
    last_upload_at: str | None  # In UTC.


class PullStatus(msgspec.Struct, kw_only=True):
    """A pull of WAL from other safekeepers."""

    end_lsn: str
    source: int | None  # The present safekeeper; None between two.
    address: str | None
    bytes: int  # Since it began.
    seconds: float


class SafekeeperStatus(msgspec.Struct, kw_only=True):
    """The content of GET /status of a safekeeper."""

    id: int
    state: str  # See Acceptor.state.
    term: int  # Of its promise.
    tli: int  # Of the next byte.
    write_lsn: str  # End of the received WAL.
    flush_lsn: str  # End of the durable WAL.
    commit_lsn: str  # As last received from the proxy; the next two, too.
    truncate_lsn: str
    archived_lsn: str
    wal_begin_lsn: str  # Start of the retained WAL.
    votes: bool  # It is a member.
    promised: PromisedLeader
    follows: str | None  # The id of the proposer that it follows.
    history: list[HistoryTerm]
    incarnation: str
    cluster_id: str
    system_id: str
    server_version: int
    segment_size: int
    generation: int
    members: list[int]
    disk: DiskStatus
    readers: list[ReaderStatus]
    slots: list[SlotStatus]
    archive: SafekeeperArchive | None
    wal_limit: int | None  # In bytes.
    pull: PullStatus | None
    addresses: dict[str, str]  # Of its listeners, by name.
