"""A folder of WAL that every view has rows of, and those rows as the decoder gives them, without Spark."""

import copy
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from safekeeper.waldecode.format import RM_XACT
from tests.unit.record_bodies import Block, body
from tests.unit.wal_builder import MIB, WalBuilder
from tests.unit.wal_places import write_segments
from walproxy.pipeline.decoder.views import Piece, view_batch
from walproxy.pipeline.input.opening import open_input
from walproxy.pipeline.input.pieces import decode_piece, plan_pieces
from walproxy.pipeline.jobs.table_files import FILES_SCHEMA
from walproxy.pipeline.schemas import arrow_schema

HEAP = 10
DROPS_FILES = 4  # in xinfo
FIRST_TIME = 800_000_000_000_000  # microseconds since 2000: in May 2025
TRANSACTION_RECORDS = 5


def add_transactions(wal: WalBuilder, end_lsn: int, *, seed: int = 1) -> WalBuilder:
    """Add transactions, one a second, that insert into three relations, up to `end_lsn`; each tenth drops a file."""
    rng = random.Random(seed)
    number = len(wal.records) // TRANSACTION_RECORDS
    while wal.position < end_lsn:
        for index in range(TRANSACTION_RECORDS - 1):
            # One in some hundred reaches over several pages.
            size = rng.randrange(20_000, 60_000) if rng.random() < 0.005 else rng.randrange(20, 2000)
            block = Block(0, (1663, 5, 16384 + index % 3), 0, rng.randrange(50), None, rng.randbytes(size))
            wal.add(body(bytes(3), [block]), rmid=HEAP, xid=1000 + number)
        end = (FIRST_TIME + number * 1_000_000).to_bytes(8, "little")
        drops_file = number % 10 == 0
        if drops_file:
            end += struct.pack("<IIIII", DROPS_FILES, 1, 1663, 5, 20_000 + number)
        wal.add(body(end), rmid=RM_XACT, info=0x80 * drops_file, xid=1000 + number)
        number += 1
    return wal


def small_wal(end_lsn: int, *, system_id: int = 7, seed: int = 1) -> WalBuilder:
    """Return WAL in segments of 1 MiB, from the second one up to `end_lsn`."""
    return add_transactions(WalBuilder(begin_lsn=MIB, segment_size=MIB, system_id=system_id), end_lsn, seed=seed)


def write_wal(folder: Path, wal: WalBuilder) -> str:
    """Write the log into a folder, over what it had of it; return the folder's name."""
    folder.mkdir(exist_ok=True)
    write_segments(folder, wal)
    return str(folder)


def decoded_rows(folder: str, view: str, begin_lsn: int | None = None, end_lsn: int | None = None) -> pa.Table:
    """Return the rows of a view, of the records that begin in [begin_lsn, end_lsn)."""
    wal_input = open_input(folder)
    path = wal_input.log_path()
    batches = [
        view_batch(view, decode_piece(wal_input, path, piece), Piece(piece.begin_lsn, piece.end_lsn))
        for piece in plan_pieces(path, wal_input.extents(path), begin_lsn, end_lsn)
    ]
    return pa.Table.from_batches(batches, arrow_schema(view))


def table_rows(folder: str, view: str, *, end_lsn: int | None = None) -> pa.Table:
    """Return the rows of a view as its table has them where there is a table `blocks`."""
    rows = decoded_rows(folder, view, end_lsn=end_lsn)
    return rows.drop_columns(["blocks"]) if view == "records" else rows


class Pieces:
    """The rows of one batch, as Spark gives them to a task; the task runs here."""

    def __init__(self, folder: str, begin_lsn: int | None, end_lsn: int | None) -> None:
        wal_input = open_input(folder)
        path = wal_input.log_path()
        planned = plan_pieces(path, wal_input.extents(path), begin_lsn, end_lsn)
        self._rows = [{**piece._asdict(), "tli": path.tli} for piece in planned]

    @property
    def end_lsn(self) -> int:
        """The end of the last piece."""
        return int(self._rows[-1]["end_lsn"])

    def one_by_one(self) -> Iterator["Pieces"]:
        """Yield a batch for each piece, which is a segment."""
        for row in self._rows:
            one = copy.copy(self)
            one._rows = [row]
            yield one

    def mapInArrow(self, task: Any, _schema: str) -> "Pieces":
        self._task = task
        return self

    def toArrow(self) -> pa.Table:
        return pa.Table.from_batches(self._task(iter([pa.RecordBatch.from_pylist(self._rows)])), FILES_SCHEMA)
