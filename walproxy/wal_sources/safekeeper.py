"""A running safekeeper as a source of WAL, through its replication listener.

It serves what is committed, as far as it knows, and where it reads through to an archive also what it has removed. A
connection is made for each question: recovery asks once per segment. PostgreSQL's own servers answer in the same way,
so a primary or a standby can be named as well.
"""

from collections.abc import Callable
from pathlib import Path

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import LSN_MAX, Lsn, segment_start
from walproxy.postgres.hosts import primary_hosts
from walproxy.wal_sources.source import LogPath, Offer, Origin, SourceLacks
from walproxy.wal_sources.wal_fetch_client import ServedLog, WalFetchClient

_WHOSE = "the safekeepers'"


class SafekeeperSource:
    """One safekeeper.

    Args:
        host: how messages call it.
        conninfo: of this host alone.
        timeout_s: without a word for so long it counts as unreachable.
    """

    def __init__(self, host: str, conninfo: str, *, timeout_s: float = 10.0) -> None:
        self.name = f"the safekeeper {host}"
        self._server = WalFetchClient(
            self.name,
            conninfo,
            whose=_WHOSE,
            application_name="walproxy_recovery",
            timeout_s=timeout_s,
            advice="; if it is lost for good, leave it out of --safekeepers",
        )

    def origin(self) -> Origin:
        """See WalSource."""
        with self._server.connected() as connection:
            return self._server.log(connection).origin

    def offers(self, tli: int, begin_lsn: Lsn) -> list[Offer]:
        """See WalSource."""
        with self._server.connected() as connection:
            log = self._server.log(connection)
        end_lsn = self._end_of(log, tli, begin_lsn)
        if end_lsn <= begin_lsn:
            return []
        return [Offer(self.name, begin_lsn, end_lsn, end_lsn, self._writer(tli, begin_lsn, end_lsn))]

    def history(self, tli: int) -> bytes | None:
        """See WalSource."""
        with self._server.connected() as connection:
            return self._server.history(connection, tli)

    def has_later(self, tli: int, begin_lsn: Lsn) -> str | None:
        """See WalSource. A safekeeper's log has no hole: what it lacks was removed, and what follows is there."""
        with self._server.connected() as connection:
            log = self._server.log(connection)
        later_lsn = begin_lsn + log.origin.segment_size
        if self._end_of(log, tli, later_lsn) <= later_lsn:
            return None
        return log.path.name_of(later_lsn)

    def reach(self, path: LogPath, begin_lsn: Lsn) -> Lsn:
        """See WalSource."""
        with self._server.connected() as connection:
            log = self._server.log(connection)
            common_lsn = min(path.common_end(log.path), log.readable_lsn)
            if begin_lsn >= common_lsn:
                return begin_lsn
            start_lsn = segment_start(begin_lsn, log.origin.segment_size)
            try:
                for _ in self._server.stream(connection, path.tli_of(begin_lsn), start_lsn, start_lsn + 1):
                    return common_lsn
            except SourceLacks:
                pass
            return begin_lsn

    def next_after(self, path: LogPath, lsn: Lsn) -> Lsn | None:
        """See WalSource. Where its log begins it does not say, so the answer may be too low."""
        with self._server.connected() as connection:
            log = self._server.log(connection)
        return lsn if lsn < min(path.common_end(log.path), log.readable_lsn) else None

    def _end_of(self, log: ServedLog, tli: int, begin_lsn: Lsn) -> Lsn:
        """Return where the bytes of `tli` end that this server can send of a segment."""
        left = dict(log.path.lineage)
        if tli not in (log.path.tli, *left):
            return 0
        return min(begin_lsn + log.origin.segment_size, left.get(tli, LSN_MAX), log.readable_lsn)

    def _writer(self, tli: int, begin_lsn: Lsn, end_lsn: Lsn) -> Callable[[Path], None]:
        def write(target: Path) -> None:
            with self._server.connected() as connection, target.open("wb") as file:
                for piece in self._server.stream(connection, tli, begin_lsn, end_lsn):
                    file.write(piece)

        return write


def safekeeper_sources(conninfo: str, *, timeout_s: float = 10.0) -> list[SafekeeperSource]:
    """Return a source for each host of a libpq connection string.

    Raises:
        ConfigurationError: libpq cannot read it.
    """
    try:
        hosts = primary_hosts(conninfo, _WHOSE)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{error}; --safekeepers takes a libpq connection string of their replication listeners (--pg-listen)"
        ) from None
    return [SafekeeperSource(host.name, host.conninfo, timeout_s=timeout_s) for host in hosts]
