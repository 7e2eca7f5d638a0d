"""Replication messages and rows: what is understood, and what is refused."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.lsn import LSN_MAX
from safekeeper.pgwire.backend import POSTGRES_EPOCH_US
from walproxy.postgres.replication import (
    Keepalive,
    XLogData,
    build_hot_standby_feedback,
    build_status_update,
    parse_copy_message,
    parse_identify_system,
    parse_segment_size,
    parse_timeline_end,
)

lsns = st.integers(0, LSN_MAX)


def xlog_data(begin_lsn: int, end_lsn: int, payload: bytes) -> memoryview:
    return memoryview(b"w" + struct.pack(">QQq", begin_lsn, end_lsn, 5) + payload)


@given(st.integers(0, LSN_MAX - 100), lsns, st.binary(min_size=1, max_size=100))
def test_wal_is_a_view_into_its_message(begin_lsn: int, end_lsn: int, payload: bytes) -> None:
    message = parse_copy_message(xlog_data(begin_lsn, end_lsn, payload))
    assert isinstance(message, XLogData)
    assert (message.begin_lsn, message.server_end_lsn, bytes(message.payload)) == (begin_lsn, end_lsn, payload)


def test_payload_of_wal_shares_the_messages_memory() -> None:
    buffer = bytearray(xlog_data(1, 2, b"abc"))
    message = parse_copy_message(memoryview(buffer))
    assert isinstance(message, XLogData)
    buffer[-1:] = b"z"
    assert bytes(message.payload) == b"abz"


@pytest.mark.parametrize(("byte", "asked"), [(0, False), (1, True), (7, True)])
def test_keepalive_reports_whether_a_reply_is_wanted(byte: int, asked: bool) -> None:
    message = memoryview(b"k" + struct.pack(">QqB", 0x16B374D848, 1, byte))
    assert parse_copy_message(message) == Keepalive(0x16B374D848, asked)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"w",
        b"w" + bytes(24),  # WAL without a byte of WAL
        b"w" + bytes(23),
        b"k" + bytes(16),
        b"k" + bytes(18),
        b"x" + bytes(30),
        b"r" + bytes(33),
        b"w" + struct.pack(">QQq", LSN_MAX, 0, 0) + b"ab",
    ],
)
def test_message_that_is_not_understood_is_refused(message: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="PostgreSQL sent"):
        parse_copy_message(memoryview(message))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_a_protocol_error(message: bytes) -> None:
    try:
        parsed = parse_copy_message(memoryview(message))
    except RemoteProtocolError as error:
        assert "\n" not in str(error)
    else:
        assert isinstance(parsed, XLogData | Keepalive)


@given(lsns, lsns, lsns, st.booleans())
def test_status_update_has_the_layout_of_the_protocol(write: int, flush: int, apply: int, ask: bool) -> None:
    message = build_status_update(write, flush, apply, POSTGRES_EPOCH_US + 42, ask)
    assert message[:1] == b"r"
    assert struct.unpack(">QQQqB", message[1:]) == (write, flush, apply, 42, ask)


def test_hot_standby_feedback_has_the_layout_of_the_protocol() -> None:
    message = build_hot_standby_feedback(POSTGRES_EPOCH_US - 1, 700, 1, 600, 2)
    assert message[:1] == b"h"
    assert struct.unpack(">qIIII", message[1:]) == (-1, 700, 1, 600, 2)


def test_identify_system_row_is_read() -> None:
    row: list[str | None] = ["7710629479682272823", "3", "16/B374D848", None]
    assert parse_identify_system(row) == (7710629479682272823, 3, 0x16B374D848)


@pytest.mark.parametrize(
    "row", [[], [None, "1", "0/1"], ["0", "1", "0/1"], ["5", "0", "0/1"], ["5", "1", "x"], ["5", "-1", "0/1"], ["5"]]
)
def test_identify_system_row_without_sense_is_refused(row: list[str | None]) -> None:
    with pytest.raises(RemoteProtocolError, match="IDENTIFY_SYSTEM"):
        parse_identify_system(row)


@pytest.mark.parametrize(
    ("text", "size"), [("16MB", 16 << 20), ("1GB", 1 << 30), ("1MB", 1 << 20), ("2048kB", 2 << 20)]
)
def test_segment_size_is_read_with_its_unit(text: str, size: int) -> None:
    assert parse_segment_size(text) == size


@pytest.mark.parametrize("text", ["", "16", "3MB", "2GB", "512kB", "MB", "-16MB", "16 MiB", "9" * 5000])
def test_segment_size_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="wal_segment_size"):
        parse_segment_size(text)


def test_end_of_a_timeline_names_the_next_one() -> None:
    assert parse_timeline_end(["2", "0/3000148"]) == (2, 0x3000148)
    for row in ([], ["1", "0/1"], ["2", None], ["x", "0/1"]):
        with pytest.raises(RemoteProtocolError, match="ended a timeline"):
            parse_timeline_end(row)
