"""One client that streams WAL from here: where it stands, and what it has said.

The hub (safekeeper/serving/readers.py) decides when it is served; `Client` is how bytes get to it. A reader begins with
its START_REPLICATION and ends with the COPY; a client that goes on with the next timeline is a new reader.
"""

from typing import Protocol

from safekeeper.acceptor.readable import TimelineEnd
from safekeeper.archiving.read_through import CachedSegment
from safekeeper.base.lsn import Lsn
from safekeeper.consensus.messages import Standby
from safekeeper.serving.slots import Slot
from safekeeper.storage.wal_reading import WalReader


class Client(Protocol):
    """The connection of a reader."""

    def write(self, *buffers: bytes | memoryview) -> None:
        """Send the buffers in order. They must no longer change."""

    def end_timeline(self, end: TimelineEnd) -> None:
        """The reader has been sent its whole timeline; the hub serves it no more."""

    def fail(self, sqlstate: str, message: str, *, fatal: bool) -> None:
        """The reader cannot go on; the hub serves it no more. `fatal`: nor can its connection."""


class Reader:
    """A client in COPY.

    Attributes:
        number: of its connection.
        name: its application_name.
        tli: the timeline that it asked for.
        position_lsn: the next byte that it gets; it was sent what lies before, or had it.
        has_sent: it was sent something.
        retreated_to_lsn: see `learning.next_step`.
        write_lsn, flush_lsn, apply_lsn, xmin, catalog_xmin: what it has said last, no further than it was sent.
        paused: it does not read what it is sent, so it gets no more.
        fetching: a thread reads for it.
        waiting: it has been sent all that there is for it.
        caught_up: it has once been sent all that there was.
        archived: the segment out of the archive that it reads, None if it reads what is here.
    """

    __slots__ = (
        "apply_lsn",
        "archived",
        "catalog_xmin",
        "caught_up",
        "client",
        "fetching",
        "flush_lsn",
        "has_sent",
        "name",
        "number",
        "paused",
        "position_lsn",
        "retreated_to_lsn",
        "slot",
        "tli",
        "waiting",
        "wal",
        "write_lsn",
        "xmin",
    )

    def __init__(
        self, client: Client, wal: WalReader, *, number: int, name: str, tli: int, begin_lsn: Lsn, slot: Slot | None
    ) -> None:
        self.client = client
        self.wal = wal
        self.number = number
        self.name = name
        self.tli = tli
        self.position_lsn = begin_lsn
        self.slot = slot
        self.has_sent = False
        self.retreated_to_lsn: Lsn | None = None
        self.write_lsn: Lsn = 0
        self.flush_lsn: Lsn = 0
        self.apply_lsn: Lsn = 0
        self.xmin = 0
        self.catalog_xmin = 0
        self.paused = False
        self.fetching = False
        self.waiting = False
        self.caught_up = False
        self.archived: CachedSegment | None = None

    @property
    def state(self) -> str:
        """One word for a person: `catchup` until it has had everything once, then `streaming`."""
        return "streaming" if self.caught_up else "catchup"

    def standby(self) -> Standby:
        """Return what the leader is told about it."""
        return Standby(self.name, self.write_lsn, self.flush_lsn, self.apply_lsn, self.xmin, self.catalog_xmin)
