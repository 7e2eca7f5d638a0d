"""The WAL of one timeline with its ancestors: which files hold it."""

from safekeeper.base.lsn import LSN_MAX
from walproxy.wal_sources.source import LogPath

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


def test_an_ancestor_has_its_own_ancestors_only() -> None:
    assert PATH.ancestor(2) == LogPath(2, ((1, 5 * MIB + 100),), MIB)
    assert PATH.ancestor(1) == LogPath(1, (), MIB)
