"""Running safekeepers as an input, through their replication listeners, which serve committed WAL and nothing else.

Any of them will do, and each knows the log up to where it has learned that it is committed. Which WAL there is, every
one is asked that answers; one that does not is left alone for a while. Bytes come from one of them, and from the next
one, from the byte reached, when it dies or turns out to lack them. Where a safekeeper reads through to an archive, old
WAL is there too.

A replication server does not say where its log begins. That is found by asking for the beginnings of segments, about
a dozen times, once. PostgreSQL's own servers answer in the same way, so a primary or a standby can be named as well;
what that serves need not be committed by the quorum.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from urllib.parse import parse_qsl

import numpy as np
import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import LSN_MAX, Lsn, format_lsn
from safekeeper.base.settings import address
from walproxy.pipeline.input.segment_index import missing, union
from walproxy.pipeline.input.wal_input import NO_OPTIONS, SAFEKEEPER_SCHEME, Buffer, Extent, WalMissing, room_for
from walproxy.postgres.hosts import primary_hosts
from walproxy.wal_sources.source import LogPath, Origin, SourceLacks, SourceUnavailable
from walproxy.wal_sources.wal_fetch_client import ServedLog, WalFetchClient

_WHOSE = "the safekeepers'"
_CONNECT_S = 3
_ANSWER_S = 10.0
_NEXT_BYTES_S = 30.0  # They may come out of an archive.
_LEFT_ALONE_S = 30.0
# Another safekeeper may learn of a commit, or answer again, within a moment.
_PATIENCE_S = 10.0
_PAUSE_S = 0.2
_NOT_TO_BE_SET = ("host", "hostaddr", "port", "dbname", "replication", "application_name")


class _Host:
    """One safekeeper, with a connection that is kept for questions."""

    def __init__(self, server: WalFetchClient) -> None:
        self.server = server
        self.left_alone_until = float("-inf")
        self.problem = ""
        self.begins: dict[LogPath, Lsn] = {}
        self._connection: pq.abc.PGconn | None = None
        self._paths: dict[int, LogPath] = {}

    def log(self) -> ServedLog:
        """Return what it says of its WAL, over the connection of the last time if that is still good."""
        if self._connection is not None:
            try:
                return self.ask(self._connection)
            except SourceUnavailable:
                self.hang_up()  # It may have been restarted since.
        self._connection = self.server.connect()
        try:
            return self.ask(self._connection)
        except SourceUnavailable:
            self.hang_up()
            raise

    def hang_up(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.finish()
            self._connection = None

    def ask(self, connection: pq.abc.PGconn) -> ServedLog:
        """Return what it says of its WAL; what cannot have changed is not asked again."""
        with self.server.talking():
            system_id, tli, readable_lsn = self.server.identify(connection)
            path = self._paths.get(tli)
            if path is None:  # A timeline's ancestors never change.
                log = self.server.log(connection)
                self._paths[log.path.tli] = log.path
                return log
            return ServedLog(Origin(system_id, path.segment_size), path, readable_lsn)


class SafekeeperInput:
    """Safekeepers of one cluster. See WalInput.

    Args:
        url: `safekeeper://HOST:PORT[,HOST:PORT...][?KEY=VALUE&...]`, the keys being libpq's.
        options: further parameters of libpq.
    """

    def __init__(self, url: str, options: Mapping[str, str] = NO_OPTIONS) -> None:
        """Nobody is asked anything yet.

        Raises:
            ConfigurationError: the URL cannot be used.
        """
        self._url, self._options = url, dict(options)
        listed, conninfo = connection_string(url, options)
        self.name = f"the safekeepers {listed}"
        self._hosts = [
            _Host(
                WalFetchClient(
                    f"the safekeeper {host.name}",
                    host.conninfo,
                    whose=_WHOSE,
                    application_name="walproxy_pipeline",
                    timeout_s=_ANSWER_S,
                    stream_timeout_s=_NEXT_BYTES_S,
                )
            )
            for host in primary_hosts(conninfo, _WHOSE)
        ]
        self._preferred = self._hosts[0]
        self._lock = threading.Lock()
        self._known_origin: Origin | None = None
        self._known_ends: dict[LogPath, Lsn] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return SafekeeperInput, (self._url, self._options)

    def origin(self) -> Origin:
        """See WalInput."""
        with self._lock:
            return self._known_origin or next(iter(self._logs().values())).origin

    def log_path(self, tli: int | None = None) -> LogPath:
        """See WalInput. Of several hosts the one that knows the newest timeline counts."""
        with self._lock:
            logs = self._logs()
            host, log = max(logs.items(), key=lambda item: (item[1].path.tli, item[1].readable_lsn))
            if tli in (None, log.path.tli):
                return log.path
            known = (*(each for each, _ in log.path.lineage), log.path.tli)
            if tli not in known:
                listed = ", ".join(str(each) for each in known)
                raise WalMissing(f"{host.server.name} has no timeline {tli}: there is {listed}")
            return _ancestor(log.path, tli)

    def extents(self, path: LogPath) -> list[Extent]:
        """See WalInput."""
        with self._lock:
            found: list[Extent] = []
            for host, log in self._logs().items():
                end_lsn = min(path.common_end(log.path), log.readable_lsn)
                begin_lsn = self._begin_of(host, path, end_lsn, min(found).begin_lsn if found else None)
                if begin_lsn < end_lsn:
                    found.append(Extent(begin_lsn, end_lsn))
            return self._without_retreat(path, union(found))

    def _without_retreat(self, path: LogPath, extents: list[Extent]) -> list[Extent]:
        """Return the extents with the end that was known before: what is committed stays, whoever knows it now."""
        if extents:
            end_lsn = self._known_ends[path] = max(self._known_ends.get(path, 0), extents[-1].end_lsn)
            extents[-1] = extents[-1]._replace(end_lsn=end_lsn)
        return extents

    def read(self, path: LogPath, begin_lsn: Lsn, end_lsn: Lsn, into: Buffer | None = None) -> Buffer:
        """See WalInput."""
        room = room_for(begin_lsn, end_lsn, into)
        position_lsn = begin_lsn
        while position_lsn < end_lsn:
            left_lsn = dict(path.lineage).get(path.tli_of(position_lsn), LSN_MAX)
            part = Extent(position_lsn, min(end_lsn, left_lsn))
            self._read_part(path, part, room[position_lsn - begin_lsn : part.end_lsn - begin_lsn])
            position_lsn = part.end_lsn
        return room

    # Which WAL there is.

    def _logs(self) -> dict[_Host, ServedLog]:
        """Return what each host says that answers.

        Raises:
            SourceUnavailable: none does.
            SourceCorrupt: they are not all of one cluster.
        """
        found: dict[_Host, ServedLog] = {}
        now = time.monotonic()
        for host in sorted(self._hosts, key=lambda host: host.left_alone_until > now):
            if found and host.left_alone_until > now:
                break
            try:
                log = host.log()
            except SourceUnavailable as error:
                host.problem, host.left_alone_until = str(error), time.monotonic() + _LEFT_ALONE_S
                continue
            self._check_origin(host, log.origin)
            found[host] = log
        if not found:
            raise SourceUnavailable("; ".join(host.problem for host in self._hosts))
        return found

    def _check_origin(self, host: _Host, origin: Origin) -> None:
        expected = self._known_origin = self._known_origin or origin
        if origin != expected:
            raise ConfigurationError(
                f"{host.server.name} has the WAL of the system {origin.system_id} in segments of {origin.segment_size} "
                f"bytes, another one of {expected.system_id} in segments of {expected.segment_size}: name the "
                "safekeepers of one cluster"
            )

    def _begin_of(self, host: _Host, path: LogPath, end_lsn: Lsn, neighbours_lsn: Lsn | None) -> Lsn:
        """Return where the first segment begins that a host has; end_lsn if it has none.

        Args:
            neighbours_lsn: where it is with another host: probably the same.
        """
        known_lsn = host.begins.get(path)
        if known_lsn is None:
            size = path.segment_size
            neighbour = None if neighbours_lsn is None else neighbours_lsn // size
            number = first_of(lambda number: self._has(host, path, number * size), (end_lsn - 1) // size, neighbour)
            if number is None:
                return end_lsn
            known_lsn = host.begins[path] = number * size
        return known_lsn

    def _has(self, host: _Host, path: LogPath, lsn: Lsn) -> bool:
        try:
            with host.server.connected() as connection:
                for _ in host.server.stream(connection, path.tli_of(lsn), lsn, lsn + 1):
                    return True
        except SourceLacks:
            pass
        return False

    # Bytes.

    def _read_part(self, path: LogPath, part: Extent, into: Buffer) -> None:
        """Read bytes of one timeline, from as many hosts as it takes."""
        position_lsn, deadline = part.begin_lsn, time.monotonic() + _PATIENCE_S
        while True:
            problems: list[SourceLacks | SourceUnavailable] = []
            for host in sorted(self._hosts, key=lambda host: host is not self._preferred):
                try:
                    for piece in self._stream(host, path, position_lsn, part.end_lsn):
                        offset = position_lsn - part.begin_lsn
                        into[offset : offset + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
                        position_lsn += len(piece)
                        deadline = time.monotonic() + _PATIENCE_S
                except (SourceLacks, SourceUnavailable) as error:
                    problems.append(error)
                else:
                    self._preferred = host
                    return
            told = "; ".join(map(str, problems))
            if all(isinstance(problem, SourceLacks) for problem in problems):
                for host in self._hosts:
                    host.begins.clear()  # Removed since it was looked for.
                raise WalMissing(f"{missing(self.name, path, position_lsn, part.end_lsn)}: {told}")
            if time.monotonic() >= deadline:
                raise SourceUnavailable(told)
            time.sleep(_PAUSE_S)

    def _stream(self, host: _Host, path: LogPath, begin_lsn: Lsn, end_lsn: Lsn) -> Iterator[memoryview]:
        with host.server.connected() as connection:
            log = host.ask(connection)
            self._check_origin(host, log.origin)
            known_lsn = min(path.common_end(log.path), log.readable_lsn)
            if known_lsn < end_lsn:
                raise SourceUnavailable(
                    f"{host.server.name} knows the log of timeline {path.tli} only up to {format_lsn(known_lsn)}"
                )
            yield from host.server.stream(connection, path.tli_of(begin_lsn), begin_lsn, end_lsn)


def _ancestor(path: LogPath, tli: int) -> LogPath:
    """Return the path of an ancestor, whose own ancestors are the first of these."""
    lineage = tuple((each, left_lsn) for each, left_lsn in path.lineage if each < tli)
    return path._replace(tli=tli, lineage=lineage)


def first_of(has: Callable[[int], bool], last: int, neighbour: int | None) -> int | None:
    """Return the first number that `has`, given that it has all behind that up to `last`; None if not even `last`.

    Args:
        neighbour: a guess.
    """
    for guess in (1, neighbour):  # PostgreSQL begins with segment 1; what reads through to an archive has all.
        if guess is not None and guess <= last and has(guess) and (guess == 1 or not has(guess - 1)):
            return guess
    lacking, having = 0, last
    if not has(last):
        return None
    while having - lacking > 1:
        middle = (having + lacking) // 2
        lacking, having = (lacking, middle) if has(middle) else (middle, having)
    return having


def connection_string(url: str, options: Mapping[str, str]) -> tuple[str, str]:
    """Return the hosts of a URL as they are written, and libpq's connection string.

    Raises:
        ConfigurationError: it cannot be used. No value of a parameter is shown: one may be a password.
    """
    listed, _, query = url.removeprefix(f"{SAFEKEEPER_SCHEME}://").partition("?")
    listed = listed.removesuffix("/")
    if "@" in listed or "/" in listed:
        raise ConfigurationError(
            f"the input's URL has more than hosts before its parameters: write {SAFEKEEPER_SCHEME}://HOST:PORT, and "
            "user and password as ?user=..&password=.., PGUSER and PGPASSWORD, or in .pgpass"
        )
    if not all(listed.split(",")):
        raise ConfigurationError(f"{SAFEKEEPER_SCHEME}://{listed} lacks a host: write {SAFEKEEPER_SCHEME}://HOST:PORT")
    try:
        addresses = [address(part) for part in listed.split(",")]
    except ValueError as error:
        raise ConfigurationError(f"{SAFEKEEPER_SCHEME}://{listed}: {error}") from None
    try:
        given = {**dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))), **options}
    except ValueError:
        raise ConfigurationError(
            f"{SAFEKEEPER_SCHEME}://{listed}: parameters are written ?KEY=VALUE&KEY=VALUE"
        ) from None
    taken = [key for key in given if key in _NOT_TO_BE_SET]
    if taken:
        raise ConfigurationError(f"{SAFEKEEPER_SCHEME}://{listed} has no parameter {taken[0]}: leave it out")
    hosts, ports = (",".join(str(each) for each in column) for column in zip(*addresses, strict=True))
    try:
        return listed, make_conninfo("", **{"connect_timeout": str(_CONNECT_S), **given, "host": hosts, "port": ports})
    except psycopg.Error:
        unknown = ", ".join(given)
        raise ConfigurationError(f"{SAFEKEEPER_SCHEME}://{listed}: libpq does not know all of {unknown}") from None
