"""What waits for its commit is bounded in memory and comes back as it was."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walproxy.pipeline.cdc.spool import Spool


def test_what_is_beyond_the_limit_goes_to_disk_and_comes_back_in_order() -> None:
    spool = Spool(memory_bytes=10_000)
    shelf = spool.new()
    pieces = [(lsn, 7, bytes([lsn % 256]) * 1000) for lsn in range(100)]
    for piece in pieces:
        shelf.add(piece)
        assert shelf.held_bytes <= 10_000
    assert shelf.spilled_bytes >= 90_000
    assert list(shelf.pieces()) == pieces
    assert list(shelf.pieces()) == pieces
    shelf.clear()


def test_the_largest_shelf_makes_room() -> None:
    spool = Spool(memory_bytes=10_000)
    small, large = spool.new(), spool.new()
    small.add((1, 1, b"s" * 100))
    for lsn in range(20):
        large.add((lsn, 2, b"l" * 1000))
    assert small.spilled_bytes == 0
    assert large.spilled_bytes > 0
    assert list(small.pieces()) == [(1, 1, b"s" * 100)]
    large.clear()


def test_nothing_is_left_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    shelf = Spool(memory_bytes=0).new()
    shelf.add((1, 1, b"x"))
    assert shelf.spilled_bytes == 1
    assert list(tmp_path.iterdir()) == []
    shelf.clear()
    assert list(shelf.pieces()) == []


@given(st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=300)), max_size=40), st.integers(0, 2000))
def test_shelves_keep_what_they_are_given(added: Sequence[tuple[int, bytes]], memory_bytes: int) -> None:
    spool = Spool(memory_bytes)
    shelves = [spool.new() for _ in range(4)]
    for lsn, (number, data) in enumerate(added):
        shelves[number].add((lsn, number, data))
        assert sum(shelf.held_bytes for shelf in shelves) <= memory_bytes
    for number, shelf in enumerate(shelves):
        expected = [(lsn, which, data) for lsn, (which, data) in enumerate(added) if which == number]
        assert list(shelf.pieces()) == expected
        shelf.clear()
