"""What is made of several sources' answers: the best one, or none, or that nothing can be said."""

from collections.abc import Callable
from pathlib import Path

import pytest

from safekeeper.base.errors import ArchiveRefused
from safekeeper.base.lsn import Lsn
from safekeeper.base.timelines import PASSED_OVER_HISTORY
from safekeeper.consensus.control_state import ControlState
from safekeeper.consensus.term_history import HistoryEntry
from safekeeper.storage.control_file import ControlFile
from safekeeper.storage.filesystem import RealFileSystem
from safekeeper.storage.segment_file import create_segment
from tests.unit.wal_builder import WalBuilder
from walproxy.recovery.fetcher import Fetcher, HoleFound
from walproxy.wal_sources.folder import FolderSource
from walproxy.wal_sources.ranges import extents_of_files, later_of
from walproxy.wal_sources.source import (
    Extent,
    LogPath,
    Offer,
    Origin,
    SegmentSource,
    SourceCorrupt,
    SourceUnavailable,
    WalMissing,
)

MIB = 1 << 20
SYSTEM_ID = 7_000_000_000_000_000_001
WAL = WalBuilder(begin_lsn=MIB)
while WAL.position < 3 * MIB:
    WAL.add(bytes(3000))


class FakeSource:
    """Has the log up to an LSN, under timeline 1, unless it is told otherwise."""

    def __init__(self, name: str, end_lsn: Lsn, committed_lsn: Lsn | None = None, begin_lsn: Lsn = MIB) -> None:
        self.name = name
        self.committed_lsn = end_lsn if committed_lsn is None else committed_lsn
        self.pieces = {(1, lsn): min(lsn + MIB, end_lsn) for lsn in range(begin_lsn, end_lsn, MIB)}
        self.system_id = SYSTEM_ID
        self.is_silent = False
        self.removed = False
        self.questions = 0
        self.change: Callable[[bytearray], None] = lambda content: None
        self.histories: dict[int, bytes] = {}

    def origin(self) -> Origin:
        self._answer()
        return Origin(self.system_id, MIB)

    def offers(self, tli: int, begin_lsn: Lsn) -> list[Offer]:
        self._answer()
        end_lsn = self.pieces.get((tli, begin_lsn), 0)

        def write(path: Path) -> None:
            if self.removed:
                raise WalMissing(f"{self.name} has it no more")
            content = bytearray(WAL.data[begin_lsn - MIB : end_lsn - MIB])
            self.change(content)
            path.write_bytes(content)

        return [Offer(self.name, begin_lsn, end_lsn, self.committed_lsn, write)] if end_lsn else []

    def history(self, tli: int) -> bytes | None:
        self._answer()
        return self.histories.get(tli)

    def has_later(self, tli: int, begin_lsn: Lsn) -> str | None:
        self._answer()
        return later_of(self.pieces, tli, begin_lsn, MIB)

    def extents(self, path: LogPath, begin_lsn: Lsn = 0) -> list[Extent]:
        return extents_of_files(path, self.pieces)

    def _answer(self) -> None:
        self.questions += 1
        if self.is_silent:
            raise SourceUnavailable(f"{self.name} does not answer")


def fetch(target: Path, *sources: SegmentSource, lsn: Lsn = 2 * MIB, **options: bool) -> tuple[str, Lsn] | None:
    """Fetch the segment at `lsn`; return from where it came and where it ends. What came is compared."""
    found = Fetcher(sources, system_id=SYSTEM_ID).fetch_segment(1, lsn, target, **options)
    if found is None:
        return None
    assert target.read_bytes() == WAL.data[lsn - MIB : found.end_lsn - MIB]
    return found.source, found.end_lsn


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "segment"


def test_the_first_source_with_the_whole_segment_is_taken(target: Path) -> None:
    partial, whole, other = FakeSource("a", 2 * MIB + 9000), FakeSource("b", 3 * MIB), FakeSource("c", 3 * MIB)
    assert fetch(target, partial, whole, other) == ("b", 3 * MIB)


def test_a_whole_segment_needs_no_other_answer(target: Path) -> None:
    silent = FakeSource("a", 3 * MIB)
    silent.is_silent = True
    assert fetch(target, silent, FakeSource("b", 3 * MIB)) == ("b", 3 * MIB)


@pytest.mark.parametrize(("asks_once", "questions"), [(True, 1), (False, 2)])
def test_a_silent_source_is_asked_once_where_somebody_waits(target: Path, asks_once: bool, questions: int) -> None:
    silent, partial = FakeSource("a", 3 * MIB), FakeSource("b", 2 * MIB + 9000)
    silent.is_silent = True
    fetcher = Fetcher((silent, partial), system_id=SYSTEM_ID, asks_once=asks_once)
    assert fetcher.origin().segment_size == MIB
    with pytest.raises(SourceUnavailable):
        fetcher.fetch_segment(1, 2 * MIB, target)
    assert silent.questions == questions


def test_without_a_whole_one_the_longest_part_is_taken(target: Path) -> None:
    assert fetch(target, FakeSource("a", 2 * MIB + 9000), FakeSource("b", 2 * MIB + 9500)) == ("b", 2 * MIB + 9500)
    assert fetch(target, FakeSource("a", 2 * MIB + 9000), whole_only=True) is None


def test_neither_a_part_nor_nothing_is_an_answer_while_a_source_is_silent(target: Path) -> None:
    silent = FakeSource("a", 3 * MIB)
    silent.is_silent = True
    for other in (FakeSource("b", 2 * MIB + 9000), FakeSource("b", 2 * MIB)):
        for find_holes in (True, False):
            with pytest.raises(SourceUnavailable, match="a does not answer"):
                fetch(target, silent, other, find_holes=find_holes)
    with pytest.raises(SourceUnavailable):
        Fetcher([silent, FakeSource("b", MIB)]).history(2)


def test_a_history_without_ancestors_is_used_if_no_source_has_another_one() -> None:
    passing, other = FakeSource("a", 2 * MIB), FakeSource("b", 2 * MIB)
    passing.histories[2] = PASSED_OVER_HISTORY
    assert Fetcher([passing, other]).history(2) == PASSED_OVER_HISTORY
    other.histories[2] = b"1\t0/10\tx\n"
    assert Fetcher([passing, other]).history(2) == other.histories[2]
    other.is_silent = True
    with pytest.raises(SourceUnavailable):
        Fetcher([passing, other]).history(2)


def test_what_nobody_has_is_not_there(target: Path) -> None:
    assert fetch(target, FakeSource("a", 2 * MIB), FakeSource("b", 2 * MIB)) is None
    assert Fetcher([FakeSource("a", 2 * MIB)]).history(2) is None


class ReplacedPart(FakeSource):
    """A source whose part of the last segment is replaced by a longer one between its offer and its bytes.

    Attributes:
        replacements: where the later parts end.
    """

    def __init__(self, name: str, end_lsn: Lsn, *replacements: Lsn) -> None:
        super().__init__(name, end_lsn)
        self.replacements = list(replacements)

    def offers(self, tli: int, begin_lsn: Lsn) -> list[Offer]:
        def write(path: Path) -> None:
            if self.replacements:
                self.pieces[tli, begin_lsn] = self.committed_lsn = self.replacements.pop(0)
                raise WalMissing(f"{self.name} has replaced it")
            offer.write(path)

        (offer,) = super().offers(tli, begin_lsn)
        return [offer._replace(write=write)]


def test_a_part_that_was_replaced_by_a_longer_one_meanwhile_is_asked_for_again(target: Path) -> None:
    parts = [2 * MIB + size for size in (1000, 2000, 9000)]
    assert fetch(target, ReplacedPart("a", *parts)) == ("a", 2 * MIB + 9000)
    assert fetch(target, ReplacedPart("a", *parts), FakeSource("b", 2 * MIB + 500)) == ("a", 2 * MIB + 9000)
    changing = ReplacedPart("a", *(2 * MIB + size for size in range(1000, 2000)))
    with pytest.raises(SourceUnavailable, match="changes repeatedly"):
        fetch(target, changing, FakeSource("b", 2 * MIB + 500))


def test_a_source_that_offers_what_it_does_not_have_is_passed_over(target: Path) -> None:
    optimist = FakeSource("a", 3 * MIB)
    optimist.removed = True
    assert fetch(target, optimist, FakeSource("b", 2 * MIB + 500)) == ("b", 2 * MIB + 500)
    assert fetch(target, optimist, find_holes=False) is None


def test_a_corrupt_segment_is_passed_over(target: Path, caplog: pytest.LogCaptureFixture) -> None:
    corrupt = FakeSource("a", 3 * MIB)
    corrupt.change = lambda content: content.__setitem__(slice(8192, 8200), bytes(range(8)))
    assert fetch(target, corrupt, FakeSource("b", 3 * MIB)) == ("b", 3 * MIB)
    assert "of a has a page at 0/202000" in caplog.text


@pytest.mark.parametrize("other_end_lsn", [2 * MIB, 2 * MIB + 9000])
def test_a_shorter_part_does_not_stand_for_what_is_corrupt(target: Path, other_end_lsn: Lsn) -> None:
    corrupt = FakeSource("a", 3 * MIB)
    corrupt.change = lambda content: content.__delitem__(slice(5000, None))
    with pytest.raises(SourceCorrupt, match="no source has a good copy of 000000010000000000000002"):
        fetch(target, corrupt, FakeSource("b", other_end_lsn))


@pytest.mark.parametrize("end_lsn", [MIB, 2 * MIB - 5000])
def test_a_hole_is_not_the_end(target: Path, end_lsn: Lsn) -> None:
    later = FakeSource("b", 3 * MIB, begin_lsn=2 * MIB)
    with pytest.raises(HoleFound, match="000000010000000000000002"):
        fetch(target, FakeSource("a", end_lsn), later, lsn=MIB)
    found = fetch(target, FakeSource("a", end_lsn), later, lsn=MIB, find_holes=False)
    assert found == (None if end_lsn == MIB else ("a", end_lsn))


def test_uncommitted_bytes_count_if_they_continue_the_committed_ones(target: Path) -> None:
    folder = FakeSource("folder", 2 * MIB + 20000, committed_lsn=2 * MIB + 100)
    assert fetch(target, FakeSource("a", 2 * MIB + 9000), folder) == ("folder", 2 * MIB + 20000)
    assert fetch(target, folder) == ("folder", 2 * MIB + 20000)


@pytest.mark.parametrize("offset", [5000, 8999])
def test_uncommitted_bytes_that_differ_from_committed_ones_are_not_used(
    target: Path, offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    folder = FakeSource("folder", 3 * MIB, committed_lsn=2 * MIB + 100)
    folder.change = lambda content: content.__setitem__(offset, content[offset] ^ 1)
    assert fetch(target, FakeSource("a", 2 * MIB + 9000), folder) == ("a", 2 * MIB + 9000)
    assert f"0/{2 * MIB + offset:X}" in caplog.text


def test_uncommitted_bytes_behind_a_segment_that_differs_are_not_used(target: Path) -> None:
    """The folder's log parted from the cluster's one segment before: what follows there is nobody's."""
    folder = FakeSource("folder", 2 * MIB + 20000, committed_lsn=MIB + 100)

    def change_the_first_segment(content: bytearray) -> None:
        if len(content) == MIB:
            content[5000] ^= 1

    folder.change = change_the_first_segment
    assert fetch(target, FakeSource("a", 2 * MIB), folder) is None


def test_a_source_of_another_system_is_refused(target: Path) -> None:
    other = FakeSource("a", 3 * MIB)
    other.system_id = 5
    with pytest.raises(ArchiveRefused, match="system 5"):
        fetch(target, other)
    with pytest.raises(ArchiveRefused, match="system 5"):
        fetch(target, FakeSource("b", 2 * MIB + 9000), other)


def test_a_history_that_is_not_understood_is_passed_over() -> None:
    damaged, good = FakeSource("a", MIB), FakeSource("b", MIB)
    damaged.histories[2] = b"x"
    with pytest.raises(SourceCorrupt):
        Fetcher([damaged, FakeSource("c", MIB)]).history(2)
    good.histories[2] = b"1\t0/200000\tno recovery target specified\n"
    assert Fetcher([damaged, good]).history(2) == good.histories[2]


def test_a_source_that_is_silent_is_asked_again_until_the_timeout(target: Path) -> None:
    source = FakeSource("a", 3 * MIB)
    asked = []

    def answer() -> None:
        asked.append(1)
        if len(asked) < 3:
            raise SourceUnavailable("not yet")

    source._answer = answer  # type: ignore[method-assign]
    assert Fetcher([source], timeout_s=5).fetch_segment(1, 2 * MIB, target) is not None
    assert len(asked) >= 3


def test_a_shorter_part_does_not_stand_for_what_a_folder_cannot_open(target: Path, tmp_path: Path) -> None:
    fs, directory = RealFileSystem(), tmp_path / "safekeeper"
    (directory / "wal").mkdir(parents=True)
    state = ControlState(
        safekeeper_id=1,
        incarnation="1" * 32,
        cluster_id="c" * 32,
        system_id=SYSTEM_ID,
        segment_size=MIB,
        server_version=150000,
        history=(HistoryEntry(1, 2 * MIB, 1),),
        wal_begin_lsn=2 * MIB,
        commit_lsn=2 * MIB + 9000,
    )
    ControlFile(fs, directory).store(state)
    wal = WAL.data[MIB : MIB + 9000]
    create_segment(fs, directory / "wal", tli=1, begin_lsn=2 * MIB, segment_size=MIB, wal=[wal]).close()
    folder, partial = FolderSource(directory), FakeSource("b", 2 * MIB + 500)
    assert fetch(target, folder, partial) == (folder.name, 2 * MIB + 9000)
    (segment,) = (directory / "wal").iterdir()
    segment.unlink()
    with pytest.raises(SourceCorrupt, match=r"no source has a good copy of "):
        fetch(target, folder, partial)
