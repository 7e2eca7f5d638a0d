"""The rules by which recovery finds the end of a log, each alone. Crashes are those of the lone data folder."""

import random
from pathlib import Path

import pytest

from safekeeper.base.errors import DiskLost, StorageFailed
from safekeeper.base.lsn import segment_name
from safekeeper.storage.filesystem import TEMPORARY_SUFFIX
from safekeeper.storage.recovery import (
    NamedSegment,
    SegmentFacts,
    drop_segments,
    end_of_chain,
    inspect,
    list_segments,
    names_below,
    recover,
)
from safekeeper.storage.segment_file import FOOTER_BYTES, create_segment, open_segment
from tests.simulation.model.virtual_disk import VirtualFileSystem

DIRECTORY = Path("/data/wal")
SIZE = 8192
BASE = 4 * SIZE


def name(number: int, tli: int = 1) -> str:
    return segment_name(tli, BASE + number * SIZE, SIZE)


def facts(number: int, valid_bytes: int | None) -> SegmentFacts:
    begin_lsn = BASE + number * SIZE
    valid_end_lsn = None if valid_bytes is None else begin_lsn + valid_bytes
    return SegmentFacts(name(number), 1, begin_lsn, valid_end_lsn, (), ())


def disk(*valid_bytes: int) -> VirtualFileSystem:
    """Return a disk with segments that have this much WAL each."""
    fs = VirtualFileSystem(random.Random(1))
    for number, size in enumerate(valid_bytes):
        wal = [bytes([number + 1]) * size] if size else []
        create_segment(fs, DIRECTORY, tli=1, begin_lsn=BASE + number * SIZE, segment_size=SIZE, wal=wal)
    return fs


@pytest.mark.parametrize(
    ("segments", "end"),
    [
        ([], None),
        ([(0, None)], None),
        ([(0, 0)], 0),
        ([(0, 100)], 100),
        ([(0, SIZE)], SIZE),
        ([(0, SIZE), (1, 0)], SIZE),
        ([(0, SIZE), (1, 7)], SIZE + 7),
        ([(0, SIZE), (1, None)], SIZE),
        ([(0, SIZE), (1, None), (2, SIZE)], SIZE),
        ([(0, SIZE), (2, 7)], SIZE),
        ([(0, 100), (1, 7)], 100),
        ([(0, SIZE - 1), (1, 7)], SIZE - 1),
        ([(0, SIZE), (1, SIZE), (2, 7)], 2 * SIZE + 7),
    ],
)
def test_the_chain_ends_where_a_segment_is_not_complete_or_the_next_one_is_not_valid(
    segments: list[tuple[int, int | None]], end: int | None
) -> None:
    assert end_of_chain([facts(*each) for each in segments], SIZE) == (0 if end is None else BASE + end)


@pytest.mark.parametrize(
    ("begin_lsn", "count"),
    [(0, 0), (BASE, 0), (BASE + SIZE - 1, 0), (BASE + SIZE, 1), (BASE + 2 * SIZE - 1, 1), (BASE + 3 * SIZE, 3)],
)
def test_segments_that_end_at_or_below_the_beginning_are_old(begin_lsn: int, count: int) -> None:
    names = [name(2), "00000002.history", name(0), name(1)]
    assert names_below(names, begin_lsn, SIZE) == {name(number) for number in range(count)}


def test_segments_are_listed_in_order_and_other_names_ignored() -> None:
    names = [name(2), "00000002.history", name(1, tli=2), "0" * 23 + "g", "1" * 25, name(0)]
    found = list_segments(DIRECTORY, names, SIZE)
    assert found == [NamedSegment(BASE, 1), NamedSegment(BASE + SIZE, 2), NamedSegment(BASE + 2 * SIZE, 1)]


def test_segments_are_removed_from_the_end_each_durably_before_the_next() -> None:
    fs = disk(SIZE, SIZE, SIZE, SIZE)
    fs.fail_in(1, only="sync folder")
    with pytest.raises(StorageFailed):
        drop_segments(fs, DIRECTORY, [NamedSegment(BASE + number * SIZE, 1) for number in (1, 2, 3)], SIZE)
    assert sorted(fs.listdir(DIRECTORY)) == [name(0), name(1), name(2)]


@pytest.mark.parametrize(
    ("sizes", "end", "kept"),
    [
        ((0,), 0, 1),
        ((100,), 100, 1),
        ((SIZE,), SIZE, 1),
        ((SIZE, 0), SIZE, 1),
        ((SIZE, 0, 0), SIZE, 1),
        ((100, 0), 100, 1),
        ((SIZE, 5), SIZE + 5, 2),
        ((SIZE, SIZE, 0), 2 * SIZE, 2),
    ],
)
def test_the_log_ends_with_the_last_segment_that_has_wal_and_what_was_prepared_is_removed(
    sizes: tuple[int, ...], end: int, kept: int
) -> None:
    fs = disk(*sizes)
    log = recover(fs, DIRECTORY, SIZE)
    assert log.tail is not None and log.tail.write_lsn == BASE + end
    assert log.segments == [NamedSegment(BASE + number * SIZE, 1) for number in range(kept)]
    assert sorted(fs.listdir(DIRECTORY)) == [name(number) for number in range(kept)]
    assert log.tail.begin_lsn == log.segments[-1].begin_lsn
    wal = log.tail.read(log.tail.begin_lsn, log.tail.write_lsn)
    assert wal == bytes([kept]) * (log.tail.write_lsn - log.tail.begin_lsn)


@pytest.mark.parametrize(
    ("sizes", "damaged"),
    [
        ((SIZE - 1, 1), 0),
        ((0, 1), 0),
        ((SIZE, 100, 1), 1),
        ((SIZE, 100, 0, 1), 1),
        # As if only prepared: the only flush in it covered all of it, and its slot or its bytes are damaged.
        ((SIZE, 0, 1), 1),
        ((SIZE, SIZE, 0, 0, SIZE), 2),
    ],
)
def test_wal_after_a_segment_that_is_not_complete_is_damage_and_nothing_is_removed(
    sizes: tuple[int, ...], damaged: int
) -> None:
    fs = disk(*sizes)
    with pytest.raises(DiskLost, match=f"{name(damaged)} is damaged.* although {name(len(sizes) - 1)} contains more"):
        recover(fs, DIRECTORY, SIZE)
    assert len(fs.listdir(DIRECTORY)) == len(sizes)


def test_a_file_that_is_a_byte_too_long_is_refused_and_reported() -> None:
    fs = disk(100)
    fs.open(DIRECTORY / name(0)).pwrite(b"x", SIZE + FOOTER_BYTES)
    with pytest.raises(StorageFailed, match=f"has {SIZE + FOOTER_BYTES + 1} bytes, not the {SIZE + FOOTER_BYTES}"):
        recover(fs, DIRECTORY, SIZE)
    (found,), problems = inspect(fs, DIRECTORY, SIZE)
    assert found.problems == (f"has {SIZE + FOOTER_BYTES + 1} bytes, not {SIZE + FOOTER_BYTES}",)
    assert found.valid_end_lsn == BASE + 100 and problems == []


def test_a_segment_that_was_copied_under_another_name_has_no_valid_slot() -> None:
    fs = disk(100)
    fs.rename(DIRECTORY / name(0), DIRECTORY / name(5))
    with pytest.raises(DiskLost, match="both slots of its footer have a wrong checksum"):
        recover(fs, DIRECTORY, SIZE)


@pytest.mark.parametrize(
    ("sizes", "is_damage"), [((SIZE, 5), False), ((SIZE - 1, 5), True), ((SIZE - 1, 0), False), ((0, 5), True)]
)
def test_inspection_reports_wal_after_a_segment_that_is_not_complete(sizes: tuple[int, ...], is_damage: bool) -> None:
    _, problems = inspect(disk(*sizes), DIRECTORY, SIZE)
    expected = [f"{name(0)} ends early although {name(1)} contains WAL: acknowledged WAL is damaged"]
    assert problems == (expected if is_damage else [])


def test_inspection_sorts_files_of_one_segment_by_timeline_and_reports_leftovers() -> None:
    fs = disk(SIZE, 5)
    create_segment(fs, DIRECTORY, tli=2, begin_lsn=BASE, segment_size=SIZE)
    fs.create(DIRECTORY / f"{name(2)}{TEMPORARY_SUFFIX}")
    found, problems = inspect(fs, DIRECTORY, SIZE)
    assert [each.name for each in found] == [name(0), name(0, tli=2), name(1)]
    assert problems[0] == f"{name(2)}{TEMPORARY_SUFFIX} is left over from an interrupted step"
    assert "two files of one segment" in problems[1]


# Damage, and a disk that is nearly full.


def damage_footer(fs: VirtualFileSystem, number: int) -> None:
    fs.damage(DIRECTORY / name(number), SIZE, bytes(FOOTER_BYTES))


@pytest.mark.parametrize(("first", "is_lost"), [(SIZE, True), (SIZE - 1, False)])
def test_a_damaged_segment_is_a_lost_disk_where_the_log_may_go_on_in_it(first: int, is_lost: bool) -> None:
    """After a segment that is not complete there was only a prepared one: it is removed."""
    fs = disk(first, 5)
    damage_footer(fs, 1)
    if is_lost:
        with pytest.raises(DiskLost, match=f"{name(1)}: both slots of its footer have a wrong checksum"):
            recover(fs, DIRECTORY, SIZE)
        assert sorted(fs.listdir(DIRECTORY)) == [name(0), name(1)]
    else:
        log = recover(fs, DIRECTORY, SIZE)
        assert log.tail is not None and log.tail.write_lsn == BASE + first and fs.listdir(DIRECTORY) == [name(0)]


def test_what_was_prepared_or_is_old_makes_room_for_the_copy_of_the_last_segment() -> None:
    fs = disk(100, 0)
    fs.capacity_bytes = fs.used_bytes()
    log = recover(fs, DIRECTORY, SIZE)
    assert log.tail is not None and log.tail.write_lsn == BASE + 100
    fs = disk(SIZE, 100)
    fs.capacity_bytes = fs.used_bytes()
    log = recover(fs, DIRECTORY, SIZE, BASE + SIZE)
    assert log.tail is not None and log.tail.write_lsn == BASE + SIZE + 100


@pytest.mark.parametrize(("begin_lsn", "first"), [(BASE + SIZE - 1, 0), (BASE + SIZE, 1), (BASE + 2 * SIZE, 2)])
def test_segments_that_were_being_removed_are_removed_and_are_no_part_of_the_log(begin_lsn: int, first: int) -> None:
    fs = disk(SIZE, SIZE, 7)
    damaged = range(first)
    for number in damaged:
        damage_footer(fs, number)
    log = recover(fs, DIRECTORY, SIZE, begin_lsn)
    assert log.segments == [NamedSegment(BASE + number * SIZE, 1) for number in range(first, 3)]
    assert sorted(fs.listdir(DIRECTORY)) == [name(number) for number in range(first, 3)]
    assert log.tail is not None and log.tail.write_lsn == BASE + 2 * SIZE + 7


def test_all_segments_may_be_old() -> None:
    fs = disk(SIZE, 100)
    log = recover(fs, DIRECTORY, SIZE, BASE + 2 * SIZE)
    assert log.segments == [] and log.tail is None and fs.listdir(DIRECTORY) == []


def test_names_are_durable_before_anything_is_removed() -> None:
    """Otherwise a crash could restore a file that was removed before, above one whose removal is durable."""
    fs = disk(SIZE, 5, 0)
    fs.fail_in(1, only="sync folder")
    with pytest.raises(StorageFailed, match="input/output error"):
        recover(fs, DIRECTORY, SIZE)
    assert sorted(fs.listdir(DIRECTORY)) == [name(0), name(1), name(2)]


def test_inspection_ignores_segments_that_were_being_removed() -> None:
    fs = disk(SIZE, SIZE, 7)
    damage_footer(fs, 0)
    found, problems = inspect(fs, DIRECTORY, SIZE, BASE + SIZE)
    assert [each.name for each in found] == [name(1), name(2)] and problems == []
    found, _ = inspect(fs, DIRECTORY, SIZE, BASE + SIZE - 1)
    assert [each.valid_end_lsn for each in found] == [None, BASE + 2 * SIZE, BASE + 2 * SIZE + 7]


def test_inspection_reports_a_flush_that_was_interrupted_and_no_other_slot() -> None:
    fs = disk(0)
    segment = open_segment(fs, DIRECTORY, tli=1, begin_lsn=BASE, segment_size=SIZE)
    for _ in range(2):
        segment.append(b"x" * 700)
        slot = segment.take_slot()
        assert slot is not None
        segment.write_slot(slot)
        segment.sync()
    (found,), _ = inspect(fs, DIRECTORY, SIZE)
    assert found.problems == () and found.valid_end_lsn == BASE + 1400
    fs.damage(DIRECTORY / name(0), 1000, b"?")
    (found,), _ = inspect(fs, DIRECTORY, SIZE)
    assert found.valid_end_lsn == BASE + 700
    assert found.problems == ("the WAL does not match the checksum of the newest slot: the last flush was interrupted",)
    fs.damage(DIRECTORY / name(0), 1000, b"x")
    fs.damage(DIRECTORY / name(0), 100, b"?")
    (found,), _ = inspect(fs, DIRECTORY, SIZE)
    assert found.problems == () and found.valid_end_lsn == BASE + 1400, "only the newest slot is in doubt"
    fs.damage(DIRECTORY / name(0), 1000, b"?")
    (found,), _ = inspect(fs, DIRECTORY, SIZE)
    assert found.valid_end_lsn is None and found.problems == ("both slots of the footer have a wrong checksum",)
