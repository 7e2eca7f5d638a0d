"""A proxy that reports as flushed what it has received: `boastful_proxy.py OPTIONS-OF-walproxy-run`."""

import sys

from safekeeper.base.lsn import Lsn
from walproxy.cli import main as walproxy
from walproxy.proxy.primary_feed import PrimaryFeed
from walproxy.proxy.proxy import Proxy


def main() -> None:
    receive, report = Proxy.wal_received, PrimaryFeed.report

    def receive_and_boast(proxy: Proxy, begin_lsn: Lsn, chunks: list[memoryview]) -> None:
        receive(proxy, begin_lsn, chunks)
        status, received_lsn = proxy.status, proxy.window.end_lsn
        if status.flush_lsn:
            report(proxy.feed, received_lsn, received_lsn, status.apply_lsn)

    def boast(feed: PrimaryFeed, write_lsn: Lsn, flush_lsn: Lsn, apply_lsn: Lsn) -> None:
        received_lsn = feed._connection.receiver.received_lsn if feed._connection is not None else 0
        report(feed, *((received_lsn, received_lsn) if flush_lsn else (write_lsn, flush_lsn)), apply_lsn)

    Proxy.wal_received, PrimaryFeed.report = receive_and_boast, boast  # type: ignore[method-assign]
    sys.argv[1:1] = ["run"]
    walproxy()


if __name__ == "__main__":
    main()
