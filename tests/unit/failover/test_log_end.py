"""Where the log ends, in complete records."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safekeeper.base.errors import WalproxyError
from safekeeper.waldecode.format import PAGE_SIZE
from tests.unit.event_loop import on_the_loop
from tests.unit.failover.looks import log_end
from tests.unit.wal_builder import MIB, WalBuilder
from walproxy.failover.log_end import last_record_end


class Reader:
    """Reads the log, and notes what."""

    def __init__(self, wal: WalBuilder) -> None:
        self._wal = wal
        self.reads: list[tuple[int, int]] = []

    async def __call__(self, begin_lsn: int, end_lsn: int) -> bytes:
        self.reads.append((begin_lsn, end_lsn))
        return self._wal.read(begin_lsn, end_lsn)

    @property
    def bytes_read(self) -> int:
        return sum(end_lsn - begin_lsn for begin_lsn, end_lsn in self.reads)


def written(*sizes: int) -> WalBuilder:
    wal = WalBuilder()
    for size in sizes:
        wal.add(b"r" * size)
    return wal


def complete_at(wal: WalBuilder, end_lsn: int) -> int:
    return max((record.end_lsn for record in wal.records if record.end_lsn <= end_lsn), default=0)


@given(st.lists(st.integers(0, 300_000), min_size=1, max_size=14), st.data())
def test_it_is_the_end_of_the_last_record_that_ends_at_or_below_the_log_s_end(
    sizes: list[int], data: st.DataObject
) -> None:
    wal = written(*sizes)
    end_lsn = data.draw(st.integers(wal.begin_lsn + 1, wal.position))
    found: list[int] = []

    @on_the_loop
    async def search() -> None:
        found.append(await last_record_end(wal_reader, wal.begin_lsn, end_lsn, MIB))

    wal_reader = Reader(wal)
    search()
    assert found == [complete_at(wal, end_lsn)]


@on_the_loop
async def test_of_a_segment_full_of_small_records_only_the_end_is_read() -> None:
    wal = WalBuilder()
    while len(wal.data) < MIB - 5 * PAGE_SIZE:
        wal.add(b"r" * 200)
    read = Reader(wal)
    assert await last_record_end(read, wal.begin_lsn, wal.position, MIB) == wal.records[-1].end_lsn
    assert read.bytes_read < 200_000


@on_the_loop
async def test_a_record_that_the_log_cuts_is_not_complete_although_the_next_segment_says_where_it_ends() -> None:
    wal = written(900_000)
    last = wal.add(b"r" * (2 * MIB - wal.position))  # It ends on the first page of the second segment.
    end_lsn = 2 * MIB + 100
    assert last.end_lsn < 2 * MIB + PAGE_SIZE
    assert wal.records[0].end_lsn < 2 * MIB < end_lsn < last.end_lsn
    assert await last_record_end(Reader(wal), wal.begin_lsn, end_lsn, MIB) == wal.records[0].end_lsn


@on_the_loop
async def test_behind_a_switch_the_segment_is_zeros() -> None:
    wal = written(100, 200_000)
    switch = wal.switch()
    assert switch.end_lsn == wal.position == 2 * MIB
    assert await last_record_end(Reader(wal), wal.begin_lsn, wal.position, MIB) == switch.end_lsn
    # Not all of its zeros are there.
    cut_lsn = wal.position - PAGE_SIZE
    assert await last_record_end(Reader(wal), wal.begin_lsn, cut_lsn, MIB) == wal.records[1].end_lsn


@on_the_loop
async def test_a_log_without_a_complete_record_has_none() -> None:
    wal = written(5000)
    assert await last_record_end(Reader(wal), wal.begin_lsn, wal.position - 8, MIB) == 0


@on_the_loop
async def test_a_damaged_log_is_one_line() -> None:
    wal = written(1000, 1000)
    wal.data[500] ^= 1
    with pytest.raises(
        WalproxyError, match=r"the log between 0/100000 and 0/\w+ is damaged: .*; walproxy check reports"
    ):
        await last_record_end(Reader(wal), wal.begin_lsn, wal.position, MIB)


def test_each_timeline_was_left_somewhere() -> None:
    end = log_end(tli=4, lineage=((1, 500), (3, 700)), given=6)
    assert [end.left_lsn(tli) for tli in (1, 2, 3, 4, 5)] == [500, None, 700, end.end_lsn, None]
