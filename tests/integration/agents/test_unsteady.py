"""What comes and goes: links that flap, and a primary that ends again and again. A steady standby takes the lead."""

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster_templates import init_by_copying
from tests.integration.agents.lost_leaders import NewAgents, commits_go_on, wait_for_line
from tests.integration.agents.namespaces import runs_isolated
from tests.integration.agents.probes import Probes
from tests.integration.conftest import NEWEST
from walproxy.agent.decision import UNSTEADY_TIMES, UNSTEADY_WITHIN_S
from walproxy.lab.failover.host import Host
from walproxy.lab.failover.network import NamespaceNetwork
from walproxy.lab.load.clients import Clients
from walproxy.lab.load.transactions import SingleStatement
from walproxy.postgres.binaries import server_user
from walproxy.postgres.local_server import LocalPostgres

pytestmark = NEWEST

MIB = 1 << 20
WAL_DISK_BYTES = 128 * MIB
Action = Callable[[], None]


@contextmanager
def flapping(cut: Action, heal: Action, cut_s: float, open_s: float) -> Iterator[None]:
    """Cut and heal alternately, from now to the end of the block, which finds all healed."""
    ends = threading.Event()

    def flap() -> None:
        while not ends.is_set():
            cut()
            ends.wait(cut_s)
            heal()
            ends.wait(open_s)

    with ThreadPoolExecutor(1) as pool:
        flaps = pool.submit(flap)
        try:
            yield
        finally:
            ends.set()
            flaps.result()


@pytest.mark.slow
def test_standbys_whose_links_flap_fail_over(new_agents: NewAgents, request: pytest.FixtureRequest) -> None:
    if not runs_isolated(request):
        return
    network = NamespaceNetwork()
    cluster = new_agents(network=network, dead_after_s=5.0)
    leader, *others = cluster.hosts.values()

    def cut() -> None:
        for host in others:
            network.cut(host.name, cluster.safekeeper_addresses.values())

    def heal() -> None:
        for host in others:
            network.heal(host.name)

    with Probes(cluster) as probes:
        probes.wait_for_commit()
        with flapping(cut, heal, 2.6, 1.8):
            leader.kill()
            commits_go_on(probes, time.monotonic())
        leader.start()
        assert cluster.wait_until_well(60.0).leader in others
        probes.verify()


@pytest.mark.slow
def test_a_leader_that_is_cut_off_most_of_the_time_hands_over(new_agents: NewAgents) -> None:
    cluster = new_agents(dead_after_s=5.0)
    leader, *others = cluster.hosts.values()
    with Probes(cluster) as probes:
        probes.wait_for_commit()
        began_at = time.monotonic()
        with flapping(lambda: leader.stop("proxy"), lambda: leader.resume("proxy"), 4.6, 0.8):
            assert cluster.wait_for_leader("pg2", "pg3", timeout_s=UNSTEADY_WITHIN_S) in others
            commits_go_on(probes, began_at)
        assert cluster.wait_until_well(60.0).leader in others
        probes.verify()


@pytest.fixture
def wal_disk(folder: Path) -> Iterator[Path]:
    """A small file system for the WAL of one server."""
    path = folder / "wal-disk"
    path.mkdir()
    size = f"size={WAL_DISK_BYTES},mode=755"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", path], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"mounting a small file system takes root: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        # Lazily: the server that has files open there is ended with its cluster.
        subprocess.run(["umount", "-l", path], check=True)


def fill(disk: Path, free_bytes: int) -> Path:
    """Leave so little space there; return the file that takes the rest."""
    filler = disk / "filler"
    with filler.open("wb") as file:
        file.write(bytes(max(0, shutil.disk_usage(disk).free - free_bytes)))
    return filler


def much_wal(hosts: list[Host]) -> Clients[SingleStatement]:
    """Return a client that writes WAL of several segments in each transaction, wherever it can."""
    found = iter(hosts * 100_000)
    sql = "INSERT INTO bulk SELECT repeat('x', 1000) FROM generate_series(1, 3000)"
    return Clients(lambda: next(found).place.local_conninfo, 1, lambda _: SingleStatement(sql), rate=1.0)


@pytest.mark.slow
def test_a_primary_whose_wal_disk_is_full_is_replaced(
    new_agents: NewAgents, small_template: Path, wal_disk: Path
) -> None:
    def init(postgres: LocalPostgres) -> None:
        init_by_copying(postgres, small_template)
        pg_wal = postgres.data_directory / "pg_wal"
        shutil.copytree(pg_wal, wal_disk / "pg_wal")
        shutil.rmtree(pg_wal)
        pg_wal.symlink_to(wal_disk / "pg_wal")
        user = server_user()
        if user is not None:
            subprocess.run(["chown", "-hR", f"{user.uid}:{user.gid}", wal_disk, pg_wal], check=True)

    # Longer than all starts take: the others do not act before it resigns.
    cluster = new_agents(dead_after_s=UNSTEADY_WITHIN_S, init=init)
    leader, *others = cluster.hosts.values()
    leader.execute("CREATE TABLE bulk (t text)")
    with Probes(cluster) as probes:
        probes.wait_for_commit()
        filler = fill(wal_disk, 2 * MIB)
        filled_at = time.monotonic()
        with much_wal(list(cluster.hosts.values())):
            wait_for_line([leader], f"has resigned: PostgreSQL has ended {UNSTEADY_TIMES} times")
            assert cluster.wait_for_leader("pg2", "pg3", timeout_s=60.0) in others
            commits_go_on(probes, filled_at)
        log = leader.manager.log_path.read_text()
        assert log.count("starting PostgreSQL as the primary") <= 1 + UNSTEADY_TIMES
        assert "No space left on device" in log
        filler.unlink()
        assert cluster.wait_until_well(60.0).leader in others
        probes.verify()
