"""Which input of WAL a path names.

/dir, file:///dir           an archive if there is a manifest.json in it; an archive of another tool if it has the
                            names of one (walproxy/pipeline/input/foreign); a folder of segments otherwise
s3://, gs://, az://         an archive, or one of another tool; the options are those of its store
safekeeper://HOST:PORT[,HOST:PORT...][?user=..&password=..&sslmode=..]
                            replication listeners, of one cluster; PG* variables and .pgpass count as with libpq
"""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import numpy as np
import psycopg
from psycopg.conninfo import make_conninfo

from safekeeper.archive.objects import MANIFEST_KEY
from safekeeper.archive.store import ObjectStore
from safekeeper.base.errors import ArchiveRefused, ConfigurationError
from safekeeper.base.lsn import Lsn
from safekeeper.base.settings import address
from safekeeper.waldecode.format import PAGE_HEADER_SIZE, PAGE_SIZE
from walproxy.pipeline.input.foreign.archive import ForeignArchive
from walproxy.pipeline.input.foreign.roots import find_root
from walproxy.pipeline.input.wal_input import NO_OPTIONS, SAFEKEEPER_SCHEME, OpenedInput, WalInput
from walproxy.wal_sources.archive import ArchiveSource
from walproxy.wal_sources.asking import ask
from walproxy.wal_sources.safekeeper_group import SafekeeperGroup
from walproxy.wal_sources.segment_folder import SegmentFolder
from walproxy.wal_sources.source import ByteSource, Extent, LogPath, Origin

_CHUNK_BYTES = 1 << 20


class DecodedEnd:
    """Of one segment, or of the part of it that a file has. See segment_folder.ValidEnd.

    Attributes:
        lsn: up to there the WAL is valid, as far as was last looked.
    """

    def __init__(self, begin_lsn: Lsn, segment_size: int) -> None:
        self.lsn = begin_lsn
        self._begin_lsn = begin_lsn
        self._segment_size = segment_size

    def look(self, read: Callable[[Lsn, Lsn], memoryview], end_lsn: Lsn) -> Lsn:
        """See segment_folder.ValidEnd."""
        from walproxy.pipeline.decoder.decode import decode, straddler_end

        begin_lsn = max(self._begin_lsn, self.lsn - 1 & -PAGE_SIZE)
        size, limit_lsn = _CHUNK_BYTES, end_lsn
        while begin_lsn < limit_lsn:
            wanted_lsn = min(begin_lsn + size, limit_lsn)
            wal = np.frombuffer(read(begin_lsn, wanted_lsn), dtype=np.uint8)
            reach_lsn = begin_lsn + wal.nbytes
            if reach_lsn < wanted_lsn:
                limit_lsn = reach_lsn
            decoded = decode(wal, begin_lsn, reach_lsn, self._segment_size)
            if decoded.count:
                self.lsn = max(self.lsn, int(decoded.end_lsn[-1]))
            elif wal.nbytes >= PAGE_HEADER_SIZE:
                # What began earlier ends here, if anywhere; the page that breaks off may come before that.
                under_way_lsn = straddler_end(wal[:PAGE_HEADER_SIZE].tobytes(), begin_lsn, self._segment_size)
                self.lsn = max(self.lsn, min(under_way_lsn, decoded.end.lsn))
            if decoded.end.kind == "complete":
                begin_lsn = reach_lsn
            elif decoded.end.kind == "incomplete" and reach_lsn < decoded.end.needed_until_lsn <= limit_lsn:
                begin_lsn = max(self._begin_lsn, decoded.end.lsn & -PAGE_SIZE)
                size = (decoded.end.needed_until_lsn - begin_lsn & -PAGE_SIZE) + _CHUNK_BYTES  # whole pages
            else:
                break
        return min(self.lsn, end_lsn)


_REMOTE_SCHEMES = ("s3", "gs", "az")
_CONNECT_S = 3
_NOT_TO_BE_SET = ("host", "hostaddr", "port", "dbname", "replication", "application_name")


def open_input(path: str, options: Mapping[str, str] = NO_OPTIONS) -> WalInput:
    """Return the input that `path` names; a remote one is not connected yet.

    Raises:
        ConfigurationError: it cannot be one.
    """
    scheme, has_scheme, _ = path.partition("://")
    if not has_scheme:
        return _open_folder(Path(path), options)
    if scheme == SAFEKEEPER_SCHEME:
        return OpenedInput(SafekeeperGroup, *connection_string(path, options), "walproxy_pipeline")
    if scheme == "file":
        parts = urlsplit(path)
        if parts.netloc not in ("", "localhost"):
            raise ConfigurationError(f"{path} has a remote host: write file:///path")
        return _open_folder(Path(unquote(parts.path)), options)
    if scheme not in _REMOTE_SCHEMES:
        raise ConfigurationError(
            f"{scheme}:// is not an input of WAL: give a folder, s3://, gs://, az:// or {SAFEKEEPER_SCHEME}://HOST:PORT"
        )
    return OpenedInput(RemoteArchive, path, dict(options))


def _open_folder(folder: Path, options: Mapping[str, str]) -> WalInput:
    try:
        if not folder.is_dir():
            raise ConfigurationError(f"{folder} is not a folder: correct the input's path")
        is_archive = (folder / MANIFEST_KEY).exists()
    except OSError as error:
        raise ConfigurationError(f"cannot read {folder}: {error.strerror}") from error
    # A copy may be opened where the working directory is another one.
    if is_archive:
        return OpenedInput(ArchiveSource, str(folder.absolute()), dict(options))
    if options:
        raise ConfigurationError(f"the folder {folder} takes no options: remove {', '.join(options)}")
    root = ask(lambda: find_root(ObjectStore.open(str(folder))))
    if root is not None and not root.is_plain:
        return OpenedInput(ForeignArchive, str(folder.absolute()))
    return OpenedInput(SegmentFolder, folder.absolute(), DecodedEnd)


def connection_string(url: str, options: Mapping[str, str]) -> tuple[str, str]:
    """Return the hosts of a safekeeper:// URL as they are written, and libpq's connection string.

    Args:
        options: further parameters of libpq.

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
        raise ConfigurationError(f"{SAFEKEEPER_SCHEME}://{listed} takes no parameter {taken[0]}: leave it out")
    hosts, ports = (",".join(str(each) for each in column) for column in zip(*addresses, strict=True))
    try:
        return listed, make_conninfo("", **{"connect_timeout": str(_CONNECT_S), **given, "host": hosts, "port": ports})
    except psycopg.Error:
        unknown = ", ".join(given)
        raise ConfigurationError(f"{SAFEKEEPER_SCHEME}://{listed}: libpq does not accept all of {unknown}") from None


class RemoteArchive:
    """See ByteSource."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        """Open it; no request is sent yet.

        Raises:
            ConfigurationError: the URL or an option cannot be used.
        """
        self._archive = ArchiveSource(url, options)
        self._foreign = ForeignArchive(url, options)
        self.name = self._archive.name
        self._lock = threading.Lock()
        self._known: ByteSource | None = None

    def origin(self) -> Origin:
        """See WalSource."""
        return self._source().origin()

    def log_path(self, tli: int | None = None) -> LogPath:
        """See ByteSource."""
        return self._source().log_path(tli)

    def extents(self, path: LogPath, begin_lsn: Lsn = 0) -> list[Extent]:
        """See WalSource."""
        return self._source().extents(path, begin_lsn)

    def read_into(self, path: LogPath, begin_lsn: Lsn, room: memoryview) -> None:
        """See ByteSource."""
        self._source().read_into(path, begin_lsn, room)

    def _source(self) -> ByteSource:
        with self._lock:
            if self._known is None:
                self._known = self._found()
            return self._known

    def _found(self) -> ByteSource:
        try:
            self._archive.origin()
        except ArchiveRefused:
            if ask(lambda: find_root(self._foreign.store)) is None:
                raise
            return self._foreign
        return self._archive
