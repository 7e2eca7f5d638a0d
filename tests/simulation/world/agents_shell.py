"""What an agent has in the simulation instead of a PostgreSQL, a child process, a shell, an etcd, chance and time.

The agent itself is the real one (walproxy/agent), on the virtual loop, over the virtual network; its failovers stand on
failover_shell.py. The data folder is a `Folder` of a machine: what would read or write it acts on the machine.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from safekeeper.base.errors import WalproxyError
from tests.simulation.model.primary import SYSTEM_ID
from tests.simulation.shells.shell_seams import SILENT
from tests.simulation.world import failover_shell
from tests.simulation.world.failover_shell import VirtualServer, running_command
from tests.simulation.world.machines import Machine
from walproxy.agent import activity as activity_module
from walproxy.agent import agent as agent_module
from walproxy.agent import guards as guards_module
from walproxy.agent import lease_guard as lease_guard_module
from walproxy.agent import operator_client as operator_module
from walproxy.agent import safekeeper_views as views_module
from walproxy.agent import steps as steps_module
from walproxy.agent import watches as watches_module
from walproxy.agent.decision import Step
from walproxy.agent.errors import LeaseUnavailable
from walproxy.agent.guards import Guards
from walproxy.agent.managed_server import READ_ONLY
from walproxy.agent.proxy_process import ProxyProgress
from walproxy.agent.rejoin_plan import RejoinPlan, Way
from walproxy.agent.safekeeper_views import SafekeeperViews
from walproxy.agent.server_look import ServerLook, ServerState
from walproxy.agent.steps import Configure, Steps
from walproxy.failover import server as server_module
from walproxy.failover.candidates import HostLook
from walproxy.failover.log_end import LogEnd
from walproxy.failover.server import NotRequested
from walproxy.postgres.problems import ServerProblem
from walproxy.proposer.view import state_name

if TYPE_CHECKING:
    from tests.simulation.world.agents import AgentProcess

PROXY_STARTS_S = 0.3
PROXY_RESTARTS_S = 0.25


def running_agent() -> "AgentProcess":
    """Return the agent that runs at this moment."""
    return cast("AgentProcess", running_command())


class Folder:
    """The data folder of a machine, where the agent has its path."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.name = machine.name

    def with_name(self, name: str) -> "Folder":
        """Return the place of a file beside it, which nothing reads."""
        return self


class VirtualManagedServer:
    """The server of a machine, as `ManagedServer` has it."""

    def __init__(self, folder: Folder, *_: Any, **__: Any) -> None:
        self._machine = folder.machine

    def prepare(self) -> None:
        """See `ManagedServer`."""

    def end_session(self) -> None:
        """See `ManagedServer`."""

    def look(self, timeout_s: float) -> ServerLook:
        """See `ManagedServer`."""
        return self._machine.look(timeout_s)

    def has_ended(self) -> bool:
        """See `ManagedServer`."""
        return not self._machine.is_up

    def start(self, *, as_standby: bool, timeout_s: float) -> None:
        """See `ManagedServer`."""
        self._machine.start(as_standby=as_standby)

    def stop(self, mode: str, timeout_s: float) -> None:
        """See `ManagedServer`."""
        self._machine.stop()

    def kill(self) -> None:
        """See `ManagedServer`."""
        self._machine.crash()

    def reload(self) -> None:
        """See `ManagedServer`."""
        self._machine.reload()

    def make_standby(self, *_: str, settings: Mapping[str, str]) -> None:
        """See `ManagedServer`."""
        if self._machine.primary is not None:
            raise ServerProblem("PostgreSQL runs as a primary: stop it before it is made a standby")
        self._machine.settings = dict(settings)

    def make_read_only(self, timeout_s: float) -> None:
        """See `ManagedServer`."""
        self._set_read_only(on=True)

    def make_writable(self) -> None:
        """See `ManagedServer`."""
        self._set_read_only(on=False)

    def _set_read_only(self, *, on: bool) -> None:
        kept = {name: value for name, value in self._machine.settings.items() if name != READ_ONLY}
        self._machine.settings = {**kept, READ_ONLY: "on"} if on else kept
        self._require_answer()
        self._machine.reload()

    def make_slot(self, name: str) -> None:
        """See `ManagedServer`."""
        self._require_answer()

    def drop_slot(self, name: str) -> None:
        """See `ManagedServer`."""
        self._require_answer()

    def _require_answer(self) -> None:
        if not self._machine.answers:
            raise ServerProblem("PostgreSQL does not reply")


class FolderSettings:
    """The module `agent_settings`."""

    @staticmethod
    def read(folder: Folder) -> dict[str, str]:
        """See there."""
        return dict(folder.machine.settings)

    @staticmethod
    def write(folder: Folder, settings: Mapping[str, str]) -> bool:
        """See there."""
        has_changed = folder.machine.settings != settings
        folder.machine.settings = dict(settings)
        return has_changed


class NoOverwrite:
    """A `RejoinFolder`: an overwrite is one act here."""

    def __init__(self, folder: Folder) -> None:
        pass

    def read(self) -> None:
        """See `RejoinFolder`."""


class VirtualRejoin:
    """A `RejoinRun`: the folder follows, whatever it has."""

    def __init__(self, server: VirtualManagedServer, source_conninfo: str, **_: Any) -> None:
        self._machine = server._machine
        host = next(word for word in source_conninfo.split() if word.startswith("host="))
        agents = self._machine.world.agents
        assert agents is not None  # one of them is running
        self._leader = agents.machines[host.removeprefix("host=")]

    def plan(self) -> RejoinPlan:
        """See `RejoinRun`."""
        return RejoinPlan(Way.FOLLOW, None, "")

    def run(self, *, by_base_backup: bool = False) -> Way:
        """See `RejoinRun`."""
        if self._machine.is_up:
            raise ServerProblem("processes exist: stop the server before the rejoin")
        self._machine.rejoin(self._leader)
        return Way.FOLLOW


class VirtualProxyProcess:
    """The proxy of a machine, as `ProxyProcess` has it: it takes a moment to start, and is started again later."""

    def __init__(self, arguments: Sequence[str], launcher: Sequence[str]) -> None:
        self._machine = running_agent().machine
        self._start_at = 0.0
        self._is_wanted = False

    @property
    def is_running(self) -> bool:
        """See `ProxyProcess`."""
        return self._machine.proxy.proposer is not None

    async def keep_running(self, now: float) -> None:
        """See `ProxyProcess`."""
        if self.is_running or now < self._start_at:
            return
        world = self._machine.world
        self._is_wanted = True
        self._start_at = now + PROXY_STARTS_S + PROXY_RESTARTS_S
        world.clock.after(PROXY_STARTS_S * world.rng.random(), self._start, running_agent())

    def _start(self, agent: "AgentProcess") -> None:
        if self._is_wanted and not agent.is_over:
            self._machine.proxy.start()

    async def stop(self, timeout_s: float = 5.0) -> None:
        """See `ProxyProcess`."""
        await self.kill()

    async def kill(self) -> None:
        """See `ProxyProcess`."""
        self._is_wanted, self._start_at = False, 0.0
        self._machine.proxy.stop()

    def retry(self) -> None:
        """See `ProxyProcess`."""

    async def progress(self) -> ProxyProgress:
        """See `ProxyProcess`."""
        proxy = self._machine.proxy
        if proxy.is_suspended:
            await asyncio.sleep(1.0)
        proposer = proxy.proposer
        if proposer is None or proposer.leadership is None or proxy.is_suspended:
            return ProxyProgress()
        streams = proxy.streams_from is not None and state_name(proposer, proxy.clock.now) == "streaming"
        return ProxyProgress(streams, proposer.leadership.commit_lsn)


class MachineServer(VirtualServer):
    """The server of a machine over SQL, for the failover of its agent."""

    def __init__(self, name: str, machine: Machine, agent: "AgentProcess") -> None:
        self.name = name
        self._machine = machine
        self._command: Any = agent

    def look(self, timeout_s: float = 3.0) -> HostLook:
        """Return its state."""
        machine, standby = self._machine, self._machine.standby
        if not machine.answers:
            return HostLook(self.name, problem="does not reply")
        primary = machine.primary
        if primary is not None:
            return HostLook(
                self.name,
                in_recovery=False,
                system_id=SYSTEM_ID,
                tli=primary.tli,
                replayed_lsn=failover_shell.replayed_lsn(primary),
                written_lsn=primary.flush_lsn,
            )
        return HostLook(
            self.name,
            in_recovery=True,
            system_id=SYSTEM_ID,
            tli=machine.tli,
            received_lsn=0 if machine.ahead else standby.streamed_lsn,
            replayed_lsn=standby.replayed_lsn,
            complete_lsn=standby.complete_lsn,
            receives=standby.safekeeper is not None,
            replay_problem=machine.problem,
            lineage=machine.lineage if machine.ahead else (),
        )

    def _server(self) -> Any:
        if not self._machine.answers:
            raise NotRequested(f"{self.name} does not reply")
        return self._machine.primary or self._machine.standby

    def request_promotion(self, end: LogEnd, timeout_s: float = 10.0) -> None:
        """Signal that it is to be promoted. A primary is fine.

        Raises:
            NotRequested: it lacks WAL, does not answer, or is lost before the signal.
            WalproxyError: it is lost after it.
        """
        server, machine = self._server(), self._machine
        fate = machine.rng.random() if not machine.world.is_healing else 1.0
        if fate < 0.04:
            machine.crash()
            raise NotRequested(f"{self.name} was lost before it was signalled")
        if machine.primary is None:
            if reason := server_module.lost_since(self.look(), end):
                raise NotRequested(f"{self.name} is not promoted: it {reason}")
            if not machine.ahead:
                self._require_part_of_the_log(server, end)
            self._command.requests_promotion()
            machine.request_promotion(self._command.elected)
        if fate < 0.08:
            raise WalproxyError(f"{self.name} was lost after it was signalled")


class VirtualLease:
    """The lease in the etcd of all agents, as `EtcdLease` has it."""

    def __init__(self, endpoints: Any, key: str, ttl: int, **_: Any) -> None:
        self._agents = running_agent().agents
        self._name, self._ttl = running_agent().machine.name, ttl

    @property
    def remaining_s(self) -> float:
        """See `EtcdLease`."""
        holder, ends_at = self._agents.lease
        return max(0.0, ends_at - self._agents.world.clock.now) if holder == self._name else 0.0

    def probe(self) -> None:
        """See `EtcdLease`."""

    def acquire(self, name: str) -> bool:
        """See `EtcdLease`."""
        self._require_store()
        now = self._agents.world.clock.now
        holder, ends_at = self._agents.lease
        if holder != name and now < ends_at:
            return False
        self._agents.lease = name, now + self._ttl
        return True

    def release(self) -> None:
        """See `EtcdLease`."""
        self._require_store()
        self._agents.lease = "", 0.0

    def holder(self) -> str:
        """See `EtcdLease`."""
        return self._agents.lease[0]

    def _require_store(self) -> None:
        if self._agents.etcd_is_away:
            raise LeaseUnavailable("etcd does not reply")


class ObservedGuards(Guards):
    """The product's guards: that they have passed is seen."""

    async def require(self, old_primary: str) -> None:
        await super().require(old_primary)
        running_agent().passed_guards()


class ObservedSteps(Steps):
    """The product's steps: each is seen."""

    async def take(self, step: Step | Configure, state: ServerState) -> None:
        running_agent().takes(step)
        await super().take(step, state)


async def _run_command(command: str, timeout_s: float, *, name: str, environment: Mapping[str, str]) -> None:
    """Run fence_command: it fails, hangs until its timeout, or succeeds after a while."""
    await running_agent().agents.fence(timeout_s)


def new_views(safekeepers: Any, credentials: Any, name: str = "") -> SafekeeperViews:
    return SafekeeperViews(safekeepers, credentials, name, clock=_CHANCE.monotonic)


class _Chance(failover_shell.Chance):
    """`time`, `secrets` and `random` of the running agent."""

    def time(self) -> float:
        return running_command().world.clock.now

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


def _bug(error: BaseException) -> str:
    """Fail the run: the agent would only report it."""
    running_command().loop.failure = error
    return str(error)


_CHANCE = _Chance()
REPLACED_IN_AGENTS: tuple[tuple[Any, str, Any], ...] = (
    (agent_module, "Guards", ObservedGuards),
    (agent_module, "ManagedServer", VirtualManagedServer),
    (agent_module, "ProxyProcess", VirtualProxyProcess),
    (agent_module, "SafekeeperViews", new_views),
    (agent_module, "Steps", ObservedSteps),
    (guards_module, "run_command", _run_command),
    (guards_module, "EtcdLease", VirtualLease),
    (steps_module, "agent_settings", FolderSettings),
    (steps_module, "RejoinFolder", NoOverwrite),
    (steps_module, "RejoinRun", VirtualRejoin),
    (steps_module, "describe_bug", _bug),
    *((module, "time", _CHANCE) for module in (agent_module, steps_module, watches_module)),
    *((module, "secrets", _CHANCE) for module in (views_module, operator_module)),
    *((module, "_log", SILENT) for module in (activity_module, agent_module, lease_guard_module, steps_module)),
)
