"""Writes that no sync has covered: a read sees what a file would show."""

from hypothesis import given
from hypothesis import strategies as st

from walproxy.lab.testing.unsynced import UnsyncedWrites

WRITES = st.lists(st.tuples(st.integers(0, 40), st.binary(min_size=1, max_size=20)), max_size=8)


@given(st.binary(max_size=30), WRITES, st.integers(0, 60), st.integers(0, 30))
def test_a_read_sees_what_a_file_with_all_writes_would_show(
    on_disk: bytes, writes: list[tuple[int, bytes]], offset: int, length: int
) -> None:
    file, unsynced = bytearray(on_disk), UnsyncedWrites()
    for at, data in writes:
        unsynced.add(data, at)
        file += bytes(max(0, at + len(data) - len(file)))
        file[at : at + len(data)] = data
    assert max(len(on_disk), unsynced.end()) == len(file)
    seen = unsynced.over(on_disk[offset : offset + length], offset, length)
    # A hole that only a later write makes is the file's own: its zeros are there for who reads on.
    assert seen == bytes(file[offset : offset + length])[: len(seen)]
    assert len(seen) >= len(on_disk[offset : offset + length])
    assert bytes(file[offset : offset + length])[len(seen) :].strip(b"\0") == b""


def test_what_was_synced_is_forgotten_and_what_came_meanwhile_is_not() -> None:
    unsynced = UnsyncedWrites()
    unsynced.add(b"first", 0)
    taken = unsynced.all()
    unsynced.add(b"second", 5)
    unsynced.forget(len(taken))
    assert unsynced.all() == [(5, b"second")]
