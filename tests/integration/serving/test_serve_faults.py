"""Clients of a safekeeper that are at the wrong place, ask for what it has not, or behave badly: a clear word for
them, no effect on any other client."""

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
from psycopg import pq

from safekeeper.base.lsn import format_lsn, parse_lsn, segment_name
from tests.integration.cluster.cluster_fixtures import MIB, Gated, Load, field_of, wait_for
from tests.integration.conftest import NEWEST, NewCluster
from tests.integration.serving.serve_fixtures import (
    WireClient,
    assert_log_is_calm,
    connect_raw,
    log_of,
    readers_of,
    receivewal_command,
)
from walproxy.lab.cluster.local_standby import current_lsn
from walproxy.lab.process_resources import file_descriptors_of, memory_of

pytestmark = NEWEST
TIMEOUT_S = 2.0


def refusal_of(connection: pq.abc.PGconn, command: str) -> tuple[str, str]:
    """Return the SQLSTATE and the message with which a command is refused, at once or when the COPY has begun."""
    result = connection.exec_(command.encode())
    if result.status == pq.ExecStatus.COPY_BOTH:
        with contextlib.suppress(psycopg.OperationalError):  # It is the error that is wanted.
            connection.get_copy_data(0)
        following = connection.get_result()
        assert following is not None
        result = following
    assert result.status == pq.ExecStatus.FATAL_ERROR
    fields = (pq.DiagnosticField.SQLSTATE, pq.DiagnosticField.MESSAGE_PRIMARY)
    sqlstate, message = ((result.error_field(field) or b"").decode() for field in fields)
    while connection.get_result() is not None:
        pass
    return sqlstate, message


def run_client(cluster: Gated, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one of PostgreSQL's programs to its end."""
    command = [str(cluster.postgres.binaries.path(program)), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, cwd="/")


@contextlib.contextmanager
def impatient(cluster: Gated, safekeeper_id: int) -> Iterator[None]:
    """Restart a safekeeper that closes clients which are silent for TIMEOUT_S."""
    process = cluster.safekeepers[safekeeper_id]
    ordinary = process.arguments
    process.kill9()
    process.arguments = [*ordinary, "-c", f"pg_timeout={TIMEOUT_S:g}"]
    process.start()
    try:
        wait_for(lambda: cluster.member(safekeeper_id)["state"] == "streaming", "it follows")
        yield
    finally:
        process.kill9()
        process.arguments = ordinary
        process.start()


def test_standby_of_another_cluster_reports_it_and_the_safekeeper_goes_on(
    cluster: Gated, new_cluster: NewCluster
) -> None:
    stranger = new_cluster(start=False)
    settings = {"primary_conninfo": cluster.standby_conninfo(1), "wal_retrieve_retry_interval": "100ms"}
    # A standby needs no fewer than its primary had, which is here what initdb takes.
    stranger.configure({**settings, "max_connections": "100"})
    signal_file = stranger.data_directory / "standby.signal"
    signal_file.touch()
    stranger._give(signal_file)
    begin = len(log_of(cluster, 1))
    with cluster.load() as load:
        stranger.start()
        complaint = "database system identifier differs between the primary and standby"
        wait_for(lambda: stranger.log_path.read_text().count(complaint) >= 3, "the stranger has tried a few times")
        load.wait_for_commits(20)
        # A walreceiver that is killed while it logs in is a client without a password, and a warning.
        end = len(log_of(cluster, 1))
        stranger.close()
    assert readers_of(cluster, 1) == []
    assert_log_is_calm(cluster, 1, begin)
    assert " WARNING " not in log_of(cluster, 1)[begin:end]


def test_start_on_an_unknown_timeline_or_before_the_oldest_wal_is_refused_with_postgresql_s_errors(
    cluster: Gated,
) -> None:
    with cluster.load(workers=1) as load:
        load.wait_for_commits(5)
        connection = connect_raw(cluster, 1)
        end = format_lsn(cluster.commit_lsn())
        unknown = refusal_of(connection, f"START_REPLICATION {end} TIMELINE 7")
        assert unknown == ("XX000", "requested timeline 7 is not in this server's history")
        history = refusal_of(connection, "TIMELINE_HISTORY 7")
        assert history[0] == "58P01"
        removed = refusal_of(connection, f"START_REPLICATION {format_lsn(cluster.segment_size)}")
        name = segment_name(1, cluster.segment_size, cluster.segment_size)
        assert removed == ("58P01", f"requested WAL segment {name} has already been removed")
        # The connection can be used nevertheless.
        assert connection.exec_(b"IDENTIFY_SYSTEM").status == pq.ExecStatus.TUPLES_OK
        connection.finish()


def test_pg_receivewal_that_goes_on_where_the_safekeeper_has_removed_wal_reports_it(
    cluster: Gated, folder: Path
) -> None:
    # Its own files end far back.
    (folder / segment_name(1, cluster.segment_size, cluster.segment_size)).write_bytes(bytes(cluster.segment_size))
    command = receivewal_command(cluster.postgres.binaries, cluster, 1, folder, "--no-loop")
    answer = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd="/")
    assert answer.returncode == 1
    name = segment_name(1, 2 * cluster.segment_size, cluster.segment_size)
    assert f"requested WAL segment {name} has already been removed" in answer.stderr


def test_what_takes_a_database_is_refused_with_the_place_to_go(cluster: Gated, folder: Path) -> None:
    begin = len(log_of(cluster, 1))
    plain = cluster.standby_conninfo(1) + " dbname=postgres"
    backup = run_client(cluster, "pg_basebackup", "-d", cluster.standby_conninfo(1), "-D", str(folder / "copy"))
    assert backup.returncode == 1 and "a safekeeper does not support a base backup" in backup.stderr
    assert "take it from the primary or a standby, then stream the WAL from here" in backup.stderr
    sql = run_client(cluster, "psql", "-d", plain, "-c", "SELECT 1")
    assert sql.returncode == 2 and "this is a safekeeper, not a database: connect with replication=true" in sql.stderr
    assert "For SQL connect to the primary." in sql.stderr
    replicating = run_client(cluster, "psql", "-d", plain + " replication=true", "-c", "SELECT now()")
    assert replicating.returncode == 1 and "a safekeeper does not support SQL" in replicating.stderr
    shown = run_client(cluster, "psql", "-At", "-d", plain + " replication=true", "-c", "IDENTIFY_SYSTEM")
    assert shown.returncode == 0 and parse_lsn(shown.stdout.strip().split("|")[2]) <= cluster.commit_lsn()
    decode = ("--slot", "s", "--start", "--file", "-")
    logical = run_client(cluster, "pg_recvlogical", "-d", plain, *decode, "--no-loop")
    assert logical.returncode == 1 and "this is a safekeeper, not a database" in logical.stderr
    connection = connect_raw(cluster, 1)
    for command in ("START_REPLICATION SLOT s LOGICAL 0/0", "CREATE_REPLICATION_SLOT s LOGICAL test_decoding"):
        assert refusal_of(connection, command) == ("0A000", "a safekeeper does not support logical replication")
    connection.finish()
    assert_log_is_calm(cluster, 1, begin)


def test_client_that_does_not_read_costs_no_memory_and_is_closed_while_commits_flow(cluster: Gated) -> None:
    with impatient(cluster, 2), cluster.load() as load:
        begin_lsn = current_lsn(cluster.postgres)
        before = peak_bytes(cluster.safekeepers[2].pid)
        deaf = connect_raw(cluster, 2, application_name="deaf")
        with socket.socket(fileno=socket.dup(deaf.socket)) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        result = deaf.exec_(
            f"START_REPLICATION {format_lsn(begin_lsn // cluster.segment_size * cluster.segment_size)}".encode()
        )
        assert result.status == pq.ExecStatus.COPY_BOTH
        with WireClient(cluster, 2, begin_lsn) as client:
            message = (
                f"SELECT count(pg_logical_emit_message(true, 'p', repeat('z', {MIB}))) FROM generate_series(1, 24)"
            )
            cluster.postgres.execute(message)
            load.wait_for_commits(20)
            wait_for(lambda: "deaf" not in names_of_readers(cluster, 2), "the one that does not read is closed")
            load.wait_for_commits(20)
            client.wait_for(begin_lsn + 24 * MIB)
            assert client.problem is None
        assert peak_bytes(cluster.safekeepers[2].pid) - before < 12 * MIB
        deaf.finish()
    assert f"no data for {TIMEOUT_S:g} s" in log_of(cluster, 2)


def peak_bytes(pid: int | None) -> int:
    """Return the most memory that a process has held so far."""
    assert pid is not None
    return memory_of(pid).peak_bytes


def names_of_readers(cluster: Gated, safekeeper_id: int) -> list[str]:
    return [each["application_name"] for each in readers_of(cluster, safekeeper_id)]


def test_a_thousand_clients_that_come_and_go_leave_nothing_behind_while_commits_flow(cluster: Gated) -> None:
    process = cluster.safekeepers[1]
    begin = len(log_of(cluster, 1))
    with cluster.load(workers=1) as load:
        wait_for(lambda: readers_of(cluster, 1) == [], "no client streams")
        begin_segment(cluster, load)
        before = open_files(process.pid)
        lsn = format_lsn(current_lsn(cluster.postgres))
        port = connect_raw(cluster, 1).port.decode()
        for number in range(1000):
            if number % 2:
                # No client, or one that is cut off within a message.
                with socket.create_connection(("127.0.0.1", int(port)), timeout=5) as sock:
                    sock.sendall(b"\0\0\0\x40"[: number % 5])
                continue
            connection = connect_raw(cluster, 1)
            if number % 4:
                connection.exec_(f"START_REPLICATION {lsn}".encode())
            connection.finish()
        load.wait_for_commits(20)
        begin_segment(cluster, load)
        wait_for(lambda: open_files(process.pid) <= before, "all connections are gone")
        wait_for(lambda: readers_of(cluster, 1) == [], "all streams are gone")
    assert field_of(process, "id") == 1
    assert_log_is_calm(cluster, 1, begin)
    # Strangers cannot fill the log.
    assert log_of(cluster, 1)[begin:].count(" WARNING ") < 50


def begin_segment(cluster: Gated, load: Load) -> None:
    """Let safekeeper 1 write into a segment that has just begun: in the second half it has the next one open too."""
    cluster.postgres.execute("SELECT pg_switch_wal()")
    # Exactly at the border the next segment is still another file.
    load.wait_for_commits()
    end_lsn = cluster.primary_flush_lsn()
    wait_for(lambda: cluster.flush_lsn_of(1) >= end_lsn, "safekeeper 1 has begun the segment")


def open_files(pid: int | None) -> int:
    """Return how many files and sockets a process has open."""
    assert pid is not None
    return file_descriptors_of(pid)
