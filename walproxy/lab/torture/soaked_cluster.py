"""A cluster to be soaked: with an archive, and a standby fed by the safekeepers.

Among processes it is one of LocalCluster, and none for tests: its safekeepers are on disks without any faults, so that
what is judged is the program that people run.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from walproxy.lab.cluster.local_cluster import LocalCluster
from walproxy.lab.testing import WalproxyCluster
from walproxy.lab.torture.soak import SoakedCluster
from walproxy.postgres.binaries import choose_server
from walproxy.postgres.local_server import LocalPostgres

_SETTINGS: Final = {"max_connections": "100", "shared_buffers": "64MB", "max_wal_size": "256MB"}
# WAL is removed from the first minutes on, not only when a gigabyte has come together.
_OPTIONS: Final = ("-c", "wal_keep=64MiB")
_PARTIAL_INTERVAL_S: Final = 5.0
_STANDBY: Final = "standby1"


@contextmanager
def soaked_cluster(
    directory: Path, safekeepers: int, major: int | None, engine: Literal["containers", "processes"] = "processes"
) -> Iterator[SoakedCluster]:
    """Yield a cluster whose commits go through.

    Args:
        directory: a new folder, which PostgreSQL's user may enter.
        major: of PostgreSQL; by default the newest.

    Raises:
        WalproxyError: it cannot be set up.
    """
    if engine == "containers":
        postgres = None if major is None else str(major)
        with WalproxyCluster(postgres, safekeepers, standbys=1, engine=engine, directory=directory) as containers:
            containers.wait_until_streaming()
            yield containers
        return
    archive = ("--archive", str(directory / "archive"), "-c", f"archive_partial_interval={_PARTIAL_INTERVAL_S}")
    server = LocalPostgres(choose_server(major), directory / "postgres", settings=_SETTINGS)
    with LocalCluster(directory, server, safekeepers, safekeeper_options=(*archive, *_OPTIONS)) as cluster:
        server.init()
        cluster.start()
        cluster.add_standby(_STANDBY)
        yield cluster
