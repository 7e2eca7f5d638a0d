"""The decoder's rows and those of pg_waldump, side by side.

Both are columns; `differences` returns a line for each column that differs, with the first rows in which it does.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.waldecode.format import LONG_PAGE_HEADER_SIZE, PAGE_HEADER_SIZE, PAGE_SIZE
from tests.pipeline.pg_waldump import Dump, dump
from tests.pipeline.wal_maker import MadeWal
from walproxy.pipeline.decoder.decode import Decoded, Workspace, decode
from walproxy.pipeline.decoder.views import Piece, view_batch
from walproxy.pipeline.input.opening import open_input
from walproxy.pipeline.input.wal_input import Buffer

VIEWS: Final = ("records", "blocks", "transactions")
_SHOWN: Final = 3


class Log(NamedTuple):
    """A part of a log in memory.

    Attributes:
        wal: its raw bytes from `begin_lsn`, a page's start, on.
    """

    wal: Buffer
    begin_lsn: Lsn
    segment_size: int

    @property
    def end_lsn(self) -> Lsn:
        """Where it ends."""
        return self.begin_lsn + len(self.wal)

    def tail(self, size: int) -> "Log":
        """Return its last part, of `size` bytes and a piece of a page."""
        skipped = max(0, len(self.wal) - size) // PAGE_SIZE * PAGE_SIZE
        return Log(self.wal[skipped:], self.begin_lsn + skipped, self.segment_size)

    def borders(self, step: int) -> list[Lsn]:
        """Return the borders of pieces of `step` bytes."""
        return [*range(self.begin_lsn, self.end_lsn, step), self.end_lsn]


class Rows:
    """The views of a log, decoded in pieces.

    Attributes:
        majors: what the pages say of PostgreSQL's version.
    """

    def __init__(self, log: Log, borders: Sequence[Lsn], views: Sequence[str] = VIEWS) -> None:
        batches: dict[str, list[pa.RecordBatch]] = {view: [] for view in views}
        self.majors: set[int] = set()
        for piece, decoded in decoded_pieces(log, borders):
            self.majors.add(decoded.major)
            for view in views:
                batches[view].append(view_batch(view, decoded, piece))
        self.tables = {view: pa.Table.from_batches(batches[view]).combine_chunks() for view in views}

    def column(self, view: str, name: str) -> Any:
        """Return a column as a numpy array."""
        return self.tables[view].column(name).to_numpy()

    def sums_by_operation(self) -> dict[tuple[str, str], tuple[int, int, int, int]]:
        """Return what `pg_waldump --stats=record` says, from the rows of the view records."""
        table = self.tables["records"].select(["rmgr", "operation", "total_length", "image_bytes"])
        groups = table.group_by(["rmgr", "operation"]).aggregate(
            [("total_length", "count"), ("total_length", "sum"), ("image_bytes", "sum")]
        )
        return {
            (row["rmgr"], row["operation"]): (
                row["total_length_count"],
                row["total_length_sum"] - row["image_bytes_sum"],
                row["image_bytes_sum"],
                row["total_length_sum"],
            )
            for row in groups.to_pylist()
        }


class Compared:
    """Both timelines of some WAL, as the decoder and as pg_waldump have them, each looked at once.

    Attributes:
        made: the WAL.
    """

    def __init__(self, made: MadeWal) -> None:
        self.made = made
        self._input = open_input(str(made.folder))
        self._logs: dict[int, Log] = {}
        self._rows: dict[int, Rows] = {}
        self._dumps: dict[int, Dump] = {}

    def log(self, tli: int) -> Log:
        """Return the log of a timeline with its ancestors."""
        if tli not in self._logs:
            path = self._input.log_path(tli)
            [extent] = self._input.extents(path)
            self._logs[tli] = Log(self._input.read(path, *extent), extent.begin_lsn, path.segment_size)
        return self._logs[tli]

    def rows(self, tli: int) -> Rows:
        """Return its rows, decoded by segments."""
        if tli not in self._rows:
            self._rows[tli] = Rows(self.log(tli), self.log(tli).borders(self.made.segment_size))
        return self._rows[tli]

    def dump(self, tli: int) -> Dump:
        """Return what pg_waldump says of it, which knows one timeline at a time."""
        if tli not in self._dumps:
            begin_lsn = self.made.begin_lsn if tli == 1 else self.made.fork_lsn
            dumped = dump(self.made.binaries, self.made.folder, tli, begin_lsn)
            self._dumps[tli] = dumped if tli == 1 else self.dump(1).before(begin_lsn).followed_by(dumped)
        return self._dumps[tli]

    def differences(self, tli: int) -> list[str]:
        """Return in what the two differ; nothing is as it should be."""
        ours, theirs = self.rows(tli), self.dump(tli)
        return [
            *record_differences(ours, theirs),
            *block_differences(ours, theirs),
            *transaction_differences(ours, theirs),
            *contradictions(ours),
        ]


def decoded_pieces(log: Log, borders: Sequence[Lsn]) -> Iterator[tuple[Piece, Decoded]]:
    """Decode each piece by itself, with as much look-ahead as it says that it needs."""
    workspace = Workspace()
    for begin_lsn, end_lsn in pairwise(borders):
        reach_lsn = end_lsn
        while True:
            wal = log.wal[begin_lsn - log.begin_lsn : reach_lsn - log.begin_lsn]
            decoded = decode(wal, begin_lsn, end_lsn, log.segment_size, workspace=workspace)
            end = decoded.end
            if end.kind == "incomplete" and reach_lsn < log.end_lsn:
                reach_lsn = min(-(-end.needed_until_lsn // PAGE_SIZE) * PAGE_SIZE, log.end_lsn)
                continue
            yield Piece(begin_lsn, end_lsn), decoded
            if end.zeros_until_lsn in (0, end_lsn):
                assert end.kind == "complete" or end.zeros_until_lsn or reach_lsn == log.end_lsn, end
                break
            begin_lsn = end.zeros_until_lsn  # It began behind a switch and goes on in the next segment.


def record_differences(rows: Rows, dump: Dump) -> list[str]:
    """Compare records, one by one."""
    ours, theirs = rows.tables["records"], dump
    lsns = np.array(theirs.lsn, np.int64)
    columns = {
        "lsn": (rows.column("records", "lsn"), lsns),
        "previous_lsn": (rows.column("records", "previous_lsn"), np.array(theirs.previous_lsn, np.int64)),
        "rmgr": (np.array(ours.column("rmgr").to_pylist()), np.array(theirs.rmgr)),
        "operation": (np.array(ours.column("operation").to_pylist()), np.array(theirs.operation)),
        "xid": (rows.column("records", "xid"), np.array(theirs.xid, np.int64)),
        "total_length": (rows.column("records", "total_length"), np.array(theirs.total_length, np.int64)),
        "length": (
            rows.column("records", "total_length") - rows.column("records", "image_bytes"),
            np.array(theirs.length, np.int64),
        ),
    }
    return _differences(columns, lsns)


def block_differences(rows: Rows, dump: Dump) -> list[str]:
    """Compare block references, one by one: of the view blocks, and of the column blocks of the view records."""
    theirs = np.array(dump.blocks, np.int64).reshape(-1, 8)
    lsns = np.array(dump.lsn, np.int64)[theirs[:, 0]]
    blocks = rows.tables["blocks"]
    image = np.where(rows.column("blocks", "has_image"), np.where(rows.column("blocks", "image_applied"), 1, 2), 0)
    names = ("block_id", "tablespace", "database", "relation", "fork", "block")
    columns = {"lsn of block": (rows.column("blocks", "lsn"), lsns), "image": (image, theirs[:, 7])}
    for index, name in enumerate(names):
        columns[name] = (rows.column("blocks", name), theirs[:, 1 + index])
    found = _differences(columns, lsns)
    nested = pc.list_flatten(rows.tables["records"].column("blocks"))
    for name in (field.name for field in nested.type):
        if not pc.struct_field(nested, name).equals(blocks.column(name)):
            found.append(f"records.blocks.{name} is not blocks.{name}")
    records = rows.tables["records"].filter(pc.greater(pc.list_value_length(rows.tables["records"]["blocks"]), 0))
    sums = blocks.group_by("lsn").aggregate([("wal_bytes", "sum"), ("is_first", "sum")]).sort_by("lsn")
    if sums["wal_bytes_sum"].to_pylist() != records["total_length"].to_pylist():
        found.append("blocks.wal_bytes do not add up to the lengths of the records")
    if set(sums["is_first_sum"].to_pylist()) - {1}:
        found.append("a record has no first block, or several")
    return found


def transaction_differences(rows: Rows, dump: Dump) -> list[str]:
    """Compare what ends transactions. pg_waldump names a prepared transaction only where it is prepared."""
    found = []
    ours = rows.tables["transactions"].to_pylist()
    if len(ours) != len(dump.transactions):
        found.append(f"{len(ours)} transactions, pg_waldump has {len(dump.transactions)}")
    gids: dict[int, str] = {}
    for row, theirs in zip(ours, dump.transactions, strict=False):
        if theirs.gid is not None:
            gids[theirs.xid] = theirs.gid
        origin = theirs.origin or (None, None, None)
        expected = {
            "lsn": theirs.lsn,
            "xid": theirs.xid,
            "outcome": theirs.outcome,
            "time": theirs.time,
            "subxids": theirs.subxids,
            "gid": gids.get(theirs.xid) if "prepare" in theirs.outcome else None,
            "origin": origin[0],
            "origin_lsn": origin[1],
            "origin_time": origin[2],
            "remote_apply": theirs.remote_apply,
        }
        found += [
            f"{name} of the transaction at {format_lsn(theirs.lsn)}: {row[name]!r}, pg_waldump says {value!r}"
            for name, value in expected.items()
            if row[name] != value
        ]
    return found


def contradictions(rows: Rows) -> list[str]:
    """Return in what the views contradict each other, or themselves: of what pg_waldump does not say."""
    records, blocks = rows.tables["records"], rows.tables["blocks"]
    lsn, end_lsn = rows.column("records", "lsn"), rows.column("records", "end_lsn")
    record = np.searchsorted(lsn, rows.column("blocks", "lsn"))
    found = [
        f"blocks.{name} is not that of the record"
        for name in ("end_lsn", "rmgr", "operation", "xid")
        if not records.column(name).combine_chunks().take(pa.array(record)).equals(blocks.column(name).combine_chunks())
    ]
    images = np.bincount(record, rows.column("blocks", "has_image"), len(lsn))
    image_bytes = np.bincount(record, rows.column("blocks", "image_bytes"), len(lsn))
    if (images != rows.column("records", "image_count")).any():
        found.append("image_count is not the number of images")
    if (image_bytes != rows.column("records", "image_bytes")).any():
        found.append("image_bytes is not the size of the images")
    # Between two records lies a page's header or nothing, but before the border at which a record was lost.
    headers = lsn[1:] - end_lsn[:-1]
    torn = ~np.isin(headers, (0, PAGE_HEADER_SIZE, LONG_PAGE_HEADER_SIZE))
    operations = records.column("operation").combine_chunks().take(pa.array(np.flatnonzero(torn) + 1)).to_pylist()
    if set(operations) - {"OVERWRITE_CONTRECORD"}:
        found.append(
            f"records do not follow each other at {', '.join(map(format_lsn, lsn[1:][torn][:_SHOWN].tolist()))}"
        )
    return found


def _differences(columns: dict[str, tuple[Any, Any]], lsns: Any) -> list[str]:
    found = []
    for name, (ours, theirs) in columns.items():
        if len(ours) != len(theirs):
            found.append(f"{name}: {len(ours)} rows, pg_waldump has {len(theirs)}")
        common = min(len(ours), len(theirs))
        wrong = np.flatnonzero(ours[:common] != theirs[:common])
        if len(wrong):
            shown = [f"{format_lsn(int(lsns[row]))}: {ours[row]!r} != {theirs[row]!r}" for row in wrong[:_SHOWN]]
            found.append(f"{name}: {len(wrong)} of {common} differ, {'; '.join(shown)}")
    return found


def arrays_of_pieces(log: Log, borders: Sequence[Lsn]) -> dict[str, Any]:
    """Return the arrays of records and of blocks, of all pieces one behind the other.

    What is an offset within a piece, or an index, is left out.
    """
    found: dict[str, list[Any]] = {}
    for _, decoded in decoded_pieces(log, borders):
        for name in RECORD_ARRAYS:
            found.setdefault(name, []).append(getattr(decoded, name).copy())
        for name in BLOCK_ARRAYS:
            found.setdefault(name, []).append(getattr(decoded, name).copy())
        found.setdefault("blocks of the record", []).append(np.diff(decoded.first_block))
    return {name: np.concatenate(parts) for name, parts in found.items()}


RECORD_ARRAYS: Final = (
    *("lsn", "end_lsn", "previous_lsn", "total_length", "xid", "rmid", "info", "tli", "main_bytes", "top_xid"),
    *("origin", "image_count", "image_bytes"),
)
BLOCK_ARRAYS: Final = (
    *("block_id", "tablespace", "database", "relation", "block", "fork", "has_image", "image_applied", "will_init"),
    *("block_image_bytes", "hole_offset", "hole_bytes", "image_info", "data_bytes"),
)


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the names of the arrays that are not equal."""
    return [name for name in one if not np.array_equal(one[name], other[name])]
