"""The window of WAL: what it hands out, what it drops, and what it never drops."""

import random

import pytest

from safekeeper.base.errors import LocalProtocolError
from walproxy.proxy.window import Window


def joined(window: Window, begin_lsn: int, end_lsn: int) -> bytes:
    return b"".join(window.slices(begin_lsn, end_lsn))


def filled(capacity_bytes: int, begin_lsn: int, *chunks: bytes) -> Window:
    window = Window(capacity_bytes)
    window.reset(begin_lsn)
    window.append(begin_lsn, [memoryview(chunk) for chunk in chunks])
    return window


def test_any_range_comes_back_as_it_went_in() -> None:
    generator = random.Random(1)
    data = generator.randbytes(5000)
    window = Window(1 << 20)
    window.reset(700)
    position = 0
    while position < len(data):
        size = generator.randrange(1, 90)
        window.append(700 + position, [memoryview(data)[position : position + size]])
        position += size
    for _ in range(500):
        begin, end = sorted(generator.sample(range(len(data) + 1), 2))
        assert joined(window, 700 + begin, 700 + end) == data[begin:end]


def test_wal_that_does_not_follow_is_refused() -> None:
    window = filled(100, 10, b"abc")
    with pytest.raises(LocalProtocolError, match="0/E does not follow 0/D"):
        window.append(14, [memoryview(b"x")])


def test_a_range_that_is_not_here_is_refused() -> None:
    window = filled(100, 10, b"abc")
    for begin_lsn, end_lsn in ((9, 12), (11, 14), (12, 11)):
        with pytest.raises(LocalProtocolError, match="not in the window"):
            window.slices(begin_lsn, end_lsn)


def test_no_bytes_can_be_had_anywhere() -> None:
    # A heartbeat has none, and goes also to a member whose next byte has left the window.
    window = filled(100, 10, b"abc")
    assert [window.slices(lsn, lsn) for lsn in (0, 9, 10, 13, 14)] == [[]] * 5


def test_what_every_member_has_is_dropped_chunk_by_chunk() -> None:
    window = filled(100, 10, b"abc", b"def", b"ghi")
    assert not window.evict(truncate_lsn=12, commit_lsn=19)
    assert window.evict(truncate_lsn=16, commit_lsn=19)
    assert (window.begin_lsn, window.end_lsn) == (16, 19)
    assert joined(window, 16, 19) == b"ghi"


def test_beyond_the_capacity_committed_bytes_are_dropped() -> None:
    window = filled(4, 10, b"abc", b"def", b"ghi")
    assert window.evict(truncate_lsn=0, commit_lsn=19)
    assert window.begin_lsn == 13  # 19 - 4 = 15 lies within the second chunk, which stays whole


def test_uncommitted_bytes_are_never_dropped() -> None:
    window = filled(1, 10, b"abc", b"def", b"ghi")
    window.evict(truncate_lsn=0, commit_lsn=13)
    assert window.begin_lsn == 13
    assert joined(window, 13, 19) == b"defghi"


def test_dropping_everything_leaves_an_empty_window_that_goes_on() -> None:
    window = filled(100, 10, b"abc")
    assert window.evict(truncate_lsn=13, commit_lsn=13)
    assert (window.begin_lsn, window.end_lsn) == (13, 13)
    assert window.slices(13, 13) == []
    window.append(13, [memoryview(b"d")])
    assert joined(window, 13, 14) == b"d"


def test_thousands_of_dropped_chunks_leave_no_trace() -> None:
    window = Window(1 << 20)
    window.reset(0)
    for lsn in range(5000):
        window.append(lsn, [memoryview(b"x")])
        window.evict(truncate_lsn=lsn - 10, commit_lsn=lsn)
    assert window.end_lsn - window.begin_lsn == 11
    assert len(window._chunks) < 3000
    assert joined(window, window.begin_lsn, window.end_lsn) == b"x" * 11
