"""A discarded report that is wrong, and WAL that contradicts the books, are found."""

from pathlib import Path

import msgspec
import pytest

from safekeeper.base.errors import WalproxyError
from walproxy.lab.failover.discarded import contradictions, differences, find_wrong_rows, new_reports, read_report
from walproxy.lab.failover.rows import Attempt, Row, Writer
from walproxy.lab.failover.wal_truth import CommittedTransaction, Stretch
from walproxy.lab.load.history import HistoryOperation, Outcome

COMMITS = [
    CommittedTransaction(0x500, 742, "2026-11-25 18:52:01.853906"),
    CommittedTransaction(0x600, 743, "2026-11-25 18:52:01.900000"),
]
TAIL = [(Stretch(1, 0x480, None), COMMITS)]
EPOCH = 1 << 32


def attempt(number: int, writer: Writer, xid: int, outcome: Outcome = "ok", server: str = "pg1") -> Attempt:
    return HistoryOperation(0, Row(number, writer, server, 1, EPOCH + xid), 0.0, 1.0, outcome)


def test_a_report_that_lists_the_same_transactions_is_right() -> None:
    assert differences(COMMITS, list(COMMITS)) == []
    assert differences([], []) == []


def test_a_report_that_lacks_or_invents_a_transaction_is_wrong() -> None:
    (lacks,) = differences(COMMITS, COMMITS[:1])
    assert lacks == "the report lacks 1 of 2 transactions: xid 743 at 0/600, 2026-11-25 18:52:01.900000"
    (invents,) = differences(COMMITS[:1], COMMITS)
    assert "the WAL after the fork does not have, 1 of 2 transactions: xid 743" in invents
    assert (
        len(differences(COMMITS, [*COMMITS[:1], CommittedTransaction(0x600, 743, "2026-11-25 18:52:01.900001")])) == 2
    )
    (twice,) = differences(COMMITS, [*COMMITS, COMMITS[0]])
    assert "lists 3 transactions" in twice


def test_the_books_agree_with_the_tail() -> None:
    attempts = [
        attempt(1, "local", 742),
        attempt(2, "client", 743, "unknown"),
        attempt(3, "local", 741),  # It reached the quorum.
        attempt(4, "client", 742, server="pg2"),  # Another server's transaction of the same number.
    ]
    assert contradictions(TAIL, attempts, "pg1", {3, 4}) == []


def test_a_row_of_the_tail_that_the_new_primary_has_is_found() -> None:
    (found,) = contradictions(TAIL, [attempt(1, "local", 742)], "pg1", {1})
    assert found.startswith("1 rows are after the fork in the WAL of the old primary, and the new one has them: row 1 ")


def test_an_acknowledged_row_of_the_tail_is_found() -> None:
    (found,) = contradictions(TAIL, [attempt(1, "client", 742)], "pg1", set())
    assert found.startswith("1 rows were acknowledged, and are after the fork: row 1 (client at pg1, timeline 1, xid ")


def test_a_local_row_that_is_nowhere_is_found() -> None:
    (found,) = contradictions(TAIL, [attempt(1, "local", 740)], "pg1", set())
    assert found.startswith(
        "1 rows were committed locally, and are neither after the fork nor on the new primary: row 1"
    )
    assert contradictions(TAIL, [attempt(1, "local", 740, "unknown")], "pg1", set()) == []


def test_a_report_is_read_as_the_agent_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "20261125T185201Z-timeline-1.json"
    row = {"tablespace": 1663, "database": 5, "relfilenode": 16384, "inserted": 1, "updated": 0, "deleted": 0}
    catalog = {**row, "inserted": 3, "catalog": True}
    listed = [
        {
            "kind": "commit",
            "xid": 742,
            "lsn": "0/500",
            "time": "2026-11-25T18:52:01.853906+00:00",
            "relations": [{**row, "catalog": False}, catalog],
        },
        {"kind": "commit", "xid": 743, "lsn": "0/600", "time": "2026-11-25T18:52:01.900000+00:00", "relations": []},
        {"kind": "prepare", "xid": 744, "lsn": "0/700", "time": "2026-11-25T18:52:02+00:00", "relations": []},
    ]
    path.write_bytes(msgspec.json.encode({"transactions": listed}))
    assert new_reports(tmp_path, set()) == [path]
    assert new_reports(tmp_path, {path}) == []
    report = read_report(path)
    assert differences(COMMITS, report.commits) == []
    stretches = [stretch for stretch, _ in TAIL]
    assert find_wrong_rows(report, stretches, [attempt(1, "local", 742)], "pg1") == []
    (wrong,) = find_wrong_rows(report, stretches, [attempt(1, "local", 743)], "pg1")
    assert wrong == "the report attributes 0 inserted rows to xid 743, which inserted 1"
    assert find_wrong_rows(report, stretches, [attempt(1, "local", 743)], "pg2") == []


def test_another_file_is_not_taken_for_a_report(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text("[]")
    with pytest.raises(WalproxyError, match=r"other\.json is not a discarded report"):
        read_report(path)
