"""Measure what a new member costs committing sessions while it receives all WAL, and how quick that is.

A cluster of three whose safekeepers retain some gigabytes of WAL gets a fourth one: `walproxy members add` runs to its
end while clients commit. The newcomer pulls the WAL from the others, so the proxy should neither use more CPU for a
commit nor more memory. The same clients are measured before, alone. The rate is the proxy's --catchup-rate: the default
one, and one that never limits; for comparison, the speed of one large file's write and flush on the same disk, and of
one connection on loopback.
"""

import os
import shutil
import socket
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import msgspec

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import parse_lsn
from walproxy.lab.bench import bulk
from walproxy.lab.bench.arms import Arm, make_server
from walproxy.lab.bench.members import wait_until_caught_up
from walproxy.lab.cluster.local_cluster import LocalCluster
from walproxy.lab.load.clients import Clients
from walproxy.lab.load.transactions import SingleStatement
from walproxy.lab.process_resources import cpu_seconds, highest_peak, memory_of
from walproxy.postgres.binaries import ServerBinaries

RATES = ("64MiB", "4GiB")
_NEWCOMER = 4
_ENDS_WITHIN_S = 600.0
_PROBE_BYTES = 256 << 20
_BLOCK = bytes(1 << 20)
_TABLE = "CREATE TABLE IF NOT EXISTS steady_commits (payload text)"
_INSERT = SingleStatement("INSERT INTO steady_commits VALUES (repeat('x', 100))")


class NewcomerCell(NamedTuple):
    """A case that is measured once a round."""

    clients: int
    rate: str


class NewcomerTurn(msgspec.Struct, frozen=True):
    """The measurements of one newcomer.

    Attributes:
        wal_bytes, seconds: what it received until it was a member, and how long `members add` took.
        p50_before_ms, p50_during_ms, p99_before_ms, p99_during_ms: of the commits.
        cpu_before_us, cpu_during_us: CPU time of the proxy for a commit.
        peak_before_bytes, peak_during_bytes: the most memory in RAM that the proxy has had by then.
        disk_mb_s, loopback_mb_s: what one file and one connection of this machine can do, just before.
    """

    round: int
    clients: int
    rate: str
    wal_bytes: int
    seconds: float
    p50_before_ms: float
    p50_during_ms: float
    p99_before_ms: float
    p99_during_ms: float
    cpu_before_us: float
    cpu_during_us: float
    peak_before_bytes: int
    peak_during_bytes: int
    disk_mb_s: float
    loopback_mb_s: float


class NewcomerResult(msgspec.Struct, frozen=True):
    """The medians of one case. `to_before` is that of the rounds' ratios of the commits' p50, from `low` to `high`."""

    clients: int
    rate: str
    mb_s: float
    seconds: float
    p50_during_ms: float
    to_before: float
    low: float
    high: float
    cpu_to_before: float
    grown_bytes: float
    disk_mb_s: float
    loopback_mb_s: float


class _Stretch(NamedTuple):
    """The commits and the proxy's CPU time of a stretch of time."""

    p50_ms: float
    p99_ms: float
    cpu_us: float


class Site(NamedTuple):
    """A running cluster whose safekeepers retain `wal_bytes` of WAL."""

    cluster: LocalCluster
    directory: Path

    def take_turn(self, number: int, cell: NewcomerCell, seconds: float) -> NewcomerTurn:
        """Measure the clients alone for so many seconds, and then while a newcomer becomes a member.

        Raises:
            WalproxyError: a process has failed, or the change.
        """
        cluster = self.cluster
        disk_mb_s, loopback_mb_s = disk_speed(self.directory), loopback_speed()
        self._restart_proxy(cell.rate)
        pid = cluster.proxy.pid or 0
        with Clients(cluster.postgres.conninfo, cell.clients, lambda client: _INSERT) as commits:
            commits.wait_for_commit(monotonic())
            before = self._watch(commits, pid, lambda: commits.wait_for_commit(monotonic() + seconds))
            peak_before = memory_of(pid)
            added = cluster.add_safekeeper(_NEWCOMER).start()
            cluster.wait_until(lambda: added.status() is not None, "it replies", process=added)
            began_at = monotonic()
            during = self._watch(commits, pid, lambda: self._members("add", cluster.place_of(_NEWCOMER)))
            took_s = monotonic() - began_at
        peak_during = memory_of(pid)
        status = cluster.safekeepers[_NEWCOMER].status() or {}
        wal_bytes = parse_lsn(status["flush_lsn"]) - parse_lsn(status["wal_begin_lsn"])
        self._members("remove", str(_NEWCOMER))
        cluster.drop_safekeeper(_NEWCOMER)
        # The next one is to receive all of it again.
        shutil.rmtree(cluster.safekeeper_directory(_NEWCOMER))
        return NewcomerTurn(
            number,
            cell.clients,
            cell.rate,
            wal_bytes,
            took_s,
            before.p50_ms,
            during.p50_ms,
            before.p99_ms,
            during.p99_ms,
            before.cpu_us,
            during.cpu_us,
            peak_before.peak_bytes,
            highest_peak(peak_before, peak_during),
            disk_mb_s,
            loopback_mb_s,
        )

    def _watch(self, commits: Clients[SingleStatement], pid: int, act: Callable[[], object]) -> _Stretch:
        """Return the commits that were acknowledged during `act`, and the proxy's CPU time for each."""
        began_at, cpu_began_s = monotonic(), cpu_seconds([pid])
        act()
        ended_at, cpu_s = monotonic(), cpu_seconds([pid]) - cpu_began_s
        found = sorted(
            1000 * each.seconds for each in commits.history.acknowledged if began_at <= each.ended_at < ended_at
        )
        if not found:
            raise WalproxyError("no commit was acknowledged in a measurement")
        return _Stretch(statistics.median(found), found[len(found) * 99 // 100], 1e6 * cpu_s / len(found))

    def _members(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "walproxy", "members", *arguments]
        ended = subprocess.run(
            [*command, "--safekeepers", self.cluster.safekeepers_option],
            capture_output=True,
            text=True,
            check=False,
            timeout=_ENDS_WITHIN_S,
        )
        if ended.returncode != 0:
            raise WalproxyError(f"walproxy members {arguments[0]} failed: {ended.stderr.strip()[-500:]}")

    def _restart_proxy(self, rate: str) -> None:
        """Start the proxy with another rate."""
        cluster, arguments = self.cluster, self.cluster.proxy.arguments
        cluster.proxy.stop()
        if "--catchup-rate" in arguments:
            arguments[arguments.index("--catchup-rate") + 1] = rate
        else:
            arguments += ["--catchup-rate", rate]
        cluster.start_proxy()
        cluster.wait_for_state("streaming")
        wait_until_caught_up(cluster, *cluster.safekeepers)


@contextmanager
def newcomer_site(directory: Path, binaries: ServerBinaries, row_bytes: int) -> Iterator[Site]:
    """Yield a cluster whose safekeepers retain the WAL of that many bytes of rows."""
    postgres = make_server(directory, binaries)
    retained = ("--wal-keep", str(8 * row_bytes + (1 << 30)))
    with LocalCluster(directory, postgres, safekeeper_options=retained) as cluster:
        cluster.start()
        postgres.execute(_TABLE)
        bulk.prepare(postgres)
        bulk.take_turn(Arm("walproxy", postgres, dict), 0, row_bytes)
        wait_until_caught_up(cluster, *cluster.safekeepers)
        yield Site(cluster, directory)


def disk_speed(directory: Path) -> float:
    """Return the MB/s of one large file, written and flushed."""
    path = directory / "probe"
    began_at = monotonic()
    with path.open("wb", buffering=0) as file:
        for _ in range(_PROBE_BYTES // len(_BLOCK)):
            file.write(_BLOCK)
        os.fdatasync(file.fileno())
    seconds = monotonic() - began_at
    path.unlink()
    return _PROBE_BYTES / 1e6 / seconds


def loopback_speed() -> float:
    """Return the MB/s of one connection on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = threading.Thread(target=_send_probe, args=(listener.getsockname()[1],))
        sender.start()
        began_at = monotonic()
        connection, _ = listener.accept()
        with connection:
            buffer = bytearray(len(_BLOCK))
            while connection.recv_into(buffer):
                pass
        sender.join()
    return _PROBE_BYTES / 1e6 / (monotonic() - began_at)


def _send_probe(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for _ in range(_PROBE_BYTES // len(_BLOCK)):
            connection.sendall(_BLOCK)


def compare_newcomers(turns: Sequence[NewcomerTurn]) -> list[NewcomerResult]:
    """Return the medians of each case, by clients and then in the order of RATES."""
    results = []
    for clients in sorted({turn.clients for turn in turns}):
        for rate in RATES:
            mine = [turn for turn in turns if (turn.clients, turn.rate) == (clients, rate)]
            if not mine:
                continue
            ratios = [turn.p50_during_ms / turn.p50_before_ms for turn in mine]
            results.append(
                NewcomerResult(
                    clients,
                    rate,
                    statistics.median(turn.wal_bytes / 1e6 / turn.seconds for turn in mine),
                    statistics.median(turn.seconds for turn in mine),
                    statistics.median(turn.p50_during_ms for turn in mine),
                    statistics.median(ratios),
                    min(ratios),
                    max(ratios),
                    statistics.median(turn.cpu_during_us / turn.cpu_before_us for turn in mine),
                    statistics.median(turn.peak_during_bytes - turn.peak_before_bytes for turn in mine),
                    statistics.median(turn.disk_mb_s for turn in mine),
                    statistics.median(turn.loopback_mb_s for turn in mine),
                )
            )
    return results
