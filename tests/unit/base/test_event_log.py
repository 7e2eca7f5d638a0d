"""The recorder of events as a handler of the log, and the two formats of the log."""

import io
import json
import logging

import pytest

from safekeeper.base.event_log import EventRecorder
from safekeeper.base.events import KeptEvent
from safekeeper.base.logs import ProblemLog, configure, log_event, record_event

logger = logging.getLogger("safekeeper.test")


def configured(level: str, log_format: str = "text") -> tuple[EventRecorder, io.StringIO]:
    recorder, stream = EventRecorder("walproxy", {"run": "abc"}, "o"), io.StringIO()
    configure(lambda: "walproxy term 4", level, stream, log_format=log_format, events=recorder)
    return recorder, stream


def test_events_are_recorded_at_any_level_and_other_lines_are_not() -> None:
    recorder, stream = configured("error")
    seen: list[KeptEvent] = []
    recorder.on_event = seen.append
    logger.error("a line")
    log_event(logger, "term-won", {"term": 4}, "term %d: elected", 4)
    log_event(logger, "quorum-lost", {}, "commits wait")
    assert [kept.event for kept in seen] == [kept.event for kept in recorder.all()]
    first, second = (kept.event for kept in recorder.all())
    assert (first.id, first.kind, first.source, first.text) == ("o-1", "term-won", "walproxy", "term 4: elected")
    assert first.fields == {"term": 4, "run": "abc"}
    assert second.id == "o-2" and second.at_ms >= first.at_ms > 1.7e12
    lines = stream.getvalue().splitlines()
    assert [line.partition(" ")[2] for line in lines] == [
        "ERROR walproxy term 4: a line",
        "ERROR walproxy term 4: commits wait",
    ]


def test_an_event_that_other_lines_report_has_a_line_in_json_only() -> None:
    recorder, stream = configured("info")
    record_event(logger, "member-lost", {"safekeeper": 3}, "safekeeper 3: timeout")
    assert stream.getvalue() == "" and len(recorder.all()) == 1
    recorder, stream = configured("info", "json")
    record_event(logger, "member-lost", {"safekeeper": 3}, "safekeeper 3: timeout")
    logger.info("two\nlines")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first.pop("time").endswith("Z") and second.pop("time")
    common = {"process": "walproxy term 4", "logger": "safekeeper.test"}
    assert first == common | {
        "level": "warning",
        "message": "safekeeper 3: timeout",
        "event": "member-lost",
        "fields": {"safekeeper": 3},
    }
    assert second == common | {"level": "info", "message": "two\nlines"}


def test_a_traceback_is_part_of_the_message_in_json() -> None:
    _, stream = configured("info", "json")
    try:
        raise ValueError("no")
    except ValueError:
        logger.exception("a bug")
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["message"].endswith("ValueError: no")


def test_events_of_a_process_stay_in_order_when_its_clock_is_set_back() -> None:
    recorder, _ = configured("info")
    log_event(logger, "term-won", {}, "one")
    ahead = recorder.all()[0].event.at_ms + 3_600_000
    recorder._last_at_ms = ahead
    log_event(logger, "term-lost", {}, "two")
    assert [kept.event.at_ms for kept in recorder.all()][1] == ahead


def test_an_event_that_cannot_be_recorded_fails_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    recorder, _ = configured("error")

    def fail(kept: KeptEvent) -> None:
        raise OSError("no")

    recorder.on_event = fail
    log_event(logger, "term-won", {}, "elected")
    assert "OSError: no" in capsys.readouterr().err


def test_a_problem_is_one_event_when_it_begins_and_one_when_it_ends() -> None:
    recorder, _ = configured("error")
    now = [0.0]
    problem = ProblemLog(logger, lambda: now[0])
    for text in ("full", "full", "fuller"):
        problem.note(text, "it is %s", text, event="wal-limit-exceeded")
        now[0] += 1000
    problem.over("it is well again", event="wal-limit-kept")
    problem.over("it is well again", event="wal-limit-kept")
    assert [(kept.event.kind, kept.event.text) for kept in recorder.all()] == [
        ("wal-limit-exceeded", "it is full"),
        ("wal-limit-exceeded", "it is fuller"),
        ("wal-limit-kept", "it is well again"),
    ]
