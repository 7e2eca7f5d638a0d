"""The operator's way out, as walproxy/proxy/rebootstrap.py does it: a new cluster over safekeepers that hold an old
one. And back, as walproxy/proxy/rebootstrap_undo.py does it.

It has seen every member's data folder a moment ago. A safekeeper that is down by now does not hear of the new cluster,
and is a member of it all the same, by its name: that is what a rebootstrap which was not repeated leaves behind.
"""

from typing import TYPE_CHECKING, Any

import msgspec

from safekeeper.consensus.control_state import ControlState
from safekeeper.consensus.membership import Member, Membership
from safekeeper.consensus.messages import PROTOCOL_VERSION, Bootstrap, Bootstrapped, ProposerGreeting, Refusal
from tests.simulation.network import TO_SAFEKEEPER, Connection
from tests.simulation.primary import SERVER_VERSION, SYSTEM_ID
from tests.simulation.synthetic_wal import SEGMENT_SIZE

if TYPE_CHECKING:
    from tests.simulation.safekeeper import SimSafekeeper
    from tests.simulation.world import World


def new_cluster(cluster_id: str, safekeepers: list["SimSafekeeper"]) -> Bootstrap:
    """Return the order to begin a cluster on `safekeepers`. Each must have a data folder, so that it can be named."""
    members = tuple(Member(control.safekeeper_id, control.incarnation) for control in _controls(safekeepers))
    membership = Membership(_next_generation(safekeepers), members)
    return Bootstrap(cluster_id, SYSTEM_ID, SEGMENT_SIZE, SERVER_VERSION, membership, replace=True)


def old_cluster(remembered: ControlState, safekeepers: list["SimSafekeeper"]) -> Bootstrap:
    """Return the order to bring back the cluster that a rebootstrap has replaced, as one of its members keeps it."""
    assert remembered.membership is not None  # only clusters are replaced
    known = [state for control in _controls(safekeepers) for state in (control, control.replaced) if state is not None]
    authors = [
        state.membership.author
        for state in known
        if state.membership is not None and state.cluster_id == remembered.cluster_id
    ]
    membership = msgspec.structs.replace(
        remembered.membership, generation=_next_generation(safekeepers), author=max(authors)
    )
    return Bootstrap(remembered.cluster_id, SYSTEM_ID, SEGMENT_SIZE, SERVER_VERSION, membership, undo=True)


def _controls(safekeepers: list["SimSafekeeper"]) -> list[ControlState]:
    return [safekeeper.disk.control for safekeeper in safekeepers if safekeeper.disk.control is not None]


def _next_generation(safekeepers: list["SimSafekeeper"]) -> int:
    known = [control.membership for control in _controls(safekeepers) if control.membership is not None]
    return 1 + max((membership.generation for membership in known), default=0)


class Rebootstrap:
    """One run of the operator's command.

    Attributes:
        name, life: what the network asks of whoever speaks to safekeepers.
        bootstrap: what is told.
        awaited: ids of the safekeepers that have been told and have not answered yet.
        refusal: why one of them refuses, empty if none does.
    """

    name = "operator"
    life = 0

    def __init__(self, world: "World", safekeepers: list["SimSafekeeper"], bootstrap: Bootstrap) -> None:
        """Tell every one of `safekeepers` that is up."""
        self.world = world
        self.bootstrap = bootstrap
        self.awaited: set[int] = set()
        self.refusal = ""
        for safekeeper in safekeepers:
            self._tell(safekeeper)

    @property
    def has_quorum(self) -> bool:
        """Whether a quorum of the cluster's members belongs to it: no other cluster can commit any more."""
        controls = _controls(list(self.world.safekeepers.values()))
        return self.bootstrap.membership.has_elect_quorum(
            (control.safekeeper_id, control.incarnation)
            for control in controls
            if control.cluster_id == self.bootstrap.cluster_id
        )

    def _tell(self, safekeeper: "SimSafekeeper") -> None:
        network = self.world.network
        connection = network.connect(self, safekeeper)
        if connection is None:
            self.world.note(self.name, "does not reach", safekeeper.name)
            return
        self.awaited.add(safekeeper.id)
        greeting = ProposerGreeting(PROTOCOL_VERSION, self.bootstrap.cluster_id, safekeeper.id, None, None)
        for message in (greeting, self.bootstrap):
            self.world.note(self.name, "says", message, connection.number)
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
