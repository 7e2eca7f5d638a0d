"""What happens to a commit that waits longer than `commit_timeout`. Pure.

warn        it continues to wait, and the log has it
terminate   its session is terminated: the client does not learn the outcome; the transaction stays committed locally
detach      its wait is cancelled: PostgreSQL reports success, although no quorum has the commit
fence       the primary accepts no new writes until nothing waits; what waits continues to wait

None of them rolls back: a stock server cannot. A transaction is counted once for each action.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from safekeeper.base.lsn import Lsn
from walproxy.limbo.facts import WaitingCommit

WARN, TERMINATE, DETACH, FENCE = "warn", "terminate", "detach", "fence"
ACTIONS: Final = (WARN, TERMINATE, DETACH, FENCE)


@dataclass(frozen=True)
class Decision:
    """What to do now.

    Attributes:
        fresh: the waits that have exceeded the timeout since the last decision, oldest first.
        act_on: the waits to end now, with sessions.
        fence: True to begin the fence, False to end it, None to leave it.
    """

    fresh: tuple[WaitingCommit, ...] = ()
    act_on: tuple[WaitingCommit, ...] = ()
    fence: bool | None = None


class CommitPolicy:
    """The policy of one proxy.

    Attributes:
        timeout_s: 0 for never.
        action: one of `ACTIONS`.
        is_fenced: None until known: an earlier process may have left a fence.
        counts: how many transactions each action has been applied to.
    """

    def __init__(self, timeout_s: float, action: str) -> None:
        self.timeout_s = timeout_s
        self.action = action
        self.is_fenced: bool | None = None
        self.counts = dict.fromkeys(ACTIONS, 0)
        self._counted: set[int] = set()

    def set_rule(self, timeout_s: float, action: str) -> None:
        """Change the rule; a fence of the former one ends when nothing waits."""
        self.timeout_s, self.action = timeout_s, action

    def decide(self, waits: Sequence[WaitingCommit]) -> Decision:
        """Return what to do, with all commits that wait now."""
        overdue = [wait for wait in waits if self.timeout_s and wait.waits_s >= self.timeout_s]
        # By xid alone: the position of a commit may become known later, and a session waits for one at a time.
        fresh = tuple(wait for wait in overdue if wait.xid not in self._counted)
        self._counted = {wait.xid for wait in overdue}
        fence = None
        if self.action == FENCE and overdue and self.is_fenced is not True:
            fence = True
        elif not waits and (self.is_fenced or (self.is_fenced is None and self.action == FENCE)):
            fence = False
        ends = self.action in (TERMINATE, DETACH)
        return Decision(fresh, tuple(wait for wait in overdue if wait.session is not None) if ends else (), fence)


def is_unconfirmed(wait: WaitingCommit, commit_lsn: Lsn) -> bool:
    """Return whether no quorum has confirmed a wait meanwhile: a confirm that races a timeout confirms."""
    return wait.end_lsn is None or wait.end_lsn > commit_lsn
