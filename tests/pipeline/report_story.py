"""Tables of a night whose every record is known: what a report says of it can be counted by hand.

Three hours of small transactions on `orders`, its index and `customers`, one a second or so; a bulk load into `audit`
that takes half an hour and commits once, with two subtransactions; a pause of ten minutes without a commit; a
transaction that never ends; vacuum, whose records carry no xid; and a checkpoint each quarter of an hour, behind which
the first change of a page holds its image. Pieces are of 1 MiB, so records are larger than real ones.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from safekeeper.base.lsn import Lsn
from tests.unit.table_rows import open_table
from walproxy.pipeline.choices import TableFormat
from walproxy.pipeline.schemas import arrow_schema

MIB = 1 << 20
DATABASE = 16_384
ORDERS, ORDERS_KEY, CUSTOMERS, AUDIT, NAMELESS = range(20_001, 20_006)
BEGIN = datetime(2026, 11, 20, 22, 0, tzinfo=UTC)
BEGIN_LSN = 0x5_0000_0000
BULK_XID, BULK_SUBXIDS, ENDLESS_XID = 9000, (9001, 9002), 9100
PAUSE = (timedelta(minutes=150), timedelta(minutes=160))

Record = dict[str, Any]


@dataclass
class Night:
    """The records, in order, and the transactions that ended."""

    records: list[Record] = field(default_factory=list)
    transactions: list[Record] = field(default_factory=list)
    lsn: Lsn = BEGIN_LSN

    def write(
        self,
        rmgr: str,
        operation: str,
        xid: int,
        *blocks: tuple[int, int, int, int],
        main_bytes: int = 20,
        top_xid: int | None = None,
    ) -> Record:
        """Add a record; a block is (relation, block, bytes of its image, bytes of its data)."""
        references = [
            {
                "block_id": number,
                "tablespace": 1663,
                "database": DATABASE,
                "relation": relation,
                "fork": 0,
                "block": block,
                "has_image": image_bytes > 0,
                "image_applied": image_bytes > 0,
                "image_bytes": image_bytes,
                "data_bytes": data_bytes,
                "will_init": False,
            }
            for number, (relation, block, image_bytes, data_bytes) in enumerate(blocks)
        ]
        length = 24 + main_bytes + sum(image + data + 20 for _, _, image, data in blocks)
        record = {
            "lsn": self.lsn,
            "end_lsn": self.lsn + (length + 7) // 8 * 8,
            "previous_lsn": self.records[-1]["lsn"] if self.records else 0,
            "tli": 1,
            "rmgr": rmgr,
            "operation": operation,
            "rmid": 0,
            "info": 0,
            "xid": xid,
            "top_xid": top_xid,
            "origin": None,
            "total_length": length,
            "main_bytes": main_bytes,
            "image_count": sum(1 for block in blocks if block[2]),
            "image_bytes": sum(block[2] for block in blocks),
            "blocks": references,
        }
        self.records.append(record)
        self.lsn = record["end_lsn"]
        return record

    def end(self, xid: int, time: datetime, outcome: str = "commit", subxids: Sequence[int] = ()) -> None:
        record = self.write("Transaction", "COMMIT" if outcome == "commit" else "ABORT", xid)
        self.transactions.append(
            {
                "lsn": record["lsn"],
                "end_lsn": record["end_lsn"],
                "tli": 1,
                "xid": xid,
                "outcome": outcome,
                "time": time,
                "database": DATABASE,
                "subxids": list(subxids),
                "gid": None,
                "origin": None,
                "origin_lsn": None,
                "origin_time": None,
                "remote_apply": False,
            }
        )


def make_night(seed: int = 1) -> Night:
    """Return the night of the module's docstring."""
    random_numbers = random.Random(seed)
    night = Night()
    imaged: set[tuple[int, int]] = set()
    xid = 1000
    for second in range(0, 3 * 3600, 3):
        since = timedelta(seconds=second)
        if second % 900 == 0:
            night.write("XLOG", "CHECKPOINT_ONLINE", 0)
            imaged.clear()
        if timedelta(minutes=60) <= since < timedelta(minutes=90):
            bulk = BULK_XID if second % 9 else BULK_SUBXIDS[second % 2]
            first = bulk != BULK_XID and second < 3600 + 30
            for _ in range(4):
                night.write(
                    "Heap2", "MULTI_INSERT", bulk, (AUDIT, second, 0, 7000), top_xid=BULK_XID if first else None
                )
        if since == timedelta(minutes=90):
            night.end(BULK_XID, BEGIN + since, subxids=BULK_SUBXIDS)
        if since == timedelta(minutes=20):
            night.write("Heap", "INSERT", ENDLESS_XID, (NAMELESS, 0, 0, 5000))
        if second % 60 == 0:
            pages = (ORDERS, random_numbers.randrange(50), 0, 300), (ORDERS_KEY, random_numbers.randrange(10), 0, 100)
            night.write("Heap2", "PRUNE_VACUUM_SCAN", 0, *pages, main_bytes=90)
        if PAUSE[0] < since < PAUSE[1]:
            continue
        xid += 1
        table = ORDERS if random_numbers.random() < 0.7 else CUSTOMERS
        changed = [(table, random_numbers.randrange(50))]
        if table == ORDERS:
            changed.append((ORDERS_KEY, random_numbers.randrange(10)))
        for number, page in enumerate(changed):
            image_bytes = 0 if page in imaged else 4000
            imaged.add(page)
            if number == 0:
                night.write("Heap", "HOT_UPDATE" if table == CUSTOMERS else "INSERT", xid, (*page, image_bytes, 150))
            else:
                night.write("Btree", "INSERT_LEAF", xid, (*page, image_bytes, 40))
        outcome = "abort" if random_numbers.random() < 0.05 else "commit"
        night.end(xid, BEGIN + since + timedelta(milliseconds=random_numbers.randrange(2000)), outcome)
    return night


# The views, as the pipeline makes them, counted here one record at a time.


def views_of(night: Night) -> dict[str, list[Record]]:
    """Return the rows of the tables that a report is made of."""
    return {
        "records": night.records,
        "blocks": _blocks(night),
        "transactions": night.transactions,
        "relation_volume": _relation_volume(night),
        "transaction_volume": _transaction_volume(night),
        "page_versions": _page_versions(night),
        "tuple_stats": _tuple_stats(night),
    }


def without_a_table_of_blocks(views: dict[str, list[Record]]) -> dict[str, list[Record]]:
    """Return the views for tables that have the block references in `records` only."""
    return {name: rows for name, rows in views.items() if name != "blocks"}


def _blocks(night: Night) -> list[Record]:
    rows = []
    for record in night.records:
        own = [block["image_bytes"] + block["data_bytes"] for block in record["blocks"]]
        shared = {name: record[name] for name in ("lsn", "end_lsn", "rmgr", "operation", "xid")}
        for number, block in enumerate(record["blocks"]):
            rest = record["total_length"] - sum(own) if number == 0 else 0
            rows.append(shared | block | {"is_first": number == 0, "wal_bytes": own[number] + rest})
    return rows


def _piece(night: Night, record: Record) -> tuple[Lsn, Lsn]:
    begin_lsn = record["lsn"] // MIB * MIB
    return begin_lsn, begin_lsn + MIB


def _times(night: Night) -> dict[tuple[Lsn, Lsn], list[datetime]]:
    times = defaultdict(list)
    for each in night.transactions:
        times[_piece(night, each)].append(each["time"])
    return times


def _with_piece(night: Night, sums: dict[Any, Record], *, timed: bool) -> list[Record]:
    times = _times(night)
    rows = []
    for (piece, *_), row in sums.items():
        bounds: Record = {"begin_lsn": piece[0], "end_lsn": piece[1]}
        if timed:
            ended = times.get(piece)
            bounds |= {"first_time": ended[0] if ended else None, "last_time": ended[-1] if ended else None}
        rows.append(bounds | row)
    return rows


def relation_of(block: Record) -> Record:
    return {name: block[name] for name in ("tablespace", "database", "relation")}


def _relation_volume(night: Night) -> list[Record]:
    sums: dict[Any, Record] = {}
    for record in night.records:
        owned = sum(block["image_bytes"] + block["data_bytes"] for block in record["blocks"])
        for number, block in enumerate(record["blocks"] or [None]):
            where = relation_of(block) if block else dict.fromkeys(("tablespace", "database", "relation"))
            key = (_piece(night, record), record["rmgr"], where["relation"])
            zero = dict.fromkeys(("records", "block_references", "wal_bytes", "image_count", "image_bytes"), 0)
            row = sums.setdefault(key, {"rmgr": record["rmgr"], **where, **zero})
            if number == 0:
                row["records"] += 1
                row["wal_bytes"] += record["total_length"] - owned
            if block:
                row["block_references"] += 1
                row["wal_bytes"] += block["image_bytes"] + block["data_bytes"]
                row["image_count"] += block["has_image"]
                row["image_bytes"] += block["image_bytes"]
    return _with_piece(night, sums, timed=True)


def _transaction_volume(night: Night) -> list[Record]:
    sums: dict[Any, Record] = {}
    for record in night.records:
        if record["xid"] == 0:
            continue
        zero = {"records": 0, "wal_bytes": 0, "image_bytes": 0, "first_lsn": record["lsn"]}
        key = (_piece(night, record), record["xid"])
        row = sums.setdefault(key, {"xid": record["xid"], "top_xid": None, **zero})
        row["top_xid"] = record["top_xid"] or row["top_xid"]
        row["records"] += 1
        row["wal_bytes"] += record["total_length"]
        row["image_bytes"] += record["image_bytes"]
        row["last_lsn"] = record["lsn"]
    return _with_piece(night, sums, timed=False)


def _page_versions(night: Night) -> list[Record]:
    sums: dict[Any, Record] = {}
    for record in night.records:
        for block in record["blocks"]:
            key = (_piece(night, record), block["relation"], block["block"])
            page = {**relation_of(block), "fork": 0, "block": block["block"]}
            row = sums.setdefault(
                key,
                {**page, "records": 0, "first_lsn": record["lsn"], "image_lsn": None, "records_since_image": 0},
            )
            row["records"] += 1
            row["records_since_image"] += 1
            if block["has_image"]:
                row["image_lsn"], row["records_since_image"] = record["lsn"], 0
            row["last_lsn"], row["last_end_lsn"] = record["lsn"], record["end_lsn"]
    return _with_piece(night, sums, timed=False)


def _tuple_stats(night: Night) -> list[Record]:
    kinds = {"INSERT": "inserts", "MULTI_INSERT": "inserts", "HOT_UPDATE": "hot_updates"}
    sums: dict[Any, Record] = {}
    for record in night.records:
        if record["operation"] in kinds and record["rmgr"].startswith("Heap"):
            where = relation_of(record["blocks"][0])
            key = (_piece(night, record), where["relation"])
            zero = dict.fromkeys(("inserts", "updates", "hot_updates", "deletes"), 0)
            row = sums.setdefault(key, {**where, **zero})
            row[kinds[record["operation"]]] += 10 if record["operation"] == "MULTI_INSERT" else 1
    return _with_piece(night, sums, timed=True)


def write_tables(
    folder: Path, views: dict[str, list[Record]], table_format: TableFormat = "delta", *, files: int = 2
) -> None:
    """Write views as the tables of a folder, each in so many files."""
    for name, rows in views.items():
        omitted = ("blocks",) if name == "records" and "blocks" in views else ()
        table = open_table(folder, name, table_format, arrow_schema(name), omitted=omitted)
        share = max(-(-len(rows) // files), 1)
        made = []
        for begin in range(0, len(rows), share):
            new_file = table.new_file()
            batch = pa.RecordBatch.from_pylist(rows[begin : begin + share], schema=table.schema)
            made.append(new_file.write([batch]))
        table.commit(None, None, made)
        table.close()
