"""The catalogue of an archive: what can be read along which timeline, against a model that looks at single bytes."""

from collections.abc import Mapping
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from safekeeper.archive.catalog import ArchivedRange, Catalog, Hole
from safekeeper.archive.objects import ArchivedFile, ArchivedObject, Listing, history_file, partial_file, segment_file
from safekeeper.base.timelines import Lineage, tli_of_byte

SEGMENT = 16 << 20
TINY = 4
TINY_SEGMENTS = 6


def catalog_of(
    *files: ArchivedFile, histories: Mapping[int, Lineage] | None = None, segment_size: int = SEGMENT
) -> Catalog:
    objects = [ArchivedObject(file, file.key(False), 0, file.plain_bytes or 0, False) for file in files]
    return Catalog(Listing(objects, [], [], [], []), segment_size, histories or {})


def whole(tli: int, number: int) -> ArchivedFile:
    return segment_file(tli, number * SEGMENT, SEGMENT)


def partial(tli: int, number: int, size: int) -> ArchivedFile:
    return partial_file(tli, number * SEGMENT, number * SEGMENT + size, SEGMENT)


def test_chain_ends_at_the_first_missing_byte() -> None:
    catalog = catalog_of(whole(1, 3), whole(1, 4), partial(1, 5, 100), whole(1, 7))
    assert catalog.chain(1, 3 * SEGMENT) == 5 * SEGMENT + 100
    assert catalog.chain(1, 4 * SEGMENT + 9) == 5 * SEGMENT + 100
    assert catalog.chain(1, 6 * SEGMENT) == 6 * SEGMENT
    assert catalog.chain(1, 0) == 0
    assert catalog.ranges() == [
        ArchivedRange(1, 3 * SEGMENT, 5 * SEGMENT + 100, True),
        ArchivedRange(1, 7 * SEGMENT, 8 * SEGMENT, False),
    ]
    assert catalog.holes() == [Hole(1, 5 * SEGMENT + 100, 7 * SEGMENT, "000000010000000000000005")]


def test_fork_inside_a_segment_is_read_from_the_child() -> None:
    fork_lsn = 4 * SEGMENT + 100
    catalog = catalog_of(whole(1, 3), whole(2, 4), partial(2, 5, 7), histories={2: ((1, fork_lsn),)})
    assert catalog.timelines == (1, 2)
    assert catalog.chain(2, 3 * SEGMENT) == 5 * SEGMENT + 7
    assert catalog.chain(1, 3 * SEGMENT) == 4 * SEGMENT
    assert catalog.ranges() == [
        ArchivedRange(1, 3 * SEGMENT, fork_lsn, False),
        ArchivedRange(2, fork_lsn, 5 * SEGMENT + 7, True),
    ]
    assert catalog.holes() == []


def test_parents_own_file_of_the_fork_counts_up_to_the_fork_only() -> None:
    fork_lsn = 4 * SEGMENT + 100
    histories = {2: ((1, fork_lsn),)}
    assert catalog_of(whole(1, 3), whole(1, 4), histories=histories).chain(2, 3 * SEGMENT) == fork_lsn
    assert catalog_of(whole(1, 3), partial(1, 4, 60), histories=histories).chain(2, 3 * SEGMENT) == fork_lsn - 40
    abandoned = catalog_of(whole(1, 3), whole(1, 4), whole(1, 5), partial(2, 5, 8), histories=histories)
    assert abandoned.chain(2, 3 * SEGMENT) == fork_lsn
    assert abandoned.holes() == [Hole(2, fork_lsn, 5 * SEGMENT, "000000020000000000000004")]


def test_fork_on_a_segments_border_needs_no_file_of_both() -> None:
    catalog = catalog_of(whole(1, 3), whole(2, 4), histories={2: ((1, 4 * SEGMENT),)})
    assert catalog.chain(2, 3 * SEGMENT) == 5 * SEGMENT
    assert catalog.holes() == []


def test_hole_across_a_fork_names_the_file_that_the_lineage_needs() -> None:
    fork_lsn = 4 * SEGMENT + 100
    catalog = catalog_of(whole(1, 3), partial(1, 4, 50), whole(2, 5), histories={2: ((1, fork_lsn),)})
    assert catalog.holes() == [
        Hole(1, 4 * SEGMENT + 50, fork_lsn, "000000020000000000000004"),
        Hole(2, fork_lsn, 5 * SEGMENT, "000000020000000000000004"),
    ]


def test_missing_history_file_is_a_hole() -> None:
    assert catalog_of(whole(2, 4), whole(2, 6)).holes() == [
        Hole(2, 4 * SEGMENT, 4 * SEGMENT, "00000002.history"),
        Hole(2, 5 * SEGMENT, 6 * SEGMENT, "000000020000000000000005"),
    ]
    assert catalog_of(whole(2, 4), history_file(2), histories={2: ((1, SEGMENT),)}).holes() == []


def test_missing_history_file_beside_a_hole_is_reported_too() -> None:
    catalog = catalog_of(
        whole(1, 3), whole(2, 5), partial(3, 6, 9), histories={3: ((1, 4 * SEGMENT), (2, 6 * SEGMENT))}
    )
    assert catalog.holes() == [
        Hole(2, 4 * SEGMENT, 5 * SEGMENT, "000000020000000000000004"),
        Hole(2, 5 * SEGMENT, 5 * SEGMENT, "00000002.history"),
    ]


def test_empty_archive_has_nothing_and_misses_nothing() -> None:
    catalog = catalog_of()
    assert (catalog.timelines, catalog.ranges(), catalog.holes(), catalog.chain(1, 5)) == ((), [], [], 5)


# A few timelines on a log of a few tiny segments: each forks from one with a smaller number.
@st.composite
def lineages(draw: st.DrawFn) -> dict[int, Lineage]:
    found: dict[int, Lineage] = {1: ()}
    for tli in range(2, draw(st.integers(1, 4)) + 1):
        parent = draw(st.sampled_from(sorted(found)))
        first = found[parent][-1][1] if found[parent] else 0
        fork_lsn = draw(st.integers(first, TINY * TINY_SEGMENTS))
        found[tli] = (*found[parent], (parent, fork_lsn))
    del found[1]
    return found


tiny_files = st.builds(
    lambda tli, number, size: (
        segment_file(tli, number * TINY, TINY)
        if size == TINY
        else partial_file(tli, number * TINY, number * TINY + size, TINY)
    ),
    st.integers(1, 4),
    st.integers(0, TINY_SEGMENTS - 1),
    st.integers(1, TINY),
)


def bytes_of_lineage(tli: int, files: list[ArchivedFile], histories: Mapping[int, Lineage]) -> set[int]:
    """The LSNs along the lineage of `tli` that its files, or those of its ancestors, hold."""
    lineage = histories.get(tli, ())
    limits = {tli: 1 << 60, **dict(lineage)}
    return {lsn for file in files for lsn in range(file.begin_lsn, file.end_lsn) if lsn < limits.get(file.tli, 0)}


def runs(lsns: set[int]) -> list[tuple[int, int]]:
    """Maximal ranges of neighbours."""
    ordered = sorted(lsns)
    starts = [lsn for lsn in ordered if lsn - 1 not in lsns]
    ends = [lsn + 1 for lsn in ordered if lsn + 1 not in lsns]
    return list(zip(starts, ends, strict=True))


@given(lineages(), st.lists(tiny_files, max_size=20))
def test_catalogue_agrees_with_a_model_of_single_bytes(
    histories: dict[int, Lineage], files: list[ArchivedFile]
) -> None:
    files = [file for file in files if file.tli <= len(histories) + 1]
    catalog = catalog_of(*files, histories=histories, segment_size=TINY)
    held: set[tuple[int, int]] = set()
    missing: set[tuple[int, int]] = set()
    for tli in catalog.timelines:
        lineage = histories.get(tli, ())
        lsns = bytes_of_lineage(tli, files, histories)
        for begin_lsn in range(TINY * TINY_SEGMENTS + 1):
            end_lsn = begin_lsn
            while end_lsn in lsns:
                end_lsn += 1
            assert catalog.chain(tli, begin_lsn) == end_lsn
        held |= {(tli_of_byte(tli, lineage, lsn), lsn) for lsn in lsns}
        if lsns:
            gaps = set(range(min(lsns), max(lsns))) - lsns
            missing |= {(tli_of_byte(tli, lineage, lsn), lsn) for lsn in gaps}
    for owner in range(1, 5):
        assert [(found.begin_lsn, found.end_lsn) for found in catalog.ranges() if found.tli == owner] == runs(
            {lsn for tli, lsn in held if tli == owner}
        )
        assert [(hole.begin_lsn, hole.end_lsn) for hole in catalog.holes() if hole.tli == owner] == runs(
            {lsn for tli, lsn in missing if tli == owner}
        )
    assert all(before < after for before, after in pairwise(catalog.ranges()))
