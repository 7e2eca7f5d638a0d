"""The PostgreSQL server beside the agent: looked at, started, stopped, killed and demoted.

Nothing here decides. Each function blocks, with a bound, and states in one line why it failed; the caller falls back
to a stronger one: make_read_only, then stop, then kill.

A look combines three sources: the processes of the data folder, SQL with a deadline, and pg_control. A server of which
processes exist and that does not reply before the deadline HANGS: stopped by SIGSTOP, a disk that does not reply, a
machine without memory. `kill` ends it nevertheless.

A server is never started in a way that writes WAL on a timeline which is not its own: a data folder that was a standby
is started only as a standby, and one whose overwrite has begun (rejoin_folder.py) not at all.
"""

import contextlib
import os
import shlex
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from safekeeper.base.errors import ConfigurationError
from walproxy.agent import agent_settings, processes
from walproxy.agent.control_data import ControlData, parse_control_data
from walproxy.agent.errors import RejoinFailed
from walproxy.agent.owner_commands import Owner, essence, owner_of, run_as_owner
from walproxy.agent.rejoin_folder import RejoinFolder
from walproxy.agent.replayed_timeline import replayed_tli
from walproxy.agent.server_look import ServerLook, ServerState
from walproxy.failover.server import POSITION_COLUMNS, positions_of
from walproxy.postgres.bounded_sql import BoundedConnection, bounded_connection, quoted
from walproxy.postgres.problems import PrimaryProblem, ProblemKind, ServerHangs, ServerProblem
from walproxy.postgres.replay_state import PAUSED, REPLAY_COLUMNS, pause_problem, target_problem

StopMode = Literal["fast", "immediate"]

_STOP_SIGNALS: dict[StopMode, signal.Signals] = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_STANDBY_SIGNAL, _RECOVERY_SIGNAL = "standby.signal", "recovery.signal"
READ_ONLY = "default_transaction_read_only"
_STOPPING = "stopping"  # in postmaster.pid
_PROGRAM_TIMEOUT_S = 10.0
_POLL_S = 0.05
_LOG_LINES = 3
_LOG_BYTES = 4096

_LOOK = f"""
SELECT {POSITION_COLUMNS}, current_setting('data_directory'), current_setting('{READ_ONLY}'),
  (SELECT status FROM pg_stat_get_wal_receiver()), {REPLAY_COLUMNS}, current_setting('server_version_num'),
  pg_size_bytes(current_setting('wal_segment_size'))
"""


class ManagedServer:
    """The server of one data folder on this machine.

    Attributes:
        data_directory: its absolute path.

    Args:
        data_directory: exists, or is being replaced by a rejoin.
        bin_directory: with `postgres`, `pg_ctl`, `pg_controldata`, and for a rejoin `pg_rewind` and `pg_basebackup`.
        conninfo: of a superuser, over a socket or an address of this machine.
        log_path: for the server's output until its own logging begins; its folder must be writable for its user.
        config_file: postgresql.conf, if it is not in the data folder.
    """

    def __init__(
        self,
        data_directory: Path,
        bin_directory: Path,
        conninfo: str,
        *,
        log_path: Path,
        config_file: Path | None = None,
    ) -> None:
        self.data_directory = data_directory.absolute()
        self.config_file = config_file
        self._bin_directory = bin_directory
        self._conninfo = conninfo
        self._log_path = log_path
        self._rejoin_folder = RejoinFolder(self.data_directory)
        self._watched: tuple[int, BoundedConnection] | None = None  # The session of the looks, and its postmaster.

    # Looking.

    def look(self, timeout_s: float = 3.0) -> ServerLook:
        """Return the state of the server. What cannot be read is unknown in the result; nothing is raised.

        The session of the last look is used, if it is still there: a login can block, or be refused for want of
        connections, in a server that commits. One thread looks at a time.

        Args:
            timeout_s: a server that has not replied by then HANGS.
        """
        look = self._look(timeout_s)
        if look.state not in (ServerState.PRIMARY, ServerState.STANDBY):
            self.end_session()
        return look

    def end_session(self) -> None:
        """Close the session of the looks: a smart shutdown waits for it."""
        watched, self._watched = self._watched, None
        if watched is not None:
            watched[1].close()

    def _look(self, timeout_s: float) -> ServerLook:
        begun, problem = self._rejoin_begun()
        if not (self.data_directory / "global").is_dir():
            return ServerLook(ServerState.MISSING, rejoin_begun=begun, problem=problem)
        try:
            pid = processes.postmaster_of(self.data_directory)
            status = self._status() if pid is not None else ""
        except OSError as error:
            return ServerLook(
                ServerState.REFUSES, rejoin_begun=begun, problem=f"cannot read the server's state: {error}"
            )
        if pid is None:
            remaining = processes.processes_of(self.data_directory)
            if not remaining:
                return self._without_sql(ServerState.STOPPED, None, begun, problem)
            # A single-user server, or children that have not noticed the end of their postmaster yet.
            return self._without_sql(ServerState.STOPPING, None, begun, "processes of the server remain")
        if self._watched is not None and (self._watched[0] != pid or status == _STOPPING):
            self.end_session()
        try:
            return self._look_by_sql(pid, begun, timeout_s)
        except ServerHangs as error:
            return replace(self._without_sql(ServerState.HANGS, pid, begun, str(error)), hangs_s=timeout_s)
        except PrimaryProblem as error:
            state = ServerState.REFUSES
            if _STOPPING in (status, self._status()):
                state = ServerState.STOPPING
            elif error.kind is ProblemKind.STARTING or status in ("", "starting"):
                state = ServerState.STARTING
            return self._without_sql(state, pid, begun, error.message)
        except ConfigurationError as error:
            return self._without_sql(ServerState.REFUSES, pid, begun, str(error))

    def _look_by_sql(self, pid: int, begun: bool, timeout_s: float) -> ServerLook:
        """Look by the session of the last look, or by a new one if the server has ended that."""
        began_at = time.monotonic()
        if self._watched is not None:
            session = self._watched[1]
            session.limit(timeout_s)
            try:
                return self._from_sql(pid, session, begun)
            except PrimaryProblem:
                self.end_session()
        remaining_s = timeout_s - (time.monotonic() - began_at)
        session = BoundedConnection.open(self._conninfo, whose="the local server", timeout_s=remaining_s, writes=True)
        self._watched = pid, session
        return self._from_sql(pid, session, begun)

    def control_data(self) -> ControlData:
        """Return the content of pg_control.

        Raises:
            ServerProblem: it cannot be read.
        """
        words = [str(self.program("pg_controldata")), "-D", str(self.data_directory)]
        answer = run_as_owner(self.owner(), words, timeout_s=_PROGRAM_TIMEOUT_S)
        if answer.returncode != 0:
            raise ServerProblem(f"pg_controldata cannot read {self.data_directory}: {essence(answer.stdout)}")
        return parse_control_data(answer.stdout)

    def owner(self) -> Owner:
        """Return the user that runs the server.

        Raises:
            ConfigurationError: as `owner_of`; or no data folder exists.
        """
        for folder in (self.data_directory, self._rejoin_folder.new, self._rejoin_folder.old):
            if folder.is_dir():
                return owner_of(folder)
        raise ConfigurationError(f"the data folder {self.data_directory} does not exist")

    def prepare(self) -> None:
        """Check that the server can be managed, and create its log: its user need not be allowed to in that folder.

        Raises:
            ConfigurationError: the data folder or a program cannot be used.
        """
        if not self._log_path.exists():
            self.touch_as_owner(self._log_path)
        self.owner()
        for name in ("postgres", "pg_ctl", "pg_controldata"):
            self.program(name)

    def program(self, name: str) -> Path:
        """Return the path of a program of this server's version.

        Raises:
            ConfigurationError: it is missing.
        """
        path = self._bin_directory / name
        if not path.exists():
            raise ConfigurationError(f"{path} is missing: install PostgreSQL's server and client programs")
        return path

    # Starting and stopping.

    def start(self, *, as_standby: bool, timeout_s: float = 60.0) -> None:
        """Start the server, and wait until it has begun to serve (a standby: or to recover). A running one is fine.

        Raises:
            ServerProblem: it must not be started so, it ended, or it is not ready in time (and continues to start).
        """
        if self._rejoin_begun()[0]:
            raise ServerProblem(
                f"an overwrite of {self.data_directory} has begun and is not complete: repeat the rejoin"
            )
        if processes.postmaster_of(self.data_directory) is not None:
            return
        if processes.processes_of(self.data_directory):
            raise ServerProblem(f"processes of {self.data_directory} remain without a postmaster: kill them first")
        processes.remove_stale_pid_file(self.data_directory)
        signalled = any((self.data_directory / name).exists() for name in (_STANDBY_SIGNAL, _RECOVERY_SIGNAL))
        if as_standby and not (self.data_directory / _STANDBY_SIGNAL).exists():
            raise ServerProblem(f"{self.data_directory} has no standby.signal: it would start as a primary")
        if not as_standby and (signalled or self.control_data().was_standby):
            raise ServerProblem(
                f"{self.data_directory} is a standby's: started as a primary, it would write WAL on the timeline of "
                "its primary; start it as a standby and promote it"
            )
        words = [str(self.program("pg_ctl")), "start", "-D", str(self.data_directory), "-l", str(self._log_path)]
        words += ["-w", "-t", str(max(1, round(timeout_s))), "-s"]
        if self.config_file is not None:
            words += ["-o", f"-c {shlex.quote(f'config_file={self.config_file}')}"]
        answer = run_as_owner(self.owner(), words, timeout_s=timeout_s + _PROGRAM_TIMEOUT_S, ends_with_us=False)
        if answer.returncode != 0:
            raise ServerProblem(
                f"PostgreSQL did not start ({self.data_directory}): {essence(answer.stdout)}; its log ends with: "
                f"{self._log_tail()}"
            )

    def stop(self, mode: StopMode = "fast", timeout_s: float = 60.0) -> None:
        """Stop the server, as `pg_ctl stop` does. A stopped one is fine.

        "fast" writes a checkpoint, and waits until all connected walsenders have sent it; "immediate" is a crash.

        Raises:
            ServerProblem: it still runs after `timeout_s`: kill it.
        """
        processes.send_signal(self.data_directory, _STOP_SIGNALS[mode])
        if not processes.wait_until_gone(self.data_directory, timeout_s):
            raise ServerProblem(f"PostgreSQL has not stopped ({mode}) within {timeout_s:g} s")

    def kill(self, timeout_s: float = 10.0) -> int:
        """End every process of the server with SIGKILL, stopped ones too; return their number. It is a crash.

        Raises:
            ServerProblem: one still exists after `timeout_s`.
        """
        if not self.data_directory.is_dir():
            return 0
        return processes.kill_all(self.data_directory, timeout_s)

    def reload(self) -> None:
        """Let a running server read its settings again."""
        processes.send_signal(self.data_directory, signal.SIGHUP)

    # Roles.

    def make_standby(
        self,
        primary_conninfo: str,
        restore_command: str = "",
        *,
        primary_slot_name: str = "",
        settings: Mapping[str, str] | None = None,
    ) -> bool:
        """Make the stopped server a standby, or change the sources of a running one; return whether anything changed.

        Args:
            primary_conninfo: of the safekeepers, or of the primary.
            restore_command: "" for none.
            primary_slot_name: "" for none.
            settings: further settings of the server.

        Raises:
            ServerProblem: it runs as a primary.
        """
        running = processes.postmaster_of(self.data_directory) is not None
        signal_file = self.data_directory / _STANDBY_SIGNAL
        if running and not signal_file.exists():
            raise ServerProblem("PostgreSQL runs as a primary: stop it before it is made a standby")
        wanted = self.standby_settings(primary_conninfo, restore_command, primary_slot_name)
        changed = agent_settings.write(self.data_directory, {**wanted, **(settings or {})})
        if not signal_file.exists():
            self.touch_as_owner(signal_file)
            changed = True
        if running and changed:
            processes.send_signal(self.data_directory, signal.SIGHUP)
        return changed

    def make_read_only(self, timeout_s: float = 10.0) -> int:
        """Make new transactions read-only and end all client sessions; return the number of ended sessions.

        A session that is opened later is read-only by default, and its client can change that: this ends the service of
        well-behaved clients, and is not a fence.

        Args:
            timeout_s: for all of it.

        Raises:
            ServerProblem: not all of that was possible in time: stop or kill the server.
        """
        deadline = time.monotonic() + timeout_s
        self._set_read_only(True, deadline)
        # Sessions that began since then have the new default, but look like the others: all that exist now are ended.
        ours = (
            "backend_type = 'client backend' AND pid <> pg_backend_pid() "
            "AND NOT starts_with(application_name, 'walproxy')"
        )
        doing = "end the clients' sessions"
        ended: set[str | None] = set()
        with self._connection(deadline) as connection:
            rows = connection.rows(f"SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}", doing)
            ended = {pid for pid, _ in rows}
            while ended:
                listed = ", ".join(str(pid) for pid in ended)
                still = connection.rows(f"SELECT pid FROM pg_stat_activity WHERE pid IN ({listed}) AND {ours}", doing)
                if not still:
                    break
                if time.monotonic() > deadline:
                    raise ServerProblem(f"{len(still)} sessions have not ended within {timeout_s:g} s")
                time.sleep(_POLL_S)
        return len(ended)

    def make_writable(self, timeout_s: float = 10.0) -> None:
        """Undo `make_read_only`; sessions that exist follow from their next transaction on.

        Raises:
            ServerProblem: it does not reply in time, or is still read-only, because the user's settings request that.
        """
        self._set_read_only(False, time.monotonic() + timeout_s)

    def make_slot(self, name: str, timeout_s: float = 5.0) -> None:
        """Create a physical replication slot that retains WAL from now on. One that exists is fine.

        Raises:
            ServerProblem: the server refuses it, or does not reply in time.
        """
        with self._connection(time.monotonic() + timeout_s) as connection:
            missing = f"NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = {quoted(name)})"
            sql = f"SELECT pg_create_physical_replication_slot({quoted(name)}, true) WHERE {missing}"
            connection.rows(sql, f"create the slot {name}")

    def drop_slot(self, name: str, timeout_s: float = 5.0) -> None:
        """Drop a replication slot that no connection uses. One that does not exist is fine. Raises as `make_slot`."""
        with self._connection(time.monotonic() + timeout_s) as connection:
            sql = (
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active AND slot_name = "
            )
            connection.rows(sql + quoted(name), f"drop the slot {name}")

    @staticmethod
    def standby_settings(primary_conninfo: str, restore_command: str, primary_slot_name: str = "") -> dict[str, str]:
        """Return the settings that `make_standby` writes."""
        return {
            "primary_conninfo": primary_conninfo,
            "restore_command": restore_command,
            "primary_slot_name": primary_slot_name,
            "recovery_target_timeline": "latest",
        }

    def touch_as_owner(self, path: Path) -> None:
        """Create an empty file, durably, that belongs to the server's user."""
        owner = self.owner()
        path.touch(mode=0o600)
        if os.geteuid() == 0:
            os.chown(path, owner.uid, owner.gid)
        agent_settings.sync_folder(path.parent)

    # The parts.

    def _rejoin_begun(self) -> tuple[bool, str]:
        try:
            return self._rejoin_folder.read() is not None, ""
        except (RejoinFailed, OSError) as error:
            return True, str(error)

    def _status(self) -> str:
        file = processes.read_pid_file(self.data_directory)
        return file.status if file is not None else ""

    def _from_sql(self, pid: int, connection: BoundedConnection, begun: bool) -> ServerLook:
        row = connection.rows(_LOOK, "read the server's state")[0]
        at, (folder, read_only, receiver, paused, targets, version, segment_size) = positions_of(row)
        if not Path(folder or "").exists() or not Path(folder or "").samefile(self.data_directory):
            problem = f"the connection string reaches the server of {folder}, not of {self.data_directory}"
            return self._without_sql(ServerState.REFUSES, pid, begun, problem)
        tli = at.tli
        if at.in_recovery and receiver is None:
            tli = max(tli, replayed_tli(self.data_directory / "pg_wal", at.replayed_lsn, int(segment_size or 0)))
        problem = target_problem(targets)
        if paused == "t" and not problem:
            problem = pause_problem(connection.rows(PAUSED, "read pg_control")[0])
        return ServerLook(
            state=ServerState.STANDBY if at.in_recovery else ServerState.PRIMARY,
            pid=pid,
            system_id=at.system_id,
            server_version=int(version or 0),
            tli=tli,
            is_read_only=read_only == "on",
            written_lsn=at.written_lsn,
            received_lsn=at.received_lsn,
            replayed_lsn=at.replayed_lsn,
            is_streaming=receiver == "streaming",
            rejoin_begun=begun,
            problem=f"the standby {problem}" if problem else "",
        )

    def _without_sql(self, state: ServerState, pid: int | None, begun: bool, problem: str) -> ServerLook:
        try:
            control = self.control_data()
        except (ServerProblem, ConfigurationError, OSError) as error:
            return ServerLook(state, pid, rejoin_begun=begun, problem=problem or str(error))
        return ServerLook(
            state,
            pid,
            system_id=control.system_id,
            tli=control.last_tli,
            written_lsn=max(control.checkpoint_lsn, control.min_recovery_lsn),
            control=control,
            has_standby_signal=(self.data_directory / _STANDBY_SIGNAL).exists(),
            rejoin_begun=begun,
            problem=problem,
        )

    @contextlib.contextmanager
    def _connection(self, deadline: float) -> Iterator[BoundedConnection]:
        timeout_s = max(0.0, deadline - time.monotonic())
        try:
            with bounded_connection(
                self._conninfo, whose="the local server", timeout_s=timeout_s, writes=True
            ) as connection:
                yield connection
        except PrimaryProblem as error:
            raise ServerProblem(error.message) from None

    def _set_read_only(self, on: bool, deadline: float) -> None:
        """Write the setting, reload, and wait until new sessions have it."""
        settings = agent_settings.read(self.data_directory)
        settings.pop(READ_ONLY, None)
        agent_settings.write(self.data_directory, {**settings, READ_ONLY: "on"} if on else settings)
        if not processes.send_signal(self.data_directory, signal.SIGHUP):
            raise ServerProblem("PostgreSQL does not run")
        while True:
            # Each time a new session: it has what the postmaster has read.
            with self._connection(deadline) as connection:
                found = connection.value(f"SHOW {READ_ONLY}", "read the setting")
            if (found == "on") == on:
                return
            if time.monotonic() > deadline:
                raise ServerProblem(
                    f"{READ_ONLY} is still {found} in new sessions: another setting overrides the agent's"
                )
            time.sleep(_POLL_S)

    def _log_tail(self) -> str:
        try:
            with self._log_path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError as error:
            return f"({error})"
        return " / ".join(lines[-_LOG_LINES:])
