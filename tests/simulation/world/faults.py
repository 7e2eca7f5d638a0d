"""What goes wrong in the first phase: one fault at a time, drawn by the profile's weights."""

import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.consensus.membership import Identity, Member, QuorumSizes
from tests.simulation.checks import quorums
from tests.simulation.model.disk import ModelDisk, StorageDisk
from tests.simulation.model.network import TO_PROXY, TO_SAFEKEEPER
from tests.simulation.model.primary import FIRST_LSN, VirtualPrimary
from tests.simulation.model.synthetic_wal import HEADER_BYTES, SEGMENT_SIZE
from tests.simulation.model.virtual_disk import PAGE_BYTES
from tests.simulation.seeds.schedule import Draws, Fault
from tests.simulation.shells.shell_disk import ShellDisk
from tests.simulation.world.agent_faults import AgentFaults
from tests.simulation.world.operator_faults import OperatorFaults
from walproxy.proposer.phase import Phase

if TYPE_CHECKING:
    from tests.simulation.model.proxy import SimProxy
    from tests.simulation.model.safekeeper import SimSafekeeper
    from tests.simulation.world.world import World

STARTS_S = 0.5
_LOOK_EVERY_S = 0.005


class Faults(OperatorFaults, AgentFaults):
    """Draws and does faults until its time is over, or does those that were planned.

    Attributes:
        rng: what a fault draws from, the world's source of chance between faults.
        done: what was done, with all that was drawn for it.
    """

    def __init__(self, world: "World", planned: Sequence[Fault] | None = None) -> None:
        self.world = world
        self.rng = world.rng
        self.done: list[Fault] = []
        self.ends_at = 0.0
        self._coming = self._drawn(random.Random(f"{world.seed} faults")) if planned is None else iter(planned)

    def begin(self, ends_at_s: float) -> None:
        """Let faults happen until then."""
        self.ends_at = ends_at_s
        self._await_next()

    def _drawn(self, rng: random.Random) -> Iterator[Fault]:
        """Yield faults without an end, drawn by the profile's weights."""
        profile = self.world.profile
        kinds, weights = list(profile.weights), list(profile.weights.values())
        at_s = rng.random() * STARTS_S
        while True:
            at_s = round(at_s, 4)
            yield Fault(at_s, rng.choices(kinds, weights)[0])
            at_s += rng.expovariate(1.0) * profile.fault_every_s

    def _await_next(self) -> None:
        fault = next(self._coming, None)
        if fault is not None and fault.at_s < self.ends_at:
            self.world.clock.after(max(0.0, fault.at_s - self.world.clock.now), self._happen, fault)

    def _happen(self, fault: Fault) -> None:
        """Do one fault. What it draws is its own; what follows from it later draws from the world's."""
        draws = Draws(crc32(f"{self.world.seed} {fault.at_s}".encode()), fault.words)
        self.world.counts.count(f"fault {fault.kind}")
        self.rng = draws
        try:
            getattr(self, fault.kind)()
        finally:
            self.rng = self.world.rng
            self.done.append(Fault(fault.at_s, fault.kind, tuple(draws.words)))
        self._await_next()

    def _safekeeper(self) -> "SimSafekeeper":
        return self.rng.choice(list(self.world.safekeepers.values()))

    def _proxy(self) -> "SimProxy":
        return self.rng.choice(self.world.proxies)

    def _soon(self) -> float:
        return self.rng.choice((0.1, 0.5, 2.0)) * (0.5 + self.rng.random())

    def crash_safekeeper(self) -> None:
        """At once, or at one of the next effects, so that every place between two effects is met."""
        safekeeper = self._safekeeper()
        safekeeper.dies_of_power_cut = self.rng.random() < 0.5
        if safekeeper.acceptor is None:
            return
        if self.rng.random() < 0.2:
            safekeeper.crash(safekeeper.dies_of_power_cut)
        else:
            safekeeper.effects_left = self.rng.randint(1, 12)

    def crash_after_effect(self) -> None:
        """Right after the next effect of some kind, so that what comes before what else is seen."""
        safekeeper = self._safekeeper()
        safekeeper.dies_of_power_cut = self.rng.random() < 0.5
        effect = self.rng.choice(("TruncateWal", "TruncateWal", "ResetWal", "Persist"))
        if safekeeper.dies_after != "TruncateWal":
            safekeeper.dies_after = effect

    def cut_power(self) -> None:
        """While flushes take long, so that much is at the disk's mercy: any sectors of it, or pages, may stay."""
        safekeeper, primary = self._safekeeper(), self.world.current
        safekeeper.flush_delay_s = 5.0
        if primary.up:
            primary.write_record(HEADER_BYTES + self.rng.randint(2 * PAGE_BYTES, 4 * PAGE_BYTES))
            primary.flush()
        self.world.clock.after(0.1 + 0.4 * self.rng.random(), self._cut_power_now, safekeeper)

    def _cut_power_now(self, safekeeper: "SimSafekeeper") -> None:
        self._heal_disk(safekeeper)
        if safekeeper.acceptor is not None:
            safekeeper.crash(power_cut=True)

    def stay_away(self) -> None:
        """Be down for long, while others go on without it."""
        safekeeper = self._safekeeper()
        safekeeper.away_until_s = self.world.clock.now + 1.0 + 4.0 * self.rng.random()
        if safekeeper.acceptor is not None:
            safekeeper.crash(power_cut=self.rng.random() < 0.5)

    def hang(self) -> None:
        """It accepts bytes and answers nothing; what it was sent is handled late."""
        safekeeper = self._safekeeper()
        if safekeeper.acceptor is not None:
            safekeeper.is_hung = True
            self.world.clock.after(self._soon(), safekeeper.wake_up)

    def wipe(self) -> None:
        """Lose a disk: a minority in a run, and only of a cluster that has begun."""
        world = self.world
        if not world.checker.won:
            return
        safekeeper = self._safekeeper()
        if not world.may_lose(safekeeper):
            return
        if safekeeper.acceptor is not None:
            safekeeper.crash(power_cut=True)
        safekeeper.wipe()

    def exchange_folder(self) -> None:
        """Start a safekeeper on an empty folder, and later on the old one again, whatever the members are by then."""
        safekeeper = self._safekeeper()
        if not self.world.checker.won or not self.world.may_exchange(safekeeper):
            return
        if safekeeper.acceptor is not None:
            safekeeper.crash(power_cut=self.rng.random() < 0.5)
        safekeeper.exchange_folder()

    def restore_folder(self) -> None:
        """Take a snapshot of a data folder, and some time later put it in the folder's place."""
        safekeeper = self._safekeeper()
        # While it runs: what it has read at its start is on its disk.
        if self.world.checker.won and safekeeper.is_serving:
            snapshot = safekeeper.disk.duplicate()
            self.world.clock.after(1.0 + 2.0 * self.rng.random(), self._restore_now, safekeeper, snapshot)

    def _restore_now(self, safekeeper: "SimSafekeeper", snapshot: ModelDisk) -> None:
        world, here = self.world, safekeeper.disk.control
        control, flush_lsn = snapshot.open()
        assert control is not None  # by `restore_folder`
        snapshot.crash(power_cut=False)
        begun = Acceptor(control, flush_lsn).folder_state
        state = msgspec.structs.replace(begun, starts=begun.starts + 1)  # It will start once.
        is_same = here is not None and here.incarnation == control.incarnation
        if is_same and world.clock.now < self.ends_at and world.may_restore(safekeeper, control, state):
            if safekeeper.acceptor is not None:
                safekeeper.crash(power_cut=self.rng.random() < 0.5)
            safekeeper.restore_folder(snapshot)

    def change_members(self) -> None:
        """An operator changes one member, or takes a change back that is under way."""
        proxy = self._proxy()
        leadership = proxy.proposer.leadership if proxy.proposer is not None else None
        if leadership is None:
            return
        membership = leadership.membership
        if membership.new_members:
            options = quorums.halves(membership)
        else:
            others = _other_members(membership.members, proxy.known_folders())
            sizes = membership.quorum_sizes
            if self.world.changes_both and self.rng.random() < 0.5:
                sizes = self.rng.choice(self.world.quorum_choices)
            options = [(members, sizes) for members in others]
        self._change_to(proxy, options)

    def rebootstrap(self) -> None:
        """An operator begins another cluster on all safekeepers, or takes that back, at any moment."""
        world = self.world
        if not world.operator.may_begin:
            return
        controls = [safekeeper.disk.control for safekeeper in world.safekeepers.values()]
        is_kept = any(control is not None and control.replaced is not None for control in controls)
        is_undo = is_kept and self.rng.random() < 0.6
        world.operator.begin(is_undo=is_undo, discards=is_undo and self.rng.random() < 0.3)

    def change_sizes(self) -> None:
        """An operator changes the sizes of the quorums, or takes a change back that is under way."""
        proxy = self._proxy()
        leadership = proxy.proposer.leadership if proxy.proposer is not None else None
        if leadership is None:
            return
        membership = leadership.membership
        if membership.new_members:
            options = quorums.halves(membership)
        else:
            choices = [sizes for sizes in self.world.quorum_choices if sizes != membership.quorum_sizes]
            options = [(membership.members, sizes) for sizes in choices]
        self._change_to(proxy, options)

    def _change_to(self, proxy: "SimProxy", options: list[tuple[tuple[Member, ...], QuorumSizes]]) -> None:
        # An operator does not ask for members whose disks are lost already, so many that a quorum is out of reach.
        world = self.world
        present = {i for i, safekeeper in world.safekeepers.items() if safekeeper.disk.control is not None}
        options = [
            (members, sizes)
            for members, sizes in options
            if sum(m.id not in present or world.is_lost(m.identity) for m in members) <= quorums.spare(members, sizes)
        ]
        if options:
            proxy.change_members(*options[self.rng.randint(0, len(options) - 1)])

    def replace_lost(self) -> None:
        """A member lags, another one loses its disk, a proxy takes over: the lost folder is replaced once it leads."""
        world = self.world
        proxy, lost, laggard = self._proxy(), self._safekeeper(), self._safekeeper()
        if not world.checker.won or lost is laggard:
            return
        for other in world.proxies:
            world.network.blocked.add((other.name, laggard.id, TO_SAFEKEEPER))
        if world.current.up:
            world.current.write_record(HEADER_BYTES + self.rng.randint(1, PAGE_BYTES))
            world.current.flush()
        world.clock.after(0.5 * self.rng.random(), self._lose_and_take_over, proxy, lost, laggard)

    def _lose_and_take_over(self, proxy: "SimProxy", lost: "SimSafekeeper", laggard: "SimSafekeeper") -> None:
        world = self.world
        if world.clock.now > self.ends_at:
            return
        proxy.stop()
        world.network.unblock(proxy.name, laggard.id, TO_SAFEKEEPER)
        if world.may_lose(lost):
            if lost.acceptor is not None:
                lost.crash(power_cut=True)
            lost.wipe()
            for slow in (lost, laggard):
                slow.flush_delay_s = 5.0
            proxy.takeover = True
            ends_at_s = world.clock.now + 2.0
            world.clock.after(_LOOK_EVERY_S, self._replace_when_it_leads, proxy, lost, laggard, ends_at_s)
        proxy.start()

    def _replace_when_it_leads(
        self, proxy: "SimProxy", lost: "SimSafekeeper", laggard: "SimSafekeeper", ends_at_s: float
    ) -> None:
        world = self.world
        leadership = proxy.proposer.leadership if proxy.proposer is not None else None
        known = dict(proxy.known_folders())
        if world.clock.now < min(ends_at_s, self.ends_at) and (leadership is None or lost.id not in known):
            world.clock.after(_LOOK_EVERY_S, self._replace_when_it_leads, proxy, lost, laggard, ends_at_s)
            return
        if leadership is not None and not leadership.membership.new_members:
            world.counts.count("lost members replaced")
            membership = leadership.membership
            wanted = tuple(Member(m.id, known.get(m.id, m.incarnation)) for m in membership.members)
            proxy.change_members(wanted, membership.quorum_sizes)
        for unlucky in (lost, laggard):
            world.clock.after(0.1 + 0.4 * self.rng.random(), self._cut_power_now, unlucky)

    def slow_disk(self) -> None:
        safekeeper = self._safekeeper()
        safekeeper.flush_delay_s = 1.0
        self.world.clock.after(self._soon(), self._heal_disk, safekeeper)

    def fill_disk(self) -> None:
        safekeeper = self._safekeeper()
        safekeeper.disk.full = True
        self.world.clock.after(self._soon(), self._heal_disk, safekeeper)

    def _heal_disk(self, safekeeper: "SimSafekeeper") -> None:
        safekeeper.disk.full = False
        safekeeper.flush_delay_s = self.world.profile.flush_delay_s

    def fail_disk(self) -> None:
        """A write or sync fails, files cannot be opened, or the process dies in the middle of the storage's work."""
        disk = self._safekeeper().disk
        if not isinstance(disk, StorageDisk):
            self.crash_safekeeper()
        elif isinstance(disk, ShellDisk) and self.rng.random() < 0.3:
            disk.fs.short = self.rng.randint(1, 12)
            self.world.counts.count("shortages of descriptors")
        elif self.rng.random() < 0.5:
            kinds = (None, "sync", "sync folder") if isinstance(disk, ShellDisk) else (None, "sync")
            disk.fs.fail_in(self.rng.randint(1, 20), only=self.rng.choice(kinds))
        else:
            disk.fs.crash_in(self.rng.randint(1, 20))

    def break_connection(self) -> None:
        connections = list(self.world.network.connections.values())
        if connections:
            self.world.network.break_connection(self.rng.choice(connections), silent=self.rng.random() < 0.4)

    def let_go(self) -> None:
        """A proxy gives a connection up and makes another one; what was sent on the old one comes after that."""
        proxy, safekeeper = self._proxy(), self._safekeeper()
        if proxy.proposer is not None:
            proxy.let_go(safekeeper.id, 2 * self._soon())

    def block(self) -> None:
        """A partition of one pair, one way or both, until it is healed; sometimes of a proxy from all."""
        proxy = self.rng.choice([*self.world.proxies, *self.world.failover.commands])
        ways = self.rng.choice(((TO_SAFEKEEPER,), (TO_PROXY,), (TO_SAFEKEEPER, TO_PROXY)))
        safekeepers = [self._safekeeper()] if self.rng.random() < 0.7 else list(self.world.safekeepers.values())
        for safekeeper in safekeepers:
            for way in ways:
                self.world.network.blocked.add((proxy.name, safekeeper.id, way))

    def unblock(self) -> None:
        blocked = sorted(self.world.network.blocked)
        for each in blocked if self.rng.random() < 0.3 else blocked[: self.rng.randint(0, 2)]:
            self.world.network.unblock(*each)

    def restart_proxy(self) -> None:
        proxy = self._proxy()
        proxy.terminate()
        self.world.clock.after(self._soon(), proxy.start)

    def suspend_proxy(self) -> None:
        """It stands still, and then does at once what it would have done meanwhile."""
        self._proxy().suspend(self._soon())

    def leap_clock(self) -> None:
        """The clock of a machine is ahead at once, as after its virtual machine was suspended."""
        self.rng.choice((self._proxy(), self._safekeeper())).clock.ahead_s += 2 * self._soon()

    def take_over(self) -> None:
        """Another proxy is started to take over at once: its candidature does not wait for the serving one."""
        world = self.world
        if len(world.proxies) < 3:
            world.add_proxy(takeover=True)
        else:
            proxy = self._proxy()
            proxy.stop()
            proxy.takeover = True
            proxy.start()

    def strand(self) -> None:
        """A proxy takes over, on any primary; once it leads, it reaches one safekeeper only, and both end soon."""
        world = self.world
        proxy = self._proxy()
        proxy.stop()
        proxy.takeover = True
        world.point(proxy, self.rng.choice(world.primaries[-2:]))
        proxy.start()
        world.clock.after(_LOOK_EVERY_S, self._strand_when_it_leads, proxy, proxy.life, world.clock.now + 2.0)

    def _strand_when_it_leads(self, proxy: "SimProxy", life: int, give_up_at_s: float) -> None:
        world, proposer = self.world, proxy.proposer
        if proxy.life != life or proposer is None or world.clock.now > min(give_up_at_s, self.ends_at):
            return
        if proposer.phase is not Phase.LEADING:
            world.clock.after(_LOOK_EVERY_S, self._strand_when_it_leads, proxy, life, give_up_at_s)
            return
        world.counts.count("leaders stranded")
        reached = self._safekeeper()
        for safekeeper in world.safekeepers.values():
            if safekeeper is not reached:
                world.network.blocked.add((proxy.name, safekeeper.id, TO_SAFEKEEPER))
        world.clock.after(0.25 * self._soon(), self._end_stranded, proxy, reached)

    def _end_stranded(self, proxy: "SimProxy", reached: "SimSafekeeper") -> None:
        proxy.stop()
        for safekeeper_id in self.world.safekeepers:
            self.world.network.unblock(proxy.name, safekeeper_id, TO_SAFEKEEPER)
        reached.away_until_s = self.world.clock.now + 0.3 + self.rng.random()
        if reached.acceptor is not None:
            reached.crash(power_cut=self.rng.random() < 0.5)
        self.world.clock.after(self._soon(), proxy.start)

    def lose_primary(self) -> None:
        proxy = self._proxy()
        proxy.lose_primary()
        proxy.primary_is_cut_off = self.rng.random() < 0.3
        self.world.clock.after(self._soon(), self._reconnect, proxy)

    def _reconnect(self, proxy: "SimProxy") -> None:
        proxy.primary_is_cut_off = False

    def repoint(self) -> None:
        """The name that a proxy connects to leads elsewhere from now on, with or without a restart."""
        proxy = self._proxy()
        right = self.rng.random() < 0.6
        self.world.point(proxy, self.world.current if right else self.rng.choice(self.world.primaries))
        if self.rng.random() < 0.5:
            proxy.stop()
            proxy.start()
        else:
            proxy.lose_primary()

    def crash_primary(self) -> None:
        primary = self.rng.choice(self.world.primaries)
        if primary.up:
            primary.crash()
            self.world.clock.after(self._soon(), primary.start)

    def switch_segment(self) -> None:
        if self.world.current.up:
            self.world.current.switch_segment()
            self.world.current.flush()

    def recycle(self) -> None:
        """The log ends on a segment's border, and everything before it is recycled while the proxy is away."""
        primary = self.world.current
        if primary.up:
            primary.switch_segment()
            primary.flush()
            primary.quiet = True
            self.world.clock.after(0.5 * self.rng.random(), self._recycle_now, primary)

    def _recycle_now(self, primary: VirtualPrimary) -> None:
        primary.recycle()
        for proxy in self.world.proxies:
            if proxy.primary is primary and self.rng.random() < 0.5:
                proxy.stop()
                proxy.start()
            elif proxy.primary is primary:
                proxy.lose_primary()
        self.world.clock.after(0.5 * self.rng.random(), self._write_again, primary)

    def _write_again(self, primary: VirtualPrimary) -> None:
        primary.quiet = False

    def promote(self) -> None:
        """A standby of some primary becomes one, at a record's end; the old one may die, or stay."""
        world = self.world
        if len(world.primaries) >= 8:
            return
        source = world.current if self.rng.random() < 0.8 else self.rng.choice(world.primaries)
        acked_lsn = world.checker.acked_lsn
        lowest_lsn = source.ancestors[-1].end_lsn if source.ancestors else FIRST_LSN
        if self.rng.random() >= world.profile.low_fork:
            lowest_lsn = max(lowest_lsn, min(acked_lsn, source.flush_lsn))
        near_lsn = max(lowest_lsn, source.flush_lsn - 4 * SEGMENT_SIZE)
        at_lsn = self.rng.choice((source.flush_lsn, acked_lsn, self.rng.randint(near_lsn, source.flush_lsn)))
        fork_lsn = source.record_end_at_or_below(min(max(at_lsn, lowest_lsn), source.flush_lsn))
        if fork_lsn < lowest_lsn or fork_lsn <= FIRST_LSN:
            return
        isolated = self.rng.random() < world.profile.isolated_promotion
        tli = source.tli + 1 if isolated else max(primary.tli for primary in world.primaries) + 1
        self._settle_on(world.new_primary(source.promoted(world.next_primary_name(), fork_lsn, tli)), source)

    def lose_successor(self) -> None:
        """A standby with all WAL is promoted. Once a proxy streams it, it goes down for long: older hosts are left."""
        world = self.world
        source = world.current
        fork_lsn = source.record_end_at_or_below(source.flush_lsn)
        lowest_lsn = source.ancestors[-1].end_lsn if source.ancestors else FIRST_LSN
        if not source.up or len(world.primaries) >= 8 or fork_lsn <= max(lowest_lsn, FIRST_LSN):
            return
        tli = max(primary.tli for primary in world.primaries) + 1
        successor = world.new_primary(source.promoted(world.next_primary_name(), fork_lsn, tli))
        self._settle_on(successor, source)
        world.clock.after(_LOOK_EVERY_S, self._lose_when_streamed, successor, world.clock.now + 2.0)

    def _lose_when_streamed(self, successor: VirtualPrimary, give_up_at_s: float) -> None:
        world = self.world
        if not successor.up or world.clock.now > min(give_up_at_s, self.ends_at):
            return
        if successor.reported_lsn <= successor.own_lsn:
            world.clock.after(_LOOK_EVERY_S, self._lose_when_streamed, successor, give_up_at_s)
            return
        world.counts.count("successors lost")
        successor.crash()
        world.clock.after(2.0 + self._soon(), successor.start)
        for proxy in world.proxies:
            world.point(proxy, successor)
            proxy.stop()
            proxy.start()

    def lose_data(self) -> None:
        """A standby that lacks acknowledged WAL is promoted, and the operator starts a proxy that may give that up."""
        world = self.world
        source = world.current
        lowest_lsn = source.ancestors[-1].end_lsn if source.ancestors else FIRST_LSN
        acked_lsn = min(world.checker.acked_lsn, source.flush_lsn)
        if len(world.primaries) >= 8 or acked_lsn <= lowest_lsn:
            return
        fork_lsn = source.record_end_at_or_below(self.rng.randint(lowest_lsn, acked_lsn))
        if fork_lsn <= max(lowest_lsn, FIRST_LSN):
            return
        tli = max(primary.tli for primary in world.primaries) + 1
        primary = world.new_primary(source.promoted(world.next_primary_name(), fork_lsn, tli))
        self._settle_on(primary, source)
        proxy = self._proxy()
        proxy.stop()
        proxy.takeover = proxy.allow_data_loss = True
        proxy.primary, proxy.others = primary, ()
        proxy.start()

    def fail_over(self) -> None:
        """The primary dies, stands still, is cut off, or is thought to be lost: an operator fails over, or cancels."""
        world = self.world
        if self.rng.random() < 0.1:
            world.failover.cancel()
            return
        if not world.checker.acked_lsn and self.rng.random() < 0.9:
            return  # No proxy misses a primary yet.
        fate = self.rng.random()
        if fate < 0.4 and world.current.up:
            primary = world.current
            primary.crash()
            world.clock.after(self._soon(), primary.start)
        elif fate < 0.6:
            self.freeze_primary()
        for proxy in world.proxies:
            if self.rng.random() < 0.4:
                proxy.stop()
                world.clock.after(self._soon(), proxy.start)
            elif self.rng.random() < 0.2:
                for safekeeper_id in world.safekeepers:
                    for way in (TO_SAFEKEEPER, TO_PROXY):
                        world.network.blocked.add((proxy.name, safekeeper_id, way))
        for _ in range(2 if self.rng.random() < 0.2 else 1):
            self._run_failover()

    def _run_failover(self) -> None:
        names = self.world.servers.names()
        dies_after = self.rng.choice(("", "", "", "", "look", "seal", "catch up", "promote"))
        wanted = self.rng.choice(names) if self.rng.random() < 0.15 else ""
        unreachable = frozenset(name for name in names if self.rng.random() < 0.1)
        self.world.failover.begin(
            wanted=wanted, old_is_dead=self.rng.random() < 0.7, dies_after=dies_after, unreachable=unreachable
        )

    def freeze_primary(self) -> None:
        """The primary's machine stands still, with the proxy that streams from it, and goes on as if nothing was."""
        primary, for_s = self.world.current, self._soon()
        if primary.answers:
            primary.freeze()
            self.world.clock.after(for_s, primary.thaw)
            if primary.walsender is not None and self.rng.random() < 0.7:
                primary.walsender.suspend(for_s)

    def stop_command(self) -> None:
        """A command of a failover dies, or stands still for a while."""
        commands = self.world.failover.commands
        if commands:
            command = self.rng.choice(commands)
            if self.rng.random() < 0.5:
                command.kill()
            else:
                command.suspend(self._soon())

    def restore_backup(self) -> None:
        """A primary comes back from a backup: the same timeline, behind, and then bytes of its own."""
        world = self.world
        if len(world.primaries) >= 8:
            return
        source = self.rng.choice(world.primaries)
        lowest_lsn = source.ancestors[-1].end_lsn if source.ancestors else FIRST_LSN
        end_lsn = source.record_end_at_or_below(self.rng.randint(lowest_lsn, source.flush_lsn))
        if end_lsn >= max(lowest_lsn, FIRST_LSN + 1):
            repeats = self.rng.random() < 0.5
            restored = source.restored(world.next_primary_name(), end_lsn, repeats=repeats)
            self._settle_on(world.new_primary(restored), source)

    def restore_recycled(self) -> None:
        """The log ends on a segment's border; a backup comes back, ends there too, and recycles the rest."""
        source = self.world.current
        if len(self.world.primaries) < 8 and source.up:
            source.switch_segment()
            source.flush()
            source.quiet = True
            self.world.clock.after(0.5 * self.rng.random(), self._restore_recycled_now, source)

    def _restore_recycled_now(self, source: VirtualPrimary) -> None:
        world = self.world
        source.quiet = False
        border_lsn = source.insert_lsn
        end_lsn = source.record_end_at_or_below(border_lsn - SEGMENT_SIZE // 2)
        if border_lsn % SEGMENT_SIZE or not FIRST_LSN < border_lsn - SEGMENT_SIZE <= end_lsn:
            return
        restored = source.restored(world.next_primary_name(), end_lsn)
        restored.write_record(HEADER_BYTES + world.rng.randint(1, SEGMENT_SIZE // 4))
        restored.switch_segment()
        restored.flush()
        restored.oldest_lsn = restored.insert_lsn
        restored.quiet = True
        world.clock.after(world.rng.random(), self._write_again, restored)
        self._settle_on(world.new_primary(restored), source)

    def go_back(self) -> None:
        """The operator believes in an older primary again."""
        self._settle_on(self.rng.choice(self.world.primaries), self.world.current)

    def _settle_on(self, primary: VirtualPrimary, instead_of: VirtualPrimary) -> None:
        world = self.world
        world.current = primary
        if primary.own_lsn == primary.insert_lsn:
            world.start_workload(primary)
        if instead_of is not primary and instead_of.up and self.rng.random() < 0.5:
            instead_of.crash()
            world.clock.after(self._soon(), instead_of.start)
        for proxy in world.proxies:
            if self.rng.random() < 0.7:
                world.point(proxy, primary)
                if self.rng.random() < 0.5:
                    proxy.stop()
                    proxy.start()
                else:
                    proxy.lose_primary()


def _other_members(members: tuple[Member, ...], folders: list[Identity]) -> Iterator[tuple[Member, ...]]:
    """Yield all sets of members that differ in one: removed, added, or replaced by another data folder."""
    present = {member.identity for member in members}
    strangers = [Member(*identity) for identity in folders if identity not in present]
    for left_out in (None, *members):
        rest = tuple(member for member in members if member is not left_out)
        if left_out is not None and rest:
            yield rest
        for stranger in strangers:
            if all(member.id != stranger.id for member in rest):
                yield tuple(sorted((*rest, stranger)))
