"""The running safekeepers of one cluster as one source of WAL, as long as one of them answers.

Any of them will do; each serves the log up to the commit position that it has received. Each one that answers is asked
which WAL it has; one that does not answer is left alone for a while. Bytes are read from one of them, and from the next
one, from the byte reached, when it dies or turns out to lack them. Where a safekeeper reads through to an archive, old
WAL is served too. WAL of a PostgreSQL server that is named instead need not be committed by the quorum.
"""

import threading
import time

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import LSN_MAX, Lsn
from walproxy.postgres.hosts import primary_hosts
from walproxy.wal_sources.ranges import missing, union
from walproxy.wal_sources.safekeeper import WHOSE, SafekeeperSource
from walproxy.wal_sources.source import Extent, LogPath, Origin, SourceUnavailable, WalMissing
from walproxy.wal_sources.wal_fetch_client import ServedLog

_ANSWER_S = 10.0
_NEXT_BYTES_S = 30.0  # They may come out of an archive.
_LEFT_ALONE_S = 30.0
# Another safekeeper may learn of a commit, or answer again, within a moment.
_PATIENCE_S = 10.0
_PAUSE_S = 0.2


class SafekeeperGroup:
    """Safekeepers of one cluster. See ByteSource.

    Args:
        listed: their addresses, for messages.
        conninfo: libpq's connection string of all of them.
        application_name: what we call ourselves there.
    """

    def __init__(self, listed: str, conninfo: str, application_name: str) -> None:
        """Prepare the list of safekeepers; none is asked yet.

        Raises:
            ConfigurationError: libpq cannot read the connection string.
        """
        self.name = f"the safekeepers {listed}"
        self._hosts = [
            SafekeeperSource(
                host.name,
                host.conninfo,
                application_name=application_name,
                timeout_s=_ANSWER_S,
                stream_timeout_s=_NEXT_BYTES_S,
                advice="",
            )
            for host in primary_hosts(conninfo, WHOSE)
        ]
        self._preferred = self._hosts[0]
        self._left_alone_until: dict[SafekeeperSource, float] = {}
        self._problems: dict[SafekeeperSource, str] = {}
        self._lock = threading.Lock()
        self._known_origin: Origin | None = None
        self._known_ends: dict[LogPath, Lsn] = {}

    def origin(self) -> Origin:
        """See WalSource."""
        with self._lock:
            return self._known_origin or next(iter(self._logs().values())).origin

    def log_path(self, tli: int | None = None) -> LogPath:
        """See ByteSource. Of several hosts the one with the newest timeline counts."""
        with self._lock:
            logs = self._logs()
            host, log = max(logs.items(), key=lambda item: (item[1].path.tli, item[1].readable_lsn))
            if tli in (None, log.path.tli):
                return log.path
            known = (*(each for each, _ in log.path.lineage), log.path.tli)
            if tli not in known:
                listed = ", ".join(str(each) for each in known)
                raise WalMissing(f"{host.name} has no timeline {tli}: it has {listed}")
            return log.path.ancestor(tli)

    def extents(self, path: LogPath, begin_lsn: Lsn = 0) -> list[Extent]:
        """See WalSource."""
        with self._lock:
            found: list[Extent] = []
            for host, log in self._logs().items():
                found += host.extents_of(log, path, begin_lsn, min(found).begin_lsn if found else None)
            return self._without_retreat(path, union(found))

    def _without_retreat(self, path: LogPath, extents: list[Extent]) -> list[Extent]:
        """Extend the extents to the end that was reported before: committed WAL stays committed."""
        if extents:
            end_lsn = self._known_ends[path] = max(self._known_ends.get(path, 0), extents[-1].end_lsn)
            extents[-1] = extents[-1]._replace(end_lsn=end_lsn)
        return extents

    def read_into(self, path: LogPath, begin_lsn: Lsn, room: memoryview) -> None:
        """See ByteSource."""
        position_lsn, end_lsn = begin_lsn, begin_lsn + len(room)
        while position_lsn < end_lsn:
            left_lsn = dict(path.lineage).get(path.tli_of(position_lsn), LSN_MAX)
            part = Extent(position_lsn, min(end_lsn, left_lsn))
            self._read_part(path, part, room[position_lsn - begin_lsn : part.end_lsn - begin_lsn])
            position_lsn = part.end_lsn

    def _logs(self) -> dict[SafekeeperSource, ServedLog]:
        """Return the log that each host that answers reports.

        Raises:
            SourceUnavailable: none does.
            ConfigurationError: they are not all of one cluster.
        """
        found: dict[SafekeeperSource, ServedLog] = {}
        now = time.monotonic()
        alone = {host: until > now for host, until in self._left_alone_until.items()}
        for host in sorted(self._hosts, key=lambda host: alone.get(host, False)):
            if found and alone.get(host, False):
                break
            try:
                log = host.log()
            except SourceUnavailable as error:
                self._problems[host] = str(error)
                self._left_alone_until[host] = time.monotonic() + _LEFT_ALONE_S
                continue
            self._admit(host, log.origin)
            found[host] = log
        if not found:
            raise SourceUnavailable("; ".join(self._problems[host] for host in self._hosts))
        return found

    def _admit(self, host: SafekeeperSource, origin: Origin) -> None:
        """Make sure that a host has the WAL of the same system as the others."""
        expected = self._known_origin = self._known_origin or origin
        if origin != expected:
            raise ConfigurationError(
                f"{host.name} has the WAL of the system {origin.system_id} in segments of {origin.segment_size} "
                f"bytes, another one of {expected.system_id} in segments of {expected.segment_size}: name the "
                "safekeepers of one cluster"
            )

    def _read_part(self, path: LogPath, part: Extent, into: memoryview) -> None:
        """Read bytes of one timeline, from as many hosts as it takes."""
        position_lsn, deadline = part.begin_lsn, time.monotonic() + _PATIENCE_S
        while True:
            problems: list[WalMissing | SourceUnavailable] = []
            for host in sorted(self._hosts, key=lambda host: host is not self._preferred):

                def admit(origin: Origin, host: SafekeeperSource = host) -> None:
                    self._admit(host, origin)

                try:
                    for piece in host.stream(path, position_lsn, part.end_lsn, admit):
                        offset = position_lsn - part.begin_lsn
                        into[offset : offset + len(piece)] = piece
                        position_lsn += len(piece)
                        deadline = time.monotonic() + _PATIENCE_S
                except (WalMissing, SourceUnavailable) as error:
                    problems.append(error)
                else:
                    self._preferred = host
                    return
            reasons = "; ".join(map(str, problems))
            if all(isinstance(problem, WalMissing) for problem in problems):
                for host in self._hosts:
                    host.forget_begins()
                raise WalMissing(f"{missing(self.name, path, position_lsn, part.end_lsn)}: {reasons}")
            if time.monotonic() >= deadline:
                raise SourceUnavailable(reasons)
            time.sleep(_PAUSE_S)
