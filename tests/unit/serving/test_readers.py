"""The hub of readers: who is served from where, what it costs, and what the leader hears of it."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import safekeeper.storage.wal_reading
from safekeeper.consensus.messages import Standby, StandbyFeedback
from safekeeper.serving.pg_transport import WRITE_HIGH_WATER_BYTES
from safekeeper.serving.readers import SERVED_BYTES_PER_TURN
from tests.unit.replication_client import ReplicationClient
from tests.unit.replication_house import Leader, ReplicationHouse
from tests.unit.scripted_proposer import BASE_LSN

MIB = 1 << 20
WAL = random.Random(8).randbytes(6 * MIB)


@contextmanager
def reads_counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, str]]]:
    """Collect (length, thread) of every read of a segment by a reader."""
    reads: list[tuple[int, str]] = []
    original = safekeeper.storage.wal_reading.WalReader.at_hand
    fetched = safekeeper.storage.wal_reading.read_exactly

    def at_hand(self: Any, begin_lsn: int, end_lsn: int, *, recent: bool) -> bytes | bytearray:
        data = original(self, begin_lsn, end_lsn, recent=recent)
        if data:
            reads.append((len(data), threading.current_thread().name))
        return data

    def read_exactly(file: Any, path: Path, length: int, offset: int) -> bytes:
        reads.append((length, threading.current_thread().name))
        return fetched(file, path, length, offset)

    monkeypatch.setattr(safekeeper.storage.wal_reading.WalReader, "at_hand", at_hand)
    monkeypatch.setattr(safekeeper.storage.wal_reading, "read_exactly", read_exactly)
    yield reads
    monkeypatch.undo()


def committed(house: ReplicationHouse, length: int) -> Leader:
    leader = house.led()
    leader.write(WAL[:length])
    leader.commit()
    return leader


def test_readers_at_the_same_position_share_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ReplicationHouse(tmp_path) as house:
        leader = committed(house, 1000)
        clients = [house.client() for _ in range(5)]
        streams = [client.start(BASE_LSN) for client in clients]
        for client, received in zip(clients, streams, strict=True):
            client.receive_wal(received, BASE_LSN + 1000)
        with reads_counted(monkeypatch) as reads:
            leader.write(WAL[1000:3000])
            leader.commit()
            for client, received in zip(clients, streams, strict=True):
                assert client.receive_wal(received, BASE_LSN + 3000) == WAL[:3000]
        assert [length for length, _ in reads] == [2000]


def test_wal_that_the_disk_must_fetch_is_read_in_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ReplicationHouse(tmp_path) as house:
        leader = committed(house, len(WAL))
        house.fs.cold = True
        with reads_counted(monkeypatch) as reads:
            client = house.client()
            received = client.start(BASE_LSN)
            assert client.receive_wal(received, BASE_LSN + len(WAL)) == WAL
            leader.write(b"more")
            leader.commit()
            assert client.receive_wal(received, BASE_LSN + len(WAL) + 4)[-4:] == b"more"
        assert {thread for _, thread in reads} == {"reader"}
        assert sum(length for length, _ in reads) == len(WAL) + 4


def test_wal_in_memory_is_read_on_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ReplicationHouse(tmp_path) as house:
        leader = committed(house, 1000)
        client = house.client()
        received = client.start(BASE_LSN)
        client.receive_wal(received, BASE_LSN + 1000)
        with reads_counted(monkeypatch) as reads:
            leader.write(WAL[1000:2000])
            leader.commit()
            client.receive_wal(received, BASE_LSN + 2000)
        assert reads and all(thread != "reader" for _, thread in reads)


def test_a_slow_disk_under_a_reader_holds_up_no_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ReplicationHouse(tmp_path) as house:
        leader = committed(house, len(WAL))
        house.fs.cold = True
        may_read = threading.Event()
        original = safekeeper.storage.wal_reading.read_exactly

        def read_exactly(file: Any, path: Path, length: int, offset: int) -> bytes:
            assert may_read.wait(20)
            return original(file, path, length, offset)

        monkeypatch.setattr(safekeeper.storage.wal_reading, "read_exactly", read_exactly)
        client = house.client()
        received = client.start(BASE_LSN)
        house.until(lambda: house.hub.readers[0].fetching)
        end_lsn = leader.write(b"while it reads")
        leader.commit()
        assert house.client().identify() == (1, end_lsn)
        may_read.set()
        assert client.receive_wal(received, end_lsn) == WAL + b"while it reads"


def test_a_reader_that_does_not_read_costs_a_bounded_amount_of_memory_and_is_closed(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path, timeout_s=60) as house:
        leader = committed(house, len(WAL))
        client = house.client("stuck", receive_buffer=4096)
        client.start(BASE_LSN)
        house.until(lambda: house.hub.readers[0].paused)
        (reader,) = house.call(lambda: house.hub.readers)
        connection: Any = reader.client
        buffered = house.call(lambda: connection._transport.get_write_buffer_size())
        assert buffered <= WRITE_HIGH_WATER_BYTES + 2 * SERVED_BYTES_PER_TURN
        # Pings that it does not read the answers of pile up nowhere.
        position_lsn = reader.position_lsn
        for _ in range(1000):
            client.report(0, 0, 0, reply=True)
        client.report(BASE_LSN, 0, 0)
        house.until(lambda: reader.write_lsn == BASE_LSN)
        leader.write(b"more")
        leader.commit()
        assert house.call(lambda: connection._transport.get_write_buffer_size()) <= buffered
        assert reader.position_lsn == position_lsn
        house.watch_later(61, "stuck")
        house.until(lambda: not house.hub.readers)


def test_a_slow_reader_gets_everything_when_it_reads_again(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        committed(house, len(WAL))
        client = house.client(receive_buffer=4096)
        received = client.start(BASE_LSN)
        house.until(lambda: house.hub.readers[0].paused)
        assert client.receive_wal(received, BASE_LSN + len(WAL)) == WAL


# What the leader hears.


def standbys_at(leader: Leader) -> tuple[Standby, ...]:
    """Wait for the next word about the standbys."""
    while not leader.feedback:
        try:
            leader._socket.settimeout(20)
            leader._received.extend(leader._decoder.feed(leader._socket.recv(1 << 16)))
        finally:
            while leader._received:
                message = leader._received.popleft()
                if isinstance(message, StandbyFeedback):
                    leader.feedback.append(message.standbys)
    return leader.feedback.pop(0)


def streaming(house: ReplicationHouse, leader: Leader, length: int) -> ReplicationClient:
    client = house.client("standby1")
    client.receive_wal(client.start(BASE_LSN), BASE_LSN + length)
    assert standbys_at(leader) == (Standby("standby1"),)
    return client


def test_the_leader_receives_who_streams_and_how_far_each_is(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        leader = committed(house, 1000)
        client = streaming(house, leader, 1000)
        assert house.call(lambda: house.node.acceptor.has_readers)
        client.report(BASE_LSN + 900, BASE_LSN + 800, BASE_LSN + 700)
        assert standbys_at(leader) == (Standby("standby1", BASE_LSN + 900, BASE_LSN + 800, BASE_LSN + 700),)
        client.socket.close()
        assert standbys_at(leader) == ()
        assert not house.call(lambda: house.node.acceptor.has_readers)


def test_a_standby_cannot_claim_what_it_was_not_sent(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        leader = committed(house, 1000)
        end_lsn = leader.write(WAL[1000:2000])  # Not committed.
        client = streaming(house, leader, 1000)
        client.report(end_lsn, end_lsn, end_lsn)
        assert standbys_at(leader) == (Standby("standby1", *[BASE_LSN + 1000] * 3),)


def test_the_oldest_transaction_of_a_standby_reaches_the_leader(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        leader = committed(house, 1000)
        client = streaming(house, leader, 1000)
        client.report_xmin(750, 2)
        assert standbys_at(leader) == (Standby("standby1", xmin=2 << 32 | 750),)


def test_many_reports_of_one_moment_are_reported_once(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        leader = committed(house, 1000)
        client = streaming(house, leader, 1000)
        reported: list[Any] = []
        deliver = house.node.readers_changed

        def counted(has_readers: bool, standbys: tuple[Standby, ...]) -> None:
            reported.append(standbys)
            deliver(has_readers, standbys)

        house.call(lambda: setattr(house.node, "readers_changed", counted))
        for position in range(1, 501):
            client.report(BASE_LSN + position, BASE_LSN + position, 0)
        client.report(BASE_LSN + 600, BASE_LSN + 600, BASE_LSN + 600)
        final = (Standby("standby1", *[BASE_LSN + 600] * 3),)
        while standbys_at(leader) != final:
            pass
        assert len(reported) < 100
        assert reported[-1] == final


def test_the_first_client_for_long_is_reported_the_end_of_wal_also_while_an_event_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ReplicationHouse(tmp_path) as house:
        leader = committed(house, 1000)
        slow = threading.Event()
        perform = house.node.folder.perform

        def perform_slowly(effect: Any) -> Any:
            assert slow.wait(20)
            return perform(effect)

        monkeypatch.setattr(house.node.folder, "perform", perform_slowly)
        house.call(house.node.checkpoint)
        try:
            assert not house.call(lambda: house.node.is_between_events)
            assert house.client().identify() == (1, leader.commit_lsn)
        finally:
            slow.set()
