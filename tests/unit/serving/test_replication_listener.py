"""The replication listener: what a standby or pg_receivewal gets, checked on the wire."""

import copy
import logging
import random
import socket
import threading
from pathlib import Path

import pytest

from safekeeper.base.lsn import format_lsn
from safekeeper.base.timelines import format_timeline_history
from safekeeper.consensus.control_state import TliHistory
from safekeeper.consensus.membership import Member, Membership
from safekeeper.consensus.messages import Bootstrap, Bootstrapped
from safekeeper.consensus.term_history import HistoryEntry
from safekeeper.pgwire.backend import INT4
from safekeeper.serving.replication_listener import CAUSED_LINES_A_MINUTE
from tests.unit.held_turns import HeldTurns
from tests.unit.replication_client import DEADLINE_S, CopyDone, ReplicationClient, ServerError
from tests.unit.replication_house import ReplicationHouse
from tests.unit.scripted_proposer import BASE_LSN, SEGMENT_SIZE, SYSTEM_ID
from tests.unit.wal_builder import WalBuilder
from walproxy.postgres.replication import Keepalive

MIB = 1 << 20
WAL = random.Random(7).randbytes(3 * MIB)


# What is readable (S7).


def test_a_reader_gets_the_committed_bytes_and_not_one_more(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        leader = house.led()
        leader.write(WAL[:10_000])
        committed_lsn = leader.commit(BASE_LSN + 7_001)
        client = house.client()
        received = client.start(BASE_LSN)
        assert client.receive_wal(received, committed_lsn) == WAL[:7_001]
        # The quorum is lost: WAL is written here, synced, and never committed.
        leader.write(WAL[10_000:500_000])
        assert client.ping().server_end_lsn == committed_lsn
        assert house.client().identify() == (1, committed_lsn)
        leader.commit(BASE_LSN + 7_002)
        assert client.receive_wal(received, BASE_LSN + 7_002) == WAL[:7_002]
        assert client.ping().server_end_lsn == BASE_LSN + 7_002


def test_committed_wal_that_is_not_on_this_disk_is_not_sent(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        leader = house.led()
        begin_lsn = leader.write(WAL[:1000])
        leader.commit()
        client = house.client()
        received = client.start(BASE_LSN)
        client.receive_wal(received, begin_lsn)
        house.fs.hold()
        # The others have it: it is committed before this one's fdatasync has returned.
        leader.append(WAL[1000:2000], commit_lsn=begin_lsn)
        leader.append(b"", commit_lsn=begin_lsn + 1000)
        house.until(lambda: house.node.acceptor.write_lsn == begin_lsn + 1000)
        assert client.ping().server_end_lsn == begin_lsn
        house.fs.release()
        assert client.receive_wal(received, begin_lsn + 1000) == WAL[:2000]


def test_wal_arrives_whole_across_segments_from_any_start(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        leader = house.led()
        leader.write(WAL)
        end_lsn = leader.commit()
        for begin_lsn in (BASE_LSN, BASE_LSN + 1, BASE_LSN + SEGMENT_SIZE, BASE_LSN + SEGMENT_SIZE - 3, end_lsn - 1):
            client = house.client()
            data = client.receive_wal(client.start(begin_lsn), end_lsn)
            assert data == WAL[begin_lsn - BASE_LSN :]


def test_a_reader_that_begins_beyond_the_end_waits_for_it(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        leader = house.led()
        leader.write(WAL[:1000])
        leader.commit()
        client = house.client()
        received = client.start(BASE_LSN + 1500)
        assert client.ping().server_end_lsn == BASE_LSN + 1000
        leader.write(WAL[1000:2000])
        leader.commit(BASE_LSN + 1400)
        assert client.ping().server_end_lsn == BASE_LSN + 1400
        leader.commit()
        assert client.receive_wal(received, BASE_LSN + 2000) == WAL[1500:2000]


def test_a_start_before_the_oldest_wal_begins_and_then_says_that_it_is_gone(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        leader = house.led()
        leader.write(WAL[:1000])
        leader.commit()
        client = house.client()
        client.start(BASE_LSN - SEGMENT_SIZE)
        with pytest.raises(ServerError, match="000000010000000000000002 has already been removed") as refused:
            client.receive_copy()
        assert refused.value.sqlstate == "58P01"
        assert client.receive()[0] == "Z"
        assert client.identify() == (1, BASE_LSN + 1000)


# Timelines.


class Fork:
    """WAL of two timelines with real records: timeline 2 forks off where `fork_lsn` is."""

    def __init__(self) -> None:
        wal = WalBuilder(begin_lsn=BASE_LSN, segment_size=SEGMENT_SIZE, major=15, system_id=SYSTEM_ID)
        for size in (100, 20_000, 3000):
            wal.add(b"1" * size)
        wal.data += bytes(-len(wal.data) % 8)
        self.fork_lsn = wal.position
        self.before = bytes(wal.data)
        cut = copy.deepcopy(wal)
        cut.add(b"c" * 1000, held=400)
        self.incomplete = bytes(cut.data[len(self.before) :])
        wal.tli = 2
        wal.add(b"2" * 500)
        self.first_record_end_lsn = wal.records[-1].end_lsn
        wal.add(b"2" * 50_000)
        self.all = bytes(wal.data)
        self.end_lsn = wal.position
        self.history = (HistoryEntry(1, BASE_LSN, 1), HistoryEntry(2, self.fork_lsn, 2))
        self.file = TliHistory(2, format_timeline_history(((1, self.fork_lsn),)))


FORK = Fork()


def forked(house: ReplicationHouse) -> None:
    """Let the house hold both timelines, all committed."""
    leader = house.led()
    leader.write(FORK.before)
    leader.commit()
    successor = house.leader("run2")
    successor.take_over(2, FORK.history, histories=(FORK.file,), commit_lsn=FORK.fork_lsn)
    successor.write(FORK.all[len(FORK.before) :])
    successor.commit()
    house.until(lambda: house.node.acceptor.readable_lsn == FORK.end_lsn)


def test_a_reader_of_an_ancestor_gets_it_to_its_end_and_is_reported_what_goes_on(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        forked(house)
        client = house.client()
        received = client.start(BASE_LSN, tli=1)
        assert client.receive_wal(received, FORK.fork_lsn) == FORK.before
        assert isinstance(client.receive_copy(), CopyDone)
        client.send(b"c")
        reply = client.reply()
        assert reply.columns == ["next_tli", "next_tli_startpos"]
        assert reply.row == ["2", format_lsn(FORK.fork_lsn)]
        assert len(reply.tags) == 2
        # The new timeline's first segment has the parent's bytes below the fork.
        received = client.start(BASE_LSN, tli=2)
        assert client.receive_wal(received, FORK.end_lsn) == FORK.all


def test_a_reader_that_streams_when_the_timeline_switches_is_reported_so(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        leader = house.led()
        leader.write(FORK.before)
        leader.commit()
        client = house.client()
        received = client.start(BASE_LSN, tli=1)
        client.receive_wal(received, FORK.fork_lsn)
        successor = house.leader("run2")
        successor.take_over(2, FORK.history, histories=(FORK.file,), commit_lsn=FORK.fork_lsn)
        # Another timeline could still begin here: nobody hears of this one.
        assert client.ping().server_end_lsn == FORK.fork_lsn
        assert house.client().identify() == (1, FORK.fork_lsn)
        successor.write(FORK.all[len(FORK.before) :])
        successor.commit(FORK.first_record_end_lsn - 1)
        assert client.ping().server_end_lsn == FORK.fork_lsn
        successor.commit(FORK.first_record_end_lsn)
        assert isinstance(client.receive_copy(), CopyDone)
        client.send(b"c")
        assert client.reply().row == ["2", format_lsn(FORK.fork_lsn)]
        assert client.identify() == (2, FORK.first_record_end_lsn)
        received = client.start(BASE_LSN, tli=2)
        length = FORK.first_record_end_lsn - BASE_LSN
        assert client.receive_wal(received, FORK.first_record_end_lsn) == FORK.all[:length]


def test_a_start_exactly_where_the_timeline_ended_streams_nothing(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        forked(house)
        client = house.client()
        client.send_start(FORK.fork_lsn, tli=1)
        reply = client.reply()
        assert reply.row == ["2", format_lsn(FORK.fork_lsn)]
        assert len(reply.tags) == 2
        assert client.identify() == (2, FORK.end_lsn)


def test_a_start_that_is_not_in_the_history_is_refused_before_the_stream(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        forked(house)
        client = house.client()
        with pytest.raises(ServerError) as refused:
            client.start(FORK.fork_lsn + 8, tli=1)
        begin, fork = format_lsn(FORK.fork_lsn + 8), format_lsn(FORK.fork_lsn)
        assert refused.value.fields["M"] == (
            f"requested starting point {begin} on timeline 1 is not in this server's history"
        )
        assert refused.value.fields["D"] == f"This server's history forked from timeline 1 at {fork}."
        with pytest.raises(ServerError, match="requested timeline 3 is not in this server's history"):
            client.start(BASE_LSN, tli=3)
        assert client.identify() == (2, FORK.end_lsn)


def test_without_a_timeline_the_newest_one_is_streamed(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        forked(house)
        client = house.client()
        assert client.receive_wal(client.start(BASE_LSN, tli=None), FORK.end_lsn) == FORK.all


def test_the_history_file_comes_as_it_is_and_the_first_timeline_has_none(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        forked(house)
        client = house.client()
        reply = client.query("TIMELINE_HISTORY 2")
        assert reply.columns == ["filename", "content"]
        assert reply.row == ["00000002.history", FORK.file.content.decode()]
        for tli in (1, 3):
            with pytest.raises(ServerError, match=f"0000000{tli}.history") as refused:
                client.query(f"TIMELINE_HISTORY {tli}")
            assert refused.value.sqlstate == "58P01"


def test_a_reader_that_was_sent_what_is_cut_off_is_reported_where_the_new_timeline_begins(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        leader = house.led()
        leader.write(FORK.before)
        # A record that never becomes complete is committed as far as it goes, and is read.
        leader.write(FORK.incomplete)
        leader.commit()
        client = house.client()
        received = client.start(BASE_LSN, tli=1)
        client.receive_wal(received, FORK.fork_lsn + len(FORK.incomplete))
        successor = house.leader("run2")
        successor.take_over(2, FORK.history, histories=(FORK.file,), commit_lsn=FORK.fork_lsn)
        assert client.ping().server_end_lsn == FORK.fork_lsn
        successor.write(FORK.all[len(FORK.before) :])
        successor.commit()
        assert isinstance(client.receive_copy(), CopyDone)
        client.send(b"c")
        assert client.reply().row == ["2", format_lsn(FORK.fork_lsn)]


def test_a_reader_that_was_sent_what_was_replaced_on_its_timeline_is_sent_away(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        leader = house.led()
        leader.write(FORK.before)
        leader.write(FORK.incomplete)
        leader.commit()
        client, late = house.client(), house.client()
        client.receive_wal(client.start(BASE_LSN, tli=1), FORK.fork_lsn + len(FORK.incomplete))
        # A new timeline cuts the record off, comes to nothing, and the old one goes on with other bytes.
        house.leader("run2").take_over(2, FORK.history, histories=(FORK.file,), commit_lsn=FORK.fork_lsn)
        assert client.ping().server_end_lsn == FORK.fork_lsn
        third = house.leader("run3")
        third.take_over(3, (FORK.history[0], HistoryEntry(3, FORK.fork_lsn, 1)), commit_lsn=FORK.fork_lsn)
        other = FORK.all[len(FORK.before) :]
        end_lsn = third.write(other)
        third.commit()
        with pytest.raises(ServerError, match="timeline 1 is no longer in this server's history") as error:
            client.receive_copy()
        assert error.value.fields["S"] == "FATAL"
        assert late.receive_wal(late.start(BASE_LSN, tli=1), end_lsn) == FORK.before + other


def test_after_a_rebootstrap_every_reader_is_sent_away(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        leader = house.led()
        leader.write(WAL[:1000])
        leader.commit()
        client = house.client()
        client.receive_wal(client.start(BASE_LSN), BASE_LSN + 1000)
        operator = house.leader("operator")
        members = (Member(1, operator.greet().incarnation),)
        operator.send(Bootstrap("f" * 32, SYSTEM_ID, SEGMENT_SIZE, 150018, Membership(2, members), replace=True))
        operator.receive(Bootstrapped)
        with pytest.raises(ServerError, match="now belongs to another cluster") as error:
            client.receive_copy()
        assert error.value.fields["S"] == "FATAL"
        assert client.is_closed()
        with pytest.raises(ServerError, match="does not have committed WAL yet"):
            house.client().identify()


def test_a_log_that_begins_anew_higher_up_has_lost_its_readers_bytes(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        leader = house.led()
        leader.write(WAL[:1000])
        leader.commit()
        client = house.client()
        received = client.start(BASE_LSN)
        client.receive_wal(received, BASE_LSN + 1000)
        # It was away for so long that the others have removed what it lacks (S6).
        successor, base_lsn = house.leader("run2"), BASE_LSN + 4 * SEGMENT_SIZE
        history = (HistoryEntry(1, BASE_LSN, 1), HistoryEntry(2, base_lsn + 100, 1))
        successor.take_over(2, history, commit_lsn=base_lsn + 100, base_lsn=base_lsn)
        successor.write(WAL[:1000])
        successor.commit()
        with pytest.raises(ServerError, match="has already been removed"):
            client.receive_copy()
        late = house.client()
        assert late.receive_wal(late.start(base_lsn), base_lsn + 1000) == WAL[:1000]


# Commands.


def test_the_server_says_who_it_is_with_the_primarys_version(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        leader = house.led()
        end_lsn = leader.write(WAL[:1000])
        leader.commit()
        client = house.client()
        assert client.parameters["server_version"] == "15.18"
        assert client.parameters["integer_datetimes"] == "on"
        reply = client.query("IDENTIFY_SYSTEM")
        assert reply.columns == ["systemid", "timeline", "xlogpos", "dbname"]
        assert reply.row == [str(SYSTEM_ID), "1", format_lsn(end_lsn), None]
        assert reply.types[1] == INT4[0]  # Since 16 it is an int8.
        assert client.query("SHOW wal_segment_size").row == ["1MB"]
        assert client.query("SHOW data_directory_mode").row == ["0700"]
        assert client.query("SHOW server_version").row == ["15.18"]
        with pytest.raises(ServerError, match='unrecognized configuration parameter "fsync"') as refused:
            client.query("SHOW fsync")
        assert refused.value.sqlstate == "42704"
        with pytest.raises(ServerError) as refused:
            client.query("BASE_BACKUP")
        assert refused.value.sqlstate == "0A000"


def test_before_there_is_committed_wal_every_question_gets_one_clear_line(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        client = house.client()
        assert "server_version" not in client.parameters
        house.led().write(WAL[:1000])
        for command in ("IDENTIFY_SYSTEM", "SHOW wal_segment_size", "START_REPLICATION 0/300000 TIMELINE 1"):
            with pytest.raises(ServerError, match="this safekeeper does not have committed WAL yet") as refused:
                client.query(command)
            assert refused.value.sqlstate == "57P03"


def test_a_client_that_ends_its_stream_may_begin_another_one(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        leader = house.led()
        end_lsn = leader.write(WAL[:1000])
        leader.commit()
        client = house.client()
        for _ in range(3):
            client.receive_wal(client.start(BASE_LSN), end_lsn)
            reply = client.end_copy()
            assert (reply.rows, len(reply.tags)) == ([], 2)
        assert client.identify() == (1, end_lsn)


# Strangers, the slow and the many.


def test_what_clients_do_again_and_again_is_few_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with ReplicationHouse(tmp_path) as house:
        leader = house.led()
        end_lsn = leader.write(WAL[:1000])
        leader.commit()
        client = house.client()
        for _ in range(50):
            client.query("CREATE_REPLICATION_SLOT s1 PHYSICAL RESERVE_WAL")
            client.receive_wal(client.start(BASE_LSN, slot="s1"), end_lsn)
            client.end_copy()
            with pytest.raises(ServerError):
                client.query("CREATE_REPLICATION_SLOT s1 PHYSICAL")
            client.query("DROP_REPLICATION_SLOT s1")
    caused = [record for record in caplog.records if "replication connection" in record.getMessage()]
    refused = [record for record in caused if "was refused" in record.getMessage()]
    assert len(refused) == 30 and len(caused) - len(refused) == CAUSED_LINES_A_MINUTE < 200


def test_a_reader_that_says_nothing_is_asked_and_then_closed(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path, timeout_s=60) as house:
        leader = house.led()
        leader.write(WAL[:1000])
        leader.commit()
        client = house.client()
        received = client.start(BASE_LSN)
        client.receive_wal(received, BASE_LSN + 1000)
        house.watch_later(31)
        assert client.receive_copy() == Keepalive(BASE_LSN + 1000, True)
        house.watch_later(31)
        with pytest.raises(EOFError):
            client.receive_copy()
        house.until(lambda: not house.hub.readers and house.listener.connection_count == 0)
        house.listener.timeout_s = 0.4
        assert house.call(house.listener.watch) == 0.1, "it is watched often enough to be asked first"


def test_a_reader_that_answers_is_not_closed(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path, timeout_s=60) as house:
        leader = house.led()
        leader.write(WAL[:1000])
        leader.commit()
        client = house.client()
        client.receive_wal(client.start(BASE_LSN), BASE_LSN + 1000)
        for _ in range(5):
            house.watch_later(31)
            assert client.receive_copy() == Keepalive(BASE_LSN + 1000, True)
            client.report(BASE_LSN, BASE_LSN, BASE_LSN)
            assert client.ping()  # The report has arrived, too.


def test_who_does_not_introduce_himself_in_time_is_closed(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path, greeting_timeout_s=0.2) as house:
        leader = house.led()
        leader.write(WAL[:1000])
        leader.commit()
        client = house.client()
        assert house.stranger().is_closed()
        assert client.identify() == (1, BASE_LSN + 1000)


def test_a_thousand_clients_come_and_go_and_leave_nothing(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        leader = house.led()
        leader.write(WAL[:1000])
        leader.commit()
        for number in range(1000):
            with ReplicationClient(house.pg_port, startup=number % 3 != 0) as client:
                if number % 3 == 1:
                    client.send_start(BASE_LSN)
        house.until(lambda: house.listener.connection_count == 0)
        assert house.call(lambda: house.hub.readers) == []
        assert house.client().identify() == (1, BASE_LSN + 1000)


def test_more_connections_than_allowed_are_refused(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path, connections_max=3) as house:
        clients = [house.client() for _ in range(3)]
        with pytest.raises(Exception, match="sorry, too many clients already"):
            house.client().identify()
        house.until(lambda: house.listener.connection_count == 3)
        clients.pop().socket.close()
        house.until(lambda: house.listener.connection_count == 2)
        house.client()


@pytest.mark.parametrize("seed", range(40))
def test_garbage_closes_its_own_connection_only(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with ReplicationHouse(tmp_path) as house:
        leader = house.led()
        leader.write(WAL[:1000])
        leader.commit()
        reader = house.client("reader")
        received = reader.start(BASE_LSN)
        garbage = house.stranger() if seed % 2 else house.client("garbage")
        if seed % 4 == 2:
            garbage.start(BASE_LSN)
        try:
            garbage.socket.sendall(rng.choice((b"d\0\0\0\1", b"Q\xff\xff\xff\xff", b"", b"\0\0\0\x08")))
            garbage.socket.sendall(rng.randbytes(20_000))
            garbage.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # It was closed while it was still talking.
        house.until(lambda: house.listener.connection_count == 1)
        assert reader.receive_wal(received, BASE_LSN + 1000) == WAL[:1000]


def test_what_a_client_sends_before_it_has_logged_in_waits_for_its_turn(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        turns = house.call(HeldTurns)
        house.listener.turns = turns
        stranger = house.stranger()
        logging_in = threading.Thread(target=stranger.start_up, args=({"user": "x", "replication": "true"},))
        logging_in.start()
        house.until(lambda: len(turns.held) == 1)
        assert house.call(lambda: house.listener.admission.proven) == 0
        house.call(turns.release)
        logging_in.join(DEADLINE_S)
        assert house.call(lambda: house.listener.admission.proven) == 1
        with pytest.raises(ServerError, match="does not have committed WAL yet"):
            stranger.query("SHOW wal_segment_size")
        assert not turns.held


def test_a_closed_connection_does_not_wait_for_its_turn_any_longer(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        turns = house.call(HeldTurns)
        house.listener.turns = turns
        house.stranger().socket.sendall(b"\0")
        house.until(lambda: len(turns.held) == 1)
        (connection,) = house.listener._connections.values()
        house.call(lambda: house.listener.evict(connection, ""))
        house.until(lambda: not turns.held)
