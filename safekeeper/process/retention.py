"""The retention of WAL: requests its removal once it is no longer needed, and warns long before the disk is full.

`acceptor.trimming` decides which WAL may be removed at all. This module adds what the acceptor has no record of: the
slots, the readers, and the operator's limit. A slot or a reader below the oldest retained WAL gets that WAL from the
archive, so it retains nothing here.

Retention runs whenever another segment was received or archived, so that the limit holds however fast WAL arrives, and
every TRIM_INTERVAL_S, because slots and readers advance without a new segment.
"""

import asyncio
import logging

from safekeeper.acceptor.trimming import TrimRequest
from safekeeper.archiving.archiver import Archiver
from safekeeper.archiving.read_through import FETCHES_AT_ONCE, SEGMENTS_KEPT
from safekeeper.base.logs import ProblemLog
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.base.status_fields import SlotStatus
from safekeeper.node.node import Node
from safekeeper.serving.readers import ReaderHub
from safekeeper.serving.slots import Slots

TRIM_INTERVAL_S = 1.0

_log = logging.getLogger(__name__)


class Retention:
    """Retains and removes the WAL of one node; one of its `LogReaders`.

    Attributes:
        keep_bytes: see TrimRequest.
        limit_bytes: limit of the retained WAL and of the archived segments that readers have fetched; None: no limit.
        slot_idle_timeout_s: a slot that no client has used for this time is dropped; None: never.
        wakes_at_lsn: see LogReaders; the end of the open segment.
    """

    def __init__(
        self,
        node: Node,
        slots: Slots,
        hub: ReaderHub | None,
        archiver: Archiver | None,
        *,
        keep_bytes: int,
        limit_bytes: int | None,
        slot_idle_timeout_s: float | None = None,
    ) -> None:
        self._node = node
        self._slots = slots
        self._hub = hub
        self._archiver = archiver
        self._problem = ProblemLog(_log)
        self._seen = (0, 0)
        self.wakes_at_lsn: Lsn = 0
        self.keep_bytes = keep_bytes
        self.limit_bytes = limit_bytes
        self.slot_idle_timeout_s = slot_idle_timeout_s

    async def run(self) -> None:
        """Drop idle slots and remove WAL periodically, until cancelled."""
        while True:
            if self.slot_idle_timeout_s is not None:
                await self._slots.drop_idle(self.slot_idle_timeout_s)
            self.look()
            await asyncio.sleep(TRIM_INTERVAL_S)

    def update(self) -> None:
        """See node.LogReaders."""
        acceptor = self._node.acceptor
        segment_size = acceptor.control.segment_size or 1
        seen = (acceptor.write_lsn // segment_size, acceptor.archived_lsn // segment_size)
        self.wakes_at_lsn = (seen[0] + 1) * segment_size
        if seen != self._seen:
            self._seen = seen
            # Not from within this event: the removal is an event of its own.
            asyncio.get_running_loop().call_soon(self.look)

    def look(self) -> None:
        """Request the removal of WAL that may go, and warn if more than the limit remains."""
        self._node.trim(self._request)
        self._warn()

    def _request(self) -> TrimRequest:
        has_archive = self._archiver is not None
        return TrimRequest(self.wanted_lsn(), self.keep_bytes, self._wal_room(), has_archive=has_archive)

    def _wal_room(self) -> int | None:
        """Return the part of the limit that is left for segment files; at least three quarters of it."""
        if self.limit_bytes is None or self._archiver is None or self._hub is None:
            return self.limit_bytes
        cache_bytes = (SEGMENTS_KEPT + FETCHES_AT_ONCE) * self._node.acceptor.control.segment_size
        return self.limit_bytes - min(cache_bytes, self.limit_bytes // 4)

    def described_slots(self) -> list[SlotStatus]:
        """Return the slots, by name, as /status and /metrics show them."""
        begin_lsn, end_lsn = self._node.folder.begin_lsn, self._node.acceptor.write_lsn
        return [
            SlotStatus(
                name=slot.name,
                restart_lsn=format_lsn(slot.restart_lsn) if slot.restart_lsn else None,
                active=slot.holder != 0,
                temporary=slot.temporary,
                idle_s=round(self._slots.idle_s(slot), 3),
                retained_bytes=max(0, end_lsn - slot.restart_lsn) if slot.restart_lsn >= begin_lsn else 0,
            )
            for slot in self._slots.describe()
        ]

    def wanted_lsn(self) -> Lsn | None:
        """Return the oldest retained WAL that a slot or a reader needs, None if none needs any."""
        positions = [slot.restart_lsn for slot in self._slots.describe()]
        if self._hub is not None:
            positions += [reader.position_lsn for reader in self._hub.readers]
        begin_lsn = self._node.folder.begin_lsn
        return min((lsn for lsn in positions if lsn >= begin_lsn), default=None)

    @property
    def is_over_limit(self) -> bool:
        """Whether more WAL is retained than the limit allows."""
        return self.limit_bytes is not None and self._node.folder.wal_bytes > self.limit_bytes

    def _warn(self) -> None:
        if self.limit_bytes is None or not self.is_over_limit:
            self._problem.over("the retained WAL is within wal_limit again", event="wal-limit-kept")
            return
        node, acceptor = self._node, self._node.acceptor
        if self._archiver is None:
            reason = "without an archive it is retained as long as a member, a slot or a reader needs it"
        elif acceptor.archived_lsn < acceptor.write_lsn - self.limit_bytes:
            reason = "it is not archived yet: " + (self._archiver.problem or "see the archiver's own log")
        elif acceptor.awaits_election:
            reason = "segments are not removed between a start or a vote and the next term: start a proxy"
        else:
            reason = "it is being removed, except two segments"
        self._problem.note(
            reason,
            "%d MiB of WAL are retained, from %s to %s, archived up to %s, more than the %d MiB of wal_limit: %s",
            node.folder.wal_bytes >> 20,
            format_lsn(node.folder.begin_lsn),
            format_lsn(acceptor.write_lsn),
            format_lsn(acceptor.archived_lsn),
            self.limit_bytes >> 20,
            reason,
            event="wal-limit-exceeded",
        )
