from typing import Any

import pytest

from tests.unit.record_bodies import Block, Image, body
from tests.unit.wal_builder import MIB, WalBuilder
from walproxy.pipeline.decoder.arrow import blocks_batch, records_batch
from walproxy.pipeline.decoder.decode import Decoded, Workspace, decode
from walproxy.pipeline.schemas import arrow_schema

BATCHES = {"records": records_batch, "blocks": blocks_batch}


def some_wal(xid: int = 7) -> WalBuilder:
    wal = WalBuilder(tli=3)
    wal.add(body(b"insert", [Block(data=b"tuple"), Block(3, (1, 2, 3), 2, 7, Image(apply=False))]), xid=xid)
    wal.add(body(b"alone", origin=9, top_xid=6), rmid=200, info=0x31, xid=2**32 - 1)
    wal.add(body(b"end", [Block(will_init=True, image=Image(8000, 100, 192))]), rmid=10, info=0x20)
    return wal


def decoded_all(wal: WalBuilder, workspace: Workspace | None = None) -> Decoded:
    return decode(bytes(wal.data), wal.begin_lsn, wal.position, wal.segment_size, workspace=workspace)


def reference(**changes: Any) -> dict[str, Any]:
    """A block reference as `some_wal` has it, but for what is said."""
    plain = {
        "block_id": 0,
        "tablespace": 1663,
        "database": 5,
        "relation": 16384,
        "fork": 0,
        "block": 0,
        "has_image": False,
        "image_applied": False,
        "image_bytes": 0,
        "data_bytes": 0,
        "will_init": False,
    }
    return {**plain, **changes}


INSERTED = [
    reference(data_bytes=5),
    reference(block_id=3, tablespace=1, database=2, relation=3, fork=2, block=7, has_image=True, image_bytes=8192),
]
UPDATED = [reference(has_image=True, image_applied=True, image_bytes=8000, will_init=True)]


def test_records_have_all_that_was_written() -> None:
    wal = some_wal()
    first, second, _ = wal.records
    batch = records_batch(decoded_all(wal))
    batch.validate(full=True)
    assert batch.schema == arrow_schema("records")
    rows = batch.to_pylist()
    assert rows[0] == {
        "lsn": first.start_lsn,
        "end_lsn": first.end_lsn,
        "previous_lsn": 0,
        "tli": 3,
        "rmgr": "Heap",
        "operation": "INSERT",
        "rmid": 10,
        "info": 0,
        "xid": 7,
        "top_xid": None,
        "origin": None,
        "total_length": first.total_length,
        "main_bytes": 6,
        "image_count": 1,
        "image_bytes": 8192,
        "blocks": INSERTED,
    }
    del rows[1]["total_length"], rows[1]["end_lsn"]
    assert rows[1] == {
        "lsn": second.start_lsn,
        "previous_lsn": first.start_lsn,
        "tli": 3,
        "rmgr": "custom200",
        "operation": "0x30",
        "rmid": 200,
        "info": 0x31,
        "xid": 2**32 - 1,
        "top_xid": 6,
        "origin": 9,
        "main_bytes": 5,
        "image_count": 0,
        "image_bytes": 0,
        "blocks": [],
    }
    assert (rows[2]["operation"], rows[2]["blocks"]) == ("UPDATE", UPDATED)


def test_blocks_have_a_row_for_each_reference() -> None:
    wal = some_wal()
    first, _, third = wal.records
    batch = blocks_batch(decoded_all(wal))
    batch.validate(full=True)
    assert batch.schema == arrow_schema("blocks")
    inserted = {"lsn": first.start_lsn, "end_lsn": first.end_lsn, "rmgr": "Heap", "operation": "INSERT", "xid": 7}
    updated = {"lsn": third.start_lsn, "end_lsn": third.end_lsn, "rmgr": "Heap", "operation": "UPDATE", "xid": 0}
    counted = [
        {"is_first": True, "wal_bytes": first.total_length - 8192},
        {"is_first": False, "wal_bytes": 8192},
        {"is_first": True, "wal_bytes": third.total_length},
    ]
    expected = [*({**inserted, **each} for each in INSERTED), {**updated, **UPDATED[0]}]
    assert batch.to_pylist() == [row | more for row, more in zip(expected, counted, strict=True)]


@pytest.mark.parametrize("view", ["records", "blocks"])
def test_texts_with_dictionaries_are_the_same_texts(view: str) -> None:
    plain = BATCHES[view](decoded_all(some_wal()))
    numbered = BATCHES[view](decoded_all(some_wal()), dictionaries=True)
    again = BATCHES[view](decoded_all(some_wal(8)), dictionaries=True)
    numbered.validate(full=True)
    assert numbered.cast(plain.schema) == plain
    for name in ("rmgr", "operation"):
        assert numbered[name].dictionary is not None
        assert numbered[name].dictionary.equals(again[name].dictionary)
        assert len(set(numbered[name].dictionary.to_pylist())) == len(numbered[name].dictionary)
    nothing = BATCHES[view](decode(b"", 0, 0, MIB), dictionaries=True)
    assert nothing.num_rows == 0
    assert nothing.schema == numbered.schema
