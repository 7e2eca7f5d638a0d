"""A virtual standby: it streams what readers of a safekeeper may see, replays whole records, and reports its position.

It moves from one safekeeper to another, and may restart and replay again what it had replayed. It has a source of
chance of its own, so that a world without standbys goes as it would go if there were no such thing.
"""

import random
from typing import TYPE_CHECKING

from safekeeper.base.lsn import Lsn
from safekeeper.consensus.messages import Standby
from safekeeper.consensus.term_history import tli_at
from tests.simulation.model.synthetic_wal import first_record_start, last_complete_end

if TYPE_CHECKING:
    from tests.simulation.model.disk import ModelDisk
    from tests.simulation.model.primary import VirtualPrimary
    from tests.simulation.model.safekeeper import SimSafekeeper
    from tests.simulation.world.world import World

RECONNECT_S = 0.3
RESTLESS_EVERY_S = 1.5


class SimStandby:
    """One standby server.

    Attributes:
        safekeeper: where it streams from, None while it does not.
        received_lsn: the end of what it was sent, and has on its disk.
        applied_lsn: how far it has replayed, a record's end; 0 before it was set up.
        highest_lsn: the highest that `applied_lsn` ever was.
        tli: the timeline of the last byte that it was sent, 0 before it was set up.
        on_disk: how far it had ever replayed, and on which timeline: after a restart it would replay that far again
            before a promotion.
        passed_over: numbers of timelines with a history file that was placed in its pg_wal.
        life: grows when it is restarted, or set up again: a promotion that was requested before is forgotten.
        is_restless: whether it leaves, moves and restarts by itself, while there are faults.
    """

    def __init__(self, world: "World", name: str, rng: random.Random) -> None:
        self.world = world
        self.name = name
        self.rng = rng
        self.safekeeper: SimSafekeeper | None = None
        self.received_lsn: Lsn = 0
        self.applied_lsn: Lsn = 0
        self.highest_lsn: Lsn = 0
        self.tli = 0
        self.on_disk: tuple[Lsn, int] = (0, 0)
        self.passed_over: set[int] = set()
        self.life = 0
        self.is_restless = True
        self._restart_lsn: Lsn = 0
        self._truth = world.checker
        self._stream = 0
        self._read_is_due = False
        self._away_until_s = 0.0

    @property
    def words(self) -> Standby:
        """Its own report."""
        return Standby(self.name, self.received_lsn, self.received_lsn, self.applied_lsn)

    @property
    def needed_lsn(self) -> Lsn:
        """Where its slot stands, 0 before it was set up: it may replay again from there on."""
        return min(self.applied_lsn, self._restart_lsn or self.applied_lsn)

    @property
    def replayed_lsn(self) -> Lsn:
        """How far it has replayed: it replays at once."""
        return self.applied_lsn

    @property
    def complete_lsn(self) -> Lsn:
        """Where the last complete record ends of what it has received."""
        return self.applied_lsn

    @property
    def streamed_lsn(self) -> Lsn:
        """What its walreceiver has received since it has connected, 0 while it is not connected."""
        return self.received_lsn if self.safekeeper is not None else 0

    @property
    def line(self) -> "VirtualPrimary":
        """A primary with its bytes, and its timelines: the one that has written them is one."""
        base_lsn, (lsn, tli) = self._truth.base_lsn, self.on_disk
        wal = self._truth.committed[: lsn - base_lsn]
        for primary in self.world.primaries:
            end_lsn = primary.tli_end(tli)
            if end_lsn is not None and end_lsn >= lsn and primary.read(base_lsn, lsn) == wal:
                return primary
        raise AssertionError(f"no primary has written what {self.name} has replayed")

    def be_replaced(self) -> None:
        """It has become a primary: another one takes its place and its name, from a backup."""
        self.leave()
        self._stream += 1
        self._forget_backup()
        self._away_until_s = self.world.clock.now + 1.0 + self.rng.random()
        self._reconnect_in(2.0)

    def _forget_backup(self) -> None:
        self.applied_lsn = self.received_lsn = self._restart_lsn = 0
        self.tli, self.on_disk, self.passed_over = 0, (0, 0), set()
        self.life += 1

    def set_up_from_backup(self, end_lsn: Lsn, tli: int) -> None:
        """Begin with a backup that ends there, at a record's end, unless it was set up already."""
        if not self.applied_lsn:
            self.leave()
            self.applied_lsn = self.received_lsn = self._restart_lsn = end_lsn
            self.highest_lsn, self.tli, self.on_disk = max(self.highest_lsn, end_lsn), tli, (end_lsn, tli)
            self._away_until_s = 0.0
            self._reconnect_in(RECONNECT_S)

    def start(self) -> None:
        """Begin to look for a safekeeper, and to leave it now and then."""
        self.world.clock.after(self.rng.random() * RECONNECT_S, self._connect, self._stream)
        self.world.clock.after(self.rng.expovariate(1.0) * RESTLESS_EVERY_S, self._be_restless)

    def _connect(self, stream: int) -> None:
        if stream != self._stream or self.safekeeper is not None:
            return
        if self.world.clock.now < self._away_until_s:
            self.world.clock.after(RECONNECT_S, self._connect, stream)
            return
        safekeepers = [each for each in self.world.safekeepers.values() if self._can_stream_from(each)]
        if safekeepers:
            self.stream_from(self.rng.choice(safekeepers))
        else:
            self._restore()
            self.world.clock.after(RECONNECT_S, self._connect, stream)

    def _restore(self) -> None:
        """No safekeeper has what it needs next: take it from the archive, as far as readers of one may see."""
        archive, serving = self.world.archive, [s for s in self.world.safekeepers.values() if s.is_serving]
        if archive is None and any(safekeeper.disk.begin_lsn > self.applied_lsn for safekeeper in serving):
            # Its WAL was on a safekeeper where it had no slot: it is set up again, from a backup.
            self._forget_backup()
        for safekeeper in serving:
            acceptor = safekeeper.acceptor
            if archive is not None and acceptor is not None and self.applied_lsn:
                wal = archive.read(self.world.checker.whole(acceptor.control.history), self.applied_lsn)
                wal = wal[: max(0, acceptor.readable_lsn - self.applied_lsn)]
                end_lsn = last_complete_end(wal, self.applied_lsn, self.applied_lsn + len(wal))
                if end_lsn == self.applied_lsn:
                    continue
                self.world.checker.readers.on_replayed(self, wal[: end_lsn - self.applied_lsn])
                self.received_lsn = self.applied_lsn = end_lsn
                self.tli = tli_at(acceptor.control.history, end_lsn - 1)
                self._keep()
                self.highest_lsn = max(self.highest_lsn, end_lsn)

    def _can_stream_from(self, safekeeper: "SimSafekeeper") -> bool:
        control = safekeeper.disk.control
        if not safekeeper.is_serving or not safekeeper.disk.begin_lsn or control is None:
            return False
        if safekeeper.id in self.world.failover.missing:
            return False
        if control.set_aside or control.restore_from:
            return False  # Another cluster's log is to take the place of this one.
        if self._truth is not self.world.truths.of_folder(safekeeper):
            return True
        return not self.applied_lsn or self.applied_lsn >= safekeeper.disk.begin_lsn

    def stream_from(self, safekeeper: "SimSafekeeper") -> None:
        """Connect to a safekeeper. What was received and not replayed is asked for again."""
        self.world.note(self.name, "streams from", safekeeper.name)
        self.safekeeper = safekeeper
        truth = self.world.truths.of_folder(safekeeper)
        if truth is not self._truth:
            # What it has replayed may be given up in this cluster: it is set up again, from a backup.
            self._truth = truth
            self._forget_backup()
        self.received_lsn = self.applied_lsn
        safekeeper.readers.append(self)
        safekeeper.readers_changed()
        self.wake()

    def leave(self) -> None:
        """Close the connection."""
        safekeeper = self._forget_stream()
        if safekeeper is not None:
            self.world.note(self.name, "leaves", safekeeper.name)
            safekeeper.readers.remove(self)
            safekeeper.readers_changed()

    def log_is_gone(self) -> None:
        """The safekeeper has moved its log away: look for another one."""
        self.leave()
        self._reconnect_in(RECONNECT_S)

    def stop(self) -> None:
        """Leave, and look for no safekeeper until `settle`."""
        self.is_restless = False
        self.leave()

    def forget(self) -> None:
        """Be set up from a backup when it settles."""
        self.stop()
        self._forget_backup()

    def settle(self) -> None:
        """Look for a safekeeper from now on whenever there is none."""
        self.is_restless = True
        self._reconnect_in(RECONNECT_S)

    def lost_connection(self) -> None:
        """The safekeeper is gone, and looked for again soon."""
        self._forget_stream()
        self._reconnect_in(RECONNECT_S)

    def _forget_stream(self) -> "SimSafekeeper | None":
        safekeeper, self.safekeeper = self.safekeeper, None
        self._stream += 1
        return safekeeper

    def _reconnect_in(self, delay_s: float) -> None:
        if self.is_restless:
            self.world.clock.after(delay_s * (0.5 + self.rng.random()), self._connect, self._stream)

    def _be_restless(self) -> None:
        if self.world.is_healing or not self.is_restless:
            return
        if self.safekeeper is not None:
            self.leave()
            if self.rng.random() < 0.3:
                # After a crash it replays from its last restart point.
                self.applied_lsn = self._restart_lsn
                self.life += 1
            self._restart_lsn = self.applied_lsn
            self._reconnect_in(self.rng.choice((0.05, 0.5, 2.0)))
        self.world.clock.after(self.rng.expovariate(1.0) * RESTLESS_EVERY_S, self._be_restless)

    def wake(self) -> None:
        """There may be more to read."""
        if not self._read_is_due:
            self._read_is_due = True
            self.world.clock.after(self.rng.random() * self.world.network.delay_s, self._read, self._stream)

    def _read(self, stream: int) -> None:
        self._read_is_due = False
        safekeeper = self.safekeeper
        if safekeeper is None or safekeeper.acceptor is None:
            return
        if stream != self._stream:
            self.wake()
            return
        disk, readable_lsn = safekeeper.disk, safekeeper.acceptor.readable_lsn
        if not self.applied_lsn and readable_lsn > disk.begin_lsn:
            self._set_up(disk, readable_lsn)
            self.tli = tli_at(safekeeper.acceptor.control.history, self.applied_lsn - 1)
            self._keep()
            if self.applied_lsn == readable_lsn:
                # Nothing follows its backup: it reports its position nevertheless.
                self.received_lsn = readable_lsn
                safekeeper.readers_changed()
        if disk.begin_lsn > self.applied_lsn > 0:
            # Its log begins again above: it is of no more use to this standby.
            self.leave()
            self._reconnect_in(RECONNECT_S)
        elif readable_lsn > self.applied_lsn > 0 and readable_lsn != self.received_lsn:
            wal = disk.wal[self.applied_lsn - disk.begin_lsn : readable_lsn - disk.begin_lsn]
            end_lsn = last_complete_end(wal, self.applied_lsn, readable_lsn)
            self._truth.readers.on_replayed(self, bytes(wal[: end_lsn - self.applied_lsn]))
            self.received_lsn, self.applied_lsn = readable_lsn, end_lsn
            self.tli = tli_at(safekeeper.acceptor.control.history, readable_lsn - 1)
            self._keep()
            self.highest_lsn = max(self.highest_lsn, end_lsn)
            safekeeper.readers_changed()

    def _keep(self) -> None:
        """Remember what has reached its disk."""
        self.on_disk = max(self.on_disk, (self.applied_lsn, self.tli))

    def _set_up(self, disk: "ModelDisk", readable_lsn: Lsn) -> None:
        """Begin with a backup: it ends where a record does, and the log may begin amidst one."""
        start_lsn = first_record_start(disk.wal, disk.begin_lsn)
        if start_lsn <= readable_lsn:
            self.applied_lsn = disk.begin_lsn
            self._truth.readers.on_replayed(self, bytes(disk.wal[: start_lsn - disk.begin_lsn]))
            self.applied_lsn = start_lsn
            self.highest_lsn = max(self.highest_lsn, start_lsn)


def standbys_of(world: "World", count: int, seed: int) -> list[SimStandby]:
    """Return so many standbys, called R1, R2 ..."""
    return [SimStandby(world, f"R{number}", random.Random(f"{seed} R{number}")) for number in range(1, count + 1)]
