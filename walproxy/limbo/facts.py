"""What the limbo is given: the positions and the WAL of its proxy, and the sessions that wait. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from safekeeper.base.lsn import Lsn


class Positions(NamedTuple):
    """What is needed four times a second.

    Attributes:
        leads: whether the proxy leads a term.
        commit_lsn: WAL below it is durable on a quorum; 0 if unknown.
        reported_lsn, applied_lsn: the flush and the apply position that were last reported to PostgreSQL.
    """

    leads: bool
    commit_lsn: Lsn
    reported_lsn: Lsn
    applied_lsn: Lsn


@dataclass(frozen=True, slots=True)
class Facts:
    """A proxy at one moment.

    Attributes:
        proposer_id, term: of the term that it leads; 0 if it leads none.
        state: as /status shows it.
        quorum: the number of members that a commit needs.
        received_lsn: the end of the WAL that it has received.
        positions: at the same moment.
        flush_lsns: the positions of the members.
        segment_size, server_version: of the primary; 0 before one was identified.
        tli: of the term, or of the primary.
    """

    proposer_id: str
    term: int
    state: str
    quorum: int
    received_lsn: Lsn
    positions: Positions
    flush_lsns: Mapping[int, Lsn]
    segment_size: int
    server_version: int
    tli: int


@dataclass(frozen=True)
class WaitingSession:
    """A session that waits.

    Attributes:
        xid: the transaction that it waits for; 0 if that cannot be found.
        client: its address, empty for a local socket.
        gid: of a prepared transaction that it ends; else empty.
    """

    pid: int
    xid: int
    user: str
    application: str
    client: str
    query: str
    gid: str = ""


@dataclass(frozen=True)
class WaitingCommit:
    """A commit that waits.

    Attributes:
        end_lsn: the position that it waits for, None if its record was not read.
        session: the session that waits, None if unknown.
    """

    xid: int
    end_lsn: Lsn | None
    waits_s: float
    session: WaitingSession | None


class WalInMemory(Protocol):
    """The window of a proxy."""

    begin_lsn: Lsn
    end_lsn: Lsn

    def slices(self, begin_lsn: Lsn, end_lsn: Lsn) -> list[bytes | memoryview]:
        """Return the bytes [begin_lsn, end_lsn)."""


class ObservedProxy(Protocol):
    """The proxy; called on the event loop."""

    @property
    def window(self) -> WalInMemory:
        """The WAL in memory."""

    def limbo_positions(self) -> Positions:
        """Return its present positions."""

    def limbo_facts(self) -> Facts:
        """Return its present state."""

    def sql_conninfo(self) -> str | None:
        """Return the connection string of the primary for SQL, None without a primary."""
