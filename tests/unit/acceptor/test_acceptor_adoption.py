"""Conditions of the acceptor's answers in which several facts come together, each with its neighbours that do not."""

from typing import Any

import msgspec
import pytest

from safekeeper.acceptor.effects import (
    Close,
    DigestWal,
    FindTimedRecord,
    FlushWal,
    Persist,
    ReadWal,
    Send,
    ServeEvents,
    TruncateWal,
    WriteWal,
)
from safekeeper.acceptor.trimming import TrimRequest
from safekeeper.base.errors import InvariantViolation, RemoteProtocolError
from safekeeper.consensus.control_state import ControlState, LeaderId
from safekeeper.consensus.folder_state import FolderState
from safekeeper.consensus.membership import Membership
from safekeeper.consensus.messages import (
    DIGEST_RANGE_BYTES_MAX,
    HEARTBEAT_TIMEOUT_S,
    PROTOCOL_VERSION,
    AcceptorGreeting,
    AppendResponse,
    ArchiveAssignment,
    ArchiveReport,
    Bootstrap,
    Bootstrapped,
    DigestRequest,
    DigestResponse,
    Elected,
    EventExchange,
    FolderStates,
    PeerRead,
    PreVoteRequest,
    PreVoteResponse,
    ReadRequest,
    Refusal,
    RefusalCode,
    Standby,
    StandbyFeedback,
    TailPreVoteRequest,
    TailRequest,
)
from tests.unit.acceptor.test_acceptor import (
    BASE,
    CLUSTER,
    MEMBERS,
    NEW,
    OWN,
    P1,
    P2,
    SEGMENT,
    Bench,
    asks,
    elected,
    following,
    member,
    rebootstrap,
    undo,
)

P3 = LeaderId(3, "run3")
EVERYTHING = TrimRequest(wanted_lsn=None, keep_bytes=0, limit_bytes=None, has_archive=False)


def unflushed(flushed: int = 100, written: int = 150) -> Bench:
    """Return a member that follows P1, with WAL of which the last part is not on disk."""
    bench = following(flushed)
    bench.append(BASE + flushed, b"u" * (written - flushed))
    assert (bench.acceptor.flush_lsn, bench.acceptor.write_lsn) == (BASE + flushed, BASE + written)
    return bench


# WAL that is not on disk, when another term comes.


@pytest.mark.parametrize("votes_first", [False, True])
@pytest.mark.parametrize("start", [100, 120, 150, 170])
def test_wal_that_was_written_is_on_disk_before_another_term_is_adopted(start: int, votes_first: bool) -> None:
    bench = unflushed()
    if votes_first:
        bench.deliver(asks(P2))
        assert bench.kinds() == ["FlushWal", "Persist", "Send"]
    answer = bench.deliver(elected(P2, (1, BASE, 1), (2, BASE + start, 1)))
    assert ("FlushWal" in bench.kinds()) is not votes_first
    if not votes_first:
        assert bench.kinds()[:2] == ["FlushWal", "Persist"]
    end_lsn = BASE + min(start, 150)
    assert (answer.write_lsn, answer.flush_lsn) == (end_lsn, end_lsn)
    assert bench.acceptor.flush_lsn == bench.acceptor.write_lsn == end_lsn


def test_wal_that_was_written_is_on_disk_before_the_same_term_is_answered_on_another_connection() -> None:
    bench = unflushed()
    bench.greet(connection=2)
    answer = bench.deliver(elected(P1, (1, BASE, 1)), connection=2)
    assert bench.kinds()[0] == "FlushWal" and "Persist" not in bench.kinds()
    assert answer.flush_lsn == BASE + 150


def test_a_repeated_request_for_a_vote_reports_what_was_written_since_once_it_is_on_disk() -> None:
    bench = following(100)
    bench.deliver(asks(P2))
    bench.deliver(elected(P2, (1, BASE, 1), (2, BASE + 100, 1)))
    bench.append(BASE + 100, b"more", leader_id=P2)
    answer = bench.deliver(asks(P2))
    assert bench.kinds() == ["FlushWal", "Send"]
    assert answer.granted and answer.flush_lsn == BASE + 104
    assert bench.acceptor.leader == P2, "it is the leader's own request, which comes late"


def test_a_deposed_leader_is_refused_while_the_flush_of_a_vote_runs() -> None:
    bench = unflushed()
    effects = bench.acceptor.receive(1, asks(P2), bench.now)
    assert isinstance(next(effects), FlushWal)
    assert bench.acceptor.leader is None and bench.acceptor.leader_connection is None
    assert bench.acceptor.control.promised == P1
    assert isinstance(effects.send(None), Persist)
    assert bench.acceptor.flush_lsn == BASE + 150


def test_a_flush_that_ends_after_its_leader_is_gone_counts_and_is_answered_to_nobody() -> None:
    bench = unflushed()
    bench.acceptor.disconnected(1)
    assert bench.flush() is None and bench.effects == []
    assert bench.acceptor.flush_lsn == BASE + 150


@pytest.mark.parametrize("lsn", [BASE + 99, BASE + 151])
def test_a_flush_to_below_what_is_on_disk_or_above_what_is_written_is_noticed(lsn: int) -> None:
    bench = unflushed()
    with pytest.raises(InvariantViolation, match="outside of"):
        bench.acceptor.flushed(lsn)
    for fine_lsn in (BASE + 100, BASE + 120, BASE + 150):
        assert bench.acceptor.flushed(fine_lsn) == AppendResponse(P1, BASE + 150, fine_lsn, 0)


# A fork below what all members had.


@pytest.mark.parametrize("has_archive", [False, True])
def test_after_a_fork_below_what_all_members_had_nothing_is_removed_until_it_is_counted_again(
    has_archive: bool,
) -> None:
    size, fork_lsn = 6 * SEGMENT, BASE + 4 * SEGMENT
    bench = following(size)
    bench.record_end_of = lambda lsn: lsn + 1
    bench.timed_lsns = tuple(range(BASE, BASE + size, SEGMENT // 2))
    request = EVERYTHING._replace(has_archive=has_archive)
    bench.append(BASE + size, commit_lsn=BASE + size, truncate_lsn=BASE + size)
    bench.deliver(ArchiveAssignment(P1, 2, BASE + size))
    bench.deliver(elected(P2, (1, BASE, 1), (2, fork_lsn, 2, True)))
    assert bench.acceptor.truncate_lsn == bench.control.truncate_lsn == 0
    bench.append(fork_lsn, b"n" * 3 * SEGMENT, leader_id=P2)
    bench.flush()
    end_lsn = fork_lsn + 3 * SEGMENT
    bench.append(end_lsn, leader_id=P2, commit_lsn=end_lsn)
    assert bench.run(bench.acceptor.trim(request)) == []
    bench.append(end_lsn, leader_id=P2, commit_lsn=end_lsn, truncate_lsn=BASE + 2 * SEGMENT)
    bench.run(bench.acceptor.trim(request))
    assert bench.control.wal_begin_lsn == BASE + 2 * SEGMENT


# A cut exactly at an end of the log, and a timeline that changes there.


@pytest.mark.parametrize("tli", [1, 2])
@pytest.mark.parametrize("start", [100, 101])
def test_a_term_that_begins_where_the_log_ends_cuts_nothing_and_names_the_next_segment(start: int, tli: int) -> None:
    bench = following(100)
    bench.deliver(elected(P2, (1, BASE, 1), (2, BASE + start, tli)))
    cuts = {effect for effect in bench.effects if isinstance(effect, TruncateWal)}
    assert cuts == ({TruncateWal(BASE + 100, tli)} if start == 100 else set())
    persisted = [effect.control.truncate_to for effect in bench.effects if isinstance(effect, Persist)]
    assert persisted == ([BASE + 100, None] if (start, tli) == (100, 2) else [None])
    assert bench.acceptor.flush_lsn == BASE + 100


def test_a_connection_that_broke_where_the_timeline_changes_names_the_next_segment_again() -> None:
    history = ((1, BASE, 1), (2, BASE + 300, 2))
    bench = following(100)
    bench.deliver(elected(P2, *history))
    bench.append(BASE + 100, b"a" * 200, leader_id=P2)
    bench.flush()
    bench.greet(connection=2)
    bench.deliver(elected(P2, *history), connection=2)
    assert TruncateWal(BASE + 300, 2) in bench.effects and "Persist" not in bench.kinds()
    bench.append(BASE + 300, b"b", leader_id=P2, connection=2)
    assert bench.kinds() == ["WriteWal"], "the segment has its name already"
    bench.flush()
    bench.greet(connection=3)
    bench.deliver(elected(P2, *history), connection=3)
    assert not any(isinstance(effect, TruncateWal) for effect in bench.effects)


def test_a_log_that_is_cut_at_its_very_beginning_stays_there_and_shows_its_readers_nothing() -> None:
    bench = following(100)
    bench.record_end_of = lambda lsn: lsn + 8
    bench.append(BASE + 100, commit_lsn=BASE + 50)
    assert bench.acceptor.readable_lsn == BASE + 50
    answer = bench.deliver(elected(P2, (1, BASE, 1), (2, BASE, 2, True)))
    assert answer.flush_lsn == BASE and bench.control.wal_begin_lsn == BASE
    assert bench.acceptor.readable_lsn == BASE == bench.acceptor.commit_lsn
    bench.record_end_of = lambda lsn: 0
    bench.append(BASE, b"n" * 20, leader_id=P2)
    bench.flush()
    bench.append(BASE + 20, leader_id=P2, commit_lsn=BASE + 20)
    assert bench.acceptor.readable_lsn == BASE, "its first record is not known to be complete"


@pytest.mark.parametrize("base_lsn", [0, BASE + 1, BASE + SEGMENT - 8])
def test_a_log_begins_nowhere_but_at_the_start_of_a_segment(base_lsn: int) -> None:
    bench = member()
    before = bench.control
    with pytest.raises(RemoteProtocolError, match="a log cannot begin there"):
        bench.deliver(elected(P1, (1, BASE, 1), base_lsn=base_lsn))
    assert bench.acceptor.control == before


def test_a_commit_that_is_known_by_the_leader_is_readable_as_soon_as_it_is_elected() -> None:
    bench = following(100)
    bench.record_end_of = lambda lsn: lsn + 8
    bench.greet(connection=2)
    bench.deliver(elected(P2, (1, BASE, 1), (2, BASE + 100, 1), commit_lsn=BASE + 50), connection=2)
    assert bench.acceptor.commit_lsn == bench.acceptor.readable_lsn == BASE + 50


# Who is elected, of what.


@pytest.mark.parametrize("entries", [((1, BASE, 1),), ((1, BASE, 1), (3, BASE + 50, 1))])
def test_a_history_that_ends_in_another_term_than_its_leader_s_breaks_the_protocol(
    entries: tuple[tuple[int, int, int], ...],
) -> None:
    bench = following(100)
    with pytest.raises(RemoteProtocolError, match="with a history that ends in another term"):
        bench.deliver(elected(P2, *entries))
    assert bench.acceptor.leader == P1


@pytest.mark.parametrize(
    "entries",
    [
        ((2, BASE, 1), (1, BASE + 50, 1), (2, BASE + 60, 1)),
        ((1, BASE + 50, 1), (2, BASE, 1)),
        ((1, BASE, 2), (2, BASE + 50, 1)),
        ((1, 0, 1), (2, BASE + 50, 1)),
    ],
    ids=["terms", "positions", "timelines", "zero"],
)
def test_a_history_that_cannot_be_breaks_the_protocol_and_changes_nothing(
    entries: tuple[tuple[int, int, int], ...],
) -> None:
    bench = following(100)
    before = bench.control
    with pytest.raises(RemoteProtocolError, match="term history"):
        bench.deliver(elected(P2, *entries))
    assert bench.acceptor.control is before and bench.acceptor.leader == P1


def has_promised() -> Bench:
    bench = member()
    bench.deliver(asks(P1))
    return bench


@pytest.mark.parametrize(
    ("made", "is_refused"),
    [(member, False), (has_promised, True), (following, True)],
    ids=["nothing", "a promise", "a log"],
)
def test_a_folder_of_another_cluster_is_refused_if_it_has_promised_or_adopted_anything(
    made: Any, is_refused: bool
) -> None:
    bench = made()
    before = bench.acceptor.control
    answer = bench.deliver(elected(P2, (2, BASE, 1), cluster_id=NEW))
    if is_refused:
        assert answer.code is RefusalCode.OTHER_CLUSTER and "wipe its data folder" in answer.reason
        assert bench.kinds() == ["Send", "Close"] and bench.acceptor.control is before
    else:
        assert isinstance(answer, AppendResponse) and bench.control.cluster_id == NEW


@pytest.mark.parametrize("changes", [{"system_id": 8}, {"segment_size": SEGMENT * 2}])
@pytest.mark.parametrize("made", [member, following])
def test_a_log_of_another_postgresql_is_refused(made: Any, changes: dict[str, int]) -> None:
    bench = made()
    before = bench.acceptor.control
    answer = bench.deliver(elected(P2, (2, 2 * BASE, 1), base_lsn=2 * BASE, **changes))
    assert answer.code is RefusalCode.OTHER_SYSTEM and bench.kinds() == ["Send", "Close"]
    assert bench.acceptor.control is before


@pytest.mark.parametrize(
    ("cluster_id", "author", "generation", "is_refused"),
    [
        (CLUSTER, 5, 3, False),
        (CLUSTER, 5, 2, True),
        (CLUSTER, 4, 9, True),
        (CLUSTER, 6, 1, False),
        # The author's term of another cluster says nothing.
        (NEW, 1, 3, False),
        (NEW, 9, 2, True),
    ],
)
def test_an_older_membership_is_not_adopted(cluster_id: str, author: int, generation: int, is_refused: bool) -> None:
    own = msgspec.structs.replace(MEMBERS, author=5, generation=3)
    bench = Bench(msgspec.structs.replace(member().control, membership=own))
    bench.greet()
    theirs = msgspec.structs.replace(MEMBERS, author=author, generation=generation)
    answer = bench.deliver(elected(P1, (1, BASE, 1), membership=theirs, cluster_id=cluster_id))
    if is_refused:
        assert answer.code is RefusalCode.GENERATION and bench.kinds() == ["Send", "Close"]
        assert bench.acceptor.control.membership == own
    else:
        assert isinstance(answer, AppendResponse) and bench.control.membership == theirs


def test_the_same_history_under_a_later_membership_is_stored_without_another_adoption() -> None:
    bench = following(100)
    later = msgspec.structs.replace(MEMBERS, author=1, generation=2)
    bench.deliver(elected(P1, (1, BASE, 1), membership=later))
    assert bench.kinds() == ["Persist", "Send", "Send"]
    assert bench.control.membership == later and bench.control.promised == P1
    assert bench.append(BASE + 100, b"x", generation=1).code is RefusalCode.GENERATION


def test_the_winner_of_a_term_that_another_candidate_was_promised_is_promised_it_instead() -> None:
    bench = member()
    bench.deliver(asks(LeaderId(2, "other")))
    bench.deliver(elected(P2, (2, BASE, 1)))
    assert bench.control.promised == P2
    assert bench.deliver(asks(LeaderId(2, "other"))).promised == P2


def test_a_leader_that_follows_another_one_elsewhere_closes_no_connection_and_begins_anew() -> None:
    bench = following(100)
    bench.append(BASE + 100, sequence=7, commit_lsn=BASE + 60)
    bench.greet(connection=2)
    answer = bench.deliver(elected(P2, (1, BASE, 1), (2, BASE + 100, 1), commit_lsn=BASE + 80), connection=2)
    assert not any(isinstance(effect, Close) for effect in bench.effects)
    assert (answer.sequence, bench.acceptor.commit_lsn) == (0, BASE + 80)
    assert (bench.acceptor.leader, bench.acceptor.leader_connection) == (P2, 2)
    assert bench.append(BASE + 100, b"late").code is RefusalCode.STALE_TERM
    bench.acceptor.disconnected(1)
    assert bench.acceptor.leader == P2


def test_the_end_of_another_connection_than_the_leader_s_ends_no_leader() -> None:
    bench = following(100)
    bench.greet(connection=2)
    bench.acceptor.disconnected(2)
    assert bench.append(BASE + 100, b"x") is None and bench.kinds() == ["WriteWal"]
    with pytest.raises(RemoteProtocolError, match="before the greeting"):
        bench.deliver(asks(P2), connection=2)


# What may be removed for want of disk space while a term waits to be adopted.


@pytest.mark.parametrize("gives_up", [False, True])
@pytest.mark.parametrize("is_adopted", [False, True])
def test_wal_is_removed_for_a_term_that_lacks_space_unless_that_gives_up_wal_anew(
    gives_up: bool, is_adopted: bool
) -> None:
    size = 5 * SEGMENT
    bench = following(size)
    bench.record_end_of = lambda lsn: lsn + 1
    bench.timed_lsns = tuple(range(BASE, BASE + size, SEGMENT // 2))
    entries: tuple[tuple[Any, ...], ...] = ((1, BASE, 1), (2, BASE + size, 2, gives_up))
    if is_adopted:
        bench.deliver(elected(P2, *entries))
    bench.append(BASE + size, commit_lsn=BASE + size, truncate_lsn=BASE + size, leader_id=P2 if is_adopted else P1)
    assert bench.deliver(asks(P3)).granted
    bench.full = Persist
    answer = bench.deliver(elected(P3, *entries, (3, BASE + size, 2)))
    assert answer.code is RefusalCode.STORAGE_FULL
    bench.full = None
    assert bool(bench.run(bench.acceptor.trim(EVERYTHING))) is (is_adopted or not gives_up)


def test_wal_is_removed_for_an_append_that_lacks_space_once_the_term_that_gives_wal_up_is_adopted() -> None:
    size = 5 * SEGMENT
    bench = following(size)
    bench.record_end_of = lambda lsn: lsn + 1
    bench.timed_lsns = tuple(range(BASE, BASE + size, SEGMENT // 2))
    message = elected(P2, (1, BASE, 1), (2, BASE + size, 2, True))
    bench.full = Persist
    assert bench.deliver(message).code is RefusalCode.STORAGE_FULL
    bench.full = None
    assert isinstance(bench.deliver(message), AppendResponse)
    bench.append(BASE + size, commit_lsn=BASE + size, truncate_lsn=BASE + size, leader_id=P2)
    bench.full = WriteWal
    assert bench.append(BASE + size, b"x", leader_id=P2).code is RefusalCode.STORAGE_FULL
    bench.full = None
    assert bench.run(bench.acceptor.trim(EVERYTHING))


# Bootstraps.


@pytest.mark.parametrize(
    ("changes", "message", "is_refused"),
    [
        ({}, {}, False),
        ({"promised": P1}, {}, True),
        ({"cluster_id": NEW}, {}, True),
        ({"cluster_id": CLUSTER, "membership": MEMBERS}, {}, False),
        ({"cluster_id": CLUSTER, "membership": MEMBERS}, {"cluster_id": NEW}, True),
        ({"cluster_id": CLUSTER, "membership": msgspec.structs.replace(MEMBERS, generation=2)}, {}, True),
    ],
    ids=["empty", "promised", "another", "the same", "same members", "other members"],
)
def test_a_bootstrap_needs_an_empty_folder_or_one_of_the_same_bootstrap(
    changes: dict[str, Any], message: dict[str, Any], is_refused: bool
) -> None:
    control = msgspec.structs.replace(ControlState(safekeeper_id=1, incarnation=OWN), **changes)
    bench = Bench(control)
    bench.greet()
    before = bench.acceptor.control
    bootstrap = msgspec.structs.replace(Bootstrap(CLUSTER, 7, SEGMENT, 150000, MEMBERS), **message)
    answer = bench.deliver(bootstrap)
    if is_refused:
        assert answer.code is RefusalCode.NOT_EMPTY and bench.kinds() == ["Send"]
        assert bench.acceptor.control is before
    else:
        assert answer == Bootstrapped(CLUSTER, 1)
        assert bench.kinds() == (["Send"] if before.membership else ["Persist", "Send"])
        assert bench.control.membership == MEMBERS


def test_a_repeated_rebootstrap_is_confirmed_and_sets_nothing_aside_again() -> None:
    bench = following(100)
    bench.deliver(rebootstrap())
    assert isinstance(bench.deliver(rebootstrap()), Bootstrapped)
    assert bench.kinds() == ["Send"]


def test_what_was_archived_of_a_log_that_was_set_aside_is_not_reported_of_the_next_one_but_a_problem_is() -> None:
    bench = following(100)
    bench.append(BASE + 100, commit_lsn=BASE + 100)
    bench.run(bench.acceptor.archive_reported(BASE + 50, "a problem", "a" * 32))
    bench.deliver(rebootstrap())
    new = elected(P2, (2, BASE, 1), cluster_id=NEW, membership=Membership(2, MEMBERS.members))
    bench.deliver(new)
    (report,) = (e.message for e in bench.effects if isinstance(e, Send) and isinstance(e.message, ArchiveReport))
    assert (report.archived_lsn, report.problem) == (0, "a problem")


def test_what_was_archived_of_a_log_that_is_undone_is_not_reported_of_the_one_that_comes_back() -> None:
    bench = following(100)
    bench.append(BASE + 100, commit_lsn=BASE + 100)
    bench.deliver(rebootstrap())
    members = Membership(2, MEMBERS.members)
    bench.deliver(elected(P2, (2, BASE, 1), cluster_id=NEW, membership=members))
    bench.append(BASE, b"n" * 100, leader_id=P2, generation=2)
    bench.flush()
    bench.append(BASE + 100, leader_id=P2, generation=2, commit_lsn=BASE + 100)
    bench.run(bench.acceptor.archive_reported(BASE + 50, "", "a" * 32))
    assert isinstance(bench.deliver(undo(discard=True)), Bootstrapped)
    bench.deliver(elected(P3, (1, BASE, 1), (3, BASE + 100, 1), membership=Membership(3, MEMBERS.members)))
    assert bench.acceptor.commit_lsn == BASE + 100
    (report,) = (e.message for e in bench.effects if isinstance(e, Send) and isinstance(e.message, ArchiveReport))
    assert report.archived_lsn == 0


def test_a_cut_that_is_not_finished_is_finished_before_the_log_is_set_aside() -> None:
    bench = following(100)
    bench.full = TruncateWal
    assert bench.deliver(elected(P2, (1, BASE, 1), (2, BASE + 40, 1))).code is RefusalCode.STORAGE_FULL
    bench.full = None
    assert isinstance(bench.deliver(rebootstrap()), Bootstrapped)
    assert bench.kinds()[:4] == ["TruncateWal", "Persist", "Persist", "SetWalAside"]
    assert bench.effects[0] == TruncateWal(BASE + 40, 1)


# Greetings.


@pytest.mark.parametrize(
    ("made", "changes", "code"),
    [
        (Bench, {"system_id": 8, "segment_size": 2 * SEGMENT}, None),
        (member, {"system_id": 7, "segment_size": SEGMENT}, None),
        (member, {"system_id": 7, "segment_size": None}, None),
        (member, {"system_id": None, "segment_size": SEGMENT}, None),
        (member, {"system_id": None, "segment_size": 2 * SEGMENT}, RefusalCode.OTHER_SYSTEM),
        (member, {"system_id": 8, "segment_size": SEGMENT}, RefusalCode.OTHER_SYSTEM),
        (member, {"protocol_version": PROTOCOL_VERSION - 1}, RefusalCode.VERSION),
        (member, {"safekeeper_id": 2}, RefusalCode.WRONG_ID),
    ],
)
def test_a_greeting_is_refused_only_for_what_both_sides_know(
    made: Any, changes: dict[str, Any], code: RefusalCode | None
) -> None:
    bench = made()
    answer = bench.greet(connection=9, **changes)
    if code is None:
        assert isinstance(answer, AcceptorGreeting)
    else:
        assert answer.code is code and bench.kinds() == ["Send", "Close"]
        with pytest.raises(RemoteProtocolError, match="before the greeting"):
            bench.deliver(asks(P2), connection=9)


def test_the_state_of_a_safekeeper_is_that_of_its_membership_and_its_leader() -> None:
    empty = Bench().acceptor
    assert empty.state == "empty" and not empty.is_voter
    bench = member()
    assert bench.acceptor.state == "idle" and bench.acceptor.is_voter
    bench.deliver(elected(P1, (1, BASE, 1)))
    assert bench.acceptor.state == "following"
    bench.acceptor.disconnected(1)
    assert bench.acceptor.state == "idle"
    stranger = Bench(msgspec.structs.replace(bench.control, incarnation="9" * 32))
    assert stranger.acceptor.state == "learner" and not stranger.acceptor.is_voter


# Pre-votes.


@pytest.mark.parametrize(
    ("after_s", "is_healthy", "granted", "tail_granted"),
    [
        (HEARTBEAT_TIMEOUT_S - 0.01, True, False, False),
        (HEARTBEAT_TIMEOUT_S - 0.01, False, True, False),
        (HEARTBEAT_TIMEOUT_S, True, True, True),
        (HEARTBEAT_TIMEOUT_S, False, True, True),
    ],
)
def test_a_leader_keeps_others_away_until_the_heartbeat_timeout(
    after_s: float, is_healthy: bool, granted: bool, tail_granted: bool
) -> None:
    bench = following()
    bench.append(BASE, healthy=is_healthy)
    bench.now += after_s
    known = "run1" if not granted else ""
    assert bench.deliver(PreVoteRequest("run2")) == PreVoteResponse(granted, known)
    assert bench.deliver(TailPreVoteRequest("run2")) == PreVoteResponse(tail_granted, "" if tail_granted else "run1")


def test_a_leader_that_has_sent_wal_is_seen_since_then() -> None:
    bench = following()
    bench.record_end_of = lambda lsn: lsn + 8
    bench.now += HEARTBEAT_TIMEOUT_S
    bench.append(BASE, b"w" * 10)
    assert not bench.deliver(PreVoteRequest("run2")).granted
    bench.deliver(elected(P1, (1, BASE, 1)))
    bench.now += HEARTBEAT_TIMEOUT_S - 0.01
    assert not bench.deliver(PreVoteRequest("run2")).granted, "so it is by its Elected"


# Votes.


@pytest.mark.parametrize(
    ("own", "asked", "code"),
    [
        (None, MEMBERS, RefusalCode.NOT_A_MEMBER),
        (MEMBERS, MEMBERS, None),
        (MEMBERS, Membership(1, MEMBERS.members[1:]), RefusalCode.NOT_A_MEMBER),
    ],
)
def test_a_member_of_the_membership_of_the_request_votes(
    own: Membership | None, asked: Membership, code: RefusalCode | None
) -> None:
    control = ControlState(safekeeper_id=1, incarnation=OWN, cluster_id=CLUSTER if own else "", membership=own)
    bench = Bench(control)
    bench.greet()
    answer = bench.deliver(asks(P1, asked))
    if code is None:
        assert answer.granted and bench.control.promised == P1
    else:
        assert answer.code is code and bench.control.promised.term == 0


# What is written lazily, and what is reported.


def _commits(bench: Bench) -> None:
    bench.append(BASE + 100, commit_lsn=BASE + 50)


def _truncates(bench: Bench) -> None:
    bench.acceptor.commit_lsn = BASE + 50
    bench.run(bench.acceptor.checkpoint())
    bench.append(BASE + 100, commit_lsn=BASE + 50, truncate_lsn=BASE + 50)


def _archives(bench: Bench) -> None:
    bench.deliver(ArchiveAssignment(P1, 2, BASE + 50))


def _names_another_archive(bench: Bench) -> None:
    bench.deliver(ArchiveAssignment(P1, 2, BASE + 50))
    bench.run(bench.acceptor.checkpoint())
    bench.deliver(ArchiveAssignment(P1, 2, BASE + 50, "a" * 32))


def _learns_of_folders(bench: Bench) -> None:
    bench.deliver(FolderStates(CLUSTER, (FolderState(2, "2" * 32, 4, 1, BASE + 50),)))


@pytest.mark.parametrize("moves", [_commits, _truncates, _archives, _names_another_archive, _learns_of_folders])
def test_each_position_that_has_moved_alone_is_written_at_the_next_checkpoint_and_once(moves: Any) -> None:
    bench = following(100)
    moves(bench)
    assert "Persist" not in bench.kinds()
    bench.run(bench.acceptor.checkpoint())
    assert bench.kinds() == ["Persist"]
    acceptor, control = bench.acceptor, bench.control
    assert (control.commit_lsn, control.truncate_lsn) == (acceptor.commit_lsn, acceptor.truncate_lsn)
    assert (control.archived_lsn, control.archive_id) == (acceptor.archived_lsn, acceptor.archive_id)
    assert control.folders == tuple(acceptor.folders.values())
    assert bench.run(bench.acceptor.checkpoint()) == []


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("has_readers", [False, True])
def test_the_leader_is_sent_what_has_changed_of_the_readers_and_nothing_else(has_readers: bool, is_known: bool) -> None:
    bench = following(100)
    standbys = (Standby("a", BASE, BASE, BASE),)
    if is_known:
        bench.run(bench.acceptor.readers_changed(False, standbys))
    bench.run(bench.acceptor.readers_changed(has_readers, standbys))
    sent = [effect.message for effect in bench.effects if isinstance(effect, Send)]
    answers = [AppendResponse(P1, BASE + 100, BASE + 100, 0, True)] if has_readers else []
    assert sent == [*answers, *([] if is_known else [StandbyFeedback(standbys)])]


def test_another_archive_is_reported_although_nothing_else_has_changed() -> None:
    bench = following(100)
    for archive_id, count in (("a" * 32, 1), ("a" * 32, 0), ("b" * 32, 1)):
        bench.run(bench.acceptor.archive_reported(0, "", archive_id))
        assert len(bench.effects) == count


# Reads.


def test_a_read_is_answered_with_a_bounded_number_of_bytes() -> None:
    bench = following(3 * SEGMENT)
    for size, answered in ((SEGMENT - 1, SEGMENT - 1), (SEGMENT, SEGMENT), (SEGMENT + 1, SEGMENT)):
        answer = bench.deliver(ReadRequest(P1, 5, BASE + 7, BASE + 7 + size))
        assert bench.effects[0] == ReadWal(BASE + 7, BASE + 7 + answered)
        assert len(answer.payload) == answered


@pytest.mark.parametrize(
    ("request_", "is_fine"),
    [
        (ReadRequest(P1, 5, BASE, BASE + 100), True),
        (ReadRequest(P1, 5, BASE - 1, BASE + 100), False),
        (ReadRequest(P1, 5, BASE, BASE + 101), False),
        (DigestRequest(P1, 5, BASE, BASE + 100), True),
        (DigestRequest(P1, 5, BASE - 1, BASE + 100), False),
        (DigestRequest(P1, 5, BASE, BASE + 101), False),
        (DigestRequest(P1, 5, BASE + 50, BASE + 49), False),
        (DigestRequest(P2, 5, BASE, BASE + 100), False),
        (TailRequest(P1, 5, BASE), True),
        (TailRequest(P1, 5, BASE + 100), True),
        (TailRequest(P1, 5, BASE - 1), False),
        (TailRequest(P1, 5, BASE + 101), False),
        (TailRequest(P2, 5, BASE), False),
        (PeerRead(P1, 5, BASE, BASE + 100), True),
        (PeerRead(P1, 5, BASE - 1, BASE + 100), False),
        (PeerRead(P1, 5, BASE, BASE + 101), False),
    ],
)
def test_only_what_is_on_disk_and_retained_is_read_for_the_promised_proposer(request_: Any, is_fine: bool) -> None:
    bench = following(100)
    bench.append(BASE + 100, b"u" * 50)  # It is not on disk.
    first = next(bench.acceptor.receive(1, request_, bench.now))
    assert (not isinstance(first, Send)) is is_fine
    if not is_fine:
        assert isinstance(first, Send) and isinstance(first.message, Refusal)
        stale = request_.leader_id != P1
        assert first.message.code is (RefusalCode.STALE_TERM if stale else RefusalCode.RANGE)


@pytest.mark.parametrize(
    ("back_to_timed", "timed_lsns", "begin", "begin_at"),
    [
        (False, (BASE + SEGMENT + 5,), 3 * SEGMENT, 3 * SEGMENT),
        (True, (BASE + SEGMENT + 5,), 3 * SEGMENT, SEGMENT),
        (True, (BASE + 3 * SEGMENT + 5,), 3 * SEGMENT, 3 * SEGMENT),
        (True, (BASE + 3 * SEGMENT + 5,), SEGMENT, SEGMENT),
        (True, (), 3 * SEGMENT, 0),
    ],
)
def test_checksums_begin_with_the_segment_of_a_timed_record_if_the_leader_has_asked_for_it(
    back_to_timed: bool, timed_lsns: tuple[int, ...], begin: int, begin_at: int
) -> None:
    bench = following(4 * SEGMENT)
    bench.timed_lsns = timed_lsns
    end_lsn = BASE + 3 * SEGMENT + 100
    effects = bench.acceptor.receive(1, DigestRequest(P1, 6, BASE + begin, end_lsn, back_to_timed), bench.now)
    effect = next(effects)
    found_lsn = max(timed_lsns, default=0)
    if back_to_timed:
        assert effect == FindTimedRecord(BASE, end_lsn)
        effect = effects.send(found_lsn)
    assert effect == DigestWal(BASE + begin_at, end_lsn)
    effect = effects.send([1, 2])
    timed_lsn = found_lsn if back_to_timed else 0
    assert effect == Send(1, DigestResponse(6, BASE + begin_at, end_lsn, (1, 2), timed_lsn))


def test_checksums_are_answered_for_a_bounded_range() -> None:
    size = DIGEST_RANGE_BYTES_MAX + SEGMENT
    bench = Bench(following().control, BASE + size)
    bench.greet()
    effects = bench.acceptor.receive(1, DigestRequest(P1, 6, BASE, BASE + size), bench.now)
    assert next(effects) == DigestWal(BASE, BASE + DIGEST_RANGE_BYTES_MAX)
    sent = effects.send([])
    assert isinstance(sent, Send) and sent.message.end_lsn == BASE + DIGEST_RANGE_BYTES_MAX  # type: ignore[union-attr]


def test_the_range_of_checksums_is_bounded_from_where_it_begins_and_not_from_where_it_was_asked_for() -> None:
    size = DIGEST_RANGE_BYTES_MAX + 2 * SEGMENT
    bench = Bench(following().control, BASE + size)
    bench.greet()
    asked = DigestRequest(P1, 6, BASE + 2 * SEGMENT, BASE + size, back_to_timed=True)
    effects = bench.acceptor.receive(1, asked, bench.now)
    assert next(effects) == FindTimedRecord(BASE, BASE + size)
    timed_lsn = BASE + SEGMENT + 5
    begin_lsn, end_lsn = BASE + SEGMENT, BASE + SEGMENT + DIGEST_RANGE_BYTES_MAX
    assert effects.send(timed_lsn) == DigestWal(begin_lsn, end_lsn)
    assert effects.send([3]) == Send(1, DigestResponse(6, begin_lsn, end_lsn, (3,), timed_lsn))


# Events.


def test_events_are_exchanged_within_a_cluster_only() -> None:
    bench = following()
    bench.greet(connection=2)
    exchange = EventExchange(CLUSTER)
    assert bench.deliver(exchange, connection=2) is None and bench.effects == [ServeEvents(2, exchange)]
    answer = bench.deliver(msgspec.structs.replace(exchange, cluster_id=NEW), connection=2)
    assert answer.code is RefusalCode.OTHER_CLUSTER and bench.kinds() == ["Send"]


def test_an_older_membership_in_elected_is_refused_before_anything_of_this_term_is_done() -> None:
    bench = unflushed()
    older = msgspec.structs.replace(MEMBERS, generation=0)
    message: Elected = elected(P2, (1, BASE, 1), (2, BASE + 100, 1), membership=older)
    assert bench.deliver(message).code is RefusalCode.GENERATION
    assert bench.kinds() == ["Send", "Close"] and bench.acceptor.leader == P1
