"""A virtual PostgreSQL: it writes WAL, flushes it, streams what is flushed, and releases commits by reported positions.

A primary that is promoted or restored is a new object with a copy of its source's WAL. From there on it writes commits
of its own: two primaries that both believe to be the right one never write the same ones. But one that was restored may
repeat the shape of what its source wrote, and with it every byte of the records that bear no time.
"""

from collections import deque
from typing import TYPE_CHECKING

from safekeeper.base.lsn import Lsn, segment_start
from safekeeper.base.timelines import format_timeline_history
from safekeeper.consensus.control_state import TliHistory
from tests.simulation.checks.violation import Violation
from tests.simulation.model.synthetic_wal import (
    HEADER_BYTES,
    SEGMENT_SIZE,
    is_timed_at,
    last_complete_end,
    last_record_start,
    make_record,
    records,
)
from walproxy.proposer.primary import Ancestor, PrimaryIdentity

if TYPE_CHECKING:
    from tests.simulation.model.proxy import SimProxy
    from tests.simulation.world.world import World

FIRST_LSN = 4 * SEGMENT_SIZE
SYSTEM_ID = 7_000_000_001
SERVER_VERSION = 150018


class VirtualPrimary:
    """One PostgreSQL server.

    Attributes:
        tli, ancestors: its timeline and those that it came from.
        wal: all WAL that it has, flushed or not, from FIRST_LSN on.
        flush_lsn: end of what a crash leaves.
        own_lsn: where its own writing began; commits before that are its source's.
        reported_lsn, reported_apply_lsn: the highest flush and apply positions that were reported to it.
        oldest_lsn: what is below this was recycled, a segment start.
        quiet: whether no client writes at the moment.
        frozen: whether its process is stopped: it is there, and does and answers nothing.
        is_lost: whether its machine is gone: nothing starts it.
        walsender: the proxy that streams from it, one at most: there is one slot.
        has_slot: whether a real proxy has created its slot; a simulated one has no need of it.
        life: grows at every crash.
        system_id: of its PostgreSQL cluster.
        repeated: sizes of records that it writes instead of what it is asked for, and whether they bear a time.
    """

    system_id = SYSTEM_ID

    def __init__(self, world: "World", name: str, tli: int, ancestors: tuple[Ancestor, ...], wal: bytes) -> None:
        self.world = world
        self.name = name
        self.tli = tli
        self.ancestors = ancestors
        self.wal = bytearray(wal)
        self.flush_lsn = self.own_lsn = self.insert_lsn
        self.reported_lsn: Lsn = 0
        self.reported_apply_lsn: Lsn = 0
        self.oldest_lsn = FIRST_LSN
        self.walsender: SimProxy | None = None
        self.up = True
        self.quiet = False
        self.frozen = False
        self.is_lost = False
        self.has_slot = False
        self.life = 0
        self.repeated: deque[tuple[int, bool]] = deque()
        self._last_record_lsn = last_record_start(self.wal, FIRST_LSN, self.insert_lsn)

    @property
    def insert_lsn(self) -> Lsn:
        """End of its WAL."""
        return FIRST_LSN + len(self.wal)

    def identity(self) -> PrimaryIdentity:
        """What IDENTIFY_SYSTEM and TIMELINE_HISTORY return."""
        ancestors = self.ancestors
        tlis = [*(ancestor.tli for ancestor in ancestors[1:]), *([self.tli] if ancestors else [])]
        return PrimaryIdentity(
            system_id=self.system_id,
            tli=self.tli,
            flush_lsn=self.flush_lsn,
            segment_size=SEGMENT_SIZE,
            server_version=SERVER_VERSION,
            ancestors=self.ancestors,
            tli_histories=tuple(
                TliHistory(tli, format_timeline_history(ancestors[:parents], f"of {self.name}"))
                for parents, tli in enumerate(tlis, 1)
            ),
        )

    def write_record(self, size: int, *, is_timed: bool = False) -> Lsn:
        """Insert a record of `size` bytes, a commit if it bears a time; return its end."""
        if self.repeated:
            size, is_timed = self.repeated.popleft()
        start_lsn = self.insert_lsn
        self.wal += make_record(size, self._last_record_lsn, self.world.rng, is_timed=is_timed)
        self._last_record_lsn = start_lsn
        return self.insert_lsn

    def switch_segment(self) -> None:
        """Insert a record that fills the segment, as pg_switch_wal does."""
        rest = segment_start(self.insert_lsn, SEGMENT_SIZE) + SEGMENT_SIZE - self.insert_lsn
        self.write_record(rest if rest >= HEADER_BYTES else rest + SEGMENT_SIZE)

    def fits_into_segment(self, size: int) -> bool:
        """Return whether a record of `size` bytes would end in the segment that it begins in.

        Of a commit across a border the first part may be recycled as soon as it is acknowledged: in a segment of 16 MiB
        that is so rare that the primary is then refused; here none is written.
        """
        return self.insert_lsn % SEGMENT_SIZE + size < SEGMENT_SIZE

    def flush(self, up_to_lsn: Lsn | None = None) -> None:
        """Make WAL durable on its own disk, all of it or up to a position; the walsender may send it then."""
        target_lsn = self.insert_lsn if up_to_lsn is None else up_to_lsn
        if target_lsn > self.flush_lsn:
            self.flush_lsn = target_lsn
            if self.walsender is not None:
                self.walsender.primary_has_more()

    @property
    def answers(self) -> bool:
        """Whether it does what it is asked for."""
        return self.up and not self.frozen

    def freeze(self) -> None:
        """SIGSTOP: its connections stay, and it does nothing until it goes on."""
        self.world.note(self.name, "is frozen")
        self.frozen = True

    def thaw(self) -> None:
        """Go on as if no time had passed."""
        if self.frozen:
            self.world.note(self.name, "goes on")
            self.frozen = False
            if self.walsender is not None:
                self.walsender.primary_has_more()

    def crash(self) -> None:
        """kill -9: flushed WAL survives. A record that was cut short stays so; the next one follows behind it."""
        self.world.note(self.name, "crashes")
        self.up = self.frozen = False
        self.life += 1
        del self.wal[self.flush_lsn - FIRST_LSN :]
        self.drop_walsender()

    def start(self) -> None:
        """Come back with what is on disk. No commit is released before positions are reported again."""
        if not self.up and not self.is_lost:
            self.world.note(self.name, "starts")
            self.up = True
            self._last_record_lsn = last_record_start(self.wal, FIRST_LSN, self.insert_lsn)

    def drop_walsender(self) -> None:
        """Close the replication connection."""
        proxy, self.walsender = self.walsender, None
        if proxy is not None:
            proxy.primary_hung_up()

    def recycle(self) -> None:
        """Remove the segments that the slot does not hold back."""
        if self.reported_lsn:
            self.oldest_lsn = max(self.oldest_lsn, segment_start(self.reported_lsn, SEGMENT_SIZE))

    def tli_end(self, tli: int) -> Lsn | None:
        """Return where it left timeline `tli`, its flush position for the present one, None for one it never had."""
        if tli == self.tli:
            return self.flush_lsn
        return next((ancestor.end_lsn for ancestor in self.ancestors if ancestor.tli == tli), None)

    def next_tli(self, tli: int) -> int:
        """Return the timeline that followed `tli`."""
        tlis = [*(ancestor.tli for ancestor in self.ancestors), self.tli]
        return tlis[tlis.index(tli) + 1]

    def read(self, begin_lsn: Lsn, end_lsn: Lsn) -> bytes:
        """Return its bytes [begin_lsn, end_lsn)."""
        return bytes(self.wal[begin_lsn - FIRST_LSN : end_lsn - FIRST_LSN])

    def on_report(self, flush_lsn: Lsn, apply_lsn: Lsn) -> None:
        """A status update: commits whose records end at or below these are released, by level."""
        self.reported_lsn = max(self.reported_lsn, flush_lsn)
        self.reported_apply_lsn = max(self.reported_apply_lsn, apply_lsn)

    def record_end_at_or_below(self, lsn: Lsn) -> Lsn:
        """Return the end of the last complete record at or below `lsn`: where a recovery would stop."""
        return last_complete_end(self.wal, FIRST_LSN, lsn)

    def promoted(self, name: str, fork_lsn: Lsn, tli: int) -> "VirtualPrimary":
        """Return a standby of this one that was promoted at `fork_lsn`, a record's end, to timeline `tli`."""
        ancestors = (*self.ancestors, Ancestor(self.tli, fork_lsn))
        return VirtualPrimary(self.world, name, tli, ancestors, self.read(FIRST_LSN, fork_lsn))

    def restored(self, name: str, end_lsn: Lsn, *, repeats: bool = False) -> "VirtualPrimary":
        """Return this one as a backup would bring it back: behind, on the same timeline.

        Args:
            repeats: it goes on with records of the same sizes as those that it lacks.
        """
        primary = VirtualPrimary(self.world, name, self.tli, self.ancestors, self.read(FIRST_LSN, end_lsn))
        if repeats:
            for start_lsn, record_end_lsn in records(self.wal, FIRST_LSN, end_lsn):
                if start_lsn != primary.insert_lsn + sum(size for size, _ in primary.repeated):
                    break  # A crash has cut one short.
                is_timed = is_timed_at(self.wal, start_lsn - FIRST_LSN)
                primary.repeated.append((record_end_lsn - start_lsn, is_timed))
        return primary


class Stranger(VirtualPrimary):
    """A server of another PostgreSQL cluster, which must be refused (S10)."""

    system_id = SYSTEM_ID + 1

    def on_report(self, flush_lsn: Lsn, apply_lsn: Lsn) -> None:
        """A proxy has streamed its WAL."""
        raise Violation("LogMatching", f"{self.name}, of another PostgreSQL cluster, receives {flush_lsn} (S10)")
