"""The README's five minutes, followed on this machine."""

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import NEWEST, NewCluster
from tests.readme_walk import Walk

ROOT = Path(__file__).parents[3]
# Of the last share of `take_ports`, which no worker of CI has, and below the ports that test_free_port.py takes there.
TENS = range(3093, 3180)


def free_ports() -> Iterator[int]:
    """Yield tens of ports, e.g. 3134 for 31340 to 31349, that are free from 1 to 3."""
    begin = os.getpid() % len(TENS)
    for ten in (*TENS[begin:], *TENS[:begin]):
        with socket.socket() as one, socket.socket() as two, socket.socket() as three:
            try:
                for number, each in enumerate((one, two, three), 1):
                    each.bind(("127.0.0.1", 10 * ten + number))
            except OSError:
                continue
        yield ten


@NEWEST
@pytest.mark.slow
def test_the_five_minutes_of_the_readme_work_as_written(new_cluster: NewCluster, folder: Path) -> None:
    server = new_cluster(fsync="on")
    ports = free_ports()
    wal, http, readers, proxy = (next(ports) for _ in range(4))
    home = folder / "home"
    # What the installation would leave there.
    (home / "walproxy" / "bin").mkdir(parents=True)
    for name in ("activate", "walproxy", "safekeeper"):
        (home / "walproxy" / "bin" / name).symlink_to(Path(sys.executable).parent / name)

    def on_free_ports(block: str) -> str:
        for written, free in (("545", wal), ("767", http), ("546", readers)):
            block = block.replace(f"127.0.0.1:{written}", f"127.0.0.1:{free}")
        return block

    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "XDG_STATE_HOME": str(folder / "state"),
        "PGPORT": str(server.port),
        "WALPROXY_HTTP": f"127.0.0.1:{proxy}1",
        "WALPROXY_URL": f"http://127.0.0.1:{proxy}1",
    }
    walk = Walk(
        (ROOT / "README.md").read_text(),
        ROOT,
        [str(server.binaries.path("psql")), "-h", "127.0.0.1", "-U", "postgres"],
        environment,
        status_url=f"http://127.0.0.1:{proxy}1",
        safekeeper_url=f"http://127.0.0.1:{http}%d",
        edit=on_free_ports,
    )
    try:
        walk.follow(install=False)
    finally:
        walk.close()
