"""A minority that stays out of reach when everything else is repaired: no commit may wait for it.

Convergence alone does not ask for that: when all are back, even a term that needs each single member goes on. So in
some runs a minority of the voters is cut off again right after the repair, at any moment between its greeting and the
first commit, and commits must go through without it. Then it comes back, and everything converges as usual.

It has a source of chance of its own, so that the other runs go as if there were no such thing.
"""

import random

from tests.simulation.checks import quorums
from tests.simulation.checks.violation import Violation
from tests.simulation.model.network import TO_PROXY, TO_SAFEKEEPER
from tests.simulation.world.world import SimulationFailed, World

CUT_OFF_WITHIN_S = 0.5
PATIENCE_S = 40.0


class Minority:
    """Whom the others must not need.

    Attributes:
        missing: the safekeepers that will be cut off, none if this run has no minority to spare.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = random.Random(f"{world.seed} minority")
        self.missing: frozenset[int] = frozenset()
        controls = [safekeeper.disk.control for safekeeper in world.safekeepers.values()]
        if any(world.checker.is_foreign(control) for control in controls):
            return  # The operator goes on with another cluster, or makes it whole, before all is repaired.
        members = world.checker.members()
        voters = sorted({safekeeper.id for safekeeper in members})
        # A membership that a leader has decided for may be lost with it, and the one before go on.
        controls = [control for safekeeper in members if (control := safekeeper.disk.control) is not None]
        if len({control.cluster_id for control in controls}) > 1:
            return  # One holds another cluster, from a bootstrap that was interrupted: it takes no part already.
        known = [world.checker.membership, *(control.membership for control in controls)]
        halves = [half for each in known if each is not None for half in quorums.halves(each)]
        # Of each half so many are left that both its quorums are reached. One safekeeper may be in both halves, with
        # another folder in each.
        lost = [sum(m.id not in voters or world.is_lost(m.identity) for m in half) for half, _ in halves]
        spare = min((quorums.spare(*half) - count for half, count in zip(halves, lost, strict=True)), default=0)
        if self.rng.random() < world.profile.minority and spare > 0:
            self.missing = frozenset(self.rng.sample(voters, spare))

    def is_not_missed(self) -> None:
        """Cut it off, see commits go through, and let it come back.

        Raises:
            SimulationFailed: nothing is committed without it.
        """
        if not self.missing:
            return
        world = self.world
        world.counts.count("minorities not missed")
        world.run(world.clock.now + CUT_OFF_WITHIN_S * self.rng.random())
        ways = [(p.name, i, way) for p in world.proxies for i in self.missing for way in (TO_SAFEKEEPER, TO_PROXY)]
        world.network.blocked.update(ways)
        cut_off_at, acked_lsn = world.clock.now, world.checker.acked_lsn
        while world.checker.acked_lsn <= acked_lsn:
            if world.clock.now > cut_off_at + world.patience_s(PATIENCE_S):
                names = " ".join(f"S{i}" for i in sorted(self.missing))
                error = Violation("Availability", f"nothing is committed while {names} cannot be reached")
                raise SimulationFailed(error, world.trace())
            world.run(world.clock.now + 0.1)
            if world.forgotten():
                break  # It counts as a lost disk: there is no minority to spare.
        world.clock.after(0.0, world.network.unblock_all)
