"""The pipeline's interface to a source of WAL: a `ByteSource` read into arrays, and pickled as what opened it."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from safekeeper.base.lsn import Lsn
from walproxy.wal_sources.source import ByteSource, LogPath, WalSource

Buffer = NDArray[np.uint8]

NO_OPTIONS: Mapping[str, str] = MappingProxyType({})
SAFEKEEPER_SCHEME = "safekeeper"


class WalInput(WalSource, Protocol):
    """One input. Blocking, thread-safe, picklable: the copy opens it again. Errors are those of `ByteSource`."""

    def log_path(self, tli: int | None = None) -> LogPath:
        """See ByteSource."""
        ...

    def read(self, path: LogPath, begin_lsn: Lsn, end_lsn: Lsn, into: Buffer | None = None) -> Buffer:
        """Return the bytes [begin_lsn, end_lsn) of `path`, raw.

        Args:
            into: where to put them, of exactly that size; a new array if None.

        Raises:
            As ByteSource.read_into.
        """
        ...


class OpenedInput:
    """A source as an input. See WalInput.

    Args:
        opener: what makes the source: it is called again with the same arguments where a copy is unpickled.
    """

    def __init__(self, opener: Callable[..., ByteSource], *arguments: object) -> None:
        self._opened_with = (opener, *arguments)
        self._source = opener(*arguments)
        self.name = self._source.name
        self.origin = self._source.origin
        self.log_path = self._source.log_path
        self.extents = self._source.extents

    def __reduce__(self) -> tuple[object, ...]:
        return OpenedInput, self._opened_with

    def read(self, path: LogPath, begin_lsn: Lsn, end_lsn: Lsn, into: Buffer | None = None) -> Buffer:
        """See WalInput."""
        room = room_for(begin_lsn, end_lsn, into)
        self._source.read_into(path, begin_lsn, room.data)
        return room


def room_for(begin_lsn: Lsn, end_lsn: Lsn, into: Buffer | None) -> Buffer:
    """Return `into`, checked, or a new array for these bytes."""
    if into is None:
        return np.empty(end_lsn - begin_lsn, dtype=np.uint8)
    if into.nbytes != end_lsn - begin_lsn or not into.flags.c_contiguous:
        raise ValueError(f"{into.nbytes} bytes of room for {end_lsn - begin_lsn} bytes of WAL")
    return into
