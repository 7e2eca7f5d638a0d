"""`walproxy discarded`: output in a terminal and without one, and one line for bad input."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from safekeeper.base.errors import EXIT_CONFIGURATION, EXIT_FINE, EXIT_UNEXPECTED, EXIT_USAGE
from safekeeper.base.lsn import format_lsn, parse_lsn
from tests.unit.cli.test_walproxy_cli import Here, one_line
from tests.unit.transactions_wal import CATALOG, TransactionsWal, new_log
from tests.unit.wal_places import write_segments
from walproxy.cli import discarded as command


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    return Here(monkeypatch, capsys)


@pytest.fixture
def pgdata(tmp_path: Path) -> Path:
    (tmp_path / "data" / "pg_wal").mkdir(parents=True)
    return tmp_path / "data"


def small_tail(pgdata: Path) -> tuple[TransactionsWal, str]:
    """Write the WAL of two transactions after a fork into a data folder."""
    wal = new_log()
    wal.running(100)
    from_lsn = wal.end_lsn
    wal.insert(100)
    wal.insert(101)
    wal.insert(101, CATALOG)
    wal.update(101)
    wal.delete(101)
    wal.sequence(101)
    wal.message(101, transactional=True)
    wal.commit(101, [102], relfiles=1, invalidations=1)
    wal.prepare(100, b"the [red]\n")
    write_segments(pgdata / "pg_wal", wal)
    return wal, format_lsn(from_lsn)


def test_each_transaction_is_a_line(here: Here, pgdata: Path) -> None:
    wal, from_lsn = small_tail(pgdata)
    result = here("discarded", "--pgdata", str(pgdata), "--from", from_lsn)
    assert (result.returncode, result.stderr) == (EXIT_FINE, "")
    commit, prepare = wal.records[-2:]
    written = [sum(each.total_length for each in wal.records if each.xid == xid) for xid in (101, 100)]
    assert result.stdout.splitlines() == [
        f"2025-05-08 06:13:20.000101+00 commit xid 101 at {format_lsn(commit.start_lsn)} to "
        f"{format_lsn(commit.end_lsn)}, {written[0]} bytes of WAL: 1663/5/16384 +1 ~1 -1; "
        "4008636142/4008636142/4008636142 removed; 1663/5/16390 advanced (sequence); catalogs (DDL or statistics); "
        "logical messages: 1; subtransactions: 1",
        f"2025-05-08 06:13:20.000100+00 prepare 'the [red]\\n' xid 100 at {format_lsn(prepare.start_lsn)} to "
        f"{format_lsn(prepare.end_lsn)}, {written[1]} bytes of WAL: 1663/5/16384 +1",
        f"transactions: 2, of which committed: 1; not lost: 0 aborted, 0 open; {wal.end_lsn - parse_lsn(from_lsn)} "
        f"bytes of WAL from {from_lsn} to {format_lsn(wal.end_lsn)} on timeline 1",
    ]


def test_terminal_shows_a_table(here: Here, pgdata: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, from_lsn = small_tail(pgdata)
    monkeypatch.setattr(command, "output_console", lambda: Console(force_terminal=True, width=140, color_system=None))
    lines = here("discarded", "--pgdata", str(pgdata), "--from", from_lsn).stdout.splitlines()
    assert lines[0].split() == ["time", "transaction", "xid", "LSN", "WAL", "changes"]
    assert any("prepare 'the [red]\\n'" in line and "1663/5/16384 +1" in line for line in lines)
    assert lines[-1].startswith("transactions: 2, of which committed: 1; ")


def test_json_is_one_object(here: Here, pgdata: Path) -> None:
    _, from_lsn = small_tail(pgdata)
    content = json.loads(here("discarded", "--wal-dir", str(pgdata / "pg_wal"), "--from", from_lsn, "--json").stdout)
    assert content["folder"] == str(pgdata / "pg_wal")
    assert (content["from_lsn"], content["transaction_count"], content["commit_count"]) == (from_lsn, 2, 1)
    assert [each["kind"] for each in content["transactions"]] == ["commit", "prepare"]


def test_server_without_an_answer_leaves_the_report_without_names(here: Here, pgdata: Path) -> None:
    _, from_lsn = small_tail(pgdata)
    nobody = "host=127.0.0.1 port=1 user=u"
    result = here("discarded", "--pgdata", str(pgdata), "--from", from_lsn, "--conninfo", nobody)
    assert result.returncode == EXIT_FINE
    lines = result.stdout.splitlines()
    assert len(lines) == 4
    assert lines[2].startswith("relations are shown without names: ")


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (("--pgdata", "/nowhere"), EXIT_CONFIGURATION, "/nowhere is not a data folder of PostgreSQL: it has no pg_wal"),
        (("--wal-dir", "/nowhere"), EXIT_UNEXPECTED, "cannot read /nowhere: No such file or directory"),
        (("--pgdata", "{pgdata}"), EXIT_CONFIGURATION, "has no segments of WAL"),
        (("--pgdata", "{pgdata}", "--conninfo", "x y"), EXIT_CONFIGURATION, "the server's connection string is wrong"),
    ],
)
def test_bad_input_is_one_line(here: Here, pgdata: Path, words: tuple[str, ...], code: int, problem: str) -> None:
    result = here("discarded", "--from", "0/100028", *(word.format(pgdata=pgdata) for word in words))
    assert result.returncode == code
    assert problem in one_line(result)


@pytest.mark.parametrize(
    "words",
    [
        ("--from", "0/1"),
        ("--from", "nonsense", "--pgdata", "x"),
        ("--from", "0/1", "--pgdata", "x", "--wal-dir", "y"),
        ("--from", "0/1", "--pgdata", "x", "--timeline", "0"),
        ("--from", "0/1", "--pgdata", "x", "--look-back", "much"),
    ],
)
def test_wrong_usage_is_reported(here: Here, words: tuple[str, ...]) -> None:
    assert here("discarded", *words).returncode == EXIT_USAGE
