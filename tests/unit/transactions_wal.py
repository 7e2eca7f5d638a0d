"""Writes the WAL of transactions: what they insert, update and delete, how they end. Knows nothing of the reader."""

import struct
from collections.abc import Sequence

from safekeeper.waldecode.format import PAGE_SIZE
from tests.unit import transaction_bodies as ends
from tests.unit.record_bodies import Block, Image, body
from tests.unit.wal_builder import MIB, WalBuilder, WrittenRecord

RM_XACT, RM_STORAGE, RM_STANDBY, RM_HEAP2, RM_HEAP, RM_SEQUENCE, RM_MESSAGE = 1, 2, 8, 9, 10, 15, 21
TABLE, OTHER, CATALOG = (1663, 5, 16384), (1663, 5, 16390), (1663, 5, 1259)
TIME = 800_000_000_000_000  # May 2025


class TransactionsWal(WalBuilder):
    """A log of small transactions, one method for each record."""

    def _heap(
        self, xid: int, info: int, main: bytes, relation: tuple[int, int, int], rmid: int = RM_HEAP, top_xid: int = 0
    ) -> WrittenRecord:
        blocks = [Block(relation=relation, data=b"tuple", image=Image() if xid % 5 == 0 else None)]
        return self.add(body(main, blocks, major=self.major, top_xid=top_xid), rmid, info, xid)

    def insert(self, xid: int, relation: tuple[int, int, int] = TABLE, *, top_xid: int = 0) -> WrittenRecord:
        return self._heap(xid, 0x80, struct.pack("<HB", 1, 0), relation, top_xid=top_xid)

    def insert_many(self, xid: int, count: int, relation: tuple[int, int, int] = TABLE) -> WrittenRecord:
        return self._heap(xid, 0x50, struct.pack("<BxH", 0, count) + bytes(2 * count), relation, RM_HEAP2)

    def update(self, xid: int, *, hot: bool = False) -> WrittenRecord:
        return self._heap(xid, 0x40 if hot else 0x20, bytes(14), TABLE)

    def delete(self, xid: int, *, flags: int = 0) -> WrittenRecord:
        return self._heap(xid, 0x10, struct.pack("<IHBB", xid, 1, 0, flags), TABLE)

    def sequence(self, xid: int, relation: tuple[int, int, int] = OTHER) -> WrittenRecord:
        return self._heap(xid, 0, struct.pack("<III", *relation), relation, RM_SEQUENCE)

    def create(self, xid: int, relation: tuple[int, int, int]) -> WrittenRecord:
        return self.add(body(struct.pack("<IIII", *relation, 0), major=self.major), RM_STORAGE, 0x10, xid)

    def message(self, xid: int, *, transactional: bool) -> WrittenRecord:
        main = struct.pack("<I?7xQQ", 5, transactional, 2, 3) + b"p\0msg"
        return self.add(body(main, major=self.major), RM_MESSAGE, 0, xid)

    def running(self, next_xid: int) -> WrittenRecord:
        main = struct.pack("<ii?3xIII", 0, 0, False, next_xid, next_xid, next_xid - 1)
        return self.add(body(main, major=self.major), RM_STANDBY, 0x10)

    def _end(self, xid: int, operation: int, main: bytes, *, has_xinfo: bool = True) -> WrittenRecord:
        content = body(main, major=self.major)
        return self.add(content, RM_XACT, operation | ends.HAS_XINFO * has_xinfo, xid)

    def commit(
        self, xid: int, subxids: Sequence[int] = (), *, relfiles: int = 0, invalidations: int = 0
    ) -> WrittenRecord:
        if not subxids and not relfiles and not invalidations:
            return self._end(xid, ends.COMMIT, struct.pack("<q", TIME + xid), has_xinfo=False)
        main = ends.transaction_end(
            TIME + xid,
            major=self.major,
            subxids=subxids or None,
            relfiles=relfiles,
            invalidations=invalidations,
            dropped_stats=relfiles if self.major >= 15 else 0,
        )
        return self._end(xid, ends.COMMIT, main)

    def abort(self, xid: int, subxids: Sequence[int] = ()) -> WrittenRecord:
        return self._end(xid, ends.ABORT, ends.transaction_end(TIME + xid, major=self.major, subxids=subxids or None))

    def prepare(self, xid: int, gid: bytes, subxids: Sequence[int] = ()) -> WrittenRecord:
        main = ends.prepare(TIME + xid, xid, gid, major=self.major, subxids=subxids)
        return self._end(xid, ends.PREPARE, main, has_xinfo=False)

    def end_prepared(self, xid: int, *, commit: bool, subxids: Sequence[int] = ()) -> WrittenRecord:
        main = ends.transaction_end(TIME + xid, major=self.major, subxids=subxids or None, twophase_xid=xid)
        return self._end(0, ends.COMMIT_PREPARED if commit else ends.ABORT_PREPARED, main)

    def assign(self, top_xid: int, subxids: Sequence[int]) -> WrittenRecord:
        main = struct.pack(f"<Ii{len(subxids)}I", top_xid, len(subxids), *subxids)
        return self._end(top_xid, 0x50, main, has_xinfo=False)

    def fill_page(self, leave: int = 0) -> WrittenRecord:
        """See WalBuilder: here a record of no transaction."""
        self.data += bytes(-len(self.data) % 8)
        if self.position % PAGE_SIZE == 0:
            self.data += self.page_header()
        return self.add(b"f" * (PAGE_SIZE - self.position % PAGE_SIZE - 24 - leave), rmid=0, info=0x20)

    def child(self, tli: int, fork_lsn: int) -> "TransactionsWal":
        """Return the log of a timeline that leaves this one at `fork_lsn`, where a record ends."""
        last = [each for each in self.records if each.end_lsn <= fork_lsn][-1]
        child = TransactionsWal(self.begin_lsn, self.segment_size, self.major, tli, self.system_id, last.start_lsn)
        child.data += self.data[: fork_lsn - self.begin_lsn] + bytes(max(0, fork_lsn - self.position))
        return child

    def pad(self, end_lsn: int) -> None:
        """Write records of no transaction up to about `end_lsn`."""
        while self.position < end_lsn:
            self.add(body(b"m" * min(20_000, max(0, end_lsn - self.position))), rmid=0, info=0x20)

    @property
    def end_lsn(self) -> int:
        """The end of the last record."""
        return self.position + -self.position % 8


def new_log(begin_lsn: int = MIB, major: int = 18) -> TransactionsWal:
    """Return an empty log of a system with the id 7."""
    return TransactionsWal(begin_lsn=begin_lsn, system_id=7, major=major)
