"""A machine with one PostgreSQL, which its agent alone starts, stops, promotes and rejoins.

Its data folder is a primary's or a standby's; a promotion that crashes leaves a standby that has gone ahead: on a
timeline that the log does not have. Nothing but the agent lets a server that has ended go on.
"""

import random
from typing import TYPE_CHECKING

from safekeeper.base.lsn import Lsn
from tests.simulation.model.primary import FIRST_LSN, SYSTEM_ID, VirtualPrimary
from tests.simulation.model.standby import SimStandby
from tests.simulation.model.synthetic_wal import HEADER_BYTES, SEGMENT_SIZE
from walproxy.agent.control_data import ControlData
from walproxy.agent.managed_server import READ_ONLY
from walproxy.agent.server_look import ServerLook, ServerState
from walproxy.postgres.problems import ServerProblem
from walproxy.proposer.primary import Ancestor

if TYPE_CHECKING:
    from safekeeper.consensus.messages import Elected
    from tests.simulation.model.proxy import SimProxy
    from tests.simulation.world.world import World

END_OF_RECOVERY_BYTES = HEADER_BYTES + 16


class Machine:
    """One machine.

    Attributes:
        name: of its host, and of its agent.
        proxy: what its agent runs.
        primary: the server if it is a primary's folder, also while that is down; None for a standby's.
        standby: the server if it is a standby's folder.
        settings: the agent's, in the data folder.
        problem: why it cannot be promoted, empty if it can.
        ahead: the timelines of promotions that have crashed, on which it is since: it streams nothing.
        is_cut_off: its standby reaches no safekeeper.
        hung: its postmaster is stopped.
        crashes_next: its next promotion crashes when it has taken its number.
        promotion_s: how long a promotion takes at most.
    """

    def __init__(self, world: "World", name: str, standby: SimStandby, proxy: "SimProxy") -> None:
        self.world = world
        self.name = name
        self.standby = standby
        self.proxy = proxy
        self.primary: VirtualPrimary | None = None
        self.settings: dict[str, str] = {}
        self.problem = ""
        self.ahead: list[int] = []
        self.is_cut_off = False
        self.hung = False
        self.crashes_next = False
        self.promotion_s = 0.3
        self.rng = random.Random(f"{world.seed} machine {name}")
        self._stands_by = False
        self._nowhere = VirtualPrimary(world, f"{name}-standby", 0, (), b"")
        self._nowhere.up = False
        proxy.primary = self._nowhere

    def be_primary(self, primary: VirtualPrimary) -> None:
        """Have a primary from now on, and no standby."""
        self.primary = self.proxy.primary = primary
        self._stands_by = False
        self.standby.stop()
        primary.quiet = self.is_read_only

    @property
    def is_read_only(self) -> bool:
        """Whether the settings make it read-only."""
        return self.settings.get(READ_ONLY) == "on"

    @property
    def is_up(self) -> bool:
        """Whether a postmaster runs."""
        return self.primary.up if self.primary is not None else self._stands_by

    @property
    def answers(self) -> bool:
        """Whether it replies to SQL."""
        return self.is_up and not self.hung and (self.primary is not None or self.standby.applied_lsn > 0)

    @property
    def accepts_writes(self) -> bool:
        """Whether a client can write."""
        return self.primary is not None and self.primary.answers and not self.primary.quiet

    @property
    def tli(self) -> int:
        """The timeline of its data folder."""
        if self.primary is not None:
            return self.primary.tli
        return self.ahead[-1] if self.ahead else self.standby.tli

    @property
    def lineage(self) -> tuple[tuple[int, Lsn], ...]:
        """What its history files have of a timeline that it has gone ahead to."""
        fork_lsn, tli = self.standby.on_disk
        older = ((each.tli, each.end_lsn) for each in self.standby.line.ancestors if each.tli < tli)
        return (*older, *((each, fork_lsn) for each in (tli, *self.ahead[:-1])))

    def look(self, timeout_s: float) -> ServerLook:
        """Return what its agent sees."""
        primary, standby = self.primary, self.standby
        state = ServerState.STOPPED if not self.is_up else ServerState.HANGS if self.hung else None
        if state is None and not self.answers:
            state = ServerState.STARTING
        if state is not None:
            return ServerLook(
                state,
                pid=None if state is ServerState.STOPPED else 1,
                system_id=SYSTEM_ID,
                tli=self.tli,
                written_lsn=primary.flush_lsn if primary is not None else standby.on_disk[0],
                control=self.control_data(),
                has_standby_signal=primary is None,
                hangs_s=timeout_s if state is ServerState.HANGS else 0.0,
                problem="" if state is ServerState.STOPPED else "does not reply",
            )
        if primary is not None:
            return ServerLook(
                ServerState.PRIMARY,
                1,
                SYSTEM_ID,
                tli=self.tli,
                is_read_only=primary.quiet,
                written_lsn=primary.flush_lsn,
            )
        return ServerLook(
            ServerState.STANDBY,
            1,
            SYSTEM_ID,
            tli=self.tli,
            is_read_only=self.is_read_only,
            received_lsn=0 if self.ahead else standby.streamed_lsn,
            replayed_lsn=standby.replayed_lsn,
            is_streaming=standby.safekeeper is not None,
            problem=self.problem,
        )

    def control_data(self) -> ControlData:
        """Return pg_control."""
        primary, lsn = self.primary, self.standby.on_disk[0]
        if primary is not None:
            return ControlData(
                SYSTEM_ID, "in production", primary.flush_lsn, primary.tli, 0, 0, SEGMENT_SIZE, can_be_rewound=True
            )
        return ControlData(
            SYSTEM_ID, "in archive recovery", lsn, self.tli, lsn, self.tli, SEGMENT_SIZE, can_be_rewound=True
        )

    def start(self, *, as_standby: bool) -> None:
        """Start the server. A running one is fine.

        Raises:
            ServerProblem: it must not be started so.
        """
        if as_standby is not (self.primary is None):
            raise ServerProblem("the data folder is that of another role")
        if self.is_up:
            return
        if self.primary is not None:
            self.primary.start()
            self.reload()
        else:
            self.world.note(self.name, "starts a standby")
            self._stands_by = True
            self._stream()

    def stop(self) -> None:
        """Stop the server cleanly: what it has inserted is flushed.

        Raises:
            ServerProblem: it hangs.
        """
        if self.hung:
            raise ServerProblem("PostgreSQL has not stopped")
        if self.primary is not None and self.primary.up:
            self.primary.flush()
        self.crash()

    def crash(self) -> None:
        """kill -9 of all its processes."""
        self.hung = False
        if self.primary is not None:
            if self.primary.up:
                self.primary.crash()
        elif self._stands_by:
            self.world.note(self.name, "stops its standby")
            self._stands_by = False
            self.standby.life += 1
            self.standby.stop()

    def hang(self) -> None:
        """SIGSTOP of all its processes."""
        if self.is_up:
            self.hung = True
            if self.primary is not None:
                self.primary.freeze()
            else:
                self.standby.stop()

    def go_on(self) -> None:
        """SIGCONT."""
        if self.hung:
            self.hung = False
            if self.primary is not None:
                self.primary.thaw()
            else:
                self._stream()

    def reload(self) -> None:
        """Let the settings be in force."""
        if self.primary is not None:
            self.primary.quiet = self.is_read_only

    def cut_off(self, is_cut_off: bool) -> None:
        """Let a standby reach no safekeeper, or reach them again."""
        self.is_cut_off = is_cut_off
        if self.primary is None and is_cut_off:
            self.standby.stop()
        elif self.primary is None and self._stands_by:
            self._stream()

    def _stream(self) -> None:
        if self.ahead:
            self.standby.applied_lsn = self.standby.on_disk[0]
        elif not self.is_cut_off and not self.hung:
            self.standby.settle()

    def rejoin(self, leader: "Machine") -> None:
        """Make a standby of a stopped server, from the beginning of the safekeepers' WAL on.

        Raises:
            ServerProblem: the leader does not reply.
        """
        if not leader.accepts_writes:
            raise ServerProblem(f"{leader.name} does not reply")
        if self.primary is not None:
            self.primary.is_lost = True
        self.primary, self.ahead, self.proxy.primary = None, [], self._nowhere
        self.standby.forget()

    def request_promotion(self, reserved: "Elected") -> None:
        """Signal the standby, which is a primary soon, or later; or crashes."""
        delay_s = self.promotion_s * self.rng.random()
        self.world.clock.after(delay_s, self._promote, self.standby.life, self.tli, reserved)

    def _promote(self, life: int, signalled_tli: int, reserved: "Elected") -> None:
        world, standby = self.world, self.standby
        if self.primary is not None or standby.life != life or not self.answers:
            return
        (fork_lsn, tli), line = standby.on_disk, standby.line
        taken = self._numbers_found()
        is_found = signalled_tli < reserved.history[-1].given in taken
        new_tli = next(number for number in range(self.tli + 1, self.tli + 1000) if number not in taken)
        if self.crashes_next:
            self.crashes_next = False
            world.counts.count("promotions that crashed")
            world.note(self.name, "crashes in its promotion to", new_tli)
            standby.passed_over.add(new_tli)
            self.ahead.append(new_tli)
            self.crash()
            return
        ancestors = [*(each for each in line.ancestors if each.tli < tli), Ancestor(tli, fork_lsn)]
        ancestors += [Ancestor(each, fork_lsn) for each in self.ahead]
        name, wal = world.next_primary_name(), line.read(FIRST_LSN, fork_lsn)
        promoted = world.new_primary(VirtualPrimary(world, name, new_tli, tuple(ancestors), wal))
        world.counts.count("promotions of one that had crashed in one", int(bool(self.ahead)))
        self.ahead = []
        self.be_primary(promoted)
        promoted.write_record(END_OF_RECOVERY_BYTES)
        promoted.flush()
        world.truths.of(reserved.cluster_id).on_promoted(promoted, reserved, is_found)
        world.servers.promoted.append(promoted)
        world.counts.count("standbys promoted by a failover")
        world.current = promoted
        world.start_workload(promoted)

    def _numbers_found(self) -> set[int]:
        """Return the numbers with a history file: in its pg_wal, and where its restore_command looks."""
        serving = [each.acceptor for each in self.world.safekeepers.values() if each.acceptor and each.is_serving]
        known = max((acceptor.readable_tli for acceptor in serving), default=0)
        fetched = set(range(known + 1)) if self.rng.random() < 0.8 else set()
        return fetched | self.standby.passed_over | set(range(self.tli + 1))
