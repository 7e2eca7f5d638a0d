"""Cuts, new beginnings, undos and trims of a log in which several facts come together, each next to its opposite."""

from typing import Any

import msgspec
import pytest

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.acceptor.effects import (
    Effect,
    FindRecordEnd,
    FindRecords,
    FindTimedRecord,
    Persist,
    ResetWal,
    SetWalAside,
    TrimWal,
    TruncateWal,
    WriteWal,
)
from safekeeper.consensus.control_state import ControlState, LeaderId
from safekeeper.consensus.membership import Membership
from safekeeper.consensus.messages import AppendResponse, ArchiveAssignment, Bootstrapped, RefusalCode
from safekeeper.consensus.term_history import HistoryEntry
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
from tests.unit.acceptor.test_acceptor_archive import ALL, END, SIZE, archived, trimmed
from tests.unit.acceptor.test_acceptor_pull import pull
from tests.unit.acceptor.test_acceptor_readers import FORK, ONE, forked

P9 = LeaderId(9, "run9")


def entries(*each: tuple[int, ...]) -> tuple[HistoryEntry, ...]:
    return tuple(HistoryEntry(*entry) for entry in each)


def restarted(history: tuple[HistoryEntry, ...], flush_lsn: int, **changes: Any) -> Bench:
    """Return a member with this history that has started again, and has greeted its next proposer."""
    last = history[-1].term
    control = msgspec.structs.replace(
        member().control, history=history, promised=LeaderId(last, f"run{last}"), wal_begin_lsn=BASE
    )
    bench = Bench(msgspec.structs.replace(control, **changes), flush_lsn)
    bench.greet()
    return bench


def kinds(bench: Bench, *wanted: type[Effect]) -> list[Effect]:
    return [effect for effect in bench.effects if isinstance(effect, wanted)]


# A log that shares nothing that this safekeeper retains.


@pytest.mark.parametrize(
    ("own", "own_forgotten_term", "forgotten_term"),
    [
        # Its last term is forgotten by the other log, in which the first entry of the timeline is left.
        (((1, BASE, 1), (2, BASE + 50, 1)), 0, 2),
        (((1, BASE, 1), (2, BASE + 50, 1)), 0, 7),
        # It has itself forgotten what the other log may have in common with it.
        (((1, BASE, 1), (5, BASE + 50, 1)), 3, 0),
        # The other log has forgotten its own first entry: the term of this log's only entry.
        (((4, BASE, 1),), 0, 4),
    ],
)
@pytest.mark.parametrize("commit", [0, 100])
@pytest.mark.parametrize("gives_up", [False, True])
def test_a_log_whose_common_terms_are_forgotten_is_neither_cut_nor_replaced(
    own: tuple[tuple[int, ...], ...], own_forgotten_term: int, forgotten_term: int, commit: int, gives_up: bool
) -> None:
    commit_lsn = BASE + commit if commit else 0
    bench = restarted(entries(*own), BASE + 300, forgotten_term=own_forgotten_term, commit_lsn=commit_lsn)
    before = bench.control
    history = ((1, BASE, 1), (8, BASE + 40, 1, gives_up), (9, BASE + 400, 1))
    message = elected(P9, *history, forgotten_term=forgotten_term, settled_lsn=BASE + 401, commit_lsn=BASE + 401)
    answer = bench.deliver(message)
    assert (
        answer.code is RefusalCode.HISTORY
        and "are forgotten: when a quorum accepts WAL without it, wipe" in answer.reason
    )
    assert bench.control == before and (bench.acceptor.flush_lsn, bench.acceptor.commit_lsn) == (BASE + 300, commit_lsn)


def test_a_log_without_a_byte_has_nothing_that_could_be_forgotten() -> None:
    bench = restarted(entries((1, BASE, 1)), 0, wal_begin_lsn=0)
    answer = bench.deliver(elected(P9, (1, BASE, 1), (8, BASE + 40, 1), (9, BASE + 400, 1), forgotten_term=7))
    assert answer.flush_lsn == BASE and ResetWal(BASE, 1) in bench.effects


def test_terms_above_the_forgotten_one_show_where_two_logs_part() -> None:
    bench = restarted(entries((1, BASE, 1), (5, BASE + 50, 1)), BASE + 300, commit_lsn=BASE + 100)
    history = ((1, BASE, 1), (5, BASE + 50, 1), (9, BASE + 200, 1))
    assert bench.deliver(elected(P9, *history, forgotten_term=4)).flush_lsn == BASE + 200


@pytest.mark.parametrize(
    ("settled", "is_dropped"),
    [
        # The first byte of the term that this log lacks, not of one that it has.
        (SEGMENT, False),
        (2 * SEGMENT, False),
        (2 * SEGMENT + 1, True),
    ],
)
def test_a_term_that_this_log_has_shows_no_quorum_without_it(settled: int, is_dropped: bool) -> None:
    own = entries((1, BASE, 1), (3, BASE + SEGMENT // 2, 1))
    bench = restarted(own, BASE + 5 * SEGMENT, wal_begin_lsn=BASE + 4 * SEGMENT)
    fork = ((1, BASE, 1), (3, BASE + SEGMENT // 2, 1), (5, BASE + 2 * SEGMENT, 2, True), (9, BASE + 3 * SEGMENT, 2))
    answer = bench.deliver(elected(P9, *fork, settled_lsn=BASE + settled))
    assert isinstance(answer, AppendResponse) is is_dropped
    assert is_dropped or answer.code is RefusalCode.RANGE


def test_a_history_of_this_log_that_is_not_all_forgotten_shows_that_another_log_is_another_one() -> None:
    bench = restarted(entries((5, BASE, 1), (6, BASE + 50, 1)), BASE + 300, commit_lsn=BASE + 100)
    answer = bench.deliver(elected(P9, (3, BASE, 1), (9, BASE + 20, 1), forgotten_term=4))
    assert answer.code is RefusalCode.HISTORY and "it is another log" in answer.reason
    assert kinds(bench, FindRecords) == []


# Cuts at a position that is committed.


def test_a_cut_exactly_where_the_commits_end_loses_nothing_and_nothing_is_searched() -> None:
    """WAL that cannot be decoded there would count as a record that must not be cut."""
    bench = following(100)
    bench.append(BASE + 100, commit_lsn=BASE + 40)
    bench.record_end_of = lambda lsn: lsn
    answer = bench.deliver(elected(P2, (1, BASE, 1), (2, BASE + 40, 1)))
    assert answer.flush_lsn == BASE + 40 and kinds(bench, FindRecords) == []
    bench = following(100)
    bench.append(BASE + 100, commit_lsn=BASE + 41)
    bench.record_end_of = lambda lsn: lsn
    assert bench.deliver(elected(P2, (1, BASE, 1), (2, BASE + 40, 1))).code is RefusalCode.HISTORY


def test_an_archived_position_above_a_cut_is_cut_and_one_below_it_stays() -> None:
    for archived_lsn, kept_lsn in ((BASE + 30, BASE + 30), (BASE + 90, BASE + 40)):
        bench = following(100)
        bench.deliver(ArchiveAssignment(P1, 2, archived_lsn, "a" * 32))
        bench.deliver(elected(P2, (1, BASE, 1), (2, BASE + 40, 1)))
        assert bench.control.archived_lsn == kept_lsn and bench.control.archive_id == "a" * 32


# Where readers stop.


def test_a_fork_that_the_next_term_takes_back_no_longer_stops_readers() -> None:
    """The timeline goes on where another one had forked off: no record of another timeline begins there."""
    bench = forked(record_end_lsn=0)
    bench.adopts(ONE, HistoryEntry(3, FORK, 1))
    bench.gets(50, FORK + 50)
    assert bench.readable == (FORK + 50, 1)


def test_a_fork_above_a_cut_stops_readers_where_the_new_log_forks() -> None:
    bench = forked(record_end_lsn=0)
    bench.gets(50, FORK)
    # A cut above the fork that stops readers changes nothing of that.
    bench.adopts(ONE, HistoryEntry(2, FORK, 2), HistoryEntry(3, FORK + 20, 2))
    bench.gets(50, FORK + 60)
    assert bench.readable == (FORK, 1)


def test_pulled_wal_lets_readers_pass_a_fork_whose_record_was_committed_by_a_flush() -> None:
    bench = following(20)
    bench.record_end_of = lambda lsn: BASE + 50 if bench.acceptor.flush_lsn >= BASE + 50 else 0
    acceptor = bench.acceptor
    bench.append(BASE + 20, b"w" * 80, commit_lsn=BASE + 100)
    bench.flush()
    assert (acceptor.commit_lsn, acceptor.readable_lsn) == (BASE + 100, BASE)
    bench.deliver(pull())
    bench.run(acceptor.pulled(P1, BASE + 100, b"p" * 10))
    assert bench.kinds() == ["WriteWal", "FindRecordEnd"]
    assert acceptor.readable_lsn == BASE + 100
    bench.run(acceptor.pulled(P1, BASE + 110, b"p" * 10))
    assert bench.kinds() == ["WriteWal"]


def test_a_heartbeat_may_begin_where_the_first_pull_of_a_term_did_also_after_another_one() -> None:
    bench = following(100)
    bench.deliver(pull())
    bench.run(bench.acceptor.pulled(P1, BASE + 100, b"p" * 100))
    bench.deliver(pull())
    for begin in (100, 150, 200):
        assert isinstance(bench.append(BASE + begin, sequence=begin), AppendResponse)


def test_an_append_that_ends_where_the_timeline_changes_neither_flushes_nor_names_a_segment() -> None:
    bench = following(100)
    bench.deliver(asks(P2))
    bench.deliver(elected(P2, (1, BASE, 1), (2, BASE + 300, 2)))
    bench.append(BASE + 100, b"a" * 200, leader_id=P2)
    assert bench.kinds() == ["WriteWal"]
    bench.append(BASE + 300, b"b", leader_id=P2)
    assert bench.kinds() == ["FlushWal", "TruncateWal", "WriteWal"], "nothing is written before the change"


def test_an_append_over_two_changes_of_timeline_names_a_segment_for_each() -> None:
    bench = following(100)
    bench.deliver(asks(P9))
    bench.deliver(elected(P9, (1, BASE, 1), (5, BASE + 200, 2), (9, BASE + 300, 3)))
    bench.append(BASE + 100, b"a" * 100 + b"b" * 100 + b"c" * 50, leader_id=P9)
    assert bench.kinds() == ["WriteWal", "FlushWal", "TruncateWal"] * 2 + ["WriteWal"]
    assert kinds(bench, TruncateWal) == [TruncateWal(BASE + 200, 2), TruncateWal(BASE + 300, 3)]
    assert [bytes(e.payload[:1]) for e in bench.effects if isinstance(e, WriteWal)] == [b"a", b"b", b"c"]
    assert bench.acceptor.write_lsn == BASE + 350 and bench.acceptor.flush_lsn == BASE + 300


# Starts.


def test_a_start_names_the_last_segment_and_settles_forks_before_it_removes_what_is_old() -> None:
    control = msgspec.structs.replace(
        member().control, history=entries((1, BASE, 1), (2, BASE + 100, 2)), promised=P2, wal_begin_lsn=BASE
    )
    bench = Bench(msgspec.structs.replace(control, commit_lsn=BASE + 60), BASE + 100, lambda lsn: lsn + 8)
    assert bench.effects[:3] == [TruncateWal(BASE + 100, 2), FindRecordEnd(BASE), TrimWal(BASE)]
    assert bench.kinds()[3:] == ["Persist"] and bench.control.starts == control.starts + 1
    bench = Bench(control, 0)
    assert bench.kinds() == ["Persist"], "there is no WAL"


@pytest.mark.parametrize("changes", [{"set_aside": True}, {"restore_from": NEW}, {"base_lsn": BASE + SEGMENT}])
def test_wal_that_is_found_counts_only_if_it_is_that_of_the_control_state(changes: dict[str, Any]) -> None:
    control = following(100).control
    for state, end_lsn in ((control, BASE + 100), (msgspec.structs.replace(control, **changes), 0)):
        acceptor = Acceptor(state, BASE + 100)
        assert (acceptor.write_lsn, acceptor.flush_lsn) == (end_lsn, end_lsn)


def test_wal_that_was_to_be_set_aside_is_at_the_start() -> None:
    control = msgspec.structs.replace(following(100).control, set_aside=True, history=(), wal_begin_lsn=0)
    bench = Bench(msgspec.structs.replace(control, set_aside_as="undone-x"), BASE + 100)
    assert bench.effects[0] == SetWalAside("undone-x") and bench.control.set_aside_as == ""


# Rebootstraps and undos.


def test_wal_that_could_not_be_set_aside_yet_is_not_claimed() -> None:
    bench = following(100)
    bench.greet(2)
    bench.full = SetWalAside
    assert bench.deliver(rebootstrap()).code is RefusalCode.STORAGE_FULL
    assert (bench.acceptor.write_lsn, bench.acceptor.flush_lsn, bench.control.set_aside) == (0, 0, True)
    bench.full = None
    assert isinstance(bench.deliver(rebootstrap()), Bootstrapped)


def test_positions_that_are_counted_or_verified_again_are_not_kept_for_an_undo() -> None:
    bench = archived()
    bench.run(bench.acceptor.checkpoint())
    bench.deliver(ArchiveAssignment(P1, 2, END, "a" * 32))
    assert bench.acceptor.truncate_lsn == END
    bench.deliver(rebootstrap())
    kept = bench.control.replaced
    assert kept is not None and kept.commit_lsn == END
    assert (kept.truncate_lsn, kept.archived_lsn, kept.archive_id) == (0, 0, "")
    control = bench.control
    assert (control.commit_lsn, control.truncate_lsn, control.archived_lsn, control.archive_id) == (0, 0, 0, "")


def test_a_member_without_wal_is_set_aside_and_comes_back_without_a_cut() -> None:
    bench = member()
    bench.deliver(rebootstrap())
    kept = bench.control.replaced
    assert kept is not None and kept.truncate_to is None
    bench.aside[NEW] = 0
    assert isinstance(bench.deliver(undo()), Bootstrapped)
    assert kinds(bench, TruncateWal) == [] and bench.acceptor.flush_lsn == 0


def test_a_rebootstrap_of_a_folder_that_belonged_to_no_cluster_keeps_nothing() -> None:
    bench = Bench(ControlState(safekeeper_id=1, incarnation=OWN))
    bench.greet()
    bench.deliver(rebootstrap())
    assert (bench.control.replaced, bench.control.replaced_wal) == (None, "")


def test_a_rebootstrap_of_a_cluster_that_has_wal_keeps_that_one_and_not_what_it_had_replaced() -> None:
    bench = following(100)
    bench.deliver(rebootstrap())
    bench.deliver(elected(P2, (2, BASE, 1), cluster_id=NEW, membership=rebootstrap().membership))
    bench.deliver(rebootstrap(3, "e" * 32))
    kept = bench.control.replaced
    assert kept is not None and (kept.cluster_id, bench.control.replaced_wal) == (NEW, "e" * 32)
    assert kept.replaced is None and kept.replaced_wal == ""


def settled_then_replaced() -> Bench:
    """Return a member of a cluster that has replaced another one: both have five segments, all of it committed."""
    bench = archived()
    bench.deliver(rebootstrap())
    bench.deliver(elected(P1, (1, BASE, 1), cluster_id=NEW, membership=Membership(2, MEMBERS.members)))
    bench.append(BASE, b"n" * SIZE, generation=2)
    bench.flush()
    bench.append(END, generation=2, commit_lsn=END, truncate_lsn=END)
    assert bench.acceptor.readable_lsn == END
    return bench


def test_a_log_that_comes_back_is_searched_from_its_own_beginning_for_a_record_with_a_time() -> None:
    bench = settled_then_replaced()
    bench.deliver(ArchiveAssignment(P1, 2, END))
    bench.timed_lsns = (END - 100,)
    bench.run(bench.acceptor.trim(ALL))
    assert kinds(bench, TrimWal), "the newer log was searched"
    bench.timed_lsns = (BASE + 100,)
    assert isinstance(bench.deliver(undo(discard=True)), Bootstrapped)
    bench.deliver(elected(P1, (1, BASE, 1), membership=Membership(3, MEMBERS.members)))
    bench.append(END, generation=3, commit_lsn=END, truncate_lsn=END)
    bench.deliver(ArchiveAssignment(P1, 2, END))
    bench.run(bench.acceptor.trim(ALL))
    assert FindTimedRecord(BASE, END) in bench.effects and kinds(bench, TrimWal) == []


def test_a_log_that_comes_back_shows_readers_nothing_before_its_first_record_is_complete() -> None:
    bench = settled_then_replaced()
    bench.record_end_of = lambda lsn: 0
    assert isinstance(bench.deliver(undo(discard=True)), Bootstrapped)
    assert bench.acceptor.commit_lsn == END and bench.acceptor.readable_lsn == BASE


@pytest.mark.parametrize("cluster_id", [CLUSTER, "e" * 32])
def test_an_undo_brings_a_log_back_only_if_it_is_that_of_the_named_cluster(cluster_id: str) -> None:
    bench = following(100)
    bench.deliver(rebootstrap())
    members = MEMBERS.members if cluster_id == CLUSTER else (MEMBERS.members[1], MEMBERS.members[2])
    message = msgspec.structs.replace(undo(cluster_id=cluster_id), membership=Membership(3, members))
    assert isinstance(bench.deliver(message), Bootstrapped)
    assert bench.control.cluster_id == cluster_id
    assert bench.acceptor.flush_lsn == (BASE + 100 if cluster_id == CLUSTER else 0)


def test_an_undo_keeps_what_belongs_to_the_folder_and_not_to_its_log() -> None:
    bench = following(100)
    bench.deliver(rebootstrap())
    bench.acceptor.control = msgspec.structs.replace(bench.control, starts=7)
    bench.deliver(undo())
    assert bench.control.starts == 7


# Trims.


@pytest.mark.parametrize(
    "changes",
    [
        {"timed_lsns": (BASE + 5,)},
        {"timed_lsns": ()},
        {"record_end_of": lambda lsn: 0},
    ],
    ids=["an early timed record", "no timed record", "no complete record"],
)
def test_a_trim_that_finds_nothing_to_remove_writes_nothing(changes: dict[str, Any]) -> None:
    bench = archived()
    for name, value in changes.items():
        setattr(bench, name, value)
    bench.run(bench.acceptor.trim(ALL))
    assert kinds(bench, Persist, TrimWal) == [] and bench.control.wal_begin_lsn == BASE


def test_the_search_for_a_timed_record_goes_on_where_it_ended_and_never_below_the_log_s_beginning() -> None:
    bench = trimmed()
    bench.timed_lsns = (*bench.timed_lsns, END + SEGMENT)
    bench.append(END, b"w" * 3 * SEGMENT)
    bench.flush()
    bench.append(END + 3 * SEGMENT, commit_lsn=END + 3 * SEGMENT, truncate_lsn=END + 3 * SEGMENT)
    bench.deliver(ArchiveAssignment(P1, 2, END + 3 * SEGMENT))
    bench.run(bench.acceptor.trim(ALL))
    assert kinds(bench, FindTimedRecord) == [FindTimedRecord(END, END + 3 * SEGMENT)]
    assert bench.control.wal_begin_lsn == END + SEGMENT
    bench.run(bench.acceptor.trim(ALL))
    assert kinds(bench, Persist) == []


# What is told of a log that is not all on disk.


def test_a_log_ends_with_the_term_and_the_timeline_of_its_last_byte() -> None:
    history = (HistoryEntry(1, BASE, 1), HistoryEntry(2, BASE + 200, 2, floor=1, given=3))
    for flushed, log_end in ((199, (1, 1, 0, 0)), (200, (2, 1, 1, 3)), (201, (2, 2, 1, 3))):
        bench = restarted(history, BASE + flushed)
        greeting = bench.greet()
        assert bench.acceptor.log_end == log_end
        assert (greeting.last_term, greeting.log_tli, greeting.floor, greeting.given) == log_end
        vote = bench.deliver(asks(P9))
        assert vote.granted and vote.history == history[: 2 if flushed >= 200 else 1]


@pytest.mark.parametrize("message", [rebootstrap(), undo()], ids=["rebootstrap", "undo of one that has not reached it"])
def test_a_leader_of_the_replaced_membership_is_followed_no_longer(message: Any) -> None:
    bench = following(100)
    assert isinstance(bench.deliver(message), Bootstrapped)
    assert bench.acceptor.leader is None and bench.acceptor.leader_connection is None
    assert bench.append(BASE + 100, b"x").code is RefusalCode.NOT_ADOPTED
