"""What a replication client is told: the answers as values."""

import pytest

from safekeeper.acceptor.readable import ReadableLog
from safekeeper.base.errors import CommandError
from safekeeper.base.timelines import PASSED_OVER_HISTORY, lists_no_parent, parse_timeline_history
from safekeeper.consensus.control_state import ControlState, TliHistory
from safekeeper.pgwire.backend import INT4, INT8
from safekeeper.pgwire.commands import Select, parse_command
from safekeeper.serving.replication_commands import (
    identify_system,
    select,
    session_parameters,
    show,
    size_text,
    timeline_history,
    version_text,
)
from safekeeper.serving.slots import Slot

LOG = ReadableLog(begin_lsn=0x1000000, end_lsn=0x5000100, tli=4, lineage=((1, 0x2000000), (3, 0x3000000)))


def control(server_version: int = 180001, *files: TliHistory) -> ControlState:
    return ControlState(
        safekeeper_id=1,
        incarnation="a" * 32,
        system_id=77,
        segment_size=16 << 20,
        server_version=server_version,
        tli_histories=files,
    )


@pytest.mark.parametrize(("version", "column_type"), [(150018, INT4), (160000, INT8), (180001, INT8)])
def test_a_timeline_is_as_wide_as_in_that_version(version: int, column_type: tuple[int, int]) -> None:
    answer = identify_system(LOG, control(version))
    assert answer.columns[1][1:] == column_type
    assert answer.row == ("77", "4", "0/5000100", None)


@pytest.mark.parametrize(("size", "text"), [(16 << 20, "16MB"), (1 << 20, "1MB"), (1 << 30, "1GB"), (8192, "8kB")])
def test_a_size_is_written_as_show_writes_it(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(("version", "text"), [(150018, "15.18"), (180001, "18.1"), (130022, "13.22")])
def test_a_version_is_written_as_postgresql_calls_it(version: int, text: str) -> None:
    assert version_text(version) == text
    assert session_parameters(control(version))["server_version"] == text


def test_setting_names_are_case_insensitive_and_come_back_as_they_are_spelt() -> None:
    answer = show("timezone", LOG, control())
    assert (answer.columns[0].name, answer.row) == ("TimeZone", ("UTC",))


def test_a_history_file_that_is_here_comes_byte_for_byte() -> None:
    content = b"# written by hand\n1\t0/2000000\tsome reason\n3\t0/3000000\tanother\n"
    assert timeline_history(4, LOG, control(180001, TliHistory(4, content))).row == ("00000004.history", content)


def test_a_history_file_that_is_not_here_is_made_from_the_lineage() -> None:
    for tli, lineage in ((4, LOG.lineage), (3, LOG.lineage[:1])):
        row = timeline_history(tli, LOG, control()).row
        assert row is not None and isinstance(row[1], bytes)
        assert parse_timeline_history(tli, row[1]) == lineage


def test_a_number_that_a_promotion_passed_over_has_a_file_without_ancestors() -> None:
    assert timeline_history(2, LOG, control()).row == ("00000002.history", PASSED_OVER_HISTORY)
    assert lists_no_parent(PASSED_OVER_HISTORY)


@pytest.mark.parametrize("tli", [1, 5])
def test_the_first_timeline_and_foreign_ones_have_no_file(tli: int) -> None:
    files = (TliHistory(5, b"1\t0/2000000\tnot readable yet\n"),)
    with pytest.raises(CommandError, match="No such file"):
        timeline_history(tli, LOG, control(180001, *files))


SLOTS = {"used": Slot("used", 0x2000000, 0.0, holder=7), "idle": Slot("idle", 0, 0.0)}


def selected(sql: str, log: ReadableLog = LOG) -> tuple[str | bytes | None, ...] | None:
    command = parse_command(sql)
    assert isinstance(command, Select)
    answer = select(command, "me", SLOTS.get, log, control())
    assert len(answer.columns) == len(command.columns)
    assert answer.tag == f"SELECT {int(answer.row is not None)}"
    return answer.row


@pytest.mark.parametrize(
    ("sql", "row"),
    [
        ("SELECT 1", ("1",)),
        ("SELECT version()", ("PostgreSQL 18.1 (safekeeper)",)),
        ("SELECT active, restart_lsn FROM pg_replication_slots WHERE slot_name = 'used'", ("t", "0/2000000")),
        ("SELECT active, restart_lsn FROM pg_replication_slots WHERE slot_name = 'idle'", ("f", None)),
        ("SELECT active FROM pg_replication_slots WHERE slot_name = 'other'", None),
        ("SELECT active FROM pg_replication_slots WHERE slot_type = 'logical' AND slot_name = 'used'", None),
        ("SELECT active FROM pg_replication_slots WHERE slot_name = 'idle' AND slot_name = 'used'", None),
        ("SELECT setting FROM pg_settings WHERE name = 'wal_segment_size'", ("16777216",)),
        ("SELECT setting FROM pg_settings WHERE name = 'work_mem'", None),
        ("SELECT usesuper FROM pg_user WHERE usename = CURRENT_USER", ("t",)),
        ("SELECT usesuper FROM pg_user WHERE usename = 'somebody'", None),
    ],
)
def test_a_tool_finds_its_slot_and_the_settings_in_sql(sql: str, row: tuple[str | None, ...] | None) -> None:
    assert selected(sql) == row


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT active FROM pg_replication_slots",
        "SELECT setting FROM pg_settings",
        "SELECT plugin FROM pg_replication_slots WHERE slot_name = 'used'",
        "SELECT name FROM pg_settings WHERE name = 'work_mem' AND source = 'default'",
        "SELECT number FROM ledger",
        "SELECT now()",
    ],
)
def test_a_select_of_anything_else_is_refused_with_what_can_be_read(sql: str) -> None:
    with pytest.raises(CommandError, match="a safekeeper does not support SQL") as caught:
        selected(sql)
    assert caught.value.sqlstate == "0A000" and "pg_replication_slots" in caught.value.hint


def test_a_select_waits_for_the_first_wal() -> None:
    with pytest.raises(CommandError, match="does not have committed WAL yet"):
        selected("SELECT 1", ReadableLog(begin_lsn=0, end_lsn=0, tli=1, lineage=()))
