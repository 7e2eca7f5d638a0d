"""What is around a lone proposer: its connections, the execution of its actions, and the trace.

Part of proposer.py.
"""

import random
from collections import deque
from typing import Any

import msgspec

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.consensus.membership import Membership
from safekeeper.consensus.messages import AcceptorMessage
from tests.simulation.lone.corrupted_states import check_proposer
from tests.simulation.lone.draws import draw_config, draw_purpose
from tests.simulation.lone.safekeepers import CLUSTERS, LoneSafekeepers, Safekeeper
from tests.simulation.references.proposer.checker import watched_proposer
from tests.simulation.seeds.counts import Counts
from tests.simulation.seeds.trace import shown
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
from walproxy.proposer.phase import ProposerConfig
from walproxy.proposer.primary import PrimaryIdentity
from walproxy.proposer.proposer import Proposer

REPEATED_OF = 12
TRACE_LINES = 40


class LoneShell:
    """A proposer, and the shell that it has.

    Attributes:
        counts: how many events were compared.
        done: the kinds of actions and messages that the proposer has returned, and its phases.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"{seed} lone proposer")
        self.counts = Counts()
        self._trace: deque[tuple[Any, ...]] = deque(maxlen=TRACE_LINES)
        self.done: set[str] = set()
        self._now_s = 100.0
        self._runs = 0
        self._mute = 0  # A safekeeper that does not answer for a while.
        self._away = 0  # One that does not come back for now.
        # Connections that the proposer has closed: their end is reported to it soon.
        self._pending_losses: list[int] = []
        self._sent: deque[tuple[int, AcceptorMessage]] = deque(maxlen=REPEATED_OF)
        self._primary: PrimaryIdentity | None = None
        self._refused: PrimaryIdentity | None = None  # The one that was refused last.
        self._identities_due = 0  # How often the primary was to be identified, and was not yet.
        self._copy: StartReplication | None = None
        self._is_checked = False
        self._received_lsn = self._window_begin_lsn = 0
        # Old WAL is soon removed everywhere, and who is away stays away: members skip WAL, or pull it.
        self._is_forgetful = self._chance(0.25)
        self._begin_again()

    def _begin_again(self) -> None:
        """Begin with another cluster, and another run."""
        count = self.rng.choice((1, 2, 2, 3, 3, 3, 3, 4, 5))
        self._is_unlisted = count > 1 and self._chance(0.25)  # The configuration lacks the last safekeeper.
        self._cluster = LoneSafekeepers(self.rng, count, self._is_forgetful)
        self._safekeepers = self._cluster.all
        self._away = count if self._is_unlisted and self._chance(0.3) else 0
        self._pending_losses.clear()
        self._refused = None
        self._begin_run()
        for safekeeper in self._safekeepers.values():
            if safekeeper.id in self._proposer.peers and self._chance(0.9):
                self._open(safekeeper)

    def _chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def _config(self) -> ProposerConfig:
        listed = tuple(self._safekeepers)[: -1 if self._is_unlisted else None]
        return draw_config(self.rng, f"run-p{self._runs}", listed, self._cluster.addresses)

    def _begin_run(self) -> None:
        """An operator starts the proxy again, maybe with other options."""
        self._runs += 1
        for safekeeper in self._safekeepers.values():
            safekeeper.is_connected = False
            safekeeper.requests.clear()
            safekeeper.write_lsn = safekeeper.flush_lsn
        self._mute = self.rng.choice(list(self._safekeepers)) if self._chance(0.15) else 0
        self._primary = self._copy = None
        self._identities_due = 0
        self._is_checked = False
        self._sent.clear()
        self._proposer: Any = watched_proposer(Proposer, self._config(), "the proposer", self.counts)
        if self._chance(0.2):
            self._pursue()

    def _pursue(self) -> None:
        self._event("pursue", draw_purpose(self.rng), self._now_s)

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
            self._proposer.checker.compare_read(self._now_s)
        if self._chance(0.1):
            check_proposer(self.rng, self._proposer)

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
            self._refused = self._primary if isinstance(action, RefusePrimary) else None
            self._copy = self._primary = None
            self._identities_due = 0
        elif isinstance(action, IdentifyPrimary):
            self._identities_due += 1

    def _deliver(self, safekeeper_id: int, message: Any) -> None:
        safekeeper = self._safekeepers.get(safekeeper_id)
        if safekeeper is not None and safekeeper.is_connected:
            safekeeper.requests.append(message)

    def _tick(self) -> None:
        self._settle()
        self._now_s += self.rng.choice((0.0, 0.03, 0.1, 0.3))
        self._event("tick", self._now_s, self.rng.random())

    def _open_ones(self) -> list[Safekeeper]:
        return [each for each in self._safekeepers.values() if each.is_connected]

    def _closed_ones(self) -> list[Safekeeper]:
        """Return those that are dialled, not connected, and not away."""
        peers, away = self._proposer.peers, self._away
        return [s for s in self._safekeepers.values() if not s.is_connected and s.id in peers and s.id != away]

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
        if self._away and self._chance(0.03):
            self._away = 0
        closed = self._closed_ones()
        if closed:
            safekeeper = self.rng.choice(closed)
            if self._chance(0.2):
                safekeeper.starts += 1
            self._draw_folder(safekeeper)
            if self._chance(0.03):
                safekeeper.join_other_cluster()
            if self._chance(0.03):
                safekeeper.lose_folder()
            elif self._chance(0.1 if safekeeper.cluster_id != CLUSTERS[1] else 0.4):
                lost = self.rng.choice((100, 100, 3000))
                safekeeper.flush_lsn = max(safekeeper.begin_lsn, safekeeper.flush_lsn - lost)
            safekeeper.write_lsn = safekeeper.flush_lsn
            self._open(safekeeper)

    def _draw_folder(self, safekeeper: Safekeeper) -> None:
        """Let it return with another data folder, maybe: one of a change of the members, a new one, or a copy."""
        leadership = self._proposer.leadership
        if leadership is not None and self._chance(0.5) and safekeeper.take_folder(leadership.membership):
            return
        if self._chance(0.06):
            safekeeper.incarnation += "x"
        elif self._chance(0.02):
            safekeeper.incarnation = self.rng.choice(list(self._safekeepers.values())).incarnation

    def _go_away(self, safekeeper: Safekeeper) -> None:
        """A safekeeper ends, and does not come back soon."""
        self._away = safekeeper.id
        if safekeeper.is_connected:
            self._close(safekeeper)

    def _swap_folder(self, membership: Membership) -> None:
        """A safekeeper of which a change names two data folders has ended, and begins with the other one."""
        self._settle(at_once=True)
        for safekeeper in self._open_ones():
            if safekeeper.take_folder(membership):
                self._close(safekeeper)
                if safekeeper.id in self._proposer.peers:
                    self._open(safekeeper)
                return

    def _disconnect(self) -> None:
        self._settle()
        open_ones = self._open_ones()
        if open_ones:
            self._close(self.rng.choice(open_ones))
