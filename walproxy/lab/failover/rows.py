"""The rows that are written, each in a transaction of its own, and what became of each.

Every row has an id that no other has, on whichever server. Its transaction is divided at COMMIT: before it, the writer
has received the transaction's xid and the timeline on which it is written, so also a row whose fate is unknown can be
recognised in WAL.
"""

import itertools
from dataclasses import dataclass
from typing import Literal

from walproxy.lab.failover.host import Host
from walproxy.lab.load.history import History, HistoryOperation
from walproxy.lab.load.libpq_session import LibpqSession
from walproxy.lab.load.transactions import Block

Writer = Literal["client", "probe", "local"]

TABLE = "failover_rows"
CREATE_TABLE = f"CREATE TABLE {TABLE} (id bigint PRIMARY KEY, writer text NOT NULL, payload text NOT NULL)"
_PAYLOAD = "repeat('x', 40)"


@dataclass(slots=True)
class Row(Block):
    """One row.

    Attributes:
        writer: "client": of the load. "probe": to one server directly. "local": so, and with
            synchronous_commit = local, so its acknowledgement promises nothing after a failover.
        server: the server's name, its cluster_name; "" before it is known.
        tli: the timeline on which it was written; 0 before it is known.
        xid: of its transaction, with the epoch; 0 before it is known.
    """

    id: int
    writer: Writer
    server: str = ""
    tli: int = 0
    xid: int = 0

    async def carry_out(self, session: LibpqSession) -> None:
        """Send all before the COMMIT."""
        xid, self.tli, self.server = await session.fetchrow(insert(self)) or (0, 0, "")
        self.xid = int(xid)


Attempt = HistoryOperation[Row]
Book = History[Row]


def row_ids(host: Host, first: int = 0) -> set[int]:
    """Return the ids of the rows on a server, from the first one on."""
    return {row[0] for row in host.execute(f"SELECT id FROM {TABLE} WHERE id >= {first}")}


class RowIds:
    """Gives out the ids. Threads may share it."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)

    def next(self, writer: Writer) -> Row:
        """Return a row that no client has written yet."""
        return Row(next(self._ids), writer)


def insert(row: Row) -> str:
    """Return the statements that begin the row's transaction and write it; the last result is (xid, TLI, server).

    READ WRITE: a server whose sessions are read-only by default is no fence, and a writer need not respect it.
    """
    return (
        f"BEGIN READ WRITE; INSERT INTO {TABLE} VALUES ({row.id}, '{row.writer}', {_PAYLOAD}) "
        "RETURNING pg_current_xact_id()::text, "
        "('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int, "
        "current_setting('cluster_name')"
    )
