"""What /metrics and /status say of a safekeeper with an archive, over HTTP."""

import logging
import random
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from safekeeper.base.logs import CHANGES_A_MINUTE, ProblemLog
from safekeeper.base.lsn import format_lsn
from safekeeper.base.settings import Address
from safekeeper.net.http_server import serve_http
from safekeeper.net.metrics_page import metrics_route
from safekeeper.process.metrics import SafekeeperCollector
from safekeeper.process.retention import Retention
from safekeeper.process.status_pages import safekeeper_routes, safekeeper_status
from tests.unit.replication_house import ReplicationHouse
from tests.unit.scripted_proposer import BASE_LSN, SEGMENT_SIZE

WAL = random.Random(12).randbytes(2 * SEGMENT_SIZE + 1000)
END_LSN = BASE_LSN + len(WAL)


def pages(house: ReplicationHouse) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the numbers of /metrics, by name and labels, and /status."""
    retention = Retention(
        house.node, house.slots, house.hub, house.archiver, keep_bytes=0, limit_bytes=64 * SEGMENT_SIZE
    )
    collector = SafekeeperCollector(
        house.node, retention, hub=house.hub, archiver=house.archiver, read_through=house.read_through
    )
    routes = safekeeper_routes(
        house.node, lambda: safekeeper_status(house.node, {}, house.listener, house.archiver, retention)
    )
    listener = house.run(serve_http(routes | {"/metrics": metrics_route(collector)}, Address("127.0.0.1", 0)))
    url = f"http://{listener.address}"
    try:
        with urllib.request.urlopen(f"{url}/metrics") as response:
            assert response.headers["Content-Type"].startswith("text/plain; version=")
            text = response.read().decode()
        with urllib.request.urlopen(f"{url}/status") as response:
            status = msgspec.json.decode(response.read())
    finally:
        house.run(listener.close())
    numbers = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        for sample in family.samples:
            numbers[sample.name + "".join(f"[{value}]" for value in sample.labels.values())] = sample.value
    return numbers, status


def test_positions_disk_and_archive_are_reported_in_numbers_and_words(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path, archive=str(tmp_path / "archive")) as house:
        leader = house.led()
        leader.write(WAL + b"not committed")
        leader.commit(END_LSN)
        house.call(house.node.measure_room)
        house.until(lambda: house.node.disk_space.space is not None)
        before, status = pages(house)
        assert status["archive"]["problem"]
        assert before["safekeeper_archiver"] == 0
        assert before["safekeeper_archive_problem"] == 1
        assert before["safekeeper_unarchived_bytes"] == len(WAL)
        leader.order_archive(1)
        house.call(house.archiver.start)
        leader.await_archive_report(lambda report: report.archived_lsn == END_LSN)
        leader.order_archive(1, END_LSN)
        client = house.client()
        client.start(END_LSN)
        house.until(lambda: bool(house.hub.readers))
        numbers, status = pages(house)
    assert {
        "safekeeper_term": 1,
        "safekeeper_wal_begin_lsn_bytes": BASE_LSN,
        "safekeeper_write_lsn_bytes": END_LSN + 13,
        "safekeeper_flush_lsn_bytes": END_LSN + 13,
        "safekeeper_commit_lsn_bytes": END_LSN,
        "safekeeper_readable_lsn_bytes": END_LSN,
        "safekeeper_archived_lsn_bytes": END_LSN,
        "safekeeper_wal_bytes": len(WAL) + 13,
        "safekeeper_wal_limit_bytes": 64 * SEGMENT_SIZE,
        "safekeeper_wal_over_limit": 0,
        "safekeeper_archiver": 1,
        "safekeeper_archive_problem": 0,
        "safekeeper_unarchived_bytes": 0,
        "safekeeper_archive_uploads_total": 3,
        "safekeeper_archive_uploaded_bytes_total": len(WAL),
        "safekeeper_archive_errors_total": 0,
        "safekeeper_archive_upload_seconds_count": 3,
        "safekeeper_archive_upload_seconds_bucket[+Inf]": 3,
        "safekeeper_read_through_segments_total": 0,
        "safekeeper_readers": 1,
    }.items() <= numbers.items()
    assert numbers["safekeeper_disk_free_bytes"] > 0
    assert status["wal_begin_lsn"] == "0/300000"
    assert status["wal_limit"] == 64 * SEGMENT_SIZE
    archive = status["archive"]
    assert archive["url"] == str(tmp_path / "archive")
    assert (archive["archiver"], archive["lag_bytes"], archive["problem"]) == (True, 0, "")
    assert archive["last_upload_at"] is not None


def test_slots_are_reported_in_numbers_and_one_that_holds_nothing_has_no_position(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path, archive=str(tmp_path / "archive")) as house:
        leader = house.led()
        leader.write(WAL)
        leader.commit(END_LSN)
        house.run(house.slots.create("holds", BASE_LSN, connection=0))
        house.run(house.slots.create("nothing", 0, connection=0))
        house.call(lambda: house.slots.acquire(house.slots.find("nothing"), 7))
        numbers, status = pages(house)
    assert {
        "safekeeper_slot_restart_lsn_bytes[holds]": BASE_LSN,
        "safekeeper_slot_retained_bytes[holds]": len(WAL),
        "safekeeper_slot_retained_bytes[nothing]": 0,
        "safekeeper_slot_idle_seconds[nothing]": 0,
        "safekeeper_slot_active[holds]": 0,
        "safekeeper_slot_active[nothing]": 1,
    }.items() <= numbers.items()
    assert "safekeeper_slot_restart_lsn_bytes[nothing]" not in numbers
    assert numbers["safekeeper_slot_idle_seconds[holds]"] > 0
    assert [(slot["name"], slot["restart_lsn"]) for slot in status["slots"]] == [
        ("holds", format_lsn(BASE_LSN)),
        ("nothing", None),
    ]


def test_a_problem_is_logged_when_it_begins_changes_lasts_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    now = 0.0
    problem = ProblemLog(logging.getLogger("x"), lambda: now)
    for at, text in ((1, "full"), (2, "full"), (3, "dead"), (602, "dead"), (603, "dead")):
        now = float(at)
        problem.note(text, "it is %s at %d", text, at)
    problem.over("fine")
    problem.over("fine")
    assert [record.message for record in caplog.records] == [
        "it is full at 1",
        "it is dead at 3",
        "it is dead at 603",
        "fine",
    ]


def test_a_problem_that_comes_and_goes_is_a_few_lines_a_minute_in_either_direction(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    now = 0.0
    problem = ProblemLog(logging.getLogger("x"), lambda: now)
    for at in range(1, 60):
        now = float(at)
        problem.note("full", "it is full")
        problem.over("fine")
    assert [record.message for record in caplog.records] == ["it is full", "fine"] * CHANGES_A_MINUTE
    # It lasts now, and the log does not end with what is no longer true.
    for later in (59.5, 59.9, 60.5, 61.0):
        now = later
        problem.note("full", "it is full")
    left_out = 59 - CHANGES_A_MINUTE + 1
    assert [record.message for record in caplog.records[2 * CHANGES_A_MINUTE :]] == [
        f"it is full (and {left_out} more such lines suppressed)"
    ]
    # One that is too many replaces one that the log has: its end is logged nevertheless.
    for text in "abcdefgh":
        problem.note(text, f"it is {text}")
    problem.over("fine")
    assert [record.message for record in caplog.records[-2:]] == ["it is e", "fine"]
