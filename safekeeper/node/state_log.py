"""Log the promise, the leader, the membership and the seals of a safekeeper when they change: most are events."""

import logging
from collections.abc import Iterable, Mapping

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.base.logs import RateLimits, log_event
from safekeeper.base.lsn import LSN_MAX, Lsn, format_lsn
from safekeeper.consensus.term_history import TermHistory, describe_history

# Proposers connect to a member whose disk is full about once per second, and it refuses them.
LINES_OF_A_KIND_MAX = 10
LINES_INTERVAL_S = 60.0

_log = logging.getLogger(__name__)


class ChangeLog:
    """Remembers what was last logged of an acceptor: a `LogReaders` of its node, to which no append is reported."""

    def __init__(self, acceptor: Acceptor) -> None:
        self.wakes_at_lsn: Lsn = LSN_MAX
        self._acceptor = acceptor
        self._control = acceptor.control
        self._leader = acceptor.leader
        self._connection = acceptor.leader_connection
        self._lines = RateLimits(LINES_OF_A_KIND_MAX, LINES_INTERVAL_S)

    def update(self) -> None:
        """Log what has changed."""
        acceptor = self._acceptor
        if acceptor.control is not self._control:
            self._log_control()
        if acceptor.leader is not self._leader or acceptor.leader_connection != self._connection:
            self._log_leader()

    def _log_control(self) -> None:
        acceptor = self._acceptor
        old, new = self._control, acceptor.control
        self._control = new
        if new.promised != old.promised:
            self._log_line(f"promised {new.promised}")
        if new.incarnation != old.incarnation:
            log_event(
                _log,
                "folder-is-older",
                {"incarnation": old.incarnation},
                "the leader has found that this data folder is an older copy of itself: it is data folder %s now, and "
                "no longer the member %s; walproxy members replace %d makes it a member again",
                new.incarnation[:8],
                old.incarnation[:8],
                new.safekeeper_id,
                level=logging.WARNING,
            )
        if new.membership != old.membership and new.membership is not None:
            log_event(
                _log,
                "membership-stored",
                {"generation": new.membership.generation, "members": _listed(new.membership.ids())},
                "membership generation %d of cluster %s: safekeepers %s; this one is %s",
                new.membership.generation,
                new.cluster_id[:8],
                _listed(new.membership.ids()),
                "a voter" if acceptor.is_voter else "a learner",
            )
        self._log_floor(_floor(old.history), _floor(new.history), new.promised.term)

    def _log_floor(self, old: int, new: int, term: int) -> None:
        if new > old:
            text = f"the timelines up to {new} are sealed: no server on one of them commits again"
            self._log_line(text, "timeline-sealed", {"term": term, "floor": new})
        elif new < old:
            text = f"the timelines above {new}, up to {old}, are no longer sealed"
            self._log_line(text, "seal-cancelled", {"term": term, "floor": new})

    def _log_leader(self) -> None:
        acceptor = self._acceptor
        old, self._leader, self._connection = self._leader, acceptor.leader, acceptor.leader_connection
        write_lsn = format_lsn(acceptor.write_lsn)
        if acceptor.leader is not None:
            history = describe_history(acceptor.control.history)
            self._log_line(
                f"follows {acceptor.leader} on connection {acceptor.leader_connection} from {write_lsn}; "
                f"history {history}",
                "leader-followed",
                {"term": acceptor.leader.term, "run": acceptor.leader.proposer_id[:8], "write_lsn": write_lsn},
            )
        else:
            self._log_line(
                f"no longer follows {old}; WAL ends at {write_lsn}",
                "leader-lost",
                {"term": old.term if old is not None else 0, "write_lsn": write_lsn},
            )

    def _log_line(self, line: str, event: str = "", fields: Mapping[str, object] | None = None) -> None:
        addition = self._lines.admit(line)
        if addition is None:
            return
        if event:
            log_event(_log, event, fields or {}, "%s%s", line, addition, level=logging.INFO)
        else:
            _log.info("%s%s", line, addition)


def _listed(ids: Iterable[int]) -> str:
    return ", ".join(str(each) for each in sorted(ids))


def _floor(history: TermHistory) -> int:
    return history[-1].floor if history else 0
