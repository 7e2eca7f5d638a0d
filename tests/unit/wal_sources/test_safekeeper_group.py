"""The safekeepers of a cluster as one source: what counts when they differ, and who is read from when one dies."""

from collections.abc import Callable, Iterator

import pytest

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import Lsn
from walproxy.wal_sources.safekeeper_group import SafekeeperGroup
from walproxy.wal_sources.source import Extent, LogPath, Origin, SourceUnavailable, WalMissing
from walproxy.wal_sources.wal_fetch_client import ServedLog

MIB = 1 << 20
PATH = LogPath(2, ((1, 40 * MIB + 500),), MIB)
CONTENT = bytes(range(256)) * 16


class FakeSafekeeper:
    """Has CONTENT over and over. What is used of a SafekeeperSource.

    Attributes:
        dies_at_lsn: it streams up to there only.
        removed: it has nothing any more.
    """

    def __init__(self, host: str, *_: object, **__: object) -> None:
        self.name = f"the safekeeper {host}"
        self.path, self.begin_lsn, self.readable_lsn = PATH, 30 * MIB, 50 * MIB
        self.system_id = 7
        self.is_down = self.removed = self.forgot = False
        self.dies_at_lsn = 60 * MIB
        self.questions = 0
        self.neighbours: list[Lsn | None] = []

    def log(self) -> ServedLog:
        self.questions += 1
        if self.is_down:
            raise SourceUnavailable(f"{self.name} is down")
        return ServedLog(Origin(self.system_id, MIB), self.path, self.readable_lsn)

    def extents_of(self, log: ServedLog, path: LogPath, begin_lsn: Lsn, neighbours_lsn: Lsn | None) -> list[Extent]:
        self.neighbours.append(neighbours_lsn)
        return [Extent(self.begin_lsn, min(path.common_end(log.path), log.readable_lsn))]

    def forget_begins(self) -> None:
        self.forgot = True

    def stream(
        self, path: LogPath, begin_lsn: Lsn, end_lsn: Lsn, admit: Callable[[Origin], None]
    ) -> Iterator[memoryview]:
        admit(self.log().origin)
        assert path.tli_of(begin_lsn) == path.tli_of(end_lsn - 1)
        if self.removed:
            raise WalMissing(f"{self.name} has removed it")
        for lsn in range(begin_lsn, end_lsn, 1000):
            if lsn >= self.dies_at_lsn:
                raise SourceUnavailable(f"{self.name} died")
            yield memoryview(content(lsn, min(lsn + 1000, end_lsn)))


def content(begin_lsn: Lsn, end_lsn: Lsn) -> bytes:
    offset = begin_lsn % len(CONTENT)
    return (CONTENT * ((end_lsn - begin_lsn) // len(CONTENT) + 2))[offset:][: end_lsn - begin_lsn]


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> list[FakeSafekeeper]:
    made: list[FakeSafekeeper] = []

    def make(*arguments: str, **options: object) -> FakeSafekeeper:
        made.append(FakeSafekeeper(*arguments, **options))
        return made[-1]

    monkeypatch.setattr("walproxy.wal_sources.safekeeper_group.SafekeeperSource", make)
    monkeypatch.setattr("walproxy.wal_sources.safekeeper_group._PATIENCE_S", 0.0)
    return made


@pytest.fixture
def group(hosts: list[FakeSafekeeper]) -> SafekeeperGroup:
    return SafekeeperGroup("a:1,b:2", "host=a,b port=1,2", "test")


def read(group: SafekeeperGroup, begin_lsn: Lsn, end_lsn: Lsn) -> bytes:
    room = bytearray(end_lsn - begin_lsn)
    group.read_into(PATH, begin_lsn, memoryview(room))
    return bytes(room)


def test_what_any_of_them_has_is_there_and_stays(group: SafekeeperGroup, hosts: list[FakeSafekeeper]) -> None:
    one, other = hosts
    one.begin_lsn, one.readable_lsn = 35 * MIB, 51 * MIB
    assert group.extents(PATH) == [Extent(30 * MIB, 51 * MIB)]
    assert (one.neighbours, other.neighbours) == ([None], [35 * MIB])
    one.is_down = True
    assert group.extents(PATH) == [Extent(30 * MIB, 51 * MIB)]
    assert group.extents(LogPath(1, (), MIB)) == [Extent(30 * MIB, 40 * MIB + 500)]


def test_one_that_does_not_answer_is_left_alone_while_another_one_does(
    group: SafekeeperGroup, hosts: list[FakeSafekeeper]
) -> None:
    one, other = hosts
    one.is_down = True
    for _ in range(3):
        assert group.log_path() == PATH
    assert (one.questions, other.questions) == (1, 3)
    one.is_down, other.is_down = False, True
    assert group.log_path() == PATH
    one.is_down = True
    with pytest.raises(SourceUnavailable, match=r"^the safekeeper a:1 is down; the safekeeper b:2 is down$"):
        group.log_path()


def test_the_newest_timeline_counts_and_its_ancestors_can_be_named(
    group: SafekeeperGroup, hosts: list[FakeSafekeeper]
) -> None:
    hosts[0].path, hosts[0].readable_lsn = LogPath(1, (), MIB), 60 * MIB
    assert group.log_path() == group.log_path(2) == PATH
    assert group.log_path(1) == LogPath(1, (), MIB)
    with pytest.raises(WalMissing, match=r"^the safekeeper b:2 has no timeline 3: it has 1, 2$"):
        group.log_path(3)


def test_another_one_goes_on_from_the_byte_at_which_one_died(
    group: SafekeeperGroup, hosts: list[FakeSafekeeper]
) -> None:
    hosts[0].dies_at_lsn = 45 * MIB
    assert read(group, 45 * MIB - 2500, 45 * MIB + 2500) == content(45 * MIB - 2500, 45 * MIB + 2500)
    asked = hosts[0].questions
    # The one that served the last bytes is asked first from then on.
    assert read(group, 41 * MIB, 41 * MIB + 10) == content(41 * MIB, 41 * MIB + 10)
    assert hosts[0].questions == asked


def test_bytes_on_both_sides_of_a_fork_are_asked_for_by_their_timelines(group: SafekeeperGroup) -> None:
    assert read(group, 40 * MIB, 40 * MIB + 1000) == content(40 * MIB, 40 * MIB + 1000)


def test_what_all_have_removed_is_missing_and_where_logs_begin_is_looked_for_again(
    group: SafekeeperGroup, hosts: list[FakeSafekeeper]
) -> None:
    hosts[0].removed = True
    assert read(group, 31 * MIB, 31 * MIB + 5) == content(31 * MIB, 31 * MIB + 5)
    assert not hosts[0].forgot
    hosts[1].removed = True
    with pytest.raises(WalMissing, match=r"^the safekeepers a:1,b:2 has no 00000001000000000000001F with the WAL "):
        read(group, 31 * MIB, 31 * MIB + 5)
    assert all(host.forgot for host in hosts)


def test_what_one_has_removed_and_another_one_cannot_be_asked_for_is_not_missing(
    group: SafekeeperGroup, hosts: list[FakeSafekeeper]
) -> None:
    hosts[0].removed, hosts[1].is_down = True, True
    with pytest.raises(SourceUnavailable, match="a:1 has removed it; the safekeeper b:2 is down"):
        read(group, 31 * MIB, 31 * MIB + 5)


def test_safekeepers_of_two_clusters_are_refused(group: SafekeeperGroup, hosts: list[FakeSafekeeper]) -> None:
    assert group.origin() == Origin(7, MIB)
    hosts[1].system_id = 8
    with pytest.raises(ConfigurationError, match=r"b:2 has the WAL of the system 8 .* name the safekeepers of one cl"):
        group.extents(PATH)
    hosts[0].is_down = True
    with pytest.raises(ConfigurationError, match="system 8"):
        read(group, 45 * MIB, 45 * MIB + 5)
