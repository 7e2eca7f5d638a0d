"""One running safekeeper as a source of WAL, through its replication listener.

It serves the WAL below its commit_lsn, and where it reads through to an archive also what it has removed. PostgreSQL's
own servers answer in the same way, so a primary or a standby can be named as well.

A replication server does not report where its log begins. That is found by requesting the beginnings of segments, a
dozen times at most, once: its log has no hole, so what it lacks was removed, and what follows is there.

Questions use a connection that is kept; bytes use one of their own, which is closed afterwards.
"""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from psycopg import pq

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import LSN_MAX, Lsn, format_lsn
from walproxy.postgres.hosts import primary_hosts
from walproxy.wal_sources.source import Extent, LogPath, Offer, Origin, SourceUnavailable, WalMissing
from walproxy.wal_sources.wal_fetch_client import ServedLog, WalFetchClient

WHOSE = "the safekeepers'"


class SafekeeperSource:
    """One safekeeper. See SegmentSource.

    Args:
        host: its name in messages.
        conninfo: of this host alone.
        application_name: of this program's connections.
        timeout_s: a safekeeper that does not answer for this time counts as unreachable.
        stream_timeout_s: the same for requested WAL; timeout_s if None.
        advice: what an operator may do about it when it cannot be reached.
    """

    def __init__(
        self,
        host: str,
        conninfo: str,
        *,
        application_name: str = "walproxy_recovery",
        timeout_s: float = 10.0,
        stream_timeout_s: float | None = None,
        advice: str = "; if it is permanently lost, leave it out of --safekeepers",
    ) -> None:
        self.name = f"the safekeeper {host}"
        self._server = WalFetchClient(
            self.name,
            conninfo,
            whose=WHOSE,
            application_name=application_name,
            timeout_s=timeout_s,
            stream_timeout_s=stream_timeout_s,
            advice=advice,
        )
        self._lock = threading.Lock()
        self._connection: pq.abc.PGconn | None = None
        self._paths: dict[int, LogPath] = {}
        self._begins: dict[LogPath, Lsn] = {}

    def log(self) -> ServedLog:
        """Return which WAL it reports, over the last connection if that is still open."""
        with self._lock:
            if self._connection is not None:
                try:
                    return self._ask(self._connection)
                except SourceUnavailable:
                    self._hang_up()  # It may have been restarted since.
            self._connection = self._server.connect()
            try:
                return self._ask(self._connection)
            except SourceUnavailable:
                self._hang_up()
                raise

    def origin(self) -> Origin:
        """See WalSource."""
        return self.log().origin

    def extents(self, path: LogPath, begin_lsn: Lsn = 0) -> list[Extent]:
        """See WalSource."""
        return self.extents_of(self.log(), path, begin_lsn)

    def extents_of(
        self, log: ServedLog, path: LogPath, begin_lsn: Lsn = 0, neighbours_lsn: Lsn | None = None
    ) -> list[Extent]:
        """Return what `extents` does, of a log that was just reported.

        Args:
            neighbours_lsn: where another safekeeper's log begins: probably there as well.
        """
        end_lsn = min(path.common_end(log.path), log.readable_lsn)
        if begin_lsn >= end_lsn:
            return []
        first_lsn = self._begin_of(path, begin_lsn, end_lsn, neighbours_lsn)
        return [Extent(first_lsn, end_lsn)] if first_lsn < end_lsn else []

    def forget_begins(self) -> None:
        """Look for the beginning of its log again: WAL was removed since."""
        self._begins.clear()

    # Files.

    def offers(self, tli: int, begin_lsn: Lsn) -> list[Offer]:
        """See SegmentSource."""
        end_lsn = _end_of(self.log(), tli, begin_lsn)
        if end_lsn <= begin_lsn:
            return []
        return [Offer(self.name, begin_lsn, end_lsn, end_lsn, self._writer(tli, begin_lsn, end_lsn))]

    def history(self, tli: int) -> bytes | None:
        """See SegmentSource."""
        with self._server.connected() as connection:
            return self._server.history(connection, tli)

    def has_later(self, tli: int, begin_lsn: Lsn) -> str | None:
        """See SegmentSource."""
        log = self.log()
        later_lsn = begin_lsn + log.origin.segment_size
        return log.path.name_of(later_lsn) if _end_of(log, tli, later_lsn) > later_lsn else None

    def _writer(self, tli: int, begin_lsn: Lsn, end_lsn: Lsn) -> Callable[[Path], None]:
        def write(target: Path) -> None:
            with self._server.connected() as connection, target.open("wb") as file:
                for piece in self._server.stream(connection, tli, begin_lsn, end_lsn):
                    file.write(piece)

        return write

    # Bytes.

    def stream(
        self, path: LogPath, begin_lsn: Lsn, end_lsn: Lsn, admit: Callable[[Origin], None]
    ) -> Iterator[memoryview]:
        """Yield the bytes [begin_lsn, end_lsn) of `path`, all of one timeline.

        Args:
            admit: raises what is to be raised if it has the WAL of another system by now.

        Raises:
            SourceUnavailable: not all of them are below its commit_lsn yet, or it does not answer.
            WalMissing: they have been removed.
        """
        with self._server.connected() as connection:
            log = self._ask(connection)
            admit(log.origin)
            known_lsn = min(path.common_end(log.path), log.readable_lsn)
            if known_lsn < end_lsn:
                raise SourceUnavailable(
                    f"{self.name} has committed WAL of timeline {path.tli} only up to {format_lsn(known_lsn)}"
                )
            yield from self._server.stream(connection, path.tli_of(begin_lsn), begin_lsn, end_lsn)

    # Its replies.

    def _ask(self, connection: pq.abc.PGconn) -> ServedLog:
        """Return which WAL it reports; what cannot have changed is not asked again."""
        with self._server.talking():
            system_id, tli, readable_lsn = self._server.identify(connection)
            path = self._paths.get(tli)
            if path is None:  # A timeline's ancestors never change.
                log = self._server.log(connection)
                self._paths[log.path.tli] = log.path
                return log
            return ServedLog(Origin(system_id, path.segment_size), path, readable_lsn)

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.finish()
            self._connection = None

    def _begin_of(self, path: LogPath, begin_lsn: Lsn, end_lsn: Lsn, neighbours_lsn: Lsn | None) -> Lsn:
        """Return where the first segment begins that it has, not before that of `begin_lsn`; end_lsn if it has none."""
        known_lsn = self._begins.get(path)
        if known_lsn is None:
            size = path.segment_size
            lacking = begin_lsn // size
            if begin_lsn and self._has(path, lacking * size):
                return lacking * size  # It may begin before.
            neighbour = None if neighbours_lsn is None else neighbours_lsn // size
            number = first_of(
                lambda number: self._has(path, number * size), (end_lsn - 1) // size, neighbour, lacking=lacking
            )
            if number is None:
                return end_lsn
            known_lsn = self._begins[path] = number * size
        return known_lsn

    def _has(self, path: LogPath, lsn: Lsn) -> bool:
        try:
            with self._server.connected() as connection:
                for _ in self._server.stream(connection, path.tli_of(lsn), lsn, lsn + 1):
                    return True
        except WalMissing:
            pass
        return False


def _end_of(log: ServedLog, tli: int, begin_lsn: Lsn) -> Lsn:
    """Return where the bytes of `tli` end that a server can send of a segment."""
    left = dict(log.path.lineage)
    if tli not in (log.path.tli, *left):
        return 0
    return min(begin_lsn + log.origin.segment_size, left.get(tli, LSN_MAX), log.readable_lsn)


def first_of(has: Callable[[int], bool], last: int, neighbour: int | None, *, lacking: int = 0) -> int | None:
    """Return the first number that `has`, given that it has all after that up to `last`; None if not even `last`.

    Args:
        neighbour: a guess.
        lacking: it does not have that, nor any before.
    """
    for guess in (1, neighbour):  # PostgreSQL begins with segment 1; what reads through to an archive has all.
        if guess is not None and lacking < guess <= last and has(guess) and (guess == 1 or not has(guess - 1)):
            return guess
    if last <= lacking or not has(last):
        return None
    having = last
    while having - lacking > 1:
        middle = (having + lacking) // 2
        lacking, having = (lacking, middle) if has(middle) else (middle, having)
    return having


def safekeeper_sources(conninfo: str, *, timeout_s: float = 10.0) -> list[SafekeeperSource]:
    """Return a source for each host of a libpq connection string.

    Raises:
        ConfigurationError: libpq cannot read it.
    """
    try:
        hosts = primary_hosts(conninfo, WHOSE)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{error}; --safekeepers takes a libpq connection string of their replication listeners (--pg-listen)"
        ) from None
    return [SafekeeperSource(host.name, host.conninfo, timeout_s=timeout_s) for host in hosts]
