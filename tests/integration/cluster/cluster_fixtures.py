"""Whole clusters for the integration tests: a gated PostgreSQL, safekeepers and proxies, and a load that keeps books.

Whatever a test does to a cluster, it ends with `Gated.verify`: every row whose commit was acknowledged is there, and
each safekeeper holds exactly the primary's bytes up to commit_lsn. `Load` does the bookkeeping and calls it.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg

from safekeeper.base.lsn import Lsn, parse_lsn
from tests.forking.daemons import ForkedLocalProcess
from tests.scratch import on_disk
from tests.waiting import entry
from tests.waiting import wait_for as wait_for
from walproxy.lab import process_resources
from walproxy.lab.cluster.local_cluster import LocalCluster, LocalProcess
from walproxy.lab.load.clients import Clients
from walproxy.lab.load.transactions import SingleStatement
from walproxy.lab.testing.faulty_disk import DiskFaults, write_faults
from walproxy.lab.wal_compare import WalDiffers, compare_wal, list_segments
from walproxy.postgres.local_server import LocalPostgres

MIB = 1 << 20
CLUSTER_SETTINGS = {
    "max_connections": "40",
    "shared_buffers": "16MB",
    "log_checkpoints": "off",
    # Its ANALYZE commits when it likes, and would be one of the commits that a test has counted.
    "autovacuum": "off",
    # What is compared must still be there at the end.
    "wal_keep_size": "4GB",
}
_SLOW_SYNC_MS = 20.0
# Commits a second of a load. As many as there can be would take the processors from what the test waits for.
RATE = 100.0


def field_of(process: LocalProcess, name: str) -> Any:
    """Return a field of a daemon's /status, None while it does not answer."""
    status = process.status() if process.pid is not None else None
    return status[name] if status is not None else None


class Gated(LocalCluster):
    """A cluster under test, with 1 MiB segments unless its PostgreSQL was made otherwise."""

    process_type = ForkedLocalProcess
    segment_size: int
    _added_proxies = 0

    def start_gated(self) -> Self:
        """Start everything; commits wait for the quorum from then on."""
        self.start()
        self.segment_size = int(self.scalar("SELECT setting FROM pg_settings WHERE name = 'wal_segment_size'"))
        self.postgres.execute("CREATE TABLE ledger (worker int, number int)")
        return self

    # What one asks it.

    def safekeeper_directory(self, safekeeper_id: int) -> Path:
        return on_disk(self.directory) / f"safekeeper-{safekeeper_id}"

    def scalar(self, sql: str, *parameters: object) -> Any:
        """Return the only value that `sql` has."""
        return self.postgres.execute(sql, *parameters)[0][0]

    def primary_flush_lsn(self) -> Lsn:
        """Return where the primary's WAL on disk ends."""
        return parse_lsn(self.scalar("SELECT pg_current_wal_flush_lsn()::text"))

    def serving(self) -> LocalProcess | None:
        """Return the proxy that streams."""
        return next((proxy for proxy in self.proxies if field_of(proxy, "state") == "streaming"), None)

    def status(self) -> dict[str, Any]:
        """Return the status of the proxy that streams, once there is one."""
        found: list[dict[str, Any]] = []

        def streams() -> bool:
            statuses = (proxy.status() for proxy in self.proxies if proxy.pid is not None)
            found[:] = [status for status in statuses if status is not None and status["state"] == "streaming"]
            return bool(found)

        wait_for(streams, "a proxy streams")
        return found[0]

    def member(self, safekeeper_id: int) -> dict[str, Any]:
        """Return the serving proxy's entry of a safekeeper."""
        return entry(self.status()["safekeepers"], "id", safekeeper_id)

    def flush_lsn_of(self, safekeeper_id: int) -> Lsn:
        """Return a safekeeper's flush_lsn by its own word, 0 if it does not answer."""
        return parse_lsn(field_of(self.safekeepers[safekeeper_id], "flush_lsn") or "0/0")

    def waiters(self) -> int:
        """Return how many `Commit`s wait for the quorum."""
        condition = "wait_event = 'SyncRep' AND application_name = 'commit'"
        return int(self.scalar(f"SELECT count(*) FROM pg_stat_activity WHERE {condition}"))

    # What one does to it.

    def add_proxy(self, *options: str) -> LocalProcess:
        """Start another proxy, named after how many there were in this cluster."""
        self._added_proxies += 1
        proxy = self.make_proxy(f"walproxy-{self._added_proxies}", *options)
        self.proxies.append(proxy)
        return self.start_proxy(proxy)

    @contextlib.contextmanager
    def on_slow_disk(self, safekeeper_id: int) -> Iterator["SlowDisk"]:
        """Restart a safekeeper on a disk that the test can slow down and hold."""
        process = self.safekeepers[safekeeper_id]
        ordinary = process.arguments
        assert ordinary[:3] == ["-m", "safekeeper", "run"]
        disk = SlowDisk(self.directory / f"disk-{safekeeper_id}.json")
        process.kill9()
        process.arguments = ["-m", "walproxy.lab.testing.faulty_disk", str(disk.control_file), *ordinary[2:]]
        process.start()
        try:
            yield disk
        finally:
            process.kill9()
            process.arguments = ordinary
            process.start()

    def heal(self) -> None:
        """End spare proxies, start what is dead, resume what is paused, and wait until commits go through."""
        for spare in self.proxies[1:]:
            spare.kill9()
        del self.proxies[1:]
        if not self.postgres.is_running:
            self.postgres.start()
        for process in [*self.safekeepers.values(), self.proxy]:
            if process.pid is not None:
                process.resume()
        wait_for(self._is_well, "a proxy streams and every safekeeper answers")

    def _is_well(self) -> bool:
        for process in [*self.safekeepers.values(), self.proxy]:
            # Also one that ends only now, as a proxy does that learns that it was deposed.
            if process.pid is None:
                process.start()
        return self.serving() is not None and all(s.status() is not None for s in self.safekeepers.values())

    # What must hold.

    def commit_lsn_of_all(self, timeout_s: float = 20.0) -> Lsn:
        """Wait until all that the primary has is committed and on every safekeeper; return where that ends."""
        target_lsn = self.primary_flush_lsn()
        wait_for(lambda: self.commit_lsn() >= target_lsn, "the quorum has all of the primary's WAL", timeout_s)
        for safekeeper_id in self.safekeepers:
            wait_for(
                lambda i=safekeeper_id: self.flush_lsn_of(i) >= target_lsn,  # type: ignore[misc]
                f"safekeeper {safekeeper_id} has all of the primary's WAL",
                timeout_s,
            )
        return target_lsn

    def wal_directory(self, safekeeper_id: int) -> Path:
        """Return the folder of a safekeeper's segments."""
        return self.safekeeper_directory(safekeeper_id) / "wal"

    def assert_bytes_are_equal(self, end_lsn: Lsn) -> None:
        """Compare all WAL of the safekeepers below `end_lsn` with the primary's; what it recycled, with another's."""
        for safekeeper_id in self.safekeepers:
            wait_for(
                lambda i=safekeeper_id: self._was_compared(i, end_lsn),  # type: ignore[misc]
                f"the WAL of safekeeper {safekeeper_id} was compared",
            )

    def _was_compared(self, safekeeper_id: int, end_lsn: Lsn) -> bool:
        """Compare a safekeeper's WAL; return whether that came to its end: old WAL may be removed meanwhile."""
        own = self.wal_directory(safekeeper_id)
        whole = [self.postgres.pg_wal, self.wal_directory(min(self.safekeepers))]
        oldest = list_segments(own, self.segment_size)[0]
        try:
            compare_wal(own, whole, self.segment_size, end_lsn)
        except (FileNotFoundError, WalDiffers):
            if oldest.path.exists():
                raise
            return False
        return True

    def verify(self) -> None:
        """Every safekeeper has the primary's bytes, all of them."""
        self.assert_bytes_are_equal(self.commit_lsn_of_all())

    def load(self, workers: int = 2, rate: float | None = RATE) -> "Load":
        """Return a load on this cluster, to be used in a `with` statement.

        Args:
            rate: commits a second of all its clients together; as many as there can be if None.
        """
        return Load(self, workers, rate)


def bulk(mib: int) -> str:
    """Return SQL that writes so much WAL in one transaction."""
    message = "pg_logical_emit_message(true, 'p', repeat('z', 1048576))"
    return f"SELECT count({message}) FROM generate_series(1, {mib})"


class SlowDisk:
    """The disk of a safekeeper that `on_slow_disk` has restarted: every sync slow, or none returning, or full."""

    def __init__(self, control_file: Path) -> None:
        self.control_file = control_file

    @contextlib.contextmanager
    def slow(self) -> Iterator[None]:
        """Each sync takes some 20 ms."""
        with self._with(DiskFaults(fsync_ms=_SLOW_SYNC_MS)):
            yield

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """No sync returns."""
        with self._with(DiskFaults(held=True)):
            yield

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """There is no room for new files."""
        with self._with(DiskFaults(full=True)):
            yield

    @contextlib.contextmanager
    def _with(self, faults: DiskFaults) -> Iterator[None]:
        write_faults(self.control_file, faults)
        try:
            yield
        finally:
            write_faults(self.control_file, DiskFaults())


class Row(SingleStatement):
    """A row of the table `ledger`."""

    def __init__(self, worker: int, number: int) -> None:
        super().__init__("INSERT INTO ledger VALUES ($1, $2)", worker, number)
        self.worker = worker
        self.number = number


class Load:
    """Clients that insert rows, one per commit, and the replies.

    Leaving the `with` block stops the clients and verifies the cluster.
    """

    _worker_ids = itertools.count(1)

    def __init__(self, cluster: Gated, workers: int, rate: float | None) -> None:
        self.cluster = cluster
        rows = [(worker, itertools.count(1)) for worker in itertools.islice(Load._worker_ids, workers)]

        def next_row(client: int) -> Row:
            worker, numbers = rows[client - 1]
            return Row(worker, next(numbers))

        self._clients = Clients(lambda: cluster.postgres.conninfo(), workers, next_row, rate=rate)
        self._history = self._clients.history

    @property
    def acknowledged(self) -> list[tuple[float, int, int]]:
        """(time.monotonic(), worker, number) of each commit that was, in the order in which the answers came."""
        return [
            (operation.ended_at, operation.transaction.worker, operation.transaction.number)
            for operation in self._history.acknowledged
        ]

    def __enter__(self) -> Self:
        return self.start()

    def start(self) -> Self:
        """Begin, outside of a `with` statement: for a cluster that will not be there to be verified."""
        self._clients.start()
        self.wait_for_commits()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._clients.stop(1.0)
            return
        self.stop()
        self.cluster.verify()
        self.verify()

    def stop(self, timeout_s: float = 20.0) -> None:
        """End the clients; a commit that still waits must come to its end first, unless `timeout_s` is under 2."""
        waiting = self._clients.stop(timeout_s, hang_up=False)
        assert not waiting or timeout_s < 2, "a commit of the load still waits"

    def verify(self) -> None:
        """Every acknowledged row is there, once."""
        lost = self.lost_in(self.cluster.postgres)
        assert not lost, f"{len(lost)} acknowledged rows are lost, e.g. {lost[:5]}"

    def lost_in(self, server: LocalPostgres) -> list[tuple[float, int, int]]:
        """Return which of the acknowledged rows a server has not, in the order in which they were acknowledged."""
        acknowledged = self.acknowledged
        workers = sorted({worker for _, worker, _ in acknowledged})
        found = server.execute("SELECT worker, number FROM ledger WHERE worker = ANY (%s)", workers)
        assert len(found) == len(set(found))
        there = set(found)
        return [entry for entry in acknowledged if entry[1:] not in there]

    def wait_for_commits(self, count: int = 1, since: float | None = None, timeout_s: float = 20.0) -> float:
        """Wait for `count` acknowledged commits that began after `since`, by default now; return how long it took."""
        begin = time.monotonic() if since is None else since
        wait_for(
            lambda: len(list(itertools.islice(self._history.begun_since(begin), count))) == count,
            lambda: f"{count} commits were acknowledged; a client's last problem: {self._history.problem or 'none'}",
            timeout_s,
        )
        return time.monotonic() - begin

    def assert_stalled(self, for_s: float = 0.5) -> None:
        """What was on its way when the quorum was lost may still be answered; then nothing is for `for_s`."""
        began_at = time.monotonic()
        wait_for(
            lambda: time.monotonic() - max(began_at, self._history.acknowledged[-1].ended_at) > for_s,
            f"nothing is acknowledged for {for_s:g} s",
            for_s + 1,
        )


class Commit:
    """One transaction in a thread of its own: whether its commit has returned can be asked."""

    def __init__(self, postgres: LocalPostgres, sql: str = "", *, synchronous_commit: str = "on") -> None:
        self.error: psycopg.Error | None = None
        self._conninfo = postgres.conninfo(
            options=f"-c synchronous_commit={synchronous_commit}", application_name="commit"
        )
        self._sql = sql or "INSERT INTO ledger VALUES (0, 0)"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with psycopg.connect(self._conninfo, autocommit=True, connect_timeout=5) as connection:
                connection.execute(self._sql.encode())
        except psycopg.Error as error:
            self.error = error

    @property
    def waits(self) -> bool:
        """Whether it has not returned."""
        return self._thread.is_alive()

    def wait(self, timeout_s: float = 20.0) -> None:
        """Wait until it has returned without an error."""
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), "the commit still waits"
        assert self.error is None, self.error


def cpu_seconds(process: LocalProcess) -> float:
    """Return the processor time that a process has used."""
    assert process.pid is not None
    return process_resources.cpu_seconds([process.pid])


def resident_bytes(process: LocalProcess) -> int:
    """Return the memory that a process holds."""
    assert process.pid is not None
    return process_resources.memory_of(process.pid).resident_bytes
