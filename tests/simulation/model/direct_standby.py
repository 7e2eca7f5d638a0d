"""A virtual standby that streams from the primary, and has the safekeepers' WAL by its restore_command alone.

It may have more than the quorum's log has, and bytes that the log never gets. Where the log, or its primary, has left
its timeline below what it has received, it is rewound after a while. It has a source of chance of its own.
"""

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from safekeeper.base.lsn import Lsn
from safekeeper.base.timelines import tli_of_byte
from tests.simulation.model.primary import FIRST_LSN, VirtualPrimary

if TYPE_CHECKING:
    from tests.simulation.model.safekeeper import SimSafekeeper
    from tests.simulation.world.world import World

LOOK_EVERY_S = 0.1
REWIND_AFTER_S = 1.0
SET_UP_S = 1.0


class DirectStandby:
    """One standby server.

    Attributes:
        source: a primary whose bytes it has, up to `received_lsn`.
        received_lsn: the end of its WAL, 0 before it was set up.
        passed_over: numbers of timelines with a history file that was placed in its pg_wal.
        life: grows when it is set up again.
        is_cut_off: whether it reaches no primary.
        replay_limit_lsn: its replay stands there, until it is promoted; None: it replays all that is complete.
        is_hidden: the command may not read its WAL, so that it cannot see where the last complete record ends.
    """

    def __init__(self, world: "World", name: str, rng: random.Random) -> None:
        self.world = world
        self.name = name
        self.source = world.primaries[0]
        self.received_lsn: Lsn = 0
        self.passed_over: set[int] = set()
        self.life = 0
        self.is_cut_off = False
        self.replay_limit_lsn: Lsn | None = None
        self.is_hidden = False
        self._rng = rng
        self._stray_since_s: float | None = None
        self._set_up_at_s = 0.0

    @property
    def tli(self) -> int:
        """The timeline of its last byte."""
        return tli_of_byte(self.source.tli, self.source.ancestors, self.received_lsn - 1)

    @property
    def streamed_lsn(self) -> Lsn:
        """What its walreceiver has received."""
        return self.received_lsn

    @property
    def applied_lsn(self) -> Lsn:
        """The end of the last complete record."""
        return self.source.record_end_at_or_below(self.received_lsn) if self.received_lsn else 0

    @property
    def replayed_lsn(self) -> Lsn:
        """How far it has replayed by now."""
        return self.applied_lsn if self.replay_limit_lsn is None else min(self.replay_limit_lsn, self.applied_lsn)

    @property
    def complete_lsn(self) -> Lsn:
        """What the command finds out of `applied_lsn`, 0 if nothing."""
        return 0 if self.is_hidden else self.applied_lsn

    @property
    def on_disk(self) -> tuple[Lsn, int]:
        """How far it replays before a promotion, and on which timeline."""
        return self.applied_lsn, tli_of_byte(self.source.tli, self.source.ancestors, self.applied_lsn - 1)

    @property
    def line(self) -> VirtualPrimary:
        """A primary with its bytes, and its timelines."""
        return self.source

    def stand_still(self, source: VirtualPrimary, received_lsn: Lsn, replayed_lsn: Lsn) -> None:
        """Have this, receive no more, and show no one what of it is complete beyond the replay: for scenarios."""
        self.source, self.received_lsn = source, received_lsn
        self.replay_limit_lsn, self.is_hidden = replayed_lsn, True

    def start(self) -> None:
        """Begin to follow the primary."""
        self.world.clock.after(self._rng.random() * LOOK_EVERY_S, self._look)

    def be_replaced(self) -> None:
        """It has become a primary: another one takes its place, from a backup."""
        self.received_lsn, self.passed_over = 0, set()
        self.life += 1
        self._set_up_at_s = self.world.clock.now + SET_UP_S * (0.5 + self._rng.random())

    def be_set_up_again(self) -> None:
        """Replace it at once by a copy of any server: an operator has taken the wrong one."""
        self._set_up(self._rng.choice(self.world.primaries))

    def set_up_from_backup(self, end_lsn: Lsn, tli: int) -> None:
        """Begin with a backup of the quorum's log, unless all that it has is of that log."""
        truth = self.world.checker
        base_lsn, wal = truth.base_lsn, truth.committed[: end_lsn - truth.base_lsn]
        has_part = base_lsn < self.received_lsn <= end_lsn and self.tli <= tli
        if has_part and wal.startswith(self.source.read(base_lsn, self.received_lsn)):
            return
        for line in self.world.primaries:
            tli_end = line.tli_end(tli)
            if tli_end is not None and tli_end >= end_lsn and line.read(base_lsn, end_lsn) == wal:
                self.source, self.received_lsn, self._stray_since_s = line, end_lsn, None
                return

    def _look(self) -> None:
        now, primary = self.world.clock.now, self.world.current
        if not self.received_lsn:
            if now >= self._set_up_at_s:
                self._set_up(primary)
        elif self._is_stray(primary):
            self._stray_since_s = self._stray_since_s or now
            if now > self._stray_since_s + REWIND_AFTER_S:
                self._set_up(primary)
        else:
            self._stray_since_s = None
            if self._reaches(primary):
                self._stream(primary)
            else:
                self._fetch()
        self.world.clock.after(self._rng.expovariate(1.0) * LOOK_EVERY_S, self._look)

    def _reaches(self, primary: VirtualPrimary) -> bool:
        return primary.answers and not self.is_cut_off

    def _is_stray(self, primary: VirtualPrimary) -> bool:
        """Return whether the primary, or without one the log, has other bytes than this."""
        if self._reaches(primary):
            return not self._fits(primary)
        return any(not self._fits(line) for _, line, end_lsn in self._logs() if end_lsn >= self.received_lsn)

    def _fits(self, primary: VirtualPrimary) -> bool:
        """Return whether a primary has all that was received, on the same timelines."""
        if primary is self.source:
            return True
        end_lsn = primary.tli_end(self.tli)
        if end_lsn is None or end_lsn < self.received_lsn:
            return False
        return primary.read(FIRST_LSN, self.received_lsn) == self.source.read(FIRST_LSN, self.received_lsn)

    def _stream(self, primary: VirtualPrimary) -> None:
        end_lsn = primary.flush_lsn
        if end_lsn > self.received_lsn:
            self.source = primary
            self.received_lsn = self._rng.choice((end_lsn, self._rng.randint(self.received_lsn + 1, end_lsn)))

    def _fetch(self) -> None:
        """Restore what a safekeeper's readers may see."""
        for _, line, end_lsn in self._logs():
            if end_lsn > self.received_lsn and self._fits(line):
                self.source, self.received_lsn = line, end_lsn
                return

    def _set_up(self, primary: VirtualPrimary) -> None:
        """Begin with a backup of the primary, or of what safekeepers have; or rewind, which comes to the same."""
        logs = [(line, end_lsn) for _, line, end_lsn in self._logs()]
        if self._reaches(primary):
            logs = [(primary, primary.flush_lsn)]
        for line, end_lsn in logs:
            lsn = line.record_end_at_or_below(end_lsn)
            if lsn > FIRST_LSN:
                self.source, self.received_lsn = line, lsn
                self.life += 1
                self._stray_since_s = None
                self.world.note(self.name, "is set up from", line.name, lsn)
                return

    def _logs(self) -> "Iterator[tuple[SimSafekeeper, VirtualPrimary, Lsn]]":
        """Yield what safekeepers let readers see: a primary with these bytes, and where they end."""
        for safekeeper in self.world.safekeepers.values():
            acceptor, disk = safekeeper.acceptor, safekeeper.disk
            if acceptor is None or not safekeeper.is_serving or not disk.begin_lsn:
                continue
            if safekeeper.id in self.world.failover.missing:
                continue
            end_lsn, tli = acceptor.readable_lsn, acceptor.readable_tli
            if end_lsn <= disk.begin_lsn:
                continue
            wal = disk.wal[: end_lsn - disk.begin_lsn]
            for line in self.world.primaries:
                tli_end = line.tli_end(tli)
                is_long_enough = tli_end is not None and tli_end >= end_lsn
                if is_long_enough and line.read(disk.begin_lsn, end_lsn) == wal:
                    yield safekeeper, line, end_lsn
                    break


def direct_standbys_of(world: "World", count: int) -> list[DirectStandby]:
    """Return so many standbys, called D1, D2 ..."""
    return [DirectStandby(world, f"D{n}", random.Random(f"{world.seed} D{n}")) for n in range(1, count + 1)]
