"""Measure commits beside hostile clients of each kind: a table of the commit times, and whether anything was lost.

    .venv/bin/python tests/torture/hostile_clients.py --seconds 8 --json found.json

A committer makes up to 200 commits a second, first alone, then beside 1, 60 and 1,000 connections of a kind
(walproxy/lab/testing/hostile_http.py, a process of its own) to the HTTP listener of the proxy, of two safekeepers, of
an agent, of its proxy, and to the other listeners of two safekeepers. From another address, a client reads /metrics
once a second; /primary of the agent while its proxy is the target, which must remain 200.

The file can be run by the interpreter of another checkout's environment, from its folder, so that two commits can be
compared: `cd OLD; .venv/bin/python NEW/tests/torture/hostile_clients.py`. Exit code 1: a goal was missed.
"""

import argparse
import contextlib
import http.client
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psycopg

from walproxy.lab.cluster.local_cluster import LocalCluster, LocalProcess
from walproxy.lab.failover.manager import AgentManager
from walproxy.lab.failover.network import LoopbackNetwork
from walproxy.lab.failover.site import Site as AgentSite
from walproxy.postgres.binaries import find_servers, reachable_binaries, server_user
from walproxy.postgres.local_server import LocalPostgres

HOSTILE = Path(__file__).parents[2] / "walproxy" / "lab" / "testing" / "hostile_http.py"
HTTP_KINDS = ("pipelined", "sequential", "slow", "half-open", "opening", "connects", "streams", "headers", "handshakes")
OTHER_KINDS = ("slow", "half-open", "opening", "connects", "handshakes")
# Each target: whose cluster, and the kinds of clients.
TARGETS = {
    "proxy": ("cluster", HTTP_KINDS),
    "safekeepers": ("cluster", HTTP_KINDS),
    "proposers": ("cluster", OTHER_KINDS),
    "replication": ("cluster", OTHER_KINDS),
    "agent": ("agents", HTTP_KINDS),
    "agent-proxy": ("agents", HTTP_KINDS),
}
MEDIAN_RATIO_MAX = 1.2
WORST_S_MAX = 0.5
_COMMIT_INTERVAL_S = 0.005
_QUIET_S = 3.0
_PROMETHEUS = "127.0.0.2"


class Site(NamedTuple):
    """A running cluster: where to commit, the leader's proof, and the addresses by target.

    Attributes:
        conninfo: of the primary.
        logs: of all daemons.
        ports: by target.
        checks: what is read once a second meanwhile, by target: the ports, and the path.
    """

    conninfo: str
    logs: list[Path]
    ports: dict[str, list[int]]
    checks: dict[str, tuple[list[int], str]]


class Commits(NamedTuple):
    """What a committer has measured; times in milliseconds."""

    number: int
    median_ms: float
    worst_ms: float
    failed: int


class Committer:
    """Commits one row after the other while the `with` block runs."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._times_s: list[float] = []
        self._failed = 0
        self._begun_at = 0.0

    def __enter__(self) -> "Committer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def found(self) -> Commits:
        """Return the figures, after the block."""
        times = sorted(self._times_s) or [float("inf")]
        return Commits(len(self._times_s), 1000 * statistics.median(times), 1000 * times[-1], self._failed)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with psycopg.connect(self._conninfo, autocommit=True, connect_timeout=3) as connection:
                    while not self._stop.wait(_COMMIT_INTERVAL_S):
                        self._begun_at = time.perf_counter()
                        connection.execute("INSERT INTO hostile_clients VALUES (1)")
                        self._times_s.append(time.perf_counter() - self._begun_at)
            except psycopg.Error:
                self._failed += 1
                self._stop.wait(0.2)


class Prometheus:
    """Reads a page of each port once a second, from an address of its own, while the `with` block runs."""

    def __init__(self, ports: Sequence[int], path: str) -> None:
        self._ports = ports
        self._path = path
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.failed = 0
        self.worst_s = 0.0

    def __enter__(self) -> "Prometheus":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(1.0):
            for port in self._ports:
                began_at = time.perf_counter()
                client = http.client.HTTPConnection("127.0.0.1", port, timeout=10, source_address=(_PROMETHEUS, 0))
                try:
                    client.request("GET", self._path)
                    self.failed += client.getresponse().status != 200
                except (OSError, http.client.HTTPException):
                    self.failed += 1
                finally:
                    client.close()
                self.worst_s = max(self.worst_s, time.perf_counter() - began_at)


def option(process: LocalProcess, name: str) -> int:
    """Return the port of an option of a daemon's command line."""
    return int(process.arguments[process.arguments.index(name) + 1].rpartition(":")[2])


def key(process: LocalProcess, name: str) -> int:
    """Return the port of a key that the command line of a daemon sets."""
    return next(int(each.rpartition(":")[2]) for each in process.arguments if each.startswith(f"{name}="))


@contextlib.contextmanager
def cluster_site(folder: Path, major: int) -> Iterator[Site]:
    """Yield a primary, a proxy and three safekeepers."""
    binaries = reachable_binaries(find_servers()[major], server_user())
    with LocalCluster(folder, LocalPostgres(binaries, folder / "pg").init()) as cluster:
        cluster.start()
        two = [cluster.safekeepers[1], cluster.safekeepers[2]]
        http_ports = {"proxy": [cluster.proxy.http_port], "safekeepers": [each.http_port for each in two]}
        yield Site(
            cluster.postgres.conninfo(),
            [cluster.proxy.log_path, *(each.log_path for each in cluster.safekeepers.values())],
            {
                **http_ports,
                "proposers": [option(each, "--listen") for each in two],
                "replication": [option(each, "--pg-listen") for each in two],
            },
            {target: (ports, "/metrics") for target, ports in http_ports.items()},
        )


@contextlib.contextmanager
def agents_site(folder: Path, major: int) -> Iterator[Site]:
    """Yield a primary with its agent, a standby with another one, and three safekeepers."""
    binaries = reachable_binaries(find_servers()[major], server_user())
    network, names = LoopbackNetwork(), ("pg1", "pg2")
    with AgentSite(folder, binaries, network, AgentManager(), names=names, volatile_disks=False) as cluster:
        leader = cluster.start().leader
        agents = [host.manager for host in cluster.hosts.values()]
        place = leader.place
        yield Site(
            place.local_conninfo,
            [each.log_path for each in (*agents, *cluster.safekeepers.values())],
            {"agent": [place.http_port], "agent-proxy": [place.proxy_http_port]},
            {"agent": ([place.http_port], "/metrics"), "agent-proxy": ([place.http_port], "/primary")},
        )


SITES = {"cluster": cluster_site, "agents": agents_site}


def terms_won(logs: Sequence[Path]) -> int:
    """Return how often the daemons have logged that a proxy was elected: each time after the first one it was lost."""
    return sum(path.read_text(errors="replace").count(": elected by ") for path in logs)


def measure(site: Site, target: str, kind: str, connections: int, seconds: float) -> dict[str, object]:
    """Measure one case, after a quiet time."""
    with Committer(site.conninfo) as committer:
        time.sleep(_QUIET_S)
    quiet = committer.found()
    terms = terms_won(site.logs)
    addresses = [f"127.0.0.1:{port}" for port in site.ports[target]]
    command = [sys.executable, str(HOSTILE), kind, str(connections), str(seconds), *addresses]
    hostile = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with Committer(site.conninfo) as committer, Prometheus(*site.checks.get(target, ([], ""))) as prometheus:
        output, _ = hostile.communicate()
    found = committer.found()
    return {
        "target": target,
        "kind": kind,
        "connections": connections,
        "quiet_median_ms": round(quiet.median_ms, 2),
        "median_ms": round(found.median_ms, 2),
        "ratio": round(found.median_ms / quiet.median_ms, 2),
        "worst_ms": round(found.worst_ms, 1),
        "quiet_worst_ms": round(quiet.worst_ms, 1),
        "commits": found.number,
        "failed_commits": found.failed,
        "terms": terms_won(site.logs) - terms,
        "metrics_worst_s": round(prometheus.worst_s, 2),
        "metrics_failed": prometheus.failed,
        "hostile": json.loads(output),
    }


def is_kept(row: dict[str, object]) -> bool:
    """Return whether a case keeps the goals."""
    ratio, worst_ms = row["ratio"], row["worst_ms"]
    assert isinstance(ratio, float) and isinstance(worst_ms, float)
    lost = row["failed_commits"] or row["terms"] or (row["target"] == "agent-proxy" and row["metrics_failed"])
    return ratio <= MEDIAN_RATIO_MAX and worst_ms < 1000 * WORST_S_MAX and not lost


def main() -> None:
    """Read the command line, measure, print the table."""
    parser = argparse.ArgumentParser(description="commits beside hostile clients")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each case")
    parser.add_argument("--major", type=int, default=15, help="version of PostgreSQL")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--kinds", default=",".join(HTTP_KINDS))
    parser.add_argument("--connections", default="1,60,1000")
    parser.add_argument("--json", type=Path, help="write all figures into this file")
    given = parser.parse_args()
    targets, kinds = given.targets.split(","), given.kinds.split(",")
    rows: list[dict[str, object]] = []
    print(
        f"{'target':12} {'kind':11} {'conns':>5} {'median ms':>16} {'ratio':>6} {'worst ms':>9} {'commits':>7}", end=""
    )
    print(f" {'failed':>6} {'terms':>5} {'read':>9} {'opened':>8}", flush=True)
    for name, site_of in SITES.items():
        of_site = [target for target in targets if TARGETS[target][0] == name]
        if not of_site:
            continue
        with tempfile.TemporaryDirectory(prefix="hostile-", ignore_cleanup_errors=True) as folder:
            Path(folder).chmod(0o755)
            with site_of(Path(folder), given.major) as site:
                with psycopg.connect(site.conninfo, autocommit=True) as connection:
                    connection.execute("CREATE TABLE hostile_clients (n int)")
                counts = [int(each) for each in given.connections.split(",")]
                for target, kind, number in itertools.product(of_site, kinds, counts):
                    if kind not in TARGETS[target][1]:
                        continue
                    row = measure(site, target, kind, number, given.seconds)
                    rows.append(row)
                    hostile = row["hostile"]
                    assert isinstance(hostile, dict)
                    print(
                        f"{target:12} {kind:11} {number:5} {row['quiet_median_ms']:>7} > {row['median_ms']:>6} "
                        f"{row['ratio']:>6} {row['worst_ms']:>9} {row['commits']:>7} {row['failed_commits']:>6} "
                        f"{row['terms']:>5} {row['metrics_worst_s']:>6} s{'!' * bool(row['metrics_failed'])} "
                        f"{hostile['opened']:>8}{'' if is_kept(row) else '  MISSED'}",
                        flush=True,
                    )
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=2))
    sys.exit(0 if all(map(is_kept, rows)) else 1)


if __name__ == "__main__":
    main()
