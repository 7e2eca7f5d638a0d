"""The arms of the benchmark: PostgreSQL servers whose commits become durable in different ways."""

import contextlib
import functools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from safekeeper.base.errors import WalproxyError
from walproxy.lab.bench.delay_relay import DelayRelays
from walproxy.lab.cluster.local_cluster import LocalCluster
from walproxy.postgres.local_server import LocalPostgres, ServerBinaries, end_with_parent

# The same for all arms: no checkpoint falls into one arm's turn only.
_SETTINGS = {
    "checkpoint_timeout": "1h",
    "max_wal_size": "16GB",
    "shared_buffers": "256MB",
    "max_connections": "100",
    "autovacuum": "off",
}
_RECEIVERS = 3
_READY_TIMEOUT_S = 30.0


class Arm:
    """One way to commit.

    Attributes:
        name: of the arm.
        postgres: the server that pgbench talks to.
        process_ids: returns the pids by name of those whose CPU time and memory are the price of the arm.
    """

    def __init__(self, name: str, postgres: LocalPostgres, process_ids: Callable[[], dict[str, int]]) -> None:
        self.name = name
        self.postgres = postgres
        self.process_ids = process_ids


def make_server(directory: Path, binaries: ServerBinaries) -> LocalPostgres:
    """Return a new cluster in a new folder, not started, with the settings that all arms have."""
    directory.mkdir(parents=True)
    directory.chmod(0o755)
    return LocalPostgres(binaries, directory / "pg", settings=_SETTINGS).init()


@contextmanager
def local_arm(directory: Path, binaries: ServerBinaries, delay_ms: float = 0.0) -> Iterator[Arm]:
    """Yield a server without a standby; a delay has no effect."""
    with make_server(directory, binaries) as postgres:
        postgres.start()
        yield Arm("local", postgres, dict)


@contextmanager
def native_quorum_arm(directory: Path, binaries: ServerBinaries, delay_ms: float = 0.0) -> Iterator[Arm]:
    """PostgreSQL's own receivers, two of three must have flushed; each is `delay_ms` away."""
    with make_server(directory, binaries) as postgres, contextlib.ExitStack() as stack:
        postgres.start()
        names = [f"receiver{number}" for number in range(1, _RECEIVERS + 1)]
        relays = stack.enter_context(DelayRelays(delay_ms))
        receivers = [stack.enter_context(_receiver(directory, binaries, postgres, name, relays)) for name in names]
        postgres.configure({"synchronous_standby_names": f"ANY 2 ({', '.join(names)})"})
        postgres.reload()
        wait_until_synchronous(postgres, _RECEIVERS)
        pids = {name: receiver.pid for name, receiver in zip(names, receivers, strict=True)}
        yield Arm("native-quorum", postgres, lambda: pids)


@contextmanager
def _receiver(
    directory: Path, binaries: ServerBinaries, postgres: LocalPostgres, name: str, relays: DelayRelays
) -> Iterator["subprocess.Popen[bytes]"]:
    folder = directory / name
    folder.mkdir()
    postgres.execute("SELECT pg_create_physical_replication_slot(%s, true)", name)
    conninfo = postgres.conninfo(dbname="replication", application_name=name, port=str(relays.through(postgres.port)))
    with (directory / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *end_with_parent("KILL"),
                str(binaries.path("pg_receivewal")),
                *("--directory", str(folder), "--slot", name, "--synchronous", "--no-loop"),
                *("--dbname", conninfo),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "LC_ALL": "C"},
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


@contextmanager
def walproxy_arm(directory: Path, binaries: ServerBinaries, delay_ms: float = 0.0, count: int = 3) -> Iterator[Arm]:
    """Safekeepers behind a proxy, each `delay_ms` away from it."""
    postgres = make_server(directory, binaries)
    with DelayRelays(delay_ms) as relays, LocalCluster(directory, postgres, count, through=relays.through) as cluster:
        cluster.start()
        processes = [cluster.proxy, *cluster.safekeepers.values()]
        yield Arm(
            "walproxy" if count == 3 else f"walproxy-{count}",
            postgres,
            lambda: {p.name: p.pid for p in processes if p.pid is not None},
        )


MakeArm = Callable[[Path, ServerBinaries, float], AbstractContextManager[Arm]]

ARMS: dict[str, MakeArm] = {"local": local_arm, "native-quorum": native_quorum_arm, "walproxy": walproxy_arm}
SIZES: dict[str, MakeArm] = {
    "walproxy": walproxy_arm,
    "walproxy-5": functools.partial(walproxy_arm, count=5),
    "walproxy-7": functools.partial(walproxy_arm, count=7),
}
"""Clusters of three, five and seven safekeepers."""


def wait_until_synchronous(postgres: LocalPostgres, count: int) -> None:
    """Wait until `count` receivers stream and count as synchronous.

    Raises:
        WalproxyError: they do not within 30 s.
    """
    deadline = time.monotonic() + _READY_TIMEOUT_S
    query = "SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum') AND state = 'streaming'"
    while postgres.execute(query) != [(count,)]:
        if time.monotonic() > deadline:
            raise WalproxyError(f"PostgreSQL counts fewer than {count} synchronous receivers after 30 s")
        time.sleep(0.05)
