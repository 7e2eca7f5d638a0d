"""The queue of the limbo, read from WAL that PostgreSQL could have written; and since when WAL waits."""

import random
from itertools import pairwise

import pytest

from safekeeper.waldecode.format import PAGE_SIZE
from tests.unit.transactions_wal import TIME, TransactionsWal, new_log
from tests.unit.wal_builder import MIB
from walproxy.limbo.transactions import Arrivals, Entry, TransactionQueue, first_page_to_read

MAJOR = 18


def queue_at(log: TransactionsWal, lsn: int = MIB, entries_max: int = 100_000) -> TransactionQueue:
    queue = TransactionQueue(entries_max)
    queue.begin(lsn, log.segment_size, log.major, log.tli)
    return queue


def read_all(log: TransactionsWal, lsn: int = MIB, reported_lsn: int = 0) -> TransactionQueue:
    queue = queue_at(log, lsn)
    queue.confirm(reported_lsn)
    queue.feed(log.read(lsn, log.position))
    assert not queue.problem
    return queue


def random_log(seed: int, count: int = 60) -> TransactionsWal:
    """Transactions of every kind, some over several pages, some that end on a page's last byte."""
    chance = random.Random(seed)
    log = new_log(major=chance.choice((13, 15, 18)))
    for xid in range(1000, 1000 + count):
        if chance.random() < 0.1:
            log.fill_page(leave=chance.choice((0, 8, 24, 32)))
        log.insert(xid)
        kind = chance.randrange(6)
        if kind == 0:
            log.abort(xid)
        elif kind == 1:
            log.prepare(xid, b"gid%d" % xid)
            if chance.random() < 0.5:
                log.end_prepared(xid, commit=chance.random() < 0.5)
        else:
            log.commit(xid, range(50_000, 50_000 + chance.choice((0, 0, 0, 3, 3000))))
    return log


def test_every_kind_of_end_is_an_entry_with_its_positions_time_and_name() -> None:
    log = new_log()
    log.insert(10)
    written = [
        *(log.commit(10), log.prepare(11, b"one"), log.end_prepared(11, commit=True), log.prepare(12, b"two")),
        *(log.end_prepared(12, commit=False), log.abort(13), log.end_prepared(9, commit=True)),
    ]
    entries = list(read_all(log))
    assert [(e.xid, e.kind, e.gid) for e in entries] == [
        *((10, "commit", ""), (11, "prepare", "one"), (11, "commit_prepared", "one"), (12, "prepare", "two")),
        *((12, "abort_prepared", "two"), (13, "abort", ""), (9, "commit_prepared", "")),
    ]
    assert [(e.start_lsn, e.end_lsn) for e in entries] == [(w.start_lsn, w.end_lsn) for w in written]
    assert (entries[0].time_us, entries[0].tli) == (TIME + 10, 1)


@pytest.mark.parametrize("seed", range(12))
def test_reading_in_pieces_of_any_size_is_reading_at_once(seed: int) -> None:
    log, chance = random_log(seed), random.Random(-seed)
    whole, queue = read_all(log), queue_at(log)
    while queue.position < log.position:
        # Single bytes, headers that are split, whole messages of the walsender.
        size = chance.choice((1, 7, 20, 100, PAGE_SIZE, 128 << 10))
        queue.feed(log.read(queue.position, min(log.position, queue.position + size)))
    assert list(queue) == list(whole)
    assert (queue.read_bytes, queue.read_commits) == (whole.read_bytes, whole.read_commits)
    assert all(a.end_lsn < b.end_lsn for a, b in pairwise(queue))


def entries_of(log: TransactionsWal) -> list[Entry]:
    """What is to be found: read from the beginning, without names, which earlier records contain."""
    return [each._replace(gid="") for each in read_all(log)]


def found_from(page_lsn: int | None, log: TransactionsWal, lsn: int) -> list[Entry]:
    assert page_lsn is not None
    return [each._replace(gid="") for each in read_all(log, page_lsn, lsn)]


def first_page(log: TransactionsWal, lsn: int, begin_lsn: int = MIB) -> int | None:
    return first_page_to_read(log.read, lsn, begin_lsn, log.position, log.segment_size)


def positions(log: TransactionsWal) -> list[int]:
    """Ends of records, borders of pages, and bytes around them: where a quorum may end."""
    chance = random.Random(len(log.data))
    ends = [record.end_lsn for record in chance.sample(log.records, 20)]
    borders = range(MIB + PAGE_SIZE, log.position, PAGE_SIZE)
    around = [lsn + offset for lsn in chance.sample(borders, min(12, len(borders))) for offset in (-8, 0, 8, 24, 40)]
    return [lsn for lsn in (*ends, *around) if MIB < lsn < log.position]


@pytest.mark.parametrize("seed", range(6))
def test_reading_from_the_first_page_misses_no_entry_wherever_the_quorum_ends(seed: int) -> None:
    log = random_log(seed)
    entries = entries_of(log)
    for lsn in positions(log):
        assert found_from(first_page(log, lsn), log, lsn) == [each for each in entries if each.end_lsn > lsn]


def test_reading_begins_after_the_zeros_of_a_switched_segment() -> None:
    log = new_log()
    log.commit(10)
    switch = log.switch()
    log.commit(11)
    for lsn in (switch.start_lsn, MIB + 5 * PAGE_SIZE, MIB + 5 * PAGE_SIZE + 1, 2 * MIB - 1, 2 * MIB):
        page_lsn = first_page(log, lsn)
        assert page_lsn == (MIB if lsn == switch.start_lsn else 2 * MIB)
        assert [each.xid for each in read_all(log, page_lsn, lsn)] == [11]


def test_a_record_whose_beginning_is_gone_is_known_to_be_missed() -> None:
    log = new_log()
    record = log.commit(10, range(50_000, 60_000))
    last = log.commit(11)
    begin_lsn = MIB + 2 * PAGE_SIZE
    lsn = MIB + 3 * PAGE_SIZE + 100
    page_lsn = first_page(log, lsn, begin_lsn)
    assert page_lsn == begin_lsn
    queue = read_all(log, begin_lsn, lsn)
    assert [each.xid for each in queue] == [11]
    assert (queue.skipped_until, last.start_lsn) == (record.end_lsn, record.end_lsn)


def test_no_page_begins_before_the_position() -> None:
    log = new_log()
    end_lsn = log.commit(10).end_lsn
    log.commit(11)
    assert first_page(log, end_lsn, end_lsn) is None
    assert first_page(log, MIB, MIB) == MIB
    assert [each.xid for each in read_all(log, end_lsn)] == [11], "a record's start serves, too"


def test_a_commit_that_ends_on_a_page_boundary_waits_for_exactly_that() -> None:
    log = new_log()
    log.fill_page(leave=40)  # A commit without an xinfo has 34 bytes.
    commit = log.commit(10)
    assert commit.end_lsn % PAGE_SIZE == 0
    log.commit(11)
    queue = read_all(log)
    assert queue.entries[0].end_lsn == commit.end_lsn
    assert queue.confirm(commit.end_lsn - 1) == 0
    assert queue.confirm(commit.end_lsn) == 1


def test_a_transaction_that_spans_several_segments_is_one_entry() -> None:
    log = new_log()
    log.insert(10)
    log.pad(3 * MIB)
    log.commit(10)
    assert log.position > 3 * MIB
    assert [(e.xid, e.kind) for e in read_all(log)] == [(10, "commit")]


def test_one_confirm_per_position_and_in_order() -> None:
    """Tarantool's 5144 and 5195: a duplicate CONFIRM."""
    log = new_log()
    ends = [log.commit(xid).end_lsn for xid in range(10, 20)]
    queue = read_all(log)
    assert queue.confirm(ends[3]) == 4
    assert queue.confirm(ends[3]) == queue.confirm(ends[0]) == 0, "an older or repeated position confirms nothing"
    assert [each.xid for each in queue] == list(range(14, 20))


def test_an_older_confirm_does_not_bring_confirmed_entries_back() -> None:
    """Tarantool's 9138: a CONFIRM of an older term is no alarm, and changes nothing."""
    log = new_log()
    ends = [log.commit(xid).end_lsn for xid in range(10, 20)]
    queue = read_all(log)
    queue.confirm(ends[7])
    queue.confirm(ends[2])
    queue.begin(MIB, log.segment_size, MAJOR, 1)
    queue.feed(log.read(MIB, log.position))
    assert [each.xid for each in queue] == [18, 19]


def test_a_timeline_that_forks_below_acknowledged_wal_has_its_own_entries() -> None:
    """--allow-data-loss."""
    log = new_log()
    ends = [log.commit(xid).end_lsn for xid in range(10, 20)]
    queue = read_all(log)
    queue.confirm(ends[7])
    queue.stop()
    assert [each.xid for each in queue.discard(ends[3], 2)] == [18, 19]
    child = log.child(2, ends[3])
    child.commit(30)
    queue.begin(MIB, log.segment_size, MAJOR, 2)
    queue.feed(child.read(MIB, child.position))
    assert [each.xid for each in queue] == [30]


def test_what_does_not_end_a_transaction_is_no_entry() -> None:
    """A read-only transaction writes no record; nor do others become entries."""
    log = new_log()
    log.running(100)
    log.insert(10)
    log.message(10, transactional=False)
    log.assign(10, [11, 12])
    log.switch()
    log.running(100)
    assert list(read_all(log)) == []


def test_a_full_queue_holds_no_more_and_continues_when_entries_leave() -> None:
    log = new_log()
    ends = [log.commit(xid).end_lsn for xid in range(10, 40)]
    queue = queue_at(log, entries_max=10)
    while queue.position < log.position and not queue.is_full:
        queue.feed(log.read(queue.position, queue.position + 64))
    assert 10 <= len(queue) < 13
    assert queue.confirm(ends[9]) == 10
    while queue.position < log.position:
        queue.feed(log.read(queue.position, min(queue.position + 64, log.position)))
    assert [each.xid for each in queue] == list(range(20, 40))


def test_malformed_wal_is_a_problem_and_not_an_exception() -> None:
    log = new_log()
    log.commit(10)
    at = len(log.data)
    log.commit(11)
    log.data[at + 30] ^= 1
    queue = queue_at(log)
    queue.feed(log.read(MIB, log.position))
    assert "checksum" in queue.problem
    assert [each.xid for each in queue] == [10]
    queue.feed(b"more")
    assert [each.xid for each in queue] == [10]


# A stream that begins again, and timelines.


def test_wal_that_is_received_a_second_time_has_the_same_entries_once() -> None:
    log = new_log()
    for xid in range(10, 20):
        log.commit(xid)
    queue = read_all(log)
    expected = list(queue)
    queue.stop()
    assert list(queue) == expected, "they still wait"
    queue.begin(MIB, log.segment_size, MAJOR, 1)
    half = (log.position - MIB) // 2
    queue.feed(log.read(MIB, MIB + half))
    assert list(queue) == expected
    queue.feed(log.read(MIB + half, log.position))
    assert list(queue) == expected == list(queue.entries)


def test_a_promotion_discards_exactly_what_the_new_timeline_does_not_have() -> None:
    log = new_log()
    ends = [log.commit(xid).end_lsn for xid in range(10, 20)]
    queue = read_all(log)
    queue.stop()
    assert [each.xid for each in queue.discard(ends[5], 2)] == [16, 17, 18, 19]
    child = log.child(2, ends[5])
    child.commit(30)
    queue.begin(MIB, log.segment_size, MAJOR, 2)
    queue.feed(child.read(MIB, child.position))
    assert [each.xid for each in queue] == [10, 11, 12, 13, 14, 15, 30]
    assert (len(queue.discarded), queue.discarded_total) == (4, 4)


def test_a_discarded_entry_does_not_return() -> None:
    """Tarantool's 5140: an entry after ROLLBACK resurrects; and 5185: a CONFIRM races ROLLBACK."""
    log = new_log()
    ends = [log.commit(xid).end_lsn for xid in range(10, 14)]
    queue = read_all(log)
    queue.stop()
    queue.discard(ends[1], 2)
    assert queue.confirm(ends[3]) == 2, "of the four, two are left to confirm"
    assert [each.xid for each in queue.discarded] == [12, 13]
    assert queue.discard(ends[1], 2) == [], "nothing is discarded twice"
    assert list(queue) == []


def test_the_same_timeline_discards_nothing() -> None:
    """Tarantool's 9138: a false split brain. The primary reconnects, and its term may be another one."""
    log = new_log()
    for xid in range(10, 14):
        log.commit(xid)
    queue = read_all(log)
    queue.stop()
    assert queue.discard(MIB, 1) == []
    assert len(queue) == 4


# Arrivals.


def test_a_position_waits_since_the_batch_that_has_its_last_byte() -> None:
    arrivals = Arrivals()
    for end_lsn, at in ((100, 1.0), (200, 2.0), (300, 3.0)):
        arrivals.note((end_lsn, at))
    assert arrivals.since([50, 100, 101, 200, 300, 301]) == [1.0, 1.0, 2.0, 2.0, 3.0, None]
    assert [arrivals.oldest(lsn) for lsn in (0, 99, 100, 299, 300)] == [1.0, 1.0, 2.0, 3.0, None]


def test_confirmed_batches_are_forgotten() -> None:
    arrivals = Arrivals()
    for end_lsn in range(100, 1000, 100):
        arrivals.note((end_lsn, float(end_lsn)))
    arrivals.trim(450)
    assert arrivals.oldest(0) == 500.0
    arrivals.trim(900)
    assert arrivals.oldest(0) is None


def test_memory_is_bounded_and_no_wait_becomes_shorter() -> None:
    chance = random.Random(1)
    arrivals, exact = Arrivals(64), Arrivals()
    for number in range(1, 2001):
        for each in (arrivals, exact):
            each.note((number * 10, number / 10))
        if chance.random() < 0.1:
            arrivals.trim(0)
    arrivals.trim(0)
    lsns = range(1, 20_001, 7)
    pairs = list(zip(arrivals.since(lsns), exact.since(lsns), strict=True))
    assert all(kept is not None and true is not None and kept <= true for kept, true in pairs)
    assert len(set(arrivals.since(lsns))) <= 65


def test_wal_that_is_received_a_second_time_waits_since_the_first() -> None:
    arrivals = Arrivals()
    for end_lsn in (100, 200, 300):
        arrivals.note((end_lsn, end_lsn / 100))
    arrivals.repeat()
    for end_lsn, at in ((150, 10.0), (350, 11.0), (400, 12.0)):
        arrivals.note((end_lsn, at))
    assert arrivals.since([100, 150, 250, 300, 301, 400]) == [1.0, 2.0, 3.0, 3.0, 11.0, 12.0]
    arrivals.repeat()
    arrivals.note((400, 20.0))
    assert arrivals.since([300, 400]) == [3.0, 12.0]
    arrivals.trim(300)
    assert arrivals.oldest(300) == 11.0
    arrivals.clear()
    assert arrivals.oldest(0) is None
