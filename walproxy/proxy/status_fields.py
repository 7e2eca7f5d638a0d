"""The fields of /status of a proxy, in the order of its JSON.

The JSON, the tables of `walproxy status` and `walproxy levels`, the result of `walproxy check` and the metrics are
derived from `ProxyStatus`; docs/guide/operations.md has the same fields, which a test compares. LSNs are text as
PostgreSQL prints them, times are in seconds; None, null in JSON, is unknown or absent. Pure.
"""

import msgspec

from safekeeper.base.status_fields import HistoryTerm, RecentTimes


class ListedSafekeeper(msgspec.Struct, kw_only=True):
    """A safekeeper of the proxy's list."""

    id: int
    state: str  # See `safekeeper_state`.
    write_lsn: str
    flush_lsn: str
    lag_bytes: int | None  # Received WAL that is not durable there.
    last_response_s: float | None  # Since its last reply to an append.
    address: str
    problem: str | None  # Why it counts as missing; None if it does not.
    member: bool | None  # The membership lists its id.
    pull_end_lsn: str | None  # Where its pull of WAL from another safekeeper ends.
    pulled_bytes: int | None  # In this term.


class MembersChange(msgspec.Struct, kw_only=True):
    """A change of the members under way: their ids before it and after it."""

    present: list[int] = msgspec.field(name="from")
    wanted: list[int] = msgspec.field(name="to")
    joint: bool  # Both need a quorum already.


class GateStatus(msgspec.Struct, kw_only=True):
    """Whether commits wait for the quorum."""

    state: str  # A value of GateState.
    reason: str | None  # None if nothing is wrong.
    hangs: bool  # Commits wait for another standby, which is not connected.
    exempt: str | None  # Roles and databases whose commits do not wait.
    is_by_level: bool  # Not gated only because of the default of synchronous_commit.
    checked_s: float  # The age of this.


class MissingMember(msgspec.Struct, kw_only=True):
    """A member that does not take part in the quorum, and why."""

    id: int
    problem: str


class QuorumLoss(msgspec.Struct, kw_only=True):
    """A lost quorum."""

    for_s: float
    present: int  # Members that take part.
    needed: int  # How many must.
    waiting_sessions: int | None  # Sessions that wait for a commit.
    waiting_problem: str | None  # Why they could not be counted.
    missing: list[MissingMember]


class LimboTotals(msgspec.Struct, kw_only=True):
    """The totals of the limbo that need no look at the WAL."""

    bytes: int  # WAL that waits for a quorum.
    oldest_s: float | None
    timeouts: dict[str, int]  # Transactions that exceeded commit_timeout, by what was done.
    read_only: bool  # New transactions are read-only (`fence`).
    discarded: int  # Transactions that another timeline has replaced.


class ArchiveProgress(msgspec.Struct, kw_only=True):
    """The archive, as the archiver has reported it."""

    archiver: int | None  # None if no safekeeper archives.
    archived_lsn: str  # 0/0 before its first report.
    lag_bytes: int | None  # Committed WAL that is not archived.
    problem: str  # Why it cannot archive; empty if it can.


class ListedStandby(msgspec.Struct, kw_only=True):
    """A standby that streams from a safekeeper, or a designated one that is gone: its last report."""

    name: str
    safekeeper: int  # From which it streams, or has streamed last.
    write_lsn: str
    flush_lsn: str
    apply_lsn: str
    lag_bytes: int | None  # Acknowledged WAL that it does not have.
    apply_lag_bytes: int | None  # Acknowledged WAL that it has not replayed.
    designated: bool  # remote_apply may wait for it.
    has_everything: bool | None  # Every acknowledged commit is on its disk.
    connected: bool
    stalled_s: float | None  # For how long it receives WAL and has replayed nothing; None if it replays.


class ListedHost(msgspec.Struct, kw_only=True):
    """A host of --primary."""

    host: str
    state: str  # A value of HostState.
    problem: str | None


class PrimaryStatus(msgspec.Struct, kw_only=True):
    """The primary."""

    connected: bool  # Its identity is known.
    streams: bool  # WAL is received from it.
    problem: str  # Why not; empty if it is.
    sql_problem: str | None  # Why no SQL session can be opened.
    hosts: list[ListedHost]


class CommitLatencies(msgspec.Struct, kw_only=True):
    """How long commits wait for the safekeepers: see walproxy/proxy/commit_times.py."""

    quorum: RecentTimes  # Until a quorum has the WAL on disk.
    write: RecentTimes  # Until a quorum has received it.
    apply: RecentTimes  # Until the designated standbys have replayed it.
    members: dict[str, RecentTimes]  # From an append to the reply that it is durable, by the safekeeper's id.
    oldest_s: float | None  # How long the oldest batch waits.

    def p50_of(self, safekeeper_id: int) -> float | None:
        """Return the p50 of a safekeeper's replies, None if unknown."""
        found = self.members.get(str(safekeeper_id))
        return found.p50_s if found is not None else None


class ElectionCounts(msgspec.Struct, kw_only=True):
    """Attempts to win a term, by their outcome."""

    won: int
    lost: int
    declined: int
    term_s: float | None  # Since the present term was won.


class VoteCounts(msgspec.Struct, kw_only=True):
    """Votes of safekeepers, by the answer."""

    granted: int
    refused: int


class ReconnectCounts(msgspec.Struct, kw_only=True):
    """Connections that were made again."""

    primary: int
    safekeepers: dict[str, int]  # By the safekeeper's id.


class ProxyStatus(msgspec.Struct, kw_only=True):
    """The content of GET /status of a proxy. Scripts can rely on the fields up to `safekeepers`."""

    state: str  # See Proxy.public_state.
    term: int  # That it leads or last requested.
    system_id: str | None
    tli: int | None  # The timeline that is streamed.
    received_lsn: str  # End of the WAL that the proxy has received.
    write_lsn: str  # As reported to PostgreSQL; the next two, too.
    flush_lsn: str
    apply_lsn: str
    commit_lsn: str  # WAL below it is durable on a quorum, in this term.
    quorum: int  # Number of members that a commit needs.
    elect_quorum: int  # Number of members that elect a leader.
    safekeepers: list[ListedSafekeeper]
    run: str  # The random id of this process.
    spare: bool  # Another proxy serves.
    state_since_s: float
    not_ready_s: float | None  # Since /readyz was last 200; None while it is, and at a spare.
    members: list[int] | None  # None while no membership is known.
    members_streaming: int
    learners: int
    members_change: MembersChange | None
    generation: int | None  # Of the membership; None without a term, as the next two.
    cluster_id: str | None
    term_start_lsn: str | None
    truncate_lsn: str  # WAL below it is durable on every member.
    history: list[HistoryTerm]  # The newest terms of the log, the oldest first.
    window_bytes: int  # WAL in memory.
    backpressure: bool  # Replication from PostgreSQL is paused.
    gate: GateStatus | None  # None for a spare, and without a primary.
    quorum_lost: QuorumLoss | None  # None for a spare.
    limbo: LimboTotals
    apply_rule: str  # The standbys that remote_apply waits for; empty without any.
    apply_problem: str | None  # Why remote_apply is blocked.
    archive: ArchiveProgress | None  # None without a term, or if no safekeeper has an archive.
    standbys: list[ListedStandby]
    primary: PrimaryStatus
    times: CommitLatencies
    elections: ElectionCounts
    votes: VoteCounts
    refusals: dict[str, int]  # Messages that safekeepers have refused, by the code.
    reconnects: ReconnectCounts
