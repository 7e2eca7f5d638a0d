"""The connection to PostgreSQL: connect, identify, stream, and report positions.

The feed streams when its owner requests it (`start`), from the requested position, until `stop`. Without a request it
only connects, with a growing pause, identifies the server, creates the slot once there is a cluster, and identifies the
server again from time to time while idle, so that a dead connection is noticed. All callbacks run on the event loop.

Of several hosts it tries one after the other (walproxy/postgres/hosts.py). A standby is skipped. A host that the owner
refuses (`refuse`) is put aside: nothing more that it has sent is passed on. When every host is refused, the feed has
failed.

It sends PostgreSQL the positions of `report` when they change, every second in any case, and every 20 ms while the
walsender catches up: until it has, acknowledgements release no commit. A reply that PostgreSQL requests although
nothing has changed is delayed for a moment, because each such reply makes a walsender that is shutting down request
another one at once.

Hot standby feedback is checked as often. It is sent when it has changed, in any case once in each COPY, because the
slot keeps the values that an earlier proxy has sent, and from time to time while it holds back vacuum.
"""

import asyncio
import logging
from collections import defaultdict
from dataclasses import dataclass
from typing import Protocol

import msgspec

from safekeeper.base.errors import EXIT_PRIMARY_REFUSED, RemoteProtocolError, WalproxyError
from safekeeper.base.log_once import LogOnce
from safekeeper.base.lsn import Lsn, format_lsn, segment_start
from safekeeper.consensus.control_state import TliHistory
from safekeeper.waldecode.continuity import LinkCheck
from walproxy.postgres.hosts import HostRota, HostState, PrimaryHost
from walproxy.postgres.page_checksums import PageChecksums
from walproxy.postgres.problems import PrimaryProblem, ProblemKind, problem_of_identity
from walproxy.postgres.replication_protocol import TimelineEnd
from walproxy.postgres.slot_holder import SlotHolder
from walproxy.postgres.walreceiver import ReplicationConnection
from walproxy.proposer.actions import StartReplication
from walproxy.proposer.primary import Ancestor, PrimaryIdentity

logger = logging.getLogger(__name__)

PAUSE_MIN_S = 0.1
PAUSE_MAX_S = 2.0
# One of several hosts may be promoted at any moment, and its commits wait for the proxy.
PAUSE_MAX_OF_SEVERAL_S = 0.5
IDLE_CHECK_S = 1.0
# How long members of a cluster are waited for before a login that is refused counts as that of a first start.
GREETINGS_WAIT_S = 5.0
# It also limits for how long WAL stays unsent that a walsender of PostgreSQL 16 or newer has overlooked: it looks for
# new WAL, and only then registers for wake-ups. Without a quorum nothing else wakes it. On two busy cores that happened
# in 5 of 380 bursts of four commits (0.4 to 0.8 s), and with PostgreSQL 15 in none of 380.
STATUS_INTERVAL_S = 1.0
CATCHUP_STATUS_INTERVAL_S = 0.02
CATCHUP_LINGER_S = 1.0
FEEDBACK_INTERVAL_S = 10.0
UNCHANGED_REPLY_INTERVAL_S = 0.1
# The limit of WAL that is buffered while the first record is incomplete.
UNLINKED_BYTES_MAX = 64 << 20
SLOT_CHECK_INTERVAL_S = 5.0


class FeedOwner(Protocol):
    """The owner of a feed; called on the event loop."""

    def primary_identified(self, identity: PrimaryIdentity) -> None:
        """Handle the identity of a primary, on a new connection or on request."""

    def primary_lost(self, reason: str) -> None:
        """Handle the end of a connection; the feed reconnects."""

    def primary_checked(self, begin_lsn: Lsn, end_lsn: Lsn, digest: PageChecksums) -> None:
        """Handle the checksums of the bytes to compare; these bytes themselves are not passed on."""

    def slot_in_use(self) -> None:
        """Handle a primary that cannot stream yet, because another walsender holds the slot."""

    def segment_removed(self, reason: str) -> None:
        """Handle a primary that no longer has the requested WAL."""

    def wal_received(self, begin_lsn: Lsn, chunks: list[memoryview]) -> None:
        """Handle received WAL, which is to be made durable."""

    def timeline_ended(self, next_tli: int, end_lsn: Lsn) -> None:
        """Handle the end of the timeline that was streamed."""

    def primary_refused(self, reason: str) -> None:
        """Handle a primary whose WAL does not continue the log."""

    def failed(self, error: WalproxyError) -> None:
        """Handle an error for which retrying is of no use: the feed has ended."""

    def may_make_slot(self) -> bool:
        """Return whether a cluster is known, so that a missing slot does not mean a first start."""

    def is_first_start(self) -> bool:
        """Return whether all safekeepers have replied, and none belongs to a cluster."""

    def quorum_end_lsn(self) -> Lsn:
        """Return the known end of the quorum's WAL, 0 if it has none."""


@dataclass(frozen=True)
class FeedConfig:
    """The configuration of a feed.

    Attributes:
        hosts: the hosts that may be the primary.
        silence_timeout_s: without data for this time, although a reply was requested, the feed reconnects.
    """

    hosts: tuple[PrimaryHost, ...]
    application_name: str
    slot: str
    connect_timeout_s: float = 5.0
    silence_timeout_s: float = 10.0


class PrimaryFeed:
    """The connection to the primary, kept up until cancelled.

    Attributes:
        rota: the hosts, and the state of each.
        streams: whether a COPY is open.
        is_paused: whether reading is paused.
    """

    def __init__(self, config: FeedConfig, owner: FeedOwner) -> None:
        self.rota = HostRota(config.hosts)
        self.streams = False
        self._config = config
        self._owner = owner
        self._connection: ReplicationConnection | None = None
        self._requests: asyncio.Queue[StartReplication | None] = asyncio.Queue()
        self._refusal = ""  # why the present connection is to be closed
        self._is_stopped = False  # the owner has requested that the present connection is closed
        self._pause_s = PAUSE_MIN_S
        self._retry_now = asyncio.Event()
        self._positions: tuple[Lsn, Lsn, Lsn] = (0, 0, 0)
        self._feedback: tuple[int, int] | None = None
        self._sent_positions = (0, 0, 0)
        self._sent_positions_at = 0.0
        self._sent_feedback: tuple[int, int] | None = None
        self._sent_feedback_at = 0.0
        self._caught_up_at = 0.0
        self._check: PageChecksums | None = None
        self._check_begin_lsn: Lsn = 0
        self._link_check: LinkCheck | None = None
        self._unlinked: list[memoryview] = []
        self._start: StartReplication | None = None
        self.is_paused = False
        self._warned: set[tuple[PrimaryHost, str]] = set()
        self._problem_logs: defaultdict[PrimaryHost, LogOnce] = defaultdict(LogOnce)
        self._segment_size = 0
        self._began_at = 0.0
        self._was_connected = False
        self._slot_is_due = False
        self._slot_check_at = 0.0
        self._new_slot_lsn: Lsn = 0  # the restart_lsn of a slot that was just created, until it is checked

    def identify(self) -> None:
        """Identify the primary again; the answer is `primary_identified`."""
        self._requests.put_nowait(None)

    def start(self, request: StartReplication) -> None:
        """Stream as requested."""
        self._requests.put_nowait(request)

    def stop(self, reason: str) -> None:
        """Close the connection, and reconnect."""
        logger.info("closing the connection to the primary: %s", reason)
        self._drop_requests()
        self._is_stopped = True
        if self._connection is not None:
            self._connection.close()

    def refuse(self, reason: str) -> None:
        """Put the present host aside: ignore what it still sends, and try the others."""
        self._refusal = reason
        self._drop_requests()
        if self._connection is not None:
            self._connection.close()
        # This wakes `_serve`, which finds the connection closed.
        self.identify()

    @property
    def problem(self) -> str:
        """Why there is no primary, empty if there is one."""
        return self.rota.problem()

    def pause(self) -> None:
        """Stop reading: the window is full."""
        self.is_paused = True
        if self._connection is not None:
            self._connection.pause_reading()

    def resume(self) -> None:
        """Continue to read."""
        self.is_paused = False
        if self._connection is not None:
            self._connection.resume_reading()

    def report(
        self, write_lsn: Lsn, flush_lsn: Lsn, apply_lsn: Lsn, *, repeats: bool = False, reply_requested: bool = False
    ) -> None:
        """Report the quorum's positions to PostgreSQL (S1), if they have changed, or if it `repeats` them."""
        positions = self._positions = (write_lsn, flush_lsn, apply_lsn)
        connection = self._connection
        if self.streams and connection is not None:
            if repeats or write_lsn > connection.received_lsn:
                positions = write_lsn, flush_lsn, apply_lsn = self._current_positions()
            if repeats or positions != self._sent_positions:
                self._sent_positions = positions
                self._sent_positions_at = asyncio.get_running_loop().time()
                connection.send_status(write_lsn, flush_lsn, apply_lsn, reply_requested=reply_requested)
                if self.rota.current.is_distrusted and any(positions):
                    self._on_verified_again()

    def report_standbys(self, oldest_xmins: tuple[int, int] | None) -> None:
        """Report the oldest (xmin, catalog_xmin) that standbys need, 0 if none; None while unknown."""
        self._feedback = oldest_xmins

    async def run(self) -> None:
        """Keep a connection open until cancelled or failed."""
        loop = asyncio.get_running_loop()
        self._began_at = loop.time()
        status_task = asyncio.create_task(self._repeat_status())
        try:
            while True:
                if self.rota.next(loop.time()) is None:
                    await self._pause()
                    continue
                try:
                    await self._connect()
                    await self._serve()
                except (PrimaryProblem, RemoteProtocolError) as problem:
                    failure = self._disconnected(problem)
                except WalproxyError as error:
                    failure = error
                else:
                    raise AssertionError("_serve ends with an error only")
                if failure is not None:
                    self._owner.failed(failure)
                    return
        finally:
            status_task.cancel()
            self._close()

    async def _pause(self) -> None:
        """Wait before the next round of hosts: longer each time, until `retry`."""
        self._retry_now.clear()
        try:
            async with asyncio.timeout(self._pause_s):
                await self._retry_now.wait()
        except TimeoutError:
            self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S if self.rota.is_single else PAUSE_MAX_OF_SEVERAL_S)

    def retry(self) -> None:
        """Try all hosts again now; a host that was refused, when its time has come."""
        self._pause_s = PAUSE_MIN_S
        self._retry_now.set()

    def _is_final(self, problem: PrimaryProblem) -> bool:
        """Return whether retrying is of no use.

        What a person can correct in the server, as a password that has expired, is waited for if it has worked before:
        in this process, or because members of a cluster are found, which takes a moment.
        """
        if problem.retry:
            return False
        if problem.exit_code == EXIT_PRIMARY_REFUSED:
            return True
        if self._was_connected:
            return False
        if problem.kind is ProblemKind.WRONG_CONNINFO or self._owner.is_first_start():
            return True
        waited_s = asyncio.get_running_loop().time() - self._began_at
        return not self._owner.may_make_slot() and waited_s > GREETINGS_WAIT_S

    async def _connect(self) -> None:
        self._drop_requests()
        self._refusal, self._is_stopped = "", False
        # Those of a connection are reported once it was verified (S10).
        self._positions = (0, 0, 0)
        connection = self._connection = await self._open()
        identity = await self._identify(connection)
        # Nothing was changed on a standby: it has raised above.
        slot = self._config.slot
        has_slot = await connection.has_slot(slot)
        self._slot_is_due = not has_slot
        self._slot_check_at = asyncio.get_running_loop().time() + SLOT_CHECK_INTERVAL_S
        self._new_slot_lsn = 0
        await self._log_idle_slot_timeout(connection)
        if has_slot:
            await self._log_older_slot(connection, identity)
        if self._slot_is_due and self._owner.may_make_slot():
            await self._make_slot(connection)
            # The slot retains WAL from now on: positions from before it do not count.
            identity = await self._identify(connection)
        identity = msgspec.structs.replace(identity, slot=slot if has_slot else "")
        self.rota.connected()
        self._was_connected = True
        self._report_identity(identity)

    async def _make_slot(self, connection: ReplicationConnection) -> None:
        """Create the slot, unless another session has meanwhile.

        Not before there is a cluster: a slot shows that safekeepers which are empty now were not always empty. So a
        first start that is interrupted leaves no slot that would stop the next one.
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
            "find out which program drops it)",
            slot,
            since,
        )

    async def _replace_slot(self, connection: ReplicationConnection, reason: str) -> None:
        """Replace a slot that PostgreSQL has invalidated. It retains no WAL, so nothing is lost with it.

        Whether the primary still has the WAL that the quorum needs is found by the stream, as at each start.
        """
        slot = self._config.slot
        logger.warning(
            'slot "%s" is replaced, because PostgreSQL has invalidated it (%s): the primary may have removed WAL since',
            slot,
            reason,
        )
        await connection.drop_slot(slot)
        await connection.ensure_slot(slot)
        self._new_slot_lsn = await connection.slot_restart_lsn(slot) or 0

    async def _log_idle_slot_timeout(self, connection: ReplicationConnection) -> None:
        """Log that PostgreSQL invalidates the slot when no proxy has used it for a while."""
        timeout = await connection.idle_slot_timeout()
        host, key = self.rota.current.host, "idle_replication_slot_timeout"
        if timeout != "0" and (host, key) not in self._warned:
            self._warned.add((host, key))
            logger.warning(
                'idle_replication_slot_timeout is %s: PostgreSQL invalidates slot "%s" after that time without a '
                "proxy, and then removes WAL that the quorum lacks; set it to 0",
                timeout,
                self._config.slot,
            )

    def _check_new_slot(self, needed_lsn: Lsn) -> None:
        """Log an ERROR if the slot that was just created retains less WAL than the quorum needs."""
        new_slot_lsn, self._new_slot_lsn = self._new_slot_lsn, 0
        # A slot retains whole segments. After a promotion it begins with a checkpoint that is above the fork.
        if 0 < needed_lsn < segment_start(new_slot_lsn, self._segment_size):
            logger.error(
                'WAL from %s on is at risk: the quorum needs it, and slot "%s", which was missing, retains WAL only '
                "from %s on; until WAL streams, raise wal_keep_size and reload PostgreSQL",
                format_lsn(needed_lsn),
                self._config.slot,
                format_lsn(new_slot_lsn),
            )

    async def _log_older_slot(self, connection: ReplicationConnection, identity: PrimaryIdentity) -> None:
        """Log that the slot is older than the promotion of this server, as one in a copied data folder is.

        The slot is kept: it retains more WAL than a new one would, and advances with the first position that is sent.
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
                'slot "%s" is older than the promotion of this server at %s (as in a copied data folder): it '
                "retains WAL from %s on, and advances as soon as WAL streams",
                self._config.slot,
                format_lsn(fork_lsn),
                format_lsn(restart_lsn),
            )

    async def _open(self) -> ReplicationConnection:
        """Connect to the present host of the rota."""
        config = self._config
        return await ReplicationConnection.connect(
            self.rota.current.host.conninfo,
            application_name=config.application_name,
            timeout_s=config.connect_timeout_s,
        )

    def _report_identity(self, identity: PrimaryIdentity) -> None:
        self._raise_if_refused()
        self._owner.primary_identified(identity)

    def _raise_if_refused(self) -> None:
        """Raise if the host of the present connection was refused meanwhile."""
        if self._refusal:
            raise PrimaryProblem(ProblemKind.LOST, self._refusal)

    async def _identify(self, connection: ReplicationConnection) -> PrimaryIdentity:
        facts = await connection.identify()
        problem = problem_of_identity(facts)
        if problem is not None:
            raise problem
        self._segment_size = facts.segment_size
        histories = []
        for tli in [ancestor for ancestor, _ in facts.lineage if ancestor > 1]:
            try:
                histories.append(TliHistory(tli, await connection.timeline_history(tli)))
            except PrimaryProblem as problem:
                # An old history file may have been removed; the safekeepers then keep their copy.
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
            host=self.rota.current.host.name,
        )

    async def _serve(self) -> None:
        """Execute requests on the connection until it is closed."""
        while True:
            assert self._connection is not None  # between _connect and _close
            try:
                async with asyncio.timeout(IDLE_CHECK_S):
                    request = await self._requests.get()
            except TimeoutError:
                # An idle connection is not read: only a query shows that it is still open.
                await self._identify(self._connection)
                await self._ensure_slot(self._connection)
                self._on_usable_connection()
                continue
            if request is None:
                if self._slot_is_due:
                    await self._make_slot(self._connection)
                self._report_identity(await self._identify(self._connection))
            else:
                await self._stream(self._connection, request)

    async def _ensure_slot(self, connection: ReplicationConnection) -> None:
        """Create the slot if it is missing, also one that was dropped while the connection was idle."""
        self._check_new_slot(self._owner.quorum_end_lsn())
        now = asyncio.get_running_loop().time()
        if not self._slot_is_due and now >= self._slot_check_at:
            self._slot_check_at = now + SLOT_CHECK_INTERVAL_S
            self._slot_is_due = not await connection.still_has_slot(self._config.slot)
        if self._slot_is_due and self._owner.may_make_slot():
            await self._make_slot(connection)

    async def _stream(self, connection: ReplicationConnection, request: StartReplication) -> None:
        """Stream the bytes to compare, then the new ones, up to the end of the timeline."""
        self._start = request
        self._check_new_slot(request.begin_lsn)
        self._check = None
        self._unlinked = []
        self._link_check = LinkCheck(request.log_tail, self._segment_size) if request.log_tail is not None else None
        if request.previous_record_lsn is not None and self._link_check is None:
            # WAL that cannot be verified is not streamed (S10).
            self._owner.primary_refused(
                f"the WAL before {format_lsn(request.begin_lsn)} is no longer on the primary, and the last "
                "record before it, with which the next one could be compared, is unknown (see walproxy rebootstrap)"
            )
            return
        self._sent_positions = (0, 0, 0)
        # The last report may belong to a verified stream, and this one is not verified yet (S10).
        self._feedback = None
        try:
            begin_lsn = request.check_begin_lsn
            tli = request.check_tli if begin_lsn < request.begin_lsn else request.tli
            while tli != request.tli:
                # The earlier timelines of the primary contain these bytes. An empty one ends where it begins.
                end = await self._copy(connection, begin_lsn, tli, request)
                if not tli < end.next_tli <= request.tli or not begin_lsn <= end.next_begin_lsn <= request.begin_lsn:
                    raise RemoteProtocolError(
                        f"timeline {tli} ends at {format_lsn(end.next_begin_lsn)} for timeline {end.next_tli}, "
                        f"not at or below {format_lsn(request.begin_lsn)} for timeline {request.tli}"
                    )
                begin_lsn, tli = end.next_begin_lsn, end.next_tli
            end = await self._copy(connection, begin_lsn, tli, request)
        except PrimaryProblem as problem:
            if problem.kind is ProblemKind.WAL_REMOVED and self._is_stopped:
                # The owner has given the stream up, and sends no request before the next identity.
                raise PrimaryProblem(ProblemKind.LOST, str(problem)) from None
            if problem.kind is ProblemKind.WAL_REMOVED:
                self._close()
                self._owner.segment_removed(str(problem))
                self._raise_if_refused()
                await self._reconnect_for_requests()
                return
            raise
        self._owner.timeline_ended(end.next_tli, end.next_begin_lsn)

    async def _reconnect_for_requests(self) -> None:
        """Reconnect without dropping the request that was queued meanwhile."""
        self._connection = await self._open()

    async def _copy(
        self, connection: ReplicationConnection, begin_lsn: Lsn, tli: int, request: StartReplication
    ) -> TimelineEnd:
        await self._start_replication(connection, begin_lsn, tli)
        if begin_lsn == request.check_begin_lsn < request.begin_lsn:
            self._check = PageChecksums(self._segment_size, begin_lsn, keeps_all=True)
            self._check_begin_lsn = begin_lsn
        loop = asyncio.get_running_loop()
        self._caught_up_at = loop.time()
        self._sent_feedback = None
        self.streams = True
        try:
            self._on_usable_connection()
            if self.is_paused:
                connection.pause_reading()
            logger.info("streaming timeline %d from %s", tli, format_lsn(begin_lsn))
            return await connection.stream(self._on_wal, self._on_keepalive)
        finally:
            # Between two COPYs nothing can be reported: the term may have begun when the first one has ended.
            self.streams = False

    async def _start_replication(self, connection: ReplicationConnection, begin_lsn: Lsn, tli: int) -> None:
        """Start; end the walsender that holds the slot: it serves a proxy that this term has deposed.

        While that is not possible, wait for the slot on this connection: the next term would find it in use again.
        """
        host, slot = self.rota.current.host, self._config.slot
        holder = SlotHolder(host.conninfo, slot, self._config.connect_timeout_s)
        pause_s = PAUSE_MIN_S
        is_replaced = False
        while True:
            try:
                await connection.start_replication(slot, begin_lsn, tli)
                return
            except PrimaryProblem as problem:
                if problem.kind is ProblemKind.SLOT_INVALIDATED and not is_replaced:
                    is_replaced = True
                    await self._replace_slot(connection, problem.plain)
                    self._check_new_slot(begin_lsn)
                    continue
                if problem.kind is not ProblemKind.SLOT_IN_USE:
                    raise
                reason = str(problem)
                holder.refused(problem.plain)
            try:
                pid = await holder.end()
            except PrimaryProblem as problem:
                if holder.is_another:
                    raise
                # A role with a replication login only cannot release the slot; its walsender may end by itself.
                is_told = problem.kind is ProblemKind.SLOT_IN_USE
                reason = str(problem) if is_told else f'slot "{slot}" is in use and could not be released: {problem}'
                if self._problem_logs[host].is_new(reason):
                    logger.warning("no WAL yet: %s", reason)
            else:
                if pid is not None:
                    logger.warning('ended walsender %d, which held slot "%s" for a deposed proxy', pid, slot)
                    continue
            self.rota.current.problem = reason
            self._owner.slot_in_use()
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    def _on_wal(self, begin_lsn: Lsn, chunks: list[memoryview]) -> None:
        start = self._start
        assert start is not None  # set before the stream began
        if begin_lsn < start.begin_lsn:
            begin_lsn, chunks = self._take_checked(begin_lsn, chunks, start.begin_lsn)
        if self._link_check is not None:
            begin_lsn, chunks = self._take_unlinked(self._link_check, start.begin_lsn, chunks)
        # The check may have refused this primary: the WAL after the bytes that differ is not of this log.
        if chunks and not self._refusal:
            self._owner.wal_received(begin_lsn, chunks)

    def _take_checked(self, begin_lsn: Lsn, chunks: list[memoryview], end_lsn: Lsn) -> tuple[Lsn, list[memoryview]]:
        """Pass the bytes below `end_lsn` to the check; return the rest."""
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
        """Buffer WAL until its first record is known to link to the log's last one (S10); return what to pass on."""
        for chunk in chunks:
            self._unlinked.append(chunk)
            if check.feed(bytes(chunk)) is False:
                break
        if check.linked is None and sum(map(len, self._unlinked)) < UNLINKED_BYTES_MAX:
            return begin_lsn, []
        held, self._unlinked, self._link_check = self._unlinked, [], None
        if check.linked:
            logger.info("the primary's WAL continues the quorum's log: %s", check.reason)
            return begin_lsn, held
        self._owner.primary_refused(f"the primary's WAL does not continue the quorum's log: {check.reason}")
        return begin_lsn, []

    def _on_keepalive(self, server_end_lsn: Lsn, reply_requested: bool) -> None:
        if reply_requested:
            loop = asyncio.get_running_loop()
            wait_s = self._sent_positions_at + UNCHANGED_REPLY_INTERVAL_S - loop.time()
            if wait_s <= 0 or self._current_positions() != self._sent_positions:
                self._send_status()
            else:
                loop.call_later(wait_s, self._send_status)

    def _current_positions(self) -> tuple[Lsn, Lsn, Lsn]:
        """Return the positions to send on this stream: never more than was received on it."""
        connection = self._connection
        received_lsn = connection.received_lsn if connection is not None else 0
        positions = self._positions
        if max(positions) <= received_lsn:
            return positions
        write_lsn, flush_lsn, apply_lsn = positions
        return min(write_lsn, received_lsn), min(flush_lsn, received_lsn), min(apply_lsn, received_lsn)

    def _send_status(self, reply_requested: bool = False) -> None:
        self.report(*self._positions, repeats=True, reply_requested=reply_requested)

    def _send_feedback_if_due(self, connection: ReplicationConnection, now: float) -> None:
        feedback = self._feedback
        if feedback is None:
            return
        repeat = any(feedback) and now - self._sent_feedback_at >= FEEDBACK_INTERVAL_S
        if repeat or feedback != self._sent_feedback:
            self._sent_feedback, self._sent_feedback_at = feedback, now
            connection.send_hot_standby_feedback(*feedback)

    async def _repeat_status(self) -> None:
        """Repeat the positions, send hot standby feedback, and reconnect if the primary sends nothing."""
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
                due = now - self._sent_positions_at >= STATUS_INTERVAL_S
                if due or (interval_s < STATUS_INTERVAL_S and any(self._sent_positions)):
                    self._send_status(reply_requested=due)
                self._send_feedback_if_due(connection, now)
                silent_s = now - connection.last_message_s
                if not self.is_paused and silent_s > self._config.silence_timeout_s:
                    logger.warning("no data from the primary for %.0f s: reconnecting", silent_s)
                    connection.close()
            await asyncio.sleep(interval_s if interval_s < STATUS_INTERVAL_S else STATUS_INTERVAL_S / 4)

    def _on_usable_connection(self) -> None:
        """Handle a connection that works: a problem from now on is a new one, and the first pause is short again."""
        candidate = self.rota.current
        self.rota.connected()
        is_another = self.rota.works()
        self._pause_s = PAUSE_MIN_S
        log = self._problem_logs[candidate.host]
        if is_another or (log.logged and not candidate.is_distrusted):
            if self.rota.is_single:
                logger.info("connected to the primary")
            else:
                logger.info("connected to the primary at %s", candidate.host.name)
        if not candidate.is_distrusted:
            log.reset()

    def _on_verified_again(self) -> None:
        """Handle a verified primary that had been refused before: positions are sent to it."""
        candidate = self.rota.current
        candidate.is_distrusted = False
        self._problem_logs[candidate.host].reset()
        logger.info("the primary at %s is no longer refused", candidate.host.name)

    def _disconnected(self, problem: WalproxyError) -> WalproxyError | None:
        """Handle a connection that was closed, or failed; return the error that ends the feed, None if it continues."""
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
        self._log_problem()
        self._owner.primary_lost(rota.current.problem)
        return rota.verdict()

    def _log_problem(self) -> None:
        candidate = self.rota.current
        if not self._problem_logs[candidate.host].is_new(candidate.problem):
            return
        if self.rota.is_single:
            logger.warning("no primary: %s", candidate.problem)
        elif candidate.state is HostState.REFUSED:
            logger.warning("the primary at %s is refused: %s", candidate.host.name, candidate.problem)
        elif candidate.state is HostState.STANDBY:
            logger.info("skipped host %s: %s", candidate.host.name, candidate.problem)
        else:
            logger.warning("no primary at %s: %s", candidate.host.name, candidate.problem)

    def _close(self) -> None:
        self.streams = False
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _drop_requests(self) -> None:
        while not self._requests.empty():
            self._requests.get_nowait()

    def close_politely(self) -> None:
        """Send the last positions and close, for a proxy that stops."""
        self._send_status()
        self._close()
