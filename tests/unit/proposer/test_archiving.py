"""Whom the leader names as the archiver, when it names another one, and what it believes of the archive."""

from typing import Any

from safekeeper.consensus.messages import ArchiveReport
from walproxy.proposer.archiving import (
    GONE_GRACE_S,
    INCUMBENT_GRACE_S,
    PROBLEM_GRACE_S,
    REST_S,
    STALL_S,
    Archiving,
)

SEGMENT = 1 << 20
BEGIN = 4 * SEGMENT
END = BEGIN + 10 * SEGMENT


class Table:
    """A leader's archiving.

    `commit_lsn` is what there is to archive, `news` what the last look has changed, `complaint` what the last report
    gave reason to say.
    """

    def __init__(self) -> None:
        self.now = 100.0
        self.commit_lsn = END
        self.archiving = Archiving(SEGMENT, self.now)
        self.news = ""
        self.complaint = ""

    def deliver(self, safekeeper_id: int, **changes: Any) -> None:
        report = ArchiveReport(**{"wal_begin_lsn": BEGIN, "has_archive": True} | changes)
        self.complaint = self.archiving.on_report(safekeeper_id, report, self.now)

    def looks(self, seconds: float = 0.0) -> int:
        """Let time pass; return who archives after a look."""
        self.now += seconds
        self.news = self.archiving.choose(self.commit_lsn, self.now)
        return self.archiving.archiver

    def names(self, first: int = 1, count: int = 3) -> None:
        """Hear of so many, and name the first."""
        for safekeeper_id in range(1, count + 1):
            self.deliver(safekeeper_id, is_archiver=safekeeper_id == first)
        assert self.looks() == first


def test_nobody_archives_where_nobody_has_an_archive() -> None:
    table = Table()
    for safekeeper_id in (1, 2, 3):
        table.deliver(safekeeper_id, has_archive=False)
    assert table.looks(100.0) == 0
    assert table.news == "" and table.archiving.problem == ""


def test_the_first_one_is_named_when_whoever_archives_already_had_the_time_to_say_so() -> None:
    table = Table()
    table.deliver(3)
    table.deliver(2)
    assert table.looks(INCUMBENT_GRACE_S - 0.1) == 0
    assert table.looks(0.1) == 2
    assert table.news == "safekeeper 2 is the archiver"
    assert table.looks() == 2 and table.news == ""


def test_whoever_archives_already_goes_on_at_once() -> None:
    table = Table()
    table.deliver(1)
    assert table.looks() == 0
    table.deliver(3, is_archiver=True, archived_lsn=BEGIN + 7)
    assert table.looks() == 3
    assert table.archiving.archived_lsn == BEGIN + 7


def test_one_without_a_problem_is_named_first_but_one_with_a_problem_rather_than_nobody() -> None:
    table = Table()
    table.deliver(1, problem="no key")
    assert table.looks(INCUMBENT_GRACE_S) == 1
    assert table.archiving.problem == "no key"
    table = Table()
    table.deliver(1, problem="no key")
    table.deliver(2)
    assert table.looks(INCUMBENT_GRACE_S) == 2
    assert table.archiving.problem == ""


def test_one_whose_wal_reaches_back_further_is_named_first() -> None:
    table = Table()
    table.deliver(1, wal_begin_lsn=BEGIN + SEGMENT)
    table.deliver(2)
    table.deliver(3)
    assert table.looks(INCUMBENT_GRACE_S) == 2


def test_one_that_is_gone_for_long_is_replaced_and_not_named_again_when_it_returns() -> None:
    table = Table()
    table.names()
    table.archiving.disconnected(1, table.now)
    assert table.looks(GONE_GRACE_S - 0.1) == 1
    assert table.looks(0.1) == 2
    assert table.news == "safekeeper 2 is the archiver now: safekeeper 1 is disconnected"
    table.deliver(1)
    assert table.looks(1.0) == 2 and table.news == ""


def test_a_connection_that_breaks_for_a_moment_changes_nothing() -> None:
    table = Table()
    table.names()
    for _ in range(5):
        table.archiving.disconnected(1, table.now)
        assert table.looks(GONE_GRACE_S - 0.1) == 1
        table.deliver(1, is_archiver=True)
        assert table.looks() == 1


def test_one_that_parts_twice_is_gone_since_the_first_time() -> None:
    table = Table()
    table.names()
    table.archiving.disconnected(1, table.now)
    table.now += GONE_GRACE_S - 1.0
    table.archiving.disconnected(1, table.now)
    assert table.looks(1.0) == 2


def test_one_that_comes_back_without_an_archive_is_replaced() -> None:
    table = Table()
    table.names()
    table.deliver(1, has_archive=False)
    assert table.looks() == 2


def test_nobody_takes_over_from_one_that_is_gone_if_there_is_nobody() -> None:
    table = Table()
    table.names(count=1)
    table.archiving.disconnected(1, table.now)
    assert table.looks(100.0) == 1 and table.news == ""
    table.deliver(2)
    assert table.looks() == 2


def test_a_problem_that_lasts_and_another_one_has_not_is_a_reason() -> None:
    table = Table()
    table.names()
    table.deliver(1, is_archiver=True, problem="no route")
    assert table.looks(PROBLEM_GRACE_S - 0.1) == 1
    # The same problem in other words began when it began.
    table.deliver(1, is_archiver=True, problem="no route to host")
    assert table.looks(0.1) == 2
    assert table.news == "safekeeper 2 is the archiver now: safekeeper 1 cannot archive: no route to host"
    assert table.archiving.problem == ""


def test_a_problem_that_goes_away_begins_anew() -> None:
    table = Table()
    table.names()
    table.deliver(1, is_archiver=True, problem="no route")
    table.now += PROBLEM_GRACE_S - 1.0
    table.deliver(1, is_archiver=True)
    table.deliver(1, is_archiver=True, problem="no route")
    assert table.looks(PROBLEM_GRACE_S - 1.0) == 1


def test_a_problem_that_all_have_is_no_reason() -> None:
    table = Table()
    table.names()
    for safekeeper_id in (1, 2, 3):
        table.deliver(safekeeper_id, is_archiver=safekeeper_id == 1, problem="the store is down")
    assert table.looks(10 * PROBLEM_GRACE_S) == 1
    assert table.archiving.problem == "the store is down"
    table.deliver(3)
    assert table.looks() == 3


def test_one_that_makes_no_progress_for_long_is_replaced() -> None:
    table = Table()
    table.names()
    table.deliver(1, is_archiver=True, archived_lsn=BEGIN)
    assert table.looks(STALL_S - 1.0) == 1
    table.deliver(1, is_archiver=True, archived_lsn=BEGIN + 1)
    assert table.looks(STALL_S - 0.1) == 1
    assert table.looks(0.1) == 2
    assert table.news == "safekeeper 2 is the archiver now: safekeeper 1 makes no progress"
    # It begins when it is named.
    assert table.looks(STALL_S - 0.1) == 2


def test_one_that_has_less_than_two_segments_to_archive_does_not_stall() -> None:
    table = Table()
    table.names()
    table.deliver(1, is_archiver=True, archived_lsn=END - 2 * SEGMENT + 1)
    assert table.looks(10 * STALL_S) == 1
    table.commit_lsn += 1
    assert table.looks() == 1
    assert table.looks(STALL_S) == 2


def test_a_problem_while_there_was_nothing_to_archive_is_no_stall_afterwards() -> None:
    """Simulator, archive 1033912."""
    table = Table()
    table.names()
    progress = {"is_archiver": True, "archived_lsn": END - SEGMENT}
    for safekeeper_id in (1, 2, 3):
        table.deliver(safekeeper_id, problem="the store is down", **(progress if safekeeper_id == 1 else {}))
    assert table.looks(10 * STALL_S) == 1
    for safekeeper_id in (1, 2, 3):
        table.deliver(safekeeper_id, **(progress if safekeeper_id == 1 else {}))
    table.commit_lsn += 3 * SEGMENT
    assert table.looks() == 1
    assert table.looks(STALL_S) == 2


def test_whoever_was_replaced_rests_unless_there_is_nobody_else() -> None:
    table = Table()
    table.names(count=2)
    assert table.looks(STALL_S) == 2
    table.archiving.disconnected(2, table.now)
    assert GONE_GRACE_S < REST_S and table.looks(GONE_GRACE_S) == 1
    table = Table()
    table.names(count=2)
    assert table.looks(STALL_S) == 2
    table.deliver(2, is_archiver=True, problem="no key")
    assert table.looks(PROBLEM_GRACE_S) == 2
    assert table.looks(REST_S - PROBLEM_GRACE_S) == 1


def test_only_the_archiver_is_believed_and_only_while_it_knows_that_it_is() -> None:
    table = Table()
    table.names()
    table.deliver(2, archived_lsn=END)
    table.deliver(3, is_archiver=True, archived_lsn=END)
    table.deliver(1, archived_lsn=END)
    assert table.archiving.archived_lsn == 0
    table.deliver(1, is_archiver=True, archived_lsn=BEGIN + 5)
    assert table.archiving.archived_lsn == BEGIN + 5
    table.deliver(1, is_archiver=True, archived_lsn=0)
    assert table.archiving.archived_lsn == BEGIN + 5


def test_the_archive_goes_back_when_the_archiver_says_so() -> None:
    table = Table()
    table.names()
    table.deliver(1, is_archiver=True, archived_lsn=BEGIN + 500)
    table.deliver(1, is_archiver=True, archived_lsn=BEGIN + 300)
    assert table.archiving.archived_lsn == BEGIN + 300


def test_how_far_the_archive_is_stays_known_when_another_one_is_named() -> None:
    table = Table()
    table.names()
    table.deliver(1, is_archiver=True, archived_lsn=BEGIN + 500)
    table.archiving.disconnected(1, table.now)
    assert table.looks(GONE_GRACE_S) == 2
    assert table.archiving.archived_lsn == BEGIN + 500


def test_as_long_as_nobody_knows_the_archive_any_other_member_may_be_named() -> None:
    table = Table()
    table.names()
    table.deliver(2, archive_id="b" * 32)
    assert table.complaint == ""
    table.archiving.disconnected(1, table.now)
    assert table.looks(GONE_GRACE_S) == 2


def test_one_with_another_archive_is_reported_once_and_never_named() -> None:
    table = Table()
    table.names()
    table.deliver(1, is_archiver=True, archived_lsn=BEGIN + 7, archive_id="a" * 32)
    assert (table.archiving.archived_lsn, table.archiving.archive_id) == (BEGIN + 7, "a" * 32)
    table.deliver(2, archive_id="b" * 32)
    assert table.complaint == (
        "safekeeper 2 has another archive (bbbbbbbb) than safekeeper 1 (aaaaaaaa): give all of them the same --archive"
    )
    table.deliver(2, archive_id="b" * 32)
    assert table.complaint == ""
    table.deliver(3, archive_id="a" * 32)
    assert table.complaint == ""
    table.archiving.disconnected(1, table.now)
    assert table.looks(GONE_GRACE_S) == 3
    table.archiving.disconnected(3, table.now)
    assert table.looks(GONE_GRACE_S) == 3, "its WAL would be spread over two archives"


def test_how_far_one_archive_is_says_nothing_of_the_next() -> None:
    table = Table()
    table.names()
    table.deliver(1, is_archiver=True, archived_lsn=END, archive_id="a" * 32)
    table.deliver(1, is_archiver=True, archived_lsn=0, archive_id="b" * 32)
    assert (table.archiving.archived_lsn, table.archiving.archive_id) == (0, "b" * 32)
    table.deliver(1, is_archiver=True, archived_lsn=0)
    assert table.archiving.archive_id == "b" * 32, "who has not looked says nothing of the archive"


def test_one_whose_wal_begins_exactly_where_the_archive_ends_can_go_on() -> None:
    for begin_lsn, named in ((BEGIN + SEGMENT, 2), (BEGIN + SEGMENT + 1, 3)):
        table = Table()
        table.deliver(1, is_archiver=True, archived_lsn=BEGIN + SEGMENT)
        table.deliver(2, wal_begin_lsn=begin_lsn)
        table.deliver(3)
        assert table.looks() == 1
        table.archiving.disconnected(1, table.now)
        assert table.looks(GONE_GRACE_S) == named


def test_one_that_lacks_the_next_wal_is_named_rather_than_nobody() -> None:
    table = Table()
    table.deliver(1, is_archiver=True, archived_lsn=BEGIN + SEGMENT)
    table.deliver(2, wal_begin_lsn=BEGIN + 2 * SEGMENT)
    assert table.looks() == 1
    table.archiving.disconnected(1, table.now)
    assert table.looks(GONE_GRACE_S) == 2


def test_a_problem_weighs_more_than_where_the_wal_begins() -> None:
    table = Table()
    table.deliver(1, problem="no key")
    table.deliver(2, wal_begin_lsn=BEGIN + SEGMENT)
    table.deliver(3, has_archive=False)
    assert table.looks(INCUMBENT_GRACE_S) == 2


def test_one_that_is_gone_is_replaced_by_one_with_a_problem_if_all_others_have_one() -> None:
    table = Table()
    table.names(count=2)
    table.deliver(2, problem="no key")
    table.archiving.disconnected(1, table.now)
    assert table.looks(GONE_GRACE_S) == 2
    table = Table()
    table.names()
    table.deliver(2, problem="no key")
    table.archiving.disconnected(1, table.now)
    assert table.looks(GONE_GRACE_S) == 3


def test_the_archive_of_one_that_is_named_later_is_known_if_it_has_archived_before() -> None:
    table = Table()
    table.deliver(1, problem="no key", is_archiver=True, archived_lsn=BEGIN + 1)
    assert table.looks() == 1 and table.archiving.archived_lsn == BEGIN + 1
    table.deliver(2, is_archiver=True, archived_lsn=BEGIN + 9)
    assert table.archiving.archived_lsn == BEGIN + 1
    assert table.looks(PROBLEM_GRACE_S) == 2 and table.archiving.archived_lsn == BEGIN + 9


def test_no_progress_is_counted_since_one_was_named_and_not_since_it_was_received_first() -> None:
    table = Table()
    table.deliver(1)
    table.deliver(2)
    table.now += STALL_S
    assert table.looks() == 1
    assert table.looks(STALL_S - 1.0) == 1
    assert table.looks(1.0) == 2
