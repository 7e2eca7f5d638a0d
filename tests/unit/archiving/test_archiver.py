"""The archiver of a safekeeper: a real node, a real folder, an archive in a local folder."""

import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import safekeeper.archiving.archiver
from safekeeper.archive.fetch import ArchiveReader
from safekeeper.archive.objects import ArchivedFile, partial_file, segment_file
from safekeeper.archive.store import ObjectStore
from safekeeper.archiving.archiver import NOT_LOOKED_YET
from safekeeper.base.errors import LogChanged
from safekeeper.base.lsn import format_lsn
from safekeeper.consensus.control_state import TliHistory
from safekeeper.consensus.membership import Membership
from safekeeper.consensus.messages import ArchiveReport, Bootstrap, Bootstrapped
from safekeeper.consensus.term_history import HistoryEntry
from safekeeper.storage.filesystem import RealFileSystem
from safekeeper.storage.wal_reading import SegmentBytes
from tests.unit.event_loop import DEADLINE_S
from tests.unit.replication_house import Leader, ReplicationHouse
from tests.unit.scripted_proposer import BASE_LSN, SEGMENT_SIZE, SERVER_VERSION, SYSTEM_ID
from walproxy.cli import cli

WAL = random.Random(9).randbytes(5 * SEGMENT_SIZE)
# The child forks in the second segment.
FORK_LSN = BASE_LSN + SEGMENT_SIZE + 100_000
HISTORY_FILE = TliHistory(2, f"1\t{format_lsn(FORK_LSN)}\tno recovery target specified\n".encode())
FORKED = (HistoryEntry(1, BASE_LSN, 1), HistoryEntry(2, FORK_LSN, 2, gives_up=True))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safekeeper.archiving.archiver, "RETRY_S_MIN", 0.05)
    monkeypatch.setattr(safekeeper.archiving.archiver, "RETRY_S_MAX", 0.05)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "archive")


@contextmanager
def archiving(
    directory: Path, url: str, length: int, *, reported_lsn: int = 0, **options: Any
) -> Iterator[tuple[ReplicationHouse, Leader]]:
    """A house whose safekeeper archives, with so much committed WAL."""
    with ReplicationHouse(directory, archive=url, **options) as house:
        leader = house.led()
        write(leader, length)
        leader.order_archive(1, reported_lsn)
        house.call(house.archiver.start)
        yield house, leader


def write(leader: Leader, length: int) -> int:
    """Have WAL up to `length` written and committed; return where it ends."""
    leader.write(WAL[leader.write_lsn - BASE_LSN : length])
    return leader.commit()


def wait_archived(leader: Leader, lsn: int) -> ArchiveReport:
    return leader.await_archive_report(lambda report: report.archived_lsn == lsn and not report.problem)


def archived(url: str) -> dict[ArchivedFile, bytes]:
    """Everything in the archive that has a receipt, verified."""
    reader = ArchiveReader(ObjectStore.open(url))
    listing = reader.catalog().listing
    assert not (listing.unconfirmed or listing.strangers or listing.conflicts or listing.lost)
    return {found.file: reader.fetch_bytes(found) for found in listing.objects}


def expected(length: int, wal: bytes = WAL, tli: int = 1) -> dict[ArchivedFile, bytes]:
    """What an archive holds of a log of one timeline that was archived to its end."""
    files = {}
    for begin in range(0, length, SEGMENT_SIZE):
        end = min(begin + SEGMENT_SIZE, length)
        if end - begin == SEGMENT_SIZE:
            file = segment_file(tli, BASE_LSN + begin, SEGMENT_SIZE)
        else:
            file = partial_file(tli, BASE_LSN + begin, BASE_LSN + end, SEGMENT_SIZE)
        files[file] = wal[begin:end]
    return files


@pytest.mark.parametrize("compress", [False, True])
def test_what_is_committed_is_archived_and_nothing_else(tmp_path: Path, url: str, compress: bool) -> None:
    with archiving(tmp_path, url, 2_500_000, compress=compress) as (house, leader):
        leader.write(WAL[2_500_000 : 4 * SEGMENT_SIZE])  # Not committed.
        wait_archived(leader, BASE_LSN + 2_500_000)
        assert archived(url) == expected(2_500_000)
        # A segment goes when it is complete, without being asked.
        leader.commit()
        wait_archived(leader, BASE_LSN + 4 * SEGMENT_SIZE)
        assert archived(url) == expected(4 * SEGMENT_SIZE)
        assert house.call(lambda: house.archiver.statistics.times.count) == 5


def test_the_open_segment_follows_at_the_interval(tmp_path: Path, url: str) -> None:
    with archiving(tmp_path, url, 1000, partial_interval_s=0.1) as (_, leader):
        for length in (2000, 5000, 9000):
            wait_archived(leader, write(leader, length))
            assert archived(url) == expected(length)


def test_the_open_segment_is_not_put_off_by_other_news(tmp_path: Path, url: str) -> None:
    with archiving(tmp_path, url, 1000, partial_interval_s=0.3) as (house, leader):
        wait_archived(leader, BASE_LSN + 1000)

        def disturb() -> None:
            house.archiver._news.set()
            house.archiver._loop.call_later(0.05, disturb)

        house.call(disturb)
        wait_archived(leader, write(leader, 2000))


def test_an_open_segment_that_cannot_be_archived_is_a_problem_until_it_is(tmp_path: Path, url: str) -> None:
    obstacle = Path(url) / partial_file(1, BASE_LSN, BASE_LSN + 1000, SEGMENT_SIZE).key(compressed=False)
    obstacle.mkdir(parents=True)
    with archiving(tmp_path, url, 1000, partial_interval_s=2 * DEADLINE_S) as (house, leader):
        leader.await_archive_report(lambda report: "could not" in report.problem)
        house.until(lambda: house.archiver.statistics.errors >= 5)
        assert house.call(lambda: house.archiver.problem)
        obstacle.rmdir()
        wait_archived(leader, BASE_LSN + 1000)


def test_the_open_segment_goes_at_once_on_demand(tmp_path: Path, url: str) -> None:
    with archiving(tmp_path, url, 1000) as (house, leader):
        wait_archived(leader, BASE_LSN + 1000)
        end_lsn = write(leader, 2000)
        house.call(house.archiver.archive_now)
        wait_archived(leader, end_lsn)
        assert archived(url) == expected(2000)


def test_a_shutdown_archives_the_rest(tmp_path: Path, url: str) -> None:
    with archiving(tmp_path, url, 1000) as (house, leader):
        wait_archived(leader, BASE_LSN + 1000)
        write(leader, SEGMENT_SIZE + 2000)
        house.run(house.archiver.finish())
        assert archived(url) == expected(SEGMENT_SIZE + 2000)


def test_a_shutdown_does_not_wait_for_an_archive_that_cannot_be_reached(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safekeeper.archiving.archiver, "RETRY_S_MIN", 3600.0)
    Path(url).write_bytes(b"a file where the folder should be")
    with archiving(tmp_path, url, 1000) as (house, leader):
        leader.await_archive_report(lambda report: report.problem not in ("", NOT_LOOKED_YET))
        house.run(house.archiver.finish())


def test_whoever_is_not_the_archiver_looks_whether_it_could_and_uploads_nothing(tmp_path: Path, url: str) -> None:
    with ReplicationHouse(tmp_path, archive=url) as house:
        leader = house.led()
        write(leader, 2 * SEGMENT_SIZE)
        house.call(house.archiver.start)
        assert leader.await_archive_report(lambda report: report.has_archive).problem
        report = leader.await_archive_report(lambda report: not report.problem)
        assert (report.archived_lsn, report.is_archiver) == (0, False)
        assert archived(url) == {}


def test_an_archiver_that_is_replaced_stops_and_says_no_more_how_far_it_is(tmp_path: Path, url: str) -> None:
    with archiving(tmp_path, url, 1000, partial_interval_s=0.05) as (_, leader):
        wait_archived(leader, BASE_LSN + 1000)
        leader.order_archive(2)
        leader.await_archive_report(lambda report: not report.archived_lsn)
        write(leader, 2 * SEGMENT_SIZE)
        leader.order_archive(1)
        wait_archived(leader, BASE_LSN + 2 * SEGMENT_SIZE)
        assert archived(url) == expected(2 * SEGMENT_SIZE)


# What is there already.


@pytest.mark.parametrize("reported", [True, False])
def test_a_restarted_archiver_uploads_nothing_twice(tmp_path: Path, url: str, reported: bool) -> None:
    end_lsn = BASE_LSN + 2_500_000
    with archiving(tmp_path, url, 2_500_000) as (_, leader):
        wait_archived(leader, end_lsn)
    with ReplicationHouse(tmp_path, archive=url) as house:
        leader = house.leader("run2")
        leader.take_over(2, (HistoryEntry(1, BASE_LSN, 1), HistoryEntry(2, end_lsn, 1)), commit_lsn=end_lsn)
        leader.commit(end_lsn)
        leader.order_archive(1, end_lsn if reported else 0)
        house.call(house.archiver.start)
        wait_archived(leader, end_lsn)
        assert house.call(lambda: house.archiver.statistics.times.count) == 0
        assert archived(url) == expected(2_500_000)


def test_an_upload_that_was_killed_before_its_receipt_is_finished(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with archiving(tmp_path, url, 100) as (_, leader):
        wait_archived(leader, BASE_LSN + 100)
    store = ObjectStore.open(url, makes_folder=True)
    whole, torn = (segment_file(1, BASE_LSN + n * SEGMENT_SIZE, SEGMENT_SIZE) for n in range(2))
    store.put(whole.key(compressed=False), WAL[:SEGMENT_SIZE], absent=True)
    store.put(torn.key(compressed=False), WAL[SEGMENT_SIZE : SEGMENT_SIZE + 9], absent=True)
    with ReplicationHouse(tmp_path, archive=url) as house:
        leader = house.leader("run2")
        end_lsn = BASE_LSN + 100
        leader.take_over(2, (HistoryEntry(1, BASE_LSN, 1), HistoryEntry(2, end_lsn, 1)), commit_lsn=end_lsn)
        write(leader, 2 * SEGMENT_SIZE)
        leader.order_archive(1)
        house.call(house.archiver.start)
        wait_archived(leader, BASE_LSN + 2 * SEGMENT_SIZE)
    assert archived(url) == expected(2 * SEGMENT_SIZE)
    assert [record.message for record in caplog.records if "its upload was interrupted" in record.message]


def test_other_bytes_under_our_name_are_a_loud_problem_and_stay_as_they_are(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with archiving(tmp_path, url, 2 * SEGMENT_SIZE) as (_, leader):
        wait_archived(leader, BASE_LSN + 2 * SEGMENT_SIZE)
    before = archived(url)
    (tmp_path / "other").mkdir()
    with ReplicationHouse(tmp_path / "other", archive=url) as house:
        leader = house.leader()
        # The same cluster, as far as anybody can tell, with another log.
        leader.take_over(1, (HistoryEntry(1, BASE_LSN, 1),))
        leader.write(WAL[::-1])
        leader.commit()
        leader.order_archive(1)
        house.call(house.archiver.start)
        report = leader.await_archive_report(lambda report: "another content" in report.problem)
        assert report.archived_lsn == BASE_LSN
    assert before.items() <= archived(url).items()
    assert any(record.levelname == "ERROR" and "cannot archive" in record.message for record in caplog.records)


def test_the_archive_of_another_cluster_is_left_alone(tmp_path: Path, url: str) -> None:
    manifest = {
        "system_id": SYSTEM_ID + 1,
        "segment_size": SEGMENT_SIZE,
        "cluster_ids": ["x"],
        "created_at": "2026-01-01T00:00:00Z",
        "format_version": 1,
    }
    store = ObjectStore.open(url, makes_folder=True)
    store.put("manifest.json", msgspec.json.encode(manifest), absent=True)
    with archiving(tmp_path, url, 2 * SEGMENT_SIZE) as (_, leader):
        report = leader.await_archive_report(lambda report: "belongs to the database" in report.problem)
        assert report.archived_lsn == 0
    assert [info.key for info in store.list()] == ["manifest.json"]


def test_an_archive_that_is_gone_holds_up_nothing_and_is_caught_up_with(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    folder, away = Path(url), tmp_path / "away"
    with archiving(tmp_path, url, 1000, partial_interval_s=0.05) as (house, leader):
        wait_archived(leader, BASE_LSN + 1000)
        folder.rename(away)
        folder.write_bytes(b"a file where the folder should be")
        write(leader, 2 * SEGMENT_SIZE)
        report = leader.await_archive_report(lambda report: report.problem != "")
        assert report.archived_lsn == BASE_LSN + 1000
        end_lsn = write(leader, 4 * SEGMENT_SIZE + 7)  # Commits go on.
        assert house.call(lambda: house.archiver.unarchived_bytes) == end_lsn - BASE_LSN - 1000
        folder.unlink()
        away.rename(folder)
        wait_archived(leader, end_lsn)
        assert house.call(lambda: house.archiver.describe()).problem == ""
    assert archived(url) == expected(4 * SEGMENT_SIZE + 7)
    said = [record.message for record in caplog.records if record.name == "safekeeper.archiving.archiver"]
    assert said[0].startswith("cannot archive: ") and said[-1].startswith("archiving resumed from ")


def test_an_archive_that_hangs_holds_up_no_append(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    may_put, put = threading.Event(), ObjectStore.put

    def slow_put(self: ObjectStore, *args: Any, **options: Any) -> bool:
        assert may_put.wait(DEADLINE_S)
        return put(self, *args, **options)

    with archiving(tmp_path, url, 1000) as (_, leader):
        wait_archived(leader, BASE_LSN + 1000)
        monkeypatch.setattr(ObjectStore, "put", slow_put)
        for length in range(100_000, len(WAL), 500_000):
            write(leader, length)
        may_put.set()
        wait_archived(leader, leader.commit_lsn // SEGMENT_SIZE * SEGMENT_SIZE)


# Forks.


def test_the_segment_with_a_fork_is_archived_under_both_names(tmp_path: Path, url: str) -> None:
    end_lsn = BASE_LSN + 3 * SEGMENT_SIZE
    # Zeros are no record whose end learners would have to wait for.
    child = WAL[: FORK_LSN - BASE_LSN] + bytes(64) + bytes(reversed(WAL[: end_lsn - FORK_LSN - 64]))
    with archiving(tmp_path, url, SEGMENT_SIZE + 150_000) as (house, leader):
        wait_archived(leader, BASE_LSN + SEGMENT_SIZE + 150_000)
        successor = house.leader("run2")
        # What an operator gives up is cut, and archived_lsn goes back with it.
        successor.take_over(2, FORKED, histories=(HISTORY_FILE,), commit_lsn=FORK_LSN)
        successor.await_archive_report(lambda report: report.archived_lsn == BASE_LSN + SEGMENT_SIZE)
        successor.write(child[FORK_LSN - BASE_LSN :])
        successor.commit()
        wait_archived(successor, end_lsn)
    found = archived(url)
    kinds = {(file.kind, file.tli, file.begin_lsn - BASE_LSN) for file in found}
    assert kinds == {
        ("segment", 1, 0),
        ("partial", 1, SEGMENT_SIZE),
        ("history", 2, -BASE_LSN),
        ("segment", 2, SEGMENT_SIZE),
        ("segment", 2, 2 * SEGMENT_SIZE),
    }
    segments = sorted((file for file in found if file.kind == "segment"), key=lambda file: file.begin_lsn)
    assert b"".join(found[file] for file in segments) == child
    assert HISTORY_FILE.content in found.values()


def test_an_upload_during_which_the_log_went_back_does_not_count_for_the_new_one(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_put, put, waiting = threading.Event(), ObjectStore.put, threading.Event()

    def slow_put(self: ObjectStore, *args: Any, **options: Any) -> bool:
        waiting.set()
        assert may_put.wait(DEADLINE_S)
        return put(self, *args, **options)

    with archiving(tmp_path, url, SEGMENT_SIZE) as (house, leader):
        wait_archived(leader, BASE_LSN + SEGMENT_SIZE)
        monkeypatch.setattr(ObjectStore, "put", slow_put)
        write(leader, SEGMENT_SIZE + 150_000)
        house.call(house.archiver.archive_now)
        assert waiting.wait(DEADLINE_S)
        house.leader("run2").take_over(2, FORKED, histories=(HISTORY_FILE,), commit_lsn=FORK_LSN)
        # The new timeline comes to nothing, and the old one goes on with other bytes.
        third = house.leader("run3")
        third.take_over(3, (FORKED[0], HistoryEntry(3, FORK_LSN, 1, gives_up=True)), commit_lsn=FORK_LSN)
        third.write(bytes(2 * SEGMENT_SIZE))
        third.commit()
        may_put.set()
        report = third.await_archive_report(lambda report: "another content" in report.problem)
        assert report.archived_lsn == BASE_LSN + SEGMENT_SIZE
    # What was committed then is there as it was.
    old = partial_file(1, BASE_LSN + SEGMENT_SIZE, BASE_LSN + SEGMENT_SIZE + 150_000, SEGMENT_SIZE)
    assert archived(url)[old] == WAL[SEGMENT_SIZE : SEGMENT_SIZE + 150_000]


def test_what_was_archived_of_the_cluster_that_an_undo_gives_up_does_not_count_for_the_other_one(
    tmp_path: Path, url: str
) -> None:
    with ReplicationHouse(tmp_path, archive=url) as house:
        old = house.led()
        write(old, 2 * SEGMENT_SIZE)
        members = old.membership.members
        begun = Bootstrap("d" * 32, SYSTEM_ID, SEGMENT_SIZE, SERVER_VERSION, Membership(2, members), replace=True)
        old.send(begun)
        old.receive(Bootstrapped)
        new = house.leader("run2")
        new.greet()
        new.take_over(2, (HistoryEntry(2, BASE_LSN, 1),))
        new.write(bytes(SEGMENT_SIZE))
        new.commit()
        new.order_archive(1)
        house.call(house.archiver.start)
        wait_archived(new, BASE_LSN + SEGMENT_SIZE)
        undone = msgspec.structs.replace(
            begun, cluster_id=old.cluster_id, membership=Membership(3, members), replace=False, undo=True, discard=True
        )
        new.send(undone)
        new.receive(Bootstrapped)
        third = house.leader("run3")
        third.greet()
        end_lsn = BASE_LSN + 2 * SEGMENT_SIZE
        third.take_over(3, (HistoryEntry(1, BASE_LSN, 1), HistoryEntry(3, end_lsn, 1)), commit_lsn=end_lsn)
        third.order_archive(1)
        report = third.await_archive_report(lambda report: "cluster" in report.problem)
        assert report.archived_lsn == 0


def test_a_source_whose_log_has_changed_gives_no_bytes(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(WAL[:SEGMENT_SIZE] * 2)
    states = iter([True, False])
    source = SegmentBytes(RealFileSystem(), path, 2 * SEGMENT_SIZE, lambda: next(states))
    pieces = source.pieces()
    assert next(pieces) == WAL[:SEGMENT_SIZE]
    with pytest.raises(LogChanged):
        next(pieces)


def test_an_archive_that_is_emptied_is_not_taken_for_the_same_one(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with archiving(tmp_path, url, SEGMENT_SIZE, partial_interval_s=0.05) as (_, leader):
        wait_archived(leader, BASE_LSN + SEGMENT_SIZE)
        leader.order_archive(1, BASE_LSN + SEGMENT_SIZE)
        first_id = leader.archive_id
        shutil.rmtree(url)
        write(leader, 2 * SEGMENT_SIZE)
        leader.await_archive_report(lambda report: "no longer the archive" in report.problem)
        refused = leader.await_archive_report(lambda report: "has no manifest.json" in report.problem).problem
        assert not Path(url).exists()
        # An operator begins an empty archive, with the command that the refusal names.
        assert CliRunner().invoke(cli, refused.rpartition(": walproxy ")[2].split()).exit_code == 0
        wait_archived(leader, BASE_LSN + 2 * SEGMENT_SIZE)
        assert archived(url) == expected(2 * SEGMENT_SIZE), "what is still kept is brought there anew"
        assert leader.archive_id != first_id
        said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert any("is not the previous one" in line and first_id[:8] in line for line in said)
