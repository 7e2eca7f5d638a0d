"""What an agent does next. Pure.

Theory of operation. Each agent sees the cluster through the safekeepers (`ClusterView`) and its own server
(`ServerLook`), and `Decider.decide` yields one step at a time. No step needs the consent of another agent:

- A standby is promoted only by a failover, which seals the timeline of the old primary on a quorum first (S15). What
  the agents report decides only which of them tries, and when. If two try, the seal lets one of them in.
- A server becomes a primary without a failover only if it was the primary of the log's timeline, and no failover has
  sealed that. If one seals it at the same instant, nothing that the server commits is acknowledged.
- A server that becomes a primary accepts writes once commits succeed, and no earlier.
- A primary ends its writes if the safekeepers may have heard no leader for nearly as long as the others wait. Its agent
  has a lower bound for when they last did: the time at which it sent the request, less the age that they replied.
  This is for reads and for commits that do not wait (`local`, `off`): the seal protects those that wait.

The leader is lost when a quorum of the safekeepers has replied for `dead_after_s`, and has heard no proxy with a
primary for that long, or if the agent that led has resigned. Then the first of the candidates acts; the next one does
after `TURN_S` more, and so on, because an agent may report and not be able to act.
"""

import dataclasses
from dataclasses import dataclass, field

from safekeeper.base.lsn import Lsn, format_lsn
from walproxy.agent.memory import (
    FRESH_S,
    RETRY_S_MIN,
    UNSTEADY_TIMES,
    UNSTEADY_WITHIN_S,
    Exchanges,
    Recent,
    Retry,
    SealedAttempts,
    ServerMemory,
)
from walproxy.agent.report import AgentReport, Order
from walproxy.agent.server_look import ServerLook, ServerState
from walproxy.agent.state import ClusterView
from walproxy.failover.candidates import LAG_BYTES_MAX

# How long a primary that runs when its agent starts may accept writes until a leader is known to have been heard.
FIRST_VIEW_S = 1.0
# A primary that hangs for less may only be slow.
HANGS_S_MIN = 3.0
# How long each further candidate waits for the one before it.
TURN_S = 3.0
# How long the others wait for a failover that an agent reports to be under way, and for its guards beside that
# (`Own.guards_s`): the next agent would begin while fence_command still runs. No commit would be lost, since the first
# one checks its seal after the guards; but two machines would run the command at the same time, and the first would
# be given up. Not one long limit for all: a promoted server whose proxy does not lead is waited for as long.
BUSY_S = 30.0
# How long no agent leads, and no attempt is known to have sealed, before a primary that only the floor keeps out lets
# itself in again (13.10).
READMIT_AFTER_S = 3.0
# A standby that receives nothing, and is on another timeline than the leader, for so long may never follow it.
FOLLOWS_WITHIN_S = 15.0
# For how long, at least, a quorum of the safekeepers has replied before the loss of a leader counts: if they were away,
# its heartbeats reach them within this time.
HEARTBEAT_ARRIVES_S = 1.0
# How long a leader that has resigned waits for another one before it goes on itself.
RESIGNATION_S = 20.0
# As long as a proposer counts as live (protocol, step 2): an order to fail over needs no longer silence.
SILENCE_S = 1.0
# Standbys that differ by less are equally advanced: the priority decides.
EQUAL_BYTES = 16 << 20


def demote_after_s(dead_after_s: float) -> float:
    """Return after how long a primary ends its writes: early enough that this is done when the others may act."""
    return dead_after_s - max(0.4, 0.2 * dead_after_s)


def fresh_reports(view: ClusterView) -> list[AgentReport]:
    """Return the reports of the agents that are not away, ordered by name."""
    return [seen.report for seen in view.agents if seen.age_s < FRESH_S]


def leader_of(view: ClusterView) -> AgentReport | None:
    """Return the report of the agent that leads on the log's timeline, None if none does."""
    leaders = [report for report in fresh_reports(view) if report.is_leader and report.tli >= view.log.tli]
    return max(leaders, key=lambda report: report.tli, default=None)


@dataclass(frozen=True)
class Own:
    """The agent's options that matter here; see `AgentConfig`.

    Attributes:
        guards_s: how long the guards of a promotion may last; those of the other agents are the same.
    """

    name: str
    address: str = ""
    dead_after_s: float = 5.0
    may_lead: bool = True
    priority: int = 100
    stops_without_quorum: bool = False
    guards_s: float = 0.0


@dataclass(frozen=True)
class Wait:
    """Nothing is to be done; `reason` is what is waited for, "" if all is well."""

    reason: str = ""


@dataclass(frozen=True)
class StartPrimary:
    """Start the server, which was the primary when it ended."""


@dataclass(frozen=True)
class StartStandby:
    """Start the server as a standby."""


@dataclass(frozen=True)
class FailOver:
    """Seal the log's timeline and promote the own server. `order` has wanted it, None: the loss of the leader."""

    order: Order | None = None


@dataclass(frozen=True)
class EndWrites:
    """Make the server read-only and end its sessions, or stop it."""

    reason: str
    stops: bool = False


@dataclass(frozen=True)
class AllowWrites:
    """Undo `EndWrites`."""


@dataclass(frozen=True)
class Stop:
    """Stop an old primary, by force if need be."""

    reason: str


@dataclass(frozen=True)
class Kill:
    """End a server that hangs."""

    reason: str


@dataclass(frozen=True)
class Rejoin:
    """Make the stopped server a standby of the leader."""

    leader: AgentReport


@dataclass(frozen=True)
class Rebuild:
    """Replace the data folder by a base backup of the leader."""

    leader: AgentReport
    order: Order


@dataclass(frozen=True)
class StepDown:
    """Stop the server cleanly and resign, so that the agent `to` fails over. `order` has wanted it, None: `reason`."""

    order: Order | None
    to: str
    reason: str = ""


@dataclass(frozen=True)
class Resign:
    """Leave the lead of a server that is stopped to others."""

    reason: str


@dataclass(frozen=True)
class LetIn:
    """Lower the floor below the timeline of the own server, an old primary that was not replaced (13.10)."""

    tli: int


@dataclass(frozen=True)
class Refuse:
    """Refuse an order. `reason` is one line."""

    order: Order
    reason: str


Step = (
    Wait
    | StartPrimary
    | StartStandby
    | FailOver
    | EndWrites
    | AllowWrites
    | Stop
    | Kill
    | Rejoin
    | Rebuild
    | StepDown
    | Resign
    | LetIn
    | Refuse
)


@dataclass
class Decider:
    """The decisions of one agent, and what it remembers between them. Times are those of its clock, in seconds.

    Attributes:
        ended_writes: this agent has made the server read-only.
        resigned_at: when it gave up the lead; None if it has not, or if that is over.
        orders_done: ids of the orders that it has executed or refused.
        exchanges: what they have shown.
        retry: when it tries again to fail over, to start or to rejoin.
    """

    own: Own
    ended_writes: bool = False
    resigned_at: float | None = None
    orders_done: set[str] = field(default_factory=set)
    exchanges: Exchanges = field(default_factory=Exchanges)
    retry: Retry = field(default_factory=Retry)
    _server: ServerMemory = field(default_factory=ServerMemory)
    _sealed: SealedAttempts = field(default_factory=SealedAttempts)
    _losses: Recent = field(default_factory=Recent)
    _starts: Recent = field(default_factory=Recent)
    _unled_since: float | None = None
    _lost_since: float | None = None
    _before: frozenset[str] = frozenset()  # the candidates that were before this one when the loss was seen
    _ahead_since: float | None = None
    _compared: tuple[int, int] = (0, 0)  # the own timeline, and the leader's, that a rejoin was to compare

    def saw(self, view: ClusterView) -> None:
        """Take an exchange into account."""
        self.exchanges.saw(view)
        leader = leader_of(view)
        sealed = {report.name for report in fresh_reports(view) if report.has_sealed} - {self.own.name}
        if self._sealed.have_failed(frozenset(sealed), view) and leader is None:
            self.retry.at = max(self.retry.at, view.sent_at + RETRY_S_MIN)
        # The own report in it may be of the time before the resignation.
        if self.resigned_at is not None and leader is not None and leader.name != self.own.name:
            self.resigned_at = None

    def commits_advanced(self, now: float) -> None:
        """Take into account that the quorum has received more WAL from the own server: it did not hang."""
        self._server.advanced_at = now

    def failed(self, now: float) -> None:
        """Take into account that a step has failed: others are first for a while."""
        self.retry.failed(now)
        self._lost_since = None

    def resigned(self, now: float) -> None:
        """Take into account that the lead was given up."""
        self.resigned_at = now

    def rejoined(self) -> None:
        """Take into account that the data folder is that of a standby of the leader."""
        self._server.is_stranded = False

    @property
    def has_resigned(self) -> bool:
        """Whether the other agents need not wait for the loss of this one."""
        return self.resigned_at is not None

    def is_in_control(self, now: float, view: ClusterView) -> bool:
        """Return whether the server may be a primary that accepts writes, or accepts none: else the watchdog acts."""
        return self.ended_writes or self.exchanges.silent_s(now) < self._dead_after_s(view)

    def decide(self, now: float, look: ServerLook, view: ClusterView, *, commits: bool) -> Step:
        """Return the next step.

        Args:
            view: the last exchange; `saw` was called with it.
            commits: the own proxy reports that commits succeed.
        """
        self._remember(now, look)
        if now - view.sent_at > FRESH_S:
            view = dataclasses.replace(view, has_quorum=False, problem="the safekeepers do not reply")
        if self.resigned_at is not None and now - self.resigned_at > RESIGNATION_S:
            self.resigned_at = None
        if view.settings.is_paused:
            return self._paused(look, view, commits)
        rebuild = self._rebuild(look, view)
        if rebuild is not None:
            return rebuild
        if look.rejoin_begun:
            return self._rejoin(now, look, view)
        match look.state:
            case ServerState.PRIMARY:
                return self._as_primary(now, look, view, commits)
            case ServerState.STANDBY:
                return self._as_standby(now, look, view)
            case ServerState.STOPPED:
                return self._stopped(now, look, view)
            case ServerState.HANGS:
                return self._hanging(now, look, view)
            case ServerState.REFUSES:
                return self._refusing(now, look, view)
            case ServerState.MISSING:
                return Wait("the data folder does not exist: create it with pg_basebackup")
            case _:
                return Wait(look.problem or f"PostgreSQL is {look.state.value}")

    def _paused(self, look: ServerLook, view: ClusterView, commits: bool) -> Step:
        """Take back what this agent has done to the server before the pause, and nothing else."""
        is_theirs = view.has_quorum and not view.is_sealed_off(look.tli) and not _foreign(look, view)
        if look.state is ServerState.PRIMARY and self.ended_writes and commits and is_theirs:
            return AllowWrites()
        return Wait("paused")

    def _remember(self, now: float, look: ServerLook) -> None:
        if self.exchanges.leader_seen_at is None:
            # Found running by an agent that has just started: it has a second to hear from the safekeepers.
            self.exchanges.leader_seen_at = now - demote_after_s(self.own.dead_after_s) + FIRST_VIEW_S
        self._server.saw(now, look)
        if look.state is not ServerState.STANDBY:
            self._lost_since = None

    def _dead_after_s(self, view: ClusterView) -> float:
        """Return how long the most impatient agent waits."""
        return min([self.own.dead_after_s, *(report.dead_after_s for report in fresh_reports(view))])

    def _as_primary(self, now: float, look: ServerLook, view: ClusterView, commits: bool) -> Step:
        if foreign := _foreign(look, view):
            return Wait(foreign)  # The agent's settings are wrong, not the server.
        leader = leader_of(view)
        if view.has_quorum and view.log.tli and view.is_sealed_off(look.tli):
            return self._as_sealed_primary(now, look, view)
        if not commits and view.has_quorum and leader is not None and leader.name != self.own.name:
            # Of two promoted servers the log has gone on to the other one, whose number is the lower one.
            return Stop(f"{leader.name} leads on timeline {leader.tli}, and the log does not go on to {look.tli}")
        silent_s = self.exchanges.silent_s(now)
        if silent_s >= demote_after_s(self._dead_after_s(view)):
            if not self.ended_writes:
                self._losses.add(now)
                why = view.problem if not view.has_quorum else "the safekeepers have received nothing from its proxy"
                return EndWrites(
                    f"{why or 'no quorum of the safekeepers'} for {silent_s:.1f} s", self.own.stops_without_quorum
                )
            return Wait("its writes are ended until a quorum of the safekeepers receives from its proxy")
        if self.ended_writes and commits:
            able = self._ranked(view)
            if self._losses.is_often(now) and able:
                self._losses.clear()
                times = f"{UNSTEADY_TIMES} times within {UNSTEADY_WITHIN_S:g} s"
                return StepDown(None, able[0].name, f"the safekeepers have received nothing from its proxy {times}")
            return AllowWrites()
        return self._order_of_leader(look, view) if commits else Wait("waiting for the quorum")

    def _as_sealed_primary(self, now: float, look: ServerLook, view: ClusterView) -> Step:
        """Keep a primary that only the floor keeps out as it is, without writes: the attempt may fail."""
        sealed = f"timeline {look.tli} is sealed by a failover"
        if look.tli < view.log.tli:
            return Stop(f"the log has gone on to timeline {view.log.tli}")
        if self._is_replaced(view, sealed_too=False):
            return Stop(sealed)
        if not self.ended_writes:
            return EndWrites(sealed, self.own.stops_without_quorum)
        return self._let_in(now, look, view) or Wait(f"{sealed}: waiting for its end")

    def _is_replaced(self, view: ClusterView, *, sealed_too: bool = True) -> bool:
        """Return whether another server leads, or was promoted; or whether an attempt is under way that has sealed."""
        others = [report for report in fresh_reports(view) if report.name != self.own.name]
        return any(
            each.is_leader or (sealed_too and each.has_sealed) or self._is_promoted(each, view) for each in others
        )

    def _order_of_leader(self, look: ServerLook, view: ClusterView) -> Step:
        order = view.settings.order
        if order is None or order.id in self.orders_done:
            return Wait()
        if order.kind == "reinit":
            if order.agent == self.own.name:
                return Refuse(order, f"{self.own.name} is the leader: switch over first")
            return Wait()
        if order.kind == "cancel":
            return Refuse(order, "")  # It leads again: the next loss of the leader counts.
        if order.kind == "failover":
            return Refuse(order, f"{self.own.name} leads: use switchover")
        if order.agent == self.own.name:
            return Refuse(order, "")  # It is the leader already: nothing is to be done.
        able = [each for each in self._ranked(view) if order.agent in ("", each.name)]
        if not able:
            return Refuse(order, self._why_not(order.agent, view))
        lag_bytes = look.written_lsn - able[0].reached_lsn
        if lag_bytes > LAG_BYTES_MAX:
            return Refuse(
                order, f"{able[0].name} is {lag_bytes} bytes short of the leader: try again when it has caught up"
            )
        return StepDown(order, able[0].name)

    def _as_standby(self, now: float, look: ServerLook, view: ClusterView) -> Step:
        order = view.settings.order
        if order is not None and order.kind == "cancel":
            return Wait("the failover was cancelled: waiting for the old primary, or for the order to fail over")
        if order is not None and order.id not in self.orders_done:
            step = self._order_of_standby(now, look, view, order)
            if step is not None:
                return step
        if not view.has_quorum:
            self._lost_since = None
            return Wait(view.problem or "no quorum of the safekeepers")
        if not view.log.tli:
            return Wait("the safekeepers have no WAL")
        if stranded := _stranded(look, view) or self._gone_ahead(now, look, view):
            self._server.is_stranded = True
            return Stop(stranded)
        age_s = view.leader_silent_s or 0.0
        resigned = any(report.has_resigned for report in fresh_reports(view)) and leader_of(view) is None
        if not resigned:
            if age_s < self.own.dead_after_s:
                self._lost_since = None
                return Wait()
            if now - self.exchanges.quorum_since < min(HEARTBEAT_ARRIVES_S, self.own.dead_after_s):
                # The safekeepers were away, not the leader: its heartbeats reach them soon.
                return Wait("a quorum of the safekeepers is back: waiting for the leader's heartbeats")
        if not self.own.may_lead:
            return Wait("the leader is lost, and this agent has no_failover")
        if foreign := _foreign(look, view):
            return Wait(foreign)
        namesake = view.agent(self.own.name)
        if namesake is not None and namesake.report.address != self.own.address:
            return Wait(
                f"another agent, at {namesake.report.address}, has the name {self.own.name}, too: correct --name"
            )
        wanted = order.agent if order is not None and order.kind != "reinit" else ""
        # The one that an order names is the first. Sorting keeps the order of the others.
        ranked = sorted((report.name for report in self._ranked(view)), key=lambda name: name != wanted)
        if self.own.name not in ranked:
            if look.problem:
                return Wait(f"the leader is lost; this server cannot be promoted: {look.problem}")
            return Wait("the leader is lost; this agent's first report is under way")
        if self._lost_since is None:
            self._lost_since = now
            self._before = frozenset(ranked[: ranked.index(self.own.name)])
        busy = [
            report.name
            for report in fresh_reports(view)
            if report.name != self.own.name and (report.is_failing_over or self._is_promoted(report, view))
        ]
        # The seal of the first one delivers WAL to all: that another one has it first does not make that the first.
        before = self._before | {wanted} if wanted != self.own.name else frozenset()
        turn = len((before - {self.own.name}).intersection(ranked))
        patience_s = BUSY_S + self.own.guards_s if busy else TURN_S * turn
        if now < self.retry.at or now - self._lost_since < patience_s:
            return Wait(f"the leader is lost: {(busy or ranked)[0]} is first")
        return FailOver()

    def _gone_ahead(self, now: float, look: ServerLook, view: ClusterView) -> str:
        """Return why a standby follows nothing: its promotion has crashed (13.8), and commits go on elsewhere.

        A change of the primary may not be on record, because the agent that made it has ended. So a standby that does
        not follow for long rejoins, which compares the histories; once for each timeline of the leader.
        """
        leader = leader_of(view)
        if leader is None or look.tli == leader.tli or look.is_streaming:
            self._ahead_since = None
            return ""
        if self._ahead_since is None:
            self._ahead_since = now  # It may have followed a promoted server a moment before this view.
        if _is_beside(look.tli, leader, view):
            if now - self._ahead_since < READMIT_AFTER_S:
                return ""
            return f"its promotion to timeline {look.tli} was not completed, and {leader.name} leads on {leader.tli}"
        if now - self._ahead_since < FOLLOWS_WITHIN_S or self._compared == (look.tli, leader.tli):
            return ""
        self._compared = look.tli, leader.tli
        silent = f"has received nothing for {FOLLOWS_WITHIN_S:g} s"
        return f"it is on timeline {look.tli} and {silent}, and {leader.name} leads on {leader.tli}"

    def _rebuild(self, look: ServerLook, view: ClusterView) -> Step | None:
        """Return the step of an order to rebuild the data folder, in any state but that of a primary."""
        order = view.settings.order
        if order is None or order.kind != "reinit" or order.agent != self.own.name or order.id in self.orders_done:
            return None
        if look.state in (ServerState.PRIMARY, ServerState.MISSING):
            return None
        leader = leader_of(view)
        return Rebuild(leader, order) if leader is not None else Refuse(order, "no leader can be copied")

    def _order_of_standby(self, now: float, look: ServerLook, view: ClusterView, order: Order) -> Step | None:
        if order.kind == "reinit" or not view.has_quorum or not view.log.tli:
            return None
        ranked = [report.name for report in self._ranked(view)]
        is_ours = order.agent == self.own.name or (order.agent == "" and ranked[:1] == [self.own.name])
        if not is_ours:
            return None
        if self.own.name not in ranked:
            return Refuse(order, self._why_not(self.own.name, view))
        leader = leader_of(view)
        if order.kind == "switchover":
            # The leader stops its server first; if there is none, the order is one to fail over.
            is_free = leader is None and any(report.has_resigned for report in fresh_reports(view))
            return FailOver(order) if is_free and now >= self.retry.at else None
        if leader is not None:
            return Refuse(order, f"{leader.name} leads: use switchover")
        is_due = (view.leader_silent_s or 0.0) >= SILENCE_S and now >= self.retry.at
        return FailOver(order) if is_due else None

    def _stopped(self, now: float, look: ServerLook, view: ClusterView) -> Step:
        if self._server.is_stranded and view.has_quorum:
            return self._rejoin(now, look, view)
        if look.is_in_recovery:
            return StartStandby() if now >= self.retry.at else Wait(look.problem or "waiting to start again")
        if view.is_new:
            return StartPrimary() if now >= self.retry.at else Wait("waiting to start again")
        if not view.has_quorum:
            return Wait(view.problem or "no quorum of the safekeepers")
        if foreign := _foreign(look, view):
            return Wait(foreign)
        leader = leader_of(view)
        if view.is_sealed_off(look.tli) or (leader is not None and leader.name != self.own.name):
            return self._let_in(now, look, view) or self._rejoin(now, look, view)
        if self.resigned_at is not None:
            return Wait("has resigned: waiting for another leader")
        if now < self.retry.at:
            return Wait("waiting to start again")
        if self._starts.is_often(now) and self._ranked(view):
            self._starts.clear()
            return Resign(f"PostgreSQL has ended {UNSTEADY_TIMES} times within {UNSTEADY_WITHIN_S:g} s")
        self._starts.add(now)
        return StartPrimary()

    def _let_in(self, now: float, look: ServerLook, view: ClusterView) -> Step | None:
        """Return the readmission of an old primary that nothing but the floor keeps out, None if it is not due."""
        if look.tli < view.log.tli or self._is_replaced(view):
            self._unled_since = None
            return None
        if self._unled_since is None:
            self._unled_since = now
        return LetIn(look.tli) if now - self._unled_since >= READMIT_AFTER_S and now >= self.retry.at else None

    def _rejoin(self, now: float, look: ServerLook, view: ClusterView) -> Step:
        leader = leader_of(view)
        if leader is None or leader.name == self.own.name:
            return Wait("an old primary: waiting for a leader to rejoin")
        if look.is_running:
            return Stop("an overwrite of its data folder has begun")
        return Rejoin(leader) if now >= self.retry.at else Wait("waiting to rejoin again")

    def _hanging(self, now: float, look: ServerLook, view: ClusterView) -> Step:
        """Kill a primary that hangs: later if its proxy is heard, since a server may only be slow.

        One of which only the looks do not succeed, because logins block, commits all the while: it does not hang.
        """
        assert self._server.hangs_since is not None
        hangs_s, dead_after_s = now - max(self._server.hangs_since, self._server.advanced_at), self._dead_after_s(view)
        is_silent = self.exchanges.silent_s(now) >= demote_after_s(dead_after_s)
        if self._server.was_primary and (is_silent or hangs_s >= max(HANGS_S_MIN, dead_after_s)):
            return Kill(f"PostgreSQL has not replied for {hangs_s:.1f} s: {look.problem}")
        return Wait(look.problem or "PostgreSQL does not reply")

    def _refusing(self, now: float, look: ServerLook, view: ClusterView) -> Step:
        """End the writes of a primary that its agent cannot reach, and stop one that was replaced.

        Sessions whose commits wait for the quorum may fill an old primary while its agent is away. A server that was
        promoted just now may still be on its old timeline by pg_control: no other one leads then.
        """
        leader = leader_of(view) if view.has_quorum else None
        is_old = look.is_in_recovery is False and not _foreign(look, view)
        if is_old and leader is not None and leader.name != self.own.name and leader.tli > look.tli:
            return Stop(f"{leader.name} leads on timeline {leader.tli}, and this server refuses its agent")
        silent_s = self.exchanges.silent_s(now)
        if self._server.was_primary and not self.ended_writes and silent_s >= demote_after_s(self._dead_after_s(view)):
            return EndWrites(
                f"{look.problem}; no heartbeat of a leader for {silent_s:.1f} s", self.own.stops_without_quorum
            )
        return Wait(look.problem)

    @staticmethod
    def _is_promoted(report: AgentReport, view: ClusterView) -> bool:
        """Return whether a server was promoted by the last failover: its proxy is about to lead."""
        return report.state == ServerState.PRIMARY.value and report.tli > max(view.log.floor, view.log.tli)

    def _ranked(self, view: ClusterView) -> list[AgentReport]:
        """Return the agents whose server may be promoted, the first one first.

        A timeline that the log is not on yet, or no longer, is the failover's matter: it looks closer.
        """
        able = [report for report in fresh_reports(view) if not self._obstacle(report, view)]
        most_lsn = max((report.reached_lsn for report in able), default=0)

        def rank(report: AgentReport) -> tuple[bool, int, Lsn, str]:
            is_behind = most_lsn - report.reached_lsn > EQUAL_BYTES
            return is_behind, -report.priority, -report.reached_lsn, report.name

        return sorted(able, key=rank)

    @staticmethod
    def _obstacle(report: AgentReport, view: ClusterView) -> str:
        """Return why a server is not promoted, "" if it may be."""
        if report.state != ServerState.STANDBY.value:
            return f"its server is {report.state}"
        if not report.may_lead:
            return "it has no_failover"
        if view.system_id and report.system_id != view.system_id:
            return f"its server belongs to another system, {report.system_id}"
        if report.problem:
            return report.problem
        return ""

    def _why_not(self, name: str, view: ClusterView) -> str:
        reports = {report.name: report for report in fresh_reports(view)}
        if not name:
            found = "; ".join(f"{each.name}: {self._obstacle(each, view)}" for each in reports.values())
            return f"no standby can be promoted: {found or 'no agent reports'}"
        if name not in reports:
            return f"no agent {name} reports"
        return f"{name} cannot be promoted: {self._obstacle(reports[name], view) or 'it is not a candidate'}"


def _foreign(look: ServerLook, view: ClusterView) -> str:
    """Return why this server is not one of the safekeepers' system, "" if it may be."""
    if not view.system_id or look.system_id in (0, view.system_id):
        return ""
    return (
        f"the server belongs to another system, {look.system_id}, than the WAL of the safekeepers, {view.system_id}: "
        "correct --safekeepers or --pgdata"
    )


def _stranded(look: ServerLook, view: ClusterView) -> str:
    """Return why a standby cannot follow the leader, empty if it can: it has WAL of the old primary beyond the fork."""
    leader = leader_of(view)
    if leader is None or leader.tli <= look.tli:
        return ""
    for change in view.settings.changes:
        if change.old_tli == look.tli and 0 < change.fork_lsn < look.replayed_lsn:
            return (
                f"it has replayed timeline {look.tli} up to {format_lsn(look.replayed_lsn)}, and timeline {change.tli} "
                f"begins at {format_lsn(change.fork_lsn)}"
            )
    return ""


def _is_beside(tli: int, leader: AgentReport, view: ClusterView) -> bool:
    """Return whether the log has never been on a timeline, as far as is known: it is above, or was passed over."""
    return tli > leader.tli or any(each.old_tli < tli < each.tli == leader.tli for each in view.settings.changes)


def describe(look: ServerLook) -> str:
    """Return the server's state for a log line."""
    position = format_lsn(look.written_lsn or max(look.received_lsn, look.replayed_lsn))
    return f"{look.state.value} on timeline {look.tli} at {position}"
