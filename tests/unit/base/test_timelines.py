"""Timeline histories: what is understood, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.lsn import LSN_MAX
from safekeeper.base.timelines import (
    format_timeline_history,
    parse_timeline_history,
    timeline_history_name,
    tli_of_byte,
)

lsns = st.integers(0, LSN_MAX)

# As PostgreSQL 15 wrote it after two promotions.
HISTORY = b"1\t0/3000148\tno recovery target specified\n\n2\t0/30003C0\tno recovery target specified\n"


def test_history_lists_the_ancestors_oldest_first() -> None:
    assert parse_timeline_history(3, HISTORY) == ((1, 0x3000148), (2, 0x30003C0))
    assert parse_timeline_history(1, b"") == ()
    assert parse_timeline_history(2, b"# a comment\n\n  1 0/10  \n") == ((1, 0x10),)


@pytest.mark.parametrize("character", ["\x0b", "\x1c", "\u2028", "\r"])
def test_a_restore_point_may_be_called_whatever_postgresql_lets_it(character: str) -> None:
    content = f'1\t0/10\tat restore point "before{character}after"\n\n2\t0/20\tx\r\n'.encode()
    assert parse_timeline_history(3, content) == ((1, 0x10), (2, 0x20))


def test_history_is_written_as_postgresql_writes_it() -> None:
    assert format_timeline_history(((1, 0x3000148), (2, 0x30003C0))) == HISTORY
    assert format_timeline_history(()) == b""
    assert timeline_history_name(0x1F) == "0000001F.history"


@given(st.lists(st.tuples(st.integers(1, 1 << 31), lsns), max_size=5, unique_by=lambda entry: entry[0]))
def test_history_survives_writing_and_reading(entries: list[tuple[int, int]]) -> None:
    tlis = sorted(tli for tli, _ in entries)
    lineage = tuple(zip(tlis, sorted(lsn for _, lsn in entries), strict=True))
    assert parse_timeline_history(tlis[-1] + 1 if tlis else 1, format_timeline_history(lineage)) == lineage


@pytest.mark.parametrize(
    ("tli", "content"),
    [
        (3, b"1 0/10\tx\nnonsense\n"),
        (3, b"2\t0/10\tx\n1\t0/20\tx\n"),  # the TLIs fall
        (3, b"1\t0/20\tx\n2\t0/10\tx\n"),  # left before it began
        (2, b"2\t0/10\tx\n"),  # its own ancestor
        (2, b"0\t0/10\tx\n"),
        (2, b""),
        (2, b"1\t10\tx\n"),
        (2, b"1\t0/10x\n"),
        (2, b"\xff\xfe"),
    ],
)
def test_history_that_contradicts_itself_is_refused(tli: int, content: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=f"the history of TLI {tli}"):
        parse_timeline_history(tli, content)


def test_byte_belongs_to_the_ancestor_below_its_end() -> None:
    lineage = ((1, 100), (2, 100), (4, 300))
    assert [tli_of_byte(5, lineage, lsn) for lsn in (0, 99, 100, 299, 300)] == [1, 1, 4, 4, 5]
    assert tli_of_byte(1, (), 7) == 1
