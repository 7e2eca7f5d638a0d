"""Failovers, as `walproxy failover` does them: seal a timeline, wait for a standby, promote it, point proxies at it.

The operator names the timeline, and repeats the command when it has died half-way. He may believe that the old primary
is dead when it is not, may repeat a failover that was done long ago, and may cancel one before anything was promoted.

A standby is one that streams from safekeepers, in runs that have any. In others it is one that streamed from the old
primary, so that it may also have more than the log has. Either is promoted as a new server with a copy of its WAL.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from safekeeper.base.lsn import Lsn, format_lsn
from tests.simulation.proxy import SimProxy
from tests.simulation.synthetic_wal import last_complete_end
from tests.simulation.violation import Violation
from walproxy.proposer.actions import Action
from walproxy.proposer.phase import ProposerConfig
from walproxy.proposer.seal import Seal

if TYPE_CHECKING:
    from collections.abc import Callable

    from safekeeper.consensus.messages import Elected
    from tests.simulation.primary import VirtualPrimary
    from tests.simulation.world import World

POLL_S = 0.05
PATIENCE_S = 30.0
PRIMARIES_MAX = 8


class Sealer(SimProxy):
    """The process of the command: a proposer that has no primary, and one thing to do.

    Attributes:
        seal: what it is to do.
    """

    def __init__(
        self, world: "World", name: str, seal: Seal, takeover: bool, on_end: "Callable[[Sealer], None]"
    ) -> None:
        super().__init__(world, name, world.current, takeover)
        self.seal = seal
        self.primary_is_cut_off = True
        self._on_end = on_end
        self._has_ended = False

    @property
    def may_start(self) -> bool:
        """It is one process, and none of the proxies."""
        return not self._has_ended

    def config(self, run: str) -> ProposerConfig:
        """Without a primary, and with the seal."""
        return replace(super().config(run), seal=self.seal, tail_after_s=None)

    def _step(self, actions: list[Action]) -> None:
        super()._step(actions)
        if self.proposer is None or self._has_ended:
            return
        if self.proposer.sealed is not None or self.proposer.candidacy.log_tli:
            self._has_ended = True
            self._on_end(self)


class Failover:
    """The operator, and the failover that is under way, if there is one.

    Attributes:
        tli: the timeline that was named last, 0 before the first failover.
        is_under_way: whether a timeline was named, and neither a standby promoted since, nor the failover cancelled.
        sealed: what began the term that has sealed it, None before that; then a standby is waited for.
    """

    # Where bugs are planted.
    waits = True

    def __init__(self, world: "World") -> None:
        self.world = world
        self.tli = 0
        self.is_under_way = False
        self.sealed: Elected | None = None
        self._sealer: Sealer | None = None
        self._count = 0
        self._cancels = False
        self._end_lsn: Lsn = 0
        self._promoted: list[VirtualPrimary] = []

    # ------------------------------------------------------------------ what the operator does

    def begin(self, *, repeats: bool, takeover: bool) -> None:
        """Fail over; or repeat the last command, whether it has died or has done all."""
        log = self.world.newest_log()
        if log is None or last_complete_end(log.wal, log.begin_lsn, log.end_lsn) == log.begin_lsn:
            return  # Where no record is complete, a promotion would fork off before the log's beginning.
        if not (self.tli and (repeats or self.is_under_way)):
            self.tli = log.tli
        self.is_under_way = True
        self._run(Seal(self.tli), takeover)

    def cancel(self) -> None:
        """Let the old primary in again, before anything was promoted: else numbers could be taken twice."""
        was_promoted = any(each.tli > self.tli for each in self._promoted)
        if self.is_under_way and not was_promoted:
            self.world.counts.count("failovers cancelled")
            # From now on it may be in force, whether or not the operator hears of that.
            for truth in self.world.truths.all():
                truth.on_seal_cancelled(self.tli)
            self._run(Seal(self.tli, cancels=True), takeover=True)

    def _run(self, seal: Seal, takeover: bool) -> None:
        self.kill()
        self.sealed = None
        self._count += 1
        self._cancels = seal.cancels
        self._sealer = Sealer(self.world, f"F{self._count}", seal, takeover, self._on_end)
        self.world.counts.count("seals begun")
        self._sealer.start()

    def kill(self) -> None:
        """The command dies, wherever it is; what it was to do is remembered by the operator."""
        sealer, self._sealer = self._sealer, None
        if sealer is not None:
            sealer.stop()

    def _finish(self) -> None:
        self.kill()
        self.sealed, self.is_under_way = None, False

    def _on_end(self, sealer: Sealer) -> None:
        if sealer is not self._sealer:
            return
        assert sealer.proposer is not None  # it has just made a step
        elected = sealer.proposer.sealed
        if elected is None:
            self.world.note("operator", "finds", f"timeline {self.tli} left: the log has gone on")
            self.world.counts.count("seals without an object")
            self._finish()
            return
        leadership = sealer.proposer.leadership
        assert leadership is not None  # by `sealed`
        self._end_lsn = elected.history[-1].start_lsn
        self.world.note("operator", "is told", f"floor {elected.history[-1].floor} at {format_lsn(self._end_lsn)}")
        if self._cancels:
            self._finish()
            return
        self.world.counts.count("timelines sealed")
        self.world.truths.of(elected.cluster_id).on_sealed(sealer.seal, elected)
        self.sealed = elected
        self._wait()

    # ------------------------------------------------------------------ the standby

    def _wait(self) -> None:
        """Wait for a standby; the command goes on leading, so that standbys are sent the end of the log."""
        self.world.clock.after(POLL_S, self._promote_when_ready, self.sealed)

    def _promote_when_ready(self, sealed: "Elected") -> None:
        if self.sealed is not sealed or self._sealer is None:
            return
        source = self._source(sealed)
        if source is not None and self._is_without_records(source):
            self.cancel()
            return
        fork_lsn = self._position(source) if source is not None else 0
        if source is None or not fork_lsn:
            self._wait()
            return
        world, tli = self.world, sealed.history[-1].floor + 1
        if any(primary.tli == tli for primary in world.primaries if primary not in self._promoted):
            # A promotion by other means has taken it, and its history file is found. What failovers have promoted may
            # be out of sight: but they have reserved their numbers.
            self._run(Seal(self.tli), takeover=True)
            return
        promoted = world.new_primary(source.promoted(world.next_primary_name(), fork_lsn, tli))
        world.truths.of(sealed.cluster_id).on_promoted(promoted, self._promoted)
        self._promoted.append(promoted)
        world.counts.count("standbys promoted by a failover")
        self._finish()
        world.current = promoted
        if world.is_healing:
            return
        world.start_workload(promoted)
        for proxy in world.proxies:
            if world.rng.random() < 0.8:
                world.point(proxy, promoted)
                if world.rng.random() < 0.5:
                    proxy.stop()
                    proxy.start()
                else:
                    proxy.lose_primary()

    def _source(self, sealed: "Elected") -> "VirtualPrimary | None":
        """Return a server on the sealed timeline whose bytes the log has: any copy of its WAL is as good as it."""
        log = self.world.newest_log()
        if log is None:
            return None
        size = min(self._end_lsn, log.end_lsn) - log.begin_lsn
        fitting = [
            primary
            for primary in self.world.primaries
            if primary.tli == self.tli
            and primary.insert_lsn >= self._end_lsn
            and primary.read(log.begin_lsn, log.begin_lsn + size) == log.wal[:size]
        ]
        has_room = self.world.is_healing or len(self.world.primaries) < PRIMARIES_MAX
        return fitting[0] if fitting and has_room and size > 0 else None

    def _is_without_records(self, source: "VirtualPrimary") -> bool:
        """Return whether no record of the log is complete, or none of its first timeline: the log has nothing to keep.

        What is promoted would fork off before the log's beginning, or where its first timeline has no byte yet.
        """
        log = self.world.newest_log()
        if log is None:
            return False
        is_first = bool(source.ancestors) and log.history[0].tli == source.tli
        lowest_lsn = max(log.begin_lsn, source.ancestors[-1].end_lsn if is_first else 0)
        return source.record_end_at_or_below(self._end_lsn) <= lowest_lsn

    def _position(self, source: "VirtualPrimary") -> Lsn:
        """Return where a standby is promoted, 0 if none may be yet."""
        needed_lsn, rng = self.needed_lsn(source, self._end_lsn), self.world.rng
        if self.world.standbys:
            positions = [standby.applied_lsn for standby in self.world.standbys if standby.applied_lsn]
        else:
            above_lsn = max(self._end_lsn, rng.randint(self._end_lsn, max(self._end_lsn, source.flush_lsn)))
            positions = [source.record_end_at_or_below(rng.choice((self._end_lsn, self._end_lsn, above_lsn)))]
        ready = [lsn for lsn in positions if lsn >= needed_lsn or not self.waits]
        return max(ready, default=0) if self.waits else min(ready, default=0)

    def needed_lsn(self, source: "VirtualPrimary", end_lsn: Lsn) -> Lsn:
        """Return what a standby must have replayed: the last complete record of the log, and not its last byte."""
        return source.record_end_at_or_below(end_lsn)

    # ------------------------------------------------------------------ the second phase

    def settle(self, without: frozenset[int]) -> None:
        """Finish what was begun: where the log is sealed and no primary is above the floor, a standby is promoted.

        Args:
            without: safekeepers that will be out of reach. The others' log may have a seal that was not committed.

        Raises:
            Violation: the failover does not come to its end.
        """
        world = self.world
        self._finish()
        logs = [log for log in (world.newest_log(), world.newest_log(without)) if log is not None]
        if all(not log.floor or any(map(log.is_continued_by, world.primaries)) for log in logs):
            return
        world.counts.count("failovers finished by the repair")
        self.tli, self.is_under_way = logs[0].tli, True
        self._run(Seal(self.tli), takeover=False)
        ends_at_s = world.clock.now + PATIENCE_S
        while self._sealer is not None:
            if world.clock.now > ends_at_s:
                raise Violation("FailoverEnds", f"after {PATIENCE_S:g} s without faults: {self._state()}")
            world.run(world.clock.now + 0.1)

    def _state(self) -> str:
        if self.sealed is None:
            return f"timeline {self.tli} is not sealed"
        return f"no standby has the log up to {format_lsn(self._end_lsn)}"
