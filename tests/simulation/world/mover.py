"""A process of the simulation that moves the lead by the product's code: a command, or an agent.

It runs on a virtual loop. failover_shell.py has what it stands on, and finds it as the owner of the loop that runs.
"""

from typing import TYPE_CHECKING, Any

from safekeeper.base.settings import Address
from safekeeper.consensus.messages import AppendRequest, Elected, Reconfigure
from tests.simulation.checks.violation import Violation
from tests.simulation.model.virtual_loop import VirtualLoop
from walproxy.proposer.proposer import Proposer
from walproxy.proposer.purpose import CancelSeal, Readmit, Reserve, Seal, TakeBack

if TYPE_CHECKING:
    from tests.simulation.model.clock import Clock, MachineClock
    from tests.simulation.model.network import Connection
    from tests.simulation.world.failover_shell import VirtualServer
    from tests.simulation.world.world import World
    from walproxy.postgres.hosts import PrimaryHost

SQL_DELAY_S = 0.04
LATE_S_MAX = 3.0
# From the last look at its term until a thread sends the request, at most.
REQUEST_S = 0.5


class Mover:
    """One process.

    Attributes:
        name, life: what the network needs of each client of safekeepers.
        loop: it runs on.
        connections: those to safekeepers that are open.
        proposer: that of its present seal, None before the first one.
        elected: what began its last term that was committed, None before.
    """

    def __init__(self, world: "World", name: str, clock: "Clock | MachineClock") -> None:
        self.world = world
        self.name = name
        self.life = 0
        self.connections: list[Connection] = []
        self.proposer: Proposer | None = None
        self.elected: Elected | None = None
        self._without_object: Proposer | None = None
        self._truth = world.checker
        self._led_at = self._stands_still_until = 0.0
        self.loop = VirtualLoop(clock, world.rng, SQL_DELAY_S, self)

    def safekeepers(self) -> "tuple[tuple[int, Address], ...]":
        """Return the ids and addresses of the safekeepers."""
        return tuple((i, Address(f"S{i}", 1)) for i in sorted(self.world.safekeepers))

    def new_server(self, host: "PrimaryHost") -> "VirtualServer":
        """Return a server, as this process reaches it."""
        raise NotImplementedError

    def end_process(self) -> None:
        """End the process, wherever it is. What it has sent may arrive, also late."""
        world = self.world
        world.note(self.name, "is killed")
        for connection in self.connections:
            late_messages = world.profile.late_messages
            if late_messages and world.rng.random() < late_messages:
                world.network.let_go(connection, LATE_S_MAX * world.rng.random())
            else:
                world.network.break_connection(connection, silent=world.rng.random() < 0.2)
        self.loop.kill()

    def suspend(self, for_s: float) -> None:
        """SIGSTOP, and SIGCONT some time later."""
        self.world.note(self.name, "is suspended")
        self._stands_still_until = self.world.clock.now + for_s
        self.loop.suspend(for_s)

    def sealed(self) -> None:
        """Its seal is committed."""

    def requests_promotion(self) -> None:
        """It requests a promotion: only while it leads the term that has reserved the number (13.7).

        A thread that was stopped with its process may send the request later: the session's own check is for that.
        """
        late_s = self.world.clock.now - self._led_at
        if late_s > REQUEST_S and self._stands_still_until < self._led_at:
            raise Violation("PromotesUnderItsSeal", f"{self.name} has not led its term for {late_s:.2f} s")

    def begins(self, proposer: Proposer) -> None:
        """A proposer begins to seal."""
        self.proposer = proposer
        self.world.counts.count("seals begun")

    def stepped(self, proposer: Proposer) -> None:
        """The proposer has handled an event."""
        leadership, world = proposer.leadership, self.world
        if leadership is None:
            obstacle = proposer.candidacy.obstacle
            if obstacle is not None and obstacle.log_tli and proposer is not self._without_object:
                self._without_object = proposer
                world.counts.count("seals without an object")
            return
        self._led_at = world.clock.now
        self._truth = world.truths.of(leadership.elected.cluster_id)
        self._truth.on_proposer_stepped(self, proposer)
        elected, purpose = proposer.tail_elected, proposer.candidacy.purpose
        if isinstance(purpose, TakeBack | CancelSeal | Readmit):
            self._truth.on_floor_lowered(purpose, leadership.elected)
        if elected is None or elected is self.elected:
            return
        self.elected = elected
        entry = elected.history[-1]
        world.note("operator", "receives", f"{purpose}: floor {entry.floor}, given {entry.given}")
        world.counts.count(_SERVED[type(purpose)])
        if isinstance(purpose, Seal):
            self._truth.on_sealed(purpose, elected)
            self.sealed()

    def sends(self, message: Any, connection: "Connection") -> None:
        """It sends a message to a safekeeper."""
        if isinstance(message, (AppendRequest, Elected)):
            self._truth.on_commit_sent(self, message.leader_id, message.commit_lsn)
        elif isinstance(message, Reconfigure):
            self._truth.on_membership_sent(message.leader_id, message.membership)
        self.world.note(self.name, "sends", message, connection.number)


_SERVED: dict[type, str] = {
    Seal: "timelines sealed",
    Reserve: "numbers reserved",
    TakeBack: "seals taken back",
    CancelSeal: "seals cancelled",
    Readmit: "primaries readmitted",
}
