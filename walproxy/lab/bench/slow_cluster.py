"""A cluster whose safekeepers' disks are slower than this machine's: the delay decides then, and not the noise."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from walproxy.lab.bench import commit_load
from walproxy.lab.bench.arms import make_server
from walproxy.lab.cluster.local_cluster import LocalCluster
from walproxy.lab.testing.faulty_disk import DiskFaults, write_faults
from walproxy.postgres.binaries import ServerBinaries

SYNC_DELAY_MS = 2.0


@contextmanager
def slow_cluster(directory: Path, binaries: ServerBinaries, *safekeeper_options: str) -> Iterator[LocalCluster]:
    """Yield a running cluster of safekeepers on slow disks, ready for the load of commit_load.py."""
    postgres = make_server(directory, binaries)
    disk = directory / "disk.json"
    write_faults(disk, DiskFaults(fsync_ms=SYNC_DELAY_MS))
    program = ("-m", "walproxy.lab.testing.faulty_disk", str(disk), "run")
    with LocalCluster(
        directory, postgres, safekeeper_program=program, safekeeper_options=safekeeper_options
    ) as cluster:
        cluster.start()
        commit_load.prepare(postgres)
        yield cluster
