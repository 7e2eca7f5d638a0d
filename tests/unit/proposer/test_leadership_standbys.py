"""What a leader tells PostgreSQL of standbys that replay, and which reports of them count."""

import pytest

from safekeeper.consensus.messages import Standby
from tests.unit.proposer.leader_table import START, Table, at
from walproxy.proposer.actions import ReportStatus, SendAppend


def test_an_advance_of_apply_alone_is_reported_at_once_and_only_once() -> None:
    table = Table("a")
    table.acks(1, START, readers=True)
    table.receives(START + 50)
    for safekeeper_id in (1, 2):
        table.acks(safekeeper_id, START + 50, readers=safekeeper_id == 1)
    assert table.leadership.status() == ReportStatus(START + 50, START + 50, 0)
    table.deliver(1, at(START + 20))
    assert table.reports() == [ReportStatus(START + 50, START + 50, START + 20)]
    table.deliver(1, at(START + 20), Standby("other", START + 50))
    assert table.reports() == []
    table.deliver(1, at(START + 10))
    assert table.reports() == [ReportStatus(START + 50, START + 50, START + 10)]


def test_a_write_position_that_was_lowered_with_an_apply_position_is_reported_when_it_is_back() -> None:
    table = Table("a")
    table.acks(1, START, readers=True)
    table.receives(START + 100)
    for safekeeper_id in (1, 2):
        table.acks(safekeeper_id, START + 100, readers=safekeeper_id == 1, flush_lsn=START + 50)
    assert table.reports()[-1].write_lsn == START + 100
    table.leadership.disconnected(2, table.now)
    table.deliver(1, at(START + 20))
    assert [(report.write_lsn, report.apply_lsn) for report in table.reports()] == [(START + 50, START + 20)]
    table.acks(3, START + 100, flush_lsn=START + 50)
    assert [report.write_lsn for report in table.reports()] == [START + 100]


def test_apply_is_never_above_what_is_committed_and_0_before_the_terms_start_is() -> None:
    table = Table("a", answers=False)
    table.acks(1, START, readers=True)
    table.deliver(1, at(START + 90))
    assert table.reports() == [] and table.leadership.status() == ReportStatus(0, 0, 0)
    table.acks(2, START)
    assert table.reports() == [ReportStatus(START, START, START)]


def test_nobody_designated_apply_follows_flush_and_feedback_is_no_news() -> None:
    table = Table()
    table.acks(1, START, readers=True)
    table.deliver(1, at(START))
    assert table.reports() == []
    assert table.leadership.status() == ReportStatus(START, START, START)


def test_nothing_is_reported_while_the_primary_does_not_stream() -> None:
    table = Table("a")
    table.leadership.set_streaming(False)
    table.acks(1, START, readers=True)
    table.deliver(1, at(START))
    assert table.reports() == [] and table.leadership.status() == ReportStatus(0, 0, 0)
    table.leadership.set_streaming(True)
    table.take()
    assert table.reports() == [ReportStatus(START, START, START)]


def test_feedback_of_a_safekeeper_that_has_not_adopted_the_term_says_nothing_of_its_log() -> None:
    table = Table("a")
    table.leadership.disconnected(1, table.now)
    table.leadership.on_greeting((1, "1" * 32), table.now)
    table.deliver(1, at(START))
    assert table.standbys.rows() == [] and table.reports() == []


def test_an_answer_without_readers_says_that_no_standby_streams_there() -> None:
    table = Table("a")
    table.acks(1, START, readers=True)
    table.deliver(1, at(START), at(START, "other"))
    table.standbys.disconnected(1)
    table.leadership.disconnected(1, table.now)
    table.leadership.on_greeting((1, "1" * 32), table.now)
    table.deliver(2, at(START, "b"))
    table.acks(1, START)
    # They are gone, and what the designated one had replayed stays replayed.
    assert [(row.standby.name, row.connected) for row in table.standbys.rows()] == [("a", False), ("b", True)]
    assert table.leadership.status().apply_lsn == START


def test_standbys_are_still_there_if_the_first_answer_has_readers() -> None:
    table = Table()
    table.acks(1, START, readers=True)
    table.deliver(1, at(START))
    table.standbys.disconnected(1)
    table.leadership.disconnected(1, table.now)
    table.leadership.on_greeting((1, "1" * 32), table.now)
    before = [row.standby for row in table.standbys.rows()]
    table.acks(1, START, readers=True)
    assert [row.standby for row in table.standbys.rows()] == before == [at(START)]


def test_no_standby_streams_from_a_member_whose_first_answer_makes_it_skip_wal() -> None:
    table = Table()
    table.acks(1, START, readers=True)
    table.deliver(1, at(START, "other"))
    table.standbys.disconnected(1)
    table.leadership.disconnected(1, table.now)
    table.receives(START + 100)
    for safekeeper_id in (2, 3):
        table.acks(safekeeper_id, START + 100)
    table.leadership.on_greeting((1, "1" * 32), table.now)
    table.leadership.window_begin_lsn = START + 100
    for safekeeper_id in (2, 3):
        table.leadership.members[safekeeper_id].wal_begin_lsn = START + 20
    table.acks(1, START)
    assert not table.leadership.members[1].follows
    assert table.standbys.rows() == []


def test_wal_is_sent_before_a_report_after_which_the_window_may_shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table("a")
    table.receives(START + 100)
    for safekeeper_id in (1, 2):
        table.acks(safekeeper_id, START + 100)
    table.deliver(1, at(START + 20))
    table.leadership.disconnected(3, table.now)
    table.leadership.on_greeting((3, "3" * 32), table.now)
    table.take()
    # Its first answer says that no standby streams there, and that moves `apply`.
    monkeypatch.setattr(table.standbys, "on_report", lambda *_: setattr(table.standbys, "applied_lsn", START + 50))
    table.acks(3, START)
    assert table.appends(3) == [(0, 100)] and table.reports() == [ReportStatus(START + 100, START + 100, START + 50)]
    kinds = [type(action) for action in table.said]
    assert kinds.index(SendAppend) < kinds.index(ReportStatus)
