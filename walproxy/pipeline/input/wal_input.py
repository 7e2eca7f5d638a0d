"""What an input of WAL is, and how one is opened.

An input is asked again and again while a stream runs: `extents` says each time what is there now. What it has once
said to be there is committed, as far as that can be known: an archive holds committed WAL only, and safekeepers serve
nothing else; a folder has what its server has written.

    /dir, file:///dir           an archive if there is a manifest.json in it, a folder of segments otherwise
    s3://, gs://, az://         an archive; the options are those of its store, as in --archive-option
    safekeeper://HOST:PORT[,HOST:PORT...][?user=..&password=..&sslmode=..]
                                replication doors, of one cluster; PG* variables and .pgpass count as with libpq
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

from safekeeper.archive.objects import MANIFEST_KEY
from safekeeper.errors import ConfigurationError, WalproxyError
from safekeeper.lsn import Lsn
from walproxy.recovery.sources import LogPath, Origin

Buffer = NDArray[np.uint8]

NO_OPTIONS: Mapping[str, str] = MappingProxyType({})
SAFEKEEPER_SCHEME = "safekeeper"
_REMOTE_SCHEMES = ("s3", "gs", "az")


class WalMissing(WalproxyError):
    """WAL that was asked for is not there: never written yet, removed, or a hole."""


class Extent(NamedTuple):
    """Bytes [begin_lsn, end_lsn) of a log that are all there."""

    begin_lsn: Lsn
    end_lsn: Lsn


class WalInput(Protocol):
    """One input. Blocking, thread-safe, picklable: the copy opens it anew.

    All methods raise SourceUnavailable if it cannot be asked now, and ConfigurationError or ArchiveRefused if asking
    again is of no use.

    Attributes:
        name: how messages call it, without credentials.
    """

    name: str

    def origin(self) -> Origin:
        """Return whose WAL it has."""
        ...

    def log_path(self, tli: int | None = None) -> LogPath:
        """Return a timeline with its ancestors; the newest one if none is named. Asked anew at each call.

        Raises:
            WalMissing: there is no such timeline, or no WAL at all.
            SourceCorrupt: its history cannot be used.
        """
        ...

    def extents(self, path: LogPath) -> list[Extent]:
        """Return which bytes of `path` are there now, ascending, with holes between them. May be asked each second."""
        ...

    def read(self, path: LogPath, begin_lsn: Lsn, end_lsn: Lsn, into: Buffer | None = None) -> Buffer:
        """Return the bytes [begin_lsn, end_lsn) of `path`, raw.

        Args:
            into: where to put them, of exactly that size; a new array if None.

        Raises:
            WalMissing: some of them are not there; the message names the file.
            SourceCorrupt: a file does not have the bytes that it should.
        """
        ...


def open_input(path: str, options: Mapping[str, str] = NO_OPTIONS) -> WalInput:
    """Return the input that `path` names; a remote one is not asked anything yet.

    Raises:
        ConfigurationError: it cannot be one.
    """
    scheme, has_scheme, _ = path.partition("://")
    if not has_scheme:
        return _open_folder(path, Path(path), options)
    if scheme == SAFEKEEPER_SCHEME:
        from walproxy.pipeline.input.safekeeper_input import SafekeeperInput

        return SafekeeperInput(path, options)
    if scheme == "file":
        parts = urlsplit(path)
        if parts.netloc not in ("", "localhost"):
            raise ConfigurationError(f"{path} names another host: write file:///path")
        return _open_folder(path, Path(unquote(parts.path)), options)
    if scheme not in _REMOTE_SCHEMES:
        raise ConfigurationError(
            f"{scheme}:// is no input of WAL: give a folder, s3://, gs://, az:// or {SAFEKEEPER_SCHEME}://HOST:PORT"
        )
    from walproxy.pipeline.input.archive_input import ArchiveInput

    return ArchiveInput(path, options)


def _open_folder(path: str, folder: Path, options: Mapping[str, str]) -> WalInput:
    try:
        if not folder.is_dir():
            raise ConfigurationError(f"{folder} is no folder: correct the input's path")
        is_archive = (folder / MANIFEST_KEY).exists()
    except OSError as error:
        raise ConfigurationError(f"cannot read {folder}: {error.strerror}") from error
    if is_archive:
        from walproxy.pipeline.input.archive_input import ArchiveInput

        return ArchiveInput(path, options)
    if options:
        raise ConfigurationError(f"the folder {folder} has no options: remove {', '.join(options)}")
    from walproxy.pipeline.input.folder_input import FolderInput

    return FolderInput(folder)


def room_for(begin_lsn: Lsn, end_lsn: Lsn, into: Buffer | None) -> Buffer:
    """Return `into`, checked, or a new array for these bytes."""
    if into is None:
        return np.empty(end_lsn - begin_lsn, dtype=np.uint8)
    if into.nbytes != end_lsn - begin_lsn or not into.flags.c_contiguous:
        raise ValueError(f"{into.nbytes} bytes of room for {end_lsn - begin_lsn} bytes of WAL")
    return into
