"""A proxy that tells PostgreSQL that what it has received is flushed: `boastful_proxy.py OPTIONS-OF-walproxy-run`."""

import sys

from safekeeper.base.lsn import Lsn
from walproxy.cli import main as walproxy
from walproxy.proxy.proxy import Proxy


def main() -> None:
    receive, know = Proxy.wal_received, Proxy.positions

    def receive_and_boast(proxy: Proxy, begin_lsn: Lsn, chunks: list[memoryview]) -> None:
        receive(proxy, begin_lsn, chunks)
        proxy.feed.positions_changed()

    def positions(proxy: Proxy) -> tuple[Lsn, Lsn, Lsn]:
        known = know(proxy)
        return (proxy.window.end_lsn, proxy.window.end_lsn, known[2]) if known[1] else known

    Proxy.wal_received, Proxy.positions = receive_and_boast, positions  # type: ignore[method-assign]
    sys.argv[1:1] = ["run"]
    walproxy()


if __name__ == "__main__":
    main()
