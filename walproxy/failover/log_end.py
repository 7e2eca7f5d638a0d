"""Where the quorum's log ends under a seal, and what a standby must have before it is promoted (protocol, step 13).

A standby never receives byte X, the log's end, if a record is open there: readers get whole records of such a log only
when its rest is there. So what counts is the end of the last complete record at or below X. It is found by reading
forward at a member that has adopted the sealing term: from one of the last pages, since each says where its first
record begins; or, where that is of no use, from the beginning of the last segment.
"""

import contextlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import Lsn, format_lsn, segment_start
from safekeeper.base.settings import Address
from safekeeper.base.timelines import Lineage, parse_timeline_history
from safekeeper.consensus.messages import Elected, PeerRead, ReadResponse
from safekeeper.net.safekeeper_connection import Credentials
from safekeeper.waldecode.format import PAGE_SIZE, WalFormatError
from safekeeper.waldecode.records import RecordDecoder
from walproxy.proxy.safekeeper_requests import SafekeeperRequests

_READ_BYTES = 1 << 20
# A whole segment of small records takes a second to decode, in which no commit is acknowledged.
_TAIL_BYTES = 128 << 10

Read = Callable[[Lsn, Lsn], Awaitable[bytes]]


@dataclass(frozen=True)
class LogEnd:
    """The end of a log that is sealed.

    Attributes:
        tli: the timeline of the last byte.
        lineage: its ancestors.
        end_lsn: X; everything that may have been acknowledged is below it.
        records_end_lsn: the end of the last complete record at or below X, 0 if the log has none.
        given: the highest timeline that was handed out for a promotion.
        is_estimate: it is not sealed yet: positions and lineage are what is known before.
    """

    system_id: int
    tli: int
    lineage: Lineage
    end_lsn: Lsn
    records_end_lsn: Lsn
    given: int
    is_estimate: bool = False

    def left_lsn(self, tli: int) -> Lsn | None:
        """Return up to where the log is on `tli`: its end for the last timeline, None for one that it is not on."""
        return self.end_lsn if tli == self.tli else dict(self.lineage).get(tli)


async def find_log_end(
    elected: Elected, safekeepers: Sequence[tuple[int, Address]], credentials: Credentials
) -> LogEnd:
    """Return the end of the log of the term that `elected` has begun, and that is still led.

    Raises:
        WalproxyError: no member of the term delivers the log's end, or it cannot be decoded.
    """
    entry = elected.history[-1]
    contents = {history.tli: history.content for history in elected.tli_histories}
    wal = TermWal(elected, safekeepers, credentials)
    try:
        records_end_lsn = await last_record_end(wal.read, elected.base_lsn, entry.start_lsn, elected.segment_size)
    finally:
        await wal.close()
    return LogEnd(
        system_id=elected.system_id,
        tli=entry.tli,
        lineage=parse_timeline_history(entry.tli, contents[entry.tli]) if entry.tli in contents else (),
        end_lsn=entry.start_lsn,
        records_end_lsn=records_end_lsn,
        given=entry.given,
    )


async def last_record_end(read: Read, begin_lsn: Lsn, end_lsn: Lsn, segment_size: int) -> Lsn:
    """Return the end of the last complete record of the log [begin_lsn, end_lsn), 0 if none is complete.

    Args:
        read: returns the log's bytes [begin, end).
        begin_lsn: a segment's start.

    Raises:
        WalproxyError: the log cannot be decoded.
    """
    start_lsn = segment_start(max(end_lsn - 1, begin_lsn), segment_size)
    tail_lsn = (end_lsn - 1) // PAGE_SIZE * PAGE_SIZE - _TAIL_BYTES
    if tail_lsn > start_lsn:
        # Pages that were never written follow the record that ends a segment early.
        with contextlib.suppress(WalFormatError):
            found_lsn = await _record_end_from(read, tail_lsn, end_lsn, segment_size)
            if found_lsn:
                return found_lsn
    while True:
        try:
            found_lsn = await _record_end_from(read, start_lsn, end_lsn, segment_size)
        except WalFormatError as error:
            raise WalproxyError(
                f"the log between {format_lsn(start_lsn)} and {format_lsn(end_lsn)} is damaged: {error}; walproxy "
                "check reports more"
            ) from None
        if found_lsn or start_lsn <= begin_lsn:
            return found_lsn
        start_lsn -= segment_size


async def _record_end_from(read: Read, start_lsn: Lsn, end_lsn: Lsn, segment_size: int) -> Lsn:
    """Return the end of the last complete record below `end_lsn`, 0 if none ends between a page's start and there.

    Raises:
        WalFormatError: this is not WAL.
        WalproxyError: it cannot be read.
    """
    decoder, found_lsn = RecordDecoder(start_lsn, segment_size), 0
    for position_lsn in range(start_lsn, end_lsn, _READ_BYTES):
        for record in decoder.walk(await read(position_lsn, min(position_lsn + _READ_BYTES, end_lsn))):
            if record.end_lsn <= end_lsn:  # A switch record fills its segment.
                found_lsn = record.end_lsn
    skipped_until = decoder.skipped_until or 0  # Of a record that began earlier: where it ends, read or not.
    return max(found_lsn, skipped_until if skipped_until <= end_lsn else 0)


class TermWal:
    """The WAL of a term, read at any member that has adopted it."""

    def __init__(self, elected: Elected, safekeepers: Sequence[tuple[int, Address]], credentials: Credentials) -> None:
        self._elected = elected
        self._left = [SafekeeperRequests(each, address, credentials) for each, address in safekeepers]
        self._connected: SafekeeperRequests | None = None
        self._problems: list[str] = []
        self._reads = 0

    async def read(self, begin_lsn: Lsn, end_lsn: Lsn) -> bytes:
        """Return the log's bytes [begin_lsn, end_lsn).

        Raises:
            WalproxyError: no member delivers them.
        """
        found = bytearray()
        while begin_lsn + len(found) < end_lsn:
            connection = await self._connection()
            self._reads += 1
            request = PeerRead(self._elected.leader_id, self._reads, begin_lsn + len(found), end_lsn)
            try:
                found += (await connection.ask(request, ReadResponse)).payload
            except WalproxyError as error:
                self._problems.append(str(error))
                await self.close()
        return bytes(found)

    async def _connection(self) -> SafekeeperRequests:
        while self._connected is None:
            if not self._left:
                raise WalproxyError(f"no member delivers the end of the log: {'; '.join(self._problems)}")
            connection = self._left.pop(0)
            try:
                await connection.greet(secrets.token_hex(16))
            except WalproxyError as error:
                self._problems.append(str(error))
            else:
                self._connected = connection
        return self._connected

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connected = self._connected, None
        if connection is not None:
            await connection.close()
