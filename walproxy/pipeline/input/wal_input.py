"""What an input of WAL is.

An input is asked again and again while a stream runs: `extents` says each time what is there now. What it has once
said to be there is committed, as far as that can be known: an archive holds committed WAL only, and safekeepers serve
nothing else; a folder has what its server has written.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import Lsn
from walproxy.wal_sources.source import LogPath, Origin

Buffer = NDArray[np.uint8]

NO_OPTIONS: Mapping[str, str] = MappingProxyType({})
SAFEKEEPER_SCHEME = "safekeeper"


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


def room_for(begin_lsn: Lsn, end_lsn: Lsn, into: Buffer | None) -> Buffer:
    """Return `into`, checked, or a new array for these bytes."""
    if into is None:
        return np.empty(end_lsn - begin_lsn, dtype=np.uint8)
    if into.nbytes != end_lsn - begin_lsn or not into.flags.c_contiguous:
        raise ValueError(f"{into.nbytes} bytes of room for {end_lsn - begin_lsn} bytes of WAL")
    return into
