"""The messages between proposers and acceptors.

A connection begins with `ProposerGreeting` / `AcceptorGreeting`. Then follow, each answered on the same connection:

    Bootstrap       -> Bootstrapped       the first membership of an empty cluster (protocol step 0)
    PreVoteRequest  -> PreVoteResponse    whether another proposer is alive; changes nothing (step 2)
    TailPreVoteRequest -> PreVoteResponse whether no other proposer is alive at all (step 12)
    VoteRequest     -> VoteResponse       the promise, and the acceptor's state as of the promise (step 3)
    Elected         -> AppendResponse     the term's history, adopted (step 5)
    AppendRequest   -> AppendResponse     WAL, or a heartbeat if empty (step 7); pipelined
    Reconfigure     -> Reconfigured       the next membership of the term, on disk (step 10)
    ReadRequest     -> ReadResponse       WAL for members that lag (step 6)
    PullWal         -> PullEnded          WAL below the window, which the member reads from other members (step 6)
    PeerRead        -> ReadResponse       WAL for the member that sends this, in its leader's name (step 6)
    DigestRequest   -> DigestResponse     checksums of WAL, to verify the primary (S10)
    TailRequest     -> TailResponse       the boundaries of records, for S9 and S10
    ChangeMembers   -> MembersAnswer      an operator's change of the members, relayed to the leader (step 10)
    FolderIsOlder   -> (closed)           the data folder is an older copy: it no longer counts (step 11)
    AgentExchange   -> AgentView          what agents keep on the safekeepers; changes no consensus state (step 14)
    EventExchange   -> EventPage          events to keep, and kept ones; changes no consensus state (step 15)

Without a request, the acceptor sends its standbys' positions, `StandbyFeedback`, and the progress of its archiving,
`ArchiveReport`, to the proposer that it follows; the proposer sends all acceptors the archiver and the progress of the
archive, `ArchiveAssignment`. A `ChangeMembers` of a command is relayed to that proposer, its `MembersAnswer` back.

Both sides exchange what they know of the members' data folders, `FolderStates`: the leader when it has news, an
acceptor before each greeting and each vote, its own folder first.

Any of them can be answered by `Refusal`. After a refusal that concerns the connection the acceptor closes it, ignoring
everything that was pipelined after the refused message, and the proposer connects and greets again.

Their encoding is in safekeeper/peers/codec.py.
"""

from enum import StrEnum

import msgspec

from safekeeper.base.events import Event, KeptEvent
from safekeeper.base.lsn import Lsn
from safekeeper.consensus.control_state import LeaderId, TliHistory
from safekeeper.consensus.folder_state import FolderState
from safekeeper.consensus.membership import Member, Membership, QuorumSizes
from safekeeper.consensus.term_history import TermHistory
from safekeeper.waldecode.records import LogTail

PROTOCOL_VERSION = 6
DIGEST_PAGE_SIZE = 8192
# A proposer counts as live for so long after its last Elected or append (protocol step 2).
HEARTBEAT_TIMEOUT_S = 1.0
# One answer has the checksums of at most this much WAL.
DIGEST_RANGE_BYTES_MAX = 1 << 30


class RefusalCode(StrEnum):
    """The reasons of a refusal; each member's comment is the proposer's reaction."""

    VERSION = "version"  # counts the member as missing
    WRONG_ID = "wrong_id"  # counts it as missing: another safekeeper answers at this address
    OTHER_CLUSTER = "other_cluster"  # counts it as missing until it is wiped
    OTHER_SYSTEM = "other_system"  # counts it as missing: its WAL belongs to another PostgreSQL
    NOT_EMPTY = "not_empty"  # does not bootstrap: the acceptor has WAL or a promise
    NOT_A_MEMBER = "not_a_member"  # sends it WAL as a learner
    NO_LEADER = "no_leader"  # is no proposer: a command asks another acceptor
    GENERATION = "generation"  # greets again and receives the newer membership
    STALE_TERM = "stale_term"  # ends the term if it is its own (step 8)
    POSITION = "position"  # greets again and resends from `wanted_lsn` (S6)
    NOT_ADOPTED = "not_adopted"  # greets again and sends Elected
    HISTORY = "history"  # counts it as missing: adopting would cut committed WAL (S5)
    RANGE = "range"  # the requested WAL is not retained here
    STORAGE_FULL = "storage_full"  # greets again after a while


class ProposerGreeting(msgspec.Struct, frozen=True, tag="proposer_greeting"):
    """The proposer's identity. System and segment size are None while the proxy has not connected to its primary."""

    protocol_version: int
    proposer_id: str
    safekeeper_id: int
    system_id: int | None = None
    segment_size: int | None = None


class Replaced(msgspec.Struct, frozen=True, array_like=True):
    """The cluster that a rebootstrap has replaced on this safekeeper, and whose WAL it set aside."""

    cluster_id: str
    system_id: int
    segment_size: int
    server_version: int
    membership: Membership
    wal_begin_lsn: Lsn
    commit_lsn: Lsn


class AcceptorGreeting(msgspec.Struct, frozen=True, tag="acceptor_greeting", omit_defaults=True):
    """The acceptor's identity and state. Decides only the next term's number (step 1); `replaced` is for an undo.

    Attributes:
        log_tli: the timeline of its log's last byte, 0 without a byte.
        floor, given: of its history's last entry (H2), 0 without one.
    """

    protocol_version: int
    safekeeper_id: int
    incarnation: str
    cluster_id: str
    system_id: int
    segment_size: int
    server_version: int
    membership: Membership | None
    promised: LeaderId
    last_term: int
    wal_begin_lsn: Lsn
    flush_lsn: Lsn
    commit_lsn: Lsn
    truncate_lsn: Lsn
    replaced: Replaced | None
    log_tli: int = 0
    floor: int = 0
    given: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is no vote and no history: a bootstrap starts only from this state."""
        return self.promised.term == 0 and self.last_term == 0 and self.flush_lsn == 0


class Bootstrap(msgspec.Struct, frozen=True, tag="bootstrap"):
    """Make this acceptor a member of a cluster.

    Attributes:
        replace: even if the acceptor has WAL of another cluster (rebootstrap).
        undo: undo a rebootstrap: restore the log of the cluster that was replaced.
        discard: undo it even if WAL was written since.
    """

    cluster_id: str
    system_id: int
    segment_size: int
    server_version: int
    membership: Membership
    replace: bool = False
    undo: bool = False
    discard: bool = False


class Bootstrapped(msgspec.Struct, frozen=True, tag="bootstrapped"):
    """The membership is on disk."""

    cluster_id: str
    generation: int


class PreVoteRequest(msgspec.Struct, frozen=True, tag="pre_vote_request"):
    """Ask whether the acceptor would let this proposer be elected."""

    proposer_id: str
    takeover: bool = False


class TailPreVoteRequest(msgspec.Struct, frozen=True, tag="tail_pre_vote_request"):
    """Ask whether no other proposer is alive, so that this one may win a term without a primary."""

    proposer_id: str


class PreVoteResponse(msgspec.Struct, frozen=True, tag="pre_vote_response"):
    """`live_proposer_id` is another proposer that is alive, empty if there is none."""

    granted: bool
    live_proposer_id: str = ""


class VoteRequest(msgspec.Struct, frozen=True, tag="vote_request"):
    """Promise to follow no candidate of a lower term.

    Attributes:
        generation: of the membership whose quorum decides.
        cluster_id, membership: that cluster and membership, as the candidate knows them.
    """

    leader_id: LeaderId
    generation: int
    cluster_id: str
    membership: Membership


class VoteResponse(msgspec.Struct, frozen=True, tag="vote_response"):
    """The reply to a vote request. If granted: the acceptor's state as of the promise, all of it on disk.

    Attributes:
        leader_id: the candidate that requested the vote.
        granted: whether it received the promise.
        promised: the proposer that the acceptor follows now.
        history: its term history, cut at flush_lsn.
        forgotten_term: the highest term that was removed from `history`, 0 if none was.
        tli_histories: the timeline history files of that history.
        wal_begin_lsn, flush_lsn: the retained WAL. 0 if none.
        commit_lsn, truncate_lsn: the acceptor's present values; for checks only (S4).
    """

    leader_id: LeaderId
    granted: bool
    promised: LeaderId
    history: TermHistory = ()
    tli_histories: tuple[TliHistory, ...] = ()
    wal_begin_lsn: Lsn = 0
    flush_lsn: Lsn = 0
    commit_lsn: Lsn = 0
    truncate_lsn: Lsn = 0
    forgotten_term: int = 0


class Elected(msgspec.Struct, frozen=True, tag="elected"):
    """Reports that a majority has voted for `leader_id`; contains the history of its log.

    Attributes:
        base_lsn: where the log begins, for an acceptor that shares nothing with it or ends below it (S6).
        commit_lsn: the end of the WAL that is committed in this term, according to the proposer.
        settled_lsn: below it the log is committed, even if this term has not committed it yet: the donor had it as
            committed, or a member of the term no longer retains it. Only to check base_lsn.
        forgotten_term: the highest term that was removed from `history`, 0 if none was.
    """

    leader_id: LeaderId
    cluster_id: str
    system_id: int
    segment_size: int
    server_version: int
    membership: Membership
    history: TermHistory
    tli_histories: tuple[TliHistory, ...]
    base_lsn: Lsn
    commit_lsn: Lsn
    settled_lsn: Lsn = 0
    forgotten_term: int = 0


class AppendRequest(msgspec.Struct, frozen=True, tag="append_request", gc=False):
    """WAL from `begin_lsn` on, or a heartbeat if `payload` is empty.

    Attributes:
        sequence: returned in replies, to show which messages were received.
        healthy: the primary streams, and a quorum replied within the heartbeat timeout (step 2).
    """

    leader_id: LeaderId
    generation: int
    begin_lsn: Lsn
    commit_lsn: Lsn
    truncate_lsn: Lsn
    sequence: int
    healthy: bool
    payload: bytes | memoryview


class AppendResponse(msgspec.Struct, frozen=True, tag="append_response", gc=False):
    """The ends of the WAL of this term's log that is received (`write_lsn`) and on disk (`flush_lsn`).

    `has_readers`: readers stream from this safekeeper and need commits at once.
    """

    leader_id: LeaderId
    write_lsn: Lsn
    flush_lsn: Lsn
    sequence: int
    has_readers: bool = False


class Standby(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The last report of one standby that streams from a safekeeper; positions never exceed what it was sent.

    Attributes:
        name: its application_name, as the configuration designates it.
        write_lsn, flush_lsn, apply_lsn: received, on its disk, replayed; 0 before its first report.
        xmin, catalog_xmin: the oldest transactions that it still needs, as 64 bits (epoch, then xid); 0 if none.
    """

    name: str
    write_lsn: Lsn = 0
    flush_lsn: Lsn = 0
    apply_lsn: Lsn = 0
    xmin: int = 0
    catalog_xmin: int = 0


class StandbyFeedback(msgspec.Struct, frozen=True, tag="standby_feedback"):
    """All standbys that stream from this safekeeper now.

    Sent when they change, and when a proposer was adopted, unless the reply to that reports no readers.
    """

    standbys: tuple[Standby, ...] = ()


class ArchiveReport(msgspec.Struct, frozen=True, tag="archive_report"):
    """The beginning of a safekeeper's WAL and the progress of its archiving. Sent when it changes.

    Attributes:
        wal_begin_lsn: the first retained byte of WAL.
        has_archive: it could be the archiver.
        is_archiver: it is the archiver, according to the last assignment that it received.
        archived_lsn: all retained WAL below it is in the archive, as this safekeeper has verified; 0 if it has not.
        problem: why it could not archive at present, one line; empty if it can.
        archive_id: the random id of that archive; empty until it was read.
    """

    wal_begin_lsn: Lsn
    has_archive: bool
    is_archiver: bool = False
    archived_lsn: Lsn = 0
    problem: str = ""
    archive_id: str = ""


class Reconfigure(msgspec.Struct, frozen=True, tag="reconfigure"):
    """Persist the next membership of this term. In the order of the appends: those behind it have its generation."""

    leader_id: LeaderId
    membership: Membership


class Reconfigured(msgspec.Struct, frozen=True, tag="reconfigured"):
    """The membership is on disk."""

    leader_id: LeaderId
    generation: int


class ChangeMembers(msgspec.Struct, frozen=True, tag="change_members"):
    """Change the members to `wanted`; the acceptor relays it to the proposer that it follows.

    Attributes:
        request_id: the number of the relaying acceptor for its connection to the command; 0 from a command.
        cluster_id, generation: of the membership that the operator has seen: another one is not changed.
        wanted: the members at the end, in the order of their ids. One half of a joint membership ends that change.
        quorum_sizes: of their quorums; None: the present ones.
        force: even if too few of the new members follow, so that commits wait until more do.
        is_repeated: a leader has accepted it before; another one, or none, may lead now.
    """

    request_id: int
    cluster_id: str
    generation: int
    wanted: tuple[Member, ...]
    quorum_sizes: QuorumSizes | None = None
    force: bool = False
    is_repeated: bool = False


class MembersAnswer(msgspec.Struct, frozen=True, tag="members_answer"):
    """The leader's answer to `ChangeMembers`: it makes that change from now on, or `refusal` is why it does not."""

    request_id: int
    refusal: str = ""


class FolderStates(msgspec.Struct, frozen=True, tag="folder_states"):
    """What the sender knows of the data folders of a cluster's members; an acceptor's own is the first."""

    cluster_id: str
    folders: tuple[FolderState, ...]


class FolderIsOlder(msgspec.Struct, frozen=True, tag="folder_is_older"):
    """The leader tells an acceptor that its data folder was replaced by an older copy of itself (S8e).

    Attributes:
        known: a state that the folder had.
    """

    leader_id: LeaderId
    known: FolderState


class AgentSettingsVersion(msgspec.Struct, frozen=True, array_like=True):
    """A version of the settings that all agents share. Of two versions the one with the higher `key` is newer.

    Attributes:
        counter: one more than that of the version that was changed.
        author: random for each version, 32 hexadecimal digits: two versions may have one counter.
        content: bytes that safekeepers do not read.
    """

    counter: int
    author: str
    content: bytes

    @property
    def key(self) -> tuple[int, str]:
        """The rank among the versions of one cluster."""
        return self.counter, self.author


class AgentExchange(msgspec.Struct, frozen=True, tag="agent_exchange"):
    """Keep this agent's report and these settings for the other agents, and reply with all that is kept.

    Attributes:
        name: of the agent; empty for a command, which reports nothing.
        report: bytes that safekeepers do not read. They replace the last report of that name.
        settings: a version of the shared settings; it is kept, durably, unless a newer one is. None: none.
    """

    cluster_id: str
    name: str
    report: bytes = b""
    settings: AgentSettingsVersion | None = None


class KeptReport(msgspec.Struct, frozen=True, array_like=True):
    """The last report of an agent, and the time since it was received, in milliseconds."""

    name: str
    age_ms: int
    report: bytes


class AgentView(msgspec.Struct, frozen=True, tag="agent_view"):
    """What one safekeeper keeps for agents, and what it has of the log.

    Attributes:
        incarnation: of its data folder.
        promised: the proposer that it follows.
        leader_age_ms: the time since a proposer last reported that it is healthy (step 2), in milliseconds; since the
            start of the process if none has.
        last_term, log_tli, floor, flush_lsn, commit_lsn: as in its greeting.
        settings: the newest version that it has on disk, None if it has none.
        reports: of all agents, by name.
    """

    cluster_id: str
    incarnation: str
    promised: LeaderId
    leader_age_ms: int
    last_term: int
    log_tli: int
    floor: int
    flush_lsn: Lsn
    commit_lsn: Lsn
    settings: AgentSettingsVersion | None = None
    reports: tuple[KeptReport, ...] = ()


class EventExchange(msgspec.Struct, frozen=True, tag="event_exchange"):
    """Keep these events, and reply with kept ones.

    Attributes:
        cluster_id: of the acceptor's greeting; empty if it belongs to none.
        events: events of the sender.
        since: the number of the first kept event to reply with; None: none is requested.
    """

    cluster_id: str
    events: tuple[Event, ...] = ()
    since: int | None = None


class EventPage(msgspec.Struct, frozen=True, tag="event_page"):
    """The first kept events from the requested number on, and the number with which to continue."""

    events: tuple[KeptEvent, ...]
    next_seq: int


class ArchiveAssignment(msgspec.Struct, frozen=True, tag="archive_assignment"):
    """The archiver from now on, 0 for none, and the progress of its archive, 0 if unknown in this term."""

    leader_id: LeaderId
    archiver: int
    archived_lsn: Lsn
    archive_id: str = ""


class PullSource(msgspec.Struct, frozen=True, array_like=True):
    """A safekeeper that has WAL, and the HOST:PORT of its listener for proposers."""

    safekeeper_id: int
    address: str


class PullWal(msgspec.Struct, frozen=True, tag="pull_wal"):
    """Read committed WAL from other members, from the write position on, and append it.

    It replaces the `PullWal` before it. Answered by one `PullEnded` with the same `request_id`, unless another one, an
    `Elected`, or the end of the term or of the connection comes first.

    Attributes:
        request_id: the number of the request.
        end_lsn: where to end; at most the commit_lsn of this term.
        bytes_per_s: the limit of the rate, 0 for none.
        sources: members that have adopted the term, the preferred ones first. Without any: end the pull.
    """

    leader_id: LeaderId
    request_id: int
    end_lsn: Lsn
    bytes_per_s: int
    sources: tuple[PullSource, ...]


class PullEnded(msgspec.Struct, frozen=True, tag="pull_ended"):
    """The pull has ended at `write_lsn`: the next WAL is the leader's to send.

    Attributes:
        problem: why it has ended before its end_lsn, one line; empty if it was reached, or the leader has ended it.
    """

    leader_id: LeaderId
    request_id: int
    write_lsn: Lsn
    problem: str = ""


class PeerRead(msgspec.Struct, frozen=True, tag="peer_read"):
    """Request the WAL [begin_lsn, end_lsn) of the log of `leader_id`, from a safekeeper that has adopted that term."""

    leader_id: LeaderId
    request_id: int
    begin_lsn: Lsn
    end_lsn: Lsn


class ReadRequest(msgspec.Struct, frozen=True, tag="read_request"):
    """Request the WAL [begin_lsn, end_lsn); returned up to flush_lsn, only to the promised proposer (S7)."""

    leader_id: LeaderId
    request_id: int
    begin_lsn: Lsn
    end_lsn: Lsn


class ReadResponse(msgspec.Struct, frozen=True, tag="read_response"):
    """The WAL from `begin_lsn` on."""

    request_id: int
    begin_lsn: Lsn
    payload: bytes | memoryview


class DigestRequest(msgspec.Struct, frozen=True, tag="digest_request"):
    """Request the CRC-32C of each aligned 8 KiB page of [begin_lsn, end_lsn), cut at the range's ends.

    Attributes:
        back_to_timed: if the range contains no timed record, begin with an earlier segment: the last one in which such
            a record begins, or the first one of the log.
    """

    leader_id: LeaderId
    request_id: int
    begin_lsn: Lsn
    end_lsn: Lsn
    back_to_timed: bool = False


class DigestResponse(msgspec.Struct, frozen=True, tag="digest_response"):
    """One CRC-32C per page.

    Attributes:
        begin_lsn, end_lsn: their range; `end_lsn` is below the requested one if the range was too long for one reply.
        timed_lsn: the start of a timed record that is complete below the requested end; 0 if the log contains none, or
            if none was requested.
    """

    request_id: int
    begin_lsn: Lsn
    end_lsn: Lsn
    page_crcs: tuple[int, ...]
    timed_lsn: Lsn = 0


class TailRequest(msgspec.Struct, frozen=True, tag="tail_request"):
    """Request the boundaries of the records around `lsn`."""

    leader_id: LeaderId
    request_id: int
    lsn: Lsn


class TailResponse(msgspec.Struct, frozen=True, tag="tail_response"):
    """The records around `lsn`.

    Attributes:
        record_end_lsn: end of the record that begins at `lsn`; 0 if the log does not contain all of it.
        last_record_lsn: start of the last record that begins below `lsn`; 0 if unknown.
        log_tail: what a primary's WAL from `lsn` on must link to; None unless `lsn` is a segment's start.
    """

    request_id: int
    lsn: Lsn
    record_end_lsn: Lsn
    last_record_lsn: Lsn
    log_tail: LogTail | None = None


class Refusal(msgspec.Struct, frozen=True, tag="refusal"):
    """A request was refused: `reason` is one line for the operator."""

    code: RefusalCode
    reason: str
    promised: LeaderId
    wanted_lsn: Lsn = 0


ProposerMessage = (
    ProposerGreeting
    | Bootstrap
    | PreVoteRequest
    | TailPreVoteRequest
    | VoteRequest
    | Elected
    | AppendRequest
    | Reconfigure
    | ChangeMembers
    | MembersAnswer
    | FolderStates
    | FolderIsOlder
    | AgentExchange
    | EventExchange
    | ArchiveAssignment
    | PullWal
    | PeerRead
    | ReadRequest
    | DigestRequest
    | TailRequest
)
AcceptorMessage = (
    AcceptorGreeting
    | Bootstrapped
    | PreVoteResponse
    | VoteResponse
    | AppendResponse
    | Reconfigured
    | ChangeMembers
    | MembersAnswer
    | PullEnded
    | FolderStates
    | AgentView
    | EventPage
    | StandbyFeedback
    | ArchiveReport
    | ReadResponse
    | DigestResponse
    | TailResponse
    | Refusal
)
