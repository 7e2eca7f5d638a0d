"""Three agents, which alone move the lead: the product's own, each beside one PostgreSQL, with its proxy.

`AgentProcess` is one process; agents_shell.py has what it stands on. While faults happen, at most one server accepts
writes whose agent has run for a while. When they end, no operator does anything: with a quorum, and one server that has
everything, commits resume. They do so if no guard ever passes again, because the old primary is there; and if that is
lost, because the guards pass, late.
"""

import asyncio
import random
from typing import TYPE_CHECKING, Any

from safekeeper.base import settings
from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import Lsn
from safekeeper.net.safekeeper_connection import Credentials
from tests.simulation.checks.violation import Violation
from tests.simulation.model.clock import MachineClock
from tests.simulation.world.agents_shell import Folder, MachineServer, new_views
from tests.simulation.world.machines import Machine
from tests.simulation.world.mover import Mover
from walproxy.agent.agent import Agent
from walproxy.agent.config import AgentConfig
from walproxy.agent.decision import AllowWrites
from walproxy.agent.operator_client import Operator
from walproxy.agent.orders import CANCEL, FAILOVER
from walproxy.agent.steps import Configure
from walproxy.agent.work import WorkState
from walproxy.failover.attempt import AttemptOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.simulation.model.standby import SimStandby
    from tests.simulation.world.failover_shell import VirtualServer
    from tests.simulation.world.world import World
    from walproxy.failover.failover import Failover
    from walproxy.postgres.hosts import PrimaryHost

MACHINES = 3
DEAD_AFTER_S = 2.0
FENCE_TIMEOUT_S = 3
LEASE_TTL_S = 2
# The clocks of two machines differ by so much at most.
DRIFT = 0.01
# An agent that comes back ends the writes of its server within this time.
COMES_BACK_S = 3.0
WATCH_EVERY_S = 0.05
# A quorum, and a server that has everything: commits resume within so long, of which a promotion that was requested
# before the faults ended, and hangs, is waited for.
PATIENCE_S = AttemptOptions.promote_timeout_s + 40.0
GUARDS = ("pass", "fail", "hang", "pass late")


class AgentProcess(Mover):
    """One process of `walproxy agent`.

    Attributes:
        agents: all of them.
        machine: its own.
        agent: the product's, None for a moment.
        is_over: whether it was killed.
        is_paused: a quorum has replied last that all agents are paused.
    """

    def __init__(self, agents: "Agents", machine: Machine) -> None:
        world = agents.world
        rate = 1 + DRIFT * (2 * agents.chance.random() - 1)
        super().__init__(world, f"G{machine.name[1:]}", MachineClock(world.clock, rate))
        self.agents = agents
        self.machine = machine
        self.is_over = self.is_paused = False
        self.agent: Agent | None = None
        self._guarded: Failover | None = None
        world.note(self.name, "starts")
        self.loop.run_task(self._main(), self._ended)

    async def _main(self) -> None:
        self.agent = agent = Agent(self.agents.config(self.machine), Credentials())
        try:
            await agent.run()
        finally:
            steps = (each for each in (agent._step, agent._recording) if each is not None)
            await asyncio.gather(*steps, return_exceptions=True)

    def passed_guards(self) -> None:
        """The guards of a promotion have passed."""
        assert self.agent is not None  # it has asked them
        self._guarded = self.agent.work.failover

    def sealed(self) -> None:
        """A seal of its failover is committed: the guards have passed before (13.6)."""
        assert self.agent is not None  # it runs one
        if self._guarded is not self.agent.work.failover:
            raise Violation("GuardsBeforeTheSeal", f"{self.name} seals, and has not asked its guards")

    def takes(self, step: Any) -> None:
        """It takes a step by itself: never while it is paused, as far as a quorum has replied last."""
        if self.is_paused and not isinstance(step, AllowWrites | Configure):
            raise Violation("PauseHolds", f"{self.name} is paused, and takes the step {step}")

    @property
    def doing(self) -> str:
        """What it does, or what it waits for."""
        return self.agent.report().doing if self.agent is not None else ""

    @property
    def is_failing_over(self) -> bool:
        """Whether it makes its server the primary."""
        return self.agent is not None and self.agent.work.state is WorkState.FAILING_OVER

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        if not task.cancelled() and task.exception() is not None:
            self.loop.failure = task.exception()

    def new_server(self, host: "PrimaryHost") -> "VirtualServer":
        """Return a server, as its failover reaches it."""
        return MachineServer(host.name, self.machine, self)

    def kill(self) -> None:
        """End the process, wherever it is, and its proxy with it."""
        if not self.is_over:
            self.is_over = True
            self.end_process()
            self.life += 1
            self.machine.proxy.stop()


class OperatorProcess(Mover):
    """A command of an operator: it changes what all agents share."""

    def __init__(self, world: "World", name: str, act: "Callable[[Operator], Awaitable[Any]]") -> None:
        super().__init__(world, name, world.clock)
        self._act = act
        self.is_done: bool | None = None
        self.loop.run_task(self._main(), self._ended)

    async def _main(self) -> None:
        views = new_views(self.safekeepers(), Credentials())
        try:
            await self._act(Operator(views, lambda: self.world.clock.now))
        finally:
            await views.close()

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, WalproxyError):
            self.loop.failure = error
        self.is_done = error is None


class Agents:
    """All agents, their machines, and what they ask for a promotion.

    Attributes:
        machines: by name.
        running: the processes of the agents, by the name of the machine.
        guards: how fence_command ends, one of `GUARDS`.
        etcd_is_away: the store of the lease does not reply.
        lease: who holds it, and until when.
        chance: the source of chance of all this.
        lost: machines that never come back.
    """

    def __init__(self, world: "World") -> None:
        self.world = world
        self.chance = random.Random(f"{world.seed} agents")
        self.machines: dict[str, Machine] = {}
        self.running: dict[str, AgentProcess] = {}
        self.guards = "pass"
        self.etcd_is_away = False
        self.lease: tuple[str, float] = "", 0.0
        self.lost: set[str] = set()
        self._has_fence = self.chance.random() < 0.5
        self._has_lease = self.chance.random() < 0.3
        self._exempt_until: dict[str, float] = {}
        self._cut_off, self._away = False, ""
        self._operators: list[OperatorProcess] = []
        self._configs: dict[str, AgentConfig] = {}

    def start(self) -> None:
        """Begin: a primary, standbys, and the agents of all."""
        world = self.world
        for number, standby in enumerate(world.standbys, 1):
            machine = Machine(world, f"M{number}", standby, world.add_proxy(starts=False))
            self.machines[machine.name] = machine
            if number == 1:
                machine.be_primary(world.current)
            else:
                standby.start()
                machine.start(as_standby=True)
        for machine in self.machines.values():
            self.start_agent(machine)
        self._watch()

    def config(self, machine: Machine) -> AgentConfig:
        """Return the configuration of an agent."""
        config = self._configs.get(machine.name)
        if config is None:
            options = {
                "name": machine.name,
                "bin_dir": "/",
                "pgdata": "/",
                "conninfo": f"host={machine.name} user=postgres",
                "address": f"{machine.name}:5432",
                "safekeepers": ",".join(f"{i}=S{i}:1" for i in sorted(self.world.safekeepers)),
                "standby_conninfo": "host=S",
                "dead_after": str(DEAD_AFTER_S),
                "fence_timeout": str(FENCE_TIMEOUT_S),
                "fence_command": "fence" if self._has_fence else "",
                "lease_ttl": str(LEASE_TTL_S),
                "lease_etcd": "http://etcd:2379" if self._has_lease else "",
            }
            config = settings.load(AgentConfig, "NONE", command_line=options, environment={}, file=None)
            object.__setattr__(config, "pgdata", Folder(machine))
            self._configs[machine.name] = config
        return config

    def start_agent(self, machine: Machine) -> None:
        """Start the agent of a machine, if it is not running."""
        name = machine.name
        if (name not in self.running or self.running[name].is_over) and name not in self.lost:
            self.running[name] = AgentProcess(self, machine)
            self.comes_back(machine)

    def comes_back(self, machine: Machine) -> None:
        """An agent goes on, or the server with it: its writes may be accepted for a moment."""
        self._exempt_until[machine.name] = self.world.clock.now + COMES_BACK_S

    async def fence(self, timeout_s: float) -> None:
        """Be fence_command.

        Raises:
            WalproxyError: it fails, or hangs.
        """
        how, chance = self.guards, self.chance.random()
        if how == "hang":
            await asyncio.sleep(timeout_s)
        await asyncio.sleep((0.5 + 0.4 * chance) * timeout_s if how == "pass late" else 0.1 * chance)
        if how in ("fail", "hang"):
            raise WalproxyError(f"fence_command: {how}")
        self.world.counts.count("fences passed")

    def operate(self, act: "Callable[[Operator], Awaitable[Any]]") -> OperatorProcess:
        """Let an operator change what all agents share."""
        self._operators.append(OperatorProcess(self.world, f"O{len(self._operators) + 1}", act))
        return self._operators[-1]

    def _watch(self) -> None:
        """See that at most one server accepts writes, of those whose agents run and are not paused.

        A pause may reach the agents in the middle of a failover: that of the old primary ends no writes then.
        """
        now = self.world.clock.now
        for process in self.running.values():
            if process.agent is not None and process.agent.cluster.view.has_quorum:
                process.is_paused = process.agent.cluster.view.settings.is_paused
        writers = [
            machine.name
            for name, machine in self.machines.items()
            if machine.accepts_writes and self._is_in_charge(name) and now > self._exempt_until[name]
        ]
        if len(writers) > 1:
            raise Violation("OneWriter", f"{' and '.join(writers)} accept writes")
        self.world.clock.after(WATCH_EVERY_S, self._watch)

    def _is_in_charge(self, name: str) -> bool:
        agent = self.running[name]
        return not (agent.is_over or agent.loop.is_suspended or agent.is_paused)

    def following(self) -> "list[SimStandby]":
        """Return the standbys that follow."""
        return [machine.standby for machine in self.machines.values() if machine.primary is None]

    def missing(self) -> str:
        """Return why not every machine has a server that serves, empty if each has."""
        for name, machine in self.machines.items():
            if name not in self.lost and not machine.answers:
                return f"PostgreSQL of {name} does not reply"
            if name not in self.lost and machine.primary is not None and not machine.accepts_writes:
                return f"the primary of {name} accepts no writes"
        return ""

    def heal(self) -> None:
        """End the faults, and see that commits resume without an operator, but for what operators have stopped.

        Raises:
            Violation: they do not.
        """
        world = self.world
        world.is_healing = True
        world.clock.after(0.0, world.network.unblock_all)
        for safekeeper in world.safekeepers.values():
            safekeeper.effects_left, safekeeper.dies_after = None, ""
            safekeeper.disk.full = False
            safekeeper.flush_delay_s = world.profile.flush_delay_s
        self.etcd_is_away = False
        self._draw_the_end()
        for name, machine in self.machines.items():
            machine.promotion_s, machine.problem, machine.crashes_next = 0.3, "", False
            machine.go_on()
            machine.cut_off(self._cut_off)
            if name in self.lost:
                self.running[name].kill()
                machine.crash()
            elif name != self._away:
                self.start_agent(machine)
        for primary in world.primaries:
            world.start_workload(primary)
        resuming = self.operate(self._take_back_orders)
        before: dict[int, Lsn] = {id(primary): primary.insert_lsn for primary in world.primaries}
        began_at, patience_s = world.clock.now, world.patience_s(PATIENCE_S)
        while not self._commits(before):
            if world.clock.now > began_at + patience_s:
                raise Violation("CommitsResume", f"not after {patience_s:g} s without an operator: {self._states()}")
            # An operator's pause, or cancellation, of the time before may arrive after that.
            if resuming.is_done is False or (resuming.is_done and self._are_held_back()):
                resuming = self.operate(self._take_back_orders)
            world.run(world.clock.now + 0.1)
        world.counts.count("commits resumed by agents")
        for machine in self.machines.values():
            machine.cut_off(False)
        world.current = next(each.primary for each in self.machines.values() if each.accepts_writes and each.primary)

    def _draw_the_end(self) -> None:
        """Draw what stays as it is until commits resume.

        No guard ever passes, or no standby receives WAL: the old primary, whose agent is away for a while, must go on.
        Or the primary is lost for good, and guards take their time: a standby must be promoted.
        """
        fate = self.chance.random()
        self.guards = self.chance.choice(("pass", "pass late"))
        primary = next((each for each in self.machines.values() if each.primary is self.world.current), None)
        if fate < 0.4:
            self.guards, self.etcd_is_away = "fail", True
        elif fate < 0.55:
            self._cut_off = True
        elif primary is not None and self.world.checker.acked_lsn:
            self.world.counts.count("primaries lost for good")
            self.lost.add(primary.name)
        if fate < 0.55 and primary is not None and self.chance.random() < 0.7:
            self.running[primary.name].kill()
            self._away = primary.name
            self.world.clock.after(2.0 + 6.0 * self.chance.random(), self.start_agent, primary)

    async def _take_back_orders(self, operator: Operator) -> None:
        """Resume agents that an operator has paused. Who has cancelled a failover whose primary is lost orders one."""
        await operator.pause(False)
        order = (await operator.look()).settings.order
        if order is not None and order.kind == CANCEL and self.lost:
            await operator.give(FAILOVER, "")

    def _are_held_back(self) -> bool:
        """Return whether agents are paused, or wait for an old primary that is lost."""
        for process in self.running.values():
            if process.agent is not None and not process.is_over:
                settings = process.agent.cluster.view.settings
                is_cancelled = settings.order is not None and settings.order.kind == CANCEL
                if settings.is_paused or (is_cancelled and self.lost):
                    return True
        return False

    def _commits(self, before: dict[int, Lsn]) -> bool:
        """Return whether a commit was acknowledged that was written since."""
        return any(
            machine.accepts_writes
            and machine.primary is not None
            and machine.primary.reported_lsn > before.get(id(machine.primary), machine.primary.own_lsn)
            for machine in self.machines.values()
        )

    def _states(self) -> str:
        return "; ".join(
            f"{name}: {machine.look(0.0).state.value} on {machine.tli}, {self.running[name].doing}"
            for name, machine in self.machines.items()
        )

    def abandon(self) -> None:
        """End all processes."""
        for process in (*self.running.values(), *self._operators):
            process.loop.kill()
