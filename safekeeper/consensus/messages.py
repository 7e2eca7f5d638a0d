"""The words that proposers and acceptors exchange.

A connection begins with `ProposerGreeting` / `AcceptorGreeting`. Then, each answered on the same connection:

    Bootstrap       -> Bootstrapped       the first membership of an empty cluster (protocol step 0)
    PreVoteRequest  -> PreVoteResponse    is another proposer alive? changes nothing (step 2)
    VoteRequest     -> VoteResponse       the promise, and the acceptor's state as of the promise (step 3)
    Elected         -> AppendResponse     the term's history, adopted (step 5)
    AppendRequest   -> AppendResponse     WAL, or a heartbeat if empty (step 7); pipelined
    ReadRequest     -> ReadResponse       WAL for members that lag (step 6)
    DigestRequest   -> DigestResponse     checksums of WAL, for the check of the primary (S10)
    TailRequest     -> TailResponse       where records begin and end, for S9 and S10

Unasked, the acceptor tells the proposer that it follows what its standbys say, `StandbyFeedback`, and how its part of
the archive goes, `ArchiveReport`; the proposer tells all who archives, and how far the archive is, `ArchiveAssignment`.

Any of them can be answered by `Refusal`. After a refusal that concerns the connection the acceptor closes it, and the
proposer greets again: nothing that was pipelined behind the refused message is looked at.

The bytes on the wire are safekeeper/peers/codec.py's business.
"""

from enum import StrEnum

import msgspec

from safekeeper.base.lsn import Lsn
from safekeeper.consensus.control_state import LeaderId, TliHistory
from safekeeper.consensus.membership import Membership
from safekeeper.consensus.term_history import TermHistory
from safekeeper.waldecode.records import LogTail

PROTOCOL_VERSION = 4
DIGEST_PAGE_SIZE = 8192
# One answer has the checksums of at most so much WAL.
DIGEST_RANGE_BYTES_MAX = 1 << 30


class RefusalCode(StrEnum):
    """Why an acceptor refuses; each member's comment says what the proposer does about it."""

    VERSION = "version"  # counts the member as missing
    WRONG_ID = "wrong_id"  # counts it as missing: another safekeeper answers at this address
    OTHER_CLUSTER = "other_cluster"  # counts it as missing until it is wiped
    OTHER_SYSTEM = "other_system"  # counts it as missing: its WAL belongs to another PostgreSQL
    NOT_EMPTY = "not_empty"  # a bootstrap over WAL or a promise: never done
    NOT_A_MEMBER = "not_a_member"  # feeds it as a learner
    GENERATION = "generation"  # greets again and learns the newer membership
    STALE_TERM = "stale_term"  # ends the term if it is its own (step 8)
    POSITION = "position"  # greets again and resends from `wanted_lsn` (S6)
    NOT_ADOPTED = "not_adopted"  # greets again and sends Elected
    HISTORY = "history"  # counts it as missing: adopting would cut committed WAL (S5)
    RANGE = "range"  # the WAL asked for is not here
    STORAGE_FULL = "storage_full"  # greets again after a while


class ProposerGreeting(msgspec.Struct, frozen=True, tag="proposer_greeting"):
    """Who asks. The identity is None while the proxy has not yet seen its primary."""

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


class AcceptorGreeting(msgspec.Struct, frozen=True, tag="acceptor_greeting"):
    """Who answers. Decides nothing but the number of the next term (step 1); `replaced` is for the operator's undo."""

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
    replaced: Replaced | None = None

    @property
    def is_empty(self) -> bool:
        """No vote and no history: the only state from which a bootstrap may start."""
        return self.promised.term == 0 and self.last_term == 0 and self.flush_lsn == 0


class Bootstrap(msgspec.Struct, frozen=True, tag="bootstrap"):
    """Make this acceptor a member of a cluster.

    Attributes:
        replace: even over what it holds: the operator's way out (rebootstrap).
        undo: take a rebootstrap back: the cluster is the one that was replaced, and its log is brought back.
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
    """Would you let this run be elected?"""

    proposer_id: str
    takeover: bool = False


class PreVoteResponse(msgspec.Struct, frozen=True, tag="pre_vote_response"):
    """`live_proposer_id` is another proposer that is alive, empty if there is none."""

    granted: bool
    live_proposer_id: str = ""


class VoteRequest(msgspec.Struct, frozen=True, tag="vote_request"):
    """Promise to follow no candidate of a lower term."""

    leader_id: LeaderId
    generation: int


class VoteResponse(msgspec.Struct, frozen=True, tag="vote_response"):
    """The answer to a vote. If granted: the acceptor's state as of the promise, all of it on disk.

    Attributes:
        leader_id: the one that asked.
        granted: whether it was promised.
        promised: the proposer that the acceptor follows now.
        history: its term history, cut at flush_lsn.
        forgotten_term: the highest term that was removed from `history`, 0 if none was.
        tli_histories: the timeline history files of that history.
        wal_begin_lsn, flush_lsn: the WAL that it keeps. 0 if none.
        commit_lsn, truncate_lsn: what it knows; for checks only (S4).
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
    """A majority has voted for `leader_id`; this is the history of its log.

    Attributes:
        base_lsn: where the log begins, for an acceptor that shares nothing with it or ends below it (S6).
        commit_lsn: what the proposer knows to be committed in this term.
        settled_lsn: below it the log is committed, whether or not this term knows it yet: the donor knew, or a member
            of the term keeps it no more. For the check of base_lsn only.
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
        sequence: echoed in answers, so that the proposer knows which of its words were heard.
        healthy: the primary streams and a quorum answered within the heartbeat timeout (step 2).
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
    """How far the WAL of this term's log is received (`write_lsn`) and on disk (`flush_lsn`).

    `has_readers`: somebody streams from this safekeeper, and is to hear of commits at once.
    """

    leader_id: LeaderId
    write_lsn: Lsn
    flush_lsn: Lsn
    sequence: int
    has_readers: bool = False


class Standby(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one standby that streams from a safekeeper has said last; positions never exceed what it was sent.

    Attributes:
        name: its application_name, as the configuration designates it.
        write_lsn, flush_lsn, apply_lsn: received, on its disk, replayed; 0 while it has not said.
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

    Sent when it changed, and when a proposer was adopted, unless the answer to that says that there are no readers.
    """

    standbys: tuple[Standby, ...] = ()


class ArchiveReport(msgspec.Struct, frozen=True, tag="archive_report"):
    """How far back a safekeeper's WAL reaches, and how its part of the archive goes. Sent when it changed.

    Attributes:
        wal_begin_lsn: the first byte of WAL that it keeps.
        has_archive: it could be the archiver.
        is_archiver: it is, as far as it knows.
        archived_lsn: below it all that is kept here is in the archive, as it has seen itself; 0 if it has not looked.
        problem: why it could not archive at present, one line; empty if it can.
        archive_id: the random id of that archive; empty if it has not looked.
    """

    wal_begin_lsn: Lsn
    has_archive: bool
    is_archiver: bool = False
    archived_lsn: Lsn = 0
    problem: str = ""
    archive_id: str = ""


class ArchiveAssignment(msgspec.Struct, frozen=True, tag="archive_assignment"):
    """The archiver from now on, 0 for none, and the progress of its archive, 0 if unknown in this term."""

    leader_id: LeaderId
    archiver: int
    archived_lsn: Lsn
    archive_id: str = ""


class ReadRequest(msgspec.Struct, frozen=True, tag="read_request"):
    """Send the WAL [begin_lsn, end_lsn); served up to flush_lsn, only to the promised proposer (S7)."""

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
    """Send the CRC-32C of each aligned 8 KiB page of [begin_lsn, end_lsn), first and last cut at the range's ends.

    Attributes:
        back_to_timed: begin with an earlier segment if no record that bears a time lies in the range: with the last one
            in which such a record begins, or with the first one of the log.
    """

    leader_id: LeaderId
    request_id: int
    begin_lsn: Lsn
    end_lsn: Lsn
    back_to_timed: bool = False


class DigestResponse(msgspec.Struct, frozen=True, tag="digest_response"):
    """One CRC-32C per page.

    Attributes:
        begin_lsn, end_lsn: what they are of; `end_lsn` is below the one asked for if the range was too long for one
            answer.
        timed_lsn: the start of a record that bears a time, complete below the end that was asked for; 0 if the log
            holds none, or if it was not asked for.
    """

    request_id: int
    begin_lsn: Lsn
    end_lsn: Lsn
    page_crcs: tuple[int, ...]
    timed_lsn: Lsn = 0


class TailRequest(msgspec.Struct, frozen=True, tag="tail_request"):
    """Where do the records around `lsn` begin and end?"""

    leader_id: LeaderId
    request_id: int
    lsn: Lsn


class TailResponse(msgspec.Struct, frozen=True, tag="tail_response"):
    """The records around `lsn`.

    Attributes:
        record_end_lsn: end of the record that begins at `lsn`; 0 if the log does not hold all of it.
        last_record_lsn: start of the last record that begins below `lsn`; 0 if unknown.
        log_tail: what a primary's WAL must link to that is known from `lsn` on only; None unless `lsn` is a segment's
            start.
    """

    request_id: int
    lsn: Lsn
    record_end_lsn: Lsn
    last_record_lsn: Lsn
    log_tail: LogTail | None = None


class Refusal(msgspec.Struct, frozen=True, tag="refusal"):
    """A request was not done, and why: `reason` is one line for a person."""

    code: RefusalCode
    reason: str
    promised: LeaderId
    wanted_lsn: Lsn = 0


ProposerMessage = (
    ProposerGreeting
    | Bootstrap
    | PreVoteRequest
    | VoteRequest
    | Elected
    | AppendRequest
    | ArchiveAssignment
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
    | StandbyFeedback
    | ArchiveReport
    | ReadResponse
    | DigestResponse
    | TailResponse
    | Refusal
)
