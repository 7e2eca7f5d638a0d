"""What a replication client is told: the answers as values."""

import pytest

from safekeeper.consensus.control_state import ControlState, TliHistory
from safekeeper.consensus.learning import ReadableLog
from safekeeper.errors import CommandError
from safekeeper.pgwire.backend import INT4, INT8
from safekeeper.replication_commands import (
    identify_system,
    session_parameters,
    show,
    size_text,
    timeline_history,
    version_text,
)
from safekeeper.timelines import parse_timeline_history

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


@pytest.mark.parametrize("tli", [1, 2, 5])
def test_the_first_timeline_and_foreign_ones_have_no_file(tli: int) -> None:
    files = (TliHistory(5, b"1\t0/2000000\tnot readable yet\n"),)
    with pytest.raises(CommandError, match="No such file"):
        timeline_history(tli, LOG, control(180001, *files))
