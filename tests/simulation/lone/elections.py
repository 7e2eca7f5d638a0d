"""What elects: greetings, requests for votes, and the histories of terms that an acceptor is to adopt.

See messages.py.
"""

from typing import Any

import msgspec

from safekeeper.consensus.control_state import LeaderId, TliHistory
from safekeeper.consensus.membership import Membership
from safekeeper.consensus.messages import (
    Elected,
    PreVoteRequest,
    ProposerGreeting,
    TailPreVoteRequest,
    VoteRequest,
)
from safekeeper.consensus.term_history import HistoryEntry, TermHistory
from tests.simulation.lone.messages import (
    CLUSTERS,
    FIRST_LSN,
    NEW_TIMELINES,
    RUNS,
    SAFEKEEPER_ID,
    SYSTEM_ID,
    DrawnMessages,
)
from tests.simulation.model.synthetic_wal import SEGMENT_SIZE


class LoneElections(DrawnMessages):
    """Events of elections."""

    def _greet(self, well: bool = False) -> None:
        number = self._connect()
        is_well = well or self._chance(0.9)
        message = ProposerGreeting(
            self.rng.choice((6, 6, 6, 6) if is_well else (5, 6, 7)),
            self.rng.choice(RUNS),
            SAFEKEEPER_ID if is_well else self.rng.choice((SAFEKEEPER_ID, 2)),
            self.rng.choice((None, SYSTEM_ID) if is_well else (SYSTEM_ID, 78)),
            self.rng.choice((None, SEGMENT_SIZE) if is_well else (SEGMENT_SIZE, 2 * SEGMENT_SIZE)),
        )
        self._greeted.append(number)
        self._send(message, number)

    def _pre_vote(self) -> None:
        run = self.rng.choice(RUNS)
        is_tail = self._chance(0.5)
        self._send(
            TailPreVoteRequest(run) if is_tail else PreVoteRequest(run, self._chance(0.2)), self._connection(0.2)
        )

    def _vote(self) -> None:
        promised = self._acceptor.control.promised
        leader_id = LeaderId(max(1, promised.term + self.rng.choice((-1, 0, 0, 1, 1, 2))), self.rng.choice(RUNS))
        if self._chance(0.2) and promised.term:
            leader_id = promised
        own = self._acceptor.control.membership
        asked = own if own is not None and self._chance(0.8) else self._membership(self.rng.choice((0, promised.term)))
        cluster_id = self._acceptor.control.cluster_id if self._chance(0.15) else self._cluster()
        self._send(VoteRequest(leader_id, asked.generation, cluster_id, asked), self._connection(0.2))

    def _elected(self) -> None:
        promised = self._acceptor.control.promised
        term = max(1, promised.term + self.rng.choice((0, 0, 0, 0, 0, 0, 0, 1, 2, -1)))
        if term in self._lost:
            return
        won = self._won.get(term)
        if won is None:
            won = self._won[term] = self._win(term)
        message = msgspec.structs.replace(
            won,
            base_lsn=self._base_lsn(won.history[-1].start_lsn),
            commit_lsn=self.rng.choice(
                (0, 0, 0, won.history[-1].start_lsn, max(won.history[-1].start_lsn, self._position()))
            ),
            settled_lsn=self.rng.choice((0, won.history[-1].start_lsn, self._position())),
            cluster_id=self._cluster(),
            membership=self._elected_membership(term),
        )
        if self._chance(0.02):
            message = msgspec.structs.replace(message, **self._forgery(message))
        self._send(message, self._connection(0.4))

    def _elected_membership(self, term: int) -> Membership:
        own = self._acceptor.control.membership
        if own is not None and self._chance(0.85):
            return msgspec.structs.replace(own, author=max(own.author, term))
        return self._membership(self.rng.choice((term, term, term, term - 1, 0)))

    def _base_lsn(self, start_lsn: int) -> int:
        begin_lsn = self._acceptor.control.wal_begin_lsn or FIRST_LSN
        if self._chance(0.03):
            return self.rng.choice((0, begin_lsn + 1))
        end_lsn = max(self._acceptor.flush_lsn, start_lsn)
        near = (end_lsn // SEGMENT_SIZE + self.rng.choice((-1, 0, 0, 1))) * SEGMENT_SIZE
        return max(SEGMENT_SIZE, begin_lsn if self._chance(0.7) else near)

    def _forgery(self, message: Elected) -> dict[str, Any]:
        """Return fields with which a message breaks the protocol, or is another server's."""
        last = message.history[-1]
        return self.rng.choice(
            (
                {"history": (*message.history, msgspec.structs.replace(last, term=last.term + 1))},
                {"history": (*message.history[:-1], msgspec.structs.replace(last, tli=0))},
                {"history": (msgspec.structs.replace(last, start_lsn=last.start_lsn + 1), last)},
                {"history": (msgspec.structs.replace(last, term=last.term + 1), last)},
                {"history": (msgspec.structs.replace(last, term=last.term - 1, tli=last.tli + 1), last)},
                {"system_id": SYSTEM_ID + 1},
                {"segment_size": 2 * SEGMENT_SIZE},
            )
        )

    def _win(self, term: int) -> Elected:
        """Draw the log of a term: another log, cut anywhere, and continued."""
        control = self._acceptor.control
        logs = [(control.history, control.forgotten_term)] * 3
        logs += [(won.history, won.forgotten_term) for won in list(self._won.values())[-4:]]
        history, forgotten = self.rng.choice(logs)
        history = tuple(entry for entry in history if entry.term < term)
        history, forgotten = ((), 0) if self._chance(0.02) else (history, min(forgotten, term - 1))
        start_lsn = self._acceptor.write_lsn if self._chance(0.4) else self._position()
        if self._chance(0.1):
            start_lsn = max(1, control.wal_begin_lsn - self.rng.choice((1, 5000)))
        kept = tuple(entry for entry in history if entry.start_lsn <= start_lsn)
        if self._chance(0.7):
            kept = tuple(entry for entry in kept if entry.start_lsn < start_lsn)
        if not kept:
            start_lsn = max(start_lsn, FIRST_LSN) // SEGMENT_SIZE * SEGMENT_SIZE
            forgotten = 0
        gives_up = any(entry.gives_up for entry in history if entry not in kept) or self._chance(0.1)
        tli = (kept[-1].tli if kept else 1) + int(self._chance(NEW_TIMELINES))
        floor = max((kept[-1].floor if kept else 0), self.rng.choice((0, 0, 0, tli - 1)))
        given = max((kept[-1].given if kept else 0), tli) + self.rng.choice((0, 0, 0, 1))
        kept, forgotten = self._forget(kept, forgotten)
        if kept and kept[-1].term < term - 1 not in self._won and self._chance(0.5):
            # A term that this acceptor never adopted has ended the log, and was forgotten since.
            kept, forgotten = self._without(kept, len(kept)), term - 1
            self._lost.add(term - 1)
        return Elected(
            leader_id=LeaderId(term, self._winner(term)),
            cluster_id=control.cluster_id or CLUSTERS[0],
            system_id=SYSTEM_ID,
            segment_size=SEGMENT_SIZE,
            server_version=150000 + self.rng.randrange(2),
            membership=self._membership(term),
            history=(*kept, HistoryEntry(term, start_lsn, tli, gives_up, floor, given)),
            tli_histories=(TliHistory(tli, b"1\t0/4000\n"),) if tli > 1 else (),
            base_lsn=0,
            commit_lsn=0,
            forgotten_term=forgotten,
        )

    def _winner(self, term: int) -> str:
        promised = self._acceptor.control.promised
        return promised.proposer_id if promised.term == term and self._chance(0.8) else self.rng.choice(RUNS)

    def _forget(self, history: TermHistory, forgotten: int) -> tuple[TermHistory, int]:
        """Leave out old entries, as proposers do: the first of each timeline stays."""
        if not self._chance(0.25) or len(history) < 2:
            return history, forgotten
        kept = self._without(history, self.rng.choice((len(history), self.rng.randrange(1, len(history) + 1))))
        return kept, max([forgotten, *(entry.term for entry in history if entry not in kept)])

    def _without(self, history: TermHistory, count: int) -> TermHistory:
        return tuple(
            entry
            for index, entry in enumerate(history)
            if index >= count or index == 0 or history[index - 1].tli != entry.tli
        )
