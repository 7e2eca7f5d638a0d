"""The aggregated views against group-bys in plain Python over the view `records`."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from safekeeper.base.errors import ConfigurationError
from safekeeper.waldecode.format import RM_XACT, WalFormatError
from tests.unit.record_bodies import PAGE, Block, Image, body
from tests.unit.transaction_bodies import ABORT, COMMIT, PREPARE, prepare
from tests.unit.wal_builder import MIB, WalBuilder
from walproxy.pipeline.decoder.decode import Decoded, Workspace, decode
from walproxy.pipeline.decoder.grouping import FIRST_MASK, mask_for, new_table, row_of
from walproxy.pipeline.decoder.views import Piece, view_batch
from walproxy.pipeline.schemas import VIEWS, arrow_schema

AGGREGATED = ("transaction_volume", "relation_volume", "page_versions", "tuple_stats", "transaction_relations")
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
HEAP, HEAP2, BTREE, XLOG = 10, 9, 11, 0
TRUNCATE = 0x30
TABLE = (1663, 5, 16384)


def decoded(wal: WalBuilder, workspace: Workspace | None = None) -> Decoded:
    result = decode(bytes(wal.data), wal.begin_lsn, wal.position, wal.segment_size, workspace=workspace)
    assert result.end.kind == "complete", result.end
    return result


def view(name: str, wal: WalBuilder, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    batch = view_batch(name, decoded(wal), Piece(wal.begin_lsn, wal.position), names)
    batch.validate(full=True)
    assert batch.schema == arrow_schema(name, names)
    return batch.to_pylist()


def multi_insert(tuples: int) -> bytes:
    return b"\0\0" + tuples.to_bytes(2, "little") + b"\1\0"


def end_transaction(wal: WalBuilder, xid: int, time: int, info: int = COMMIT) -> None:
    wal.add(body(time.to_bytes(8, "little", signed=True)), rmid=RM_XACT, info=info, xid=xid)


def random_wal(seed: int, records: int = 600) -> WalBuilder:
    """Return WAL of all sorts, with few relations and pages, so that they meet again."""
    chance = random.Random(seed)
    wal = WalBuilder(begin_lsn=4 * MIB, segment_size=4 * MIB)
    relations = [(chance.choice([1663, 1664]), chance.choice([0, 5, 2**32 - 1]), 16384 + n) for n in range(8)]
    relations.append((2**32 - 1, 2**32 - 1, 2**32 - 1))
    xids = [*range(2**31 - 2, 2**31 + 2), 2**32 - 1, 3, 0]
    for _ in range(records):
        if chance.random() < 0.1:
            end_transaction(wal, chance.choice(xids), chance.randrange(10**15), chance.choice([COMMIT, ABORT]))
            continue
        blocks = []
        for block_id in sorted(chance.sample(range(33), chance.choice([0, 1, 1, 1, 2, 5]))):
            size = chance.choice([PAGE, 100, 3000])
            image = Image(size, 0 if size == PAGE else 9, PAGE - size, apply=chance.random() < 0.7)
            blocks.append(
                Block(
                    block_id,
                    chance.choice(relations),
                    chance.choice([0, 0, 0, 1, 2, 3]),
                    chance.choice([0, 1, 2, 2**32 - 2]),
                    image if chance.random() < 0.2 else None,
                    chance.randbytes(chance.choice([0, 0, 20, 300])),
                    will_init=chance.random() < 0.1,
                )
            )
        top_xid = chance.choice([0, 0, 0, 2**32 - 5])
        main = multi_insert(chance.randrange(300))
        rmid = chance.choice([XLOG, HEAP, HEAP, HEAP2, HEAP2, BTREE, 200])
        info = chance.choice(range(0, 256, 16)) if rmid != XLOG else 0xB0
        if rmid == HEAP and info & 0x70 == TRUNCATE:
            main = bytes(12) + main  # of no table
        wal.add(body(main, blocks, top_xid=top_xid), rmid=rmid, info=info, xid=chance.choice(xids))
    return wal


def unsorted(rows: list[dict[str, Any]]) -> set[tuple[tuple[str, Any], ...]]:
    """Return rows as a set, after a look that none is there twice."""
    found = {tuple(sorted(row.items())) for row in rows}
    assert len(found) == len(rows)
    return found


def ends_of_piece(wal: WalBuilder) -> dict[str, Any]:
    """Return what every row of an aggregated view says of its piece."""
    times = [row["time"] for row in view("transactions", wal) if row["outcome"] != "prepare"]
    bounds = {"begin_lsn": wal.begin_lsn, "end_lsn": wal.position}
    return {**bounds, "first_time": times[0] if times else None, "last_time": times[-1] if times else None}


def grouped(name: str, wal: WalBuilder) -> list[dict[str, Any]]:
    """Return an aggregated view, made from the view `records` row by row as its columns' meanings say."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    piece = ends_of_piece(wal)
    if name in ("transaction_volume", "page_versions", "transaction_relations"):
        del piece["first_time"], piece["last_time"]

    def row(**key: Any) -> dict[str, Any]:
        sums = {field: 0 for field in arrow_schema(name).names if field not in piece and field not in key}
        return rows.setdefault(tuple(key.values()), {**piece, **key, **sums})

    counted = {("Heap", 0): "inserts", ("Heap", 0x10): "deletes", ("Heap", 0x20): "updates"}
    counted |= {("Heap", 0x40): "hot_updates", ("Heap2", 0x50): "inserts"}
    relation_of = ("tablespace", "database", "relation")
    pages_seen: set[tuple[Any, ...]] = set()
    for record in view("records", wal):
        blocks = record["blocks"]
        if name == "transaction_volume" and record["xid"]:
            found = row(xid=record["xid"])
            found["top_xid"] = record["top_xid"] or found["top_xid"] or None
            found["records"] += 1
            found["wal_bytes"] += record["total_length"]
            found["image_bytes"] += record["image_bytes"]
            found["first_lsn"] = found["first_lsn"] or record["lsn"]
            found["last_lsn"] = record["lsn"]
        if name == "relation_volume":
            rest = record["total_length"]
            for block in blocks:
                found = row(rmgr=record["rmgr"], **{column: block[column] for column in relation_of})
                found["block_references"] += 1
                found["wal_bytes"] += block["image_bytes"] + block["data_bytes"]
                found["image_count"] += block["has_image"]
                found["image_bytes"] += block["image_bytes"]
                rest -= block["image_bytes"] + block["data_bytes"]
            found = row(
                rmgr=record["rmgr"], **{column: blocks[0][column] if blocks else None for column in relation_of}
            )
            found["records"] += 1
            found["wal_bytes"] += rest
        if name == "page_versions":
            pages = {tuple(block[column] for column in (*relation_of, "fork", "block")): [] for block in blocks}
            for block in blocks:
                pages[tuple(block[column] for column in (*relation_of, "fork", "block"))].append(block)
            for key, references in pages.items():
                found = row(**dict(zip((*relation_of, "fork", "block"), key, strict=True)))
                found["image_lsn"] = found["image_lsn"] or None
                found["records"] += 1
                found["first_lsn"] = found["first_lsn"] or record["lsn"]
                found["last_lsn"], found["last_end_lsn"] = record["lsn"], record["end_lsn"]
                found["records_since_image"] += 1
                if any(block["image_applied"] or block["will_init"] for block in references):
                    found["image_lsn"], found["records_since_image"] = record["lsn"], 0
        if name == "transaction_relations" and record["xid"]:
            none = dict.fromkeys(relation_of)
            rest = record["total_length"]
            for block in blocks:
                found = row(xid=record["xid"], **{column: block[column] for column in relation_of})
                payload = block["image_bytes"] + block["data_bytes"]
                rest -= payload
                found["wal_bytes"] += payload
                found["image_count"] += block["has_image"]
                found["image_bytes"] += block["image_bytes"]
                found["last_lsn"] = record["lsn"]
                page = (record["xid"], *(block[column] for column in (*relation_of, "fork", "block")))
                found["pages"] += page not in pages_seen
                pages_seen.add(page)
            of = {column: blocks[0][column] for column in relation_of} if blocks else none
            found = row(xid=record["xid"], **of)
            found["records"] += 1
            found["wal_bytes"] += rest
            found["last_lsn"] = record["lsn"]
            operation = (record["rmgr"], record["info"] & 0x70)
            if blocks and blocks[0]["fork"] == 0 and operation in counted:
                tuples = int.from_bytes(multi_insert_counts(wal)[record["lsn"]], "little")
                found[counted[operation]] += tuples if operation[0] == "Heap2" else 1
        if name == "tuple_stats" and blocks and blocks[0]["fork"] == 0:
            operation = (record["rmgr"], record["info"] & 0x70)
            tuples = int.from_bytes(multi_insert_counts(wal)[record["lsn"]], "little")
            if operation in counted:
                column = counted[operation]
                row(**{key: blocks[0][key] for key in relation_of})[column] += tuples if operation[0] == "Heap2" else 1
    return list(rows.values())


def multi_insert_counts(wal: WalBuilder) -> dict[int, bytes]:
    """Return where the number of tuples stands in each record's main data, which is the last six bytes of its body."""
    return {record.start_lsn: record.body[-4:-2] for record in wal.records}


@pytest.mark.parametrize("name", AGGREGATED)
@pytest.mark.parametrize("seed", [1, 2])
def test_an_aggregated_view_says_what_a_plain_group_by_says(name: str, seed: int) -> None:
    wal = random_wal(seed)
    assert unsorted(view(name, wal)) == unsorted(grouped(name, wal))


def test_every_byte_of_every_record_counts_once() -> None:
    wal = random_wal(3)
    lengths = sum(row["total_length"] for row in view("records", wal, ["total_length"]))
    assert sum(row["wal_bytes"] for row in view("relation_volume", wal, ["wal_bytes"])) == lengths


def test_the_relations_of_a_transaction_have_all_its_bytes() -> None:
    wal = random_wal(8)
    sums: dict[int, int] = {}
    for row in view("transaction_relations", wal):
        sums[row["xid"]] = sums.get(row["xid"], 0) + row["wal_bytes"]
    assert sums == {row["xid"]: row["wal_bytes"] for row in view("transaction_volume", wal)}


def test_a_record_counts_for_its_first_block_and_its_payload_for_each_block() -> None:
    wal = WalBuilder()
    first = Block(0, TABLE, data=b"d" * 40)
    second = Block(1, (1663, 5, 16400), image=Image(100, 9, PAGE - 100), data=b"e" * 10)
    record = wal.add(body(b"main", [first, second]), rmid=BTREE, info=0)
    table, index = view("relation_volume", wal)
    assert (table["relation"], table["records"], table["wal_bytes"]) == (16384, 1, record.total_length - 110)
    assert (index["relation"], index["records"], index["wal_bytes"]) == (16400, 0, 110)
    assert (index["block_references"], index["image_count"], index["image_bytes"]) == (1, 1, 100)


def test_a_record_without_blocks_counts_for_no_relation() -> None:
    wal = WalBuilder()
    end_transaction(wal, 3, 0)
    [row] = view("relation_volume", wal)
    assert (row["rmgr"], row["tablespace"], row["database"], row["relation"]) == ("Transaction", None, None, None)


def test_a_page_that_a_record_names_twice_changes_once() -> None:
    wal = WalBuilder()
    wal.add(body(b"", [Block(0, TABLE, will_init=True), Block(1, TABLE)]), rmid=HEAP)
    last = wal.add(body(b"", [Block(0, TABLE), Block(1, TABLE)]), rmid=HEAP)
    [row] = view("page_versions", wal)
    assert (row["records"], row["records_since_image"]) == (2, 1)
    assert (row["last_lsn"], row["last_end_lsn"]) == (last.start_lsn, last.end_lsn)


def test_an_image_that_redo_does_not_put_in_place_is_no_version_of_the_page() -> None:
    wal = WalBuilder()
    wal.add(body(b"", [Block(0, TABLE, image=Image(apply=False))]), rmid=HEAP)
    [row] = view("page_versions", wal)
    assert (row["image_lsn"], row["records_since_image"]) == (None, 1)


def test_tuples_of_a_multi_insert_are_counted_from_its_main_data() -> None:
    wal = WalBuilder()
    wal.add(body(multi_insert(61), [Block(0, TABLE)]), rmid=HEAP2, info=0x50)
    wal.add(body(multi_insert(65535), [Block(0, TABLE, will_init=True)]), rmid=HEAP2, info=0xD0)
    wal.add(body(multi_insert(7), [Block(0, TABLE, fork=1)]), rmid=HEAP2, info=0x50)
    wal.add(body(multi_insert(7)), rmid=HEAP2, info=0x50)
    [row] = view("tuple_stats", wal)
    assert [row[name] for name in ("inserts", "updates", "hot_updates", "deletes")] == [65596, 0, 0, 0]


def test_a_multi_insert_that_does_not_say_how_many_is_an_error() -> None:
    wal = WalBuilder()
    wal.add(body(b"\0\0\0", [Block(0, TABLE)]), rmid=HEAP2, info=0x50)
    with pytest.raises(WalFormatError, match="MULTI_INSERT record at 0/100028"):
        view("tuple_stats", wal)


@pytest.mark.parametrize("name", ["relation_volume", "tuple_stats"])
def test_a_commit_without_a_time_is_an_error(name: str) -> None:
    wal = WalBuilder()
    end_transaction(wal, 3, 0)
    wal.add(body(bytes(7)), rmid=RM_XACT, info=COMMIT)
    with pytest.raises(WalFormatError, match="COMMIT record at 0/100050"):
        view(name, wal)


def test_the_times_of_a_piece_are_those_of_its_first_and_last_commit_or_abort() -> None:
    wal = WalBuilder()
    wal.add(body(prepare(1, 9, b"gid")), rmid=RM_XACT, info=PREPARE)
    end_transaction(wal, 3, 5_000_000, ABORT)
    end_transaction(wal, 4, 2**63 - 1)
    end_transaction(wal, 5, -4_000_000)
    wal.add(body(prepare(2, 10, b"gid")), rmid=RM_XACT, info=PREPARE)
    row = view("relation_volume", wal)[0]
    assert (row["first_time"], row["last_time"]) == (EPOCH + timedelta(seconds=5), EPOCH - timedelta(seconds=4))


@pytest.mark.parametrize("name", VIEWS)
def test_a_piece_without_records_is_an_empty_batch(name: str) -> None:
    wal = WalBuilder()
    wal.data += wal.page_header()
    assert view(name, wal) == []
    nothing = view_batch(name, decode(b"", 0, 0, MIB), Piece(0, 0))
    assert (nothing.num_rows, nothing.schema) == (0, arrow_schema(name))


def test_a_piece_without_blocks_and_commits_has_no_pages_and_no_times() -> None:
    wal = WalBuilder()
    wal.add(body(b"message"), rmid=21, xid=0)
    assert view("page_versions", wal) == view("tuple_stats", wal) == view("transaction_volume", wal) == []
    [row] = view("relation_volume", wal)
    assert (row["rmgr"], row["first_time"], row["last_time"]) == ("LogicalMessage", None, None)


@pytest.mark.parametrize("name", VIEWS)
def test_only_the_columns_that_are_named_are_there(name: str) -> None:
    wal = random_wal(4, records=50)
    whole = view(name, wal)
    for column in arrow_schema(name).names:
        assert view(name, wal, [column]) == [{column: row[column]} for row in whole]


@pytest.mark.parametrize("name", VIEWS)
def test_a_batch_outlives_what_it_was_made_from(name: str) -> None:
    workspace = Workspace()
    wal, other = random_wal(5, records=100), random_wal(6, records=200)
    piece = Piece(wal.begin_lsn, wal.position)
    batch = view_batch(name, decoded(wal, workspace), piece)
    before = pa.Table.from_batches([batch]).to_pylist()
    decoded(other, workspace)
    assert pa.Table.from_batches([batch]).to_pylist() == before


def test_there_are_no_other_views_and_columns() -> None:
    empty = decode(b"", 0, 0, MIB)
    with pytest.raises(ConfigurationError, match="unknown view 'pages'"):
        view_batch("pages", empty, Piece(0, 0))
    with pytest.raises(ConfigurationError, match="no column 'size'"):
        view_batch("page_versions", empty, Piece(0, 0), ["block", "size"])


def test_a_table_finds_each_key_again_however_many_there_are() -> None:
    chance = random.Random(7)
    keys = [(chance.randrange(-5, 5), chance.choice([1 << 63, 1]) * chance.randrange(900)) for _ in range(20_000)]
    keys = [(first, np.int64(np.uint64(second % 2**64)).item()) for first, second in keys]
    slots, rows = new_table(len(keys))
    mask, known = FIRST_MASK, 0
    seen: dict[tuple[int, int], int] = {}
    for first, second in keys:
        row = row_of(slots, mask, rows, known, first, second)
        assert row == seen.setdefault((first, second), known)
        if row == known:
            known += 1
            mask = mask_for(slots, mask, rows, known)
    assert known == len(seen) > FIRST_MASK
    assert mask < len(slots)


def test_a_table_has_room_for_as_many_different_keys_as_it_was_made_for() -> None:
    for size in (1, 511, 512, 513, 1024, 5000):
        slots, rows = new_table(size)
        mask = FIRST_MASK
        for known in range(size):
            assert row_of(slots, mask, rows, known, known, -known) == known
            mask = mask_for(slots, mask, rows, known + 1)
        assert size <= mask // 2 + 1 <= len(slots) // 2
