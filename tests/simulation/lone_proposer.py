"""One proposer beside its reference, driven by random answers: states that clusters seldom reach.

Theory of operation. In a cluster the votes, the primary and the members fit each other. Here they are drawn: histories
that fork off anywhere, give up WAL or have forgotten terms; primaries on any line of descent; memberships with two
halves and with any sizes of quorums; greetings of other clusters; refusals of each code; members that answer late, or
lose their connections. There is no acceptor, so these need not be the answers of any cluster; the reference
(proposer_reference/) states what the proposer must do nevertheless. Each answer is one that the protocol permits:
one that breaks it only closes a connection.

The time is drawn, and one seed decides everything.
"""

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from safekeeper.base.errors import ConfigurationError, RemoteProtocolError
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.membership import Member, QuorumSizes
from safekeeper.consensus.messages import (
    AcceptorMessage,
    AppendResponse,
    ArchiveReport,
    ChangeMembers,
    PullWal,
    Refusal,
    RefusalCode,
    Standby,
    StandbyFeedback,
)
from tests.simulation.bends import Bends
from tests.simulation.broken_answers import broken
from tests.simulation.counts import Counts
from tests.simulation.drawn_apply_rules import drawn
from tests.simulation.lone_draws import draw_config, draw_primary
from tests.simulation.lone_safekeepers import CLUSTERS, FIRST_LSN, SIZES, LoneSafekeepers, Safekeeper
from tests.simulation.proposer_reference.checker import watched_proposer
from tests.simulation.synthetic_wal import SEGMENT_SIZE
from tests.simulation.trace import shown
from tests.simulation.world import SimulationFailed, small_frames
from walproxy.proposer.actions import (
    Action,
    Disconnect,
    EmptyWindow,
    Finish,
    HangUp,
    IdentifyPrimary,
    Note,
    RefusePrimary,
    SendAppend,
    SendMessage,
    StartReplication,
    StopReplication,
)
from walproxy.proposer.phase import Phase, ProposerConfig
from walproxy.proposer.primary import PrimaryIdentity
from walproxy.proposer.proposer import Proposer

EVENTS = 200
# How much more or less often than usual each kind of event happens in a run.
OFTEN = (0.3, 1.0, 1.0, 3.0)
REPEATED_OF = 12
INVALID_SIZES = QuorumSizes("N-1", "N/2+1")
TRACE_LINES = 40


def drive(seed: int, events: int = EVENTS) -> Counts:
    """Let random events happen to a proposer; return how many were compared.

    Raises:
        SimulationFailed: it does something else than the reference.
    """
    with small_frames(10_000, Bends()):
        lone = LoneProposer(seed)
        try:
            lone.run(events)
        except Exception as error:
            raise SimulationFailed(error, lone.trace()) from error
    return lone.counts


class LoneProposer:
    """A proposer, and the events that happen to it.

    Attributes:
        counts: how many events were compared.
        done: the kinds of actions and messages that the proposer has returned, and its phases.
    """

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(f"{seed} lone proposer")
        self.counts = Counts()
        self._trace: deque[tuple[Any, ...]] = deque(maxlen=TRACE_LINES)
        self.done: set[str] = set()
        self._now_s = 100.0
        self._runs = 0
        count = rng.choice((1, 2, 3, 3, 3, 4, 5))
        self._is_unlisted = count > 1 and self._chance(0.2)  # The configuration lacks the last safekeeper.
        self._cluster = LoneSafekeepers(rng, count)
        self._safekeepers = self._cluster.all
        self._primary: PrimaryIdentity | None = None
        self._is_connecting = False
        self._copy: StartReplication | None = None
        self._is_checked = False
        self._received_lsn = self._window_begin_lsn = 0
        # Connections that the proposer has closed: their end is reported to it soon.
        self._pending_losses: list[int] = []
        self._said: deque[tuple[int, AcceptorMessage]] = deque(maxlen=REPEATED_OF)
        self._pace = rng.choice((0.5, 0.9, 0.97))  # How seldom something else happens than what leads on.
        self._fits = rng.choice((0.5, 0.9, 0.98))  # How often a primary is the one that has written the newest log.
        self._comes = rng.choice((0.5, 0.5, 0.03))  # How soon a primary comes that is not waited for: tail terms.
        self._patience = rng.choice((0.3, 0.9, 0.98))  # With which pulls last.
        self._proposer = watched_proposer(Proposer, self._config(), "the proposer", self.counts)

    # ------------------------------------------------------------------ what is drawn

    def _chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def _config(self) -> ProposerConfig:
        listed = tuple(self._safekeepers)[: -1 if self._is_unlisted else None]
        addresses = {i: f"S{i}:1" for i in self._safekeepers}
        return draw_config(self.rng, f"run-p{self._runs}", listed, addresses)

    def _draw_primary(self) -> PrimaryIdentity:
        """Draw a server on the line of the term's log, of the newest log, or of any."""
        line = self.rng.choice(self._cluster.lines)
        leadership = self._proposer.leadership
        fits = self._chance(self._fits)
        if leadership is not None and (fits or self._chance(0.8)):
            line = leadership.elected.history, leadership.received_lsn
        elif fits:
            line = self._cluster.newest_line()
        return draw_primary(self.rng, line, fits)

    # ------------------------------------------------------------------ events

    def run(self, events: int) -> None:
        """Let so many events happen, or fewer if the run ends."""
        choices: tuple[tuple[float, Callable[[], None]], ...] = (
            (60, self._answer),
            (14, self._tick),
            (8, self._identify),
            (12, self._stream),
            (5, self._connect),
            (2, self._disconnect),
            (1, self._lose_primary),
            (4, self._evict),
            (3, self._report),
            (3, self._change),
            (1, self._operate),
            (1, self._repeat),
            (3, self._rest),
        )
        weights = [weight * self.rng.choice(OFTEN) for weight, _ in choices]
        for safekeeper in self._safekeepers.values():
            if safekeeper.id in self._proposer.peers and self._chance(0.9):
                self._open(safekeeper)
        for _ in range(events):
            if self._proposer.phase is Phase.FINISHED:
                self._linger()
                self._begin_run()
            self._now_s += self.rng.choice((0.0, 0.0, 0.001, 0.001, 0.001, 0.02))
            if self._chance(self._pace):
                self._go_on()
            else:
                self.rng.choices(choices, weights)[0][1]()
            self.done.add(self._proposer.phase.value)

    def _go_on(self) -> None:
        """What leads to a term, and on in it."""
        self._settle()
        peers = self._proposer.peers
        pulls = any(isinstance(request, PullWal) for s in self._safekeepers.values() for request in s.requests)
        if self._chance(0.15 if pulls else 0.005):
            self._rest()
        elif self._chance(0.006):
            self._disconnect()
        elif self._chance(0.3) and any(not s.is_connected and s.id in peers for s in self._safekeepers.values()):
            self._connect()
        elif self._chance(0.5 if self._is_connecting else self._comes if self._primary is None else 0.0):
            self._identify()
        elif any(s.is_connected and s.requests for s in self._safekeepers.values()) and self._chance(0.8):
            self._answer()
        elif self._copy is not None and self._chance(0.7):
            self._stream()
        elif self._chance(0.3):
            self._evict()
        else:
            self._tick()

    def _linger(self) -> None:
        """What the shell may still report when the run has ended."""
        for happens in (self._answer, self._tick, self._lose_primary, self._disconnect):
            happens()
        self._settle(at_once=True)

    def _begin_run(self) -> None:
        """An operator starts the proxy again, maybe with other options."""
        self._runs += 1
        for safekeeper in self._safekeepers.values():
            safekeeper.is_connected = False
            safekeeper.requests.clear()
            safekeeper.write_lsn = safekeeper.flush_lsn
        self._primary = self._copy = None
        self._is_connecting = self._is_checked = False
        self._said.clear()
        self._proposer = watched_proposer(Proposer, self._config(), "the proposer", self.counts)

    def trace(self) -> list[str]:
        """Return what happened last, a line each."""
        return [" ".join(map(shown, happened)) for happened in self._trace]

    def _event(self, name: str, *arguments: Any) -> None:
        self._trace.append((f"{self._now_s:8.3f}", name, *arguments))
        try:
            actions = getattr(self._proposer, name)(*arguments) or []
        except RemoteProtocolError as broken:
            self._trace.append(("         breaks the protocol:", broken))
            self._close(self._safekeepers[arguments[0]])
            return
        for action in actions:
            self._execute(action)
        if self._chance(0.1):
            self._proposer.checker.compare_shown(self._now_s)

    def _execute(self, action: Action) -> None:
        if isinstance(action, Note):
            return
        self.done.add(type(action).__name__)
        if isinstance(action, SendMessage):
            self.done.add(type(action.message).__name__)
            self._deliver(action.safekeeper_id, action.message)
        elif isinstance(action, SendAppend):
            payload = b"w" * (action.end_lsn - action.begin_lsn)
            for safekeeper_id in action.safekeeper_ids:
                self._deliver(safekeeper_id, msgspec.structs.replace(action.header, payload=payload))
        elif isinstance(action, Disconnect | HangUp):
            safekeeper = self._safekeepers[action.safekeeper_id]
            is_open, safekeeper.is_connected = safekeeper.is_connected, False
            if is_open and isinstance(action, Disconnect):
                self._pending_losses.append(safekeeper.id)
            elif isinstance(action, HangUp):
                safekeeper.requests.clear()
                self._pending_losses = [each for each in self._pending_losses if each != safekeeper.id]
        elif isinstance(action, StartReplication):
            self._copy, self._is_checked = action, action.check_begin_lsn == action.begin_lsn
            if not action.resumes:
                self._received_lsn = self._window_begin_lsn = action.begin_lsn
        elif isinstance(action, EmptyWindow):
            self._received_lsn = self._window_begin_lsn = action.begin_lsn
        elif isinstance(action, StopReplication | RefusePrimary | Finish):
            self._copy = self._primary = None
        elif isinstance(action, IdentifyPrimary):
            self._is_connecting = True

    def _deliver(self, safekeeper_id: int, message: Any) -> None:
        safekeeper = self._safekeepers.get(safekeeper_id)
        if safekeeper is not None and safekeeper.is_connected:
            safekeeper.requests.append(message)

    def _settle(self, *, at_once: bool = False) -> None:
        """Report the end of the connections that the proposer has closed, or some of them later."""
        while self._pending_losses and (at_once or self._chance(0.8)):
            safekeeper_id = self._pending_losses.pop(0)
            self._safekeepers[safekeeper_id].requests.clear()
            self._event("disconnected", safekeeper_id, self._now_s)

    def _open(self, safekeeper: Safekeeper) -> None:
        self._settle(at_once=True)
        safekeeper.requests.clear()
        safekeeper.is_connected = True
        safekeeper.sequence = 0
        self._event("connected", safekeeper.id, self._now_s)

    def _close(self, safekeeper: Safekeeper) -> None:
        safekeeper.is_connected = False
        safekeeper.requests.clear()
        safekeeper.write_lsn = safekeeper.flush_lsn
        self._event("disconnected", safekeeper.id, self._now_s)

    def _connect(self) -> None:
        self._settle(at_once=True)
        closed = [s for s in self._safekeepers.values() if not s.is_connected and s.id in self._proposer.peers]
        if closed:
            safekeeper = self.rng.choice(closed)
            if self._chance(0.2):
                safekeeper.starts += 1
            if self._chance(0.06):
                safekeeper.incarnation += "x"
            elif self._chance(0.02):
                safekeeper.incarnation = self.rng.choice(list(self._safekeepers.values())).incarnation
            if self._chance(0.03):
                safekeeper.lose_folder()
            elif self._chance(0.1):
                safekeeper.flush_lsn = max(safekeeper.begin_lsn, safekeeper.flush_lsn - 100)
            safekeeper.write_lsn = safekeeper.flush_lsn
            self._open(safekeeper)

    def _disconnect(self) -> None:
        self._settle()
        open_ones = [s for s in self._safekeepers.values() if s.is_connected]
        if open_ones:
            self._close(self.rng.choice(open_ones))

    def _tick(self) -> None:
        self._settle()
        self._now_s += self.rng.choice((0.0, 0.03, 0.1, 0.3))
        self._event("tick", self._now_s, self.rng.random())

    def _identify(self) -> None:
        if self._proposer.config.seal is not None:
            return  # It has no primary.
        if self._primary is not None and not self._is_connecting and self._chance(0.95):
            return
        self._settle()
        self._is_connecting, self._copy = False, None
        primary = self._primary = self._draw_primary()
        crcs: tuple[int, ...] = ()
        begin_lsn = 0
        if self._proposer.leadership is not None and self._chance(0.9):
            begin_lsn = max(FIRST_LSN, (self._received_lsn - 1) // SEGMENT_SIZE * SEGMENT_SIZE)
            crcs = self._cluster.page_crcs(begin_lsn, self._received_lsn)
        self._cluster.crcs = crcs
        self._event("primary_identified", primary, self._now_s, crcs, begin_lsn)

    def _lose_primary(self) -> None:
        if self._primary is not None:
            self._settle()
            self._primary = self._copy = None
            self._event("primary_lost", self._now_s)

    def _stream(self) -> None:
        self._settle()  # The loss of a member may close the COPY.
        copy, rng = self._copy, self.rng
        if copy is None or self._is_connecting:
            return
        if not self._is_checked:
            if self._chance(0.1):
                self._copy = None
                self._event("primary_segment_removed", self._now_s)
                return
            if self._chance(0.03):
                self._event("primary_refused", "of the shell", self._now_s)
                return
            self._is_checked = True
            crcs = self._cluster.crcs if self._chance(0.9) else (*self._cluster.crcs[:-1], 101)
            self._event("primary_checked", copy.check_begin_lsn, copy.begin_lsn, crcs, self._now_s)
        elif self._received_lsn == copy.begin_lsn and self._chance(0.1):
            self._copy = None
            self._event("primary_segment_removed", self._now_s)
        elif copy.previous_record_lsn is not None and self._received_lsn == copy.begin_lsn and self._chance(0.3):
            self._event("primary_refused", "the next record does not link to the last one", self._now_s)
        elif self._chance(0.04):
            end_lsn = self._received_lsn + rng.choice((0, 0, 0, 1))
            self._copy = None
            self._event("timeline_ended", copy.tli + 1, end_lsn, self._now_s)
        else:
            self._received_lsn += rng.choice((1, 200, 1500, 3000, 6000))
            self._event("wal_received", self._received_lsn, self._now_s)

    def _evict(self) -> None:
        leadership = self._proposer.leadership
        if leadership is not None and leadership.commit_lsn > self._window_begin_lsn:
            self._window_begin_lsn = self.rng.randint(self._window_begin_lsn, leadership.commit_lsn)
            self._event("wal_evicted", self._window_begin_lsn)

    def _operate(self) -> None:
        if self._chance(0.5):
            self._event("set_apply_rule", drawn(self.rng))
        else:
            self._event("forget_refusals")

    def _change(self) -> None:
        """A command asks for other members, through a safekeeper."""
        self._settle()
        leadership = self._proposer.leadership
        open_ones = [s for s in self._safekeepers.values() if s.is_connected]
        everyone = self._cluster.members()
        if leadership is None:
            if self._chance(0.2):
                self._change_here(everyone, None, force=False)
            return
        membership = leadership.membership
        choices = [membership.members, membership.new_members, everyone, everyone[1:], everyone[:-1]]
        wanted = self.rng.choice((*choices, leadership.wanted.members))
        sizes = self.rng.choice((None, None, None, *SIZES, INVALID_SIZES))
        force = self._chance(0.6)
        if self._chance(0.3):
            self._change_here(wanted, sizes, force)
            return
        if not open_ones:
            return
        message = ChangeMembers(
            self.rng.randrange(5),
            leadership.elected.cluster_id if self._chance(0.95) else CLUSTERS[1],
            membership.generation - self.rng.choice((0, 0, 0, 1, 2, -1)),
            wanted,
            sizes,
            force,
            self._chance(0.3),
        )
        self._event("message", self.rng.choice(open_ones).id, message, self._now_s)

    def _change_here(self, wanted: tuple[Member, ...], sizes: QuorumSizes | None, force: bool) -> None:
        """An operator asks for other members at this proxy."""
        try:
            self._event("change_members", wanted, self._now_s, sizes, force)
        except ConfigurationError:
            return  # The reference refuses it, too.

    def _report(self) -> None:
        """What a safekeeper sends unasked."""
        open_ones = [s for s in self._safekeepers.values() if s.is_connected]
        if not open_ones:
            return
        safekeeper = self.rng.choice(open_ones)
        self._settle()
        if not safekeeper.is_connected:
            return
        message: AcceptorMessage
        if self._chance(0.5):
            names = [name for name in ("R1", "r2", "R3") if self._chance(0.5)]
            message = StandbyFeedback(tuple(self._standby(name, safekeeper) for name in names))
        else:
            message = ArchiveReport(
                safekeeper.begin_lsn,
                self._chance(0.8),
                self._archives(safekeeper),
                self.rng.choice((0, safekeeper.commit_lsn)),
                self.rng.choice(("", "", "down")),
                self.rng.choice(("", "archive-a", "archive-a", "archive-b")),
            )
        self._event("message", safekeeper.id, message, self._now_s)

    def _standby(self, name: str, safekeeper: Safekeeper) -> Standby:
        xmin, catalog_xmin = (self.rng.choice((0, 0, 3, 900)) for _ in range(2))
        return Standby(name, apply_lsn=self._position(safekeeper), xmin=xmin, catalog_xmin=catalog_xmin)

    def _archives(self, safekeeper: Safekeeper) -> bool:
        leadership = self._proposer.leadership
        is_named = leadership is not None and leadership.archiving.archiver == safekeeper.id
        return self._chance(0.8 if is_named else 0.15)

    def _position(self, safekeeper: Safekeeper) -> int:
        return self.rng.choice((0, safekeeper.flush_lsn, self.rng.randint(0, max(1, safekeeper.flush_lsn))))

    # ------------------------------------------------------------------ answers

    def _answer(self) -> None:
        """Answer the oldest request of a safekeeper."""
        self._settle()
        late = self._pending_losses
        waiting = [s for s in self._safekeepers.values() if (s.is_connected or s.id in late) and s.requests]
        if not waiting:
            return
        self._answer_of(self.rng.choice(waiting))

    def _answer_of(self, safekeeper: Safekeeper) -> None:
        request = safekeeper.requests.popleft()
        if isinstance(request, PullWal) and request.sources and self._chance(self._patience):
            safekeeper.requests.append(request)
            if self._chance(0.3):
                self._advance_pull(safekeeper, request)
            return
        if not self._cluster.is_frank and self._chance(0.08):
            codes = [code for code in RefusalCode if code is not RefusalCode.NO_LEADER]
            promised = LeaderId(safekeeper.promised.term + self.rng.choice((0, 0, 2)), "run-o")
            self._say(safekeeper, Refusal(self.rng.choice(codes), "no", promised))
            return
        for answer in self._cluster.answers(safekeeper, request):
            if safekeeper.is_connected or safekeeper.id in self._pending_losses:
                self._say(safekeeper, answer)

    def _advance_pull(self, safekeeper: Safekeeper, pull: PullWal) -> None:
        """It has received a part of what it pulls."""
        if safekeeper.write_lsn < pull.end_lsn:
            safekeeper.write_lsn = self.rng.randint(safekeeper.write_lsn, pull.end_lsn)
            flush_lsn = safekeeper.flush_lsn = self.rng.choice((safekeeper.flush_lsn, safekeeper.write_lsn))
            sequence, has_readers = safekeeper.sequence, safekeeper.has_readers
            answer = AppendResponse(pull.leader_id, safekeeper.write_lsn, flush_lsn, sequence, has_readers)
            self._say(safekeeper, answer)

    def _repeat(self) -> None:
        """An old answer comes once more; positions of a member never go back within a term."""
        if not self._said:
            return
        safekeeper_id, message = self.rng.choice(self._said)
        leadership = self._proposer.leadership
        leader_id = leadership.leader_id if leadership is not None else None
        goes_back = isinstance(message, AppendResponse) and message.leader_id == leader_id
        if self._safekeepers[safekeeper_id].is_connected and not goes_back:
            self._event("message", safekeeper_id, message, self._now_s)

    def _rest(self) -> None:
        """All is answered, and then nothing happens for long."""
        pause_s = self.rng.choice((0.5, 1.2, 1.6, 4.0, 11.0, 61.0))
        for _ in range(self.rng.choice((1, 2, 4))):
            for _ in range(30):
                waiting = [s for s in self._safekeepers.values() if s.is_connected and s.requests]
                if not waiting:
                    break
                self._answer_of(self.rng.choice(waiting))
            self._now_s += pause_s
            self._tick()

    def _say(self, safekeeper: Safekeeper, message: AcceptorMessage) -> None:
        self._said.append((safekeeper.id, message))
        if self._chance(0.01):
            message = broken(self.rng, message)
        elif self._chance(0.003):
            self._event("message", safekeeper.id, message, self._now_s)  # Once too often.
            if not safekeeper.is_connected:
                return
        self._event("message", safekeeper.id, message, self._now_s)
