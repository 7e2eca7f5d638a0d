"""The queue of the limbo: the transactions whose end is in WAL that is not committed, in LSN order.

`TransactionQueue` takes the WAL from a page's start or a record's start on, in pieces of any size, and reads each byte
once. It has the COMMIT, COMMIT PREPARED, PREPARE TRANSACTION, ROLLBACK and ROLLBACK PREPARED records whose end is above
the position that is reported to PostgreSQL. It only advances, so entries leave at the head. Memory is bounded: when
`ENTRIES_MAX` entries wait, no further WAL is read until some leave.

If another timeline replaces the WAL of an entry, its transaction is discarded: a stock server cannot roll it back, but
the new primary does not have it. WAL of the same timeline that is received a second time has the same entries.

`Arrivals` has since when each position waits, by the proxy's monotonic clock. Pure.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Final, NamedTuple

from safekeeper.base.lsn import Lsn, segment_start
from safekeeper.waldecode import transaction_end
from safekeeper.waldecode.format import (
    FIRST_IS_CONTRECORD,
    PAGE_HEADER,
    PAGE_HEADER_SIZE,
    PAGE_SIZE,
    RM_XACT,
    WalFormatError,
    align,
    page_header_size,
)
from safekeeper.waldecode.record_body import parse_body
from safekeeper.waldecode.records import Record, RecordDecoder
from safekeeper.waldecode.transaction_end import parse_transaction_end

ENTRIES_MAX: Final = 100_000
DISCARDED_MAX: Final = 100
ARRIVALS_MAX: Final = 1 << 17
_BODY_RMIDS: Final = frozenset({RM_XACT})

KINDS: Final = {
    transaction_end.COMMIT: "commit",
    transaction_end.COMMIT_PREPARED: "commit_prepared",
    transaction_end.PREPARE: "prepare",
    transaction_end.ABORT: "abort",
    transaction_end.ABORT_PREPARED: "abort_prepared",
}
ABORT: Final = "abort"
"""The only kind for which no session waits."""

Read = Callable[[Lsn, Lsn], bytes]


class Entry(NamedTuple):
    """A transaction of the queue.

    Attributes:
        kind: one of `KINDS`.
        gid: the name of a prepared transaction; empty if no record of the queue contains it.
        start_lsn, end_lsn: of the record. Its commit waits for `end_lsn`.
        time_us: the record's time, in microseconds since 2000-01-01 UTC.
        tli: the timeline of its WAL.
    """

    xid: int
    kind: str
    gid: str
    start_lsn: Lsn
    end_lsn: Lsn
    time_us: int
    tli: int


class TransactionQueue:
    """The queue.

    Attributes:
        entries: oldest first.
        unread: entries after those, of WAL that is received a second time and was not read again yet.
        discarded: the newest entries that another timeline has replaced, at most `DISCARDED_MAX`.
        discarded_total: their number since the start.
        position: the end of the WAL that was read; 0 if none was.
        problem: why the WAL cannot be read, empty if it can.
        read_bytes, read_commits: the WAL that was read since `begin`, and the commits in it.
    """

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self.entries: deque[Entry] = deque()
        self.unread: deque[Entry] = deque()
        self.discarded: deque[Entry] = deque(maxlen=DISCARDED_MAX)
        self.discarded_total = 0
        self.position: Lsn = 0
        self.problem = ""
        self.read_bytes = self.read_commits = 0
        self._entries_max = entries_max
        self._decoder: RecordDecoder | None = None
        self._reported_lsn: Lsn = 0
        self._tli = 0
        self._major = 0
        self._gids: dict[int, str] = {}  # of the PREPAREs that were read, by xid

    @property
    def is_full(self) -> bool:
        """Whether no more WAL is read until entries leave."""
        return len(self.entries) >= self._entries_max

    @property
    def skipped_until(self) -> Lsn:
        """The end of the record that could not be read because it begins below the WAL in memory; 0 without one."""
        return (self._decoder.skipped_until if self._decoder is not None else None) or 0

    def __len__(self) -> int:
        return len(self.entries) + len(self.unread)

    def __iter__(self) -> Iterator[Entry]:
        yield from self.entries
        yield from self.unread

    def begin(self, lsn: Lsn, segment_size: int, major: int, tli: int) -> None:
        """Read from `lsn` on: a page's start or a record's.

        Args:
            major: of the PostgreSQL that writes the WAL.
            tli: of the WAL at `lsn`.

        Raises:
            WalFormatError: no record can begin there.
        """
        self.stop()
        self._decoder = RecordDecoder(lsn, segment_size, _BODY_RMIDS)
        self.position, self._major, self._tli = lsn, major, tli
        while self.unread and self.unread[0].start_lsn < lsn:
            self.entries.append(self.unread.popleft())  # It is not read again, and still waits.

    def feed(self, data: bytes) -> None:
        """Read the WAL from `position` on. Of malformed WAL, `problem` has the reason, and no more is read."""
        if self._decoder is None or self.problem:
            return
        try:
            for record in self._decoder.walk(data):
                if record.rmid == RM_XACT:
                    self._add(record)
        except WalFormatError as error:
            self.problem = str(error)
            return
        self.position += len(data)
        self.read_bytes += len(data)
        self._was_read(self.position)

    def _add(self, record: Record) -> None:
        """Add the entry of a record, if it ends or prepares a transaction. Raises WalFormatError."""
        end = parse_transaction_end(record, parse_body(record, self._major).main, self._major)
        if end is None:
            return
        kind, gid = KINDS[end.operation], end.gid.decode(errors="replace")
        self.read_commits += kind in ("commit", "commit_prepared")
        if kind == "prepare":
            self._gids[end.xid] = gid
            if len(self._gids) > self._entries_max:
                del self._gids[next(iter(self._gids))]
        elif kind in ("commit_prepared", "abort_prepared"):
            gid = self._gids.pop(end.xid, gid)
        if record.end_lsn > self._reported_lsn:
            tli = (self._decoder.tli if self._decoder is not None else None) or self._tli
            self._was_read(record.end_lsn)  # Above `position` by the padding of the record.
            self.entries.append(Entry(end.xid, kind, gid, record.start_lsn, record.end_lsn, end.time_us, tli))

    def _was_read(self, lsn: Lsn) -> None:
        """Forget the entries up to `lsn` that were to be read again."""
        while self.unread and self.unread[0].end_lsn <= lsn:
            self.unread.popleft()

    def stop(self) -> None:
        """Stop reading: the WAL after `position` is not in memory, or a stream begins that repeats WAL."""
        self.unread.extendleft(reversed(self.entries))
        self.entries.clear()
        self._gids.clear()
        self._decoder, self.position, self.problem = None, 0, ""
        self.read_bytes = self.read_commits = 0

    def confirm(self, lsn: Lsn) -> int:
        """Remove the entries that end at or below `lsn`, which was reported to PostgreSQL. Return how many.

        A lower `lsn` than before removes nothing, so a repeated confirm confirms no entry twice.
        """
        self._reported_lsn = max(self._reported_lsn, lsn)
        confirmed = 0
        for entries in (self.entries, self.unread):
            while entries and entries[0].end_lsn <= self._reported_lsn:
                entries.popleft()
                confirmed += 1
        return confirmed

    def discard(self, lsn: Lsn, next_tli: int) -> list[Entry]:
        """Timeline `next_tli` begins at `lsn`: remove the entries that it does not have, and return them."""
        lost = []
        if next_tli > self._tli:
            self._reported_lsn = min(self._reported_lsn, lsn)  # Lower only if acknowledged WAL was given up.
        for entries in (self.entries, self.unread):
            kept = [each for each in entries if each.end_lsn <= lsn or each.tli >= next_tli]
            if len(kept) < len(entries):
                lost += [each for each in entries if each.end_lsn > lsn and each.tli < next_tli]
                entries.clear()
                entries.extend(kept)
        self.discarded.extend(lost)
        self.discarded_total += len(lost)
        return lost


def first_page_to_read(read: Read, lsn: Lsn, begin_lsn: Lsn, end_lsn: Lsn, segment_size: int) -> Lsn | None:
    """Return the last page's start from which all records that end above `lsn` can be read.

    A decoder that starts at a page skips the record that continues there. If each page continues one that may end above
    `lsn`, the first page is returned: the log does not contain the beginning of that record. A segment that is switched
    ends in zeros; the page returned is then the next segment's first one, perhaps beyond `end_lsn`.

    Args:
        read: returns the log's bytes [begin, end).
        lsn: in the log, or its end.
        begin_lsn, end_lsn: the log. None is returned if no page begins between its start and `lsn`.
    """
    page_lsn = lsn - lsn % PAGE_SIZE
    if page_lsn == lsn or page_lsn + PAGE_HEADER_SIZE > end_lsn:
        page_lsn -= PAGE_SIZE  # What continues at `lsn` began before.
    if page_lsn < begin_lsn:
        return lsn if lsn % PAGE_SIZE == 0 and begin_lsn == lsn else None
    header = read(page_lsn, page_lsn + PAGE_HEADER_SIZE)
    if not any(header):
        # Zeros that follow a switch record: the next records begin with the next segment.
        return segment_start(page_lsn, segment_size) + segment_size
    while page_lsn - PAGE_SIZE >= begin_lsn:
        _, flags, _, _, rest = PAGE_HEADER.unpack(read(page_lsn, page_lsn + PAGE_HEADER_SIZE))
        content_lsn = page_lsn + page_header_size(page_lsn, segment_size)
        if not flags & FIRST_IS_CONTRECORD or align(content_lsn + rest) <= min(lsn, page_lsn + PAGE_SIZE):
            break
        page_lsn -= PAGE_SIZE
    return page_lsn


class Arrivals:
    """Since when each position of the uncommitted WAL waits.

    One pair for each batch that is received, not for each commit. A transaction waits since the batch arrived that has
    the last byte of its record. Memory is bounded: beyond `ARRIVALS_MAX` batches, neighbours count as one that arrived
    when the first of them did, so no wait is shown as shorter than it is.

    Attributes:
        note: record a batch as the pair (its end, when it arrived); the caller appends, nothing else happens then.
    """

    def __init__(self, arrivals_max: int = ARRIVALS_MAX) -> None:
        self._pairs: deque[tuple[Lsn, float]] = deque()
        self._former: deque[tuple[Lsn, float]] = deque()  # of streams before this one
        self._max = arrivals_max
        self.note = self._pairs.append

    def trim(self, reported_lsn: Lsn) -> None:
        """Forget batches that end at or below `reported_lsn`, and merge neighbours of too many."""
        for pairs in (self._former, self._pairs):
            while pairs and pairs[0][0] <= reported_lsn:
                pairs.popleft()
            if len(pairs) > self._max:
                _merge_neighbours(pairs)

    def clear(self) -> None:
        """Forget all: other WAL follows."""
        self._former.clear()
        self._pairs.clear()

    def repeat(self) -> None:
        """The stream begins again at an earlier position: WAL that had arrived waits since then."""
        end_lsn = self._former[-1][0] if self._former else 0
        self._former.extend(pair for pair in self._pairs if pair[0] > end_lsn)
        self._pairs.clear()

    def since(self, lsns: Iterable[Lsn]) -> list[float | None]:
        """Return when the byte before each position arrived, None if that is unknown."""
        pairs = self._ordered()
        ends = [end_lsn for end_lsn, _ in pairs]
        found = [bisect_left(ends, lsn) for lsn in lsns]
        return [pairs[index][1] if index < len(pairs) else None for index in found]

    def oldest(self, reported_lsn: Lsn) -> float | None:
        """Return when the oldest byte above `reported_lsn` arrived; None if there is none."""
        return next((at for end_lsn, at in chain(self._former, self._pairs) if end_lsn > reported_lsn), None)

    def _ordered(self) -> list[tuple[Lsn, float]]:
        end_lsn = self._former[-1][0] if self._former else 0
        return [*self._former, *(pair for pair in self._pairs if pair[0] > end_lsn)]


def _merge_neighbours(pairs: deque[tuple[Lsn, float]]) -> None:
    """Merge each two neighbours, in place: the later end, the earlier time."""
    merged = [
        (later[0], earlier[1])
        for earlier, later in zip(islice(pairs, 0, None, 2), islice(pairs, 1, None, 2), strict=False)
    ]
    if len(pairs) % 2:
        merged.append(pairs[-1])
    pairs.clear()
    pairs.extend(merged)
