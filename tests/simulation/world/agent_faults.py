"""What goes wrong around agents, as faults: of their processes, servers, machines, guards; and what operators order."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.model.network import TO_PROXY, TO_SAFEKEEPER
from tests.simulation.world.agents import GUARDS

if TYPE_CHECKING:
    from tests.simulation.world.agents import Agents
    from tests.simulation.world.machines import Machine
    from tests.simulation.world.world import World

# A link that flaps is cut so long, and then open so long, so many times.
FLAPS, FLAP_CUT_S, FLAP_OPEN_S = 6, 1.5, 1.0
WAYS = (TO_SAFEKEEPER, TO_PROXY)


class AgentFaults:
    """The part of `Faults` that this module has."""

    world: "World"
    rng: random.Random

    @property
    def _agents(self) -> "Agents":
        agents = self.world.agents
        assert agents is not None  # by the profile
        return agents

    def _machine(self) -> "Machine":
        """Return a machine: that of the primary in every second fault."""
        machines = list(self._agents.machines.values())
        primary = [each for each in machines if each.primary is self.world.current]
        return self.rng.choice(primary if primary and self.rng.random() < 0.5 else machines)

    def _for_long(self) -> float:
        """Return a time, mostly one after which a leader is lost."""
        return self.rng.choice((1.0, 4.0, 7.0)) * (0.5 + self.rng.random())

    def _later(self, delay_s: float, event: Callable[..., None], *args: object) -> None:
        """Let something end that began: the repair may have ended it before."""
        self.world.clock.after(delay_s, self._unless_healed, event, args)

    def _unless_healed(self, event: Callable[..., None], args: tuple[object, ...]) -> None:
        if not self.world.is_healing:
            event(*args)

    def crash_server(self) -> None:
        """kill -9 of a PostgreSQL: its agent starts it again, or another one is promoted."""
        self._machine().crash()

    def hang_server(self) -> None:
        """SIGSTOP of a PostgreSQL alone."""
        machine = self._machine()
        machine.hang()
        self._later(self._for_long(), machine.go_on)

    def kill_agent(self) -> None:
        """kill -9 of an agent, and of its proxy with it: often in the middle of its failover."""
        agents = self._agents.running.values()
        busy = [each.machine for each in agents if not each.is_over and each.is_failing_over]
        machine = self.rng.choice(busy) if busy and self.rng.random() < 0.7 else self._machine()
        self._agents.running[machine.name].kill()
        self._later(self._for_long(), self._agents.start_agent, machine)

    def lose_machine(self) -> None:
        """A machine loses its power; later it is there again, with its agent."""
        machine = self._machine()
        self._agents.running[machine.name].kill()
        machine.crash()
        self._later(self._for_long(), self._agents.start_agent, machine)

    def suspend_machine(self) -> None:
        """A virtual machine stands still, or only its agent, and goes on as if nothing was."""
        machine, for_s = self._machine(), self._for_long()
        agent = self._agents.running[machine.name]
        if agent.is_over:
            return
        agent.suspend(for_s)
        if self.rng.random() < 0.6:
            machine.proxy.suspend(for_s)
            machine.hang()
            self._later(for_s, machine.go_on)
        self._later(for_s, self._agents.comes_back, machine)

    def kill_proxy(self) -> None:
        """A proxy ends: its agent starts it again."""
        self._machine().proxy.stop()

    def cut_machine(self) -> None:
        """A machine reaches no safekeeper, or not all of them, for a while."""
        machine = self._machine()
        lost = frozenset(i for i in self.world.safekeepers if self.rng.random() < 0.7)
        self._cut(machine, lost)
        self._later(self._for_long(), self._join, machine, lost)

    def flap_machine(self) -> None:
        """The links of a machine are cut and open again several times."""
        self._flap(self._machine(), frozenset(self.world.safekeepers), FLAPS)

    def _flap(self, machine: "Machine", lost: frozenset[int], left: int) -> None:
        self._cut(machine, lost)
        self._later(FLAP_CUT_S, self._join, machine, lost)
        if left > 1:
            self._later(FLAP_CUT_S + FLAP_OPEN_S, self._flap, machine, lost, left - 1)

    def _cut(self, machine: "Machine", lost: frozenset[int]) -> None:
        for name in (machine.proxy.name, self._agents.running[machine.name].name):
            self.world.network.blocked.update((name, i, way) for i in lost for way in WAYS)
        if lost == frozenset(self.world.safekeepers):
            machine.cut_off(True)

    def _join(self, machine: "Machine", lost: frozenset[int]) -> None:
        for name in (machine.proxy.name, self._agents.running[machine.name].name):
            for i in lost:
                for way in WAYS:
                    self.world.network.unblock(name, i, way)
        machine.cut_off(False)

    def cut_standby(self) -> None:
        """A standby receives no WAL for a while, and its agent is well."""
        machine = self._machine()
        machine.cut_off(True)
        self._later(self._for_long(), machine.cut_off, False)

    def change_guards(self) -> None:
        """fence_command ends in another way from now on, or etcd is away, or back."""
        agents = self._agents
        agents.guards = self.rng.choice(GUARDS)
        agents.etcd_is_away = self.rng.random() < 0.4

    def spoil_server(self) -> None:
        """A standby cannot be promoted for a while."""
        machine = self._machine()
        machine.problem = "its replay is paused"
        self._later(self._for_long(), self._mend, machine)

    def _mend(self, machine: "Machine") -> None:
        machine.problem = ""

    def spoil_promotions(self) -> None:
        """The next promotion of each server crashes, or all of them take their time: restore_command is slow."""
        crash = self.rng.random() < 0.6
        for machine in self._agents.machines.values():
            machine.crashes_next, machine.promotion_s = crash, 0.3 if crash else 6.0

    def give_order(self) -> None:
        """An operator moves the lead, lets the agents fail over, or cancels that; or pauses them for a while."""
        agents, kind = self._agents, self.rng.choice(("switchover", "switchover", "failover", "cancel", "pause"))
        if kind == "pause":
            agents.operate(lambda operator: operator.pause(True))
            self._later(self._for_long(), self._resume)
            return
        name = self._machine().name if kind != "cancel" and self.rng.random() < 0.5 else ""
        agents.operate(lambda operator: operator.give(kind, name))

    def _resume(self) -> None:
        self._agents.operate(lambda operator: operator.pause(False))
