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
from itertools import pairwise
from typing import Any

import msgspec

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.consensus.control_state import LeaderId, TliHistory
from safekeeper.consensus.membership import QuorumSizes
from safekeeper.consensus.messages import (
    AcceptorMessage,
    ArchiveReport,
    ChangeMembers,
    Refusal,
    RefusalCode,
    Standby,
    StandbyFeedback,
)
from tests.simulation.bends import Bends
from tests.simulation.counts import Counts
from tests.simulation.lone_safekeepers import CLUSTERS, FIRST_LSN, SIZES, SYSTEM_ID, LoneSafekeepers, Safekeeper
from tests.simulation.proposer_reference.checker import watched_proposer
from tests.simulation.synthetic_wal import SEGMENT_SIZE
from tests.simulation.trace import shown
from tests.simulation.world import TIMING, SimulationFailed, small_frames
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
from walproxy.proposer.apply_rule import parse_apply_rule
from walproxy.proposer.phase import Phase, ProposerConfig
from walproxy.proposer.primary import Ancestor, PrimaryIdentity
from walproxy.proposer.proposer import Proposer
from walproxy.proposer.seal import Seal

EVENTS = 100
RULES = ("", "R1", "ANY 1 (R1, R2)", "ANY 2 (*)")
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
        count = rng.choice((1, 2, 3, 3, 3, 4, 5))
        self._is_unlisted = count > 1 and self._chance(0.2)  # The configuration lacks the last safekeeper.
        self._cluster = LoneSafekeepers(rng, count)
        self._safekeepers = self._cluster.all
        self._primary: PrimaryIdentity | None = None
        self._is_connecting = False
        self._copy: StartReplication | None = None
        self._is_checked = False
        self._received_lsn = self._window_begin_lsn = 0
        # Connections that the proposer has closed: their end is reported to it before the next event.
        self._pending_losses: list[int] = []
        self._proposer = watched_proposer(Proposer, self._config(), "the proposer", self.counts)

    # ------------------------------------------------------------------ what is drawn

    def _chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def _config(self) -> ProposerConfig:
        rng = self.rng
        seal = None
        if self._chance(0.1):
            tli = rng.randint(1, 3)
            seal = Seal(tli, cancels=self._chance(0.3), readmits=tli + 1 if self._chance(0.2) else 0)
        return ProposerConfig(
            proposer_id="run-p",
            safekeeper_ids=tuple(self._safekeepers)[: -1 if self._is_unlisted else None],
            takeover=self._chance(0.3),
            allow_data_loss=self._chance(0.3),
            allow_unverified_primary=self._chance(0.3),
            several_primaries=self._chance(0.6),
            tail_after_s=rng.choice((None, 0.3)),
            seal=seal,
            apply_rule=parse_apply_rule(rng.choice(RULES)),
            addresses={i: f"S{i}:1" for i in self._safekeepers},
            timing=TIMING,
        )

    def _draw_primary(self) -> PrimaryIdentity:
        """Draw a server on the line of a log, or on one that has left it."""
        rng = self.rng
        history, end_lsn = rng.choice(self._cluster.lines)
        leadership = self._proposer.leadership
        if leadership is not None and self._chance(0.8):
            history, end_lsn = leadership.elected.history, leadership.received_lsn
        ancestors: list[Ancestor] = []
        for entry, following in pairwise(history):
            if following.tli != entry.tli:
                ancestors.append(Ancestor(entry.tli, following.start_lsn))
        tli = history[-1].tli
        if self._chance(0.35):
            fork = rng.choice((end_lsn, rng.randint(FIRST_LSN, end_lsn)))
            ancestors = [each for each in ancestors if each.end_lsn < fork]
            tli = (ancestors[-1].tli if ancestors else 0) + 1
            ancestors.append(Ancestor(tli, fork))
            tli += rng.choice((1, 1, 2))
        flush_lsn = max(end_lsn + rng.choice((0, 0, 100, 20_000, -1, -200)), FIRST_LSN)
        files = tuple(TliHistory(each, b"of the primary") for each in range(2, tli + 1) if self._chance(0.8))
        return PrimaryIdentity(
            system_id=SYSTEM_ID + int(self._chance(0.02)),
            tli=tli,
            flush_lsn=flush_lsn,
            segment_size=SEGMENT_SIZE,
            server_version=150000,
            ancestors=tuple(ancestors),
            tli_histories=files,
            host=rng.choice(("A", "B")),
        )

    # ------------------------------------------------------------------ events

    def run(self, events: int) -> None:
        """Let so many events happen, or fewer if the run ends."""
        choices: tuple[tuple[int, Callable[[], None]], ...] = (
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
        )
        weights = [weight for weight, _ in choices]
        for safekeeper in self._safekeepers.values():
            if safekeeper.id in self._proposer.peers and self._chance(0.9):
                self._open(safekeeper)
        for _ in range(events):
            if self._proposer.phase is Phase.FINISHED:
                return
            self._now_s += self.rng.choice((0.0, 0.0, 0.001, 0.001, 0.001, 0.02))
            self.rng.choices(choices, weights)[0][1]()
            self.done.add(self._proposer.phase.value)

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
            safekeeper.requests.clear()
            if is_open and isinstance(action, Disconnect):
                self._pending_losses.append(safekeeper.id)
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

    def _settle(self) -> None:
        while self._pending_losses:
            self._event("disconnected", self._pending_losses.pop(0), self._now_s)

    def _open(self, safekeeper: Safekeeper) -> None:
        self._settle()
        safekeeper.is_connected = True
        safekeeper.sequence = 0
        self._event("connected", safekeeper.id, self._now_s)

    def _close(self, safekeeper: Safekeeper) -> None:
        safekeeper.is_connected = False
        safekeeper.requests.clear()
        safekeeper.write_lsn = safekeeper.flush_lsn
        self._event("disconnected", safekeeper.id, self._now_s)

    def _connect(self) -> None:
        self._settle()
        closed = [s for s in self._safekeepers.values() if not s.is_connected and s.id in self._proposer.peers]
        if closed:
            safekeeper = self.rng.choice(closed)
            if self._chance(0.2):
                safekeeper.starts += 1
            if self._chance(0.03):
                safekeeper.incarnation += "x"
            if self._chance(0.1):
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
        if self._copy is not None and not self._is_connecting and self._chance(0.9):
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
        copy, rng = self._copy, self.rng
        if copy is None or self._is_connecting:
            return
        self._settle()
        if not self._is_checked:
            if self._chance(0.1):
                self._copy = None
                self._event("primary_segment_removed", self._now_s)
                return
            self._is_checked = True
            crcs = self._cluster.crcs if self._chance(0.9) else (*self._cluster.crcs[:-1], 101)
            self._event("primary_checked", copy.check_begin_lsn, copy.begin_lsn, crcs, self._now_s)
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
            self._event("set_apply_rule", parse_apply_rule(self.rng.choice(RULES)))
        else:
            self._event("forget_refusals")

    def _change(self) -> None:
        """A command asks for other members, through a safekeeper."""
        leadership = self._proposer.leadership
        open_ones = [s for s in self._safekeepers.values() if s.is_connected]
        if leadership is None or not open_ones:
            return
        self._settle()
        membership = leadership.membership
        everyone = self._cluster.members()
        wanted = self.rng.choice((membership.members, membership.new_members, everyone, everyone[1:], everyone[:-1]))
        message = ChangeMembers(
            self.rng.randrange(5),
            leadership.elected.cluster_id if self._chance(0.95) else CLUSTERS[1],
            membership.generation - self.rng.choice((0, 0, 0, 1, 2, -1)),
            wanted,
            self.rng.choice((None, None, None, *SIZES, INVALID_SIZES)),
            self._chance(0.6),
            self._chance(0.3),
        )
        self._event("message", self.rng.choice(open_ones).id, message, self._now_s)

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
            message = StandbyFeedback(tuple(Standby(n, apply_lsn=self._position(safekeeper)) for n in names))
        else:
            message = ArchiveReport(
                safekeeper.begin_lsn,
                self._chance(0.8),
                self._proposer.leadership is not None
                and self._proposer.leadership.archiving.archiver == safekeeper.id
                and self._chance(0.8),
                self.rng.choice((0, safekeeper.commit_lsn)),
                self.rng.choice(("", "", "down")),
                self.rng.choice(("", "archive-a", "archive-a", "archive-b")),
            )
        self._event("message", safekeeper.id, message, self._now_s)

    def _position(self, safekeeper: Safekeeper) -> int:
        return self.rng.choice((0, safekeeper.flush_lsn, self.rng.randint(0, max(1, safekeeper.flush_lsn))))

    # ------------------------------------------------------------------ answers

    def _answer(self) -> None:
        """Answer the oldest request of a safekeeper."""
        self._settle()
        waiting = [s for s in self._safekeepers.values() if s.is_connected and s.requests]
        if not waiting:
            return
        safekeeper = self.rng.choice(waiting)
        request = safekeeper.requests.popleft()
        if not self._cluster.is_frank and self._chance(0.08):
            codes = [code for code in RefusalCode if code is not RefusalCode.NO_LEADER]
            promised = LeaderId(safekeeper.promised.term + self.rng.choice((0, 0, 2)), "run-o")
            self._say(safekeeper, Refusal(self.rng.choice(codes), "no", promised))
            return
        for answer in self._cluster.answers(safekeeper, request):
            if safekeeper.is_connected:
                self._say(safekeeper, answer)

    def _say(self, safekeeper: Safekeeper, message: AcceptorMessage) -> None:
        self._event("message", safekeeper.id, message, self._now_s)
