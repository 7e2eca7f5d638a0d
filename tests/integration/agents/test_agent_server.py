"""The agent's acts on a real server: a look at each of its states, demotion, and SIGKILL of what hangs."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.integration.agents.agent_fixtures import AgentsServer, agents_servers
from tests.integration.conftest import NEWEST
from tests.waiting import wait_for
from walproxy.agent.managed_server import STANDBY_TCP, ManagedServer
from walproxy.agent.processes import processes_of
from walproxy.agent.server_look import ServerState
from walproxy.postgres.binaries import ServerBinaries
from walproxy.postgres.problems import ServerProblem
from walproxy.postgres.process_table import is_alive

NewServer = Callable[[str], AgentsServer]


@pytest.fixture
def new_server(servers: dict[int, ServerBinaries], major: int, folder: Path) -> Iterator[NewServer]:
    with agents_servers(servers[major], folder) as make:
        yield make


def test_look_follows_a_server_from_its_start_to_its_promotion(new_server: NewServer, template: Path) -> None:
    primary = new_server("one")
    assert primary.managed.look().state is ServerState.MISSING
    primary.fill(template)
    stopped = primary.managed.look()
    assert (stopped.state, stopped.tli, stopped.is_in_recovery) == (ServerState.STOPPED, 1, False)
    look = primary.start().managed.look()
    assert (look.state, look.tli, look.is_read_only) == (ServerState.PRIMARY, 1, False)
    assert look.system_id == stopped.system_id
    assert (stopped.server_version, look.server_version >= 130_000) == (0, True)
    assert look.written_lsn > stopped.written_lsn

    standby = new_server("two").start_standby_of(primary)
    primary.execute("CREATE TABLE t (a int)")
    end = primary.managed.look().written_lsn
    wait_for(lambda: standby.managed.look().replayed_lsn >= end, "the standby has replayed it")
    look = standby.managed.look()
    assert (look.state, look.tli, look.is_in_recovery) == (ServerState.STANDBY, 1, True)
    assert look.received_lsn >= end and look.is_streaming
    standby.promote()
    look = standby.managed.look()
    assert (look.state, look.tli, look.is_streaming) == (ServerState.PRIMARY, 2, False)
    standby.managed.stop()
    standby.managed.stop()
    look = standby.managed.look()
    assert (look.state, look.tli, look.pid) == (ServerState.STOPPED, 2, None)


def test_stopped_primary_hangs_and_is_killed_with_its_children(new_server: NewServer, template: Path) -> None:
    server = new_server("one").fill(template).start()
    pid = server.managed.look().pid
    assert pid is not None
    found = processes_of(server.data_directory)
    assert pid in found and len(found) > 3
    for each in found:
        # The backend of the look ends at about this time.
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGSTOP)
    began_at = time.monotonic()
    look = server.managed.look(timeout_s=0.5)
    assert time.monotonic() - began_at < 2
    assert (look.state, look.pid) == (ServerState.HANGS, pid)
    assert look.control is not None and look.control.state == "in production"
    with pytest.raises(ServerProblem, match=r"not reply within"):
        server.managed.make_read_only(timeout_s=0.5)
    with pytest.raises(ServerProblem, match=r"has not stopped \(fast\) within 0.3 s"):
        server.managed.stop("fast", timeout_s=0.3)
    assert server.managed.kill() > 0
    assert not any(is_alive(each) for each in found)
    assert server.managed.look().state is ServerState.STOPPED
    server.start()
    assert server.managed.look().state is ServerState.PRIMARY


def all_connections(server: AgentsServer) -> contextlib.ExitStack:
    """Use all connections, those that are reserved for superusers, too."""
    held = contextlib.ExitStack()
    with contextlib.suppress(psycopg.OperationalError):
        while True:
            held.enter_context(psycopg.connect(server.conninfo))
    return held


def test_looks_need_no_login_while_the_server_runs(new_server: NewServer, template: Path) -> None:
    server = new_server("one").fill(template).start()
    stranger = ManagedServer(
        server.data_directory, server.binaries.bin_directory, server.conninfo, log_path=server.managed._log_path
    )
    before = server.managed.look()
    assert before.state is ServerState.PRIMARY
    with psycopg.connect(server.conninfo) as owner:
        owner.execute("LOCK TABLE pg_authid IN ACCESS EXCLUSIVE MODE")
        assert stranger.look(timeout_s=0.5).state is ServerState.HANGS
        assert server.managed.look(timeout_s=5.0).state is ServerState.PRIMARY
        owner.execute("CREATE TABLE t (a int)")
        owner.commit()
    assert server.managed.look().written_lsn > before.written_lsn
    with all_connections(server):
        assert stranger.look().state is ServerState.REFUSES
        assert server.managed.look().state is ServerState.PRIMARY
    if server.execute("SHOW server_version_num") >= [("170000",)]:
        server.execute(
            "CREATE FUNCTION block() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(60); END';"
            "CREATE EVENT TRIGGER at_login ON login EXECUTE FUNCTION block()"
        )
        assert stranger.look(timeout_s=0.5).state is ServerState.HANGS
        assert server.managed.look().state is ServerState.PRIMARY


@NEWEST
def test_session_of_the_looks_ends_with_the_server_and_delays_no_shutdown(
    new_server: NewServer, template: Path
) -> None:
    server = new_server("one").fill(template).start()
    first = server.managed.look()
    server.managed.kill()
    server.start()
    second = server.managed.look()
    assert (second.state, first.pid == second.pid) == (ServerState.PRIMARY, False)
    server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'walproxy agent'")
    assert server.managed.look() == second
    # A smart shutdown waits for all sessions.
    assert second.pid is not None
    os.kill(second.pid, signal.SIGTERM)
    wait_for(lambda: server.managed.look().state is ServerState.STOPPED, "the server has stopped")


@NEWEST
def test_pid_of_another_process_in_postmaster_pid_is_never_killed(
    new_server: NewServer, template: Path, folder: Path
) -> None:
    server = new_server("one").fill(template)
    other = new_server("two").fill(template).start()
    other_pid = other.managed.look().pid
    bystander = subprocess.Popen(["sleep", "60"], cwd=server.data_directory)
    try:
        for pid in (bystander.pid, other_pid):
            (server.data_directory / "postmaster.pid").write_text(f"{pid}\n{server.data_directory}\n")
            assert server.managed.look().state is ServerState.STOPPED
            assert server.managed.kill() == 0
            server.managed.stop()
        assert bystander.poll() is None
        assert other.managed.look().pid == other_pid
        (server.data_directory / "postmaster.pid").write_text(f"{bystander.pid}\n{server.data_directory}\n")
        server.start()
        assert server.managed.look().state is ServerState.PRIMARY
    finally:
        bystander.kill()
        bystander.wait()


def wait_for_sessions(spared: psycopg.Connection, count: int) -> None:
    """Wait until so many sessions exist that are not spared: one that was closed ends a moment later."""
    sql = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE backend_type = 'client backend' AND application_name NOT LIKE 'walproxy%'"
    )
    wait_for(lambda: spared.execute(sql).fetchone() == (count,), f"{count} sessions exist that are not spared")


def test_read_only_server_has_no_old_session_and_refuses_writes(new_server: NewServer, template: Path) -> None:
    server = new_server("one").fill(template).start()
    server.execute("CREATE TABLE t (a int)")
    with (
        psycopg.connect(server.conninfo) as client,
        psycopg.connect(server.conninfo, application_name="walproxy run", autocommit=True) as spared,
    ):
        client.execute("INSERT INTO t VALUES (1)")
        wait_for_sessions(spared, 1)
        assert server.managed.make_read_only() == 1
        with pytest.raises(psycopg.OperationalError):
            client.execute("SELECT 1")
        assert spared.execute("SELECT 1").fetchone() == (1,)
        assert server.managed.look().is_read_only
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            server.execute("INSERT INTO t VALUES (2)")
        wait_for_sessions(spared, 0)
        assert server.managed.make_read_only() == 0
    # The settings that the user writes meanwhile survive.
    server.execute("ALTER SYSTEM SET work_mem = '5MB'")
    server.managed.make_writable()
    server.execute("INSERT INTO t VALUES (3)")
    assert server.execute("TABLE t") == [(3,)]
    server.managed.stop()
    server.start()
    assert server.execute("SHOW work_mem") == [("5MB",)]
    assert server.managed.look().is_read_only is False


@NEWEST
def test_standby_is_made_once_and_starts_only_as_one(new_server: NewServer, template: Path) -> None:
    primary = new_server("one").fill(template).start()
    with pytest.raises(ServerProblem, match="runs as a primary"):
        primary.managed.make_standby("host=nowhere")
    standby = new_server("two").start_standby_of(primary)
    source = f"{primary.conninfo} application_name='it\\'s two' keepalives_idle=9"
    assert standby.managed.make_standby(source, "false %f", primary_slot_name="two")
    assert not standby.managed.make_standby(source, "false %f", primary_slot_name="two")
    wait_for(lambda: standby.execute("SHOW primary_slot_name") == [("two",)], "the settings are reloaded")
    [(written,)] = standby.execute("SHOW primary_conninfo")
    assert conninfo_to_dict(written) == {**STANDBY_TCP, **conninfo_to_dict(source)}
    standby.execute("ALTER SYSTEM SET work_mem = '5MB'")
    assert standby.managed.make_standby(primary.conninfo)
    wait_for(lambda: standby.execute("SHOW primary_slot_name") == [("",)], "the settings are reloaded")
    standby.managed.stop()
    with pytest.raises(ServerProblem, match="is a standby's"):
        standby.managed.start(as_standby=False)
    (standby.data_directory / "standby.signal").unlink()
    with pytest.raises(ServerProblem, match="is a standby's"):
        standby.managed.start(as_standby=False)
    with pytest.raises(ServerProblem, match=r"no standby\.signal"):
        standby.managed.start(as_standby=True)
    assert standby.managed.make_standby(primary.conninfo)
    standby.managed.start(as_standby=True)
    assert standby.execute("SHOW work_mem") == [("5MB",)]
    auto_conf = (standby.data_directory / "postgresql.auto.conf").read_text()
    assert auto_conf.count("walproxy.agent.conf") == 1 and "primary_conninfo" not in auto_conf


@NEWEST
def test_server_that_cannot_start_and_a_wrong_connection_are_reported(new_server: NewServer, template: Path) -> None:
    server, other = new_server("one").fill(template), new_server("two").fill(template).start()
    with (server.data_directory / "local.conf").open("a") as file:
        file.write("shared_buffers = '1kB'\n")
    with pytest.raises(ServerProblem, match=r"did not start .*shared_buffers"):
        server.start()
    with (server.data_directory / "local.conf").open("a") as file:
        file.write("shared_buffers = '16MB'\n")
    server.start()
    server.managed._conninfo = other.conninfo
    look = server.managed.look()
    assert look.state is ServerState.REFUSES
    assert "reaches the server of" in look.problem
