"""A cluster for tests out of plain processes of this machine: walproxy/lab/cluster/local_cluster.py with faults
underneath.

Each safekeeper runs on a disk of walproxy/lab/testing/faulty_disk.py, and the proxies reach it through a link of one
relay (walproxy/lab/testing/relay.py). Everything is started by one thread of this engine's own: on Linux the kernel
ends a process when the *thread* that started it dies, and the thread of a caller may be one of a pool.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from walproxy.lab.cluster.local_cluster import SAFEKEEPER, LocalCluster, LocalProcess
from walproxy.lab.testing.engine import Blueprint, major_of, takes_connections
from walproxy.lab.testing.faulty_disk import DiskFaults, write_faults
from walproxy.lab.testing.relay import Direction
from walproxy.lab.testing.relay_control import RelayProcess
from walproxy.postgres.binaries import choose_server
from walproxy.postgres.local_server import LocalPostgres
from walproxy.postgres.process_table import descendants

PROXY = ("-m", "walproxy", "run")
FAULTY_DISK = ("-m", "walproxy.lab.testing.faulty_disk")

_Result = TypeVar("_Result")


class ProcessesEngine:
    """See `Engine`.

    Args:
        blueprint: what it is to be.
        directory: a folder that PostgreSQL's user may enter, without a cluster in it.
    """

    name = "processes"

    def __init__(self, blueprint: Blueprint, directory: Path) -> None:
        self._blueprint = blueprint
        self._directory = directory
        self.archive_url = str(directory / "archive") if blueprint.archive else None
        server = choose_server(major_of(blueprint.postgres))
        self._primary = LocalPostgres(server, directory / "pg", settings=blueprint.settings)
        with ExitStack() as stack:
            self._starter = stack.enter_context(ThreadPoolExecutor(1, "walproxy.lab.testing"))
            self._relay = stack.enter_context(self._by_starter(RelayProcess))
            self._cluster = stack.enter_context(self._make_cluster())
            self._closing = stack.pop_all()
        self._daemons = self._cluster.daemons

    def _make_cluster(self) -> LocalCluster:
        blueprint = self._blueprint
        links = iter(blueprint.safekeeper_names)
        cluster = LocalCluster(
            self._directory,
            self._primary,
            blueprint.safekeepers,
            safekeeper_options=("--archive", self.archive_url) if self.archive_url else (),
            # Asked for in the order of the safekeepers' ids.
            through=lambda port: self._relay.control.open(next(links), "127.0.0.1", port),
        )
        cluster.proxies += [cluster.make_proxy(name) for name in blueprint.proxy_names[1:]]
        program = (
            *(blueprint.safekeeper_program or FAULTY_DISK),
            *(("--volatile",) if blueprint.volatile_disks else ()),
        )
        for name, process in zip(blueprint.safekeeper_names, cluster.safekeepers.values(), strict=True):
            process.arguments[: len(SAFEKEEPER)] = (*program, str(self._control_file(name)), "run")
        for process in cluster.proxies:
            process.arguments[: len(PROXY)] = blueprint.proxy_program or PROXY
        return cluster

    def start_all(self) -> None:
        def start() -> None:
            self._primary.init()
            self._cluster.start()
            for proxy in self._cluster.proxies[1:]:
                self._cluster.start_proxy(proxy)
            for name in self._blueprint.standby_names:
                self._cluster.add_standby(name)

        if self.archive_url:
            Path(self.archive_url).mkdir()
        self._by_starter(start)

    def close(self) -> None:
        for member in ("postgres", *self._cluster.standbys):
            self.resume(member)
        self._closing.close()

    def conninfo(self, member: str = "postgres") -> str:
        return self._cluster.standbys.get(member, self._primary).conninfo()

    def primary_answers(self) -> bool:
        return takes_connections(self.conninfo())

    def pause(self, member: str) -> None:
        server = self._server(member)
        if server is None:
            self._daemons[member].pause()
        elif server.pid is not None:
            # The postmaster first: it starts no further process then.
            os.kill(server.pid, signal.SIGSTOP)
            _signal(descendants(server.pid), signal.SIGSTOP)

    def resume(self, member: str) -> None:
        server = self._server(member)
        if server is not None:
            if server.pid is not None:
                _signal([*descendants(server.pid), server.pid], signal.SIGCONT)
        elif self._daemons[member].pid is not None:
            self._daemons[member].resume()

    def kill(self, member: str) -> None:
        self._process(member).kill9()

    def stop(self, member: str) -> None:
        self._process(member).stop()

    def start(self, member: str) -> None:
        if not self.runs(member):
            self._by_starter(self._process(member).start)

    def runs(self, member: str) -> bool:
        return self._process(member).pid is not None

    def hold(self, safekeeper: str, direction: Direction) -> None:
        self._relay.control.hold(safekeeper, direction)

    def set_disk(self, safekeeper: str, faults: DiskFaults) -> None:
        write_faults(self._control_file(safekeeper), faults)

    def status_of(self, member: str) -> dict[str, Any] | None:
        return self._daemons[member].status() if member in self._daemons else None

    def http_port(self, member: str) -> int | None:
        return self._daemons[member].http_port if member in self._daemons else None

    def log(self, member: str, lines: int) -> str:
        path = self._process(member).log_path
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""

    def process_ids(self) -> dict[str, int]:
        return self._cluster.process_ids()

    def data_folder(self, member: str) -> Path:
        """See `Engine`: the folder itself."""
        server = self._server(member)
        if server is not None:
            return server.data_directory
        return self._cluster.safekeeper_directory(int(member.removeprefix("safekeeper")))

    def _server(self, member: str) -> LocalPostgres | None:
        """Return the PostgreSQL of this name, None if it is a daemon's."""
        return self._primary if member == "postgres" else self._cluster.standbys.get(member)

    def _process(self, member: str) -> LocalPostgres | LocalProcess:
        return self._server(member) or self._daemons[member]

    def _control_file(self, safekeeper: str) -> Path:
        return self._directory / f"{safekeeper}.disk.json"

    def _by_starter(self, call: Callable[[], _Result]) -> _Result:
        return self._starter.submit(call).result()


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
