"""Failovers: the command of walproxy/failover itself, which operators repeat, kill and cancel at any moment.

`Command` is one process of it; failover_shell.py has what it stands on. Its servers are all that there are: primaries,
standbys that stream from safekeepers, one that streams from the primary. An operator may take the old primary for dead
when it is not, may run two commands at once, may repeat a failover that was done long ago, and may cancel one at
any moment: also while a promotion hangs, and while others run.

What is promoted is a new primary with the standby's WAL. Another server takes the standby's place, from a backup.
"""

import asyncio
import random
from typing import TYPE_CHECKING, Any

from safekeeper.base.errors import WalproxyError
from safekeeper.consensus.messages import Elected
from safekeeper.consensus.term_history import tli_at
from safekeeper.net.safekeeper_connection import Credentials
from tests.simulation.checks.violation import Violation
from tests.simulation.model.network import TO_PROXY, TO_SAFEKEEPER
from tests.simulation.model.primary import FIRST_LSN, VirtualPrimary
from tests.simulation.model.synthetic_wal import end_of_the_first_part, last_complete_end
from tests.simulation.world.failover_shell import VirtualServer
from tests.simulation.world.mover import Mover
from walproxy.failover.attempt import AttemptOptions
from walproxy.failover.failover import Failover, FailoverReport
from walproxy.postgres.hosts import PrimaryHost
from walproxy.proposer.primary import Ancestor

if TYPE_CHECKING:
    from tests.simulation.model.direct_standby import DirectStandby
    from tests.simulation.model.proxy import SimProxy
    from tests.simulation.model.standby import SimStandby
    from tests.simulation.world.newest_log import NewestLog
    from tests.simulation.world.world import World

PRIMARIES_MAX = 12
SEAL_TIMEOUT_S = 6.0
RESUME_TIMEOUT_S = 5.0
PROMOTE_TIMEOUT_S = 3.0
# A quorum, a standby and nothing but the command: commits resume within so long.
PATIENCE_S = 30.0
REPEAT_AFTER_S = 0.5
STEPS = ("seal", "catch up", "promote", "resume")


class Servers:
    """The servers, by the name of the host: what was a standby may be a primary now.

    Attributes:
        promoted: what failovers have promoted.
    """

    def __init__(self, world: "World") -> None:
        self.world = world
        self.promoted: list[VirtualPrimary] = []
        self._by_name: dict[str, VirtualPrimary | SimStandby | DirectStandby] = {}

    @property
    def completed(self) -> int:
        """How many failovers are complete: commits were acknowledged on the promoted server."""
        return sum(primary.reported_lsn > primary.own_lsn for primary in self.promoted)

    def names(self) -> list[str]:
        """Return the names of all hosts."""
        known = list(self._by_name.values())
        for server in (*self.world.primaries, *self.world.standbys, *self.world.directs):
            if server not in known:
                self._by_name[server.name] = server
        return list(self._by_name)

    def is_standby(self, name: str) -> bool:
        """Return whether a standby runs on a host."""
        return not isinstance(self.at(name), VirtualPrimary)

    def at(self, name: str) -> "VirtualPrimary | SimStandby | DirectStandby":
        """Return what runs on a host."""
        return self._by_name[name]

    def promote(self, name: str, life: int, signalled_tli: int, reserved: Elected) -> None:
        """Make a primary of a standby, on the first timeline of which it finds no history file.

        Args:
            life, signalled_tli: of the standby, when it was signalled.
            reserved: what began the term that has reserved its number.
        """
        world, standby = self.world, self._by_name[name]
        if isinstance(standby, VirtualPrimary) or standby.life != life:
            return  # Another command was first; or it was restarted.
        (fork_lsn, tli), line = standby.on_disk, standby.line
        ancestors = (*(each for each in line.ancestors if each.tli < tli), Ancestor(tli, fork_lsn))
        taken = self._numbers_found(standby)
        is_found = signalled_tli < reserved.history[-1].given in taken
        new_tli = next(number for number in range(tli + 1, tli + 1000) if number not in taken)
        promoted = VirtualPrimary(world, world.next_primary_name(), new_tli, ancestors, line.read(FIRST_LSN, fork_lsn))
        world.new_primary(promoted)
        self._by_name[name] = promoted
        standby.be_replaced()
        self._by_name[f"{standby.name}.{len(self.promoted) + 1}"] = standby
        world.truths.of(reserved.cluster_id).on_promoted(promoted, reserved, is_found)
        self.promoted.append(promoted)
        world.counts.count("standbys promoted by a failover")
        world.failover.on_promoted(promoted)

    def _numbers_found(self, standby: "SimStandby | DirectStandby") -> set[int]:
        """Return the numbers with a history file: in its pg_wal, and where its restore_command looks.

        Of promotions by other means all files are found; of those by failovers what is in a safekeeper's log. A
        walreceiver fetches the files up to its timeline before it streams any WAL of it.
        """
        world = self.world
        others = {primary.tli for primary in world.primaries if primary not in self.promoted}
        serving = [each.acceptor for each in world.safekeepers.values() if each.acceptor and each.is_serving]
        known = max((acceptor.readable_tli for acceptor in serving), default=0)
        fetched = set(range(known + 1)) if world.rng.random() < 0.8 else set()
        return others | fetched | standby.passed_over | set(range(standby.tli + 1))


class Command(Mover):
    """One process of `walproxy failover`, or of `walproxy failover --cancel`.

    Attributes:
        servers: what it can name.
        unreachable: the hosts that it cannot reach.
        is_over: whether it has ended, or was killed.
        report: what it has shown at its end, None if it has failed.
        error: why it has failed, empty if it has not.
        waits_for: what it has waited for last.
    """

    def __init__(
        self,
        world: "World",
        name: str,
        *,
        cancels: bool = False,
        wanted: str = "",
        old_is_dead: bool = False,
        unreachable: frozenset[str] = frozenset(),
        dies_after: str = "",
    ) -> None:
        """Start it.

        Args:
            dies_after: the process dies soon after the end of this step, one of `STEPS`, or of "look", its first one.
        """
        super().__init__(world, name, world.clock)
        self.cancels = cancels
        self.wanted = wanted
        self.old_is_dead = old_is_dead
        self.servers = world.servers
        self.unreachable = unreachable
        self.is_over = False
        self.report: FailoverReport | None = None
        self.error = self.waits_for = ""
        self._dies_after = dies_after
        what = "cancels" if cancels else f"fails over{f' to {wanted}' if wanted else ''}"
        world.note(name, "begins", what, "the old one is dead" if old_is_dead else "")
        self.loop.run_task(self._main(), self._ended)
        if dies_after == "look":
            self._die_soon()

    async def _main(self) -> None:
        failover = Failover(
            self.safekeepers(),
            [PrimaryHost(name, "") for name in self.servers.names()],
            Credentials(),
            self,
            seal_timeout_s=SEAL_TIMEOUT_S,
            resume_timeout_s=RESUME_TIMEOUT_S,
            attempt=AttemptOptions(promote_timeout_s=PROMOTE_TIMEOUT_S),
        )
        try:
            if self.cancels:
                await failover.cancel()
            else:
                self.report = await failover.run(self.wanted, old_is_dead=self.old_is_dead)
        finally:
            await failover.close()

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, WalproxyError):
            self.loop.failure = error
            return
        if not task.cancelled():
            self.error = str(error or "")
            self.world.note(self.name, "ends", self.error or "done")
            self._is_gone()

    def new_server(self, host: PrimaryHost) -> VirtualServer:
        """Return a server, as the command reaches it."""
        return VirtualServer(host, self)

    def kill(self) -> None:
        """End the process, wherever it is."""
        if not self.is_over:
            self.error = "killed"
            self.end_process()
            self._is_gone()

    def _is_gone(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        self.life += 1
        self.world.failover.on_command_ended(self)

    def _die_soon(self) -> None:
        self._dies_after = ""
        self.world.clock.after(0.05 * self.world.rng.random(), self.kill)

    def step(self, text: str) -> None:
        """A step has begun, or ended."""
        self.world.note(self.name, "shows", text)
        begun = next((word for word in _STEP_OF if word in text), "")
        if self._dies_after and _STEP_OF.get(begun) == self._dies_after:
            self._die_soon()

    def waiting(self, text: str, missing_bytes: int = 0) -> None:
        """It waits for something."""
        self.waits_for = text


# Words of the command's texts, by the step that has ended when it shows them.
_STEP_OF = {"sealed timeline": "seal", "promoting": "catch up", "is a primary": "promote"}


class FailoverOperator:
    """Who fails over.

    Attributes:
        commands: those that run.
        missing: safekeepers that are not reached, while it brings commits back at the end.
        has_accidents: servers may be lost while they are promoted, and who has failed may try again.
    """

    has_accidents = True

    def __init__(self, world: "World") -> None:
        self.world = world
        self.commands: list[Command] = []
        self._count = 0
        self._chance = random.Random(f"{world.seed} failovers")
        self._proxies: list[SimProxy] = []
        self.missing: frozenset[int] = frozenset()

    def begin(self, *, wanted: str = "", old_is_dead: bool, dies_after: str = "", unreachable: frozenset[str]) -> None:
        """Run the command, beside others that run already."""
        if len(self.commands) < 3 and len(self.world.primaries) < PRIMARIES_MAX:
            self.world.counts.count("failovers begun")
            self._run(wanted=wanted, old_is_dead=old_is_dead, dies_after=dies_after, unreachable=unreachable)

    def cancel(self) -> None:
        """Let the old primary in again, at any moment: also while a promotion hangs."""
        log = self.world.newest_log()
        if log is None or log.floor < log.tli:
            return
        servers = self.world.servers
        later = [name for name in servers.names() if getattr(servers.at(name), "tli", 0) > log.tli]
        self.world.counts.count("failovers cancelled")
        self._run(cancels=True, unreachable=frozenset(later if self._chance.random() < 0.5 else ()))

    def _run(self, **options: Any) -> Command:
        self._count += 1
        name = f"F{self._count}"
        self._cut_off(name)
        command = Command(self.world, name, **options)
        self.commands.append(command)
        return command

    def _cut_off(self, name: str) -> None:
        """Keep a process from the safekeepers that are out of reach."""
        for safekeeper_id in self.missing:
            for way in (TO_SAFEKEEPER, TO_PROXY):
                self.world.network.blocked.add((name, safekeeper_id, way))

    def on_command_ended(self, command: Command) -> None:
        """A command has ended, in whatever way: an operator may repeat it."""
        world = self.world
        self.commands.remove(command)
        if command.cancels:
            return
        if command.report is not None:
            world.counts.count("failovers reported")
        elif command.error == "killed":
            world.counts.count("commands killed")
        else:
            world.counts.count("failovers failed")
        if command.report is None and not world.is_healing and self.has_accidents and self._chance.random() < 0.7:
            world.clock.after(REPEAT_AFTER_S * self._chance.random(), self._repeat, command)

    def _repeat(self, command: Command) -> None:
        if not self.world.is_healing:
            self.begin(wanted=command.wanted, old_is_dead=command.old_is_dead, unreachable=frozenset())

    def abandon(self) -> None:
        """The run is over: drop what still runs."""
        for command in self.commands:
            command.loop.kill()

    def on_promoted(self, promoted: VirtualPrimary) -> None:
        """A standby has become a primary: clients write there, and proxies are pointed at it."""
        world = self.world
        world.current = promoted
        if world.is_healing:
            self._serve(promoted)
            return
        world.start_workload(promoted)
        beside = world.rng.choice(world.proxies)  # It runs on the machine of the promoted server.
        for way in (TO_SAFEKEEPER, TO_PROXY):
            for safekeeper_id in world.safekeepers:
                world.network.unblock(beside.name, safekeeper_id, way)
        for proxy in world.proxies:
            if proxy is beside or world.rng.random() < 0.7:
                world.point(proxy, promoted)
                if world.rng.random() < 0.5:
                    proxy.stop()
                    proxy.start()
                else:
                    proxy.lose_primary()

    def loses_primaries(self) -> bool:
        """Return whether every primary is lost when the faults end: nothing but standbys and safekeepers is left."""
        is_drawn = self._chance.random() < self.world.profile.primaries_lost
        # A rebootstrap in the repair may leave no log that a standby could be promoted with.
        is_possible = self.world.operator.last is None and self.world.checker.acked_lsn > 0
        return is_drawn and is_possible and self._set_up_standbys()

    def _set_up_standbys(self) -> bool:
        """Let those standbys be set up that are none yet, or must be rewound; return whether there are any."""
        world, truth = self.world, self.world.checker
        end_lsn = last_complete_end(truth.committed, truth.base_lsn, truth.committed_lsn)
        end_lsn = max(end_lsn, end_of_the_first_part(truth.committed, truth.base_lsn) or 0)
        standbys = [*world.standbys, *world.directs]
        if end_lsn <= truth.base_lsn or not standbys:
            return False
        tli = tli_at(truth.won[truth.committed_term].history, end_lsn - 1)
        for standby in standbys:
            standby.set_up_from_backup(end_lsn, tli)
        return True

    def settle(self, without: frozenset[int], proxies: "list[SimProxy]", *, primaries_are_lost: bool) -> None:
        """Bring commits back with the command alone, where nothing else can.

        That is so if the primaries are lost, and if the log is sealed and no primary is above the floor. A command that
        fails is repeated. A proxy runs beside what is promoted.

        Args:
            without: safekeepers that are out of reach meanwhile: no process needs them. The others' log may have a seal
                that was not committed.
            proxies: of which one is to run beside the promoted server.

        Raises:
            Violation: commits have not resumed in time.
        """
        world = self.world
        for command in list(self.commands):
            command.kill()
        logs = [log for log in (world.newest_log(), world.newest_log(without)) if log is not None]
        is_sealed = any(log.floor and not any(map(log.is_continued_by, world.primaries)) for log in logs)
        if not primaries_are_lost and not is_sealed:
            return
        world.counts.count("failovers finished by the repair")
        self.missing = without
        for standby in world.standbys:
            if standby.safekeeper is not None and standby.safekeeper.id in without:
                standby.log_is_gone()
        try:
            self._bring_back(logs[0], proxies)
        finally:
            self.missing = frozenset()
            world.network.unblock_all()

    def _bring_back(self, log: "NewestLog", proxies: "list[SimProxy]") -> None:
        """See `settle`."""
        world = self.world
        if not self._set_up_standbys():
            # No commit was acknowledged, and no standby can be promoted: the old primary goes on.
            self._cancel_for_good(log.tli)
            return
        self._proxies = proxies
        for standby in world.directs:
            standby.is_cut_off = True  # What is alive may be sealed off.
        for promoted in world.servers.promoted:
            if promoted.answers and promoted.tli > max(log.floor, log.tli) and log.is_continued_by(promoted):
                self._serve(promoted)
        began_at_s, acked_lsn = world.clock.now, world.checker.acked_lsn
        patience_s = world.patience_s(PATIENCE_S)
        standbys = [""]
        while world.checker.acked_lsn <= acked_lsn:
            command = self._run(wanted=standbys.pop(), old_is_dead=True)
            # An agent fails over to its own server, which is a standby.
            standbys = standbys or [name for name in world.servers.names() if world.servers.is_standby(name)]
            while not command.is_over and world.clock.now < began_at_s + patience_s:
                world.run(world.clock.now + 0.1)
            if world.clock.now >= began_at_s + patience_s:
                why = command.error or command.waits_for or "no commit was released"
                raise Violation("CommitsResume", f"after {patience_s:g} s with a quorum and a standby: {why}")
            world.run(world.clock.now + REPEAT_AFTER_S)

    def _cancel_for_good(self, tli: int) -> None:
        """Let the server of a timeline in again. What was promoted is of no use, and out of the way."""
        world = self.world
        others = [name for name in world.servers.names() if getattr(world.servers.at(name), "tli", 0) > tli]
        command = self._run(cancels=True, unreachable=frozenset(others))
        while not command.is_over:
            world.run(world.clock.now + 0.1)
        for primary in world.primaries:
            primary.is_lost = False
            primary.start()

    def _serve(self, promoted: VirtualPrimary) -> None:
        """Let a proxy run beside a promoted server, as an agent would."""
        world = self.world
        proxy = self._proxies[0] if self._proxies else None
        if proxy is None:
            return
        world.current = promoted
        for standby in world.directs:
            standby.is_cut_off = False
        world.proxies = [proxy]
        proxy.stop()
        proxy.primary_is_cut_off = proxy.takeover = False
        proxy.primary, proxy.others = promoted, ()
        self._cut_off(proxy.name)
        world.start_workload(promoted)
        proxy.start()
