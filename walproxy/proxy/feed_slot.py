"""The proxy's replication slot on the primary, as one connection finds it: created, replaced, and checked.

A slot that is missing is not created before there is a cluster: a slot shows that safekeepers which are empty now were
not always empty. So a first start that is interrupted leaves no slot that would stop the next one.
"""

import asyncio
import logging
from typing import Protocol

from safekeeper.base.lsn import Lsn, format_lsn, segment_start
from walproxy.postgres.hosts import HostCandidate
from walproxy.postgres.walreceiver import ReplicationConnection
from walproxy.proposer.primary import PrimaryIdentity

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S = 5.0


class SlotOwner(Protocol):
    """The owner of a slot; called on the event loop."""

    def may_make_slot(self) -> bool:
        """Return whether a cluster is known, so that a missing slot does not mean a first start."""

    def quorum_end_lsn(self) -> Lsn:
        """Return the known end of the quorum's WAL, 0 if it has none."""


class FeedSlot:
    """The slot on one connection.

    Attributes:
        name: its name.
        is_due: it is missing, and is to be created.
    """

    def __init__(self, name: str, host: HostCandidate, owner: SlotOwner) -> None:
        self.name = name
        self.is_due = False
        self._host = host
        self._owner = owner
        self._segment_size = 0
        self._check_at = 0.0
        self._new_lsn: Lsn = 0  # the restart_lsn of a slot that was just created, until it is checked

    @property
    def is_to_be_made(self) -> bool:
        """Whether it is missing, and a cluster is known."""
        return self.is_due and self._owner.may_make_slot()

    async def find(self, receiver: ReplicationConnection, identity: PrimaryIdentity) -> bool:
        """Return whether the slot exists on a primary that was just connected; log what is unusual."""
        self._segment_size = identity.segment_size
        is_there = await receiver.has_slot(self.name)
        self.is_due = not is_there
        self._check_at = asyncio.get_running_loop().time() + CHECK_INTERVAL_S
        await self._log_idle_timeout(receiver)
        if is_there:
            await self._log_older(receiver, identity)
        return is_there

    async def ensure(self, receiver: ReplicationConnection) -> None:
        """Create the slot if it is missing, also one that was dropped while the connection was idle."""
        self.check_new(self._owner.quorum_end_lsn())
        now = asyncio.get_running_loop().time()
        if not self.is_due and now >= self._check_at:
            self._check_at = now + CHECK_INTERVAL_S
            self.is_due = not await receiver.still_has_slot(self.name)
        if self.is_to_be_made:
            await self.make(receiver)

    async def make(self, receiver: ReplicationConnection) -> None:
        """Create the slot, unless another session has meanwhile."""
        was_made = await receiver.ensure_slot(self.name)
        self.is_due = False
        if not was_made or not self._owner.quorum_end_lsn():
            return
        self._new_lsn = await receiver.slot_restart_lsn(self.name) or 0
        since = f"from {format_lsn(self._new_lsn)} on" if self._new_lsn else "from its last checkpoint on"
        logger.warning(
            'slot "%s" was missing and has been created: it retains WAL %s (expected after a promotion; otherwise '
            "find out which program drops it)",
            self.name,
            since,
        )

    async def replace(self, receiver: ReplicationConnection, reason: str, needed_lsn: Lsn) -> None:
        """Replace a slot that PostgreSQL has invalidated. It retains no WAL, so nothing is lost with it.

        Whether the primary still has the WAL that the quorum needs is found by the stream, as at each start.
        """
        logger.warning(
            'slot "%s" is replaced, because PostgreSQL has invalidated it (%s): the primary may have removed WAL since',
            self.name,
            reason,
        )
        await receiver.drop_slot(self.name)
        await receiver.ensure_slot(self.name)
        self._new_lsn = await receiver.slot_restart_lsn(self.name) or 0
        self.check_new(needed_lsn)

    def check_new(self, needed_lsn: Lsn) -> None:
        """Log an ERROR if the slot that was just created retains less WAL than the quorum needs."""
        new_lsn, self._new_lsn = self._new_lsn, 0
        # A slot retains whole segments. After a promotion it begins with a checkpoint that is above the fork.
        if 0 < needed_lsn < segment_start(new_lsn, self._segment_size):
            logger.error(
                'WAL from %s on is at risk: the quorum needs it, and slot "%s", which was missing, retains WAL only '
                "from %s on; until WAL streams, raise wal_keep_size and reload PostgreSQL",
                format_lsn(needed_lsn),
                self.name,
                format_lsn(new_lsn),
            )

    async def _log_idle_timeout(self, receiver: ReplicationConnection) -> None:
        """Log that PostgreSQL invalidates the slot when no proxy has used it for a while."""
        timeout = await receiver.idle_slot_timeout()
        if timeout != "0" and self._host.is_first("idle_replication_slot_timeout"):
            logger.warning(
                'idle_replication_slot_timeout is %s: PostgreSQL invalidates slot "%s" after that time without a '
                "proxy, and then removes WAL that the quorum lacks; set it to 0",
                timeout,
                self.name,
            )

    async def _log_older(self, receiver: ReplicationConnection, identity: PrimaryIdentity) -> None:
        """Log that the slot is older than the promotion of this server, as one in a copied data folder is.

        The slot is kept: it retains more WAL than a new one would, and advances with the first position that is sent.
        """
        if not identity.ancestors:
            return
        fork_lsn = identity.ancestors[-1].end_lsn
        restart_lsn = await receiver.slot_restart_lsn(self.name)
        if restart_lsn is None or restart_lsn >= fork_lsn:
            return
        if self._host.is_first(f"slot older than {identity.tli}"):
            logger.info(
                'slot "%s" is older than the promotion of this server at %s (as in a copied data folder): it '
                "retains WAL from %s on, and advances as soon as WAL streams",
                self.name,
                format_lsn(fork_lsn),
                format_lsn(restart_lsn),
            )
