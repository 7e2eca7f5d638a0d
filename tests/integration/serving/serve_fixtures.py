"""Who streams from safekeepers in the tests: standbys, pg_receivewal, and a client that keeps every byte it was sent.

All of them are PostgreSQL's own programs or use libpq: none of this project's code is on their side.
"""

import contextlib
import itertools
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg import pq

from safekeeper.base.lsn import Lsn, format_lsn, parse_lsn, parse_segment_name, segment_name, segment_start
from tests.integration.cluster.cluster_fixtures import Gated, field_of, wait_for
from walproxy.lab.cluster.local_standby import current_lsn, received_lsn, wait_until_replayed
from walproxy.postgres.local_server import LocalPostgres, ServerBinaries, end_with_parent
from walproxy.postgres.replication import Keepalive, XLogData, build_status_update, parse_copy_message

_TICK_S = 0.05
_names = (f"standby{number}" for number in itertools.count(1))


@contextlib.contextmanager
def standby_of(
    cluster: Gated,
    *safekeeper_ids: int,
    name: str = "",
    slot: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> Iterator[LocalPostgres]:
    """A standby of the cluster's primary that streams from these safekeepers, by default any; gone at the end."""
    name = name or next(_names)
    standby = cluster.add_standby(name, *safekeeper_ids, slot=slot, settings=settings)
    try:
        yield standby
    finally:
        cluster.standbys.pop(name, None)
        if standby is not cluster.postgres:
            standby.close()


def feeder(cluster: Gated, standby: LocalPostgres) -> int | None:
    """Return the safekeeper that `standby` streams from now, None if it does from none."""
    rows = standby.execute("SELECT sender_port FROM pg_stat_wal_receiver WHERE status = 'streaming'")
    return cluster.safekeeper_at(rows[0][0]) if rows else None


def wait_for_feeder(cluster: Gated, standby: LocalPostgres, *, other_than: int | None = None) -> int:
    """Wait until `standby` streams from a safekeeper; return which."""
    found: list[int] = []

    def is_fed() -> bool:
        safekeeper_id = feeder(cluster, standby)
        if safekeeper_id not in (None, other_than):
            found.append(safekeeper_id)
        return bool(found)

    wait_for(is_fed, f"{standby.data_directory.name} streams from a safekeeper")
    return found[0]


def wait_for_everything(cluster: Gated, *standbys: LocalPostgres) -> Lsn:
    """Wait until the standbys have replayed all that the primary has on disk; return where that ends."""
    end_lsn = current_lsn(cluster.postgres)
    for standby in standbys:
        wait_until_replayed(standby, end_lsn, timeout_s=20)
    return end_lsn


def wait_for_the_last_commit(cluster: Gated) -> Lsn:
    """Wait, after the primary has ended, until all WAL of it that the proxy has received is committed; return its end.

    A primary's last WAL, such as the checkpoint of its shutdown, is committed although no session waits for it.
    """
    ends: list[Lsn] = []

    def is_committed() -> bool:
        status = cluster.proxy.status()
        if status is None or status["state"] != "waiting_for_primary":
            return False
        ends.append(parse_lsn(status["commit_lsn"]))
        return ends[-1] == parse_lsn(status["received_lsn"])

    wait_for(is_committed, "the proxy has seen the primary end, and all of its WAL is committed")
    return ends[-1]


def wait_until_promotable(cluster: Gated, standby: LocalPostgres) -> None:
    """Wait, after the primary has ended, until `standby` has all committed WAL: without it the proxy refuses it."""
    end_lsn = wait_for_the_last_commit(cluster)
    wait_for(lambda: received_lsn(standby) >= end_lsn, "the standby has all committed WAL")


def dump(server: LocalPostgres) -> str:
    """Return everything in the server's database, by its own pg_dump."""
    command = [str(server.binaries.path("pg_dump")), "--dbname", server.conninfo()]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout
    # Newer minors write a random word there.
    return "\n".join(line for line in printed.splitlines() if not line.startswith(("\\restrict ", "\\unrestrict ")))


def assert_equal_to_primary(cluster: Gated, *standbys: LocalPostgres) -> None:
    """The standbys have the same contents as the primary, once they have replayed what it has. No client may write."""
    wait_for_everything(cluster, *standbys)
    whole = dump(cluster.postgres)
    assert "COPY public.ledger" in whole
    for standby in standbys:
        assert dump(standby) == whole


def readers_of(cluster: Gated, safekeeper_id: int) -> list[dict[str, Any]]:
    """Return those who stream from a safekeeper, by its /status."""
    return field_of(cluster.safekeepers[safekeeper_id], "readers") or []


def log_of(cluster: Gated, safekeeper_id: int) -> str:
    """Return what a safekeeper has logged."""
    return cluster.safekeepers[safekeeper_id].log_path.read_text()


def assert_log_is_calm(cluster: Gated, safekeeper_id: int, begin: int = 0) -> None:
    """Nothing from byte `begin` of a safekeeper's log on is for a person to act on."""
    lines = log_of(cluster, safekeeper_id)[begin:].splitlines()
    alarming = [line for line in lines if " ERROR " in line or "Traceback" in line]
    assert not alarming, alarming


def connect_raw(cluster: Gated, safekeeper_id: int, **options: str) -> pq.abc.PGconn:
    """Return libpq's replication connection to a safekeeper."""
    words = {"replication": "true", "dbname": "replication", "application_name": "wire", **options}
    conninfo = psycopg.conninfo.make_conninfo(cluster.standby_conninfo(safekeeper_id), **words)
    connection = pq.PGconn.connect(conninfo.encode())
    assert connection.status == pq.ConnStatus.OK, connection.get_error_message()
    return connection


class WireClient:
    """A replication client that keeps every byte of WAL that it was sent.

    It reads in a thread and reports that it has flushed what it got. Used in a `with` statement.

    Attributes:
        begin_lsn: where it began.
        server_end_lsn: the highest end of WAL that the server has named, in any message.
        problem: what was wrong with the stream, None while it goes on as it should.
    """

    def __init__(self, cluster: Gated, safekeeper_id: int, begin_lsn: Lsn, *, tli: int = 1) -> None:
        self.begin_lsn = begin_lsn
        self.server_end_lsn: Lsn = 0
        self.problem: str | None = None
        self._received = bytearray()
        self._pings = self._pings_sent = self._pongs = 0
        self._was_requested = False
        self._reported_lsn: Lsn = 0
        self._closing = threading.Event()
        self._connection = connect_raw(cluster, safekeeper_id)
        answer = self._connection.exec_(f"START_REPLICATION {format_lsn(begin_lsn)} TIMELINE {tli}".encode())
        assert answer.status == pq.ExecStatus.COPY_BOTH, self._connection.get_error_message()
        self._connection.nonblocking = 1
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join()
        self._connection.finish()

    @property
    def end_lsn(self) -> Lsn:
        """Where what it was sent ends."""
        return self.begin_lsn + len(self._received)

    def wait_for(self, end_lsn: Lsn) -> None:
        """Wait until it was sent all WAL below `end_lsn`."""
        wait_for(lambda: self.problem is not None or self.end_lsn >= end_lsn, f"WAL to {format_lsn(end_lsn)} has come")
        assert self.problem is None, self.problem

    def ping(self) -> None:
        """Request a reply of the server and wait for it: all that it had to send before has come by then."""
        pongs = self._pongs
        self._pings += 1
        wait_for(lambda: self.problem is not None or self._pongs > pongs, "the server answers")
        assert self.problem is None, self.problem

    def assert_equal_to_primary(self, cluster: Gated) -> None:
        """Every byte that it was sent is the primary's."""
        received = bytes(self._received)  # More may come meanwhile: PostgreSQL writes some WAL by itself.
        end_lsn = self.begin_lsn + len(received)
        assert received == wal_bytes(cluster.postgres.pg_wal, self.begin_lsn, end_lsn, cluster.segment_size)

    def _read(self) -> None:
        try:
            while self.problem is None and not self._closing.is_set():
                # What came together with the answer to the command is in libpq's buffer already.
                while (answer := self._connection.get_copy_data(1))[0] > 0:
                    self._take(parse_copy_message(answer[1]))
                if answer[0] < 0:
                    self.problem = f"the server ended the stream: {self._connection.get_error_message()}"
                    return
                self._send_status()
                if select.select([self._connection.socket], [], [], _TICK_S)[0]:
                    self._connection.consume_input()
        except psycopg.Error as error:
            self.problem = str(error)

    def _send_status(self) -> None:
        asked = self._pings > self._pings_sent
        if asked or self._was_requested or self._reported_lsn != self.end_lsn:
            self._pings_sent, self._reported_lsn, self._was_requested = self._pings, self.end_lsn, False
            clock_us = time.time_ns() // 1000
            update = build_status_update(self.end_lsn, self.end_lsn, 0, clock_us, reply_requested=asked)
            self._connection.put_copy_data(update)
            self._connection.flush()

    def _take(self, message: XLogData | Keepalive) -> None:
        self.server_end_lsn = max(self.server_end_lsn, message.server_end_lsn)
        if isinstance(message, XLogData):
            if message.begin_lsn != self.end_lsn:
                self.problem = f"WAL of {format_lsn(message.begin_lsn)} came, not of {format_lsn(self.end_lsn)}"
            self._received += message.payload
        elif message.reply_requested:
            self._was_requested = True
        else:
            self._pongs += 1


class ReceiveWal:
    """pg_receivewal, which streams from a safekeeper into a folder while the `with` block runs."""

    def __init__(
        self, binaries: ServerBinaries, cluster: Gated, safekeeper_id: int, folder: Path, *options: str
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self._log_path = folder.with_name(folder.name + ".log")
        self._command = receivewal_command(binaries, cluster, safekeeper_id, folder, *options)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*end_with_parent("KILL"), *self._command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/"
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Interrupt it as one does who has had enough; it ends well."""
        assert self._process is not None  # the block was entered
        self._process.send_signal(signal.SIGINT)
        assert self._process.wait(20) == 0, self.log

    @property
    def log(self) -> str:
        """What it has logged."""
        return self._log_path.read_text()

    def wait_for(self, cluster: Gated, end_lsn: Lsn, tli: int = 1) -> None:
        """Wait until its files hold the primary's bytes up to `end_lsn`."""

        def has_all() -> bool:
            assert self._process is not None and self._process.poll() is None, self.log
            return received_wal_is_whole(self.folder, cluster, end_lsn, tli)

        try:
            wait_for(has_all, f"pg_receivewal has the WAL of timeline {tli} up to {format_lsn(end_lsn)}")
        except AssertionError as error:
            raise AssertionError(f"{error}; its log: {self.log[-1000:]}") from None


def receivewal_command(
    binaries: ServerBinaries, cluster: Gated, safekeeper_id: int, folder: Path, *options: str
) -> list[str]:
    """Return the command line of a pg_receivewal that streams from a safekeeper."""
    source = cluster.standby_conninfo(safekeeper_id)
    return [str(binaries.path("pg_receivewal")), "--dbname", source, "--directory", str(folder), "-v", *options]


def received_wal_is_whole(folder: Path, cluster: Gated, end_lsn: Lsn, tli: int = 1) -> bool:
    """Return whether pg_receivewal's files of a timeline, the unfinished one too, are the primary's up to `end_lsn`.

    Raises:
        AssertionError: a segment is missing between two others, or a finished one is not the primary's byte for byte.
    """
    size, begin_lsn = cluster.segment_size, None
    for path in sorted(folder.iterdir()):
        parsed = parse_segment_name(path.name.removesuffix(".partial"), size)
        if parsed is None or parsed[0] != tli:
            continue
        _, segment_lsn = parsed
        assert begin_lsn is None or segment_lsn == begin_lsn + size, f"a segment is missing before {path.name}"
        begin_lsn = segment_lsn
        wanted_lsn = min(end_lsn, begin_lsn + size) if path.suffix else begin_lsn + size
        if wanted_lsn <= begin_lsn:
            continue
        theirs = wal_bytes(cluster.postgres.pg_wal, begin_lsn, wanted_lsn, size, tli)
        try:
            ours = path.read_bytes()[: wanted_lsn - begin_lsn]
        except FileNotFoundError:
            return False  # It was finished, and so renamed, just now.
        if path.suffix and ours != theirs:
            return False
        assert ours == theirs, f"{path.name} differs from the primary's"
    return begin_lsn is not None and begin_lsn + size >= end_lsn


def wal_bytes(pg_wal: Path, begin_lsn: Lsn, end_lsn: Lsn, segment_size: int, tli: int = 1) -> bytes:
    """Return the WAL [begin_lsn, end_lsn) as it stands in a primary's files."""
    pieces = []
    while begin_lsn < end_lsn:
        start_lsn = segment_start(begin_lsn, segment_size)
        piece_end_lsn = min(end_lsn, start_lsn + segment_size)
        with (pg_wal / segment_name(tli, start_lsn, segment_size)).open("rb") as file:
            file.seek(begin_lsn - start_lsn)
            pieces.append(file.read(piece_end_lsn - begin_lsn))
        begin_lsn = piece_end_lsn
    return b"".join(pieces)
