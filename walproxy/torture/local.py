"""A cluster of local processes to be soaked: with an archive in a folder, and a standby fed by the safekeepers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from walproxy.bench.local_archive import LocalArchive
from walproxy.local_cluster import LocalCluster, LocalProcess
from walproxy.local_postgres import LocalPostgres
from walproxy.server_binaries import ServerBinaries

_SETTINGS: Final = {"max_connections": "100", "shared_buffers": "64MB", "max_wal_size": "256MB"}
# WAL is removed from the first minutes on, not only when a gigabyte has come together.
_OPTIONS: Final = ("--wal-keep", "64MiB")
_PARTIAL_INTERVAL_S: Final = 5.0
_STANDBY: Final = "standby1"


class LocalSoakedCluster:
    """The processes of a LocalCluster, by the names that a soak has for them."""

    engine = "processes"

    def __init__(self, cluster: LocalCluster) -> None:
        self.conninfo = cluster.postgres.conninfo()
        self._servers: dict[str, LocalPostgres] = {"postgres": cluster.postgres, **cluster.standbys}
        self._daemons: dict[str, LocalProcess] = {
            **{f"safekeeper{i}": process for i, process in cluster.safekeepers.items()},
            "walproxy": cluster.proxy,
        }

    def process_ids(self) -> dict[str, int]:
        """Return the processes that live, by name."""
        processes: dict[str, LocalPostgres | LocalProcess] = {**self._daemons, **self._servers}
        return {name: each.pid for name, each in processes.items() if each.pid is not None}

    def status_of(self, who: str) -> dict[str, Any] | None:
        """Return what a process says at its /status, None if it does not answer."""
        return self._daemons[who].status()


@contextmanager
def local_cluster(directory: Path, binaries: ServerBinaries, safekeepers: int) -> Iterator[LocalSoakedCluster]:
    """Yield a cluster whose commits go through."""
    archive = LocalArchive(directory / "archive")
    postgres = LocalPostgres(binaries, directory / "postgres", settings=_SETTINGS)
    options = (*archive.options(_PARTIAL_INTERVAL_S), *_OPTIONS)
    with LocalCluster(directory, postgres, safekeepers, safekeeper_options=options) as cluster:
        postgres.init()
        cluster.start()
        cluster.add_standby(_STANDBY)
        yield LocalSoakedCluster(cluster)
