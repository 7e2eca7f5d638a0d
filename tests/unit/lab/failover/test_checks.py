"""Acknowledged rows that are lost, and two servers that acknowledge, planted in books."""

from walproxy.lab.failover.checks import find_lost, find_two_servers, find_two_writers_of_a_timeline
from walproxy.lab.failover.rows import Attempt, Row
from walproxy.lab.load.history import HistoryOperation, Outcome


def attempt(number: int, server: str, tli: int, begun_at: float, ended_at: float, outcome: Outcome = "ok") -> Attempt:
    return HistoryOperation(1, Row(number, "client", server, tli, 700 + number), begun_at, ended_at, outcome)


def test_an_acknowledged_row_that_is_not_there_is_found() -> None:
    attempts = [attempt(1, "pg1", 1, 0.0, 1.0), attempt(2, "pg1", 1, 1.0, 2.0)]
    assert find_lost(attempts, {1, 2}) == []
    (violation,) = find_lost(attempts, {1, 3})
    assert violation == ("1 acknowledged rows are missing: row 2 (client at pg1, timeline 1, xid 702)")


def test_a_commit_that_began_after_a_newer_timeline_had_acknowledged_one_is_found() -> None:
    before = [attempt(1, "pg1", 1, 0.0, 1.0), attempt(2, "pg2", 2, 5.0, 6.0)]
    assert find_two_servers(before) == []
    # Its reply was on its way while the other was promoted.
    assert find_two_servers([*before, attempt(3, "pg1", 1, 0.5, 9.0)]) == []
    # In doubt is not acknowledged.
    assert find_two_servers([*before, attempt(3, "pg1", 1, 7.0, 9.0, "unknown")]) == []
    (violation,) = find_two_servers([*before, attempt(3, "pg1", 1, 6.5, 9.0)])
    assert violation.startswith(
        "timeline 1 acknowledged 1 commits that began after timeline 2 had acknowledged one on pg2: row 3 "
    )


def test_the_first_acknowledgement_of_any_newer_timeline_counts() -> None:
    attempts = [
        attempt(1, "pg3", 5, 1.0, 2.0),
        attempt(2, "pg2", 3, 8.0, 9.0),
        attempt(3, "pg1", 1, 0.0, 1.0),
        attempt(4, "pg1", 1, 3.0, 4.0),
    ]
    violations = find_two_servers(attempts)
    assert [line.split(" that")[0] for line in violations] == [
        "timeline 1 acknowledged 1 commits",
        "timeline 3 acknowledged 1 commits",
    ]


def test_two_servers_on_one_timeline_are_found() -> None:
    attempts = [attempt(1, "pg1", 2, 0.0, 1.0), attempt(2, "pg2", 2, 5.0, 6.0, "unknown")]
    assert find_two_writers_of_a_timeline(attempts) == []
    attempts.append(attempt(3, "pg3", 2, 8.0, 9.0))
    assert find_two_writers_of_a_timeline(attempts) == ["pg1 and pg3 have both acknowledged commits on timeline 2"]


def test_a_long_list_of_rows_is_cut() -> None:
    attempts = [attempt(number, "pg1", 1, 0.0, 1.0) for number in range(1, 9)]
    (violation,) = find_lost(attempts, set())
    assert violation.startswith("8 acknowledged rows")
    assert violation.count("row ") == 5
    assert violation.endswith(", ...")
