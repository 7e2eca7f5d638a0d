"""The operator's way out, as walproxy/rebootstrap.py does it: a new cluster over safekeepers that hold an old one.

It has seen every member's data folder a moment ago. A safekeeper that is down by now does not hear of the new cluster,
and is a member of it all the same, by its name: that is what a rebootstrap which was not repeated leaves behind.
"""

from typing import TYPE_CHECKING, Any

from safekeeper.consensus.membership import Member, Membership
from safekeeper.consensus.messages import PROTOCOL_VERSION, Bootstrap, Bootstrapped, ProposerGreeting, Refusal
from tests.simulation.network import TO_SAFEKEEPER, Connection
from tests.simulation.primary import SERVER_VERSION, SYSTEM_ID
from tests.simulation.synthetic_wal import SEGMENT_SIZE

if TYPE_CHECKING:
    from tests.simulation.safekeeper import SimSafekeeper
    from tests.simulation.world import World


class Rebootstrap:
    """One run of the operator's command.

    Attributes:
        name, life: what the network asks of whoever speaks to safekeepers.
        cluster_id: the new cluster's.
        awaited: ids of the safekeepers that have been told and have not answered yet.
        refusal: why one of them refuses, empty if none does.
    """

    name = "operator"
    life = 0

    def __init__(self, world: "World", safekeepers: list["SimSafekeeper"]) -> None:
        """Tell every one of `safekeepers` that is up. Each must have a data folder, so that it can be named."""
        self.world = world
        self.cluster_id = world.new_run()
        self.awaited: set[int] = set()
        self.refusal = ""
        controls = [safekeeper.disk.control for safekeeper in safekeepers if safekeeper.disk.control is not None]
        generations = [control.membership.generation for control in controls if control.membership is not None]
        members = tuple(Member(control.safekeeper_id, control.incarnation) for control in controls)
        membership = Membership(max(generations, default=0) + 1, members)
        bootstrap = Bootstrap(self.cluster_id, SYSTEM_ID, SEGMENT_SIZE, SERVER_VERSION, membership, replace=True)
        for safekeeper in safekeepers:
            self._tell(safekeeper, bootstrap)

    def _tell(self, safekeeper: "SimSafekeeper", bootstrap: Bootstrap) -> None:
        network = self.world.network
        connection = network.connect(self, safekeeper)
        if connection is None:
            self.world.note(self.name, "does not reach", safekeeper.name)
            return
        self.awaited.add(safekeeper.id)
        greeting = ProposerGreeting(PROTOCOL_VERSION, self.cluster_id, safekeeper.id, None, None)
        for message in (greeting, bootstrap):
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
