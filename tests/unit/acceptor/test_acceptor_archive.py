"""Old WAL at an acceptor: how it is removed, how a log skips WAL, and what is said and heard of the archive."""

import msgspec
import pytest

from safekeeper.acceptor.effects import (
    DigestWal,
    Effect,
    FindRecordEnd,
    FindRecords,
    FindTimedRecord,
    Persist,
    ResetWal,
    Send,
    TrimWal,
    TruncateWal,
    WriteWal,
)
from safekeeper.acceptor.trimming import TrimRequest
from safekeeper.base.errors import ResourceShortage, StorageFull
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.messages import (
    AppendResponse,
    ArchiveAssignment,
    ArchiveReport,
    DigestRequest,
    ReadRequest,
    RefusalCode,
    StandbyFeedback,
)
from safekeeper.consensus.term_history import HistoryEntry
from tests.unit.acceptor.test_acceptor import BASE, P1, P2, SEGMENT, Bench, asks, elected, following

SIZE = 5 * SEGMENT
END = BASE + SIZE
ALL = TrimRequest(wanted_lsn=None, keep_bytes=0, limit_bytes=None, has_archive=True)
P3 = LeaderId(3, "run3")


def reports(bench: Bench) -> list[ArchiveReport]:
    """Return what the last event made it say of the archive."""
    return [e.message for e in bench.effects if isinstance(e, Send) and isinstance(e.message, ArchiveReport)]


def archived(committed: int = SIZE) -> Bench:
    """Return a member with five segments, of which so many bytes are committed, all archived and on every member."""
    bench = following(SIZE)
    bench.record_end_of = lambda lsn: lsn + 1
    bench.timed_lsns = tuple(range(BASE, END, SEGMENT // 2))
    bench.append(END, commit_lsn=BASE + committed, truncate_lsn=BASE + committed)
    bench.deliver(ArchiveAssignment(P1, 2, END))
    return bench


def trimmed() -> Bench:
    """Return one whose log begins at BASE + 3 segments."""
    bench = archived()
    bench.run(bench.acceptor.trim(ALL))
    assert bench.control.wal_begin_lsn == BASE + 3 * SEGMENT
    return bench


# Removing WAL.


def test_where_the_wal_begins_is_on_disk_before_any_of_it_goes_and_is_reported_then() -> None:
    bench = archived()
    bench.run(bench.acceptor.trim(ALL))
    assert bench.kinds() == ["FindTimedRecord", "FindRecordEnd", "Persist", "TrimWal", "Send"]
    assert isinstance(bench.effects[2], Persist)
    assert bench.effects[2].control.wal_begin_lsn == BASE + 3 * SEGMENT
    assert bench.effects[3] == TrimWal(BASE + 3 * SEGMENT)
    assert [report.wal_begin_lsn for report in reports(bench)] == [BASE + 3 * SEGMENT]
    assert bench.run(bench.acceptor.trim(ALL)) == []


@pytest.mark.parametrize(
    ("incomplete_from", "begins_at"),
    [(BASE + 2 * SEGMENT, BASE + SEGMENT), (BASE + SEGMENT, BASE)],
)
def test_a_record_over_several_segments_is_kept_whole_until_it_is_complete(
    incomplete_from: int, begins_at: int
) -> None:
    bench = archived()
    bench.record_end_of = lambda lsn: 0 if lsn >= incomplete_from else lsn + 1
    bench.run(bench.acceptor.trim(ALL))
    assert bench.control.wal_begin_lsn == begins_at
    bench.record_end_of = lambda lsn: END + 1 if lsn >= incomplete_from else lsn + 1
    bench.run(bench.acceptor.trim(ALL))
    assert bench.control.wal_begin_lsn == begins_at, "it is complete, but not all of it is committed"
    bench.record_end_of = lambda lsn: END
    bench.run(bench.acceptor.trim(ALL))
    assert bench.control.wal_begin_lsn == BASE + 3 * SEGMENT


def test_what_was_committed_and_archived_is_on_disk_with_the_new_beginning() -> None:
    bench = archived()
    assert bench.control.commit_lsn < END
    bench.run(bench.acceptor.trim(ALL))
    control = bench.control
    assert (control.commit_lsn, control.archived_lsn, control.truncate_lsn) == (END, END, END)


@pytest.mark.parametrize(
    ("timed_lsns", "begins_at"),
    [((), BASE), ((BASE + 10,), BASE), ((BASE + 10, BASE + 2 * SEGMENT + 5), BASE + 2 * SEGMENT)],
)
def test_the_segment_of_the_last_record_that_bears_a_time_stays(timed_lsns: tuple[int, ...], begins_at: int) -> None:
    bench = archived()
    bench.timed_lsns = timed_lsns
    bench.run(bench.acceptor.trim(ALL))
    assert bench.control.wal_begin_lsn == begins_at


def test_wal_is_searched_once_for_a_record_that_bears_a_time() -> None:
    bench = archived()
    bench.timed_lsns = (BASE + 10,)
    searched = []
    for _ in range(3):
        bench.run(bench.acceptor.trim(ALL))
        searched += [e.begin_lsn for e in bench.effects if isinstance(e, FindTimedRecord)]
    last_segment_lsn = (END - 1) // SEGMENT * SEGMENT
    assert searched[0] == BASE and all(lsn >= last_segment_lsn for lsn in searched[1:])


def test_uncommitted_wal_is_never_removed() -> None:
    bench = archived(committed=2 * SEGMENT + 1)
    bench.run(bench.acceptor.trim(ALL))
    assert bench.control.wal_begin_lsn == BASE + 2 * SEGMENT


def test_no_room_to_note_the_new_beginning_leaves_everything() -> None:
    bench = archived()
    bench.full = Persist
    effects = bench.acceptor.trim(ALL)
    with pytest.raises(Exception, match="no space"):
        bench.run(effects)
    assert bench.kinds() == ["FindTimedRecord", "FindRecordEnd", "Persist"]
    assert bench.acceptor.control.wal_begin_lsn == BASE
    bench.full = None
    assert len(bench.deliver(ReadRequest(P1, 5, BASE, BASE + 10)).payload) == 10
    bench.run(bench.acceptor.trim(ALL))
    assert bench.control.wal_begin_lsn == BASE + 3 * SEGMENT


@pytest.mark.parametrize("unfinished", [{"base_lsn": BASE}, {"truncate_to": BASE + 10}, {"set_aside": True}])
def test_nothing_is_removed_while_an_adoption_is_unfinished(unfinished: dict[str, object]) -> None:
    bench = archived()
    bench.acceptor.control = msgspec.structs.replace(bench.control, **unfinished)
    assert bench.run(bench.acceptor.trim(ALL)) == []


def test_a_member_without_wal_removes_nothing() -> None:
    bench = Bench()
    assert bench.run(bench.acceptor.trim(ALL)) == []


def test_the_wal_of_a_fork_that_another_one_may_still_replace_stays() -> None:
    bench = following(SIZE)
    bench.timed_lsns = (BASE + SEGMENT, END - 1)
    fork_lsn = BASE + SEGMENT + 100
    bench.deliver(elected(P2, (1, BASE, 1), (2, fork_lsn, 2)))
    # One record that began at the fork, and is longer than a segment, is committed in part.
    bench.record_end_of = lambda lsn: 0 if lsn == fork_lsn else lsn + 1
    bench.append(fork_lsn, b"r" * 4 * SEGMENT, leader_id=P2)
    bench.flush()
    bench.append(bench.acceptor.write_lsn, leader_id=P2, commit_lsn=bench.acceptor.flush_lsn, truncate_lsn=END)
    bench.deliver(ArchiveAssignment(P2, 2, END))
    bench.run(bench.acceptor.trim(ALL))
    assert bench.control.wal_begin_lsn == BASE + SEGMENT


def test_what_was_being_removed_is_removed_at_the_start() -> None:
    again = Bench(trimmed().control, END)
    assert again.effects[-2] == TrimWal(BASE + 3 * SEGMENT)  # The last one counts the start.
    assert again.acceptor.flush_lsn == END


def test_what_was_removed_is_refused_to_who_reads() -> None:
    begin_lsn = BASE + 3 * SEGMENT
    assert trimmed().deliver(ReadRequest(P1, 5, begin_lsn - 1, END)).code is RefusalCode.RANGE
    assert trimmed().deliver(ReadRequest(P1, 5, begin_lsn, begin_lsn + 1)).begin_lsn == begin_lsn


# A log that skipped WAL (S6).

FORWARD = BASE + 8 * SEGMENT


def set_forward(bench: Bench, **changes: int) -> object:
    return bench.deliver(elected(P1, (1, BASE, 1), base_lsn=FORWARD, **changes))


@pytest.mark.parametrize("known_by", ["commit_lsn", "settled_lsn"])
def test_a_log_that_ends_below_the_oldest_wal_there_is_begins_anew_there(known_by: str) -> None:
    bench = archived()
    answer = set_forward(bench, **{known_by: FORWARD})
    assert bench.kinds()[:3] == ["Persist", "ResetWal", "Persist"]
    assert bench.effects[1] == ResetWal(FORWARD, 1)
    assert answer == AppendResponse(P1, FORWARD, FORWARD, 0)
    control = bench.control
    assert (control.base_lsn, control.wal_begin_lsn, control.commit_lsn) == (None, FORWARD, FORWARD)
    assert control.history == (HistoryEntry(1, BASE, 1),)
    # Its commits were its own; what is below is in the archive as before. What every member has is counted anew.
    assert (control.truncate_lsn, control.archived_lsn) == (0, END)
    assert bench.append(FORWARD, b"more") is None and bench.flush().flush_lsn == FORWARD + 4


def test_a_log_that_begins_anew_behind_a_fork_is_not_taken_to_be_on_every_member() -> None:
    bench = archived(SIZE - 200)
    fork = ((1, BASE, 1), (2, END - 100, 2))
    bench.deliver(elected(P2, *fork, base_lsn=FORWARD, commit_lsn=FORWARD))
    assert (bench.control.wal_begin_lsn, bench.control.archived_lsn) == (FORWARD, END - 100)
    # All members had the WAL below END of the old log; some of it was cut.
    assert bench.control.truncate_lsn == bench.acceptor.truncate_lsn == 0


def test_a_crash_while_a_log_skips_wal_is_finished_at_the_start() -> None:
    bench = archived()
    effects = bench.acceptor.receive(1, elected(P1, (1, BASE, 1), base_lsn=FORWARD, commit_lsn=FORWARD), 0.0)
    first = next(effects)
    assert isinstance(first, Persist) and first.control.base_lsn == FORWARD
    again = Bench(first.control, END)
    assert again.effects[0] == ResetWal(FORWARD, 1)
    assert (again.acceptor.flush_lsn, again.control.wal_begin_lsn) == (FORWARD, FORWARD)


def test_a_beginning_that_is_not_known_to_be_committed_is_refused_and_changes_nothing() -> None:
    bench = archived()
    before = bench.control
    answer = set_forward(bench, commit_lsn=FORWARD - 1, settled_lsn=FORWARD - 1)
    assert answer.code is RefusalCode.RANGE  # type: ignore[attr-defined]
    assert bench.control is before and bench.acceptor.flush_lsn == END


def test_a_log_that_reaches_the_oldest_wal_there_is_keeps_all_it_has() -> None:
    bench = archived()
    bench.deliver(elected(P1, (1, BASE, 1), base_lsn=END, commit_lsn=END))
    assert bench.kinds() == ["Send", "Send"]
    assert bench.control.wal_begin_lsn == BASE


def test_a_tail_that_the_new_log_lacks_is_no_reason_to_stay_behind() -> None:
    bench = following(SIZE)
    answer = bench.deliver(elected(P2, (1, BASE, 1), (2, BASE + 40, 1), base_lsn=FORWARD, settled_lsn=FORWARD))
    assert answer.flush_lsn == FORWARD
    assert not any(isinstance(effect, TruncateWal) for effect in bench.effects)


def test_committed_wal_is_not_skipped_for_a_log_that_lacks_it() -> None:
    bench = archived()
    answer = bench.deliver(elected(P2, (1, BASE, 1), (2, BASE + 40, 1), base_lsn=FORWARD, settled_lsn=FORWARD))
    assert answer.code is RefusalCode.HISTORY
    assert bench.control.history == (HistoryEntry(1, BASE, 1),)


def test_a_fork_below_what_is_kept_is_refused_and_nothing_is_looked_for_or_cut() -> None:
    bench = trimmed()
    before = bench.control
    answer = bench.deliver(elected(P2, (1, BASE, 1), (2, BASE + SEGMENT, 2), settled_lsn=END))
    assert answer.code is RefusalCode.HISTORY
    assert "is not part of the history" in answer.reason
    touched: tuple[type[Effect], ...] = (Persist, TruncateWal, FindRecords, FindRecordEnd, ResetWal)
    assert not any(isinstance(effect, touched) for effect in bench.effects)
    assert bench.control is before


def test_a_log_that_was_given_up_from_below_its_beginning_is_dropped_once_a_quorum_has_the_new_one() -> None:
    bench = trimmed()
    before, fork_lsn = bench.control, BASE + SEGMENT
    fork = ((1, BASE, 1), (2, fork_lsn, 2, True))
    answer = bench.deliver(elected(P2, *fork, base_lsn=BASE, settled_lsn=fork_lsn))
    assert answer.code is RefusalCode.RANGE
    assert "WAL was abandoned from 0/500000 on, and begins at 0/700000 on this safekeeper" in answer.reason
    assert bench.control is before
    answer = bench.deliver(elected(P2, *fork, base_lsn=BASE, settled_lsn=fork_lsn, commit_lsn=fork_lsn))
    assert answer == AppendResponse(P2, BASE, BASE, 0)
    assert ResetWal(BASE, 1) in bench.effects
    control = bench.control
    assert (control.wal_begin_lsn, control.commit_lsn, control.truncate_lsn, control.archived_lsn) == (BASE, BASE, 0, 0)


def test_it_is_dropped_as_well_once_the_new_one_was_committed_in_an_earlier_term() -> None:
    bench = trimmed()
    fork = ((1, BASE, 1), (2, BASE + SEGMENT, 2, True), (3, BASE + 2 * SEGMENT, 2))
    for settled_lsn, is_dropped in ((BASE + SEGMENT, False), (BASE + SEGMENT + 1, True)):
        answer = bench.deliver(elected(P3, *fork, base_lsn=BASE, settled_lsn=settled_lsn))
        assert isinstance(answer, AppendResponse) is is_dropped


def test_room_for_an_adoption_is_not_made_of_what_is_to_be_cut() -> None:
    bench = archived()
    assert bench.deliver(asks(P2)).granted
    bench.full = Persist
    message = elected(P2, (1, BASE, 1), (2, BASE + SEGMENT, 2, True), base_lsn=BASE, settled_lsn=BASE + SEGMENT)
    assert bench.deliver(message).code is RefusalCode.STORAGE_FULL
    # The next proxy asks for a vote, for which there is no room either.
    assert bench.deliver(asks(P3)).code is RefusalCode.STORAGE_FULL
    bench.full = None
    assert bench.run(bench.acceptor.trim(ALL)) == []


def test_nothing_is_removed_between_a_vote_and_the_next_term() -> None:
    bench = archived()
    assert bench.deliver(asks(P2)).granted
    assert bench.run(bench.acceptor.trim(ALL)) == []
    bench.deliver(elected(P2, (1, BASE, 1), (2, END, 1)))
    bench.append(END, leader_id=P2, commit_lsn=END, truncate_lsn=END)
    bench.deliver(ArchiveAssignment(P2, 2, END))
    # The leader's own request may come late, on a connection that was slow.
    assert bench.deliver(asks(P2)).granted
    assert TrimWal(BASE + 3 * SEGMENT) in bench.run(bench.acceptor.trim(ALL))


def test_nothing_is_removed_between_a_start_and_the_next_term_unless_there_is_no_room_for_that() -> None:
    bench = archived()
    bench.run(bench.acceptor.checkpoint())
    restarted = Bench(bench.control, END, bench.record_end_of)
    restarted.timed_lsns = bench.timed_lsns
    assert restarted.run(restarted.acceptor.trim(ALL)) == []
    restarted.greet()
    restarted.full = Persist
    assert restarted.deliver(asks(P2)).code is RefusalCode.STORAGE_FULL
    restarted.full = None
    assert TrimWal(BASE + 3 * SEGMENT) in restarted.run(restarted.acceptor.trim(ALL))


def test_a_lack_of_descriptors_does_not_let_wal_be_removed_before_the_next_term() -> None:
    bench = archived()
    assert bench.deliver(asks(P2)).granted
    bench.full, bench.lacks = DigestWal, ResourceShortage("too many open files")
    assert bench.deliver(DigestRequest(P2, 1, BASE, BASE + 100)).code is RefusalCode.STORAGE_FULL
    bench.full = None
    assert bench.run(bench.acceptor.trim(ALL)) == []


@pytest.mark.parametrize("lacks", [StorageFull("no space"), ResourceShortage("too many open files")])
def test_a_following_member_that_lacks_something_removes_wal(lacks: StorageFull) -> None:
    bench = archived()
    bench.full, bench.lacks = WriteWal, lacks
    assert bench.append(END, b"x").code is RefusalCode.STORAGE_FULL
    bench.full = None
    assert TrimWal(BASE + 3 * SEGMENT) in bench.run(bench.acceptor.trim(ALL))


# What is said and heard of the archive.


def test_an_adoption_is_followed_by_a_report() -> None:
    bench = following(100)
    assert reports(following()) == [ArchiveReport(BASE, has_archive=False)]
    bench.run(bench.acceptor.archive_reported(0, "no key"))
    assert reports(bench) == [ArchiveReport(BASE, has_archive=True, problem="no key")]
    bench.deliver(elected(P1, (1, BASE, 1)))
    assert reports(bench) == [ArchiveReport(BASE, has_archive=True, problem="no key")]
    kinds = [type(effect.message) for effect in bench.effects if isinstance(effect, Send)]
    assert kinds.index(AppendResponse) < kinds.index(ArchiveReport) and StandbyFeedback not in kinds


def test_after_a_start_nothing_is_known_of_the_archive() -> None:
    bench = Bench(following(100).control, BASE + 100)
    bench.greet()
    bench.deliver(elected(P1, (1, BASE, 1)))
    assert reports(bench) == [ArchiveReport(BASE, has_archive=False)]


def test_that_there_is_an_archive_is_news_although_nobody_has_looked_into_it() -> None:
    bench = following(100)
    bench.run(bench.acceptor.archive_reported(0, ""))
    assert reports(bench) == [ArchiveReport(BASE, has_archive=True)]
    bench.run(bench.acceptor.archive_reported(0, ""))
    assert reports(bench) == []


def test_only_what_has_changed_is_reported_and_only_to_a_leader() -> None:
    bench = archived()
    bench.run(bench.acceptor.archive_reported(BASE + 10, ""))
    assert [report.archived_lsn for report in reports(bench)] == [BASE + 10]
    bench.run(bench.acceptor.archive_reported(BASE + 10, ""))
    assert reports(bench) == []
    bench.run(bench.acceptor.archive_reported(BASE + 5, ""))
    assert [report.archived_lsn for report in reports(bench)] == [BASE + 5]
    bench.acceptor.disconnected(1)
    bench.run(bench.acceptor.archive_reported(BASE + 10, ""))
    assert bench.effects == []
    bench.greet(connection=2)
    bench.deliver(elected(P1, (1, BASE, 1)), connection=2)
    assert [report.archived_lsn for report in reports(bench)] == [BASE + 10]


def test_whoever_is_named_says_so_and_remains_it_without_a_leader() -> None:
    bench = following(100)
    bench.deliver(ArchiveAssignment(P1, 1, 0))
    assert bench.acceptor.is_archiver and [report.is_archiver for report in reports(bench)] == [True]
    bench.deliver(ArchiveAssignment(P1, 1, BASE))
    assert bench.effects == []
    bench.acceptor.disconnected(1)
    assert bench.acceptor.is_archiver
    bench.greet(connection=2)
    bench.deliver(elected(P2, (1, BASE, 1), (2, BASE + 100, 1)), connection=2)
    assert [report.is_archiver for report in reports(bench)] == [True]
    bench.deliver(ArchiveAssignment(P2, 2, BASE), connection=2)
    assert not bench.acceptor.is_archiver and [report.is_archiver for report in reports(bench)] == [False]


def test_how_far_the_archive_is_may_go_back_and_0_says_nothing() -> None:
    bench = following(100)
    for said, known in ((BASE + 50, BASE + 50), (0, BASE + 50), (BASE + 20, BASE + 20)):
        bench.deliver(ArchiveAssignment(P1, 2, said))
        assert bench.acceptor.archived_lsn == known
    bench.run(bench.acceptor.checkpoint())
    assert bench.control.archived_lsn == BASE + 20
    assert Bench(bench.control, BASE + 100).acceptor.archived_lsn == BASE + 20


def test_an_order_of_a_deposed_leader_or_on_an_older_connection_is_none() -> None:
    bench = following(100)
    bench.greet(connection=2)
    bench.deliver(ArchiveAssignment(P2, 1, BASE + 50))
    bench.deliver(ArchiveAssignment(P1, 1, BASE + 50), connection=2)
    assert (bench.acceptor.archiver, bench.acceptor.archived_lsn) == (0, 0)
    bench.deliver(elected(P2, (1, BASE, 1), (2, BASE + 100, 1)), connection=2)
    bench.deliver(ArchiveAssignment(P1, 1, BASE + 50))
    bench.deliver(ArchiveAssignment(P2, 1, BASE + 50))
    assert (bench.acceptor.archiver, bench.acceptor.archived_lsn) == (0, 0)
    bench.deliver(ArchiveAssignment(P2, 1, BASE + 50), connection=2)
    assert (bench.acceptor.archiver, bench.acceptor.archived_lsn) == (1, BASE + 50)


def test_what_was_archived_of_a_log_that_was_cut_is_said_of_no_other_log() -> None:
    bench = archived()
    bench.run(bench.acceptor.archive_reported(END, ""))
    fork_lsn = BASE + 2 * SEGMENT
    bench.deliver(elected(P2, (1, BASE, 1), (2, fork_lsn, 2, True)))
    assert [report.archived_lsn for report in reports(bench)] == [fork_lsn]
    assert bench.acceptor.archived_lsn == fork_lsn
    bench.append(fork_lsn, b"n" * SIZE, leader_id=P2)
    bench.flush()
    bench.append(bench.acceptor.write_lsn, leader_id=P2, commit_lsn=END)
    assert bench.acceptor.commit_lsn == END
    bench.deliver(elected(P2, (1, BASE, 1), (2, fork_lsn, 2, True)))
    assert [report.archived_lsn for report in reports(bench)] == [fork_lsn]


def test_what_was_archived_while_the_log_was_cut_is_cut_as_well() -> None:
    bench = archived()
    bench.deliver(elected(P2, (1, BASE, 1), (2, BASE + 2 * SEGMENT, 2, True)))
    bench.run(bench.acceptor.archive_reported(END, ""))
    assert [report.archived_lsn for report in reports(bench)] == [BASE + 2 * SEGMENT]


def test_how_far_another_archive_is_removes_nothing() -> None:
    bench = archived()
    bench.run(bench.acceptor.archive_reported(0, "", "a" * 32))
    bench.deliver(ArchiveAssignment(P1, 2, END, "b" * 32))
    assert bench.run(bench.acceptor.trim(ALL)) == []
    bench.deliver(ArchiveAssignment(P1, 2, END, "a" * 32))
    bench.run(bench.acceptor.trim(ALL))
    assert bench.control.wal_begin_lsn == BASE + 3 * SEGMENT
    assert (bench.control.archived_lsn, bench.control.archive_id) == (END, "a" * 32)


def test_after_a_restart_nothing_is_removed_before_it_is_known_which_archive_is_configured_now() -> None:
    bench = archived()
    bench.run(bench.acceptor.archive_reported(0, "", "a" * 32))
    bench.deliver(ArchiveAssignment(P1, 2, END, "a" * 32))
    bench.run(bench.acceptor.checkpoint())
    restarted = Bench(bench.control, END, bench.record_end_of)
    restarted.timed_lsns = bench.timed_lsns
    restarted.greet()
    restarted.deliver(elected(P1, (1, BASE, 1)))
    assert restarted.run(restarted.acceptor.trim(ALL)) == []
    restarted.run(restarted.acceptor.archive_reported(0, "", "a" * 32))
    restarted.run(restarted.acceptor.trim(ALL))
    assert restarted.control.wal_begin_lsn == BASE + 3 * SEGMENT
