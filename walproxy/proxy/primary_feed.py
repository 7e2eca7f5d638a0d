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
from dataclasses import dataclass
from typing import Protocol

import msgspec

from safekeeper.base.errors import EXIT_PRIMARY_REFUSED, RemoteProtocolError, WalproxyError
from safekeeper.base.lsn import Lsn, format_lsn
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
from walproxy.proxy.feed_connection import FeedConnection, FeedState, OpenCopy, RequestedWal, WalReceiver
from walproxy.proxy.feed_slot import FeedSlot, SlotOwner

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


class FeedOwner(WalReceiver, SlotOwner, Protocol):
    """The owner of a feed; called on the event loop."""

    def primary_identified(self, identity: PrimaryIdentity) -> None:
        """Handle the identity of a primary, on a new connection or on request."""

    def primary_lost(self, reason: str) -> None:
        """Handle the end of a connection; the feed reconnects."""

    def slot_in_use(self) -> None:
        """Handle a primary that cannot stream yet, because another walsender holds the slot."""

    def segment_removed(self, reason: str) -> None:
        """Handle a primary that no longer has the requested WAL."""

    def timeline_ended(self, next_tli: int, end_lsn: Lsn) -> None:
        """Handle the end of the timeline that was streamed."""

    def failed(self, error: WalproxyError) -> None:
        """Handle an error for which retrying is of no use: the feed has ended."""

    def is_first_start(self) -> bool:
        """Return whether all safekeepers have replied, and none belongs to a cluster."""


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
        is_paused: whether reading is paused, on this connection and on later ones.
    """

    def __init__(self, config: FeedConfig, owner: FeedOwner) -> None:
        self.rota = HostRota(config.hosts)
        self.is_paused = False
        self._config = config
        self._owner = owner
        self._connection: FeedConnection | None = None
        self._was_connected = False
        self._began_at = 0.0
        self._pause_s = PAUSE_MIN_S
        self._retry_now = asyncio.Event()
        self._reported_at = 0.0  # when positions were last sent

    @property
    def streams(self) -> bool:
        """Whether a COPY is open."""
        return self._connection is not None and self._connection.copy is not None

    @property
    def problem(self) -> str:
        """Why there is no primary, empty if there is one."""
        return self.rota.problem()

    # The owner's requests. Without a connection they have no effect: the owner receives the next identity first.

    def identify(self) -> None:
        """Identify the primary again; the answer is `primary_identified`."""
        if self._connection is not None:
            self._connection.requests.put_nowait(None)

    def start(self, request: StartReplication) -> None:
        """Stream as requested."""
        if self._connection is not None:
            self._connection.requests.put_nowait(request)

    def stop(self, reason: str) -> None:
        """Close the connection, and reconnect."""
        logger.info("closing the connection to the primary: %s", reason)
        if self._connection is not None:
            self._connection.stop(reason)

    def refuse(self, reason: str) -> None:
        """Put the present host aside: ignore what it still sends, and try the others."""
        if self._connection is not None:
            self._connection.refuse(reason)
            # This wakes `_serve`, which finds the connection closed.
            self.identify()

    def pause(self) -> None:
        """Stop reading: the window is full."""
        self.is_paused = True
        if self._connection is not None:
            self._connection.receiver.pause_reading()

    def resume(self) -> None:
        """Continue to read."""
        self.is_paused = False
        if self._connection is not None:
            self._connection.receiver.resume_reading()

    def retry(self) -> None:
        """Try all hosts again now; a host that was refused, when its time has come."""
        self._pause_s = PAUSE_MIN_S
        self._retry_now.set()

    def report(
        self, write_lsn: Lsn, flush_lsn: Lsn, apply_lsn: Lsn, *, repeats: bool = False, reply_requested: bool = False
    ) -> None:
        """Report the quorum's positions to PostgreSQL (S1), if they have changed, or if it `repeats` them."""
        connection = self._connection
        if connection is None:
            return
        positions = connection.positions = (write_lsn, flush_lsn, apply_lsn)
        copy = connection.copy
        if copy is not None:
            receiver = connection.receiver
            if repeats or write_lsn > receiver.received_lsn:
                positions = write_lsn, flush_lsn, apply_lsn = connection.sendable_positions()
            if repeats or positions != copy.sent_positions:
                copy.sent_positions = positions
                self._reported_at = asyncio.get_running_loop().time()
                receiver.send_status(write_lsn, flush_lsn, apply_lsn, reply_requested=reply_requested)
                if self.rota.current.is_distrusted and any(positions):
                    self._on_verified_again()

    def report_standbys(self, oldest_xmins: tuple[int, int] | None) -> None:
        """Report the oldest (xmin, catalog_xmin) that standbys need, 0 if none; None while unknown."""
        if self._connection is not None and self._connection.wal is not None:
            self._connection.wal.feedback = oldest_xmins

    def close_politely(self) -> None:
        """Send the last positions and close, for a proxy that stops."""
        self._send_status()
        self._close()

    # The connection.

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
                    await self._serve(await self._connect())
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

    async def _open(self) -> ReplicationConnection:
        """Connect to the present host of the rota."""
        config = self._config
        return await ReplicationConnection.connect(
            self.rota.current.host.conninfo,
            application_name=config.application_name,
            timeout_s=config.connect_timeout_s,
        )

    async def _connect(self) -> FeedConnection:
        """Connect, and report the identity of the primary."""
        slot = FeedSlot(self._config.slot, self.rota.current, self._owner)
        connection = self._connection = FeedConnection(await self._open(), slot)
        # Nothing is changed on a standby: this raises.
        identity = await self._identify(connection)
        had_slot = await slot.find(connection.receiver, identity)
        if slot.is_to_be_made:
            await slot.make(connection.receiver)
            # The slot retains WAL from now on: positions from before it do not count.
            identity = await self._identify(connection)
        self.rota.connected()
        self._was_connected = True
        self._report_identity(connection, msgspec.structs.replace(identity, slot=slot.name if had_slot else ""))
        return connection

    def _report_identity(self, connection: FeedConnection, identity: PrimaryIdentity) -> None:
        connection.raise_if_closed()
        self._owner.primary_identified(identity)

    async def _identify(self, connection: FeedConnection) -> PrimaryIdentity:
        receiver = connection.receiver
        facts = await receiver.identify()
        problem = problem_of_identity(facts)
        if problem is not None:
            raise problem
        connection.segment_size = facts.segment_size
        histories = []
        for tli in [ancestor for ancestor, _ in facts.lineage if ancestor > 1]:
            try:
                histories.append(TliHistory(tli, await receiver.timeline_history(tli)))
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

    async def _serve(self, connection: FeedConnection) -> None:
        """Execute requests on the connection until it is closed."""
        slot = connection.slot
        while True:
            try:
                async with asyncio.timeout(IDLE_CHECK_S):
                    request = await connection.requests.get()
            except TimeoutError:
                # An idle connection is not read: only a query shows that it is still open.
                await self._identify(connection)
                await slot.ensure(connection.receiver)
                self._on_usable_connection()
                continue
            if request is None:
                if slot.is_due:
                    await slot.make(connection.receiver)
                self._report_identity(connection, await self._identify(connection))
            else:
                await self._stream(connection, request)

    # The stream.

    async def _stream(self, connection: FeedConnection, request: StartReplication) -> None:
        """Stream the bytes to compare, then the new ones, up to the end of the timeline."""
        connection.raise_if_closed()
        connection.slot.check_new(request.begin_lsn)
        begin_lsn, segment_size = request.check_begin_lsn, connection.segment_size
        if request.previous_record_lsn is not None and request.log_tail is None:
            # WAL that cannot be verified is not streamed (S10).
            self._owner.primary_refused(
                f"the WAL before {format_lsn(request.begin_lsn)} is no longer on the primary, and the last "
                "record before it, with which the next one could be compared, is unknown (see walproxy rebootstrap)"
            )
            return
        checksums = PageChecksums(segment_size, begin_lsn, keeps_all=True) if begin_lsn < request.begin_lsn else None
        link_check = LinkCheck(request.log_tail, segment_size) if request.log_tail is not None else None
        wal = RequestedWal(request, self._owner, connection, checksums, link_check)
        connection.become_starting(wal)
        try:
            tli = request.check_tli if begin_lsn < request.begin_lsn else request.tli
            while tli != request.tli:
                # The earlier timelines of the primary contain these bytes. An empty one ends where it begins.
                end = await self._copy(connection, wal, begin_lsn, tli)
                if not tli < end.next_tli <= request.tli or not begin_lsn <= end.next_begin_lsn <= request.begin_lsn:
                    raise RemoteProtocolError(
                        f"timeline {tli} ends at {format_lsn(end.next_begin_lsn)} for timeline {end.next_tli}, "
                        f"not at or below {format_lsn(request.begin_lsn)} for timeline {request.tli}"
                    )
                begin_lsn, tli = end.next_begin_lsn, end.next_tli
            end = await self._copy(connection, wal, begin_lsn, tli)
        except PrimaryProblem as problem:
            if problem.kind is not ProblemKind.WAL_REMOVED:
                raise
            await self._reconnect(connection, str(problem))
            return
        connection.raise_if_closed()
        connection.become_idle()
        self._owner.timeline_ended(end.next_tli, end.next_begin_lsn)

    async def _reconnect(self, connection: FeedConnection, problem: str) -> None:
        """Report that the requested WAL is removed; reconnect for the request that the owner may make at once."""
        # An owner that has given the stream up makes no request before the next identity.
        connection.raise_if_closed()
        connection.receiver.close()
        connection.become_idle()
        self._owner.segment_removed(problem)
        connection.raise_if_closed()
        connection.receiver = await self._open()
        connection.raise_if_closed()

    async def _copy(self, connection: FeedConnection, wal: RequestedWal, begin_lsn: Lsn, tli: int) -> TimelineEnd:
        receiver = connection.receiver
        await self._start_replication(connection, begin_lsn, tli)
        connection.raise_if_closed()
        connection.become_streaming(asyncio.get_running_loop().time())
        try:
            self._on_usable_connection()
            if self.is_paused:
                receiver.pause_reading()
            logger.info("streaming timeline %d from %s", tli, format_lsn(begin_lsn))
            return await receiver.stream(wal.received, self._on_keepalive)
        finally:
            # The term may have begun when the first COPY of a request has ended.
            connection.end_copy()

    async def _start_replication(self, connection: FeedConnection, begin_lsn: Lsn, tli: int) -> None:
        """Start; end the walsender that holds the slot: it serves a proxy that this term has deposed.

        While that is not possible, wait for the slot on this connection: the next term would find it in use again.
        """
        candidate, slot = self.rota.current, connection.slot
        holder = SlotHolder(candidate.host.conninfo, slot.name, self._config.connect_timeout_s)
        pause_s = PAUSE_MIN_S
        is_replaced = False
        while True:
            try:
                await connection.receiver.start_replication(slot.name, begin_lsn, tli)
                return
            except PrimaryProblem as problem:
                if problem.kind is ProblemKind.SLOT_INVALIDATED and not is_replaced:
                    is_replaced = True
                    await slot.replace(connection.receiver, problem.plain, begin_lsn)
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
                is_described = problem.kind is ProblemKind.SLOT_IN_USE
                reason = (
                    str(problem)
                    if is_described
                    else f'slot "{slot.name}" is in use and could not be released: {problem}'
                )
                if candidate.problem_log.is_new(reason):
                    logger.warning("no WAL yet: %s", reason)
            else:
                if pid is not None:
                    logger.warning('ended walsender %d, which held slot "%s" for a deposed proxy', pid, slot.name)
                    continue
            candidate.problem = reason
            self._owner.slot_in_use()
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    # What is sent in a COPY.

    def _on_keepalive(self, server_end_lsn: Lsn, reply_requested: bool) -> None:
        connection = self._connection
        if reply_requested and connection is not None and connection.copy is not None:
            loop = asyncio.get_running_loop()
            wait_s = self._reported_at + UNCHANGED_REPLY_INTERVAL_S - loop.time()
            if wait_s <= 0 or connection.sendable_positions() != connection.copy.sent_positions:
                self._send_status()
            else:
                loop.call_later(wait_s, self._send_status)

    def _send_status(self, reply_requested: bool = False) -> None:
        if self._connection is not None:
            self.report(*self._connection.positions, repeats=True, reply_requested=reply_requested)

    def _send_feedback_if_due(self, connection: FeedConnection, copy: OpenCopy, now: float) -> None:
        feedback = connection.wal.feedback if connection.wal is not None else None
        if feedback is None:
            return
        repeat = any(feedback) and now - copy.sent_feedback_at >= FEEDBACK_INTERVAL_S
        if repeat or feedback != copy.sent_feedback:
            copy.sent_feedback, copy.sent_feedback_at = feedback, now
            connection.receiver.send_hot_standby_feedback(*feedback)

    async def _repeat_status(self) -> None:
        """Repeat the positions, send hot standby feedback, and reconnect if the primary sends nothing."""
        loop = asyncio.get_running_loop()
        while True:
            connection = self._connection
            interval_s = STATUS_INTERVAL_S
            if connection is not None and connection.copy is not None:
                copy, receiver = connection.copy, connection.receiver
                now = loop.time()
                if receiver.server_end_lsn > receiver.received_lsn:
                    copy.caught_up_at = now
                if now - copy.caught_up_at < CATCHUP_LINGER_S:
                    interval_s = CATCHUP_STATUS_INTERVAL_S
                due = now - self._reported_at >= STATUS_INTERVAL_S
                if due or (interval_s < STATUS_INTERVAL_S and any(copy.sent_positions)):
                    self._send_status(reply_requested=due)
                self._send_feedback_if_due(connection, copy, now)
                silent_s = now - receiver.last_message_s
                if not self.is_paused and silent_s > self._config.silence_timeout_s:
                    logger.warning("no data from the primary for %.0f s: reconnecting", silent_s)
                    receiver.close()
            await asyncio.sleep(interval_s if interval_s < STATUS_INTERVAL_S else STATUS_INTERVAL_S / 4)

    # The hosts.

    def _on_usable_connection(self) -> None:
        """Handle a connection that works: a problem from now on is a new one, and the first pause is short again."""
        candidate = self.rota.current
        self.rota.connected()
        is_another = self.rota.works()
        self._pause_s = PAUSE_MIN_S
        if is_another or (candidate.problem_log.logged and not candidate.is_distrusted):
            if self.rota.is_single:
                logger.info("connected to the primary")
            else:
                logger.info("connected to the primary at %s", candidate.host.name)
        if not candidate.is_distrusted:
            candidate.problem_log.reset()

    def _on_verified_again(self) -> None:
        """Handle a verified primary that had been refused before: positions are sent to it."""
        candidate = self.rota.current
        candidate.is_distrusted = False
        candidate.problem_log.reset()
        logger.info("the primary at %s is no longer refused", candidate.host.name)

    def _disconnected(self, problem: WalproxyError) -> WalproxyError | None:
        """Handle a connection that was closed, or failed; return the error that ends the feed, None if it continues."""
        connection = self._connection
        self._close()
        rota, now = self.rota, asyncio.get_running_loop().time()
        final = isinstance(problem, PrimaryProblem) and self._is_final(problem)
        if connection is not None and connection.state is FeedState.REFUSED:
            rota.refused(connection.reason, now)
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

    def _log_problem(self) -> None:
        candidate = self.rota.current
        if not candidate.problem_log.is_new(candidate.problem):
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
        if self._connection is not None:
            self._connection.receiver.close()
            self._connection = None
