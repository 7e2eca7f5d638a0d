"""Messages of pgoutput: each kind, and everything that none is."""

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safekeeper.base.errors import RemoteProtocolError
from tests.unit import pgoutput_bytes as built
from tests.unit.pgoutput_bytes import UNSENT
from walproxy.pipeline.cdc import messages, pgoutput
from walproxy.pipeline.cdc.messages import UNCHANGED, Binary, Column
from walproxy.pipeline.cdc.pgoutput import decode

LSN = 0x1_0000_0028
COLUMNS = (("id", 23), ("größe", 1700))

# Each message: the version that brought it, whether it stands in a piece, its bytes, what they mean.
MESSAGES: list[tuple[int, bool, bytes, messages.Message]] = [
    (1, False, built.begin(0x200, 7), messages.Begin(0x200, 5, 7)),
    (1, False, built.commit(0x200, 0x230), messages.Commit(0x200, 0x230, 5)),
    (1, False, built.origin(0x100, "berlin"), messages.Origin(0x100, "berlin")),
    (
        1,
        False,
        built.relation(16384, "t", COLUMNS, key=["id"], identity="i"),
        messages.Relation(0, 16384, "public", "t", "i", (Column("id", True, 23, -1), Column("größe", False, 1700, -1))),
    ),
    (
        2,
        True,
        built.relation(3, "pg_class", (), schema="", xid=8),
        messages.Relation(8, 3, "pg_catalog", "pg_class", "d", ()),
    ),
    (1, False, built.type_name(99, "shop", "colour"), messages.Type(0, 99, "shop", "colour")),
    (2, True, built.type_name(99, "", "colour", xid=8), messages.Type(8, 99, "pg_catalog", "colour")),
    (1, False, built.insert(1, "a", None, ""), messages.Insert(0, 1, (b"a", None, b""))),
    (2, True, built.insert(1, "a", xid=8), messages.Insert(8, 1, (b"a",))),
    (1, False, built.insert(1, b"\x00\x01"), messages.Insert(0, 1, (Binary(b"\x00\x01"),))),
    (1, False, built.update(1, ["a", UNSENT]), messages.Update(0, 1, None, None, (b"a", UNCHANGED))),
    (
        1,
        False,
        built.update(1, ["b", "x"], key=["a", None]),
        messages.Update(0, 1, (b"a", None), None, (b"b", b"x")),
    ),
    (
        2,
        True,
        built.update(1, ["b", "x"], before=["a", "x"], xid=8),
        messages.Update(8, 1, None, (b"a", b"x"), (b"b", b"x")),
    ),
    (1, False, built.delete(1, key=["a", None]), messages.Delete(0, 1, (b"a", None), None)),
    (2, True, built.delete(1, before=["a", "x"], xid=8), messages.Delete(8, 1, None, (b"a", b"x"))),
    (1, False, built.truncate([1, 2], 3), messages.Truncate(0, (1, 2), True, True)),
    (2, True, built.truncate([1], 0, xid=8), messages.Truncate(8, (1,), False, False)),
    (1, False, built.message("p", b"\x00x"), messages.LogicalMessage(0, True, 9, "p", b"\x00x")),
    (
        2,
        True,
        built.message("", b"", transactional=False, xid=8),
        messages.LogicalMessage(8, False, 9, "", b""),
    ),
    (2, True, built.origin(0x100, "berlin"), messages.Origin(0x100, "berlin")),
    (2, False, built.stream_start(7, True), messages.StreamStart(7, True)),
    (2, False, built.STREAM_STOP, messages.StreamStop()),
    (2, False, built.stream_commit(7, 0x200, 0x230), messages.StreamCommit(7, 0x200, 0x230, 5)),
    (2, False, built.stream_abort(7, 8), messages.StreamAbort(7, 8, 0, 0)),
    (4, False, built.stream_abort_where(7, 8, 0x150, 6), messages.StreamAbort(7, 8, 0x150, 6)),
    (3, False, built.begin_prepare(0x10, 0x20, 7, "g"), messages.BeginPrepare(0x10, 0x20, 5, 7, "g")),
    (3, False, built.prepare(0x10, 0x20, 7, "g"), messages.Prepare(0x10, 0x20, 5, 7, "g")),
    (3, False, built.stream_prepare(0x10, 0x20, 7, "g"), messages.StreamPrepare(0x10, 0x20, 5, 7, "g")),
    (3, False, built.commit_prepared(0x30, 0x40, 7, "g"), messages.CommitPrepared(0x30, 0x40, 5, 7, "g")),
    (3, False, built.rollback_prepared(0x20, 0x40, 7, "g"), messages.RollbackPrepared(0x20, 0x40, 5, 6, 7, "g")),
]
NAMES = [
    f"{type(meaning).__name__}{'_in_piece' if piece else ''}{index}"
    for index, (_, piece, _, meaning) in enumerate(MESSAGES)
]


def refused(data: bytes, *, version: int = 4, in_piece: bool = False) -> str:
    with pytest.raises(RemoteProtocolError) as raised:
        decode(data, lsn=LSN, version=version, in_piece=in_piece)
    said = str(raised.value)
    assert "1/28" in said
    assert "\n" not in said
    return said


@pytest.mark.parametrize(("version", "in_piece", "data", "meaning"), MESSAGES, ids=NAMES)
def test_each_message_is_decoded_in_every_version_that_has_it(
    version: int, in_piece: bool, data: bytes, meaning: messages.Message
) -> None:
    for each in pgoutput.VERSIONS[version - 1 :]:
        assert decode(data, lsn=LSN, version=each, in_piece=in_piece) == meaning


@pytest.mark.parametrize(("version", "in_piece", "data", "meaning"), MESSAGES, ids=NAMES)
def test_a_message_that_is_cut_short_or_too_long_is_refused(
    version: int, in_piece: bool, data: bytes, meaning: messages.Message
) -> None:
    for length in range(len(data)):
        if isinstance(meaning, messages.StreamAbort) and length == len(built.stream_abort(7, 8)):
            continue  # without its place it is a whole message
        refused(data[:length], version=version, in_piece=in_piece)
    refused(data + b"\0", version=version, in_piece=in_piece)


@pytest.mark.parametrize(("version", "in_piece", "data", "meaning"), MESSAGES, ids=NAMES)
def test_a_message_of_a_later_version_is_refused(
    version: int, in_piece: bool, data: bytes, meaning: messages.Message
) -> None:
    if not in_piece:
        for each in pgoutput.VERSIONS[: version - 1]:
            refused(data, version=each)


def test_every_kind_of_the_protocol_is_among_the_examples() -> None:
    assert {data[:1] for _, _, data, _ in MESSAGES} == set(pgoutput._KINDS)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"Z",
        b"C\x01" + struct.pack(">QQq", 1, 2, 3),
        b"c" + struct.pack(">IBQQq", 1, 1, 1, 2, 3),
        b"K\x01" + built.commit_prepared(1, 2, 3, "g")[2:],
        built.relation(1, "t", (), identity="x"),
        b"I" + struct.pack(">I", 1) + b"K" + built.row("a"),
        b"U" + struct.pack(">I", 1) + b"K" + built.row("a") + b"K" + built.row("a"),
        b"D" + struct.pack(">I", 1) + b"N" + built.row("a"),
        built.truncate([1], 4),
        b"T" + struct.pack(">IB", 0xFFFFFFFF, 0),
        b"S" + struct.pack(">IB", 1, 2),
        b"M\x02" + built.message("p", b"")[2:],
        b"I" + struct.pack(">I", 1) + b"N" + struct.pack(">H", 1) + b"z",
        b"I" + struct.pack(">I", 1) + b"N" + struct.pack(">H", 1) + b"t" + struct.pack(">I", 0xFFFFFFFF) + b"a",
        b"O" + struct.pack(">Q", 1) + b"\xff\0",
    ],
)
def test_what_the_protocol_does_not_have_is_refused(data: bytes) -> None:
    refused(data)


@given(st.binary(max_size=60), st.sampled_from(pgoutput.VERSIONS), st.booleans())
def test_any_bytes_are_a_message_or_refused(data: bytes, version: int, in_piece: bool) -> None:
    try:
        decode(data, lsn=LSN, version=version, in_piece=in_piece)
    except RemoteProtocolError as error:
        assert "1/28" in str(error)


@given(st.sampled_from(MESSAGES), st.data())
def test_a_message_with_any_byte_changed_is_a_message_or_refused(
    example: tuple[int, bool, bytes, messages.Message], data: st.DataObject
) -> None:
    version, in_piece, good, _ = example
    bad = bytearray(good)
    bad[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(bad), lsn=LSN, version=version, in_piece=in_piece)
    except RemoteProtocolError as error:
        assert "1/28" in str(error)


@given(st.lists(st.one_of(st.none(), st.just(UNSENT), st.text(max_size=9), st.binary(max_size=9)), max_size=9))
def test_a_row_comes_out_as_it_went_in(cells: Sequence[object]) -> None:
    message = decode(built.insert(1, *cells), lsn=LSN, version=1)
    assert isinstance(message, messages.Insert)
    expected = tuple(
        UNCHANGED if cell is UNSENT else cell.encode() if isinstance(cell, str) else cell for cell in cells
    )
    assert message.after == expected
    assert [type(value) is Binary for value in message.after] == [type(cell) is bytes for cell in cells]
