"""One client that streams WAL from this safekeeper: its position, and the positions that it reported.

The hub (safekeeper/serving/readers.py) decides when to serve it and sends through `Client`. A reader begins with its
START_REPLICATION and ends with the COPY; a client that continues with the next timeline is a new reader.
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
        """Send the buffers in order. They must not change afterwards."""

    def end_timeline(self, end: TimelineEnd) -> None:
        """End the COPY at the end of the timeline; the hub no longer serves the reader."""

    def fail(self, sqlstate: str, message: str, *, fatal: bool) -> None:
        """Report an error to the client; the hub no longer serves the reader. `fatal`: close its connection, too."""


class Reader:
    """A client in COPY.

    Attributes:
        number: the number of its connection.
        name: its application_name.
        tli: the timeline that it requested.
        position_lsn: the next byte to send to it.
        has_sent: at least one byte was sent to it.
        retreated_to_lsn: see `readable.next_step`.
        write_lsn, flush_lsn, apply_lsn, xmin, catalog_xmin: as last reported; positions are at most position_lsn.
        paused: its connection is full, so nothing more is sent.
        fetching: a thread reads for it.
        waiting: everything readable was sent to it.
        caught_up: everything readable was sent to it at least once.
        archived: the archived segment that it is sent, None if it is sent retained WAL.
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
        """Return `catchup` until everything readable was sent to it once, then `streaming`."""
        return "streaming" if self.caught_up else "catchup"

    def standby(self) -> Standby:
        """Return what is reported of it to the leader."""
        return Standby(self.name, self.write_lsn, self.flush_lsn, self.apply_lsn, self.xmin, self.catalog_xmin)
