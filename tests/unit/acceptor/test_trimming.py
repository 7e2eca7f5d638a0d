"""Which WAL may go: every bound alone, all of them together, and that none gives way to what an operator wishes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safekeeper.acceptor.trimming import SEGMENTS_PER_TRIM_MAX, Kept, TrimRequest, trim_to

SIZE = 1 << 20
BASE = 4 * SIZE
# Ten segments and a bit, all of it committed, archived and on every member.
END = BASE + 10 * SIZE + 100
ALL = Kept(BASE, END, END, END, END, SIZE)
# Nobody wants anything.
NOTHING = TrimRequest(wanted_lsn=None, keep_bytes=0, limit_bytes=None, has_archive=True)
LAST = BASE + 9 * SIZE  # One whole segment before the one that holds the last byte.


def test_without_any_wish_all_goes_but_the_last_two_segments() -> None:
    assert trim_to(ALL, NOTHING) == LAST
    # A segment that is just full is the last one, not the empty one behind it.
    assert trim_to(ALL._replace(flush_lsn=BASE + 10 * SIZE), NOTHING) == BASE + 8 * SIZE


@pytest.mark.parametrize(
    ("kept", "request_", "begin_lsn"),
    [
        ({"readable_lsn": BASE + 3 * SIZE + 1}, {}, BASE + 3 * SIZE),
        # The last committed byte is kept.
        ({"readable_lsn": BASE + 3 * SIZE}, {}, BASE + 2 * SIZE),
        ({"truncate_lsn": BASE + 3 * SIZE - 1}, {}, BASE + 2 * SIZE),
        ({"archived_lsn": BASE + 3 * SIZE}, {}, BASE + 3 * SIZE),
        ({"archived_lsn": 0}, {}, BASE),
        ({}, {"wanted_lsn": BASE + 5 * SIZE + 7}, BASE + 5 * SIZE),
        ({}, {"wanted_lsn": BASE - SIZE}, BASE),
        ({}, {"keep_bytes": 4 * SIZE}, BASE + 6 * SIZE),
        ({}, {"keep_bytes": 4 * SIZE + 101}, BASE + 5 * SIZE),
        ({}, {"keep_bytes": 100 * SIZE}, BASE),
        # What is not in the archive does not concern who has none.
        ({"archived_lsn": 0}, {"has_archive": False}, LAST),
        ({"truncate_lsn": BASE + 2 * SIZE, "archived_lsn": END}, {"has_archive": False}, BASE + 2 * SIZE),
    ],
)
def test_each_bound_holds_alone(kept: dict[str, int], request_: dict[str, int], begin_lsn: int) -> None:
    assert trim_to(ALL._replace(**kept), NOTHING._replace(**request_)) == begin_lsn


def test_the_lowest_bound_counts() -> None:
    kept = ALL._replace(readable_lsn=BASE + 8 * SIZE, truncate_lsn=BASE + 6 * SIZE, archived_lsn=BASE + 7 * SIZE)
    request = NOTHING._replace(wanted_lsn=BASE + 5 * SIZE, keep_bytes=3 * SIZE)
    assert trim_to(kept, request) == BASE + 5 * SIZE
    assert trim_to(kept._replace(truncate_lsn=BASE + 4 * SIZE), request) == BASE + 4 * SIZE
    assert trim_to(kept._replace(archived_lsn=BASE + 3 * SIZE), request) == BASE + 3 * SIZE


def test_beyond_the_limit_wal_goes_although_somebody_wants_it() -> None:
    request = NOTHING._replace(wanted_lsn=BASE, keep_bytes=100 * SIZE, limit_bytes=6 * SIZE)
    kept = ALL._replace(truncate_lsn=BASE)
    begin_lsn = trim_to(kept, request)
    # Files of whole segments: up to the last byte's, and the one that is prepared behind it.
    assert BASE + 12 * SIZE - begin_lsn == 6 * SIZE
    assert trim_to(kept, request._replace(limit_bytes=6 * SIZE + 1)) == begin_lsn
    assert trim_to(kept, request._replace(limit_bytes=6 * SIZE - 1)) == begin_lsn + SIZE


def test_the_limit_removes_nothing_that_is_not_archived_committed_or_needed_for_the_next_primary() -> None:
    request = NOTHING._replace(limit_bytes=1, keep_bytes=0)
    assert trim_to(ALL, request) == LAST
    assert trim_to(ALL._replace(archived_lsn=BASE + 3 * SIZE), request) == BASE + 3 * SIZE
    assert trim_to(ALL._replace(readable_lsn=BASE + 2 * SIZE), request) == BASE + SIZE


def test_without_an_archive_there_is_no_limit() -> None:
    request = NOTHING._replace(has_archive=False, limit_bytes=1, wanted_lsn=BASE + SIZE)
    assert trim_to(ALL, request) == BASE + SIZE
    assert trim_to(ALL._replace(truncate_lsn=BASE), request._replace(wanted_lsn=None)) == BASE


def test_a_lot_of_wal_goes_a_bit_at_a_time() -> None:
    end_lsn = BASE + 100 * SIZE
    kept = Kept(BASE, end_lsn, end_lsn, end_lsn, end_lsn, SIZE)
    begins = []
    while (begin_lsn := trim_to(kept, NOTHING)) != kept.begin_lsn:
        begins.append(begin_lsn)
        kept = kept._replace(begin_lsn=begin_lsn)
    assert begins[0] == BASE + SEGMENTS_PER_TRIM_MAX * SIZE
    assert begins[-1] == end_lsn - 2 * SIZE


def test_a_log_that_has_just_begun_loses_nothing() -> None:
    for flush_lsn in (BASE, BASE + 1, BASE + SIZE, BASE + 2 * SIZE):
        assert trim_to(Kept(BASE, flush_lsn, flush_lsn, flush_lsn, flush_lsn, SIZE), NOTHING) == BASE


offsets = st.integers(0, 40 * SIZE)
kepts = st.builds(
    lambda begin, flush, readable, truncate, archived: Kept(
        begin := begin * SIZE, begin + flush, min(readable, begin + flush), truncate, archived, SIZE
    ),
    st.integers(1, 10),
    offsets,
    offsets,
    offsets,
    offsets,
)
requests = st.builds(TrimRequest, st.none() | offsets, offsets, st.none() | offsets, st.booleans())


@given(kepts, requests)
def test_what_goes_is_committed_and_archived_or_on_every_member_and_never_of_the_last_two_segments(
    kept: Kept, request: TrimRequest
) -> None:
    lsn = trim_to(kept, request)
    assert lsn >= kept.begin_lsn and lsn % SIZE == 0
    if lsn > kept.begin_lsn:
        assert lsn < kept.readable_lsn
        assert lsn <= (kept.archived_lsn if request.has_archive else kept.truncate_lsn)
        assert lsn + SIZE < kept.flush_lsn
        assert lsn - kept.begin_lsn <= SEGMENTS_PER_TRIM_MAX * SIZE


@given(kepts, requests)
def test_what_somebody_wants_goes_only_beyond_the_limit(kept: Kept, request: TrimRequest) -> None:
    lsn = trim_to(kept, request)
    room_bytes = (kept.flush_lsn - 1) // SIZE * SIZE + 2 * SIZE - kept.begin_lsn
    has_room = not request.has_archive or request.limit_bytes is None or room_bytes <= request.limit_bytes
    if lsn > kept.begin_lsn and has_room:
        assert lsn <= min(kept.truncate_lsn, kept.flush_lsn - request.keep_bytes)
        assert request.wanted_lsn is None or lsn <= request.wanted_lsn


@given(kepts, requests, offsets, offsets, offsets)
def test_more_that_may_go_never_keeps_more(
    kept: Kept, request: TrimRequest, archived: int, truncated: int, wanted: int
) -> None:
    lsn = trim_to(kept, request)
    more = kept._replace(archived_lsn=kept.archived_lsn + archived, truncate_lsn=kept.truncate_lsn + truncated)
    assert trim_to(more, request) >= lsn
    later = None if request.wanted_lsn is None else request.wanted_lsn + wanted
    assert trim_to(more, request._replace(wanted_lsn=later, keep_bytes=request.keep_bytes // 2)) >= lsn


@given(kepts, requests)
def test_trimming_again_and_again_comes_to_an_end_that_does_not_depend_on_the_steps(
    kept: Kept, request: TrimRequest
) -> None:
    begin_lsn = kept.begin_lsn
    for _ in range(5):
        kept = kept._replace(begin_lsn=trim_to(kept, request))
    assert trim_to(kept, request) == kept.begin_lsn
    assert trim_to(kept._replace(begin_lsn=max(begin_lsn, kept.begin_lsn - SIZE)), request) == kept.begin_lsn


@given(kepts, st.integers(0, 40 * SIZE))
def test_the_limit_is_kept_whatever_others_want_if_all_is_archived(kept: Kept, limit_bytes: int) -> None:
    kept = kept._replace(readable_lsn=kept.flush_lsn, archived_lsn=kept.flush_lsn)
    request = TrimRequest(kept.begin_lsn, 100 * SIZE, limit_bytes, has_archive=True)
    for _ in range(5):
        kept = kept._replace(begin_lsn=trim_to(kept, request))
    end_lsn = (kept.flush_lsn - 1) // SIZE * SIZE + 2 * SIZE
    is_least = kept.begin_lsn + 2 * SIZE >= kept.flush_lsn
    assert end_lsn - kept.begin_lsn <= limit_bytes or is_least
