"""What an agent does for the lead of its server: the state, its data, and the transitions between the states.

    WATCHING ---> FAILING_OVER ---> RESUMING ---> SETTLING ---> WATCHING

The steps of the `Decider` are taken in each of these states. That the agent has resigned, or has ended the writes of
its server, is kept by the `Decider`: both can be true in any of them. Each transition is one method here; `TRANSITIONS`
lists those that are allowed. Pure.
"""

from enum import Enum

from safekeeper.base.errors import InvariantViolation
from walproxy.agent.report import Order
from walproxy.failover.failover import Failover
from walproxy.failover.server import Promotion


class WorkState(Enum):
    """What the agent does for the lead; each comment names the events that end the state."""

    WATCHING = "watching"  # the decision to fail over: FAILING_OVER
    FAILING_OVER = "failing_over"  # the server is promoted: RESUMING; an error, or the timeout: WATCHING
    RESUMING = "resuming"  # commits succeed: SETTLING; another failover seals its timeline off: WATCHING
    SETTLING = "settling"  # a quorum of the safekeepers has received a heartbeat of its proxy: WATCHING


TRANSITIONS: dict[WorkState, frozenset[WorkState]] = {
    WorkState.WATCHING: frozenset({WorkState.FAILING_OVER}),
    WorkState.FAILING_OVER: frozenset({WorkState.RESUMING, WorkState.WATCHING}),
    WorkState.RESUMING: frozenset({WorkState.SETTLING, WorkState.WATCHING, WorkState.FAILING_OVER}),
    WorkState.SETTLING: frozenset({WorkState.WATCHING, WorkState.FAILING_OVER}),
}


class AgentWork:
    """What one agent does for the lead.

    Attributes:
        state: see `WorkState`; changed by the methods only.
        order: from FAILING_OVER on, the order that it executes, None if the leader was lost.
        lost_at: from FAILING_OVER on, when a quorum last received a heartbeat of the leader, on the agent's clock.
        old_tli: from RESUMING on, the timeline of the log before.
        promotion: from RESUMING on, that of the own server.
        failover: while FAILING_OVER, the run of it.
    """

    def __init__(self) -> None:
        self.state = WorkState.WATCHING
        self.order: Order | None = None
        self.lost_at = 0.0
        self.old_tli = 0
        self.promotion = Promotion(0, 0)
        self.failover: Failover | None = None

    @property
    def has_sealed(self) -> bool:
        """Whether it has sealed the timeline of the old primary, and has not taken that back."""
        if self.state is WorkState.FAILING_OVER:
            return self.failover is not None and self.failover.is_sealed
        return self.state is not WorkState.WATCHING

    @property
    def kind(self) -> str:
        """What it executes: "switchover" or "failover"."""
        return self.order.kind if self.order is not None else "failover"

    def fail_over(self, failover: "Failover | None", order: Order | None, lost_at: float) -> None:
        """Record that the agent begins to make its server the primary."""
        self._enter(WorkState.FAILING_OVER)
        self.failover, self.order, self.lost_at = failover, order, lost_at

    def promoted(self, old_tli: int, promotion: Promotion) -> None:
        """Record that the server is a primary, through which no commit has succeeded yet."""
        self._enter(WorkState.RESUMING)
        self.old_tli, self.promotion = old_tli, promotion

    def resumed(self) -> None:
        """Record that commits succeed."""
        self._enter(WorkState.SETTLING)

    def end(self) -> None:
        """Record that nothing is left to do: it was given up, was sealed off by another failover, or has settled."""
        self._enter(WorkState.WATCHING)

    def _enter(self, state: WorkState) -> None:
        if state not in TRANSITIONS[self.state]:
            raise InvariantViolation(f"an agent cannot change from {self.state.value} to {state.value}")
        self.state = state
