"""Readers of WAL in a process of their own: `python -m walproxy.lab.bench.wal_readers KIND COUNT START UNTIL
CONNINFO...`.

COUNT connections to each CONNINFO stream from START. What they get they throw away: what is measured is the price of
serving them, and their own work must not be it. So they look at their sockets a hundred times a second instead of at
each message. The kinds:

    reading  reads all WAL, and reports that to the server
    slow     takes 200 kB a second
    stopped  never reads

The process prints "ready" when every reader streams, and the reading ones have got to UNTIL. When its stdin ends, it
prints how many bytes of WAL each has got, as a list of JSON, and ends.
"""

import json
import os
import select
import socket
import sys
import time
from collections.abc import Sequence

import psycopg
from psycopg import pq

from safekeeper.base.errors import WalproxyError
from safekeeper.base.logs import one_line
from safekeeper.base.lsn import Lsn, format_lsn, parse_lsn
from walproxy.postgres.replication import build_status_update
from walproxy.postgres.replication_protocol import ServerRefused, WalStream, identify_system, start_replication
from walproxy.postgres.waiting import wait_blocking

READING, SLOW, STOPPED = "reading", "slow", "stopped"
READY = "ready"

_RATES_BYTES_S = {READING: float("inf"), SLOW: 200e3, STOPPED: 0.0}
_TICK_S = 0.01
_ANSWER_S = 10.0
_STATUS_EVERY_S = 1.0
# A reader that does not read holds what the kernel takes for it: little, so that the server feels it at once.
_RECEIVE_BUFFER_BYTES = 64 << 10


class Reader:
    """One connection that streams.

    Attributes:
        received_bytes: of WAL.
        end_lsn: where that ends.
    """

    def __init__(self, conninfo: str, kind: str, start_lsn: Lsn) -> None:
        self.received_bytes = 0
        self.end_lsn = start_lsn
        self._rate_bytes_s = _RATES_BYTES_S[kind]
        self._next_status_at = 0.0
        self._connection = pq.PGconn.connect(f"{conninfo} replication=true dbname=replication".encode())
        if self._connection.status != pq.ConnStatus.OK:
            raise WalproxyError(f"a reader could not connect: {self._problem()}")
        if kind != READING:
            with socket.socket(fileno=os.dup(self._connection.socket)) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        self._connection.nonblocking = 1
        try:
            pgconn = self._connection
            _, tli, _ = wait_blocking(identify_system(pgconn), pgconn, _ANSWER_S)
            wait_blocking(start_replication(pgconn, start_lsn, tli), pgconn, _ANSWER_S)
        except ServerRefused as refusal:
            raise WalproxyError(f"a reader could not start: {one_line(refusal.message.strip())}") from None
        except (psycopg.Error, TimeoutError):
            raise WalproxyError(f"a reader could not start: {self._problem()}") from None
        self._wal_stream = WalStream(self._connection, start_lsn)
        self._began_at = time.monotonic()

    def take(self, now: float) -> None:
        """Take what has come, as far as its rate allows.

        Raises:
            WalproxyError: the server has ended the stream.
        """
        if self.received_bytes >= self._rate_bytes_s * (now - self._began_at):
            return
        try:
            arrived = self._wal_stream.read(True)
            self.received_bytes += arrived.end_lsn - self.end_lsn
            self.end_lsn = arrived.end_lsn
            if arrived.is_over:
                raise WalproxyError(f"the server ended a reader's stream at {format_lsn(self.end_lsn)}")
            if arrived.broken is not None:
                raise arrived.broken
            if now >= self._next_status_at:
                self._next_status_at = now + _STATUS_EVERY_S
                self._connection.put_copy_data(
                    build_status_update(self.end_lsn, self.end_lsn, 0, time.time_ns() // 1000)
                )
                self._connection.flush()
        except psycopg.Error:
            raise WalproxyError(f"a reader lost its server: {self._problem()}") from None

    def _problem(self) -> str:
        return one_line(self._connection.get_error_message().strip())


def run(readers: Sequence[Reader], until_lsn: Lsn) -> None:
    """Read until stdin ends; report when all have got to `until_lsn`, or at once if it is 0."""
    said_ready = False
    while True:
        now = time.monotonic()
        for reader in readers:
            reader.take(now)
        if not said_ready and all(reader.end_lsn >= until_lsn for reader in readers):
            print(READY, flush=True)
            said_ready = True
        if select.select([sys.stdin], [], [], _TICK_S)[0]:
            return


def main() -> None:
    kind, count, start, until, *conninfos = sys.argv[1:]
    try:
        readers = [Reader(conninfo, kind, parse_lsn(start)) for conninfo in conninfos for _ in range(int(count))]
        run(readers, parse_lsn(until) if kind == READING else 0)
    except WalproxyError as error:
        sys.exit(f"wal_readers: {error}")
    print(json.dumps([reader.received_bytes for reader in readers]))


if __name__ == "__main__":
    main()
