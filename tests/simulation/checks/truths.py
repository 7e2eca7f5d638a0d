"""What must hold in each cluster: a truth, which is a `Checker`, for every cluster that there ever was.

A rebootstrap begins a cluster of which nothing is committed. What the one before has acknowledged is not forgotten: it
is judged as it was, by the logs of its members, wherever they lie. What an operator gives up, and what not, is this:

- A safekeeper that a rebootstrap has reached takes no part in the cluster before, and keeps its log aside. So that
  cluster may never lead a term again, and what it has acknowledged is not checked. But if it does, since too few were
  reached, or since an undo has brought them back, then all that it has ever acknowledged must be there.
- A safekeeper keeps one log aside. Another rebootstrap, over WAL that was written since, gives up for good what lay
  there before.
- An undo gives nothing up: either the cluster that it ends has committed nothing, or it still has a quorum. Only where
  the operator agrees to that (`discard`) it may lose what it has committed.
- A folder that is wiped is lost with all that it keeps.

`current` is the cluster that the operator goes on with: the last one that an order, a rebootstrap or an undo, has
brought to a quorum of its members.
"""

from typing import TYPE_CHECKING

from safekeeper.consensus.control_state import ControlState
from safekeeper.consensus.messages import Bootstrap
from tests.simulation.checks import quorums
from tests.simulation.checks.checkers import Checker

if TYPE_CHECKING:
    from tests.simulation.model.safekeeper import SimSafekeeper
    from tests.simulation.world.world import World


class Truths:
    """The checkers of all clusters, each of which sees what happens in its own.

    Attributes:
        current: that of the cluster that the operator goes on with.
    """

    def __init__(self, world: "World") -> None:
        self._world = world
        self.current = Checker(world)
        self._first = self.current
        self._begun: dict[str, Checker] = {}
        self._orders: dict[str, Bootstrap] = {}

    def all(self) -> list[Checker]:
        """Return all of them, in the order in which the clusters began."""
        return [self._first, *self._begun.values()]

    def of(self, cluster_id: str) -> Checker:
        """Return the truth of a cluster: that of the first one, unless a rebootstrap has begun it."""
        return self._begun.get(cluster_id, self._first) if cluster_id else self.current

    def of_folder(self, safekeeper: "SimSafekeeper") -> Checker:
        """Return the truth of the cluster that a safekeeper's folder belongs to; the current one if to none."""
        control = safekeeper.disk.control
        if control is None or not control.cluster_id:
            return self.current
        return self._begun.get(control.cluster_id, self._first)

    def on_order(self, order: Bootstrap) -> None:
        """An operator begins a cluster, or brings one back."""
        if not order.undo:
            self._begun[order.cluster_id] = Checker(self._world, order.cluster_id)
        self._orders[order.cluster_id] = order

    def has_quorum(self, order: Bootstrap) -> bool:
        """Return whether a quorum of the members that an order names belongs to its cluster."""
        controls = [safekeeper.disk.control for safekeeper in self._world.safekeepers.values()]
        there = [
            (c.safekeeper_id, c.incarnation) for c in controls if c is not None and c.cluster_id == order.cluster_id
        ]
        return quorums.can_elect(order.membership, there)

    def on_start(self, safekeeper: "SimSafekeeper") -> None:
        """A safekeeper starts."""
        for truth in self.all():
            truth.on_start(safekeeper)

    def on_crash(self, safekeeper: "SimSafekeeper") -> None:
        """A safekeeper dies: also what it keeps aside must be there afterwards."""
        for truth in self.all():
            truth.on_crash(safekeeper)

    def on_cut(self, safekeeper: "SimSafekeeper") -> None:
        """WAL was cut, or moved away, or back."""
        for truth in self.all():
            truth.on_cut(safekeeper)

    def on_persist(self, safekeeper: "SimSafekeeper", before: ControlState | None) -> None:
        """The control file was replaced; maybe the safekeeper belongs to another cluster now."""
        control = safekeeper.disk.control
        assert control is not None  # it was just written
        truth = self.of(control.cluster_id)
        if before is not None and control.cluster_id != before.cluster_id:
            order = self._orders.get(control.cluster_id)
            if order is not None and self.has_quorum(order):
                self.current = truth
            clusters, left = self.all(), self.of(before.cluster_id)
            for each in clusters:
                each.on_moved(safekeeper)
            if before.cluster_id and left is not truth:
                left.on_left(safekeeper, is_undone=clusters.index(truth) < clusters.index(left))
        truth.on_persist(safekeeper)
