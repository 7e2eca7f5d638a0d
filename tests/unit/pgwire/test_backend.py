"""Messages of the server, byte by byte."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safekeeper.base.errors import LocalProtocolError
from safekeeper.base.lsn import LSN_MAX
from safekeeper.pgwire import backend
from safekeeper.pgwire.backend import INT8, POSTGRES_EPOCH_US, TEXT, ResultColumn, keepalive, xlog_data_header
from tests.unit.pgwire_client import error_of, kinds_of, messages_of, row_of
from walproxy.postgres.replication import Keepalive, XLogData, parse_copy_message

lsns = st.integers(0, LSN_MAX - 200_000)
# From 1900 to 2100.
times = st.integers(-2_208_988_800_000_000, 4_102_444_800_000_000)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (backend.authentication_ok(), b"R\0\0\0\x08\0\0\0\0"),
        (backend.authentication_sasl(["A-PLUS", "A"]), b"R\0\0\0\x12\0\0\0\x0aA-PLUS\0A\0\0"),
        (backend.authentication_sasl_continue(b"abc"), b"R\0\0\0\x0b\0\0\0\x0babc"),
        (backend.authentication_sasl_final(b"v=x"), b"R\0\0\0\x0b\0\0\0\x0cv=x"),
        (backend.negotiate_protocol_version([]), b"v\0\0\0\x0c\0\x03\0\0\0\0\0\0"),
        (backend.negotiate_protocol_version(["_pq_.x"]), b"v\0\0\0\x13\0\x03\0\0\0\0\0\x01_pq_.x\0"),
        (backend.parameter_status("a", "b"), b"S\0\0\0\x08a\0b\0"),
        (backend.ready_for_query(), b"Z\0\0\0\x05I"),
        (backend.command_complete("SHOW"), b"C\0\0\0\x09SHOW\0"),
        (backend.empty_query_response(), b"I\0\0\0\x04"),
        (backend.copy_both_response(), b"W\0\0\0\x07\0\0\0"),
        (backend.copy_done(), b"c\0\0\0\x04"),
        (
            backend.data_row(["é", b"\xff\0", "", None]),
            b"D\0\0\0\x1a\0\x04\0\0\0\x02\xc3\xa9\0\0\0\x02\xff\0\0\0\0\0\xff\xff\xff\xff",
        ),
        (
            backend.row_description([ResultColumn("a", *TEXT), ResultColumn("bc", *INT8)]),
            b"T\0\0\0\x2f\0\x02"
            b"a\0" + struct.pack(">IhIhih", 0, 0, 25, -1, -1, 0) + b"bc\0" + struct.pack(">IhIhih", 0, 0, 20, 8, -1, 0),
        ),
        (backend.error_response("ERROR", "42601", "m"), b"E\0\0\0\x1dSERROR\0VERROR\0C42601\0Mm\0\0"),
    ],
)
def test_message_is_as_the_protocol_has_it(message: bytes, expected: bytes) -> None:
    assert message == expected


def test_error_has_detail_and_hint_only_if_there_are_any() -> None:
    assert error_of(backend.error_response("FATAL", "57P01", "m", "d", "h")) == {
        "S": "FATAL",
        "V": "FATAL",
        "C": "57P01",
        "M": "m",
        "D": "d",
        "H": "h",
    }
    assert set(error_of(backend.error_response("FATAL", "57P01", "m"))) == {"S", "V", "C", "M"}


def test_a_string_with_a_nul_is_not_sent() -> None:
    with pytest.raises(LocalProtocolError, match="NUL"):
        backend.command_complete("SHOW\0x")


@given(lsns, lsns, times, st.binary(min_size=1, max_size=300))
def test_a_walreceiver_understands_wal_behind_its_header(
    begin_lsn: int, server_end_lsn: int, unix_time_us: int, wal: bytes
) -> None:
    ((kind, body),) = messages_of(xlog_data_header(begin_lsn, server_end_lsn, unix_time_us, len(wal)) + wal)
    parsed = parse_copy_message(memoryview(body))
    assert kind == "d"
    assert isinstance(parsed, XLogData)
    assert (parsed.begin_lsn, parsed.server_end_lsn, bytes(parsed.payload)) == (begin_lsn, server_end_lsn, wal)
    assert struct.unpack_from(">q", body, 17) == (unix_time_us - POSTGRES_EPOCH_US,)


@given(lsns, times, st.booleans())
def test_a_walreceiver_understands_a_keepalive(server_end_lsn: int, unix_time_us: int, reply_requested: bool) -> None:
    ((kind, body),) = messages_of(keepalive(server_end_lsn, unix_time_us, reply_requested))
    assert kind == "d"
    assert parse_copy_message(memoryview(body)) == Keepalive(server_end_lsn, reply_requested)
    assert struct.unpack_from(">q", body, 9) == (unix_time_us - POSTGRES_EPOCH_US,)


@given(st.lists(st.none() | st.binary(max_size=20), max_size=5))
def test_rows_come_back_as_they_were(row: list[bytes | None]) -> None:
    output = backend.data_row(row) + backend.ready_for_query()
    assert row_of(output) == row
    assert kinds_of(output) == "DZ"
