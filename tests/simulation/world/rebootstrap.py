"""The operator's way out, as walproxy/proxy/rebootstrap.py does it: a new cluster over safekeepers that hold an old
one. And back, as walproxy/proxy/rebootstrap_undo.py does it.

`Rebootstrap` is that of a scenario. It has seen every member's data folder a moment ago. A safekeeper that is down by
now does not receive the new cluster, and is a member of it nevertheless, by its name: that is what a rebootstrap which
was not repeated leaves behind.

`Operator` does it by chance: its `Command` greets every safekeeper, and sends to one after the other, as the
real one does. It ends at the first that is not reached, or refuses; those that it reached before have a new cluster,
and the others the old one, until the operator repeats it, or does something else.
"""

from typing import TYPE_CHECKING, Any

import msgspec

from safekeeper.base.errors import ConfigurationError
from safekeeper.consensus.control_state import ControlState
from safekeeper.consensus.membership import Member, Membership
from safekeeper.consensus.messages import (
    PROTOCOL_VERSION,
    AcceptorGreeting,
    Bootstrap,
    Bootstrapped,
    PreVoteRequest,
    PreVoteResponse,
    ProposerGreeting,
    Refusal,
)
from tests.simulation.checks import quorums
from tests.simulation.checks.violation import Violation
from tests.simulation.model.disk import StorageDisk
from tests.simulation.model.network import TO_SAFEKEEPER, Connection
from tests.simulation.model.primary import SERVER_VERSION, SYSTEM_ID
from tests.simulation.model.synthetic_wal import SEGMENT_SIZE
from tests.simulation.shells.shell_disk import ShellDisk
from walproxy.proxy.rebootstrap import next_generation
from walproxy.proxy.rebootstrap_undo import UndoSurvey, _find_target, _has, _order, _restored

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.model.proxy import SimProxy
    from tests.simulation.model.safekeeper import SimSafekeeper
    from tests.simulation.world.world import World

COMMAND_TIMEOUT_S = 3.0
ATTEMPTS = 6
SHELLS_START_WITHIN_S = 30.0


def new_cluster(cluster_id: str, safekeepers: list["SimSafekeeper"]) -> Bootstrap:
    """Return the order to begin a cluster on `safekeepers`. Each must have a data folder, so that it can be named."""
    members = tuple(Member(control.safekeeper_id, control.incarnation) for control in _controls(safekeepers))
    membership = Membership(_next_generation(safekeepers), members)
    return Bootstrap(cluster_id, SYSTEM_ID, SEGMENT_SIZE, SERVER_VERSION, membership, replace=True)


def old_cluster(remembered: ControlState, safekeepers: list["SimSafekeeper"]) -> Bootstrap:
    """Return the order to bring back the cluster that a rebootstrap has replaced, as one of its members keeps it."""
    assert remembered.membership is not None  # only clusters are replaced
    known = [state for control in _controls(safekeepers) for state in (control, control.replaced) if state is not None]
    memberships = [state.membership for state in known if state.cluster_id == remembered.cluster_id]
    latest = _latest_members(remembered.membership, [each for each in memberships if each is not None])
    membership = msgspec.structs.replace(latest, generation=_next_generation(safekeepers))
    return Bootstrap(remembered.cluster_id, SYSTEM_ID, SEGMENT_SIZE, SERVER_VERSION, membership, undo=True)


def _latest_members(remembered: Membership, known: list[Membership]) -> Membership:
    """Return the latest membership: a quorum that the rebootstrap has not reached may have changed the members."""
    return max([remembered, *known], key=lambda membership: membership.key)


def _controls(safekeepers: list["SimSafekeeper"]) -> list[ControlState]:
    return [safekeeper.disk.control for safekeeper in safekeepers if safekeeper.disk.control is not None]


def _next_generation(safekeepers: list["SimSafekeeper"]) -> int:
    known = [control.membership for control in _controls(safekeepers) if control.membership is not None]
    return 1 + max((membership.generation for membership in known), default=0)


class Rebootstrap:
    """One run of the operator's command.

    Attributes:
        name, life: what the network needs of each client of safekeepers.
        bootstrap: what is sent.
        awaited: ids of the safekeepers that were sent it and have not answered yet.
        refusal: why one of them refuses, empty if none does.
    """

    name = "operator"
    life = 0

    def __init__(self, world: "World", safekeepers: list["SimSafekeeper"], bootstrap: Bootstrap) -> None:
        """Send it to each of `safekeepers` that is up."""
        self.world = world
        self.bootstrap = bootstrap
        world.truths.on_order(bootstrap)
        self.awaited: set[int] = set()
        self.refusal = ""
        for safekeeper in safekeepers:
            self._cut_off(safekeeper)

    def _cut_off(self, safekeeper: "SimSafekeeper") -> None:
        network = self.world.network
        connection = network.connect(self, safekeeper)
        if connection is None:
            self.world.note(self.name, "does not reach", safekeeper.name)
            return
        self.awaited.add(safekeeper.id)
        greeting = ProposerGreeting(PROTOCOL_VERSION, self.bootstrap.cluster_id, safekeeper.id, None, None)
        for message in (greeting, self.bootstrap):
            self.world.note(self.name, "sends", message, connection.number)
            network.send(connection, TO_SAFEKEEPER, message)

    def received(self, connection: Connection, message: Any) -> None:
        """A safekeeper has answered."""
        self.world.note(self.name, "gets", message, connection.number)
        if isinstance(message, Refusal):
            self.refusal = message.reason
        if isinstance(message, (Refusal, Bootstrapped)):
            self.awaited.discard(connection.safekeeper.id)
            self.world.network.close(connection, TO_SAFEKEEPER)

    def disconnected(self, connection: Connection) -> None:
        """A safekeeper is gone; if it has not answered, it may have begun the new cluster or not."""
        self.awaited.discard(connection.safekeeper.id)


class Command:
    """One run of the operator's command over all safekeepers: a rebootstrap, or the undo of one.

    Attributes:
        name, life: what the network needs of each client of safekeepers.
        is_undo: which of the two.
        discards: whether the operator agrees to lose what was written since the rebootstrap.
        is_over: whether it has ended.
        problem: why it has not done it, empty if it has.
        served_by: the run of a proxy that serves: it has ended because of that.
    """

    name = "operator"

    def __init__(self, world: "World", on_end: "Callable[[Command], None]", *, is_undo: bool, discards: bool) -> None:
        """Greet every safekeeper."""
        self.world = world
        self.life = 0
        self.is_undo = is_undo
        self.discards = discards
        self.is_over = False
        self.problem = self.served_by = ""
        self._on_end = on_end
        self._greetings: dict[int, AcceptorGreeting] = {}
        self._unserved: set[int] = set()
        self._connections: dict[int, Connection] = {}
        self._left: list[int] = []
        self._bootstrap: Bootstrap | None = None
        world.note(self.name, "begins", "an undo" if is_undo else "a rebootstrap")
        world.clock.after(COMMAND_TIMEOUT_S, self._end, "no answer")
        for safekeeper in world.safekeepers.values():
            connection = world.network.connect(self, safekeeper)
            if connection is None:
                world.clock.after(0.0, self._end, f"{safekeeper.name} is not reached")
                return
            self._connections[safekeeper.id] = connection
            self._send(connection, ProposerGreeting(PROTOCOL_VERSION, self.name, safekeeper.id, None, None))
            self._send(connection, PreVoteRequest(self.name, takeover=False))

    @property
    def has_sent(self) -> bool:
        """Whether it has come so far that a safekeeper may belong to another cluster now."""
        return self._bootstrap is not None

    def _send(self, connection: Connection, message: Any) -> None:
        self.world.note(self.name, "sends", message, connection.number)
        self.world.network.send(connection, TO_SAFEKEEPER, message)

    def received(self, connection: Connection, message: Any) -> None:
        """A safekeeper has answered."""
        self.world.note(self.name, "gets", message, connection.number)
        safekeeper_id = connection.safekeeper.id
        if isinstance(message, AcceptorGreeting):
            self._greetings[safekeeper_id] = message
        elif isinstance(message, PreVoteResponse) and message.live_proposer_id:
            self.served_by = message.live_proposer_id
            self._end("a proxy serves")
        elif isinstance(message, PreVoteResponse):
            self._unserved.add(safekeeper_id)
            if len(self._unserved) == len(self.world.safekeepers):
                self._begin()
        elif isinstance(message, Bootstrapped):
            self._left.remove(safekeeper_id)
            self._send_next()
        elif isinstance(message, Refusal):
            self._end(message.reason)

    def disconnected(self, connection: Connection) -> None:
        """A safekeeper is gone: whether it was reached is unknown."""
        self._end(f"{connection.safekeeper.name} is gone")

    def _begin(self) -> None:
        """All have greeted, and no proxy serves: decide what to send, as the real command does."""
        greetings = self._greetings
        if not self.is_undo:
            members = tuple(Member(i, greeting.incarnation) for i, greeting in sorted(greetings.items()))
            membership = Membership(next_generation(greetings), members)
            self._bootstrap = Bootstrap(
                self.world.new_run(), SYSTEM_ID, SEGMENT_SIZE, SERVER_VERSION, membership, replace=True
            )
            self._left = sorted(greetings)
        else:
            try:
                target = _find_target(greetings)
            except ConfigurationError as error:
                self._end(str(error))
                return
            survey = UndoSurvey(greetings, target)
            if survey.since and not self.discards:
                self._end("WAL was written since the rebootstrap")
                return
            voters = [i for i, greeting in greetings.items() if target.membership.is_voter(i, greeting.incarnation)]
            if not all(_has(greetings[i], target.cluster_id) for i in voters):
                self._end("a member has none of its WAL")
                return
            self._bootstrap = Bootstrap(
                target.cluster_id,
                SYSTEM_ID,
                SEGMENT_SIZE,
                SERVER_VERSION,
                _restored(target, greetings),
                undo=True,
                discard=bool(survey.since),
            )
            for greeting in survey.since.values():
                self.world.truths.of(greeting.cluster_id).is_given_up = True
            self._left = _order(survey)
        self.world.counts.count("rebootstraps undone" if self.is_undo else "rebootstraps")
        self.world.truths.on_order(self._bootstrap)
        self._send_next()

    def _send_next(self) -> None:
        if not self._left:
            self._end("")
        elif not self.is_over:
            self._send(self._connections[self._left[0]], self._bootstrap)

    def _end(self, problem: str) -> None:
        if self.is_over:
            return
        self.is_over, self.problem = True, problem
        self.life += 1
        self.world.note(self.name, "ends", problem or "done")
        for connection in self._connections.values():
            self.world.network.close(connection, TO_SAFEKEEPER)
        self._on_end(self)


class Operator:
    """Who rebootstraps, and undoes that: the proxies that are seen to serve are stopped before, and started afterwards.

    Only sometimes it stops all others, too. One that is suspended or cut off, or asks for votes, goes on.

    Attributes:
        last: the last command, None before the first.
    """

    def __init__(self, world: "World") -> None:
        self.world = world
        self.last: Command | None = None
        self._stopped: list[SimProxy] = []
        self._attempts = 0

    @property
    def may_begin(self) -> bool:
        """Whether this run has what a rebootstrap is modelled for: one archive or one disk has one cluster."""
        world = self.world
        disk = world.safekeepers[1].disk
        is_modelled = world.archive is None and (isinstance(disk, ShellDisk) or not isinstance(disk, StorageDisk))
        has_begun = any(truth.won for truth in world.truths.all())
        return is_modelled and has_begun and (self.last is None or self.last.is_over)

    def begin(self, *, is_undo: bool, discards: bool) -> None:
        """Do it, after the proxies that serve were stopped, or all of them."""
        self._attempts = ATTEMPTS
        if self.world.rng.random() < 0.5:
            for proxy in self.world.proxies:
                self._stop(proxy)
        self._try(is_undo, discards)

    def _stop(self, proxy: "SimProxy") -> None:
        if proxy.proposer is not None:
            proxy.stop()
            self._stopped.append(proxy)

    def _try(self, is_undo: bool, discards: bool) -> None:
        if self.world.is_healing:
            return
        self._attempts -= 1
        self.last = Command(self.world, self._on_end, is_undo=is_undo, discards=discards)

    def _on_end(self, command: Command) -> None:
        """Look what came of a command: repeat it, or let the proxies start, whatever it has done."""
        world, rng = self.world, self.world.rng
        if world.is_healing:
            return
        if command.problem and self._attempts > 0 and (not command.has_sent or rng.random() < 0.5):
            for proxy in world.proxies:
                if proxy.proposer is not None and proxy.proposer.config.proposer_id == command.served_by:
                    self._stop(proxy)
            world.clock.after(0.4 * rng.random(), self._try, command.is_undo, command.discards)
            return
        if command.has_sent and not command.is_undo and rng.random() < 0.4:
            # It was a mistake. Some notice that before they start a proxy.
            world.clock.after(rng.choice((0.4, 2.0)) * rng.random(), self._regret)
            if rng.random() < 0.5:
                return
        self._start_stopped()

    def _start_stopped(self) -> None:
        for proxy in self._stopped:
            self.world.clock.after(self.world.rng.random(), proxy.start)
        self._stopped = []

    def _regret(self) -> None:
        if self.world.is_healing:
            return
        if self.may_begin:
            self.begin(is_undo=True, discards=self.world.rng.random() < 0.3)
        else:
            self._start_stopped()

    def settle(self) -> None:
        """Repeat what was begun until one cluster has its quorums; wipe what belongs to others.

        The proxies are stopped, and every safekeeper comes up by itself. A cluster that an undo has brought back may be
        one whose WAL the primary has recycled since: it is given up.

        Raises:
            Violation: nothing that the operator does makes a cluster whole.
        """
        world = self.world
        if self.last is None:
            return
        self._await_shells()
        for attempt in range(ATTEMPTS):
            has_quorums = self._has_quorums()
            if has_quorums and not world.is_log_recycled():
                break
            # Where an undo does not help, since what it would bring back is lost or recycled, begin again.
            is_undo = self.last.is_undo and not has_quorums and not attempt
            self.last = Command(world, self._on_end, is_undo=is_undo, discards=True)
            while not self.last.is_over:
                world.run(world.clock.now + 0.1)
            if self.last.problem:
                world.run(world.clock.now + 1.0)  # A safekeeper may be away for a while yet.
        else:
            raise Violation("Convergence", f"no cluster becomes whole again: {self.last.problem or 'no log fits'}")
        strays = [each for each in world.safekeepers.values() if world.checker.is_foreign(each.disk.control)]
        for safekeeper in strays:
            if safekeeper.acceptor is not None:
                safekeeper.crash()
            safekeeper.wipe()
        if strays:
            world.run(world.clock.now + 2.0)

    def _await_shells(self) -> None:
        """Wait for safekeepers that could not start for lack of descriptors: until then their cluster is not seen."""
        world = self.world
        ends_at_s = world.clock.now + SHELLS_START_WITHIN_S
        shells = [each for each in world.safekeepers.values() if isinstance(each.disk, ShellDisk)]
        while world.clock.now < ends_at_s and not all(shell.is_serving for shell in shells):
            world.run(world.clock.now + 0.1)

    def _has_quorums(self) -> bool:
        """Return whether the safekeepers of the current cluster can elect a leader, and commit."""
        world = self.world
        controls = [safekeeper.disk.control for safekeeper in world.safekeepers.values()]
        ours = [c for c in controls if c is not None and c.cluster_id and not world.checker.is_foreign(c)]
        there = [(c.safekeeper_id, c.incarnation) for c in ours]
        known = [c.membership for c in ours if c.membership is not None]
        latest = max(known, key=lambda membership: membership.key, default=None)
        return latest is not None and quorums.can_elect(latest, there) and quorums.can_commit(latest, there)
