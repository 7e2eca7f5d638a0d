"""The window: the newest WAL, kept in memory for the members.

Bytes are appended as the chunks that PostgreSQL sent, and returned as views of those chunks, without a copy. They are
dropped from the beginning, whole chunks at a time: first those that every member has, and beyond the capacity those
that a quorum has. Bytes that are not committed are never dropped; when they fill the window, the proxy stops reading
from PostgreSQL (backpressure), so memory is bounded by the capacity and one read (S14).
"""

from bisect import bisect_left, bisect_right

from safekeeper.base.errors import LocalProtocolError
from safekeeper.base.lsn import Lsn, format_lsn

_COMPACT_AT = 1024


class Window:
    """The WAL [begin_lsn, end_lsn) in memory.

    Attributes:
        begin_lsn, end_lsn: the range that it contains.
        capacity_bytes: beyond this, committed bytes are dropped and uncommitted ones cause backpressure.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.begin_lsn: Lsn = 0
        self.end_lsn: Lsn = 0
        self._begins: list[Lsn] = []
        self._chunks: list[bytes | memoryview] = []
        self._head = 0  # Chunks below it are dropped; the lists are shortened from time to time.

    def reset(self, lsn: Lsn) -> None:
        """Empty the window; the next byte is the one at `lsn`."""
        self.begin_lsn = self.end_lsn = lsn
        self._begins.clear()
        self._chunks.clear()
        self._head = 0

    def append(self, begin_lsn: Lsn, chunks: list[memoryview]) -> None:
        """Append the next chunks.

        Raises:
            LocalProtocolError: they do not begin at `end_lsn`.
        """
        if begin_lsn != self.end_lsn:
            raise LocalProtocolError(f"WAL at {format_lsn(begin_lsn)} does not follow {format_lsn(self.end_lsn)}")
        for chunk in chunks:
            self._begins.append(self.end_lsn)
            self._chunks.append(chunk)
            self.end_lsn += len(chunk)

    def slices(self, begin_lsn: Lsn, end_lsn: Lsn) -> list[bytes | memoryview]:
        """Return the bytes [begin_lsn, end_lsn) as views, in order; [] for an empty range, wherever it is.

        Raises:
            LocalProtocolError: the window does not contain all of them.
        """
        if begin_lsn == end_lsn:
            return []
        if end_lsn == self.end_lsn and self.begin_lsn <= begin_lsn < end_lsn:
            # The usual case: the chunks that were appended last, whole.
            index = bisect_left(self._begins, begin_lsn, self._head)
            if index < len(self._begins) and self._begins[index] == begin_lsn:
                return self._chunks[index:]
        if not self.begin_lsn <= begin_lsn < end_lsn <= self.end_lsn:
            raise LocalProtocolError(
                f"WAL [{format_lsn(begin_lsn)}, {format_lsn(end_lsn)}) is not in the window "
                f"[{format_lsn(self.begin_lsn)}, {format_lsn(self.end_lsn)})"
            )
        index = bisect_right(self._begins, begin_lsn, self._head) - 1
        result: list[bytes | memoryview] = []
        while begin_lsn < end_lsn:
            chunk, chunk_lsn = self._chunks[index], self._begins[index]
            first, last = begin_lsn - chunk_lsn, min(len(chunk), end_lsn - chunk_lsn)
            result.append(chunk if first == 0 and last == len(chunk) else memoryview(chunk)[first:last])
            begin_lsn = chunk_lsn + last
            index += 1
        return result

    def evict(self, truncate_lsn: Lsn, commit_lsn: Lsn) -> bool:
        """Drop what every member has, and beyond the capacity what is committed. Return whether `begin_lsn` moved."""
        limit_lsn = min(commit_lsn, max(truncate_lsn, self.end_lsn - self.capacity_bytes))
        head = self._head
        while head < len(self._chunks) and self._begins[head] + len(self._chunks[head]) <= limit_lsn:
            head += 1
        if head == self._head:
            return False
        self._head = head
        self.begin_lsn = self._begins[head] if head < len(self._begins) else self.end_lsn
        # The memory of the chunks is released at once, the list entries from time to time.
        for index in range(head - 1, -1, -1):
            if self._chunks[index] is _DROPPED:
                break
            self._chunks[index] = _DROPPED
        if head >= _COMPACT_AT:
            del self._begins[:head], self._chunks[:head]
            self._head = 0
        return True


_DROPPED = b""
