"""What the quorum's position is asked of, and what rows come from, is one server, though `conninfo` may name several.

A deposed primary that was started again shows commits that no quorum has.
"""

from collections.abc import Iterator
from typing import Any, cast

import pytest

from safekeeper.base.lsn import Lsn
from walproxy.pipeline.cdc import reading
from walproxy.pipeline.cdc.apply import copying
from walproxy.pipeline.cdc.reading import SlotReader
from walproxy.pipeline.cdc.safe_lsn import SafeLsn
from walproxy.pipeline.cdc.server import Connection, SourceUnavailable


class Session:
    """A connection to a server of which only the time of its start is known.

    Attributes:
        is_closed: it was given back.
    """

    def __init__(self, start: str) -> None:
        self._start = start
        self.is_closed = False

    def execute(self, query: object, parameters: object = None) -> "Session":
        assert "pg_postmaster_start_time" in str(query), f"{query}: of a server that was not recognised"
        return self

    def fetchone(self) -> tuple[Any, ...]:
        return (self._start,)

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("starts", [("old", "new"), ("new", "old"), ("old", "old")], ids="-".join)
def test_a_copy_from_another_server_is_refused_before_anything_is_asked_of_it(
    starts: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = [Session(start) for start in starts]
    arriving: Iterator[Session] = iter(sessions)
    opened: list[Session] = []

    def connect(conninfo: str, **options: object) -> Session:
        opened.append(next(arriving))
        return opened[-1]

    monkeypatch.setattr(copying, "connect", connect)
    copy = copying.snapshot("host=old,new", ["p"], cast(Connection, Session("new")))
    with pytest.raises(SourceUnavailable, match="led to different servers"):
        copy.__enter__()
    assert opened and all(session.is_closed for session in opened)


class SafeUpTo(SafeLsn):
    """A quorum that has what is below a position, and gets no more."""

    def __init__(self, lsn: Lsn) -> None:
        super().__init__(None)
        self._lsn = lsn

    def wait_for(self, connection: Connection, lsn: Lsn, timeout_s: float) -> None:
        if lsn > self._lsn:
            raise SourceUnavailable("the quorum has not reached it")


@pytest.fixture
def empty_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that a peek finds in order, and without changes."""
    monkeypatch.setattr(reading, "require_position", lambda *words: None)
    monkeypatch.setattr(reading, "have_flushed", lambda *words: None)
    monkeypatch.setattr(reading, "server_major", lambda connection: 18)
    monkeypatch.setattr(reading, "peek", lambda *words, **options: (yield from ()))


def read(of: str, asked: str, quorum_lsn: Lsn, begin_lsn: Lsn, end_lsn: Lsn) -> int:
    """Return how many changes a range has that is read from one server, while another or the same one is asked."""
    reader = SlotReader("s", ["p"], SafeUpTo(quorum_lsn))
    connection, asking = (cast(Connection, Session(start)) for start in (of, asked))
    return len(list(reader.read(connection, asking, begin_lsn, end_lsn)))


@pytest.mark.usefixtures("empty_slot")
def test_a_range_is_not_read_from_another_server_than_the_one_that_is_asked() -> None:
    with pytest.raises(SourceUnavailable, match="led to different servers"):
        read("old", "new", quorum_lsn=200, begin_lsn=100, end_lsn=200)


@pytest.mark.usefixtures("empty_slot")
def test_the_end_of_a_range_must_be_on_the_quorum_of_the_server_that_it_is_read_from() -> None:
    with pytest.raises(SourceUnavailable, match="has not reached"):
        read("old", "old", quorum_lsn=0, begin_lsn=100, end_lsn=200)
    assert read("new", "new", quorum_lsn=200, begin_lsn=100, end_lsn=200) == 0
    assert read("new", "new", quorum_lsn=0, begin_lsn=100, end_lsn=100) == 0  # there is nothing to wait for
