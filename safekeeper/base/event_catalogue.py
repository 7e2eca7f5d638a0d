"""The kinds of events: what the programs record for an operator, with its severity, meaning and what to do. Pure.

docs/reference/events.md is generated from this table. An id is public: scripts and alerts match it, so it never changes
its meaning; a kind that is no longer recorded is removed here, and is not reused.
"""

from enum import StrEnum
from typing import Final, NamedTuple


class Severity(StrEnum):
    """How much an event matters to an operator."""

    INFO = "info"  # The state changed.
    WARNING = "warning"  # Worth acting on if it stays.
    ERROR = "error"  # A person must act.


class EventKind(NamedTuple):
    """One kind of event.

    Attributes:
        severity: of each event of this kind.
        meaning: what happened, one sentence without a full stop.
        action: what an operator does, the same; empty: nothing.
    """

    severity: Severity
    meaning: str
    action: str = ""


_INFO, _WARNING, _ERROR = Severity.INFO, Severity.WARNING, Severity.ERROR

# By id, in the order of the reference.
KINDS: Final[dict[str, EventKind]] = {
    # Of a proxy.
    "proxy-started": EventKind(_INFO, "a proxy has started"),
    "proxy-stopped": EventKind(
        _INFO, "a proxy has stopped; `exit_code` is not 0 after an error", "after an error: read its log"
    ),
    "term-won": EventKind(_INFO, "a proxy has been elected for a term"),
    "term-begun": EventKind(_INFO, "commits succeed in a new term"),
    "term-lost": EventKind(
        _WARNING, "the term of a proxy has ended", "nothing, if `term-won` of the next term follows within seconds"
    ),
    "quorum-lost": EventKind(
        _ERROR, "too few members take part: commits wait", "start the missing safekeepers or repair their network"
    ),
    "quorum-back": EventKind(_INFO, "a quorum takes part again: the commits that waited succeed"),
    "gate-lost": EventKind(
        _ERROR,
        "commits do not wait for the quorum, because of a setting of PostgreSQL: the text names it",
        "set it back: the text has the command",
    ),
    "gate-blocked": EventKind(
        _ERROR,
        "commits also wait for another standby, which is not connected",
        "start it, or remove it from `synchronous_standby_names`",
    ),
    "gate-back": EventKind(_INFO, "commits wait for the quorum again, and for nothing that is not connected"),
    "commit-timeout": EventKind(
        _WARNING, "a commit has waited for longer than its timeout", "find out which safekeepers are slow or missing"
    ),
    "member-lost": EventKind(
        _WARNING, "a safekeeper is not connected", "start it again, or repair its network, if it does not come back"
    ),
    "member-back": EventKind(_INFO, "a safekeeper that was lost, refused or without disk space takes part again"),
    "member-refused": EventKind(
        _ERROR, "a safekeeper is refused, or does not count: the text has the reason", "correct what the text names"
    ),
    "member-disk-full": EventKind(
        _ERROR, "a safekeeper refuses WAL for want of disk space", "free some space on its disk"
    ),
    "member-learner": EventKind(
        _WARNING,
        "a safekeeper receives WAL and does not count for the quorum",
        "`walproxy members replace` or `add` makes it a member",
    ),
    "members-change-begun": EventKind(_INFO, "a change of the members is under way"),
    "members-change-done": EventKind(_INFO, "a change of the members has ended"),
    "primary-streams": EventKind(_INFO, "a proxy receives WAL from a primary"),
    "primary-lost": EventKind(
        _WARNING,
        "a proxy receives no WAL: the primary is lost or restarts",
        "check the primary if it does not come back",
    ),
    "primary-refused": EventKind(
        _ERROR, "a primary is refused, because its WAL does not continue the log", "see the text"
    ),
    "timeline-switched": EventKind(_INFO, "WAL is received on another timeline: a standby has been promoted"),
    "standby-connected": EventKind(_INFO, "a standby streams from a safekeeper"),
    "standby-lost": EventKind(_WARNING, "a standby no longer streams", "check the standby if it does not come back"),
    "remote-apply-blocked": EventKind(
        _WARNING, "commits at `remote_apply` wait for a standby that does not stream", "start the standby"
    ),
    "remote-apply-resumed": EventKind(_INFO, "commits at `remote_apply` are no longer blocked"),
    "archiver-assigned": EventKind(_INFO, "a safekeeper has been made the archiver"),
    "archive-failing": EventKind(
        _WARNING, "the archiver cannot archive: the text has the reason", "repair the archive; the WAL is retained"
    ),
    "archive-well": EventKind(_INFO, "archiving has resumed"),
    # Of an agent.
    "agent-started": EventKind(_INFO, "an agent has started"),
    "agent-stopped": EventKind(_INFO, "an agent has stopped", "after an error: read its log"),
    "failover-begun": EventKind(
        _WARNING,
        "an agent promotes its standby, because the leader is lost or an operator has ordered it",
        "nothing, if `failover-done` follows",
    ),
    "failover-failed": EventKind(
        _WARNING,
        "an agent's attempt to promote its standby has failed: the text has the reason",
        "see the text; the attempt is repeated, and what it has sealed is let in again",
    ),
    "failover-done": EventKind(_INFO, "commits succeed on the server that an agent has promoted"),
    "writes-ended": EventKind(
        _ERROR,
        "an agent has ended the writes of its primary",
        "nothing, if another server leads; otherwise see the text",
    ),
    "writes-allowed": EventKind(_INFO, "an agent has allowed writes on its primary"),
    "primary-readmitted": EventKind(
        _INFO, "an agent has let its sealed primary in again, because no other server has replaced it"
    ),
    "server-rejoined": EventKind(_INFO, "an agent has made its server a standby of the leader"),
    "server-rebuilt": EventKind(_WARNING, "an agent replaces its data folder by a base backup, as ordered", "nothing"),
    # Of a safekeeper.
    "safekeeper-started": EventKind(_INFO, "a safekeeper has started"),
    "safekeeper-stopped": EventKind(_INFO, "a safekeeper has stopped in order"),
    "leader-followed": EventKind(_INFO, "a safekeeper follows the leader of a term"),
    "leader-lost": EventKind(
        _WARNING,
        "a safekeeper no longer follows a leader",
        "nothing, if `leader-followed` comes next within seconds; otherwise check the proxy",
    ),
    "membership-stored": EventKind(_INFO, "a safekeeper has stored a membership"),
    "timeline-sealed": EventKind(_INFO, "a failover has sealed timelines: no server on one of them commits again"),
    "seal-cancelled": EventKind(_INFO, "the seal of timelines has been cancelled"),
    "folder-is-older": EventKind(
        _ERROR,
        "the data folder of a safekeeper is an older copy of itself, and no longer a member",
        "`walproxy members replace`",
    ),
    "disk-full": EventKind(_ERROR, "a safekeeper lacks disk space", "free some space; writing resumes by itself"),
    "disk-space-back": EventKind(_INFO, "a safekeeper has disk space again"),
    "disk-low": EventKind(
        _WARNING, "the disk has less free space than `disk_free_warning`", "free some space, or use a larger disk"
    ),
    "wal-limit-exceeded": EventKind(
        _WARNING, "a safekeeper retains more WAL than `wal_limit`: the text has the reason", "remove the reason"
    ),
    "wal-limit-kept": EventKind(_INFO, "the retained WAL is within `wal_limit` again"),
}
