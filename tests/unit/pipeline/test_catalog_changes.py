"""The view `catalog_changes` of records that are made here: files, maps, malformed records, compressed images."""

import struct
from typing import Any

import numpy as np
import pytest

from safekeeper.waldecode.format import RM_XACT, WalFormatError
from tests.unit.record_bodies import Block, body
from tests.unit.transaction_bodies import ABORT, COMMIT
from tests.unit.wal_builder import WalBuilder
from walproxy.pipeline.decoder.catalog_layouts import catalogs_of
from walproxy.pipeline.decoder.decode import decode
from walproxy.pipeline.decoder.page_images import decompress_pglz, items_of
from walproxy.pipeline.decoder.views import Piece, view_batch

SMGR, RELMAP, HEAP2, HEAP, BTREE = 2, 7, 9, 10, 11
CLASS = (1663, 5, 1259)
HAS_XINFO = 0x80


def rows(wal: WalBuilder) -> list[dict[str, Any]]:
    """Return the rows of the view, each with what is not null but for its place."""
    decoded = decode(bytes(wal.data), wal.begin_lsn, wal.position, wal.segment_size)
    assert decoded.end.kind == "complete", decoded.end
    found = view_batch("catalog_changes", decoded, Piece(wal.begin_lsn, wal.position)).to_pylist()
    return [
        {name: value for name, value in row.items() if value is not None and name not in ("lsn", "sequence", "xid")}
        for row in found
    ]


def test_files_are_created_and_truncated() -> None:
    wal = WalBuilder()
    wal.add(body(struct.pack("<IIIi", 1663, 5, 16384, 0)), rmid=SMGR, info=0x10)
    wal.add(body(struct.pack("<IIIi", 1663, 5, 16384, 3)), rmid=SMGR, info=0x10)
    wal.add(body(struct.pack("<IIIIi", 7, 1663, 5, 16384, 7)), rmid=SMGR, info=0x20)
    wal.add(body(struct.pack("<IIIIi", 1, 1663, 5, 16384, 2)), rmid=SMGR, info=0x20)  # the visibility map only
    file = {"tablespace": 1663, "database": 5, "file": 16384}
    assert rows(wal) == [
        {"action": "create_file", **file, "fork": 0},
        {"action": "create_file", **file, "fork": 3},
        {"action": "truncate_file", **file, "fork": 0, "blocks": 7},
    ]


@pytest.mark.parametrize("info", [COMMIT, ABORT])
def test_the_end_of_a_transaction_drops_files_and_invalidates_relations_once_each(info: int) -> None:
    xinfo = 1 | 2 | 4 | 8  # a database, subtransactions, files, messages
    messages = [(-2, 5, 16400), (7, 5, 99), (-2, 5, 16400), (-2, 5, 0), (-2, 0, 1262), (-3, 5, 16500)]
    end = struct.pack("<qIII", 1, xinfo, 5, 1663) + struct.pack("<II", 1, 900)
    end += struct.pack("<I6I", 2, 1663, 5, 16384, 1663, 5, 16385)
    end += struct.pack("<I", len(messages)) + b"".join(struct.pack("<b3xII4x", *message) for message in messages)
    wal = WalBuilder()
    wal.add(body(end), rmid=RM_XACT, info=info | HAS_XINFO)
    assert rows(wal) == [
        {"action": "drop_file", "tablespace": 1663, "database": 5, "file": 16384},
        {"action": "drop_file", "tablespace": 1663, "database": 5, "file": 16385},
        {"action": "invalidate", "database": 5, "relation": 16400},
        {"action": "invalidate", "database": 0, "relation": 1262},
    ]


def test_a_map_shows_the_catalogs_that_have_another_file() -> None:
    mappings = [(1259, 1259), (1249, 16500), (4000, 16501), (2662, 16502)]
    main = struct.pack("<IIiii", 5, 1663, 512, 0x592717, len(mappings))
    main += b"".join(struct.pack("<II", *each) for each in mappings)
    wal = WalBuilder()
    wal.add(body(main), rmid=RELMAP, info=0)
    assert [(row["action"], row["relation"], row["name"], row["file"]) for row in rows(wal)] == [
        ("map", 1249, "pg_attribute", 16500),
        ("map", 2662, "pg_class_oid_index", 16502),
    ]


def class_tuple(oid: int, name: str) -> bytes:
    """The data of a tuple of pg_class, as 18 has it."""
    data = bytearray(144)
    struct.pack_into("<I64sI", data, 0, oid, name.encode(), 2200)
    struct.pack_into("<II", data, 88, oid + 1, 0)
    data[119] = ord("r")
    return bytes(data)


def test_an_update_has_what_it_does_not_leave_out() -> None:
    data = class_tuple(16384, "t")
    wal = WalBuilder()
    inserted = struct.pack("<HHB", 34, 0x0900, 32) + bytes(9) + data
    wal.add(body(struct.pack("<HB", 3, 0), [Block(0, CLASS, block=8, data=inserted)]), rmid=HEAP, info=0)
    # An update that leaves out the first 89 and the last 50 bytes: it has a part of relfilenode and of reltablespace.
    updated = struct.pack("<HHHHB", 89, 50, 34, 0x0900, 32) + bytes(9) + data[89:-50]
    main = struct.pack("<IHBBIH", 0, 3, 0, 0x60, 0, 4)
    wal.add(body(main, [Block(0, CLASS, block=8, data=updated)]), rmid=HEAP, info=0x20)
    insert, update = rows(wal)
    place = {"catalog": "pg_class", "database": 5, "block": 8}
    assert insert == {
        "action": "insert",
        **place,
        "line": 3,
        "tuple_bytes": 144,
        "object": 16384,
        "relation": 16384,
        "name": "t",
        "namespace": 2200,
        "object_kind": "r",
        "rewrite_of": 0,
        "tablespace": 1663,
        "file": 16385,
    }
    assert update == {
        "action": "update",
        **place,
        "line": 4,
        "old_block": 8,
        "old_line": 3,
        "tuple_bytes": 144,
        "kept": ["object", "relation", "name", "namespace"],
        "kept_at_end": ["object_kind", "rewrite_of"],
        "partly": ["file"],
        "partly_mask": [0xFFFFFF00],
        "partly_bits": [16385 & 0xFFFFFF00],
    }


def test_what_is_of_no_catalog_has_no_row() -> None:
    wal = WalBuilder()
    inserted = struct.pack("<HHB", 34, 0x0900, 32) + bytes(9) + class_tuple(16384, "t")
    for relation, fork in (((1663, 5, 16384), 0), ((1664, 0, 1259), 0), (CLASS, 1)):
        block = Block(0, relation, fork=fork, data=inserted)
        wal.add(body(struct.pack("<HB", 3, 0), [block]), rmid=HEAP, info=0)
    assert rows(wal) == []


@pytest.mark.parametrize(
    ("rmid", "info", "main", "data"),
    [
        (SMGR, 0x10, b"short", b""),
        (RELMAP, 0, struct.pack("<IIiii", 5, 1663, 512, 0x592717, 9), b""),
        (HEAP, 0x30, struct.pack("<IIB3x", 5, 2, 0) + bytes(4), b""),
        (HEAP, 0x00, b"\0", b"x"),
        (HEAP, 0x00, struct.pack("<HB", 1, 0), b"x"),
        (HEAP2, 0x50, struct.pack("<BxHH", 0, 1, 1), b"abc"),
        (RM_XACT, COMMIT | HAS_XINFO, struct.pack("<qII", 0, 4, 1000), b""),
        (RM_XACT, COMMIT | HAS_XINFO, struct.pack("<qI", 0, 0x1008) + bytes(4), b""),
    ],
)
def test_a_record_that_is_too_short_is_an_error_with_its_place(rmid: int, info: int, main: bytes, data: bytes) -> None:
    wal = WalBuilder()
    blocks = [Block(0, CLASS, data=data)] if data else []
    wal.add(body(main, blocks), rmid=rmid, info=info)
    with pytest.raises(WalFormatError, match=r"record at 0/100028 is not in the format of PostgreSQL 18"):
        rows(wal)


def pglz(*stored: int, size: int) -> tuple[int, bytes]:
    page = np.zeros(8192, np.uint8)
    made = decompress_pglz(np.frombuffer(bytes(stored), np.uint8), page, size)
    return made, page[: max(made, 0)].tobytes()


def test_pglz_copies_what_it_has_made() -> None:
    # A control byte: bit 3 is a copy of 3 + 2 bytes from 3 back, which overlaps; then a long copy of 18 + 1.
    assert pglz(0b1000, 97, 98, 99, 0x02, 3, size=8) == (8, b"abcabcab")
    assert pglz(0b0010, 97, 0x0F, 1, 1, size=20) == (20, b"a" * 20)


@pytest.mark.parametrize(
    "stored", [(0b0010, 97, 0x02, 2), (0b0010, 97, 0x02, 0), (0b0010, 97, 0x02), (0b0010, 97, 0x0F, 1)]
)
def test_pglz_that_leads_out_of_what_is_there_is_refused(stored: tuple[int, ...]) -> None:
    assert pglz(*stored, size=20)[0] == -1


def test_the_items_of_a_page_are_its_normal_line_pointers() -> None:
    page = bytearray(8192)
    struct.pack_into("<H", page, 12, 24 + 4 * 3)
    struct.pack_into("<III", page, 24, 8000 | 1 << 15 | 5 << 17, 2 | 2 << 15, 8100 | 1 << 15 | 3 << 17)
    page[8000:8005], page[8100:8103] = b"first", b"two"
    assert items_of(bytes(page)) == {1: b"first", 3: b"two"}
    assert items_of(bytes(8192)) == {}


def test_every_version_has_the_same_catalogs() -> None:
    assert {frozenset(catalogs_of(major)) for major in range(13, 19)} == {frozenset({1247, 1249, 1259, 2606, 2610})}
