"""Servers under the agent's hands: each is a ManagedServer of its own folder, port and log, ended after the test."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from walproxy.agent.managed_server import ManagedServer
from walproxy.agent.rejoin import RejoinRun
from walproxy.postgres.binaries import ServerBinaries, reachable_binaries, server_user
from walproxy.postgres.local_server import free_port

SETTINGS = {
    "shared_buffers": "16MB",
    "max_connections": "20",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "wal_log_hints": "on",
    "dynamic_shared_memory_type": "mmap",
}


class AgentsServer:
    """A server that is only reached through `managed`, and over SQL."""

    def __init__(self, binaries: ServerBinaries, folder: Path, name: str) -> None:
        self.user = server_user()
        self.binaries = reachable_binaries(binaries, self.user)
        self.data_directory = folder / name / "data"
        self.data_directory.parent.mkdir(mode=0o755)
        self.give(self.data_directory.parent)
        self.port = free_port()
        self.conninfo = f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"
        self.managed = ManagedServer(
            self.data_directory,
            self.binaries.bin_directory,
            self.conninfo,
            log_path=self.data_directory.parent / "log",
        )

    def give(self, path: Path) -> None:
        if self.user is not None:
            subprocess.run(["chown", "-R", f"{self.user.uid}:{self.user.gid}", path], check=True)

    def fill(self, template: Path) -> "AgentsServer":
        """Make the data folder a copy of `template`, with a configuration of its own."""
        subprocess.run(["cp", "-a", template, self.data_directory], check=True)
        lines = {**SETTINGS, "port": str(self.port)}
        (self.data_directory / "local.conf").write_text("".join(f"{k} = '{v}'\n" for k, v in lines.items()))
        self.give(self.data_directory)
        return self

    def start(self) -> "AgentsServer":
        self.managed.start(as_standby=False)
        return self

    def start_standby_of(self, primary: "AgentsServer") -> "AgentsServer":
        """Make the data folder with pg_basebackup, and start it as a standby."""
        programs = self.binaries.bin_directory
        words = [str(programs / "pg_basebackup"), "-D", str(self.data_directory), "-d", primary.conninfo]
        subprocess.run([*words, "-c", "fast", "-N"], check=True, env={"LC_ALL": "C"})
        (self.data_directory / "local.conf").write_text(
            "".join(f"{k} = '{v}'\n" for k, v in {**SETTINGS, "port": str(self.port)}.items())
        )
        self.give(self.data_directory)
        self.managed.make_standby(primary.conninfo)
        self.managed.start(as_standby=True)
        return self

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.conninfo, autocommit=True, connect_timeout=10) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def promote(self) -> None:
        assert self.execute("SELECT pg_promote()") == [(True,)]

    def rejoin(self, source: "AgentsServer", **options: Any) -> RejoinRun:
        return RejoinRun(self.managed, source.conninfo, primary_conninfo=source.conninfo, **options)


@contextmanager
def agents_servers(binaries: ServerBinaries, folder: Path) -> Iterator[Any]:
    """Yield a function that makes a server by name."""
    made: list[AgentsServer] = []

    def make(name: str) -> AgentsServer:
        made.append(AgentsServer(binaries, folder, name))
        return made[-1]

    try:
        yield make
    finally:
        for server in made:
            server.managed.kill()
