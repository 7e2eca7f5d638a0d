"""Why a server did not start, by its log."""

from pathlib import Path

from walproxy.agent.server_log import log_tail, reasons

NO_SPACE = 'FATAL:  could not write to file "pg_wal/xlogtemp.9": No space left on device'
LAST_START = [
    "LOG:  starting PostgreSQL 18.6 on x86_64",
    "LOG:  database system was not properly shut down; automatic recovery in progress",
    "FATAL:  the database system is starting up",
    NO_SPACE,
    "LOG:  startup process (PID 9) exited with exit code 1",
    "FATAL:  the database system is shutting down",
    "LOG:  shutting down due to startup process failure",
    "LOG:  database system is shut down",
]


def test_what_ended_the_last_start_is_shown() -> None:
    older = ["LOG:  starting PostgreSQL 18.6 on x86_64", 'FATAL:  could not open file "x"', "PANIC:  y"]
    assert reasons(older + LAST_START) == [NO_SPACE]


def test_the_setting_with_an_error_is_shown_beside_its_file() -> None:
    lines = ["LOG:  0 kB is outside the valid range", 'FATAL:  configuration file "x" contains errors', "LOG:  later"]
    assert reasons(["LOG:  older", *lines]) == lines[:2]


def test_without_a_reason_the_last_lines_are_shown(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("a\nb\nc\nd\n")
    assert log_tail(log) == "b / c / d"
    assert log_tail(tmp_path / "none").startswith("(")
