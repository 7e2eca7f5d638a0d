"""Readers that ask for WAL which is not kept any more, through a real hub, node and archive."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import safekeeper.archiving.read_through
import safekeeper.storage.data_folder
from safekeeper.acceptor.trimming import TrimRequest
from safekeeper.archive.fetch import ArchiveReader
from safekeeper.archive.objects import MANIFEST_KEY
from safekeeper.archive.store import ObjectStore
from safekeeper.archiving.read_through import CACHE_FOLDER, SEGMENTS_KEPT
from safekeeper.base.lsn import format_lsn, segment_name
from safekeeper.consensus.control_state import TliHistory
from safekeeper.consensus.term_history import HistoryEntry
from tests.unit.event_loop import DEADLINE_S
from tests.unit.faulty_filesystem import FaultyFile
from tests.unit.replication_client import CopyDone, ReplicationClient, ServerError
from tests.unit.replication_house import Leader, ReplicationHouse
from tests.unit.scripted_proposer import BASE_LSN, SEGMENT_SIZE
from walproxy.postgres.replication import Keepalive

WAL = random.Random(10).randbytes(9 * SEGMENT_SIZE + 12_345)
END_LSN = BASE_LSN + len(WAL)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safekeeper.archiving.read_through, "RETRY_S_MIN", 0.05)
    monkeypatch.setattr(safekeeper.archiving.read_through, "RETRY_S_MAX", 0.05)


@pytest.fixture(autouse=True)
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The WAL of these tests is no records: its last byte stands for one that bears a time, which is never removed."""
    monkeypatch.setattr(
        safekeeper.storage.data_folder, "find_timed_record", lambda read, begin_lsn, end_lsn, size: end_lsn - 1
    )


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "archive")


def trim(house: ReplicationHouse, leader: Leader) -> int:
    """Have all WAL removed that may be; return where it begins now."""
    house.call(house.archiver.archive_now)
    leader.await_archive_report(lambda report: report.archived_lsn == leader.commit_lsn)
    leader.order_archive(1, leader.commit_lsn)
    request = TrimRequest(None, keep_bytes=0, limit_bytes=0, has_archive=True)
    house.call(lambda: house.node.trim(lambda: request))
    kept_lsn = (leader.commit_lsn - 1) // SEGMENT_SIZE * SEGMENT_SIZE - SEGMENT_SIZE
    house.until(lambda: house.node.folder.begin_lsn == kept_lsn and house.node.is_between_events)
    return kept_lsn


@contextmanager
def trimmed(directory: Path, url: str, **options: Any) -> Iterator[tuple[ReplicationHouse, Leader]]:
    """A house that keeps no more than the last two segments of WAL; the archive has all of it."""
    with ReplicationHouse(directory, archive=url, **options) as house:
        leader = house.led()
        leader.write(WAL)
        leader.commit()
        leader.order_archive(1)
        house.call(house.archiver.start)
        trim(house, leader)
        yield house, leader


def object_of(url: str, lsn: int) -> Path:
    """The file of the archive that holds the segment of byte `lsn`."""
    found = ArchiveReader(ObjectStore.open(url)).find(1, lsn)
    assert found is not None
    return Path(url) / found.key


def cached(house: ReplicationHouse, tmp_path: Path) -> int:
    return len(list((tmp_path / "sk" / CACHE_FOLDER).iterdir()))


@pytest.mark.parametrize("compress", [False, True])
def test_a_reader_of_old_wal_gets_every_byte_and_does_not_notice(tmp_path: Path, url: str, compress: bool) -> None:
    with trimmed(tmp_path, url, compress=compress) as (house, leader):
        client = house.client()
        received = client.start(BASE_LSN + 777)
        assert client.receive_wal(received, END_LSN) == WAL[777:]
        # It goes on with what is new, from here.
        end_lsn = leader.write(b"more")
        leader.commit()
        assert client.receive_wal(received, end_lsn)[-4:] == b"more"
        assert house.call(lambda: (house.read_through.segments, house.read_through.errors)) == (8, 0)
        assert house.call(lambda: house.hub.readers[0].archived) is None
        house.until(lambda: cached(house, tmp_path) <= SEGMENTS_KEPT)


def test_many_readers_share_what_comes_from_the_archive(tmp_path: Path, url: str) -> None:
    with trimmed(tmp_path, url) as (house, _):
        clients = [house.client(f"standby{n}") for n in range(5)]
        streams = [client.start(BASE_LSN + n * 100_000) for n, client in enumerate(clients)]
        for n, (client, received) in enumerate(zip(clients, streams, strict=True)):
            assert client.receive_wal(received, END_LSN) == WAL[n * 100_000 :]
        assert house.call(lambda: house.read_through.errors) == 0
        house.until(lambda: cached(house, tmp_path) <= SEGMENTS_KEPT)


def test_a_reader_that_is_cut_off_from_its_wal_while_it_reads_goes_on_in_the_archive(tmp_path: Path, url: str) -> None:
    with ReplicationHouse(tmp_path, archive=url) as house:
        leader = house.led()
        leader.write(WAL)
        leader.commit()
        leader.order_archive(1)
        house.call(house.archiver.start)
        client = house.client(receive_buffer=4096)
        received = client.start(BASE_LSN)
        house.until(lambda: house.hub.readers[0].paused)
        begin_lsn = trim(house, leader)
        assert house.call(lambda: house.hub.readers[0].position_lsn) < begin_lsn
        assert client.receive_wal(received, END_LSN) == WAL


def test_a_reader_whose_wal_goes_just_when_it_is_opened_gets_it_from_the_archive(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ReplicationHouse(tmp_path, archive=url) as house:
        leader = house.led()
        leader.write(WAL)
        leader.commit()
        leader.order_archive(1)
        house.call(house.archiver.start)
        opens, may_open, open_file = threading.Event(), threading.Event(), house.fs.open

        def open_later(path: Path, *, read_only: bool = False) -> FaultyFile:
            if threading.current_thread().name == "reader":
                opens.set()
                assert may_open.wait(20.0)
            return open_file(path, read_only=read_only)

        monkeypatch.setattr(house.fs, "open", open_later)
        house.fs.cold = True
        client = house.client()
        received = client.start(BASE_LSN)
        assert opens.wait(20.0)
        trim(house, leader)
        name = segment_name(1, BASE_LSN, SEGMENT_SIZE)
        house.until(lambda: not (tmp_path / "sk" / "wal" / name).exists())
        may_open.set()
        assert client.receive_wal(received, END_LSN) == WAL


def test_a_slow_reader_of_the_archive_gets_everything(tmp_path: Path, url: str) -> None:
    with trimmed(tmp_path, url) as (house, _):
        house.fs.cold = True
        client = house.client(receive_buffer=4096)
        received = client.start(BASE_LSN)
        house.until(lambda: house.hub.readers[0].paused)
        assert client.receive_wal(received, END_LSN) == WAL


def test_a_reader_that_leaves_in_the_middle_leaves_nothing_in_use(tmp_path: Path, url: str) -> None:
    with trimmed(tmp_path, url) as (house, _):
        client = house.client(receive_buffer=4096)
        client.start(BASE_LSN)
        house.until(lambda: house.hub.readers[0].archived is not None)
        client.socket.close()
        house.until(lambda: not house.hub.readers)
        assert house.call(lambda: [s.users for s in house.read_through._cached.values() if s.users]) == []


def test_what_an_earlier_process_left_in_the_cache_is_removed(tmp_path: Path, url: str) -> None:
    folder = tmp_path / "sk" / CACHE_FOLDER
    folder.mkdir(parents=True)
    (folder / segment_name(1, BASE_LSN, SEGMENT_SIZE)).write_bytes(b"damaged")
    with trimmed(tmp_path, url) as (house, _):
        house.until(lambda: not list(folder.iterdir()))
        client = house.client()
        assert client.receive_wal(client.start(BASE_LSN), END_LSN) == WAL


# An archive that is slow, dead, damaged, incomplete or somebody else's.


def test_a_slow_archive_holds_up_neither_appends_nor_other_readers(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_fetch, fetch, waiting = threading.Event(), ArchiveReader.fetch, threading.Event()

    def slow_fetch(self: ArchiveReader, *args: Any) -> None:
        waiting.set()
        assert may_fetch.wait(DEADLINE_S)
        fetch(self, *args)

    monkeypatch.setattr(ArchiveReader, "fetch", slow_fetch)
    with trimmed(tmp_path, url, timeout_s=60) as (house, leader):
        old, new = house.client("old"), house.client("new")
        received = old.start(BASE_LSN)
        assert waiting.wait(DEADLINE_S)
        end_lsn = leader.write(b"more")
        leader.commit()
        assert new.receive_wal(new.start(END_LSN), end_lsn) == b"more"
        # The connection of the one that waits stays alive for as long as it answers.
        for _ in range(3):
            house.watch_later(31, "old")
            assert old.receive_copy() == Keepalive(end_lsn, True)
            assert old.ping().server_end_lsn == end_lsn
        may_fetch.set()
        assert old.receive_wal(received, end_lsn) == WAL + b"more"


def test_an_archive_that_does_not_answer_is_waited_for(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder, away = Path(url), tmp_path / "away"
    with trimmed(tmp_path, url) as (house, _):
        folder.rename(away)
        folder.write_bytes(b"a file where the folder should be")
        client = house.client()
        received = client.start(BASE_LSN)
        house.until(lambda: house.read_through.errors > 2)
        assert client.ping().server_end_lsn == END_LSN
        folder.unlink()
        away.rename(folder)
        assert client.receive_wal(received, END_LSN) == WAL
        assert house.call(lambda: house.read_through.problem) == ""
    said = [record.message for record in caplog.records if "could not read WAL from the archive" in record.message]
    assert len(said) == 1


def test_a_damaged_object_is_never_served_and_is_asked_for_again(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with trimmed(tmp_path, url) as (house, _):
        path = object_of(url, BASE_LSN + SEGMENT_SIZE)
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        client = house.client()
        received = client.start(BASE_LSN)
        assert client.receive_wal(received, BASE_LSN + SEGMENT_SIZE) == WAL[:SEGMENT_SIZE]
        house.until(lambda: house.read_through.errors > 2)
        path.write_bytes(whole)
        assert client.receive_wal(received, END_LSN) == WAL
    assert any(r.levelname == "ERROR" and path.name in r.message for r in caplog.records)


def test_a_segment_that_is_missing_is_named_and_the_reader_sent_away(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with trimmed(tmp_path, url) as (house, _):
        lsn = BASE_LSN + 2 * SEGMENT_SIZE
        name = segment_name(1, lsn, SEGMENT_SIZE)
        for path in object_of(url, lsn).parent.glob(f"{name}*"):
            path.unlink()
        client = house.client()
        received = client.start(BASE_LSN)
        with pytest.raises(ServerError, match=f"requested WAL segment {name} has already been removed") as error:
            client.receive_wal(received, END_LSN)
        assert error.value.sqlstate == "58P01"
        assert received.end_lsn == lsn and bytes(received.data) == WAL[: 2 * SEGMENT_SIZE]
    assert any(f"{name} is not in the archive" in record.message for record in caplog.records)


def test_the_archive_of_another_cluster_is_not_read(tmp_path: Path, url: str) -> None:
    with trimmed(tmp_path, url) as (house, _):
        path = Path(url) / MANIFEST_KEY
        ours = path.read_bytes()
        path.write_bytes(ours.replace(house.node.acceptor.control.cluster_id.encode(), b"f" * 32))
        client = house.client()
        received = client.start(BASE_LSN)
        house.until(lambda: "another cluster" in house.read_through.problem)
        path.write_bytes(ours)
        assert client.receive_wal(received, END_LSN) == WAL


def test_a_reader_waits_for_an_archive_that_is_not_mounted(tmp_path: Path, url: str) -> None:
    with trimmed(tmp_path, url) as (house, _):
        archive = Path(url)
        mounted = archive.rename(archive.with_name("mounted"))
        archive.mkdir()
        client = house.client()
        received = client.start(BASE_LSN)
        house.until(lambda: f"{url} has no {MANIFEST_KEY}" in house.read_through.problem)
        archive.rmdir()
        mounted.rename(archive)
        assert client.receive_wal(received, END_LSN) == WAL


def test_without_an_archive_old_wal_is_gone(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        leader = house.led()
        leader.write(WAL)
        leader.commit()
        leader.order_archive(1, leader.commit_lsn)
        house.call(lambda: house.node.trim(lambda: TrimRequest(None, 0, 0, has_archive=True)))
        house.until(lambda: house.node.folder.begin_lsn > BASE_LSN)
        client = house.client()
        client.start(BASE_LSN)
        with pytest.raises(ServerError, match="has already been removed"):
            client.receive_copy()


# Timelines.


def test_the_ancestors_wal_comes_from_the_archive_up_to_the_fork(tmp_path: Path, url: str) -> None:
    fork_lsn = BASE_LSN + 2 * SEGMENT_SIZE + 5000
    history = TliHistory(2, f"1\t{format_lsn(fork_lsn)}\tno recovery target specified\n".encode())
    with ReplicationHouse(tmp_path, archive=url) as house:
        leader = house.led()
        leader.write(WAL[: fork_lsn - BASE_LSN])
        leader.commit()
        successor = house.leader("run2")
        entries = (HistoryEntry(1, BASE_LSN, 1), HistoryEntry(2, fork_lsn, 2))
        successor.take_over(2, entries, histories=(history,), commit_lsn=fork_lsn)
        # Zeros are no record whose end readers would have to wait for.
        wal = WAL[: fork_lsn - BASE_LSN] + bytes(64) + WAL[fork_lsn + 64 - BASE_LSN :]
        successor.write(wal[fork_lsn - BASE_LSN :])
        successor.commit()
        successor.order_archive(1)
        house.call(house.archiver.start)
        trim(house, successor)
        client = house.client()
        received = client.start(BASE_LSN, tli=1)
        assert client.receive_wal(received, fork_lsn) == WAL[: fork_lsn - BASE_LSN]
        _finish_timeline(client, fork_lsn)
        # A child starts where the segment of the fork starts.
        begin_lsn = fork_lsn - fork_lsn % SEGMENT_SIZE
        assert client.receive_wal(client.start(begin_lsn, tli=2), END_LSN) == wal[begin_lsn - BASE_LSN :]


def _finish_timeline(client: ReplicationClient, fork_lsn: int) -> None:
    assert isinstance(client.receive_copy(), CopyDone)
    client.send(b"c")
    assert client.reply().row == ["2", format_lsn(fork_lsn)]
