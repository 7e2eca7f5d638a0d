"""Which bytes of a log the files of several timelines hold together."""

from walproxy.wal_sources.ranges import extents_of_files, later_of, next_of, reach_of
from walproxy.wal_sources.source import Extent, LogPath

MIB = 1 << 20
# Timeline 1 was left inside of segment 5, timeline 2 exactly where segment 8 ends.
PATH = LogPath(3, ((1, 5 * MIB + 100), (2, 9 * MIB)), MIB)


def test_files_reach_across_forks_until_something_is_missing() -> None:
    files = {(1, 4 * MIB): 5 * MIB, (2, 5 * MIB): 6 * MIB, (2, 6 * MIB): 6 * MIB + 500, (2, 8 * MIB): 9 * MIB}
    extents = extents_of_files(PATH, files)
    assert extents == [Extent(4 * MIB, 6 * MIB + 500), Extent(8 * MIB, 9 * MIB)]
    assert reach_of(extents, 4 * MIB) == 6 * MIB + 500
    assert reach_of(extents, 5 * MIB + 7) == 6 * MIB + 500
    assert reach_of(extents, 3 * MIB) == 3 * MIB
    assert reach_of(extents, 6 * MIB + 500) == 6 * MIB + 500
    assert reach_of(extents, 7 * MIB) == 7 * MIB
    assert next_of(extents, 4 * MIB + 3) == 4 * MIB + 3
    assert next_of(extents, 6 * MIB + 500) == 8 * MIB
    assert next_of(extents, 9 * MIB) is None


def test_a_parents_file_counts_up_to_the_fork_only() -> None:
    extents = extents_of_files(PATH, {(1, 5 * MIB): 6 * MIB, (1, 6 * MIB): 7 * MIB})
    assert extents == [Extent(5 * MIB, 5 * MIB + 100)]
    assert next_of(extents, 5 * MIB + 100) is None


def test_a_childs_file_counts_from_the_segment_with_the_fork_on() -> None:
    extents = extents_of_files(PATH, {(2, 4 * MIB): 5 * MIB, (2, 5 * MIB): 6 * MIB, (3, 8 * MIB): 9 * MIB})
    assert extents == [Extent(5 * MIB, 6 * MIB)]


def test_a_later_file_is_one_of_the_same_timeline() -> None:
    files = {(1, 4 * MIB): 5 * MIB, (2, 6 * MIB): 7 * MIB, (2, 8 * MIB): 8 * MIB + 1}
    assert later_of(files, 2, 5 * MIB, MIB) == "000000020000000000000006"
    assert later_of(files, 2, 6 * MIB, MIB) == "000000020000000000000008"
    assert later_of(files, 1, 4 * MIB, MIB) is None
