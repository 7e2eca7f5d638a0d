"""A proposer's state for its shell: one value, taken at one moment, for status pages, logs and readiness.

The shell reads this and the actions, and nothing else of the state machine. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from safekeeper.base.lsn import Lsn
from safekeeper.consensus.membership import Membership
from safekeeper.consensus.term_history import TermHistory
from walproxy.proposer.leadership import Leadership
from walproxy.proposer.member_change import Target, is_settled
from walproxy.proposer.phase import Phase
from walproxy.proposer.primary import PrimaryIdentity
from walproxy.proposer.proposer import Proposer
from walproxy.proposer.roster import Peer, find_cluster
from walproxy.proposer.standbys import StandbyRow


@dataclass(frozen=True, slots=True)
class MemberView:
    """One safekeeper in the term that is led.

    Attributes:
        voter: whether it counts for the quorum; else it is a learner.
        follows: whether it has adopted the term on its present connection.
        write_lsn, flush_lsn: received by it, and durable there.
        last_response_at: the proposer's time of its last answer, None if there was none.
        refusal: why it refuses WAL, empty if it does not.
        pull_end_lsn: while it pulls WAL from other members, where that ends; else 0.
        pulled_bytes: the WAL that it has pulled in this term.
        is_catching_up: whether it needs WAL that the window no longer contains, or may have refused WAL unnoticed.
    """

    voter: bool
    follows: bool
    write_lsn: Lsn
    flush_lsn: Lsn
    last_response_at: float | None
    refusal: str
    is_catching_up: bool
    pull_end_lsn: Lsn = 0
    pulled_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ArchiveView:
    """The archive as the leader has it from its safekeepers.

    Attributes:
        archiver: the safekeeper that archives, 0 if none is named yet.
        archived_lsn: the archive contains all WAL below it, 0 if unknown.
        problem: why the archiver cannot archive, empty if it can.
    """

    archiver: int
    archived_lsn: Lsn
    problem: str


@dataclass(frozen=True, slots=True)
class TermView:
    """The term that is led.

    Attributes:
        cluster_id, membership, tli, term_start_lsn: of the term.
        wanted: the members and their quorums at the end of the change under way; the present ones without a change.
        received_lsn, commit_lsn, truncate_lsn: see `Leadership`; 0 if unknown.
        streaming: whether a primary that was verified streams.
        answers: whether a quorum has answered within the heartbeat timeout.
        is_served: whether a quorum answers and accepts WAL.
        taking_part: the ids of the members that answer and accept WAL.
        members: by safekeeper id.
        archive: None if no safekeeper has reported an archive.
        history: the terms of the log; the last entry is of this term.
    """

    cluster_id: str
    membership: Membership
    wanted: Target
    tli: int
    term_start_lsn: Lsn
    received_lsn: Lsn
    commit_lsn: Lsn
    truncate_lsn: Lsn
    streaming: bool
    answers: bool
    is_served: bool
    taking_part: frozenset[int]
    members: Mapping[int, MemberView]
    archive: ArchiveView | None
    history: TermHistory

    @property
    def is_changing(self) -> bool:
        """Whether a change of the members, or of the sizes of their quorums, is under way or wanted."""
        return not is_settled(self.membership, self.wanted)


@dataclass(frozen=True, slots=True)
class ProposerView:
    """A proposer at one moment.

    Attributes:
        state: its public name, one of those that docs/guide/operations.md lists.
        term: the last term that it requested or leads, 0 if none.
        is_spare: another proposer is alive.
        stuck: why an operator must act, empty if that is not necessary.
        primary: the primary's identity, None without a connection.
        peers: every configured safekeeper, by id.
        led: the term that it leads, None if it leads none.
        apply_rule: the designated standbys, as `remote_apply_standbys` writes them; empty if there are none.
        lacking: why remote_apply is blocked, empty if it is not; None while nothing is committed in a term.
        standbys: every known standby.
    """

    state: str
    term: int
    is_spare: bool
    stuck: str
    primary: PrimaryIdentity | None
    peers: Mapping[int, Peer]
    led: TermView | None
    apply_rule: str
    lacking: str | None
    standbys: tuple[StandbyRow, ...]


def view_of(proposer: Proposer, now: float) -> ProposerView:
    """Return the state of a proposer at `now`, for status pages, logs and readiness."""
    leadership, standbys = proposer.leadership, proposer.standbys
    return ProposerView(
        state_name(proposer, now),
        proposer.term,
        proposer.is_spare,
        proposer.stuck,
        proposer.primary,
        proposer.peers,
        _term(leadership, now) if leadership is not None else None,
        standbys.rule.text,
        standbys.lacking() if leadership is not None and leadership.commit_lsn else None,
        tuple(standbys.rows()),
    )


def state_name(proposer: Proposer, now: float) -> str:
    """Return the public name of the state, one of those that docs/guide/operations.md lists."""
    if proposer.refusal is not None:
        return "fenced"
    if proposer.primary is None:
        has_greeted = any(peer.greeting is not None for peer in proposer.peers.values())
        return "waiting_for_primary" if proposer.term or has_greeted else "connecting"
    if proposer.leadership is not None:
        if not proposer.leadership.is_served(now):
            return "waiting_for_quorum"
        return "streaming" if proposer.leadership.commit_lsn else "recovering"
    if proposer.phase is not Phase.GATHERING or proposer.is_spare:
        return "electing"
    return "waiting_for_quorum" if find_cluster(proposer.peers) is None else "electing"


def _term(leadership: Leadership, now: float) -> TermView:
    archiving = leadership.archiving
    return TermView(
        leadership.elected.cluster_id,
        leadership.membership,
        leadership.wanted,
        leadership.tli,
        leadership.term_start_lsn,
        leadership.received_lsn,
        leadership.commit_lsn,
        leadership.truncate_lsn,
        leadership.streaming,
        leadership.answers(now),
        leadership.is_served(now),
        frozenset(leadership.taking_part(now)),
        {
            i: MemberView(
                p.voter,
                p.follows,
                p.write_lsn,
                p.flush_lsn,
                p.last_response_at,
                p.refusal,
                p.is_doubted or p.sent_lsn < leadership.window_begin_lsn,
                p.pull.end_lsn if p.pull is not None else 0,
                p.pulled_bytes + (p.sent_lsn - p.pull.begin_lsn if p.pull is not None else 0),
            )
            for i, p in leadership.members.items()
        },
        ArchiveView(archiving.archiver, archiving.archived_lsn, archiving.problem) if archiving.is_configured else None,
        leadership.elected.history,
    )
