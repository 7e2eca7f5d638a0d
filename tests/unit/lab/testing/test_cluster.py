"""The books of a cluster for tests, over an engine that only writes down what it is told."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from safekeeper.base.errors import ConfigurationError
from walproxy.lab.testing import ClusterFailed, WalproxyCluster, cluster
from walproxy.lab.testing.engine import Blueprint, major_of
from walproxy.lab.testing.faulty_disk import DiskFaults


class Orders:
    """An engine.

    Attributes:
        told: what it was told to do, in order.
        living: the members that run.
        paused: those that stand still.
        takes_connections: whether its PostgreSQL does.
        statuses: what daemons say.
    """

    name = "processes"
    archive_url = None

    def __init__(self, blueprint: Blueprint) -> None:
        self.reported: list[tuple[Any, ...]] = []
        self.living = set(blueprint.members)
        self.paused: set[str] = set()
        self.statuses: dict[str, dict[str, Any]] = {}
        self.fails_to_start = False
        self.takes_connections = True

    def start_all(self) -> None:
        self.reported.append(("start_all",))
        if self.fails_to_start:
            raise ClusterFailed("it does not start")

    def close(self) -> None:
        self.reported.append(("close",))

    def conninfo(self, member: str = "postgres") -> str:
        return f"host={member}"

    def primary_answers(self) -> bool:
        return self.takes_connections

    def pause(self, member: str) -> None:
        self.reported.append(("pause", member))
        self.paused.add(member)

    def resume(self, member: str) -> None:
        self.reported.append(("resume", member))
        self.paused.discard(member)

    def kill(self, member: str) -> None:
        self.reported.append(("kill", member))
        self.living.discard(member)

    def stop(self, member: str) -> None:
        self.reported.append(("stop", member))
        self.living.discard(member)

    def start(self, member: str) -> None:
        if member not in self.living:
            self.reported.append(("start", member))
            self.living.add(member)

    def runs(self, member: str) -> bool:
        return member in self.living

    def hold(self, safekeeper: str, direction: str) -> None:
        self.reported.append(("hold", safekeeper, direction))

    def set_disk(self, safekeeper: str, faults: DiskFaults) -> None:
        self.reported.append(("disk", safekeeper, faults))

    def status_of(self, member: str) -> dict[str, Any] | None:
        return self.statuses.get(member)

    def log(self, member: str, lines: int) -> str:
        return f"first of {member}\nlast of {member}"

    def process_ids(self) -> dict[str, int]:
        return dict.fromkeys(self.living, 1)

    def data_folder(self, member: str) -> Path:
        return Path(member)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Orders:
    reported = Orders(Blueprint(proxies=2, standbys=1))
    monkeypatch.setattr(cluster, "_make_engine", lambda name, blueprint, directory: reported)
    return reported


@pytest.fixture
def running(engine: Orders) -> Iterator[WalproxyCluster]:
    with WalproxyCluster(proxies=2, standbys=1, engine="processes") as running:
        engine.reported.clear()
        yield running


def test_members_are_named_and_a_number_is_a_safekeeper(running: WalproxyCluster, engine: Orders) -> None:
    assert running.members == (
        "postgres", "safekeeper1", "safekeeper2", "safekeeper3", "walproxy", "walproxy2", "standby1",
    )  # fmt: skip
    running.kill(2)
    running.kill("walproxy2")
    assert engine.reported == [("kill", "safekeeper2"), ("kill", "walproxy2")]


def test_an_unknown_member_and_a_fault_that_is_not_for_it_are_refused(running: WalproxyCluster, engine: Orders) -> None:
    with pytest.raises(ConfigurationError, match="no member safekeeper4, but postgres, safekeeper1"):
        running.kill(4)
    with pytest.raises(ConfigurationError, match="postgres is not a safekeeper"):
        running.slow("postgres", 10)
    with pytest.raises(ConfigurationError, match="walproxy2 is a proxy"):
        running.data_folder("walproxy2")
    assert engine.reported == []
    assert running.data_folder(2) == Path("safekeeper2")


def test_each_postgres_has_a_connection_string_and_nobody_else(running: WalproxyCluster) -> None:
    assert running.conninfo == running.conninfo_of("postgres") == "host=postgres"
    assert running.conninfo_of("standby1") == "host=standby1"
    with pytest.raises(ConfigurationError, match="safekeeper1 is not a PostgreSQL"):
        running.conninfo_of("safekeeper1")


def test_who_does_not_run_cannot_be_paused(running: WalproxyCluster) -> None:
    running.kill(1)
    with pytest.raises(ClusterFailed, match="safekeeper1 does not run"):
        running.pause(1)


def test_a_paused_member_is_resumed_before_it_is_stopped(running: WalproxyCluster, engine: Orders) -> None:
    running.pause("postgres")
    running.stop("postgres")
    assert engine.reported == [("pause", "postgres"), ("resume", "postgres"), ("stop", "postgres")]


def test_a_disk_can_be_slow_and_full_at_once(running: WalproxyCluster, engine: Orders) -> None:
    running.slow(1, fsync_ms=20)
    running.fill(1)
    running.slow(1, fsync_ms=0)
    assert [faults for _, _, faults in engine.reported] == [
        DiskFaults(fsync_ms=20),
        DiskFaults(fsync_ms=20, full=True),
        DiskFaults(full=True),
    ]


def test_one_is_healed_without_the_others_and_is_not_started(running: WalproxyCluster, engine: Orders) -> None:
    for i in (1, 2):
        running.partition(i, "to")
        running.slow(i, 20)
        running.pause(i)
    running.kill(3)
    engine.reported.clear()
    running.heal(1)
    assert engine.reported == [
        ("resume", "safekeeper1"),
        ("hold", "safekeeper1", "none"),
        ("disk", "safekeeper1", DiskFaults()),
    ]
    running.heal(3)
    assert not engine.runs("safekeeper3")


def test_all_are_healed_and_whoever_has_ended_is_started(running: WalproxyCluster, engine: Orders) -> None:
    running.partition(1)
    running.pause("walproxy")
    running.kill(2)
    running.stop("postgres")
    engine.living.discard("walproxy2")  # It has ended by itself.
    engine.reported.clear()
    running.heal()
    assert {reported for reported in engine.reported if reported[0] in ("start", "resume")} == {
        ("resume", "walproxy"),
        ("start", "safekeeper2"),
        ("start", "postgres"),
        ("start", "walproxy2"),
    }
    assert ("hold", "safekeeper1", "none") in engine.reported
    engine.reported.clear()
    running.heal()
    assert not [reported for reported in engine.reported if reported[0] != "hold"]


class Undone:
    """A hindrance of a server, which can be undone while the server runs and is not paused."""

    def __init__(self, engine: Orders, member: str) -> None:
        self._engine = engine
        self._member = member

    def end(self, within_s: float = 60) -> None:
        self._engine.reported.append(("undone", self._member, within_s))
        if not self._engine.runs(self._member) or self._member in self._engine.paused:
            raise psycopg.OperationalError("connection\nrefused")


@pytest.fixture
def hindering(engine: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "hinder", lambda kind, conninfo: Undone(engine, conninfo.removeprefix("host=")))


@pytest.mark.usefixtures("hindering")
def test_a_server_that_has_ended_is_started_before_what_hinders_it_is_undone(
    running: WalproxyCluster, engine: Orders
) -> None:
    running.hinder("postgres", "settings changed")
    running.fill(1)
    running.kill("postgres")
    running.kill(1)
    engine.reported.clear()
    running.heal()
    assert [reported for reported in engine.reported if reported[0] != "hold"] == [
        ("start", "postgres"),
        ("undone", "postgres", 60),
        ("disk", "safekeeper1", DiskFaults()),
        ("start", "safekeeper1"),
    ]


@pytest.mark.usefixtures("hindering")
def test_what_could_not_be_undone_is_one_line_and_is_undone_later(running: WalproxyCluster, engine: Orders) -> None:
    running.hinder("postgres", "settings changed")
    running.kill("postgres")
    with pytest.raises(ClusterFailed, match=r"postgres: the end of 'settings changed' failed: connection\\nref"):
        running.heal("postgres")
    engine.reported.clear()
    running.heal()
    assert ("undone", "postgres", 60) in engine.reported
    engine.reported.clear()
    running.heal()
    assert ("undone", "postgres", 60) not in engine.reported


def test_a_server_that_refuses_a_hindrance_is_one_line(
    running: WalproxyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(kind: str, conninfo: str) -> None:
        raise psycopg.OperationalError("FATAL:  sorry,\ntoo many clients already")

    monkeypatch.setattr(cluster, "hinder", refuse)
    with pytest.raises(ClusterFailed, match=r"postgres: 'logins blocked' failed: FATAL:  sorry,\\ntoo many"):
        running.hinder("postgres", "logins blocked")


@pytest.mark.usefixtures("hindering")
@pytest.mark.parametrize("fault", [WalproxyCluster.kill, WalproxyCluster.pause])
def test_a_cluster_whose_server_is_hindered_and_does_not_reply_is_closed_without_a_wait(
    engine: Orders, fault: Callable[[WalproxyCluster, str], None]
) -> None:
    with pytest.raises(KeyError, match="the test's own"), WalproxyCluster(standbys=1, engine="processes") as hindered:
        hindered.hinder("postgres", "settings changed")
        hindered.hinder("standby1", "replay paused")
        fault(hindered, "postgres")
        raise KeyError("the test's own")
    undone = [reported for reported in engine.reported if reported[0] == "undone"]
    assert undone == [("undone", "postgres", 0), ("undone", "standby1", 0)]
    assert not engine.paused
    assert engine.reported[-1] == ("close",)


def test_the_status_is_that_of_the_proxy_that_leads(running: WalproxyCluster, engine: Orders) -> None:
    assert running.status() is None
    engine.statuses["walproxy"] = {"state": "spare", "spare": True}
    assert running.status() == engine.statuses["walproxy"]
    engine.statuses["walproxy2"] = {"state": "waiting_for_quorum", "spare": False}
    assert running.status() == engine.statuses["walproxy2"]
    engine.statuses["walproxy"] = {"state": "waiting_for_primary", "spare": False}
    engine.statuses["walproxy2"] = {"state": "streaming", "spare": False}
    assert running.status() == engine.statuses["walproxy2"]


def test_waiting_in_vain_ends_with_the_proxies_logs(running: WalproxyCluster, engine: Orders) -> None:
    engine.statuses["walproxy"] = {"state": "waiting_for_quorum", "spare": False}
    with pytest.raises(ClusterFailed, match=r"after 0 s; .* walproxy2: first of walproxy2 \| last of walproxy2"):
        running.wait_until_streaming(timeout_s=0)
    engine.statuses["walproxy"]["state"] = "streaming"
    running.wait_until_streaming(timeout_s=0)
    engine.takes_connections = False
    with pytest.raises(ClusterFailed, match="nothing streams"):
        running.wait_until_streaming(timeout_s=0)


def test_a_cluster_that_does_not_start_is_closed_and_its_folder_removed(
    engine: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[Path] = []

    def make(name: str, blueprint: Blueprint, directory: Path) -> Orders:
        folders.append(directory)
        return engine

    monkeypatch.setattr(cluster, "_make_engine", make)
    engine.fails_to_start = True
    with pytest.raises(ClusterFailed, match="it does not start"), WalproxyCluster(engine="processes"):
        pass
    assert engine.reported == [("start_all",), ("close",)]
    assert not folders[0].exists()


def test_a_folder_that_was_named_stays(engine: Orders, tmp_path: Path) -> None:
    with WalproxyCluster(engine="processes", directory=tmp_path / "cluster"):
        pass
    assert (tmp_path / "cluster").is_dir()


def test_outside_of_its_block_a_cluster_says_so(engine: Orders) -> None:
    outside = WalproxyCluster(engine="processes")
    with pytest.raises(ClusterFailed, match="does not run"):
        outside.kill(1)


def test_the_environment_chooses_the_engine_where_the_test_leaves_it_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALPROXY_TESTING_ENGINE", "processes")
    assert WalproxyCluster().engine == "processes"
    monkeypatch.setenv("WALPROXY_TESTING_ENGINE", "jail")
    with pytest.raises(ConfigurationError, match="is jail: set it to one of auto, containers, processes"):
        WalproxyCluster()


def test_without_a_container_engine_processes_do_and_containers_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("WALPROXY_TESTING_ENGINE", raising=False)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    assert WalproxyCluster().engine == "processes"
    with pytest.raises(ConfigurationError, match="no container engine answers"):
        WalproxyCluster(engine="containers")


def test_programs_of_this_machine_do_not_run_in_containers() -> None:
    with pytest.raises(ConfigurationError, match="do not run in containers"):
        WalproxyCluster(engine="containers", proxy_program=["-m", "mine"])


@pytest.mark.parametrize(
    ("name", "major"),
    [("17", 17), ("postgres:17", 17), ("registry:5000/postgres:16.4-bookworm", 16), ("mine", None), (None, None)],
)
def test_a_version_is_read_off_an_images_name(name: str | None, major: int | None) -> None:
    assert major_of(name) == major
