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
from collections import deque
from collections.abc import Mapping
from time import monotonic
from typing import Any

from safekeeper.base.errors import PrimaryRefused, WalproxyError
from safekeeper.base.event_log import EventRecorder
from safekeeper.base.logs import ProblemLog, RateLimits, log_event, record_event
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
from walproxy.postgres.sessions import SqlSessions
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
from walproxy.proxy.gate import Gate
from walproxy.proxy.measurements import Measurements
from walproxy.proxy.member_problem import member_problem
from walproxy.proxy.primary_feed import FeedConfig, PrimaryFeed
from walproxy.proxy.primary_watch import PrimaryWatch
from walproxy.proxy.quorum_watch import Attendance, QuorumWatch
from walproxy.proxy.readiness import SERVING_STATES, Readiness
from walproxy.proxy.replay_watch import ReplayWatch
from walproxy.proxy.safekeeper_link import SafekeeperLink
from walproxy.proxy.sql_watch import SqlWatch
from walproxy.proxy.state_events import StateEvents, look_at
from walproxy.proxy.window import Window

logger = logging.getLogger(__name__)

TICK_S = 0.05
# While only everyday events occur, a tick does nothing but send heartbeats.
STEADY_TICK_S = 0.125
# The state is observed no more often than this, and when the phase has changed: it is most of what an idle proxy does.
OBSERVATION_INTERVAL_S = 0.2
# Bytes in the window that no member needs stay until the next tick, unless there are as many as this.
EVICT_BYTES = 1 << 20
LINES_OF_A_KIND_MAX = 10
LINES_INTERVAL_S = 60.0
# Events that differ only in figures.
EVENTS_OF_A_KIND_MAX = 30
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
        state: the public name of the state, as of the last tick.
        state_since: the event loop's time of the last change of it.
        readiness: whether commits succeed, for /readyz.
        replay_watch: which standbys receive WAL and do not replay it.
        quorum_watch: since when there is no quorum; None before `run`.
        primary_watch: whether commits wait for this proxy, and how many sessions do; None before `run`.
        sql_watch: whether SQL on the primary is possible; None before `run`.
        credentials: for connections to safekeepers.
        measured: times and counts since the start.
        limbo: the transactions that wait.
        events: records the events of this process, as a handler of the log.
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
        self.state = "connecting"
        self.state_since = 0.0
        self.readiness = Readiness()
        self.quorum_watch: QuorumWatch | None = None
        self.replay_watch = ReplayWatch()
        self.primary_watch: PrimaryWatch | None = None
        self.sql_watch: SqlWatch | None = None
        self.measured = Measurements()
        self._times = self.measured.commits  # Looked up once: the hot path uses it.
        policy = CommitPolicy(config.commit_timeout, config.on_commit_timeout)
        self.limbo = Limbo(self, policy, config.slow_commit, pool=self._sql_pool)
        self.limbo.shows_literals = config.show_literals
        self._note_arrival = self.limbo.arrivals.note
        self._lines = RateLimits(LINES_OF_A_KIND_MAX, LINES_INTERVAL_S)
        self._event_texts = RateLimits(EVENTS_OF_A_KIND_MAX, LINES_INTERVAL_S)
        self._state_events: StateEvents
        self._event_sender: EventSender | None = None
        self._member_problems = {i: ProblemLog(logger) for i in self.links}
        self._apply_problem = ProblemLog(logger)
        self._digest: PageChecksums | None = None
        self._encoder = AppendEncoder(LeaderId(1, "none"))  # of the term whose appends were sent last
        self._events: deque[list[Action]] = deque()
        self._executing = False
        self._has_failed = False
        self._stopping = False
        self._next_tick: asyncio.TimerHandle | None = None
        self._link_tasks: dict[int, asyncio.Task[None]] = {}
        self._next_observation_at = 0.0
        self._finished: asyncio.Future[WalproxyError | None]
        self._loop: asyncio.AbstractEventLoop

    async def run(self) -> WalproxyError | None:
        """Serve until stopped; returns the error that ended it, None after `stop`."""
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._callback_failed)
        self._finished = self._loop.create_future()
        self.state_since = self._loop.time()
        self.quorum_watch = QuorumWatch(self)
        self.primary_watch = PrimaryWatch(self, self.config.slot, self.config.application_name)
        self.sql_watch = SqlWatch(self)
        self._state_events = StateEvents(self._loop.time())
        self._event_sender = EventSender(self.events, self._event_receivers, self.credentials)
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
        tasks = [
            asyncio.create_task(task)
            for task in (
                self.feed.run(),
                self.quorum_watch.run(),
                self.primary_watch.run(),
                self.sql_watch.run(),
                self.limbo.run(),
                self._event_sender.run(),
            )
        ]
        for task in tasks:
            task.add_done_callback(self._task_ended)
        try:
            self._tick()
            return await self._finished
        finally:
            if self._next_tick is not None:
                self._next_tick.cancel()
            tasks += self._link_tasks.values()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def send_last_events(self) -> None:
        """Send the safekeepers what they lack of the events, for a short time at most; after `run`."""
        if self._event_sender is not None:
            await self._event_sender.flush(LAST_EVENTS_TIMEOUT_S)

    async def stop(self) -> None:
        """Drain: stop reading, wait until a quorum has the received WAL, send PostgreSQL the positions, end."""
        self._stopping = True
        self.feed.pause()
        deadline = self._loop.time() + self.config.drain_timeout
        while self._loop.time() < deadline and self._uncommitted_bytes() and self.proposer.phase is Phase.LEADING:
            await asyncio.sleep(TICK_S)
        self.feed.close_politely()
        self._finish(None)

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
        task = self._link_tasks[link.safekeeper_id] = asyncio.create_task(link.run())
        task.add_done_callback(self._task_ended)

    def _dial(self, safekeeper_id: int, address: Address) -> None:
        """Connect to a safekeeper at this address, too."""
        link = self.links.get(safekeeper_id)
        if link is not None:
            link.addresses.append(address)
            return
        link = self.links[safekeeper_id] = SafekeeperLink(safekeeper_id, address, self, self.credentials)
        self._member_problems[safekeeper_id] = ProblemLog(logger)
        self._run_link(link)

    def _hang_up(self, safekeeper_id: int, reason: str) -> None:
        """Close the connection to a safekeeper for good."""
        link = self.links.pop(safekeeper_id, None)
        if link is not None:  # Else its address was not one.
            link.hang_up(reason)
            self._link_tasks.pop(safekeeper_id).cancel()
            del self._member_problems[safekeeper_id]
            self.measured.forget(safekeeper_id)

    def _finish(self, error: WalproxyError | None) -> None:
        if not self._finished.done():
            self._finished.set_result(error)

    def _task_ended(self, task: "asyncio.Task[None]") -> None:
        """End the process if a task has failed: that is a bug, and the other tasks must not run without it."""
        error = task.exception() if not task.cancelled() else None
        if error is not None:
            self._fail(error)

    def _callback_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the process if a callback has failed, which the event loop would only log."""
        error = context.get("exception")
        if error is None or isinstance(error, OSError):
            logger.warning("%s%s", context["message"], f": {error}" if error is not None else "")
        else:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End because of a bug; events that still arrive are not executed."""
        self._has_failed = True
        if not self._finished.done():
            self._finished.set_exception(error)

    def _tick(self) -> None:
        phase = self.proposer.phase
        try:
            self._handle(self.proposer.tick(self._loop.time(), random.random()))
            self.feed.report_standbys(self.proposer.hot_standby_feedback())
            self._trim_window()
            now = self._loop.time()
            if now >= self._next_observation_at or self.proposer.phase is not phase:
                self._next_observation_at = now + OBSERVATION_INTERVAL_S
                self._watch_state()
        except Exception as error:
            # The event loop would only log an OSError of a callback.
            self._fail(error)
            return
        tick_s = TICK_S
        if self.proposer.is_steady:
            tick_s = min(STEADY_TICK_S, max(TICK_S, self.config.heartbeat_interval / 2))
        self._next_tick = self._loop.call_later(tick_s, self._tick)

    def _watch_state(self) -> None:
        now = self._loop.time()
        view = self.view(now)
        self.replay_watch.observe(view.standbys, now)
        connected = [i for i, link in self.links.items() if link.is_up]
        self._times.permit_samples(now, connected, is_apply_timed=bool(view.apply_rule))
        state = self.public_state(view)
        problems = {i: self.member_problem(view, i) for i in sorted(self.links)}
        if state != self.state:
            missing = [f"safekeeper {i}: {problem}" for i, problem in problems.items() if problem]
            note = f" ({'; '.join(missing)})" if missing and state == "waiting_for_quorum" else ""
            self._log_line(logging.INFO, f"{self.state} -> {state} after {now - self.state_since:.1f} s{note}")
            self.state, self.state_since = state, now
        self._record_events(view, state, problems, now)
        self.readiness.observe(state in SERVING_STATES, now, is_spare=view.is_spare)
        for safekeeper_id, link in self.links.items():
            # The link logs its own problems, the proposer logs refusals.
            if link.is_up and not view.peers[safekeeper_id].refused:
                problem = problems[safekeeper_id]
                if problem and not self.has_no_room(view, safekeeper_id):
                    self._member_problems[safekeeper_id].note(problem, "safekeeper %d: %s", safekeeper_id, problem)
        apply_problem = view.lacking
        if apply_problem:
            self._apply_problem.note(
                apply_problem, "remote_apply is blocked: %s", apply_problem, event="remote-apply-blocked"
            )
        elif apply_problem is not None:
            self._apply_problem.over("remote_apply is no longer blocked", event="remote-apply-resumed")

    def _record_events(self, view: ProposerView, state: str, problems: Mapping[int, str], now: float) -> None:
        """Record what has changed since the last look."""
        look = look_at(
            view,
            up=frozenset(i for i, link in self.links.items() if link.is_up),
            full=frozenset(i for i in self.links if self.has_no_room(view, i)),
            problems=problems,
            primary=self.feed.rota.current.host.name if self.feed.streams else None,
            primary_problem=self.feed.problem or "",
            serves=state in SERVING_STATES,
        )
        for kind, fields, text in self._state_events.compare(look, now):
            if self._event_texts.admit(text) is not None:
                record_event(logger, kind, fields, text)

    def _event_receivers(self) -> dict[int, Address]:
        """Return the addresses of the safekeepers to which events can be sent now."""
        peers = self.proposer.peers
        return {i: link.address for i, link in self.links.items() if link.is_up and not peers[i].refused}

    def _log_line(self, level: int, line: str, event: str = "", term: int = 0) -> None:
        """Log a line that may repeat: a few of its kind per minute, with the number of suppressed ones."""
        addition = self._lines.admit(line)
        if addition is not None and event:
            log_event(logger, event, {"term": term}, "%s%s", line, addition, level=level)
        elif addition is not None:
            logger.log(level, "%s%s", line, addition)

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
        view = self.view(self._loop.time())
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

    def _sql_pool(self) -> SqlSessions | None:
        return self.primary_watch.pool() if self.primary_watch is not None else None

    def gate(self) -> Gate | None:
        """Return whether commits wait for this proxy, None if nothing is known."""
        return self.primary_watch.gate() if self.primary_watch is not None else None

    def waiting_sessions(self) -> tuple[int | None, str]:
        """Return how many sessions wait for their commits, or None and why that is unknown."""
        return self.primary_watch.waiting_sessions() if self.primary_watch is not None else (None, "not counted yet")

    def link_up(self, safekeeper_id: int) -> None:
        """Handle a connection to a safekeeper that is open now."""
        self.measured.connected(safekeeper_id)
        self._handle(self.proposer.connected(safekeeper_id, self._loop.time()))

    def link_down(self, safekeeper_id: int) -> None:
        """Handle a connection to a safekeeper that is closed now."""
        self._times.disconnected(safekeeper_id)
        self._handle(self.proposer.disconnected(safekeeper_id, self._loop.time()))

    def link_message(self, safekeeper_id: int, message: AcceptorMessage) -> None:
        """Handle a message from a safekeeper."""
        actions = self.proposer.message(safekeeper_id, message, self._loop.time())
        if type(message) is AppendResponse:
            times = self._times
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
        self._handle(self.proposer.primary_identified(identity, self._loop.time(), crcs, begin_lsn))

    def primary_lost(self, reason: str) -> None:
        """Handle the end of the connection to the primary."""
        self.measured.primary_lost()
        self._handle(self.proposer.primary_lost(self._loop.time()))

    def primary_checked(self, begin_lsn: Lsn, end_lsn: Lsn, digest: PageChecksums) -> None:
        """Handle the checksums of the bytes to compare (S10)."""
        page_crcs = digest.page_crcs()
        if self._digest is None:
            digest.let_go()
            self._digest = digest
        self._handle(self.proposer.primary_checked(begin_lsn, end_lsn, page_crcs, self._loop.time()))
        # Again: how far the flush position may be reported depends on the digest.
        self._execute([self.status])

    def slot_in_use(self) -> None:
        """Handle a primary that cannot stream yet, because another walsender holds the slot."""
        self._handle(self.proposer.primary_slot_in_use(self._loop.time()))

    def segment_removed(self, reason: str) -> None:
        """Handle a primary that has recycled the WAL to compare."""
        logger.warning("%s", reason)
        self._handle(self.proposer.primary_segment_removed(self._loop.time()))

    def wal_received(self, begin_lsn: Lsn, chunks: list[memoryview]) -> None:
        """Append WAL to the window, from which it is sent to the members."""
        window, digest = self.window, self._digest
        now = self._loop.time()
        window.append(begin_lsn, chunks)
        self._note_arrival((window.end_lsn, now))
        self._times.received(window.end_lsn, monotonic())
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
        self._handle(self.proposer.timeline_ended(next_tli, end_lsn, self._loop.time()))

    def primary_refused(self, reason: str) -> None:
        """Handle a primary whose WAL does not continue the log (S10)."""
        self._handle(self.proposer.primary_refused(reason, self._loop.time()))

    def failed(self, error: WalproxyError) -> None:
        """Handle the error that has ended the feed."""
        self._finish(error)

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
        self.measured.elections.observe(self.proposer.phase, self._loop.time())

    def _execute(self, actions: list[Action]) -> None:
        """Execute the actions of an event, and then those of the events that were raised meanwhile."""
        if self._has_failed:
            return
        if self._executing:
            self._events.append(actions)
            return
        self._executing = True
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
                        if self._times.armed:
                            self._times.appended(action, monotonic())
                    elif type(action) is ReportStatus:
                        self.status = action
                        self._times.reported(action, monotonic())
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
                if not self._events:
                    break
                actions = self._events.popleft()
        finally:
            self._executing = False

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
            self._times.restarted(action.begin_lsn, action.tli)
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
            self._log_line(_LOG_LEVELS[action.level], action.text, action.event, action.term)
        elif isinstance(action, Finish):
            if isinstance(action.error, PrimaryRefused):
                record_event(logger, "primary-refused", {}, str(action.error))
            self._finish(action.error)

    def _uncommitted_bytes(self) -> int:
        commit_lsn, _ = self.proposer.committed_lsns()
        return self.window.end_lsn - max(commit_lsn, self.window.begin_lsn)

    def _trim_window(self) -> None:
        commit_lsn, truncate_lsn = self.proposer.committed_lsns()
        # Some WAL stays from which the records can be read that end above commit_lsn.
        if self.window.evict(max(0, truncate_lsn - KEPT_BYTES), max(0, commit_lsn - KEPT_BYTES)):
            self.proposer.wal_evicted(self.window.begin_lsn)
        if self.feed.is_paused and not self._stopping and self._uncommitted_bytes() < self.window.capacity_bytes // 2:
            self.feed.resume()
