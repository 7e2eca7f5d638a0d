"""The discarded report: what is found in made WAL, in folders in every state, and with damage."""

import dataclasses
import functools
import json
import random
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from safekeeper.base.errors import ConfigurationError, WalproxyError
from safekeeper.base.lsn import format_lsn, segment_name
from safekeeper.waldecode.format import PAGE_SIZE, WalFormatError
from safekeeper.waldecode.record_body import RelationLocator
from tests.unit.record_bodies import body
from tests.unit.transactions_wal import CATALOG, OTHER, TABLE, TIME, TransactionsWal, new_log
from tests.unit.wal_builder import MIB
from tests.unit.wal_places import extend, write_history, write_segments
from walproxy.failover import discarded
from walproxy.failover.discarded import DiscardedTransaction, Kind, RowCounts, precedes, relations_of
from walproxy.failover.discarded_report import DiscardedReport, commit_time, discarded_report, write_report
from walproxy.wal_sources.source import SourceCorrupt, WalMissing

MAJORS = [13, 14, 15, 16, 17, 18]
RELATION, OTHER_RELATION = RelationLocator(*TABLE), RelationLocator(*OTHER)


def report_of(folder: Path, wal: TransactionsWal, from_lsn: int, **options: int) -> DiscardedReport:
    """Write the log into the folder and report what follows `from_lsn`."""
    write_segments(folder, wal)
    return discarded_report(folder, from_lsn, **options)


def kinds(report: DiscardedReport) -> list[tuple[Kind, int]]:
    return [(each.kind, each.xid) for each in report.tail.transactions]


def by_xid(report: DiscardedReport) -> dict[int, DiscardedTransaction]:
    return {each.xid: each for each in report.tail.transactions}


@pytest.mark.parametrize("major", MAJORS)
def test_rows_are_counted_by_transaction_and_relation(tmp_path: Path, major: int) -> None:
    wal = new_log(major=major)
    wal.running(100)
    wal.insert(99)
    wal.commit(99)
    from_lsn = wal.end_lsn
    first = wal.insert(100)
    wal.insert_many(101, 12)
    wal.update(100)
    wal.update(100, hot=True)
    wal.delete(100)
    wal.insert(102, OTHER)
    wal.insert(100, CATALOG)
    wal.message(100, transactional=True)
    wal.message(0, transactional=False)
    wal.sequence(100)
    last = wal.commit(100, [101, 102], relfiles=1, invalidations=2)
    wal.insert(103)
    wal.abort(103)
    wal.insert(104)
    report = report_of(tmp_path, wal, from_lsn)
    assert (report.system_id, report.major, report.tli) == (7, major, 1)
    assert (report.from_lsn, report.end_lsn, report.read_from_lsn) == (from_lsn, wal.end_lsn, MIB)
    assert (report.transactions, report.commits, report.notes) == (1, 1, ())
    (found,) = report.tail.transactions
    assert (found.xid, found.kind, found.time_us, found.subtransactions) == (100, Kind.COMMIT, TIME + 100, 2)
    assert (found.lsn, found.end_lsn, found.first_lsn) == (last.start_lsn, last.end_lsn, first.start_lsn)
    assert found.rows == {
        RelationLocator(*CATALOG): RowCounts(1, 0, 0),
        RELATION: RowCounts(13, 2, 1),
        OTHER_RELATION: RowCounts(1, 0, 0),
    }
    written = [each.total_length for each in wal.records if each.xid in (100, 101, 102)]
    assert (found.wal_bytes, found.messages, found.sequences) == (sum(written), 1, (OTHER_RELATION,))
    assert (found.changes_catalogs, len(found.dropped), found.is_complete) == (True, 1, True)
    assert [each.xid for each in report.tail.aborted] == [103]
    assert (report.tail.open, report.tail.messages) == (1, 1)
    assert set(relations_of(report.tail.transactions)) == {*found.rows, *found.dropped, *found.sequences}


def test_relations_that_were_made_in_the_tail_are_known(tmp_path: Path) -> None:
    wal = new_log()
    wal.running(100)
    wal.create(100, TABLE)
    from_lsn = wal.end_lsn
    wal.create(0, OTHER)
    wal.insert(101, OTHER)
    wal.insert(101)
    wal.commit(101)
    report = report_of(tmp_path, wal, from_lsn)
    assert report.tail.created == {OTHER_RELATION}
    relations = report.content()["transactions"][0]["relations"]
    assert {each["relfilenode"]: each["created"] for each in relations} == {TABLE[2]: False, OTHER[2]: True}


def test_row_of_a_conflict_that_was_taken_back_is_none(tmp_path: Path) -> None:
    wal = new_log()
    wal.running(100)
    from_lsn = wal.end_lsn
    wal.insert(100)
    wal.delete(100, flags=0x08)
    wal.update(100)
    wal.commit(100)
    wal.insert(101)
    wal.delete(101, flags=0x08)
    wal.commit(101)
    found = by_xid(report_of(tmp_path, wal, from_lsn))
    assert (found[100].rows, found[101].rows) == ({RELATION: RowCounts(0, 1, 0)}, {})


def test_transaction_that_began_before_the_fork_has_all_its_rows(tmp_path: Path) -> None:
    wal = new_log()
    wal.running(100)
    wal.insert(99)  # Before the WAL that proves that nothing of it is missing.
    first = wal.insert(100)
    wal.insert(101)
    wal.pad(3 * MIB + 5000)
    wal.running(102)
    wal.insert(100)
    from_lsn = wal.end_lsn
    wal.commit(100, [101])
    wal.commit(99)
    wal.insert(102)
    wal.commit(102)
    report = report_of(tmp_path, wal, from_lsn)
    found = by_xid(report)
    assert found[100].rows == {RELATION: RowCounts(3, 0, 0)}
    assert (found[100].first_lsn, found[100].is_complete) == (first.start_lsn, True)
    assert (found[99].rows, found[99].is_complete) == ({RELATION: RowCounts(1, 0, 0)}, False)
    assert report.notes == (
        "transactions: 1 may have begun before 0/100000, where the read WAL begins: their rows and relations may be "
        "incomplete",
    )
    # As far as it is allowed to look: each step is a segment.
    report = discarded_report(tmp_path, from_lsn, look_back_bytes=MIB)
    assert report.read_from_lsn == 2 * MIB
    assert [each.is_complete for each in report.tail.transactions] == [False, False, True]
    # As far as the WAL is there, and not damaged.
    segment = tmp_path / segment_name(1, 2 * MIB, MIB)
    content = segment.read_bytes()
    segment.write_bytes(content[:500_000] + b"\xff" * 8 + content[500_008:])
    report = discarded_report(tmp_path, from_lsn)
    assert (report.read_from_lsn, by_xid(report)[100].is_complete) == (3 * MIB, False)
    segment.unlink()
    report = discarded_report(tmp_path, from_lsn)
    assert (report.read_from_lsn, by_xid(report)[100].rows) == (3 * MIB, {RELATION: RowCounts(1, 0, 0)})


def test_first_proof_of_what_was_running_counts(tmp_path: Path) -> None:
    wal = new_log()
    wal.running(100)
    from_lsn = wal.end_lsn
    wal.insert(100)
    wal.running(101)
    wal.commit(100)
    report = report_of(tmp_path, wal, from_lsn)
    assert ([each.is_complete for each in report.tail.transactions], report.notes) == ([True], ())


def test_look_back_passes_the_zeros_after_a_switch(tmp_path: Path) -> None:
    wal = TransactionsWal(begin_lsn=16 * MIB, segment_size=16 * MIB, system_id=7)
    wal.running(100)
    wal.insert(100)
    wal.switch()
    from_lsn = wal.end_lsn
    wal.insert(100)
    wal.commit(100)
    report = report_of(tmp_path, wal, from_lsn)
    assert (report.read_from_lsn, by_xid(report)[100].rows) == (16 * MIB, {RELATION: RowCounts(2, 0, 0)})


def test_prepared_transactions_by_where_their_parts_are(tmp_path: Path) -> None:
    wal = new_log()
    wal.running(100)
    for xid in (100, 101, 102, 103):
        wal.insert(xid)
        wal.prepare(xid, b"gid%d" % xid)
        if xid == 102:
            wal.running(103)  # From here on it is certain that no more of the first ones is missing.
    wal.end_prepared(103, commit=True)
    wal.pad(3 * MIB)
    wal.insert(104)
    wal.prepare(104, b"still prepared")
    from_lsn = wal.end_lsn
    committed = wal.end_prepared(100, commit=True)
    wal.end_prepared(101, commit=False)
    prepared = {}
    for xid in (110, 111, 112):
        wal.insert(xid)
        prepared[xid] = wal.prepare(xid, b"gid%d" % xid, [xid + 50])
    wal.end_prepared(110, commit=True, subxids=[160])
    wal.end_prepared(111, commit=False, subxids=[161])
    report = report_of(tmp_path, wal, from_lsn)
    assert kinds(report) == [
        (Kind.COMMIT_PREPARED, 100),
        (Kind.ROLLBACK_PREPARED, 101),
        (Kind.PREPARE, 112),
        (Kind.COMMIT_PREPARED, 110),
    ]
    found = by_xid(report)
    assert [each.gid for each in found.values()] == ["gid100", "gid101", "gid112", "gid110"]
    assert 0 < found[100].prepare_lsn < from_lsn
    assert found[100].wal_bytes == committed.total_length + sum(r.total_length for r in wal.records if r.xid == 100)
    assert found[110].prepare_lsn == found[112].lsn - (prepared[112].start_lsn - prepared[110].start_lsn)
    assert all(each.rows == {RELATION: RowCounts(1, 0, 0)} for each in found.values())
    assert [each.xid for each in report.tail.aborted] == [111]
    assert (report.transactions, report.commits, report.tail.open) == (4, 2, 0)


def test_open_subtransactions_count_once_if_their_parent_is_known(tmp_path: Path) -> None:
    wal = new_log()
    wal.running(100)
    wal.insert(90)
    from_lsn = wal.end_lsn
    wal.insert(100)
    wal.insert(101, top_xid=100)
    wal.insert(102)
    wal.insert(103)
    wal.assign(100, [102, 103])
    wal.insert(104)
    report = report_of(tmp_path, wal, from_lsn)
    assert (report.transactions, report.tail.open) == (0, 2)


def test_ids_of_transactions_wrap_around(tmp_path: Path) -> None:
    assert precedes(0xFFFFFFF0, 5) and not precedes(5, 0xFFFFFFF0) and not precedes(5, 5)
    wal = new_log()
    wal.running(0xFFFFFFF0)
    from_lsn = wal.end_lsn
    for xid in (0xFFFFFFFF, 3):
        wal.insert(xid)
        wal.commit(xid)
    assert all(each.is_complete for each in report_of(tmp_path, wal, from_lsn).tail.transactions)


def test_no_more_than_a_limit_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discarded, "TRANSACTIONS_MAX", 3)
    wal = new_log()
    wal.running(100)
    from_lsn = wal.end_lsn
    for xid in range(100, 105):
        wal.commit(xid)
        wal.abort(xid + 100)
    report = report_of(tmp_path, wal, from_lsn)
    assert (report.transactions, len(report.tail.transactions), len(report.tail.aborted)) == (5, 3, 3)
    assert report.notes == ("transactions: 4 more are counted and not listed",)


# Where the tail ends.


@functools.cache
def tail_log() -> tuple[TransactionsWal, int]:
    """Return a log of many small transactions over some segments, and a fork in it."""
    wal = new_log()
    wal.running(100)
    for xid in range(100, 400):
        wal.insert(xid)
        wal.insert_many(xid, xid)
        if xid == 180:
            wal.pad(2 * MIB + 300_000)
        if xid == 200:
            from_lsn = wal.end_lsn
        if xid == 300:
            wal.pad(4 * MIB + 100_000)
        if xid % 7:
            wal.commit(xid)
        else:
            wal.abort(xid)
    return wal, from_lsn


def test_tail_ends_with_the_last_valid_record(tmp_path: Path) -> None:
    wal, from_lsn = tail_log()
    expected = kinds(report_of(tmp_path, wal, from_lsn))
    assert len(expected) > 150
    end_lsn = wal.end_lsn
    # A torn record, and what a recycled file held before.
    torn = new_log(begin_lsn=4 * MIB)
    extend(torn, 5 * MIB)
    old = extend(new_log(), 9 * MIB, seed=2)
    last = tmp_path / segment_name(1, 4 * MIB, MIB)
    written = last.read_bytes()[: end_lsn - 4 * MIB]
    last.write_bytes(written + torn.read(4 * MIB, 5 * MIB)[len(written) :])
    for number in (5, 6):
        (tmp_path / segment_name(1, number * MIB, MIB)).write_bytes(old.read((number - 3) * MIB, (number - 2) * MIB))
    report = discarded_report(tmp_path, from_lsn)
    assert (kinds(report), report.end_lsn, report.notes) == (expected, end_lsn, ())
    # A file that is shorter than its segment.
    last.write_bytes(written)
    assert kinds(discarded_report(tmp_path, from_lsn)) == expected
    last.rename(f"{last}.partial")
    assert kinds(discarded_report(tmp_path, from_lsn)) == expected
    (tmp_path / last.name).write_bytes(written[:100_000])
    assert kinds(discarded_report(tmp_path, from_lsn)) == expected
    (tmp_path / last.name).write_bytes(written)
    Path(f"{last}.partial").write_bytes(written[:100_000])
    assert kinds(discarded_report(tmp_path, from_lsn)) == expected
    (tmp_path / last.name).unlink()
    # The rest of the WAL.
    Path(f"{last}.partial").unlink()
    report = discarded_report(tmp_path, from_lsn)
    assert kinds(report) == expected[: len(kinds(report))]
    assert 4 * MIB - 25_000 < report.end_lsn < 4 * MIB


def test_hole_is_reported(tmp_path: Path) -> None:
    wal, from_lsn = tail_log()
    write_segments(tmp_path, wal)
    (tmp_path / segment_name(1, 3 * MIB, MIB)).unlink()
    report = discarded_report(tmp_path, from_lsn)
    assert 2 * MIB < report.end_lsn < 3 * MIB
    (note,) = report.notes
    assert note == (
        f"no valid record follows {format_lsn(report.end_lsn)} (000000010000000000000003 is missing), but "
        "000000010000000000000004 was written: transactions after it are not listed"
    )


def test_nothing_after_the_fork_is_an_empty_report(tmp_path: Path) -> None:
    wal, _ = tail_log()
    report = report_of(tmp_path, wal, wal.end_lsn)
    assert (report.transactions, report.tail.open, report.end_lsn - report.from_lsn) == (0, 0, 0)


def test_fork_on_the_border_of_segments_needs_no_segment_after_it(tmp_path: Path) -> None:
    wal = new_log()
    wal.insert(100)
    wal.switch()
    assert report_of(tmp_path, wal, 2 * MIB).transactions == 0
    wal.insert(101)
    wal.commit(100)
    write_segments(tmp_path, wal)
    for number in (1, 2):
        assert kinds(discarded_report(tmp_path, 2 * MIB)) == [(Kind.COMMIT, 100)]
        (tmp_path / segment_name(1, number * MIB, MIB)).unlink()
    wal.switch()
    write_segments(tmp_path, wal)
    wal.insert(101)
    write_segments(tmp_path, wal, [3 * MIB])
    for number in (1, 2):
        (tmp_path / segment_name(1, number * MIB, MIB)).unlink()
    with pytest.raises(WalMissing, match="has no 000000010000000000000002, the segment that contains 0/200000: check"):
        discarded_report(tmp_path, 2 * MIB)


def test_fork_after_a_page_header_is_the_end_of_the_record_before_it(tmp_path: Path) -> None:
    wal = new_log()
    wal.running(100)
    wal.fill_page()
    assert wal.end_lsn % PAGE_SIZE == 0
    from_lsn = wal.end_lsn + 24
    assert report_of(tmp_path, wal, from_lsn).transactions == 0
    wal.commit(100)
    assert kinds(report_of(tmp_path, wal, from_lsn)) == [(Kind.COMMIT, 100)]


def test_record_whose_rest_the_new_primary_lacked_is_of_the_tail(tmp_path: Path) -> None:
    wal = new_log()
    wal.running(100)
    wal.fill_page(leave=16)
    from_lsn = wal.end_lsn + 16
    wal.commit(100)
    assert kinds(report_of(tmp_path, wal, from_lsn)) == [(Kind.COMMIT, 100)]
    # Also where the WAL that is read must then begin earlier.
    wal.fill_page(leave=PAGE_SIZE // 2)
    wal.pad(2 * MIB - 5 * PAGE_SIZE)
    wal.commit(101, range(102, 102 + 2 * PAGE_SIZE))
    wal.running(200)
    assert wal.records[-2].start_lsn < 2 * MIB < wal.records[-2].end_lsn
    report = report_of(tmp_path, wal, 2 * MIB)
    assert (kinds(report), report.read_from_lsn) == ([(Kind.COMMIT, 101)], MIB)


# Timelines.


def test_timeline_is_the_one_that_was_left_at_the_fork(tmp_path: Path) -> None:
    wal, from_lsn = tail_log()
    child = wal.child(2, from_lsn)
    child.pad(6 * MIB)
    write_segments(tmp_path, wal)
    expected = kinds(discarded_report(tmp_path, from_lsn))
    write_segments(tmp_path, child, [2 * MIB, 3 * MIB, 4 * MIB, 5 * MIB])
    report = discarded_report(tmp_path, from_lsn, 1)
    assert (kinds(report), report.notes) == (expected, ())
    assert kinds(discarded_report(tmp_path, from_lsn)) == []
    write_history(tmp_path, 2, ((1, from_lsn),))
    assert kinds(discarded_report(tmp_path, from_lsn)) == expected
    assert kinds(discarded_report(tmp_path, from_lsn, 2)) == []
    write_history(tmp_path, 5, ((2, from_lsn),))
    with pytest.raises(ConfigurationError, match=r"the timelines 1, 2 were left at .*: name one with --timeline"):
        discarded_report(tmp_path, from_lsn)
    with pytest.raises(WalMissing, match="has no WAL of timeline 9: it has 1, 2"):
        discarded_report(tmp_path, from_lsn, 9)
    (tmp_path / "00000002.history").write_text("nonsense")
    with pytest.raises(SourceCorrupt, match=r"00000002.history: the history of TLI 2 has an invalid line"):
        discarded_report(tmp_path, from_lsn)


@pytest.mark.parametrize("has_history", [True, False])
def test_tail_of_a_server_that_was_itself_promoted(tmp_path: Path, has_history: bool) -> None:
    parent = new_log()
    parent.running(100)
    parent.insert(100)
    parent.pad(2 * MIB + 400_000)
    promoted_lsn = parent.end_lsn
    tail = parent.child(2, promoted_lsn)
    tail.insert(100)
    tail.pad(3 * MIB + 10_000)
    from_lsn = tail.end_lsn
    tail.commit(100)
    write_segments(tmp_path, parent)
    write_segments(tmp_path, tail, [2 * MIB, 3 * MIB])
    if has_history:
        write_history(tmp_path, 2, ((1, promoted_lsn),))
    report = discarded_report(tmp_path, from_lsn)
    (found,) = report.tail.transactions
    assert (report.tli, found.rows, found.is_complete) == (2, {RELATION: RowCounts(2, 0, 0)}, True)
    # The tail may even begin on the older timeline, which has nothing after its end.
    assert discarded_report(tmp_path, 2 * MIB).tli == 2
    parent.pad(4 * MIB)
    write_segments(tmp_path, parent, [3 * MIB])
    (tmp_path / segment_name(2, 3 * MIB, MIB)).unlink()
    with pytest.raises(
        WalMissing, match=r"before .*: 000000020000000000000003 is missing|has no 0000000200000000000000"
    ):
        discarded_report(tmp_path, from_lsn, 2)


def test_pages_of_a_later_timeline_are_not_of_the_tail(tmp_path: Path) -> None:
    wal = new_log()
    wal.running(100)
    from_lsn = wal.end_lsn
    child = wal.child(2, from_lsn)
    child.insert(101)
    child.commit(101)
    child.fill_page()
    child.insert(102)
    child.commit(102)
    child.tli = 1  # Only for the name of the file.
    write_segments(tmp_path, child)
    report = discarded_report(tmp_path, from_lsn)
    assert (report.tli, kinds(report)) == (1, [(Kind.COMMIT, 101)])


# Bad input.


def test_fork_inside_a_record_is_refused(tmp_path: Path) -> None:
    wal, from_lsn = tail_log()
    write_segments(tmp_path, wal)
    for offset in (8, -8):
        with pytest.raises(
            ConfigurationError, match=r"is inside the record from 0/\w+ to 0/\w+: give the LSN at which"
        ):
            discarded_report(tmp_path, from_lsn + offset)


def test_fork_outside_of_the_wal_is_refused(tmp_path: Path) -> None:
    wal, _ = tail_log()
    write_segments(tmp_path, wal)
    with pytest.raises(WalMissing, match="has no 000000010000000000000000, the segment that contains 0/0: check the"):
        discarded_report(tmp_path, 0)
    with pytest.raises(WalMissing, match="has no WAL after 9/0: check the LSN"):
        discarded_report(tmp_path, 9 << 32)
    beyond = wal.end_lsn + 8
    with pytest.raises(WalMissing, match=rf"ends at {format_lsn(wal.end_lsn)}, before {format_lsn(beyond)}: WAL at"):
        discarded_report(tmp_path, beyond)
    with pytest.raises(WalMissing, match=r"ends at .*, before 0/4F0000"):
        discarded_report(tmp_path, 0x4F0000)


def test_folder_without_wal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="has no segments of WAL"):
        discarded_report(tmp_path, MIB)
    (tmp_path / segment_name(1, MIB, MIB)).write_bytes(bytes(MIB))
    with pytest.raises(ConfigurationError, match="has no segments of WAL"):
        discarded_report(tmp_path, MIB)
    with pytest.raises(WalproxyError, match=r"cannot read .*/missing: No such file"):
        discarded_report(tmp_path / "missing", MIB)
    (tmp_path / segment_name(1, MIB, MIB)).rename(tmp_path / "file")
    with pytest.raises(WalproxyError, match=r"cannot read .*/file: Not a directory"):
        discarded_report(tmp_path / "file", MIB)


def test_wal_of_two_systems_is_refused(tmp_path: Path) -> None:
    wal, from_lsn = tail_log()
    write_segments(tmp_path, wal)
    stranger = TransactionsWal(begin_lsn=3 * MIB, system_id=8)
    stranger.pad(4 * MIB)
    write_segments(tmp_path, stranger, [3 * MIB])
    with pytest.raises(SourceCorrupt, match="is WAL of the system"):
        discarded_report(tmp_path, from_lsn)


def test_record_of_an_unknown_format_is_named(tmp_path: Path) -> None:
    wal = new_log()
    wal.running(100)
    from_lsn = wal.end_lsn
    wal.add(body(b""), rmid=10, info=0x10, xid=100)
    with pytest.raises(WalFormatError, match="is not in the format of PostgreSQL 18: look at it with pg_waldump"):
        report_of(tmp_path, wal, from_lsn)


@functools.cache
def whole_tail() -> list[tuple[object, ...]]:
    """Return the transactions of `tail_log`."""
    wal, from_lsn = tail_log()
    with tempfile.TemporaryDirectory() as folder:
        return list(map(dataclasses.astuple, report_of(Path(folder), wal, from_lsn).tail.transactions))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 32), how=st.sampled_from(["truncate", "flip", "zeros", "old", "remove", "swap"]))
def test_damage_shortens_the_report_or_is_one_line(tmp_path: Path, seed: int, how: str) -> None:
    rng = random.Random(seed)
    wal, from_lsn = tail_log()
    write_segments(tmp_path, wal)
    expected = whole_tail()
    path = tmp_path / segment_name(1, rng.randrange(1, 5) * MIB, MIB)
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content))
    if how == "truncate":
        del content[at:]
    elif how == "flip":
        for _ in range(rng.randrange(1, 4)):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif how == "zeros":
        content[at : at + 512] = bytes(len(content[at : at + 512]))
    elif how == "old":
        content[at:] = extend(new_log(), 3 * MIB, seed=seed).read(MIB + at, 2 * MIB)
    path.write_bytes(content)
    if how == "remove":
        path.unlink()
    elif how == "swap":
        path.write_bytes((tmp_path / segment_name(1, rng.randrange(1, 5) * MIB, MIB)).read_bytes())
    try:
        report = discarded_report(tmp_path, from_lsn)
    except WalproxyError as error:
        assert len(str(error).splitlines()) == 1
        return
    found = list(map(dataclasses.astuple, report.tail.transactions))
    complete = [each for each in found if each[-1]]
    assert complete == [each for each in expected[: len(found)] if each in complete]
    assert [each[0] for each in found] == [each[0] for each in expected[: len(found)]]


# The file.


def test_report_is_written_whole_and_read_back(tmp_path: Path) -> None:
    wal = new_log()
    wal.running(100)
    from_lsn = wal.end_lsn
    wal.insert(100)
    wal.prepare(100, "größe".encode())
    wal.commit(101, relfiles=1)
    (tmp_path / "wal").mkdir()
    report = report_of(tmp_path / "wal", wal, from_lsn)
    report = dataclasses.replace(report, names={RELATION: "postgres.public.t"})
    path = tmp_path / "report.json"
    path.write_text("an earlier one")
    write_report(path, report)
    content = json.loads(path.read_text())
    assert content == report.content()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["report.json", "wal"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert content["version"] == 1
    assert content["system_id"] == "7"
    assert content["counts"] == {
        "commit": 1,
        "commit prepared": 0,
        "prepare": 1,
        "rollback prepared": 0,
        "abort": 0,
    }
    prepared, committed = content["transactions"]
    assert prepared == {
        "xid": 100,
        "kind": "prepare",
        "gid": "größe",
        "time": "2025-05-08T06:13:20.000100+00:00",
        "lsn": format_lsn(wal.records[2].start_lsn),
        "end_lsn": format_lsn(wal.records[2].end_lsn),
        "first_lsn": format_lsn(wal.records[1].start_lsn),
        "prepare_lsn": format_lsn(wal.records[2].start_lsn),
        "subtransactions": 0,
        "changes_catalogs": False,
        "messages": 0,
        "wal_bytes": sum(each.total_length for each in wal.records[1:3]),
        "complete": True,
        "relations": [
            {
                "tablespace": 1663,
                "database": 5,
                "relfilenode": 16384,
                "name": "postgres.public.t",
                "catalog": False,
                "created": False,
                "inserted": 1,
                "updated": 0,
                "deleted": 0,
            }
        ],
        "sequences": [],
        "dropped": [],
    }
    assert (committed["gid"], committed["prepare_lsn"], len(committed["dropped"])) == (None, None, 1)


def test_report_that_cannot_be_written_leaves_the_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wal, from_lsn = tail_log()
    report = report_of(tmp_path, wal, from_lsn)
    path = tmp_path / "report.json"
    path.write_text("an earlier one")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_report(path, report)
    assert path.read_text() == "an earlier one"
    assert not list(tmp_path.glob("*.tmp"))


def test_time_that_no_calendar_has_is_none() -> None:
    assert commit_time(1 << 62) is None
    assert commit_time(-(1 << 63)) is None
    assert str(commit_time(0)) == "2000-01-01 00:00:00+00:00"
