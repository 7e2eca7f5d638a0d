"""The WAL of one timeline with its ancestors: which files hold it, and how far pieces of it reach."""

from safekeeper.base.lsn import LSN_MAX
from walproxy.wal_sources.source import LogPath, later_of, next_of, reach_of

MIB = 1 << 20
# Timeline 1 was left inside of segment 5, timeline 2 exactly where segment 8 ends.
PATH = LogPath(3, ((1, 5 * MIB + 100), (2, 9 * MIB)), MIB)


def test_the_segment_with_a_fork_inside_bears_two_names_the_childs_first() -> None:
    assert PATH.names(4 * MIB) == [(1, 5 * MIB)]
    assert PATH.names(5 * MIB) == [(2, 6 * MIB), (1, 5 * MIB + 100)]
    assert PATH.names(8 * MIB) == [(2, 9 * MIB)]
    assert PATH.names(9 * MIB) == [(3, 10 * MIB)]
    assert PATH.name_of(5 * MIB + 7) == "000000020000000000000005"
    assert PATH.name_of(9 * MIB) == "000000030000000000000009"


def test_two_paths_are_the_same_up_to_where_one_leaves_a_timeline_that_the_other_does_not() -> None:
    assert PATH.common_end(LogPath(1, (), MIB)) == 5 * MIB + 100
    assert PATH.common_end(LogPath(2, ((1, 5 * MIB + 100),), MIB)) == 9 * MIB
    assert PATH.common_end(LogPath(2, ((1, 4 * MIB),), MIB)) == 4 * MIB
    assert PATH.common_end(LogPath(3, ((2, 9 * MIB),), MIB)) == 0
    assert PATH.common_end(PATH) == LSN_MAX


def test_pieces_reach_across_forks_until_something_is_missing() -> None:
    pieces = {(1, 4 * MIB): 5 * MIB, (2, 5 * MIB): 6 * MIB, (2, 6 * MIB): 6 * MIB + 500, (2, 8 * MIB): 9 * MIB}
    assert reach_of(pieces, PATH, 4 * MIB) == 6 * MIB + 500
    assert reach_of(pieces, PATH, 3 * MIB) == 3 * MIB
    assert next_of(pieces, PATH, 6 * MIB + 500) == 8 * MIB
    assert next_of(pieces, PATH, 9 * MIB) is None


def test_a_parents_file_counts_up_to_the_fork_only() -> None:
    pieces = {(1, 5 * MIB): 6 * MIB, (1, 6 * MIB): 7 * MIB}
    assert reach_of(pieces, PATH, 5 * MIB) == 5 * MIB + 100
    assert next_of(pieces, PATH, 5 * MIB + 100) is None


def test_a_later_file_is_one_of_the_same_timeline() -> None:
    pieces = {(1, 4 * MIB): 5 * MIB, (2, 6 * MIB): 7 * MIB, (2, 8 * MIB): 8 * MIB + 1}
    assert later_of(pieces, 2, 5 * MIB, MIB) == "000000020000000000000006"
    assert later_of(pieces, 2, 6 * MIB, MIB) == "000000020000000000000008"
    assert later_of(pieces, 1, 4 * MIB, MIB) is None
