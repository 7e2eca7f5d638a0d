"""The servers on which the levels of synchronous_commit are measured: primaries with a standby each, and one without.

A standby is copied after pgbench's tables were made, so that it has nothing of that to replay.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from walproxy.lab.bench import pgbench
from walproxy.lab.bench.arms import make_server, wait_until_synchronous
from walproxy.lab.bench.levels import ALONE, STOCK, WALPROXY
from walproxy.lab.cluster.local_cluster import LocalCluster
from walproxy.lab.cluster.local_standby import current_lsn, make_standby, wait_until_replayed
from walproxy.postgres.local_server import LocalPostgres, ServerBinaries

_STANDBY = "standby"


@dataclass(frozen=True)
class LevelArm:
    """A primary that is ready for pgbench, and its standby if it has one."""

    name: str
    primary: LocalPostgres
    standby: LocalPostgres | None

    def settle(self) -> None:
        """Wait until the WAL of earlier turns is replayed: it would be a load on the next one."""
        if self.standby is not None:
            wait_until_replayed(self.standby, current_lsn(self.primary))


@contextmanager
def alone_arm(directory: Path, binaries: ServerBinaries, scale: int) -> Iterator[LevelArm]:
    """No standby."""
    with make_server(directory, binaries) as primary:
        pgbench.prepare(primary.start(), scale)
        yield LevelArm(ALONE, primary, None)


@contextmanager
def stock_arm(directory: Path, binaries: ServerBinaries, scale: int) -> Iterator[LevelArm]:
    """PostgreSQL's own: one streaming standby that is synchronous."""
    with make_server(directory, binaries) as primary:
        pgbench.prepare(primary.start(), scale)
        primary.execute("SELECT pg_create_physical_replication_slot(%s, true)", _STANDBY)
        with make_standby(primary, directory / _STANDBY, _STANDBY, slot=_STANDBY) as standby:
            standby.start()
            primary.configure({"synchronous_standby_names": _STANDBY})
            primary.reload()
            wait_until_synchronous(primary, 1)
            yield LevelArm(STOCK, primary, standby)


@contextmanager
def walproxy_arm(directory: Path, binaries: ServerBinaries, scale: int) -> Iterator[LevelArm]:
    """Three safekeepers; the standby streams from one of them and is the one that remote_apply waits for."""
    primary = make_server(directory, binaries)
    with LocalCluster(directory, primary) as cluster:
        cluster.proxies = [cluster.make_proxy("walproxy", "-c", f"remote_apply_standbys={_STANDBY}")]
        cluster.start()
        pgbench.prepare(primary, scale)
        standby = cluster.add_standby(_STANDBY)
        yield LevelArm(WALPROXY, primary, standby)


LEVEL_ARMS = {ALONE: alone_arm, STOCK: stock_arm, WALPROXY: walproxy_arm}
