"""The proxy's side of PostgreSQL: connects, identifies, streams, and tells positions.

The feed obeys: it streams when its owner says so (`start`), from where it says, and forgets it when told (`stop`). By
itself it only does what changes nothing: connect, with a growing pause, ask who is there, make the slot once there is a
cluster, and ask again now and then while idle, so that a dead connection is noticed. All callbacks run on the event
loop.

Of several hosts it tries one after the other (walproxy/postgres/hosts.py). A standby is passed over. One that its owner
refuses (`refuse`) is put aside: nothing that it has sent is handed on from then on. When every host is refused, the
feed has failed.

What it sends back to PostgreSQL are the positions of `report`, at most once per turn of the event loop when they
change, every second in any case, and every 20 ms while the walsender catches up: acknowledgements release nobody before
that. A reply that PostgreSQL asks for although nothing has changed waits a moment, because each such reply makes a
walsender that is shutting down ask again at once.

Hot standby feedback is looked at as often. It is sent when it has changed, in any case once in each COPY, because the
slot remembers what an earlier run has said, and from time to time while it holds anything back.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Protocol

import msgspec

from safekeeper.base.errors import EXIT_PRIMARY_REFUSED, RemoteProtocolError, WalproxyError
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.consensus.control_state import TliHistory
from safekeeper.waldecode.continuity import LinkCheck
from walproxy.postgres.hosts import HostRota, HostState, PrimaryHost
from walproxy.postgres.page_checksums import PageChecksums
from walproxy.postgres.problems import PrimaryProblem, ProblemKind, problem_of_identity, warnings_of_identity
from walproxy.postgres.replication_protocol import TimelineEnd
from walproxy.postgres.sql import terminate_slot_holder
from walproxy.postgres.walreceiver import ReplicationConnection
from walproxy.proposer.actions import StartReplication
from walproxy.proposer.primary import Ancestor, PrimaryIdentity

logger = logging.getLogger(__name__)

PAUSE_MIN_S = 0.1
PAUSE_MAX_S = 2.0
IDLE_CHECK_S = 1.0
STATUS_INTERVAL_S = 1.0
CATCHUP_STATUS_INTERVAL_S = 0.02
CATCHUP_LINGER_S = 1.0
FEEDBACK_INTERVAL_S = 10.0
UNCHANGED_REPLY_INTERVAL_S = 0.1
# A record that is longer than this and not complete yet cannot be waited for.
UNLINKED_BYTES_MAX = 64 << 20
SLOT_WAIT_S = 10.0
SLOT_CHECK_INTERVAL_S = 5.0


class FeedOwner(Protocol):
    """Whoever owns a feed; called on the event loop."""

    def primary_identified(self, identity: PrimaryIdentity) -> None:
        """The primary said who it is."""

    def primary_lost(self, reason: str) -> None:
        """The connection is gone; another is being made."""

    def primary_checked(self, begin_lsn: Lsn, end_lsn: Lsn, digest: PageChecksums) -> None:
        """The bytes to be compared are received, and `digest` has their checksums; nothing of them is handed on."""

    def segment_removed(self, reason: str) -> None:
        """The primary does not have the WAL any more that was asked for."""

    def wal_received(self, begin_lsn: Lsn, chunks: list[memoryview]) -> None:
        """WAL to be made durable."""

    def timeline_ended(self, next_tli: int, end_lsn: Lsn) -> None:
        """The timeline that streamed is over."""

    def primary_refused(self, reason: str) -> None:
        """The primary's WAL does not continue ours."""

    def failed(self, error: WalproxyError) -> None:
        """Waiting does not help."""

    def may_make_slot(self) -> bool:
        """Return whether a cluster is known, so that a missing slot does not mean a first start."""

    def quorum_end_lsn(self) -> Lsn:
        """Return where the quorum's WAL ends as far as is known, 0 if it has none."""


@dataclass(frozen=True)
class FeedConfig:
    """What a feed needs to know.

    Attributes:
        hosts: where the primary may be.
        silence_timeout_s: a primary that says nothing for so long, although asked, is gone.
    """

    hosts: tuple[PrimaryHost, ...]
    application_name: str
    slot: str
    connect_timeout_s: float = 5.0
    silence_timeout_s: float = 10.0


class PrimaryFeed:
    """The connection to the primary, kept up until cancelled.

    Attributes:
        rota: the hosts, and what is known of each.
        streams: whether WAL is flowing or could flow at any time.
    """

    def __init__(self, config: FeedConfig, owner: FeedOwner) -> None:
        self.rota = HostRota(config.hosts)
        self.streams = False
        self._config = config
        self._owner = owner
        self._connection: ReplicationConnection | None = None
        self._wanted: asyncio.Queue[StartReplication | None] = asyncio.Queue()
        self._refusal = ""  # why the present connection is to be left
        self._is_stopped = False  # the present connection is closed on its owner's order
        self._pause_s = PAUSE_MIN_S
        self._positions: tuple[Lsn, Lsn, Lsn] = (0, 0, 0)
        self._feedback: tuple[int, int] | None = None
        self._told_positions = (0, 0, 0)
        self._told_positions_at = 0.0
        self._told_feedback: tuple[int, int] | None = None
        self._told_feedback_at = 0.0
        self._caught_up_at = 0.0
        self._status_scheduled = False
        self._check: PageChecksums | None = None
        self._check_begin_lsn: Lsn = 0
        self._link_check: LinkCheck | None = None
        self._unlinked: list[memoryview] = []
        self._start: StartReplication | None = None
        self._paused = False
        self._warned: set[tuple[PrimaryHost, str]] = set()
        self._segment_size = 0
        self._was_connected = False
        self._slot_is_due = False
        self._slot_check_at = 0.0
        self._new_slot_lsn: Lsn = 0  # from where on the slot that was just made retains WAL, until that is checked

    # ------------------------------------------------------------------ orders

    def identify(self) -> None:
        """Ask the primary anew who it is; answered by `primary_identified`."""
        self._wanted.put_nowait(None)

    def start(self, order: StartReplication) -> None:
        """Stream as `order` says."""
        self._wanted.put_nowait(order)

    def stop(self, reason: str) -> None:
        """Close the connection, and make a new one."""
        logger.info("closing the connection to the primary: %s", reason)
        self._drop_orders()
        self._is_stopped = True
        if self._connection is not None:
            self._connection.close()

    def refuse(self, reason: str) -> None:
        """Put the present host aside: take nothing more of it, and try the others."""
        self._refusal = reason
        self._drop_orders()
        if self._connection is not None:
            self._connection.close()
        # Whoever waits for an order finds the connection closed.
        self.identify()

    @property
    def problem(self) -> str:
        """Why there is no primary, empty if there is one."""
        return self.rota.problem()

    def pause(self) -> None:
        """Read no further: the window is full."""
        self._paused = True
        if self._connection is not None:
            self._connection.pause_reading()

    def resume(self) -> None:
        """Read on."""
        self._paused = False
        if self._connection is not None:
            self._connection.resume_reading()

    @property
    def is_paused(self) -> bool:
        """Whether reading is held back."""
        return self._paused

    def report(self, write_lsn: Lsn, flush_lsn: Lsn, apply_lsn: Lsn) -> None:
        """Report the quorum's positions to PostgreSQL, at the end of this turn of the event loop (S1)."""
        self._positions = (write_lsn, flush_lsn, apply_lsn)
        if self.streams and not self._status_scheduled:
            self._status_scheduled = True
            asyncio.get_running_loop().call_soon(self._send_changed_status)

    def report_standbys(self, oldest_xmins: tuple[int, int] | None) -> None:
        """Report the oldest (xmin, catalog_xmin) that standbys need, 0 if none; None while nothing is known of them."""
        self._feedback = oldest_xmins

    # ------------------------------------------------------------------ the connection

    async def run(self) -> None:
        """Keep a connection up until cancelled or failed."""
        loop = asyncio.get_running_loop()
        status_task = asyncio.create_task(self._repeat_status())
        try:
            while True:
                if self.rota.next(loop.time()) is None:
                    await asyncio.sleep(self._pause_s)
                    self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)
                    continue
                try:
                    await self._connect()
                    await self._serve()
                except (PrimaryProblem, RemoteProtocolError) as problem:
                    failure = self._parted(problem)
                except WalproxyError as error:
                    failure = error
                else:
                    raise AssertionError("following orders ends with an error only")
                if failure is not None:
                    self._owner.failed(failure)
                    return
        finally:
            status_task.cancel()
            self._close()

    def _is_final(self, problem: PrimaryProblem) -> bool:
        """Whether waiting does not help. A login that has worked once may work again: a proxy that serves waits."""
        if problem.retry:
            return False
        return not self._was_connected or problem.exit_code == EXIT_PRIMARY_REFUSED

    async def _connect(self) -> None:
        self._drop_orders()
        self._refusal, self._is_stopped = "", False
        # Those of a connection are reported once it was verified (S10).
        self._positions = (0, 0, 0)
        connection = self._connection = await self._open()
        identity = await self._identify(connection)
        # A standby, which raises above, is left as it is.
        slot = self._config.slot
        has_slot = await connection.has_slot(slot)
        self._slot_is_due = not has_slot
        self._slot_check_at = asyncio.get_running_loop().time() + SLOT_CHECK_INTERVAL_S
        self._new_slot_lsn = 0
        if has_slot:
            await self._note_older_slot(connection, identity)
        if self._slot_is_due and self._owner.may_make_slot():
            await self._make_slot(connection)
            # The slot holds WAL from now on: positions from before it do not count.
            identity = await self._identify(connection)
        identity = msgspec.structs.replace(identity, slot=slot if has_slot else "")
        self.rota.connected()
        self._was_connected = True
        self._introduce(identity)

    async def _make_slot(self, connection: ReplicationConnection) -> None:
        """Make the slot, unless somebody else has meanwhile.

        Not before there is a cluster: the slot is the sign that empty safekeepers were not always empty. So a
        first start that ends half-way leaves no slot that would stop the next one.
        """
        slot = self._config.slot
        was_made = await connection.ensure_slot(slot)
        self._slot_is_due = False
        if not was_made or not self._owner.quorum_end_lsn():
            return
        self._new_slot_lsn = await connection.slot_restart_lsn(slot) or 0
        since = f"from {format_lsn(self._new_slot_lsn)} on" if self._new_slot_lsn else "from its last checkpoint on"
        logger.warning(
            'slot "%s" was missing and has been created: it retains WAL %s (expected after a promotion; otherwise '
            "something drops it, see docs/operations)",
            slot,
            since,
        )

    def _check_new_slot(self, needed_lsn: Lsn) -> None:
        """Log an ERROR if the slot that was just made retains less WAL than the quorum needs."""
        new_slot_lsn, self._new_slot_lsn = self._new_slot_lsn, 0
        if 0 < needed_lsn < new_slot_lsn:
            logger.error(
                'WAL from %s on is at risk: the quorum needs it, and slot "%s", which was missing, retains WAL from %s '
                "on only; until WAL streams, raise wal_keep_size and reload PostgreSQL",
                format_lsn(needed_lsn),
                self._config.slot,
                format_lsn(new_slot_lsn),
            )

    async def _note_older_slot(self, connection: ReplicationConnection, identity: PrimaryIdentity) -> None:
        """Log that the slot is older than the promotion of this server, as one in a copied data folder is.

        It is kept: it retains more than a new one would, and advances with the first position that is sent.
        """
        if not identity.ancestors:
            return
        fork_lsn = identity.ancestors[-1].end_lsn
        restart_lsn = await connection.slot_restart_lsn(self._config.slot)
        if restart_lsn is None or restart_lsn >= fork_lsn:
            return
        host, key = self.rota.current.host, f"slot older than {identity.tli}"
        if (host, key) not in self._warned:
            self._warned.add((host, key))
            logger.info(
                'slot "%s" is older than the promotion of this server at %s (a copied data folder brings it along): it '
                "retains WAL from %s on, and advances as soon as WAL streams",
                self._config.slot,
                format_lsn(fork_lsn),
                format_lsn(restart_lsn),
            )

    async def _open(self) -> ReplicationConnection:
        """Connect to the host whose turn it is."""
        config = self._config
        return await ReplicationConnection.connect(
            self.rota.current.host.conninfo,
            application_name=config.application_name,
            timeout_s=config.connect_timeout_s,
        )

    def _introduce(self, identity: PrimaryIdentity) -> None:
        self._leave_if_refused()
        self._owner.primary_identified(identity)

    def _leave_if_refused(self) -> None:
        """Raise if the connection at hand is that of a host which was refused meanwhile."""
        if self._refusal:
            raise PrimaryProblem(ProblemKind.LOST, self._refusal)

    async def _identify(self, connection: ReplicationConnection) -> PrimaryIdentity:
        facts = await connection.identify()
        problem = problem_of_identity(facts)
        if problem is not None:
            raise problem
        host = self.rota.current.host
        for warning in warnings_of_identity(facts, self._config.application_name):
            if (host, warning) not in self._warned:
                self._warned.add((host, warning))
                logger.warning("%s", warning if self.rota.is_single else f"{host.name}: {warning}")
        self._segment_size = facts.segment_size
        histories = []
        for tli in [ancestor for ancestor, _ in facts.lineage if ancestor > 1]:
            try:
                histories.append(TliHistory(tli, await connection.timeline_history(tli)))
            except PrimaryProblem as problem:
                # An old history file may be gone; the safekeepers then keep the one that they have.
                logger.debug("no history of timeline %d: %s", tli, problem)
        if facts.tli > 1:
            histories.append(TliHistory(facts.tli, facts.timeline_history))
        return PrimaryIdentity(
            system_id=facts.system_id,
            tli=facts.tli,
            flush_lsn=facts.flush_lsn,
            segment_size=facts.segment_size,
            server_version=facts.server_version,
            ancestors=tuple(Ancestor(tli, end_lsn) for tli, end_lsn in facts.lineage),
            tli_histories=tuple(histories),
            host=host.name,
        )

    async def _serve(self) -> None:
        """Follow orders on the connection until it breaks."""
        while True:
            assert self._connection is not None  # between _connect and _close
            try:
                async with asyncio.timeout(IDLE_CHECK_S):
                    order = await self._wanted.get()
            except TimeoutError:
                # Nobody reads this connection while it is idle: ask something, to see that it lives.
                await self._identify(self._connection)
                await self._keep_slot(self._connection)
                self._note_that_it_works()
                continue
            if order is None:
                if self._slot_is_due:
                    await self._make_slot(self._connection)
                self._introduce(await self._identify(self._connection))
            else:
                await self._stream(self._connection, order)

    async def _keep_slot(self, connection: ReplicationConnection) -> None:
        """Make the slot if it is missing, also one that was dropped while the connection is idle."""
        self._check_new_slot(self._owner.quorum_end_lsn())
        now = asyncio.get_running_loop().time()
        if not self._slot_is_due and now >= self._slot_check_at:
            self._slot_check_at = now + SLOT_CHECK_INTERVAL_S
            self._slot_is_due = not await connection.still_has_slot(self._config.slot)
        if self._slot_is_due and self._owner.may_make_slot():
            await self._make_slot(connection)

    async def _stream(self, connection: ReplicationConnection, order: StartReplication) -> None:
        """Stream the bytes to check, then those to keep, up to the end of the timeline."""
        self._start = order
        self._check_new_slot(order.begin_lsn)
        self._check = None
        self._unlinked = []
        self._link_check = LinkCheck(order.log_tail, self._segment_size) if order.log_tail is not None else None
        if order.previous_record_lsn is not None and self._link_check is None:
            # What cannot be checked is not streamed (S10).
            self._owner.primary_refused(
                f"the WAL before {format_lsn(order.begin_lsn)} is gone from the primary and no record of ours is known "
                "that what follows could link to (see walproxy rebootstrap)"
            )
            return
        self._told_positions = (0, 0, 0)
        # What was reported for a stream before may be of a primary that was verified, and this one is not yet (S10).
        self._feedback = None
        try:
            begin_lsn = order.check_begin_lsn
            tli = order.check_tli if begin_lsn < order.begin_lsn else order.tli
            while tli != order.tli:
                # On its earlier timelines only the primary has these bytes. An empty one ends where it begins.
                end = await self._copy(connection, begin_lsn, tli, order)
                if not tli < end.next_tli <= order.tli or not begin_lsn <= end.next_begin_lsn <= order.begin_lsn:
                    raise RemoteProtocolError(
                        f"timeline {tli} ends at {format_lsn(end.next_begin_lsn)} for timeline {end.next_tli}, "
                        f"not at or below {format_lsn(order.begin_lsn)} for timeline {order.tli}"
                    )
                begin_lsn, tli = end.next_begin_lsn, end.next_tli
            end = await self._copy(connection, begin_lsn, tli, order)
        except PrimaryProblem as problem:
            if problem.kind is ProblemKind.WAL_REMOVED and self._is_stopped:
                # Whoever has given the stream up waits for the next introduction, and gives no order before it.
                raise PrimaryProblem(ProblemKind.LOST, str(problem)) from None
            if problem.kind is ProblemKind.WAL_REMOVED:
                self.streams = False
                self._close()
                self._owner.segment_removed(str(problem))
                self._leave_if_refused()
                await self._reconnect_for_orders()
                return
            raise
        finally:
            self.streams = False
        self._owner.timeline_ended(end.next_tli, end.next_begin_lsn)

    async def _reconnect_for_orders(self) -> None:
        """Make a connection without dropping the order that came meanwhile."""
        self._connection = await self._open()

    async def _copy(
        self, connection: ReplicationConnection, begin_lsn: Lsn, tli: int, order: StartReplication
    ) -> TimelineEnd:
        await self._start_replication(connection, begin_lsn, tli)
        if begin_lsn == order.check_begin_lsn < order.begin_lsn:
            self._check = PageChecksums(self._segment_size, begin_lsn, keeps_all=True)
            self._check_begin_lsn = begin_lsn
        loop = asyncio.get_running_loop()
        self._caught_up_at = loop.time()
        self._told_feedback = None
        self.streams = True
        self._note_that_it_works()
        if self._paused:
            connection.pause_reading()
        logger.info("streaming timeline %d from %s", tli, format_lsn(begin_lsn))
        return await connection.stream(self._on_wal, self._on_keepalive)

    async def _start_replication(self, connection: ReplicationConnection, begin_lsn: Lsn, tli: int) -> None:
        """Start; a slot that is in use is taken from its holder, whom our term has deposed."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SLOT_WAIT_S
        while True:
            try:
                await connection.start_replication(self._config.slot, begin_lsn, tli)
                return
            except PrimaryProblem as problem:
                if problem.kind is not ProblemKind.SLOT_IN_USE or loop.time() > deadline:
                    raise
                self.rota.current.problem = str(problem)
            try:
                pid = await terminate_slot_holder(self.rota.current.host.conninfo, self._config.slot)
            except PrimaryProblem as problem:
                if problem.kind is ProblemKind.SLOT_IN_USE:
                    raise
                # A role that may log in for replication only cannot free the slot; its holder may go by itself.
                reason = f'slot "{self._config.slot}" is in use and could not be freed: {problem}'
                raise PrimaryProblem(ProblemKind.SLOT_IN_USE, reason, problem.sqlstate) from None
            if pid is not None:
                logger.warning('ended walsender %d, which held slot "%s" for a deposed proxy', pid, self._config.slot)

    # ------------------------------------------------------------------ the stream

    def _on_wal(self, begin_lsn: Lsn, chunks: list[memoryview]) -> None:
        start = self._start
        assert start is not None  # set before the stream began
        if begin_lsn < start.begin_lsn:
            begin_lsn, chunks = self._take_checked(begin_lsn, chunks, start.begin_lsn)
        if self._link_check is not None:
            begin_lsn, chunks = self._take_unlinked(self._link_check, start.begin_lsn, chunks)
        # The check may have refused this primary: what came behind the bytes that differ is not ours.
        if chunks and not self._refusal:
            self._owner.wal_received(begin_lsn, chunks)

    def _take_checked(self, begin_lsn: Lsn, chunks: list[memoryview], end_lsn: Lsn) -> tuple[Lsn, list[memoryview]]:
        """Feed the bytes below `end_lsn` to the check; return what is left."""
        check = self._check
        assert check is not None  # made with the COPY that begins below the range's end
        rest: list[memoryview] = []
        for chunk in chunks:
            head = min(len(chunk), end_lsn - begin_lsn)
            if head:
                check.feed(chunk[:head])
            if head < len(chunk):
                rest.append(chunk[head:] if head else chunk)
            begin_lsn += head
        if begin_lsn == end_lsn:
            self._check = None
            self._owner.primary_checked(self._check_begin_lsn, end_lsn, check)
        return begin_lsn, rest

    def _take_unlinked(
        self, check: LinkCheck, begin_lsn: Lsn, chunks: list[memoryview]
    ) -> tuple[Lsn, list[memoryview]]:
        """Hold WAL back until its first record is known to link to our last one (S10); return what may go on."""
        for chunk in chunks:
            self._unlinked.append(chunk)
            if check.feed(bytes(chunk)) is False:
                break
        if check.linked is None and sum(map(len, self._unlinked)) < UNLINKED_BYTES_MAX:
            return begin_lsn, []
        held, self._unlinked, self._link_check = self._unlinked, [], None
        if check.linked:
            logger.info("the primary's WAL continues ours: %s", check.reason)
            return begin_lsn, held
        self._owner.primary_refused(f"the primary's WAL does not continue the quorum's log: {check.reason}")
        return begin_lsn, []

    def _on_keepalive(self, server_end_lsn: Lsn, reply_requested: bool) -> None:
        if reply_requested:
            loop = asyncio.get_running_loop()
            wait_s = self._told_positions_at + UNCHANGED_REPLY_INTERVAL_S - loop.time()
            if wait_s <= 0 or self._current_positions() != self._told_positions:
                self._send_status()
            else:
                loop.call_later(wait_s, self._send_status)

    # ------------------------------------------------------------------ positions

    def _current_positions(self) -> tuple[Lsn, Lsn, Lsn]:
        """Return what may be said on this stream: never more than was received on it."""
        connection = self._connection
        received_lsn = connection.received_lsn if connection is not None else 0
        write_lsn, flush_lsn, apply_lsn = self._positions
        return min(write_lsn, received_lsn), min(flush_lsn, received_lsn), min(apply_lsn, received_lsn)

    def _send_changed_status(self) -> None:
        self._status_scheduled = False
        if self._current_positions() != self._told_positions:
            self._send_status()

    def _send_status(self, reply_requested: bool = False) -> None:
        if not self.streams or self._connection is None:
            return
        self._told_positions = self._current_positions()
        self._told_positions_at = asyncio.get_running_loop().time()
        self._connection.send_status(*self._told_positions, reply_requested=reply_requested)
        if self.rota.current.is_distrusted and any(self._told_positions):
            self._note_that_it_fits()

    def _send_feedback_if_due(self, connection: ReplicationConnection, now: float) -> None:
        feedback = self._feedback
        if feedback is None:
            return
        repeat = any(feedback) and now - self._told_feedback_at >= FEEDBACK_INTERVAL_S
        if repeat or feedback != self._told_feedback:
            self._told_feedback, self._told_feedback_at = feedback, now
            connection.send_hot_standby_feedback(*feedback)

    async def _repeat_status(self) -> None:
        """Repeat the positions, tell what the standbys need, and notice a primary that is silent."""
        loop = asyncio.get_running_loop()
        while True:
            connection = self._connection
            interval_s = STATUS_INTERVAL_S
            if self.streams and connection is not None:
                now = loop.time()
                if connection.server_end_lsn > connection.received_lsn:
                    self._caught_up_at = now
                if now - self._caught_up_at < CATCHUP_LINGER_S:
                    interval_s = CATCHUP_STATUS_INTERVAL_S
                due = now - self._told_positions_at >= STATUS_INTERVAL_S
                if due or (interval_s < STATUS_INTERVAL_S and any(self._told_positions)):
                    self._send_status(reply_requested=due)
                self._send_feedback_if_due(connection, now)
                silent_s = now - connection.last_message_s
                if not self._paused and silent_s > self._config.silence_timeout_s:
                    logger.warning("the primary has said nothing for %.0f s: connecting anew", silent_s)
                    connection.close()
            await asyncio.sleep(interval_s if interval_s < STATUS_INTERVAL_S else STATUS_INTERVAL_S / 4)

    # ------------------------------------------------------------------ the end

    def _note_that_it_works(self) -> None:
        """The connection is of use: a problem that comes from now on is a new one, and may pass quickly."""
        candidate = self.rota.current
        self.rota.connected()
        is_another = self.rota.works()
        self._pause_s = PAUSE_MIN_S
        if is_another or (candidate.told and not candidate.is_distrusted):
            if self.rota.is_single:
                logger.info("connected to the primary")
            else:
                logger.info("connected to the primary at %s", candidate.host.name)
        if not candidate.is_distrusted:
            candidate.told = ""

    def _note_that_it_fits(self) -> None:
        """PostgreSQL is told what the quorum has: its WAL was found to be ours, although it had been refused before."""
        candidate = self.rota.current
        candidate.is_distrusted, candidate.told = False, ""
        logger.info("the primary at %s is not refused any more", candidate.host.name)

    def _parted(self, problem: WalproxyError) -> WalproxyError | None:
        """The connection is gone, or could not be made; return what ends the feed, None if it goes on."""
        self._close()
        rota, now = self.rota, asyncio.get_running_loop().time()
        final = isinstance(problem, PrimaryProblem) and self._is_final(problem)
        if self._refusal:
            rota.refused(self._refusal, now)
        elif final and rota.is_single:
            return problem
        elif final:
            rota.refused(str(problem), now, problem.exit_code)
        else:
            is_standby = isinstance(problem, PrimaryProblem) and problem.kind is ProblemKind.IN_RECOVERY
            rota.failed(HostState.STANDBY if is_standby else HostState.UNREACHABLE, str(problem))
        self._tell_once()
        self._owner.primary_lost(rota.current.problem)
        return rota.verdict()

    def _tell_once(self) -> None:
        candidate = self.rota.current
        if candidate.problem == candidate.told:
            return
        candidate.told = candidate.problem
        if self.rota.is_single:
            logger.warning("no primary: %s", candidate.problem)
        elif candidate.state is HostState.REFUSED:
            logger.warning("the primary at %s is refused: %s", candidate.host.name, candidate.problem)
        elif candidate.state is HostState.STANDBY:
            logger.info("passed over %s: %s", candidate.host.name, candidate.problem)
        else:
            logger.warning("no primary at %s: %s", candidate.host.name, candidate.problem)

    def _close(self) -> None:
        self.streams = False
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _drop_orders(self) -> None:
        while not self._wanted.empty():
            self._wanted.get_nowait()

    def close_politely(self) -> None:
        """Send the last positions and close: for a proxy that stops."""
        self._send_status()
        self._close()
