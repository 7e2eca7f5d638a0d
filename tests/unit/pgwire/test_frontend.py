"""Packets and messages of the client, in any pieces, and what they say."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.pgwire.events import HotStandbyFeedback, StatusUpdate
from safekeeper.pgwire.frontend import (
    MESSAGE_BYTES_MAX,
    STARTUP_BYTES_MAX,
    FrontendDecoder,
    Message,
    Packet,
    parse_copy_data,
    parse_string,
)
from tests.unit.pgwire_client import (
    SSL_REQUEST,
    hot_standby_feedback,
    message,
    packet,
    query,
    status_update,
)

kinds = st.sampled_from("QPBEFHSCDdcfpX")
messages = st.lists(st.tuples(kinds, st.binary(max_size=60)), max_size=6)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """`data` cut at `cuts`, each taken modulo what is left."""
    parts = []
    for cut in cuts:
        size = cut % (len(data) + 1)
        parts.append(data[:size])
        data = data[size:]
    return [*parts, data]


@given(messages, st.lists(st.integers(0, 400), max_size=12))
def test_messages_come_out_whole_however_they_were_cut(sent: list[tuple[str, bytes]], cuts: list[int]) -> None:
    decoder = FrontendDecoder()
    received: list[Message] = []
    for piece in pieces(b"".join(message(kind, body) for kind, body in sent), cuts):
        decoder.feed(piece)
        while (one := decoder.next_message()) is not None:
            received.append(one)
    assert received == [(ord(kind), body) for kind, body in sent]
    assert decoder.take_rest() == b""


@given(st.binary(max_size=100), st.lists(st.integers(0, 120), max_size=5))
def test_a_packet_comes_out_whole_and_leaves_what_follows_it(body: bytes, cuts: list[int]) -> None:
    decoder = FrontendDecoder()
    received: list[Packet] = []
    for piece in pieces(SSL_REQUEST + packet(3 << 16, body) + query("x"), cuts):
        decoder.feed(piece)
        while len(received) < 2 and (one := decoder.next_packet()) is not None:
            received.append(one)
    assert received == [Packet(80877103, b""), Packet(3 << 16, body)]
    assert decoder.next_message() == (ord("Q"), b"x\0")


def test_a_message_that_lacks_one_byte_waits_for_it() -> None:
    decoder = FrontendDecoder()
    decoder.feed(query("SHOW x")[:-1])
    assert decoder.next_message() is None
    decoder.feed(b"\0")
    assert decoder.next_message() == (ord("Q"), b"SHOW x\0")


@pytest.mark.parametrize("length", [0, 7, STARTUP_BYTES_MAX + 1, 0xFFFFFFFF])
def test_a_packet_of_impossible_length_is_refused_before_it_is_here(length: int) -> None:
    decoder = FrontendDecoder()
    decoder.feed(struct.pack(">I", length))
    with pytest.raises(RemoteProtocolError, match="not a PostgreSQL client"):
        decoder.next_packet()


def test_a_packet_of_the_greatest_length_is_taken() -> None:
    decoder = FrontendDecoder()
    decoder.feed(packet(3 << 16, bytes(STARTUP_BYTES_MAX - 8)))
    assert decoder.next_packet() == Packet(3 << 16, bytes(STARTUP_BYTES_MAX - 8))


@pytest.mark.parametrize("length", [0, 3, MESSAGE_BYTES_MAX + 1, 0xFFFFFFFF])
def test_a_message_of_impossible_length_is_refused_before_it_is_here(length: int) -> None:
    decoder = FrontendDecoder()
    decoder.feed(b"Q" + struct.pack(">I", length))
    with pytest.raises(RemoteProtocolError, match="length"):
        decoder.next_message()


def test_a_message_of_the_greatest_length_is_taken() -> None:
    decoder = FrontendDecoder()
    decoder.feed(message("d", bytes(MESSAGE_BYTES_MAX - 4)))
    assert decoder.next_message() == (ord("d"), bytes(MESSAGE_BYTES_MAX - 4))


@pytest.mark.parametrize("data", [b"G", b"\0", b"\x16\x03\x01", b"GET / HTTP/1.1"])
def test_an_unknown_type_is_refused_at_its_first_byte(data: bytes) -> None:
    decoder = FrontendDecoder()
    decoder.feed(data)
    with pytest.raises(RemoteProtocolError, match="unknown message type"):
        decoder.next_message()


@pytest.mark.parametrize(
    ("body", "match"),
    [(b"", "does not end"), (b"abc", "does not end"), (b"a\0b\0", "does not end"), (b"\xff\0", "UTF-8")],
)
def test_a_string_ends_where_its_message_ends(body: bytes, match: str) -> None:
    with pytest.raises(RemoteProtocolError, match=match):
        parse_string(body)


@given(*[st.integers(0, (1 << 64) - 1)] * 3, st.booleans())
def test_status_update_is_understood(write_lsn: int, flush_lsn: int, apply_lsn: int, reply_requested: bool) -> None:
    body = status_update(write_lsn, flush_lsn, apply_lsn, reply_requested)[5:]
    assert parse_copy_data(body) == StatusUpdate(write_lsn, flush_lsn, apply_lsn, reply_requested)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ((0, 0, 0, 0), HotStandbyFeedback(0, 0)),
        ((731, 0, 0, 0), HotStandbyFeedback(731, 0)),
        ((731, 2, 740, 3), HotStandbyFeedback(2 << 32 | 731, 3 << 32 | 740)),
        # No xid is none, whatever epoch stands beside it.
        ((0, 2, 0, 3), HotStandbyFeedback(0, 0)),
    ],
)
def test_feedback_joins_xid_and_epoch(sent: tuple[int, int, int, int], expected: HotStandbyFeedback) -> None:
    assert parse_copy_data(hot_standby_feedback(*sent)[5:]) == expected


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"r",
        b"r" + bytes(32),
        b"r" + bytes(34),
        b"h" + bytes(23),
        b"h" + bytes(25),
        b"w" + bytes(33),
        b"p" + bytes(8),
    ],
)
def test_other_words_within_a_copy_are_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="invalid replication message"):
        parse_copy_data(body)
