"""What truncate_lsn promises: every member has, or has removed itself, every byte below it of this very log.

It is checked when it changes, and when its log changes. A member that has gone on to a later log may
have cut some of it at a fork (S9): those that believed it before learn that with their own adoption.
"""

from typing import TYPE_CHECKING

from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.consensus.membership import Membership
from safekeeper.consensus.term_history import TermHistory, divergence, last_term
from tests.simulation.checks.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.checks.checkers import Checker, Log
    from tests.simulation.model.disk import ModelDisk
    from tests.simulation.model.safekeeper import SimSafekeeper
    from walproxy.proposer.leadership import Leadership


class TruncateChecker:
    """Compares what leaders and acceptors take for granted with every member's disk."""

    def __init__(self, truth: "Checker") -> None:
        self._truth = truth
        self._believed: dict[int, tuple[Lsn, TermHistory]] = {}
        self._sent: tuple[Lsn, TermHistory] = (0, ())

    def on_led(self, who: str, leadership: "Leadership") -> None:
        """A leader has handled an event: what it sends to the members is true of the term's log."""
        sent = leadership.truncate_lsn, leadership.elected.history
        if sent != self._sent:
            self._sent = sent
            self._require(who, *sent, leadership.membership)

    def on_handled(self, safekeeper: "SimSafekeeper") -> None:
        """An acceptor has handled an event: what it believes is true of its own log."""
        acceptor = safekeeper.acceptor
        if acceptor is None:
            return
        believed = acceptor.truncate_lsn, acceptor.control.history
        if self._believed.get(safekeeper.id) != believed and not self._truth.is_foreign(acceptor.control):
            self._believed[safekeeper.id] = believed
            self._require(safekeeper.name, *believed, acceptor.control.membership)

    def _require(self, who: str, lsn: Lsn, history: TermHistory, membership: Membership | None) -> None:
        if not history or lsn <= history[0].start_lsn:
            return  # There is no byte below.
        whole = self._truth.whole(history)
        is_deposed = last_term(history) < max(self._truth.won, default=0)
        for member in self._truth.members():
            control = member.disk.control
            if is_deposed and control and membership and not membership.is_voter(member.id, control.incarnation):
                continue  # A later leader goes on with a member that the one before has just removed.
            log = self._truth.log_in(member.disk)
            control = log.control if log is not None else None
            if log is not None and not _has(log, lsn, whole, self._truth.whole(control.history) if control else ()):
                raise Violation(
                    "OnEveryMember",
                    f"{who} takes it that every member has its log below {format_lsn(lsn)}, {member.name} does not",
                )


def _has(disk: "ModelDisk | Log", lsn: Lsn, history: TermHistory, own: TermHistory) -> bool:
    control = disk.control
    if control is None or last_term(own) > last_term(history):
        return True
    if control.base_lsn is not None:
        return control.base_lsn >= lsn
    end_lsn = disk.durable_lsn
    if control.truncate_to is not None:
        end_lsn = min(end_lsn, control.truncate_to)
    if end_lsn < lsn:
        return False
    parted = divergence(own, end_lsn, history)
    return parted is not None and parted.lsn >= lsn
