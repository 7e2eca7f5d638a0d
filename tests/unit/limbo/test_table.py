"""What a terminal shows of the limbo."""

import io
from typing import Any

from rich.console import Console

from walproxy.limbo.table import printable, render, summarise


def content(**changes: Any) -> dict[str, Any]:
    session = {
        "pid": 7,
        "user": "ann",
        "application": "shop\x1b]0;x\x07",
        "client": "10.0.0.1",
        "query": "INSERT\n\x1b[2J<b>",
    }
    transaction = {
        "xid": 771,
        "kind": "commit_prepared",
        "gid": "g\x1b[31m",
        "start_lsn": "0/10",
        "end_lsn": "0/20",
        "committed_at": "2026-01-01T00:00:00.000+00:00",
        "waits_s": 1.25,
        "level": None,
        "state": "waiting",
        "missing": [1, 3],
        "session": session,
    }
    bare = {**transaction, "xid": None, "end_lsn": None, "waits_s": None, "missing": [], "session": None, "gid": ""}
    return {
        "owner": {"proposer": "p", "term": 5},
        "state": "waiting_for_quorum",
        "quorum": 2,
        "received_lsn": "0/30",
        "commit_lsn": "0/10",
        "entries": 2,
        "bytes": 32,
        "oldest_s": 1.25,
        "confirms_per_s": 0.0,
        "problem": None,
        "listed": 2,
        "transactions": [transaction, bare],
        **changes,
    }


def text_of(shown: dict[str, Any]) -> str:
    console = Console(file=io.StringIO(), width=200, force_terminal=False)
    console.print(render(shown))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_control_characters_of_clients_are_shown_as_escapes() -> None:
    text = text_of(content())
    assert "\x1b" not in text and "\x07" not in text
    assert "shop\\x1b]0;x\\x07" in text and "INSERT\\n\\x1b[2J<b>" in text and "g\\x1b[31m" in text
    assert printable("é ✓ \u202e\u0000") == "é ✓ \\u202e\\x00"


def test_a_row_has_the_position_the_wait_and_the_members_that_lack_it() -> None:
    text = text_of(content())
    assert "771" in text and "0/20" in text and "1.2 s" in text and "1,3" in text and "ann shop" in text


def test_what_is_not_listed_and_a_problem_are_shown() -> None:
    text = text_of(content(entries=150, problem="sessions are unknown: \x1b"))
    assert "the oldest 2 are listed; 148 more wait" in text
    assert "sessions are unknown: \\x1b" in text


def test_an_empty_limbo_is_one_line() -> None:
    empty = content(entries=0, listed=0, transactions=[], oldest_s=None, owner=None, confirms_per_s=None)
    assert text_of(empty).count("\n") == 1
    assert summarise(empty).startswith("0 transactions, 32 bytes, oldest -, waiting_for_quorum, no term, quorum 2")


def test_a_line_for_a_log_has_the_problem() -> None:
    assert summarise(content(problem="no primary is connected")).endswith("problem: no primary is connected")
