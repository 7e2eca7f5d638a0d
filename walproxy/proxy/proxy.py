"""The proxy: composition of the proposer, the window, the links and the feed. It decides nothing.

Everything runs on one event loop. Each event (a link was opened, a frame or WAL was received, time has passed) is
passed to the `Proposer`, and the actions that it returns are executed here, in order. An event that is raised during
this is queued until they are done.

The hot path: one read of the primary's socket gives a list of chunks, one frame header is encoded for all members with
equal positions, and the chunks are sent as they were received; each reply that advances the quorum's position leads to
one status update. Replies that advance nothing lead to no action.
"""

import asyncio
import logging
import random
import secrets
import socket
from time import monotonic

from safekeeper.base.errors import PrimaryRefused, WalproxyError
from safekeeper.base.event_log import EventRecorder
from safekeeper.base.logs import record_event
from safekeeper.base.lsn import Lsn
from safekeeper.base.settings import Address
from safekeeper.base.settings import address as parse_address
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.membership import MAJORITY
from safekeeper.consensus.messages import AcceptorMessage, AppendResponse
from safekeeper.consensus.quorum_expression import size_of
from safekeeper.net.safekeeper_connection import Credentials
from safekeeper.peers.codec import AppendEncoder, encode
from walproxy.limbo.commit_policy import CommitPolicy
from walproxy.limbo.facts import Facts, Positions
from walproxy.limbo.limbo import KEPT_BYTES, Limbo
from walproxy.postgres.hosts import primary_hosts
from walproxy.postgres.page_checksums import PageChecksums
from walproxy.proposer.actions import (
    Action,
    Dial,
    Disconnect,
    EmptyWindow,
    Finish,
    HangUp,
    IdentifyPrimary,
    Level,
    Note,
    RefusePrimary,
    ReportStatus,
    SendAppend,
    SendMessage,
    StartReplication,
    StopReplication,
)
from walproxy.proposer.apply_rule import ApplyRule
from walproxy.proposer.liveness import Timing
from walproxy.proposer.phase import Phase, ProposerConfig
from walproxy.proposer.primary import PrimaryIdentity
from walproxy.proposer.proposer import Proposer
from walproxy.proposer.roster import newest_membership
from walproxy.proposer.view import ProposerView, view_of
from walproxy.proxy.config import ProxyConfig
from walproxy.proxy.event_sender import LAST_EVENTS_TIMEOUT_S, EventSender
from walproxy.proxy.execution import Execution
from walproxy.proxy.gate import Gate
from walproxy.proxy.measurements import Measurements
from walproxy.proxy.member_problem import member_problem
from walproxy.proxy.primary_feed import FeedConfig, PrimaryFeed
from walproxy.proxy.primary_watch import PrimaryWatch
from walproxy.proxy.proxy_watch import ProxyWatch
from walproxy.proxy.quorum_watch import Attendance, QuorumWatch
from walproxy.proxy.readiness import Readiness
from walproxy.proxy.replay_watch import ReplayWatch
from walproxy.proxy.safekeeper_link import SafekeeperLink
from walproxy.proxy.sql_watch import SqlWatch
from walproxy.proxy.window import Window

logger = logging.getLogger(__name__)

TICK_S = 0.05
# While only everyday events occur, a tick does nothing but send heartbeats.
STEADY_TICK_S = 0.125
# Bytes in the window that no member needs stay until the next tick, unless there are as many as this.
EVICT_BYTES = 1 << 20
# The source of an event has a limit.
_MACHINE_CHARACTERS_MAX = 40
_LOG_LEVELS = {Level.ERROR: logging.ERROR, Level.WARNING: logging.WARNING, Level.INFO: logging.INFO}


class Proxy:
    """A running proxy.

    Attributes:
        proposer: the consensus.
        links: by safekeeper id.
        feed: the connection to the primary.
        window: the newest WAL.
        status: the positions that were last released to PostgreSQL.
        credentials: for connections to safekeepers.
        measured: times and counts since the start.
        limbo: the transactions that wait.
        events: records the events of this process, as a handler of the log.
        watch: what is observed of its state.
    """

    def __init__(self, config: ProxyConfig, credentials: Credentials | None = None) -> None:
        self.config = config
        self.credentials = credentials if credentials is not None else Credentials()
        timing = Timing(
            heartbeat_interval_s=config.heartbeat_interval,
            response_timeout_s=config.response_timeout,
            catchup_bytes_per_s=config.catchup_rate,
        )
        hosts = primary_hosts(config.primary)
        proposer_id = secrets.token_hex(16)
        # Several proxies report the loss of the same member: run and machine tell which of them an event is from.
        machine = socket.gethostname()[:_MACHINE_CHARACTERS_MAX]
        self.events = EventRecorder(f"walproxy {proposer_id[:8]}@{machine}", {"run": proposer_id[:8]})
        self.proposer = Proposer(
            ProposerConfig(
                proposer_id=proposer_id,
                safekeeper_ids=tuple(safekeeper_id for safekeeper_id, _ in config.safekeepers),
                addresses={safekeeper_id: str(address) for safekeeper_id, address in config.safekeepers},
                takeover=config.takeover,
                allow_data_loss=config.allow_data_loss,
                bootstrap=config.bootstrap,
                allow_unverified_primary=config.allow_unverified_primary,
                apply_rule=config.remote_apply_standbys,
                several_primaries=len(hosts) > 1,
                tail_after_s=config.tail_after or None,
                replace_lost=config.replace_lost,
                timing=timing,
            )
        )
        self.links = {i: SafekeeperLink(i, address, self, self.credentials) for i, address in config.safekeepers}
        self.feed = PrimaryFeed(
            FeedConfig(hosts, config.application_name, config.slot, config.connect_timeout, config.primary_timeout),
            self,
        )
        self.window = Window(config.window_size)
        self.status = ReportStatus(0, 0, 0)
        self.measured = Measurements()
        self._execution = Execution()
        self.watch = ProxyWatch(self, config.slot, config.application_name, self._now)
        policy = CommitPolicy(config.commit_timeout, config.on_commit_timeout)
        self.limbo = Limbo(self, policy, config.slow_commit, pool=self.watch.primary.pool)
        self.limbo.shows_literals = config.show_literals
        self._event_sender = EventSender(self.events, self._event_receivers, self.credentials)
        self._digest: PageChecksums | None = None
        self._encoder = AppendEncoder(LeaderId(1, "none"))  # of the term whose appends were sent last

    def _now(self) -> float:
        """Return the event loop's time."""
        return self._execution.clock()

    async def run(self) -> WalproxyError | None:
        """Serve until stopped; returns the error that ended it, None after `stop`."""
        execution, watch = self._execution, self.watch
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(execution.callback_failed)
        execution.begin(loop)
        watch.begin(loop.time())
        count = len(self.links)
        if count % 2 == 0:
            logger.warning(
                "%d safekeepers tolerate the loss of %d, as %d would, with quorums of a majority: an odd number is "
                "better",
                count,
                (count - 1) // 2,
                count - 1,
            )
        self._log_apply_rule(self.config.remote_apply_standbys)
        for link in self.links.values():
            self._run_link(link)
        watches = (watch.quorum.run(), watch.primary.run(), watch.sql.run())
        parts = (self.feed.run(), *watches, self.limbo.run(), self._event_sender.run())
        tasks = [execution.run(part) for part in parts]
        try:
            self._tick()
            return await execution.ended
        finally:
            if execution.next_tick is not None:
                execution.next_tick.cancel()
            tasks += execution.link_tasks.values()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def send_last_events(self) -> None:
        """Send the safekeepers what they lack of the events, for a short time at most; after `run`."""
        await self._event_sender.flush(LAST_EVENTS_TIMEOUT_S)

    async def stop(self) -> None:
        """Drain: stop reading, wait until a quorum has the received WAL, send PostgreSQL the positions, end."""
        self._execution.is_draining = True
        self.feed.pause()
        deadline = self._now() + self.config.drain_timeout
        while self._now() < deadline and self._uncommitted_bytes() and self.proposer.phase is Phase.LEADING:
            await asyncio.sleep(TICK_S)
        self.feed.close_politely()
        self._execution.finish(None)

    def reconfigure(self, config: ProxyConfig) -> None:
        """Apply the settings that can change at run time: the standbys of remote_apply. Verify refused hosts again."""
        self.proposer.forget_refusals()
        if config.remote_apply_standbys != self.proposer.standbys.rule:
            self._log_apply_rule(config.remote_apply_standbys)
            self._execute(self.proposer.set_apply_rule(config.remote_apply_standbys))
        self.limbo.slow_commit_s = config.slow_commit
        self.limbo.shows_literals = config.show_literals
        self.limbo.policy.set_rule(config.commit_timeout, config.on_commit_timeout)

    def _log_apply_rule(self, rule: ApplyRule) -> None:
        if rule.count:
            logger.info("synchronous_commit = remote_apply waits for the standbys %s", rule.text)
        else:
            logger.info(
                "no standby is designated (remote_apply_standbys): remote_apply behaves like synchronous_commit = on"
            )

    def _run_link(self, link: SafekeeperLink) -> None:
        self._execution.link_tasks[link.safekeeper_id] = self._execution.run(link.run())

    def _dial(self, safekeeper_id: int, address: Address) -> None:
        """Connect to a safekeeper at this address, too."""
        link = self.links.get(safekeeper_id)
        if link is not None:
            link.addresses.append(address)
            return
        link = self.links[safekeeper_id] = SafekeeperLink(safekeeper_id, address, self, self.credentials)
        self._run_link(link)

    def _hang_up(self, safekeeper_id: int, reason: str) -> None:
        """Close the connection to a safekeeper for good."""
        link = self.links.pop(safekeeper_id, None)
        if link is not None:  # Else its address was not one.
            link.hang_up(reason)
            self._execution.link_tasks.pop(safekeeper_id).cancel()
            self.watch.forget(safekeeper_id)
            self.measured.forget(safekeeper_id)

    def _tick(self) -> None:
        execution, phase = self._execution, self.proposer.phase
        try:
            self._handle(self.proposer.tick(execution.clock(), random.random()))
            self.feed.report_standbys(self.proposer.hot_standby_feedback())
            self._trim_window()
            now = execution.clock()
            if self.watch.is_due(now, has_changed=self.proposer.phase is not phase):
                self._observe(now)
        except Exception as error:
            # The event loop would only log an OSError of a callback.
            execution.fail(error)
            return
        tick_s = TICK_S
        if self.proposer.is_steady:
            tick_s = min(STEADY_TICK_S, max(TICK_S, self.config.heartbeat_interval / 2))
        execution.schedule(tick_s, self._tick)

    def _observe(self, now: float) -> None:
        view, links = self.view(now), self.links
        up = frozenset(i for i, link in links.items() if link.is_up)
        self.measured.commits.permit_samples(now, up, is_apply_timed=bool(view.apply_rule))
        self.watch.observe(
            view,
            self.public_state(view),
            now,
            up=up,
            full=frozenset(i for i in links if self.has_no_room(view, i)),
            problems={i: self.member_problem(view, i) for i in sorted(links)},
            primary=self.feed.rota.current.host.name if self.feed.streams else None,
            primary_problem=self.feed.problem,
        )

    def _event_receivers(self) -> dict[int, Address]:
        """Return the addresses of the safekeepers to which events can be sent now."""
        peers = self.proposer.peers
        return {i: link.address for i, link in self.links.items() if link.is_up and not peers[i].refused}

    def view(self, now: float) -> ProposerView:
        """Return the proposer's present state."""
        return view_of(self.proposer, now)

    def public_state(self, view: ProposerView) -> str:
        """Return the state as /status shows it. It is streaming only if positions are sent to PostgreSQL, too."""
        led = view.led
        if view.state == "streaming" and not (self.feed.streams and led is not None and led.streaming):
            return "waiting_for_primary"
        return view.state

    def member_problem(self, view: ProposerView, safekeeper_id: int) -> str:
        """Return why a safekeeper counts as missing, empty if it does not."""
        if self.has_no_room(view, safekeeper_id):
            assert view.led is not None  # by has_no_room
            return f"it refuses WAL: {view.led.members[safekeeper_id].refusal}"
        led = view.led.membership if view.led is not None else None
        return member_problem(safekeeper_id, view.peers, self.links[safekeeper_id].problem, led)

    def has_no_room(self, view: ProposerView, safekeeper_id: int) -> bool:
        """Return whether a reachable safekeeper refuses WAL for a full disk; each attempt closes its connection."""
        member = view.led.members.get(safekeeper_id) if view.led is not None else None
        return member is not None and bool(member.refusal) and self.links[safekeeper_id].is_reachable

    def attendance(self, now: float) -> Attendance:
        """Return which members take part now."""
        view = self.view(now)
        led = view.led
        known = led.membership if led is not None else newest_membership(view.peers)
        ids = known.ids() if known is not None else frozenset(self.links)
        present = (
            led.taking_part & ids
            if led is not None
            else {i for i in ids if i in self.links and view.peers[i].greeting and not self.member_problem(view, i)}
        )
        is_quorum: bool | None = None
        if led is not None and led.commit_lsn and led.is_served:
            is_quorum = True
        elif view.state == "waiting_for_quorum":
            is_quorum = False
        missing = {i: self._absence(view, i, now) for i in ids - present}
        # Without a leader, one has to be elected first.
        needed = known.members_needed(elect=led is None) if known is not None else size_of(MAJORITY, len(ids))
        return Attendance(is_quorum, view.is_spare, len(present), len(ids), needed, missing)

    def _absence(self, view: ProposerView, safekeeper_id: int, now: float) -> str:
        """Return why a member does not take part."""
        if safekeeper_id not in self.links:
            return "it is not listed in --safekeepers"
        member = view.led.members.get(safekeeper_id) if view.led is not None else None
        answered_at = member.last_response_at if member is not None else None
        if not (problem := self.member_problem(view, safekeeper_id)) and answered_at is not None:
            return f"no reply for {now - answered_at:.1f} s"
        return problem or "no reply yet"

    def sql_conninfo(self) -> str | None:
        """Return the connection string of the primary for SQL, None without a primary."""
        return self.feed.rota.current.host.conninfo if self.proposer.primary is not None else None

    def limbo_positions(self) -> Positions:
        """Return the positions for the limbo."""
        commit_lsn, _ = self.proposer.committed_lsns()
        reported_lsn = min(self.status.flush_lsn, self.window.end_lsn)
        return Positions(self.proposer.phase is Phase.LEADING, commit_lsn, reported_lsn, self.status.apply_lsn)

    def limbo_facts(self) -> Facts:
        """Return the state for the limbo."""
        view = self.view(self._now())
        led, primary = view.led, view.primary
        known = led.membership if led is not None else newest_membership(view.peers)
        ids = known.ids() if known is not None else frozenset(self.links)
        return Facts(
            proposer_id=self.proposer.config.proposer_id,
            term=view.term if led is not None else 0,
            state=self.public_state(view),
            quorum=max(known.commit_sizes()) if known is not None else size_of(MAJORITY, len(ids)),
            received_lsn=self.window.end_lsn,
            positions=self.limbo_positions(),
            flush_lsns={i: led.members[i].flush_lsn if led is not None and i in led.members else 0 for i in ids},
            segment_size=primary.segment_size if primary is not None else 0,
            server_version=primary.server_version if primary is not None else 0,
            tli=led.tli if led is not None else primary.tli if primary is not None else 0,
        )

    def served_conninfo(self) -> str | None:
        """Return the connection string of the primary for SQL, None without a primary, and for a spare."""
        return self.sql_conninfo() if not self.proposer.candidacy.is_spare else None

    # What the watches have found.

    @property
    def state_since(self) -> float:
        """When the public state changed last."""
        return self.watch.state_since

    @property
    def readiness(self) -> Readiness:
        """Whether commits succeed."""
        return self.watch.readiness

    @property
    def replay_watch(self) -> ReplayWatch:
        """Which standbys receive WAL and do not replay it."""
        return self.watch.replay

    @property
    def quorum_watch(self) -> QuorumWatch:
        """Since when there is no quorum."""
        return self.watch.quorum

    @property
    def primary_watch(self) -> PrimaryWatch:
        """The settings of the primary."""
        return self.watch.primary

    @property
    def sql_watch(self) -> SqlWatch:
        """Whether SQL on the primary is possible."""
        return self.watch.sql

    def gate(self) -> Gate | None:
        """Return whether commits wait for this proxy, None if nothing is known."""
        return self.watch.primary.gate()

    def waiting_sessions(self) -> tuple[int | None, str]:
        """Return how many sessions wait for their commits, or None and why that is unknown."""
        return self.watch.primary.waiting_sessions()

    # The events of the links and of the feed.

    def link_up(self, safekeeper_id: int) -> None:
        """Handle a connection to a safekeeper that is open now."""
        self.measured.connected(safekeeper_id)
        self._handle(self.proposer.connected(safekeeper_id, self._execution.clock()))

    def link_down(self, safekeeper_id: int) -> None:
        """Handle a connection to a safekeeper that is closed now."""
        self.measured.commits.disconnected(safekeeper_id)
        self._handle(self.proposer.disconnected(safekeeper_id, self._execution.clock()))

    def link_message(self, safekeeper_id: int, message: AcceptorMessage) -> None:
        """Handle a message from a safekeeper."""
        actions = self.proposer.message(safekeeper_id, message, self._execution.clock())
        if type(message) is AppendResponse:
            times = self.measured.commits
            if times.pending:
                times.acknowledged(safekeeper_id, message, monotonic())
            if actions:
                self._execute(actions)
        else:
            self.measured.answers.count(message)
            self._handle(actions)

    def primary_identified(self, identity: PrimaryIdentity) -> None:
        """Handle the identity of the primary."""
        digest = self._digest
        crcs, begin_lsn = (digest.page_crcs(), digest.begin_lsn) if digest is not None else ((), 0)
        self.measured.primary_identified()
        self._handle(self.proposer.primary_identified(identity, self._execution.clock(), crcs, begin_lsn))

    def primary_lost(self, reason: str) -> None:
        """Handle the end of the connection to the primary."""
        self.measured.primary_lost()
        self._handle(self.proposer.primary_lost(self._execution.clock()))

    def primary_checked(self, begin_lsn: Lsn, end_lsn: Lsn, digest: PageChecksums) -> None:
        """Handle the checksums of the bytes to compare (S10)."""
        page_crcs = digest.page_crcs()
        if self._digest is None:
            digest.let_go()
            self._digest = digest
        self._handle(self.proposer.primary_checked(begin_lsn, end_lsn, page_crcs, self._execution.clock()))
        # Again: how far the flush position may be reported depends on the digest.
        self._execute([self.status])

    def slot_in_use(self) -> None:
        """Handle a primary that cannot stream yet, because another walsender holds the slot."""
        self._handle(self.proposer.primary_slot_in_use(self._execution.clock()))

    def segment_removed(self, reason: str) -> None:
        """Handle a primary that has recycled the WAL to compare."""
        logger.warning("%s", reason)
        self._handle(self.proposer.primary_segment_removed(self._execution.clock()))

    def wal_received(self, begin_lsn: Lsn, chunks: list[memoryview]) -> None:
        """Append WAL to the window, from which it is sent to the members."""
        window, digest = self.window, self._digest
        now = self._execution.clock()
        window.append(begin_lsn, chunks)
        self.limbo.arrivals.note((window.end_lsn, now))
        self.measured.commits.received(window.end_lsn, monotonic())
        self._execute(self.proposer.wal_received(window.end_lsn, now))
        if digest is not None:
            # While the members write.
            for chunk in chunks:
                digest.feed(chunk)
        if (
            window.end_lsn - window.begin_lsn >= window.capacity_bytes
            and not self.feed.is_paused
            and self._uncommitted_bytes() >= window.capacity_bytes
        ):
            logger.info("the window is full of uncommitted WAL: pausing replication until commits catch up")
            self.feed.pause()

    def timeline_ended(self, next_tli: int, end_lsn: Lsn) -> None:
        """Handle the end of a timeline of the primary."""
        self.limbo.timeline_ended(end_lsn, next_tli)
        self._handle(self.proposer.timeline_ended(next_tli, end_lsn, self._execution.clock()))

    def primary_refused(self, reason: str) -> None:
        """Handle a primary whose WAL does not continue the log (S10)."""
        self._handle(self.proposer.primary_refused(reason, self._execution.clock()))

    def failed(self, error: WalproxyError) -> None:
        """Handle the error that has ended the feed."""
        self._execution.finish(error)

    def may_make_slot(self) -> bool:
        """Return whether a cluster is known."""
        return self.proposer.knows_a_cluster

    def is_first_start(self) -> bool:
        """Return whether all safekeepers have replied, and none belongs to a cluster."""
        return self.proposer.is_first_start

    def quorum_end_lsn(self) -> Lsn:
        """Return commit_lsn while a term is led, else the highest flush_lsn that a safekeeper has reported."""
        return self.proposer.quorum_end_lsn

    def _handle(self, actions: list[Action]) -> None:
        """Execute the actions of an event that may have changed the phase, and observe that."""
        self._execute(actions)
        self.measured.elections.observe(self.proposer.phase, self._execution.clock())

    def _execute(self, actions: list[Action]) -> None:
        """Execute the actions of an event, and then those of the events that were raised meanwhile."""
        execution = self._execution
        if execution.queued is not None:
            execution.queued.append(actions)
            return
        queued: list[list[Action]] = []
        execution.queued = queued
        try:
            while True:
                for action in actions:
                    if type(action) is SendAppend:
                        header, end_lsn = action.header, action.end_lsn
                        begin_lsn = header.begin_lsn
                        if self._encoder.leader_id is not header.leader_id:
                            self._encoder = AppendEncoder(header.leader_id)
                        head = self._encoder.header(header, end_lsn - begin_lsn)
                        frame = [head, *self.window.slices(begin_lsn, end_lsn)]
                        for safekeeper_id in action.safekeeper_ids:
                            self.links[safekeeper_id].send(frame)
                        if self.measured.commits.armed:
                            self.measured.commits.appended(action, monotonic())
                    elif type(action) is ReportStatus:
                        self.status = action
                        self.measured.commits.reported(action, monotonic())
                        flush_lsn, apply_lsn = action.flush_lsn, action.apply_lsn
                        if flush_lsn and self._digest is not None:
                            # It must leave the slot where a comparison with this primary has to begin (S10).
                            flush_lsn = self._digest.slot_lsn(flush_lsn)
                            apply_lsn = min(apply_lsn, flush_lsn)
                        self.feed.report(action.write_lsn, flush_lsn, apply_lsn)  # S1
                        window = self.window
                        if window.end_lsn - window.begin_lsn >= EVICT_BYTES or self.feed.is_paused:
                            self._trim_window()
                    elif type(action) is SendMessage:
                        self.links[action.safekeeper_id].send(encode(action.message))
                    else:
                        self._execute_rare(action)
                if not queued:
                    break
                actions = queued.pop(0)
        finally:
            if execution.queued is queued:  # Another list is that of a bug.
                execution.queued = None

    def _execute_rare(self, action: Action) -> None:
        if isinstance(action, Disconnect):
            self.links[action.safekeeper_id].disconnect(action.reason)
        elif isinstance(action, Dial):
            try:
                self._dial(action.safekeeper_id, parse_address(action.address))
            except ValueError as error:
                # The membership has it, as an operator gave it once.
                logger.warning("safekeeper %d cannot be dialled: %s", action.safekeeper_id, error)
        elif isinstance(action, HangUp):
            self._hang_up(action.safekeeper_id, action.reason)
        elif isinstance(action, IdentifyPrimary):
            self.feed.identify()
        elif isinstance(action, StartReplication):
            self.measured.commits.restarted(action.begin_lsn, action.tli)
            if not action.resumes:
                self.window.reset(action.begin_lsn)
                self.limbo.stream_begins(action.begin_lsn, action.tli)
                # If bytes are compared first, `primary_checked` brings their checksums.
                identity, checks = self.proposer.primary, action.check_begin_lsn < action.begin_lsn
                self._digest = None
                if identity is not None and not checks:
                    self._digest = PageChecksums(identity.segment_size, action.begin_lsn)
            self.feed.start(action)
        elif isinstance(action, EmptyWindow):
            self.window.reset(action.begin_lsn)
            self.limbo.stream_begins(action.begin_lsn, 0)
            self._digest = None
        elif isinstance(action, StopReplication):
            self.feed.stop(action.reason)
        elif isinstance(action, RefusePrimary):
            record_event(logger, "primary-refused", {}, action.reason)
            self.feed.refuse(action.reason)
        elif isinstance(action, Note):
            self.watch.log_line(_LOG_LEVELS[action.level], action.text, action.event, action.term)
        elif isinstance(action, Finish):
            if isinstance(action.error, PrimaryRefused):
                record_event(logger, "primary-refused", {}, str(action.error))
            self._execution.finish(action.error)

    def _uncommitted_bytes(self) -> int:
        commit_lsn, _ = self.proposer.committed_lsns()
        return self.window.end_lsn - max(commit_lsn, self.window.begin_lsn)

    def _trim_window(self) -> None:
        commit_lsn, truncate_lsn = self.proposer.committed_lsns()
        # Some WAL stays from which the records can be read that end above commit_lsn.
        if self.window.evict(max(0, truncate_lsn - KEPT_BYTES), max(0, commit_lsn - KEPT_BYTES)):
            self.proposer.wal_evicted(self.window.begin_lsn)
        if (
            self.feed.is_paused
            and not self._execution.is_draining
            and self._uncommitted_bytes() < self.window.capacity_bytes // 2
        ):
            self.feed.resume()
