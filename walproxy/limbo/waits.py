"""A session that waits, and a commit that waits. Pure."""

from dataclasses import dataclass

from safekeeper.base.lsn import Lsn


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
