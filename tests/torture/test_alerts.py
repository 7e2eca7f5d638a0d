"""Alerts that were tried: a real Prometheus with the shipped rules, over a cluster from which something is taken away.

Each alert fires, alone or with those that follow from the same loss, and resolves when what was lost is back.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.integration.archive.archive_cluster_fixtures import archive_options, wait_for_archiver
from tests.integration.archive.archive_fixtures import Archive
from tests.integration.archive.object_stores import LocalFolder
from tests.integration.cluster.cluster_fixtures import Gated
from tests.integration.conftest import NEWEST, NewGated
from tests.torture.prometheus_server import Prometheus, metrics_problems, needs_prometheus, prometheus
from tests.waiting import wait_for
from walproxy.lab.cluster.local_cluster import LocalProcess

# The longest threshold of a rule that is tried is 10 s; the machine may be busy.
TIMEOUT_S = 120.0
# Whether it fires depends on the free space of the machine that runs the test.
OF_THE_MACHINE = {"DiskFills"}


class Alerts:
    """The alerts of a cluster, whose proxies a supervisor restarts.

    Attributes:
        down: a proxy that is not restarted.
    """

    def __init__(self, server: Prometheus, cluster: Gated) -> None:
        self._server = server
        self._cluster = cluster
        self.down: LocalProcess | None = None
        self.seen: set[str] = set()

    def firing(self) -> set[str]:
        """Return the alerts that fire."""
        return self._server.firing() - OF_THE_MACHINE

    def until_firing(self, *wanted: str) -> None:
        """Wait until these alerts fire."""
        self._until(lambda firing: set(wanted) <= firing, f"{', '.join(wanted)} fire")
        self.seen |= set(wanted)

    def until_none(self) -> None:
        """Wait until no alert fires."""
        self._until(lambda firing: not firing, "no alert fires")

    def _until(self, condition: Callable[[set[str]], bool], what: str) -> None:
        found: set[str] = set()

        def is_there() -> bool:
            for proxy in self._cluster.proxies:
                if proxy.pid is None and proxy is not self.down:
                    proxy.start()  # One that was deposed has ended.
            found.clear()
            found.update(self.firing())
            return condition(found)

        wait_for(is_there, lambda: f"{what}: {sorted(found)} fire", TIMEOUT_S, poll_s=0.2)


@contextlib.contextmanager
def away(folder: Path) -> Iterator[None]:
    """Take a folder away for a while."""
    hidden = folder.with_name(f"{folder.name}.away")
    folder.rename(hidden)
    try:
        yield
    finally:
        hidden.rename(folder)


def set_standby_names(cluster: Gated, names: str) -> None:
    """Change the setting of the running primary, in a session whose commits do not wait."""
    options = cluster.postgres.conninfo(options="-c synchronous_commit=local")
    with psycopg.connect(options, autocommit=True) as session:
        session.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'".encode())
        session.execute("SELECT pg_reload_conf()")


@needs_prometheus
@NEWEST
@pytest.mark.timeout(3600)
def test_each_alert_fires_when_something_is_lost_and_resolves_when_it_is_back(
    folder: Path, folder_archive: Archive, new_gated: NewGated
) -> None:
    cluster = new_gated(
        "-c", "remote_apply_standbys=db2", safekeeper_options=archive_options(folder_archive.place)
    ).start_gated()
    cluster.add_proxy()
    standby = cluster.add_standby("db2")
    wait_for_archiver(cluster)
    jobs = {"safekeeper": list(cluster.safekeepers.values()), "walproxy": cluster.proxies}
    with cluster.load() as load, prometheus(folder / "prometheus", jobs) as server:
        alerts = Alerts(server, cluster)
        load.wait_for_commits(5)
        wait_for(lambda: server.value("count(up == 1)") == 5, "it reads all metrics", TIMEOUT_S)
        wait_for(lambda: server.value("sum(walproxy_standby_connected)") >= 1, "the standby is seen", TIMEOUT_S)
        alerts.until_none()
        processes = [*cluster.safekeepers.values(), *cluster.proxies]
        assert [problem for problem in map(metrics_problems, processes) if problem] == []

        cluster.safekeepers[3].kill9()
        alerts.until_firing("SafekeeperMissing", "ProcessDown")
        cluster.safekeepers[3].start()
        alerts.until_none()

        cluster.safekeepers[2].kill9()
        cluster.safekeepers[3].kill9()
        alerts.until_firing("QuorumLost", "CommitsWait")
        for safekeeper_id in (2, 3):
            cluster.safekeepers[safekeeper_id].start()
        alerts.until_none()

        for names, alert in (("", "CommitsDoNotWait"), ("FIRST 2 (walproxy, other)", "CommitsHang")):
            set_standby_names(cluster, names)
            alerts.until_firing(alert)
            set_standby_names(cluster, "walproxy")
            alerts.until_none()

        leader = cluster.serving()
        alerts.down = next(proxy for proxy in cluster.proxies if proxy is not leader)
        alerts.down.kill9()
        alerts.until_firing("NoSpareProxy")
        alerts.down = None
        alerts.until_none()

        standby.stop()
        alerts.until_firing("StandbyGone", "RemoteApplyWaits")
        standby.start()
        alerts.until_none()

        with away(_folder_of(folder_archive)):
            alerts.until_firing("ArchiveProblem")
        alerts.until_none()

        _fill_a_disk(cluster, alerts)
        load.wait_for_commits(5)
    print(f"fired and resolved: {', '.join(sorted(alerts.seen))}")


def _folder_of(archive: Archive) -> Path:
    assert isinstance(archive.server, LocalFolder)
    return archive.server.folder / "main"


def _fill_a_disk(cluster: Gated, alerts: Alerts) -> None:
    with cluster.on_slow_disk(1) as disk:
        # One that starts on a full disk ends.
        wait_for(lambda: cluster.member(1)["state"] == "streaming", "it has started", TIMEOUT_S)
        alerts.until_none()
        with disk.full():
            wait_for(
                lambda: cluster.postgres.execute("SELECT pg_switch_wal()") and "DiskFull" in alerts.firing(),
                "DiskFull fires",
                TIMEOUT_S,
                poll_s=0.5,
            )
            alerts.until_firing("DiskFull")
        alerts.until_none()
    alerts.until_none()
