"""One range of a slot, from the server's bytes to changes, by a peek: for the data source.

A range ends where the quorum is, which may be in the middle of a commit record: that transaction belongs to the range,
because its record begins in it. No change of it is passed on before the quorum has all of the record
(quorum_gate.py), for which a second connection asks.

The end of a range is chosen elsewhere and earlier, perhaps on another server: `conninfo` may name several, and lead to
a deposed primary that was started again. What that one has below the same position may be on no quorum. So the quorum
of the server that the range is read from is asked for its end once more.
"""

from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Final, NamedTuple

from safekeeper.base.lsn import Lsn, format_lsn
from walproxy.pipeline.cdc.changes import Change, Changes
from walproxy.pipeline.cdc.publication import require_publications
from walproxy.pipeline.cdc.quorum_gate import on_quorum
from walproxy.pipeline.cdc.safe_lsn import SafeLsn, flush_lsn
from walproxy.pipeline.cdc.server import Connection, SourceRefused, require_server, server_major, server_start
from walproxy.pipeline.cdc.slot import have_flushed, peek, protocol_version, usable_slot
from walproxy.pipeline.cdc.spool import MEMORY_BYTES, Spool
from walproxy.pipeline.cdc.transactions import committed

HELD_BYTES_MAX: Final = 1 << 20
QUORUM_TIMEOUT_S: Final = 300.0


class SlotReader(NamedTuple):
    """The slot to read, and how.

    Attributes:
        stream: large transactions are sent before they are committed.
        memory_bytes: how much of those is held in memory.
        held_bytes_max: how much of a transaction waits for its Commit.
        quorum_timeout_s: how long the quorum may need for the last transaction of a range.
    """

    slot: str
    publications: Sequence[str]
    safe_lsn: SafeLsn
    stream: bool = False
    memory_bytes: int = MEMORY_BYTES
    held_bytes_max: int = HELD_BYTES_MAX
    quorum_timeout_s: float = QUORUM_TIMEOUT_S

    def check(self, connection: Connection) -> Lsn:
        """See that the slot and the publications can be read; return the slot's confirmed position.

        Raises:
            SourceRefused: they cannot.
            SourceUnavailable: the server does not answer.
        """
        require_publications(connection, self.publications)
        return usable_slot(connection, self.slot)[1]

    def read(
        self, connection: Connection, asking: Connection, begin_lsn: Lsn, end_lsn: Lsn
    ) -> Generator[Change, None, None]:
        """Yield the changes of the transactions whose commit record begins in [begin_lsn, end_lsn), in commit order.

        The quorum has the whole commit record of each change that is yielded.

        Args:
            asking: a second connection, to ask for positions meanwhile.
            end_lsn: a position that the quorum is said to have; it is waited for.

        Raises:
            SourceRefused: the slot has been moved beyond `begin_lsn`, or cannot be read.
            SourceUnavailable: the server does not answer, the connections lead to different ones, or the quorum does
                not get there.
            RemoteProtocolError: what the server sends is not understood.
        """
        require_server(asking, server_start(connection))
        require_position(connection, self.slot, begin_lsn)
        quorum = AskedQuorum(self.safe_lsn, asking, self.quorum_timeout_s)
        if begin_lsn < end_lsn:
            quorum.wait_for(end_lsn)
        have_flushed(connection)
        messages = peek(connection, self.slot, self.publications, end_lsn, stream=self.stream)
        stream = committed(
            messages,
            Spool(self.memory_bytes),
            version=protocol_version(server_major(connection)),
            begin_lsn=begin_lsn,
            end_lsn=end_lsn,
        )
        safe = on_quorum(stream, quorum, known_lsn=end_lsn, held_bytes_max=self.held_bytes_max)
        with closing(messages), closing(stream), closing(safe):
            yield from Changes(safe)


def require_position(connection: Connection, slot: str, begin_lsn: Lsn) -> None:
    """See that a slot has every change from `begin_lsn` on.

    Raises:
        SourceRefused: it has been moved beyond that, or cannot be read.
        SourceUnavailable: the server does not answer.
    """
    _, confirmed_lsn = usable_slot(connection, slot)
    if confirmed_lsn > begin_lsn:
        raise SourceRefused(
            f"slot {slot!r} is at {format_lsn(confirmed_lsn)}, after the requested {format_lsn(begin_lsn)}: another "
            "program advanced it, or created it again; the changes in between are missing, so begin again with a new "
            "slot and a copy of the tables"
        )


class AskedQuorum(NamedTuple):
    """The quorum, as it is waited for on a connection. Its methods raise SourceUnavailable after `timeout_s`."""

    safe_lsn: SafeLsn
    connection: Connection
    timeout_s: float

    def wait_for(self, lsn: Lsn) -> None:
        self.safe_lsn.wait_for(self.connection, lsn, self.timeout_s)

    def wait_for_flushed(self) -> None:
        self.wait_for(flush_lsn(self.connection))
