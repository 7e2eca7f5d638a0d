"""A PostgreSQL that recovers in a private folder, accepts no connection, and ends: its files are the result of redo.

Exactness is the point, so nothing else may touch a page. The recovery ends by promotion, because only then does a stop
write everything to the files: a server that stops while it recovers leaves in memory what came after its last
checkpoint. But no connection is possible at any time (there is no hot standby, no TCP port, and pg_hba.conf rejects
every client at the socket), autovacuum is off, even that against wraparound, and no library of the old server is
loaded. A promotion by itself writes to no relation.

Further questions, such as for the file of a relation, are asked afterwards in PostgreSQL's single-user mode, whose
process is killed: reading a catalog may set hints in its pages, which so never reach the disk.

The configuration of the backup does not count. What must be as large as on the primary is taken from pg_control.
"""

import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from safekeeper.base.errors import ConfigurationError
from walproxy.postgres.binaries import ServerBinaries
from walproxy.postgres.local_server import LocalPostgres, LocalPostgresFailed

_START_TIMEOUT_S: Final = 600.0
_FLUSH_TIMEOUT_S: Final = 3600.0
_ANSWER_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.02
_SETTINGS: Final = {
    "hot_standby": "off",
    "autovacuum": "off",
    "autovacuum_freeze_max_age": "2000000000",
    "autovacuum_multixact_freeze_max_age": "2000000000",
    "max_logical_replication_workers": "0",
    "max_wal_senders": "0",
    # Of replication origins too: each that is in the log needs a place.
    "max_replication_slots": "1000",
    "shared_buffers": "128MB",
    # The folder lives for this one page: a crash of the machine may have it.
    "fsync": "off",
    "full_page_writes": "off",
    "lc_messages": "C",
    "log_line_prefix": "",
}
_PREPARED: Final = re.compile(r"^max_prepared_xacts setting:\s+(\d+)$", re.MULTILINE)
_FATAL: Final = re.compile(r"(?:FATAL|PANIC):  (.*)$", re.MULTILINE)
_ERROR: Final = re.compile(r"ERROR:  (.*)$", re.MULTILINE)
_VALUE: Final = re.compile(r'^\s*\d+: (\w+)(?: = "(.*)")?\t\(typeid', re.MULTILINE)
_END: Final = "walproxy_end"


class RecoveryFailed(ConfigurationError):
    """PostgreSQL could not recover up to where it should."""


class PrivatePostgres(LocalPostgres):
    """The server of a folder that `write_data_folder` has made, to be recovered once."""

    def __init__(self, binaries: ServerBinaries, data_directory: Path) -> None:
        super().__init__(binaries, data_directory, reads_all=True)

    def prepare(self, recovery: Mapping[str, str]) -> None:
        """Write the whole configuration; `recovery` has the source of WAL, and the target.

        Raises:
            ConfigurationError: this version's pg_controldata cannot read the folder.
        """
        settings = {**_SETTINGS, "max_prepared_transactions": str(self._prepared_transactions() + 100)}
        if self.binaries.major >= 18:
            settings["max_active_replication_origins"] = "1000"
        self._write("postgresql.conf", settings)
        self._write("postgresql.auto.conf", recovery)
        for name, line in (("pg_hba.conf", "local all all reject\n"), ("pg_ident.conf", "")):
            (self.data_directory / name).write_text(line)
            self._give(self.data_directory / name)

    def recover(self, progress: Callable[[], None] = lambda: None) -> None:
        """Recover, and leave everything in the files of the stopped server.

        Args:
            progress: called now and then while it takes.

        Raises:
            RecoveryFailed: it did not get there; the message is PostgreSQL's.
        """
        try:
            self.start(_START_TIMEOUT_S)
            while self._state() != "ready":
                if not self.is_running:
                    raise LocalPostgresFailed("it ended")
                progress()
                time.sleep(_POLL_S)
            self.stop("fast", _FLUSH_TIMEOUT_S)
        except LocalPostgresFailed as error:
            reasons = _FATAL.findall(self.log_path.read_text(errors="replace")) if self.log_path.exists() else []
            raise RecoveryFailed(f"PostgreSQL did not recover: {reasons[-1] if reasons else error}") from error

    def ask_once(
        self, database: str, query: str, settings: Mapping[str, str] | None = None
    ) -> dict[str, str | None] | None:
        """Return the first row of a query to the stopped server, None if it has no rows. Changes nothing on disk.

        Args:
            settings: of this one process.

        Raises:
            ConfigurationError: there is no such database.
            LocalPostgresFailed: it did not answer, or the query failed.
        """
        words = ["--single", "-j", "-D", str(self.data_directory), "-c", "log_min_messages=error"]
        for name, value in (settings or {}).items():
            words += ["-c", f"{name}={value}"]
        process = subprocess.Popen(
            [self.binaries.path("postgres"), *words, database],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd="/",
            env={"LC_ALL": "C", "HOME": "/", "PATH": os.defpath},
            **self._as_user(),
        )
        watchdog = threading.Timer(_ANSWER_TIMEOUT_S, process.kill)
        watchdog.start()
        try:
            answer = self._answer_of(process, f"{query};\n\nSELECT 1 AS {_END};\n\n")
        finally:
            watchdog.cancel()
            process.kill()
            _, complaints = process.communicate()
        if _END not in answer:
            complaint = next(iter(_FATAL.findall(complaints)), "no reason given")
            if f'database "{database}" does not exist' in complaint:
                raise ConfigurationError(f"there was no database {database!r} at that LSN: correct --relation")
            raise LocalPostgresFailed(f"PostgreSQL does not answer in single-user mode: {complaint}")
        if failed := _ERROR.search(complaints):
            raise LocalPostgresFailed(f"PostgreSQL cannot answer in single-user mode: {failed[1]}")
        row = {name: value for name, value in _VALUE.findall(answer.partition(_END)[0]) if value}
        return row or None

    def _answer_of(self, process: "subprocess.Popen[str]", queries: str) -> str:
        """Return what the process prints, up to the answer to the last query."""
        assert process.stdin is not None and process.stdout is not None  # pipes, as it was started
        try:
            process.stdin.write(queries)
            process.stdin.flush()
        except BrokenPipeError:
            return ""
        answer = ""
        while f"{_END} = " not in answer and (line := process.stdout.readline()):
            answer += line
        return answer

    def _options(self) -> dict[str, str]:
        # PostgreSQL requires a listener. This one is in the data folder, whose own name may be too long for it.
        listener = {"listen_addresses": "", "unix_socket_directories": ".", "unix_socket_permissions": "0700"}
        return {**super()._options(), **listener}

    def _answers(self) -> bool:
        return True  # No connection is accepted, not even one that checks whether the server runs.

    def _state(self) -> str:
        """Return the postmaster's status: `standby` while it recovers, `ready` once it is promoted."""
        try:
            lines = (self.data_directory / "postmaster.pid").read_text().split("\n")
        except FileNotFoundError:
            return ""
        return lines[7].strip() if len(lines) > 7 else ""

    def _prepared_transactions(self) -> int:
        command = [str(self.binaries.path("pg_controldata")), "-D", str(self.data_directory)]
        answer = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, env={"LC_ALL": "C"}
        )
        match = _PREPARED.search(answer.stdout)
        if match is None:
            raise ConfigurationError(
                f"pg_controldata cannot read {self.data_directory}: {' '.join((answer.stderr or 'no answer').split())}"
            )
        return int(match[1])

    def _write(self, name: str, settings: Mapping[str, str]) -> None:
        path = self.data_directory / name
        path.write_text(
            "".join(f"{name} = '{value.replace(chr(39), 2 * chr(39))}'\n" for name, value in settings.items())
        )
        path.chmod(0o600)
        self._give(path)


def sql_text(text: str) -> str:
    """Return a text for SQL in whatever encoding: single-user mode takes bytes as they come."""
    return f"pg_catalog.convert_from('\\x{text.encode().hex()}', 'UTF8')"
