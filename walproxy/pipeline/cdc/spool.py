"""Buffer the pieces of transactions until their commit: in memory, and on disk beyond a limit (S14).

All shelves of a spool share one limit. When it is reached, the shelf that holds most goes to a temporary file that has
no name, so that no crash leaves one.
"""

import struct
import tempfile
from collections.abc import Iterator
from typing import IO

from walproxy.pipeline.cdc.transactions import Piece

MEMORY_BYTES: int = 64 << 20
_HEAD = struct.Struct("<QII")  # LSN, xid, length
_OVERHEAD_BYTES = 150
"""Python's overhead for a piece, beside the message's own bytes."""


class Spool:
    """Makes shelves. `memory_bytes` is what all of them together hold in memory, at most one message more."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self._memory_bytes = memory_bytes
        self._held_bytes = 0
        self._shelves: set[SpooledShelf] = set()

    def new(self) -> "SpooledShelf":
        """Return an empty shelf."""
        shelf = SpooledShelf(self)
        self._shelves.add(shelf)
        return shelf

    def holds(self, more_bytes: int) -> None:
        """Count bytes that a shelf holds in memory now, and make room if they are too many."""
        self._held_bytes += more_bytes
        if self._held_bytes > self._memory_bytes:
            largest = max(self._shelves, key=lambda shelf: shelf.held_bytes)
            largest.spill()

    def forget(self, shelf: "SpooledShelf") -> None:
        """Discard a shelf that stays empty."""
        self._shelves.discard(shelf)


class SpooledShelf:
    """The pieces of one transaction; first those on disk, then those in memory.

    Attributes:
        held_bytes: of them in memory.
        spilled_bytes: of them on disk.
    """

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._pieces: list[Piece] = []
        self._file: IO[bytes] | None = None
        self.held_bytes = 0
        self.spilled_bytes = 0

    def add(self, piece: Piece) -> None:
        """Append a piece. Raises OSError if it goes to disk and cannot."""
        self._pieces.append(piece)
        size = len(piece[2]) + _OVERHEAD_BYTES
        self.held_bytes += size
        self._spool.holds(size)

    def spill(self) -> None:
        """Move what is in memory to disk. Raises OSError."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="walproxy-cdc-")  # noqa: SIM115  (closed by `clear`)
        self._file.seek(0, 2)
        for lsn, xid, data in self._pieces:
            self._file.write(_HEAD.pack(lsn, xid, len(data)))
            self._file.write(data)
            self.spilled_bytes += len(data)
        self._pieces.clear()
        self._release()

    def pieces(self) -> Iterator[Piece]:
        """Yield all pieces in order. Raises OSError."""
        if self._file is not None:
            self._file.seek(0)
            while head := self._file.read(_HEAD.size):
                lsn, xid, length = _HEAD.unpack(head)
                yield lsn, xid, self._file.read(length)
        yield from self._pieces

    def clear(self) -> None:
        """Forget everything."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._pieces.clear()
        self._release()
        self._spool.forget(self)

    def _release(self) -> None:
        held, self.held_bytes = self.held_bytes, 0
        self._spool.holds(-held)
