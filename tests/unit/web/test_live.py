"""The stream of the page: its events, one computation for all readers, and readers that do not keep up."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import safekeeper.web.history
import safekeeper.web.live
from safekeeper.web.history import SampleHistory
from safekeeper.web.live import LiveStream
from tests.unit.event_loop import on_the_loop, until
from tests.unit.proxy.statuses import LSN, listed_safekeeper, status
from tests.unit.web.page_contents import EVIL


class Reader:
    """A connection that keeps its frames, unless it is congested."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.is_congested = False

    def send_frame(self, frame: bytes) -> bool:
        if not self.is_congested:
            self.frames.append(frame)
        return not self.is_congested


def stream(**parts: Callable[[], Any]) -> LiveStream:
    return LiveStream(parts, ())


def events_of(frame: bytes) -> list[tuple[str, Any]]:
    """Parse a frame as a browser does: blocks between empty lines, fields by line, any other line ends a field."""
    events = []
    for block in frame.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line)
        if "event" in fields:
            events.append((fields["event"], json.loads(fields["data"])))
    return events


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safekeeper.web.live, "INTERVAL_S", 0.02)


def test_the_first_frame_has_all_parts_and_later_ones_those_that_changed() -> None:
    @on_the_loop
    async def run() -> None:
        number = 0

        def changing() -> int:
            nonlocal number
            number += 1
            return number

        live = stream(same=lambda: "x", changing=changing)
        reader = Reader()
        live.join(reader)  # type: ignore[arg-type]
        assert reader.frames[0].startswith(b"retry: 3000\n\nevent: same\n")
        assert [name for name, _ in events_of(reader.frames[0])] == ["same", "changing", "tick"]
        await until(lambda: len(reader.frames) > 3)
        for index, frame in enumerate(reader.frames[1:], 2):
            (changed, value), (tick, content) = events_of(frame)
            assert (changed, value, tick, content["failed"]) == ("changing", index, "tick", [])
        live.leave(reader)  # type: ignore[arg-type]

    run()


def test_a_text_with_line_breaks_and_html_stays_one_event() -> None:
    text = f"a\r\nevent: status\ndata: 1\n\n{EVIL}\u2028\u2029\x85"

    @on_the_loop
    async def run() -> None:
        live = stream(status=lambda: {"text": text})
        reader = Reader()
        live.join(reader)  # type: ignore[arg-type]
        ((name, content), _) = events_of(reader.frames[0].replace("\u2028\u2029\x85".encode(), b"L"))
        assert (name, content["text"]) == ("status", text.replace("\u2028\u2029\x85", "L"))
        # A stream of events ends lines at LF, CR and CRLF only.
        assert b"\r" not in reader.frames[0] and reader.frames[0].count(b"\n") == 2 + 2 * 3
        live.leave(reader)  # type: ignore[arg-type]

    run()


def test_the_parts_are_computed_once_for_all_readers_and_not_without_any() -> None:
    @on_the_loop
    async def run() -> None:
        computed = 0

        def status() -> int:
            nonlocal computed
            computed += 1
            return computed

        live = stream(status=status)
        readers = [Reader() for _ in range(50)]
        for reader in readers:
            live.join(reader)  # type: ignore[arg-type]
        assert computed == 1
        await until(lambda: computed >= 5)
        assert {len(reader.frames) for reader in readers} == {computed}
        assert len({id(reader.frames[-1]) for reader in readers}) == 1, "one frame for all"
        for reader in readers:
            live.leave(reader)  # type: ignore[arg-type]
        before = computed
        other = stream(tick=lambda: 0)
        waiting = Reader()
        other.join(waiting)  # type: ignore[arg-type]
        await until(lambda: len(waiting.frames) > 5)
        other.leave(waiting)  # type: ignore[arg-type]
        assert computed == before
        live.join(readers[0])  # type: ignore[arg-type]
        assert computed == before + 1, "what was computed for earlier readers is not shown to a later one"
        live.leave(readers[0])  # type: ignore[arg-type]

    run()


def test_a_reader_that_missed_frames_gets_all_parts_next() -> None:
    @on_the_loop
    async def run() -> None:
        content = "old"
        live = stream(status=lambda: content, fixed=lambda: 1)
        slow, quick = Reader(), Reader()
        live.join(slow)  # type: ignore[arg-type]
        live.join(quick)  # type: ignore[arg-type]
        slow.is_congested = True
        content = "new"
        await until(lambda: len(quick.frames) > 4)
        slow.is_congested = False
        await until(lambda: len(slow.frames) > 2)
        assert [events_of(frame)[:-1] for frame in slow.frames] == [
            [("status", "old"), ("fixed", 1)],
            [("status", "new"), ("fixed", 1)],
            *[[] for _ in slow.frames[2:]],
        ]
        for reader in (slow, quick):
            live.leave(reader)  # type: ignore[arg-type]

    run()


def test_a_part_that_fails_is_named_and_the_others_are_sent(caplog: pytest.LogCaptureFixture) -> None:
    @on_the_loop
    async def run() -> None:
        live = stream(limbo=lambda: 1 // 0, status=lambda: "x")
        reader = Reader()
        live.join(reader)  # type: ignore[arg-type]
        await until(lambda: len(reader.frames) > 6)
        (status, (tick, content)) = events_of(reader.frames[0])
        assert (status, tick, content["failed"]) == (("status", "x"), "tick", ["limbo"])
        live.leave(reader)  # type: ignore[arg-type]

    run()
    assert 0 < len(caplog.records) <= 3
    assert "no limbo for the page: unexpected ZeroDivisionError" in caplog.text


def test_the_first_frame_has_what_was_before_and_a_sample_that_fails_is_a_gap(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(safekeeper.web.history, "INTERVAL_S", 0.005)

    @on_the_loop
    async def run() -> None:
        positions = iter(range(1_000_000))

        def status() -> dict[str, Any]:
            lsn = f"0/{next(positions):X}"
            disk = {"free_bytes": 7, "busy_s": 0}
            return {"flush_lsn": lsn, "commit_lsn": lsn} | ({"disk": disk} if lsn != "0/1" else {})

        history = SampleHistory(status, "safekeeper")
        await until(lambda: len(history.samples) >= 3)
        assert [msgspec.to_builtins(each["status"]) for each in list(history.samples)[:2]] == [
            {"flush_lsn": lsn, "commit_lsn": lsn, "disk": {"free_bytes": 7}} for lsn in ("0/0", "0/2")
        ]
        live = LiveStream({"status": status}, (), history)
        reader = Reader()
        live.join(reader)  # type: ignore[arg-type]
        (name, samples), *others = events_of(reader.frames[0])
        assert name == "history" and len(samples) >= 3 and samples[0]["limbo"] is None
        assert [name for name, _ in others] == ["status", "tick"]
        await until(lambda: len(reader.frames) > 1)
        assert "history" not in [name for name, _ in events_of(reader.frames[1])]
        live.leave(reader)  # type: ignore[arg-type]
        assert len(caplog.records) == 1 and "no sample for the charts" in caplog.text

    run()


def test_the_history_has_the_rate_of_confirms_of_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safekeeper.web.history, "INTERVAL_S", 0.005)

    @on_the_loop
    async def run() -> None:
        rates = iter((0.5, None, 2.0))
        history = SampleHistory(lambda: status(safekeepers=[listed_safekeeper(1)]), "proxy", lambda: next(rates))
        await until(lambda: len(history.samples) == 3)
        assert [each["limbo"] for each in history.samples] == [{"confirms_per_s": rate} for rate in (0.5, None, 2.0)]
        assert msgspec.to_builtins(history.samples[0]["status"]) == {
            "received_lsn": LSN,
            "commit_lsn": LSN,
            "safekeepers": [{"id": 1, "lag_bytes": 0}],
            "times": {"quorum": {"count": 0, "recent_count": 0, "p50_s": None, "p99_s": None}},
        }

    run()


def test_the_history_is_ten_minutes_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    @on_the_loop
    async def run() -> None:
        history = SampleHistory(dict, "proxy")
        assert history.samples.maxlen == 120
        assert safekeeper.web.history.INTERVAL_S * 120 == safekeeper.web.history.SPAN_S

    run()
