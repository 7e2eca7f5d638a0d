"""Log lines: one per event whatever they quote, and never too many about strangers."""

import io
import logging

from safekeeper.base.logs import LineFormatter, RateLimit, RateLimits, configure, one_line, set_level


def formatted(message: str, *arguments: object) -> str:
    record = logging.LogRecord("x", logging.WARNING, "x.py", 1, message, arguments, None)
    record.created, record.msecs = 1_700_000_000.25, 250.0
    return LineFormatter(lambda: "safekeeper 1 term 3").format(record)


def test_a_line_says_when_how_grave_who_and_what() -> None:
    assert formatted("lost %s", "it") == "2023-11-14T22:13:20.250Z WARNING safekeeper 1 term 3: lost it"


def test_what_a_stranger_sent_cannot_forge_a_line() -> None:
    assert formatted("got %s", "x\n2026 ERROR\x1b[2J\r").endswith("got x\\n2026 ERROR\\x1b[2J\\r")
    assert one_line("naïve – 5 %") == "naïve – 5 %"


def test_so_many_lines_pass_per_interval_and_the_others_are_counted() -> None:
    now = 0.0
    limit = RateLimit(lines=2, interval_s=60, clock=lambda: now)
    assert [limit.admit() for _ in range(5)] == ["", "", None, None, None]
    now = 61.0
    assert limit.admit() == " (and 3 more such lines suppressed)"
    assert limit.admit() == ""
    assert limit.admit() is None


def test_lines_that_differ_in_figures_only_are_limited_together_and_other_lines_are_not() -> None:
    now = 0.0
    limits = RateLimits(lines=1, interval_s=60, clock=lambda: now)
    assert limits.admit("term 4 ends at 0/15173F8 for run 2824b180") == ""
    assert limits.admit("term 5 ends at 1/AB for run ff24b180") is None
    assert limits.admit("term 5 begins") == ""
    now = 61.0
    assert limits.admit("term 6 ends at 1/AC for run 2f24b18f") == " (and 1 more such lines suppressed)"


def test_the_level_can_be_changed_while_the_program_runs() -> None:
    stream = io.StringIO()
    configure(lambda: "x", "warning", stream)
    logging.getLogger("a").info("not shown")
    set_level("debug")
    logging.getLogger("a").debug("shown")
    assert [line.split(": ")[1] for line in stream.getvalue().splitlines()] == ["shown"]
