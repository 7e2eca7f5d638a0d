"""Replication slots: what is held for whom, on disk before it is said, and over every restart."""

import contextlib
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.replication_client import ReplicationClient, ServerError
from tests.unit.replication_house import Leader, ReplicationHouse
from tests.unit.safekeeper_process import SafekeeperProcess, safekeeper
from tests.unit.scripted_proposer import BASE_LSN

END_LSN = BASE_LSN + 1000


def committed(house: ReplicationHouse) -> Leader:
    leader = house.led()
    leader.write(bytes(1000))
    leader.commit()
    return leader


def refused(client: ReplicationClient, command: str) -> str:
    """Return the SQLSTATE with which a command is refused."""
    with pytest.raises(ServerError) as error:
        client.query(command)
    return error.value.sqlstate


def oldest_restart_lsn(house: ReplicationHouse) -> int | None:
    """Return the position below which no slot holds WAL, None if none holds any."""
    slots = house.call(house.slots.describe)
    return min((slot.restart_lsn for slot in slots if slot.restart_lsn), default=None)


def test_a_slot_is_created_read_and_dropped(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        committed(house)
        client = house.client()
        assert client.query("READ_REPLICATION_SLOT s1").row == [None, None, None]
        assert client.query("CREATE_REPLICATION_SLOT s1 PHYSICAL").row == ["s1", "0/0", None, None]
        assert client.query("READ_REPLICATION_SLOT s1").row == ["physical", None, None]
        client.query('CREATE_REPLICATION_SLOT "s2" PHYSICAL (RESERVE_WAL)')
        assert client.query("READ_REPLICATION_SLOT s2").row == ["physical", "0/3003E8", "1"]
        assert refused(client, "CREATE_REPLICATION_SLOT s1 PHYSICAL") == "42710"
        assert refused(client, 'CREATE_REPLICATION_SLOT "S-1" PHYSICAL') == "42602"
        assert client.query("DROP_REPLICATION_SLOT s1").tags == ["DROP_REPLICATION_SLOT"]
        assert refused(client, "DROP_REPLICATION_SLOT s1") == "42704"
        assert client.query("READ_REPLICATION_SLOT s1").row == [None, None, None]
        assert oldest_restart_lsn(house) == END_LSN


def test_a_slot_holds_what_its_client_reported_as_flushed_also_backwards(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        committed(house)
        client = house.client()
        client.query("CREATE_REPLICATION_SLOT s1 PHYSICAL")
        client.receive_wal(client.start(BASE_LSN, slot="s1"), END_LSN)
        assert oldest_restart_lsn(house) is None
        for reported_lsn, held_lsn in ((BASE_LSN + 900, BASE_LSN + 900), (0, BASE_LSN + 900), (BASE_LSN, BASE_LSN)):
            client.report(reported_lsn, reported_lsn, 0)
            client.ping()
            assert oldest_restart_lsn(house) == held_lsn
        client.report(1 << 60, 1 << 60, 1 << 60)
        client.ping()
        assert oldest_restart_lsn(house) == END_LSN


def test_a_slot_is_used_by_one_connection_at_a_time(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        committed(house)
        first, second = house.client(), house.client()
        first.query("CREATE_REPLICATION_SLOT s1 PHYSICAL")
        first.receive_wal(first.start(BASE_LSN, slot="s1"), END_LSN)
        with pytest.raises(ServerError, match='replication slot "s1" is active for PID 1') as error:
            second.start(BASE_LSN, slot="s1")
        assert error.value.sqlstate == "55006"
        assert refused(second, "DROP_REPLICATION_SLOT s1") == "55006"
        first.end_copy()
        second.start(BASE_LSN, slot="s1")
        second.socket.close()
        house.until(lambda: house.listener.connection_count == 1)
        first.start(BASE_LSN, slot="s1")


def test_a_drop_can_wait_until_nobody_uses_the_slot(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        committed(house)
        user, dropper, impatient = house.client(), house.client(), house.client()
        user.start(BASE_LSN, slot="s1")
        for client in (dropper, impatient):
            client.send(b"Q", b"DROP_REPLICATION_SLOT s1 WAIT\0")
        impatient.socket.close()
        house.until(lambda: house.listener.connection_count == 2)
        assert house.client().query("READ_REPLICATION_SLOT s1").row[0] == "physical"
        user.socket.close()
        assert dropper.reply().tags == ["DROP_REPLICATION_SLOT"]


def test_a_start_with_a_slot_that_is_not_there_creates_it(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        committed(house)
        client = house.client()
        client.receive_wal(client.start(BASE_LSN, slot="new_one"), END_LSN)
        assert (tmp_path / "sk" / "slots").exists()
        assert house.client().query("READ_REPLICATION_SLOT new_one").row[0] == "physical"


def test_a_temporary_slot_lives_as_long_as_its_connection(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        committed(house)
        owner, other = house.client(), house.client()
        owner.query("CREATE_REPLICATION_SLOT t1 TEMPORARY PHYSICAL RESERVE_WAL")
        assert not (tmp_path / "sk" / "slots").exists()
        with pytest.raises(ServerError, match="is active for PID 1"):
            other.start(BASE_LSN, slot="t1")
        owner.receive_wal(owner.start(BASE_LSN, slot="t1"), END_LSN)
        owner.end_copy()
        with pytest.raises(ServerError, match="is active for PID 1"):
            other.start(BASE_LSN, slot="t1")
        owner.socket.close()
        house.until(lambda: house.slots.find("t1") is None)


def test_there_are_only_so_many_slots(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path, slots_max=2) as house:
        committed(house)
        client = house.client()
        for name in ("a", "b"):
            client.query(f"CREATE_REPLICATION_SLOT {name} PHYSICAL")
        assert refused(client, "CREATE_REPLICATION_SLOT c PHYSICAL") == "53400"
        assert refused(client, "CREATE_REPLICATION_SLOT c TEMPORARY PHYSICAL") == "53400"


def test_a_slot_that_nobody_uses_is_dropped_after_a_while_and_one_in_use_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ReplicationHouse(tmp_path) as house:
        now = 100.0
        house.slots._clock = lambda: now
        for name in ("idle", "used", "back"):
            house.run(house.slots.create(name, BASE_LSN, connection=0))
        house.call(lambda: house.slots.acquire(house.slots.find("used"), 7))
        now = 150.0
        house.call(lambda: house.slots.acquire(house.slots.find("back"), 8))
        house.call(lambda: house.slots.release(house.slots.find("back")))
        now = 160.0
        house.run(house.slots.drop_idle(60.5))
        assert [slot.name for slot in house.call(house.slots.describe)] == ["back", "idle", "used"]
        house.run(house.slots.drop_idle(60.0))
        assert [slot.name for slot in house.call(house.slots.describe)] == ["back", "used"]
        assert 'dropped replication slot "idle", which retained WAL from 0/300000' in caplog.text
    with ReplicationHouse(tmp_path) as house:
        assert [slot.name for slot in house.call(house.slots.describe)] == ["back", "used"]


def test_an_idle_slot_that_a_full_disk_keeps_from_being_dropped_goes_as_soon_as_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ReplicationHouse(tmp_path) as house:
        now = 100.0
        house.slots._clock = lambda: now
        house.run(house.slots.create("idle", BASE_LSN, connection=0))
        now = 200.0
        house.fs.full = True
        house.run(house.slots.drop_idle(60.0))
        assert "an idle replication slot could not be dropped" in caplog.text
        now = 201.0
        house.fs.full = False
        house.run(house.slots.drop_idle(60.0))
        assert house.call(house.slots.describe) == []


def test_on_a_full_disk_a_slot_is_refused_and_nothing_else_is_disturbed(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        leader = committed(house)
        client, reader = house.client(), house.client()
        client.query("CREATE_REPLICATION_SLOT s1 PHYSICAL")
        received = reader.start(BASE_LSN)
        house.fs.full = True
        assert refused(client, "CREATE_REPLICATION_SLOT s2 PHYSICAL") == "53100"
        assert refused(client, "DROP_REPLICATION_SLOT s1") == "53100"
        leader.write(b"more")
        leader.commit()
        reader.receive_wal(received, END_LSN + 4)
        house.fs.full = False
        client.query("CREATE_REPLICATION_SLOT s2 PHYSICAL")
        client.query("DROP_REPLICATION_SLOT s1")
        assert [slot.name for slot in house.call(house.slots.describe)] == ["s2"]


def test_a_slot_is_on_disk_before_it_is_said_to_exist(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        leader = committed(house)
        client = house.client()
        house.fs.hold()
        client.send(b"Q", b"CREATE_REPLICATION_SLOT s1 PHYSICAL\0")
        house.until(lambda: house.node.disk.busy_s > 0)
        # The loop is free meanwhile.
        assert house.client().identify() == (1, END_LSN)
        client.socket.settimeout(0.05)
        with pytest.raises(TimeoutError):
            client.receive()
        client.socket.settimeout(20)
        house.fs.release()
        assert client.reply().row[0] == "s1"
        leader.write(b"more")


def test_a_broken_disk_under_the_slots_breaks_slots_only(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        committed(house)
        client = house.client()
        client.query("CREATE_REPLICATION_SLOT s1 PHYSICAL")
        house.fs.failing = True
        assert refused(client, "CREATE_REPLICATION_SLOT s2 PHYSICAL") == "58030"
        house.fs.failing = False
        # What is on disk is not known any more: nothing is changed before a restart.
        assert refused(client, "CREATE_REPLICATION_SLOT s3 PHYSICAL") == "58030"
        assert client.query("READ_REPLICATION_SLOT s1").row[0] == "physical"
        assert client.receive_wal(client.start(BASE_LSN, slot="s1"), END_LSN)


# Over a restart.


@contextlib.contextmanager
def served(data_dir: Path, *options: str) -> Iterator[tuple[SafekeeperProcess, int]]:
    """A safekeeper with a replication listener that requires no password, and the port of that."""
    listen = ("--pg-listen", "0.0.0.0:0", "-c", "pg_allow=127.0.0.0/8")
    with SafekeeperProcess(data_dir, *listen, *options) as process:
        found = re.search(r"replication clients on 0.0.0.0:(\d+)", process.wait_for_line("listening for"))
        assert found is not None
        yield process, int(found[1])


def lead(process: SafekeeperProcess, chunks: tuple[int, ...] = (1000,)) -> int:
    """Have so many bytes committed; return where they end."""
    with process.proposer() as proposer:
        proposer.lead()
        for length in chunks:
            proposer.append(bytes(length))
        proposer.wait_flushed(proposer.write_lsn)
        proposer.wait_answered(proposer.append(b"", commit_lsn=proposer.write_lsn))
        return proposer.write_lsn


def test_slots_survive_a_kill_and_positions_a_checkpoint(tmp_path: Path) -> None:
    with served(tmp_path / "sk", "-c", "checkpoint_interval=0.05") as (process, port):
        end_lsn = lead(process)
        with ReplicationClient(port) as client:
            client.query("CREATE_REPLICATION_SLOT s1 PHYSICAL")
            client.query("CREATE_REPLICATION_SLOT s2 PHYSICAL RESERVE_WAL")
            client.query("CREATE_REPLICATION_SLOT s3 TEMPORARY PHYSICAL")
            client.receive_wal(client.start(BASE_LSN, slot="s1"), end_lsn)
            before = (tmp_path / "sk" / "slots").read_bytes()
            client.report(BASE_LSN + 10, BASE_LSN + 5, 0)
            while (tmp_path / "sk" / "slots").read_bytes() == before:
                pass
            process.signal(signal.SIGKILL)
            process.wait_exit()
    with served(tmp_path / "sk") as (process, port):
        slots = process.get("/status")[1]["slots"]
        assert all(slot.pop("idle_s") > 0 and slot.pop("retained_bytes") >= 0 for slot in slots)
        assert slots == [
            {"name": "s1", "restart_lsn": "0/300005", "active": False, "temporary": False},
            {"name": "s2", "restart_lsn": "0/3003E8", "active": False, "temporary": False},
        ]


def test_a_stop_writes_the_positions_and_ends_the_streams_as_postgresql_does(tmp_path: Path) -> None:
    with served(tmp_path / "sk", "-c", "checkpoint_interval=1000") as (process, port):
        end_lsn = lead(process)
        idle = ReplicationClient(port)
        client = ReplicationClient(port)
        client.receive_wal(client.start(BASE_LSN, slot="s1"), end_lsn)
        client.report(BASE_LSN + 10, BASE_LSN + 5, 0, reply=True)
        client.receive_copy()
        (reader,) = process.get("/status")[1]["readers"]
        assert reader["application_name"] == "standby1" and reader["flush_lsn"] == "0/300005"
        process.signal(signal.SIGTERM)
        assert client.receive() == ("C", b"COPY 0\0")
        assert client.is_closed()
        with pytest.raises(ServerError) as error:
            idle.receive()
        assert error.value.sqlstate == "57P01"
        assert process.wait_exit() == 0
    client.socket.close()
    idle.socket.close()
    with served(tmp_path / "sk") as (process, port):
        assert process.get("/status")[1]["slots"][0]["restart_lsn"] == "0/300005"


def test_a_stop_gives_a_reader_that_reads_all_that_there_is_for_it(tmp_path: Path) -> None:
    with served(tmp_path / "sk") as (process, port):
        end_lsn = lead(process, (1 << 20,) * 6)
        with ReplicationClient(port, receive_buffer=4096) as client:
            received = client.start(BASE_LSN)
            process.signal(signal.SIGTERM)
            process.wait_for_line("shutting down")
            client.receive_wal(received, end_lsn)
            assert client.receive() == ("C", b"COPY 0\0")
        assert process.wait_exit() == 0


def test_a_damaged_file_of_slots_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with served(tmp_path / "sk") as (process, port):
        lead(process)
        with ReplicationClient(port) as client:
            client.query("CREATE_REPLICATION_SLOT s1 PHYSICAL")
    file = tmp_path / "sk" / "slots"
    content = bytearray(file.read_bytes())
    content[20] ^= 1
    file.write_bytes(content)
    done = safekeeper("run", "--id", "1", "--data-dir", str(tmp_path / "sk"), "--listen", "127.0.0.1:0")
    assert done.returncode == 6
    (line,) = [line for line in done.stderr.splitlines() if "ERROR" in line]
    assert f"{file} is damaged" in line and "remove it to start without slots" in line
    file.unlink()
    with served(tmp_path / "sk") as (process, port):
        assert process.get("/status")[1]["slots"] == []
