"""What is remembered of standbys: who comes, who goes, who moves, and what follows for PostgreSQL."""

import pytest

from safekeeper.consensus.messages import Standby
from walproxy.proposer.apply_rule import parse_apply_rule
from walproxy.proposer.standbys import GONE_MAX, Standbys


def at(name: str, lsn: int, **more: int) -> Standby:
    return Standby(name, lsn, lsn, lsn, **more)


def table(rule: str) -> Standbys:
    return Standbys(parse_apply_rule(rule))


def shown(standbys: Standbys) -> list[tuple[str, int, int, bool, bool]]:
    return [
        (row.standby.name, row.standby.apply_lsn, row.safekeeper_id, row.connected, row.designated)
        for row in standbys.rows()
    ]


def test_without_a_rule_apply_follows_flush() -> None:
    standbys = table("")
    assert standbys.apply_lsn(100) == 100
    standbys.on_report(1, (at("a", 5),))
    assert standbys.apply_lsn(100) == 100 and standbys.lacking() == ""


def test_apply_is_what_the_designated_have_replayed_and_never_more_than_is_committed() -> None:
    standbys = table("a, b")
    assert standbys.apply_lsn(100) == 0
    standbys.on_report(1, (at("A", 50), at("other", 1)))
    assert standbys.apply_lsn(100) == 0
    standbys.on_report(2, (at("b", 70),))
    assert standbys.apply_lsn(100) == 50
    standbys.on_report(1, (at("A", 300),))
    assert standbys.apply_lsn(60) == 60


def test_a_standby_that_restarts_takes_apply_back_with_it() -> None:
    standbys = table("a")
    standbys.on_report(1, (at("a", 50),))
    standbys.on_report(1, (at("a", 20),))
    assert standbys.apply_lsn(100) == 20


def test_whoever_reports_no_apply_position_has_not_replayed() -> None:
    standbys = table("ANY 1")
    standbys.on_report(1, (Standby("pg_receivewal", 90, 90, 0),))
    assert standbys.apply_lsn(100) == 0


def test_of_two_connections_with_one_name_the_lower_position_counts() -> None:
    standbys = table("a")
    standbys.on_report(1, (at("A", 40), at("a", 50)))
    assert standbys.apply_lsn(100) == 40
    standbys.on_report(2, (at("a", 30),))
    assert standbys.apply_lsn(100) == 30
    standbys.on_report(2, ())
    assert standbys.apply_lsn(100) == 40
    # Both go at once: the lower of their last words.
    standbys.on_report(1, ())
    assert standbys.apply_lsn(100) == 40


def test_a_designated_standby_that_is_gone_holds_apply_where_it_was() -> None:
    standbys = table("a")
    standbys.on_report(1, (at("a", 50),))
    standbys.on_report(1, ())
    assert standbys.apply_lsn(100) == 50
    assert shown(standbys) == [("a", 50, 1, False, True)]
    assert standbys.lacking() == "a is not streaming"
    standbys.on_report(2, (at("a", 60),))
    assert standbys.apply_lsn(100) == 60 and standbys.lacking() == ""
    assert shown(standbys) == [("a", 60, 2, True, True)]


def test_a_safekeeper_whose_connection_is_gone_has_said_its_last_words() -> None:
    standbys = table("a")
    standbys.on_report(1, (at("a", 50), at("b", 50)))
    standbys.disconnected(1)
    assert standbys.apply_lsn(100) == 50
    assert [row.connected for row in standbys.rows()] == [False, False]
    assert standbys.lacking() == "a is not streaming"
    # It has moved: what the other one said of it does not count any more.
    standbys.on_report(2, (at("A", 70),))
    assert standbys.apply_lsn(100) == 70
    assert shown(standbys) == [("A", 70, 2, True, True), ("b", 50, 1, False, False)]
    standbys.on_report(1, ())
    assert shown(standbys) == [("A", 70, 2, True, True)]


def test_what_a_new_term_cuts_off_is_nobodys() -> None:
    standbys = table("a, b, c")
    standbys.on_report(1, (at("a", 100), at("b", 80)))
    standbys.on_report(2, (at("c", 120),))
    standbys.on_report(2, ())
    standbys.cut(90)
    assert [(row.standby.flush_lsn, row.standby.apply_lsn) for row in standbys.rows()] == [(90, 90), (80, 80), (90, 90)]
    assert standbys.apply_lsn(200) == 80


def test_a_new_term_cuts_the_apply_position_of_a_standby_that_is_gone_at_once() -> None:
    standbys = table("a")
    standbys.on_report(1, (at("a", 100),))
    standbys.on_report(1, ())
    standbys.cut(90)
    assert standbys.apply_lsn(200) == 90


def test_a_changed_rule_counts_anew_at_once() -> None:
    standbys = table("a")
    standbys.on_report(1, (at("a", 10), at("b", 20)))
    standbys.set_rule(parse_apply_rule("ANY 1 (a, b)"))
    assert standbys.apply_lsn(100) == 20
    standbys.set_rule(parse_apply_rule(""))
    assert standbys.apply_lsn(100) == 100


def test_vacuum_is_held_back_for_the_oldest_transaction_of_those_who_stream_now() -> None:
    standbys = table("")
    assert standbys.oldest_xmins() == (0, 0)
    standbys.on_report(1, (at("a", 1, xmin=(1 << 32) + 5), at("b", 1, xmin=7, catalog_xmin=9)))
    standbys.on_report(2, (at("c", 1, xmin=6, catalog_xmin=10), at("d", 1)))
    assert standbys.oldest_xmins() == (6, 9)
    standbys.disconnected(2)
    assert standbys.oldest_xmins() == (7, 9)
    standbys.on_report(1, (at("a", 1, xmin=(1 << 32) + 5),))
    assert standbys.oldest_xmins() == ((1 << 32) + 5, 0)


@pytest.mark.parametrize(
    ("rule", "lacking"),
    [
        ("a", ""),
        ("a, x, y", "x, y are not streaming"),
        ("ANY 1 (a, x)", ""),
        ("ANY 2", ""),
        ("ANY 3", "2 of 3 required standbys replay"),
    ],
)
def test_what_remote_apply_lacks_is_said_by_name(rule: str, lacking: str) -> None:
    standbys = table(rule)
    standbys.on_report(1, (at("a", 10), at("b", 10), at("b", 10), at("pg_receivewal", 0)))
    assert standbys.lacking() == lacking


@pytest.mark.parametrize(
    ("positions", "cut"),
    [
        ((90, 90, 90), (90, 90, 90)),
        ((91, 90, 90), (90, 90, 90)),
        ((100, 95, 50), (90, 90, 50)),
        ((100, 60, 50), (90, 60, 50)),
        ((100, 95, 92), (90, 90, 90)),
        ((80, 70, 91), (80, 70, 90)),
    ],
)
def test_each_position_above_a_cut_is_cut_alone(positions: tuple[int, int, int], cut: tuple[int, int, int]) -> None:
    standbys = table("a")
    standbys.on_report(1, (Standby("a", *positions),))
    standbys.cut(90)
    ((standby, *_),) = standbys.rows()
    assert (standby.write_lsn, standby.flush_lsn, standby.apply_lsn) == cut
    assert standbys.apply_lsn(1000) == cut[2]


def test_a_standby_that_two_safekeepers_have_reported_counts_by_the_one_that_is_connected() -> None:
    standbys = table("a")
    standbys.on_report(1, (at("a", 40),))
    standbys.on_report(2, (at("a", 50),))
    assert standbys.apply_lsn(100) == 40
    standbys.disconnected(1)
    assert standbys.apply_lsn(100) == 40
    # The same standbys as before, at new positions: no usual report, since another safekeeper is gone.
    standbys.on_report(2, (at("a", 60),))
    assert standbys.apply_lsn(100) == 60 and shown(standbys) == [("a", 60, 2, True, True)]


def test_standbys_that_are_gone_and_not_designated_are_forgotten_from_the_oldest_on() -> None:
    standbys = table("a")
    for number in range(GONE_MAX + 1):
        standbys.on_report(1, (at(f"backup {number}", 5),))
    standbys.on_report(1, ())
    assert len(standbys._gone) == GONE_MAX
    assert "backup 0" not in standbys._gone and f"backup {GONE_MAX}" in standbys._gone
    standbys.on_report(1, (at("a", 10),))
    standbys.on_report(1, ())
    assert len(standbys._gone) == GONE_MAX and "a" in standbys._gone
