"""The writes of a file that its disk does not have yet: those since the last sync, as a disk's cache has them.

Kept in this process's memory and nowhere else, so that the process's sudden end loses them, as a power cut would lose
what the operating system has not synced. Pure: bytes in, bytes out; one object may be used by several threads.
"""

import threading


class UnsyncedWrites:
    """The writes to one file that no sync has covered, in their order; later ones lie over earlier ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writes: list[tuple[int, bytes]] = []

    def add(self, data: bytes, offset: int) -> None:
        """Remember a write."""
        with self._lock:
            self._writes.append((offset, bytes(data)))

    def all(self) -> list[tuple[int, bytes]]:
        """Return (offset, bytes) of each write so far, in their order."""
        with self._lock:
            return list(self._writes)

    def forget(self, count: int) -> None:
        """Forget the first `count` writes: they are on disk now."""
        with self._lock:
            del self._writes[:count]

    def end(self) -> int:
        """Return where the last byte of any of them ends, 0 without one."""
        with self._lock:
            return max((offset + len(data) for offset, data in self._writes), default=0)

    def over(self, on_disk: bytes, offset: int, length: int) -> bytes:
        """Return what a read of `length` bytes at `offset` sees, of which the disk has `on_disk`."""
        with self._lock:
            writes = [(at, data) for at, data in self._writes if at < offset + length and offset < at + len(data)]
        if not writes:
            return on_disk
        seen = bytearray(on_disk)
        for at, data in writes:
            begin, end = max(at, offset), min(at + len(data), offset + length)
            if end - offset > len(seen):
                seen += bytes(end - offset - len(seen))
            seen[begin - offset : end - offset] = data[begin - at : end - at]
        return bytes(seen)
