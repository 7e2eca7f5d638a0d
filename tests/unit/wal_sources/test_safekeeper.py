"""A running safekeeper as a source: where its log begins, and what is asked over which connection."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from safekeeper.base.lsn import Lsn
from walproxy.wal_sources.safekeeper import SafekeeperSource, first_of
from walproxy.wal_sources.source import Extent, LogPath, Origin, SourceUnavailable, WalMissing
from walproxy.wal_sources.wal_fetch_client import ServedLog

MIB = 1 << 20
SYSTEM_ID = 7
PATH = LogPath(2, ((1, 40 * MIB + 500),), MIB)


class FakeConnection:
    def __init__(self) -> None:
        self.is_good = True
        self.is_closed = False

    def finish(self) -> None:
        self.is_closed = True


class FakeServer:
    """Has the log of PATH from `begin_lsn` to `readable_lsn`. What is used of a WalFetchClient.

    Attributes:
        log_questions: how often everything was asked; identified: only what changes.
        looked: where streams began.
    """

    def __init__(self) -> None:
        self.begin_lsn, self.readable_lsn = 30 * MIB, 60 * MIB + 99
        self.connections: list[FakeConnection] = []
        self.log_questions = self.identified = 0
        self.looked: list[Lsn] = []
        self.is_down = False

    def __call__(self, *_: object, **__: object) -> "FakeServer":
        return self

    def connect(self) -> FakeConnection:
        if self.is_down:
            raise SourceUnavailable("refused")
        self.connections.append(FakeConnection())
        return self.connections[-1]

    @contextmanager
    def connected(self) -> Iterator[FakeConnection]:
        connection = self.connect()
        yield connection
        connection.finish()

    @contextmanager
    def talking(self) -> Iterator[None]:
        yield

    def identify(self, connection: FakeConnection) -> tuple[int, int, Lsn]:
        if not connection.is_good:
            raise SourceUnavailable("restarted")
        self.identified += 1
        return SYSTEM_ID, PATH.tli, self.readable_lsn

    def log(self, _: FakeConnection) -> ServedLog:
        self.log_questions += 1
        return ServedLog(Origin(SYSTEM_ID, MIB), PATH, self.readable_lsn)

    def stream(self, _: FakeConnection, tli: int, begin_lsn: Lsn, end_lsn: Lsn) -> Iterator[memoryview]:
        assert tli == PATH.tli_of(begin_lsn)
        self.looked.append(begin_lsn)
        if begin_lsn < self.begin_lsn:
            raise WalMissing("removed")
        yield memoryview(bytes(end_lsn - begin_lsn))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    fake = FakeServer()
    monkeypatch.setattr("walproxy.wal_sources.safekeeper.WalFetchClient", fake)
    return fake


@pytest.fixture
def source(server: FakeServer) -> SafekeeperSource:
    return SafekeeperSource("one", "host=one")


def test_questions_share_a_connection_until_it_breaks(server: FakeServer, source: SafekeeperSource) -> None:
    assert source.origin() == Origin(SYSTEM_ID, MIB)
    server.readable_lsn += 5
    assert source.log() == ServedLog(Origin(SYSTEM_ID, MIB), PATH, server.readable_lsn)
    assert (len(server.connections), server.log_questions, server.identified) == (1, 1, 2)
    server.connections[0].is_good = False
    assert source.log().readable_lsn == server.readable_lsn
    assert len(server.connections) == 2
    assert server.connections[0].is_closed
    server.connections[1].is_good, server.is_down = False, True
    with pytest.raises(SourceUnavailable, match="refused"):
        source.log()


def test_a_log_is_there_from_its_first_segment_on_which_is_looked_for_once(
    server: FakeServer, source: SafekeeperSource
) -> None:
    assert source.extents(PATH) == [Extent(30 * MIB, 60 * MIB + 99)]
    assert 1 < len(server.looked) <= 8
    looked = len(server.looked)
    server.readable_lsn += MIB
    assert source.extents(PATH) == [Extent(30 * MIB, 61 * MIB + 99)]
    assert len(server.looked) == looked
    server.begin_lsn = 35 * MIB
    source.forget_begins()
    assert source.extents(PATH)[0].begin_lsn == 35 * MIB


def test_whoever_needs_the_log_from_a_byte_on_has_one_segment_looked_for(
    server: FakeServer, source: SafekeeperSource
) -> None:
    assert source.extents(PATH, 33 * MIB + 7) == [Extent(33 * MIB, 60 * MIB + 99)]
    assert server.looked == [33 * MIB]
    assert source.extents(PATH, 60 * MIB + 99) == []
    assert source.extents(PATH, 20 * MIB + 7) == [Extent(30 * MIB, 60 * MIB + 99)]
    assert min(server.looked) == 20 * MIB


def test_a_log_that_another_path_has_left_is_there_up_to_the_fork(server: FakeServer, source: SafekeeperSource) -> None:
    assert source.extents(LogPath(1, (), MIB)) == [Extent(30 * MIB, 40 * MIB + 500)]
    assert source.extents(LogPath(3, ((1, 20 * MIB),), MIB)) == []


def test_a_segment_that_is_gone_altogether_is_nowhere(server: FakeServer, source: SafekeeperSource) -> None:
    server.begin_lsn = 70 * MIB
    assert source.extents(PATH) == []
    assert source.extents(PATH, 60 * MIB + 5) == []
    assert source.extents(PATH, 50 * MIB) == []


def test_a_file_is_offered_as_far_as_it_can_be_read(server: FakeServer, source: SafekeeperSource) -> None:
    assert [(each.begin_lsn, each.end_lsn) for each in source.offers(1, 40 * MIB)] == [(40 * MIB, 40 * MIB + 500)]
    assert [(each.begin_lsn, each.end_lsn) for each in source.offers(2, 60 * MIB)] == [(60 * MIB, 60 * MIB + 99)]
    assert source.offers(3, 50 * MIB) == source.offers(2, 61 * MIB) == []
    assert source.has_later(2, 59 * MIB) == "00000002000000000000003C"
    assert source.has_later(2, 60 * MIB) is None


@pytest.mark.parametrize("first", [1, 2, 17, 999, 1000])
@pytest.mark.parametrize("guess", [None, 1, 16, 17, 1200])
def test_the_first_segment_is_found_with_few_questions(first: int, guess: int | None) -> None:
    asked: list[int] = []

    def has(number: int) -> bool:
        asked.append(number)
        return number >= first

    assert first_of(has, 1000, guess) == first
    assert len(asked) <= 14
    if guess == first:
        assert len(asked) <= 3


@pytest.mark.parametrize("guess", [None, 16, 500, 700])
def test_what_is_known_to_be_lacking_is_not_asked_for(guess: int | None) -> None:
    asked: list[int] = []

    def has(number: int) -> bool:
        asked.append(number)
        return number >= 700

    assert first_of(has, 1000, guess, lacking=500) == 700
    assert min(asked) > 500


def test_a_log_without_a_segment_has_no_first_one() -> None:
    assert first_of(lambda number: False, 1000, None) is None
    assert first_of(lambda number: False, 1000, None, lacking=1000) is None
