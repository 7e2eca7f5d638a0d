"""Random messages and events for an acceptor that is alone, or a node that is: drawn from the state of the acceptor.

They need not be the messages of any cluster: histories that continue the log, fork off anywhere, give up WAL or have
forgotten terms; leaders that are elected, deposed, or elected again; positions at, below and above each border. Two
rules hold, because otherwise all histories would be forged: a term is won once (S3), and its history continues a part
of another one. Some messages break the protocol.
"""

import random
from abc import ABC, abstractmethod
from typing import Any

import msgspec

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.acceptor.trimming import TrimRequest
from safekeeper.consensus.control_state import LeaderId, TliHistory
from safekeeper.consensus.folder_state import FolderState
from safekeeper.consensus.membership import Member, Membership
from safekeeper.consensus.messages import (
    AgentExchange,
    AppendRequest,
    ArchiveAssignment,
    Bootstrap,
    ChangeMembers,
    DigestRequest,
    Elected,
    EventExchange,
    FolderIsOlder,
    FolderStates,
    MembersAnswer,
    PeerRead,
    PreVoteRequest,
    ProposerGreeting,
    PullSource,
    PullWal,
    ReadRequest,
    Reconfigure,
    Standby,
    TailPreVoteRequest,
    TailRequest,
    VoteRequest,
)
from safekeeper.consensus.term_history import HistoryEntry, TermHistory
from tests.simulation.synthetic_wal import SEGMENT_SIZE, make_record

FIRST_LSN = 4 * SEGMENT_SIZE
SAFEKEEPER_ID = 1
SYSTEM_ID = 77
RUNS = ("run-a", "run-b", "run-c")
CLUSTERS = ("cluster-a", "cluster-b")
ARCHIVES = ("", "archive-a", "archive-b")


class DrawnMessages(ABC):
    """What happens to an acceptor, drawn from its state.

    Attributes:
        rng: decides everything.
    """

    _acceptor: Acceptor

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._connections = 0
        self._greeted: list[int] = []
        self._won: dict[int, Elected] = {}  # By term.
        self._lost: set[int] = set()  # The terms that others have won, and forgotten.
        self._timed = self.rng.choice((0.0, 0.3, 0.8))  # The share of records that bear a time.
        self._record = b""  # What is left of the record that appends are in, and where it goes on.
        self._record_lsn = 0
        self._sequence = 0
        self._requests = 0

    @abstractmethod
    def _connect(self) -> int:
        """Return the number of a new connection."""

    @abstractmethod
    def _send(self, message: Any, connection: int | None = None) -> None:
        """Send a message, on any connection that has greeted if none is given."""

    @abstractmethod
    def _happens(self, event: str, *arguments: Any) -> None:
        """Let an event of the acceptor happen that is not a message: `pulled`, `trim`, `checkpoint`, and so on."""

    @abstractmethod
    def _time_passes_for_reads(self) -> None:
        """Let what members read be answered, or not."""

    # ------------------------------------------------------------------ what is drawn

    def _chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def _connection(self, leader: float = 0.8) -> int:
        """Draw a connection: mostly the leader's, if there is one."""
        own = self._acceptor.leader_connection
        if own is not None and own in self._greeted and self._chance(leader):
            return own
        return self.rng.choice(self._greeted)

    def _position(self) -> int:
        """Draw a position: near one that means something."""
        acceptor, control = self._acceptor, self._acceptor.control
        anchors = [
            control.wal_begin_lsn or FIRST_LSN,
            acceptor.write_lsn,
            acceptor.flush_lsn,
            acceptor.commit_lsn,
            acceptor.truncate_lsn,
            *(entry.start_lsn for entry in control.history[-3:]),
        ]
        span = max(acceptor.write_lsn - control.wal_begin_lsn, 100)
        anchor = self.rng.choice((*anchors, control.wal_begin_lsn + self.rng.randrange(span)))
        return max(1, anchor + self.rng.choice((0, 0, 0, 0, -1, 1, -300, 300, -SEGMENT_SIZE, SEGMENT_SIZE)))

    def _leader_id(self) -> LeaderId:
        """Draw a leader: mostly the one that is followed or promised."""
        acceptor = self._acceptor
        promised = acceptor.control.promised
        if promised.term and self._chance(0.85):
            return acceptor.leader or promised
        term = max(1, promised.term + self.rng.choice((-1, 0, 0, 1)))
        return LeaderId(term, self.rng.choice(RUNS))

    def _membership(self, author: int) -> Membership:
        """Draw a membership near the own one: this folder is mostly a member."""
        control = self._acceptor.control
        own = control.membership
        generation = (own.generation if own is not None else 1) + self.rng.choice((0, 0, 0, 0, 0, 0, 1, 2, -1))
        here = Member(
            SAFEKEEPER_ID, control.incarnation if self._chance(0.95) else "folder-x", self.rng.choice(("", "h:1"))
        )
        others = tuple(Member(number, f"folder-of-{number}") for number in (2, 3))
        members = tuple(sorted((here, *others))) if self._chance(0.9) else others
        new = tuple(sorted((here, others[0]))) if self._chance(0.15) else ()
        return Membership(max(1, generation), members, new, author)

    def _cluster(self) -> str:
        control = self._acceptor.control
        is_blank = not control.promised.term and not control.history
        is_own = control.cluster_id and self._chance(0.6 if is_blank else 0.97)
        return control.cluster_id if is_own else self.rng.choice(CLUSTERS)

    # ------------------------------------------------------------------ elections

    def _greet(self, well: bool = False) -> None:
        number = self._connect()
        is_well = well or self._chance(0.9)
        message = ProposerGreeting(
            self.rng.choice((5, 5, 5, 4) if is_well else (3, 5, 6)),
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
        if self._chance(0.15):
            message = VoteRequest(leader_id, asked.generation)
        else:
            message = VoteRequest(leader_id, asked.generation, self._cluster(), asked)
        self._send(message, self._connection(0.2))

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
        tli = (kept[-1].tli if kept else 1) + int(self._chance(0.2))
        floor = max((kept[-1].floor if kept else 0), self.rng.choice((0, 0, 0, tli - 1)))
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
            history=(*kept, HistoryEntry(term, start_lsn, tli, gives_up, floor)),
            tli_histories=(TliHistory(tli, b"1\t0/4000\n"),) if tli > 1 else (),
            base_lsn=0,
            commit_lsn=0,
            forgotten_term=forgotten,
        )

    def _winner(self, term: int) -> str:
        promised = self._acceptor.control.promised
        return promised.proposer_id if promised.term == term and self._chance(0.8) else self.rng.choice(RUNS)

    def _forget(self, history: TermHistory, forgotten: int) -> tuple[TermHistory, int]:
        """Leave out old entries, as proposers do: the first of each timeline and those that give up WAL stay."""
        if not self._chance(0.25) or len(history) < 2:
            return history, forgotten
        kept = self._without(history, self.rng.choice((len(history), self.rng.randrange(1, len(history) + 1))))
        return kept, max([forgotten, *(entry.term for entry in history if entry not in kept)])

    def _without(self, history: TermHistory, count: int) -> TermHistory:
        return tuple(
            entry
            for index, entry in enumerate(history)
            if index >= count or index == 0 or entry.gives_up or history[index - 1].tli != entry.tli
        )

    # ------------------------------------------------------------------ WAL

    def _wal(self, count: int) -> bytes:
        """Return the next bytes of records; a record that was cut is not continued."""
        rng, lsn = self.rng, self._acceptor.write_lsn
        wal = self._record if self._record_lsn == lsn else b""
        while len(wal) < count:
            size = rng.choice((40, 300, 300, 3000, 3000, 2 * SEGMENT_SIZE))
            wal += make_record(size, lsn + len(wal), rng, is_timed=self._chance(self._timed))
        if self._chance(0.4):
            count = len(wal)
        self._record, self._record_lsn = wal[count:], lsn + count
        return wal[:count]

    def _append(self) -> None:
        acceptor, rng = self._acceptor, self.rng
        own = acceptor.control.membership
        payload = self._wal(rng.choice((1, 50, 500, 3000, SEGMENT_SIZE))) if self._chance(0.75) else b""
        begin_lsn = acceptor.write_lsn if payload or self._chance(0.7) else self._position()
        if self._chance(0.02):
            begin_lsn += rng.choice((-1, 1))
        commit_lsn = rng.choice(
            (0, acceptor.commit_lsn, acceptor.flush_lsn, begin_lsn + len(payload), self._position())
        )
        truncate_lsn = rng.choice(
            (0, 0, acceptor.truncate_lsn, commit_lsn, commit_lsn // 2, commit_lsn + int(self._chance(0.02)))
        )
        self._sequence += rng.choice((0, 1, 1))
        message = AppendRequest(
            self._leader_id(),
            (own.generation if own is not None else 1) + int(self._chance(0.02)),
            begin_lsn,
            commit_lsn,
            min(truncate_lsn, commit_lsn + 1),
            self._sequence,
            self._chance(0.7),
            payload,
        )
        self._send(message, self._connection(0.97))

    def _pull(self) -> None:
        self._requests += 1
        acceptor = self._acceptor
        sources = (PullSource(2, "h:2"),) if self._chance(0.8) else ()
        if acceptor.pull is not None and self._chance(0.3):
            pull = acceptor.pull if self._chance(0.7) else msgspec.structs.replace(acceptor.pull)
            self._happens("pull_failed", pull, "no source")
            return
        end_lsn = self.rng.choice((acceptor.write_lsn + 5000, self._position()))
        self._send(PullWal(self._leader_id(), self._requests, end_lsn, 0, sources))

    def _pulled(self) -> None:
        acceptor = self._acceptor
        begin_lsn = acceptor.write_lsn if self._chance(0.8) else self._position()
        content = self._leader_id(), begin_lsn, self._wal(self.rng.choice((100, 4000)))
        self._happens("pulled", *content)

    def _read(self) -> None:
        self._requests += 1
        leader_id, begin_lsn, end_lsn = self._leader_id(), self._position(), self._position()
        if self._chance(0.9):
            begin_lsn, end_lsn = sorted((begin_lsn, end_lsn))
        if self._chance(0.6):
            begin_lsn = max(begin_lsn, self._acceptor.control.wal_begin_lsn)
            end_lsn = max(begin_lsn, min(end_lsn, self._acceptor.flush_lsn))
        kind = self.rng.randrange(4)
        if kind == 0:
            self._send(ReadRequest(leader_id, self._requests, begin_lsn, end_lsn))
        elif kind == 1:
            self._send(DigestRequest(leader_id, self._requests, begin_lsn, end_lsn, self._chance(0.5)))
        elif kind == 2:
            self._send(TailRequest(leader_id, self._requests, begin_lsn))
        else:
            request = PeerRead(leader_id, self._requests, begin_lsn, end_lsn)
            self._send(request, self._connection(0.2))
        self._time_passes_for_reads()

    # ------------------------------------------------------------------ members, folders, archive, readers, the disk

    def _bootstrap(self) -> None:
        control = self._acceptor.control
        own, replaced = control.membership, control.replaced
        is_undo = self._chance(0.6 if replaced is not None else 0.1)
        replaces = self._chance(0.4)
        cluster_id = self.rng.choice((*CLUSTERS, control.cluster_id))
        if replaced is not None and is_undo and self._chance(0.85):
            cluster_id = replaced.cluster_id
        membership = self._membership(author=self.rng.choice((0, control.promised.term + 1, control.promised.term + 1)))
        if own is not None and self._chance(0.8):
            membership = msgspec.structs.replace(membership, generation=own.generation + self.rng.choice((1, 1, 0)))
        if own is not None and not is_undo and self._chance(0.1):
            membership, cluster_id = own, control.cluster_id
        self._send(
            Bootstrap(
                cluster_id or CLUSTERS[0],
                SYSTEM_ID,
                SEGMENT_SIZE,
                150000,
                membership,
                replaces,
                is_undo,
                self._chance(0.6),
            ),
            self._connection(0.2),
        )

    def _reconfigure(self) -> None:
        leader_id, own = self._leader_id(), self._acceptor.control.membership
        author = leader_id.term if self._chance(0.95) else 0
        membership = self._membership(author)
        if own is not None and self._chance(0.3):
            membership = msgspec.structs.replace(own, author=author)
        self._send(Reconfigure(leader_id, membership), self._connection(0.95))

    def _relay(self) -> None:
        if self._chance(0.5):
            self._send(ChangeMembers(0, CLUSTERS[0], 1, (Member(2, "folder-of-2"),)), self._connection(0.2))
        else:
            self._send(MembersAnswer(self.rng.randrange(self._connections + 2), "no"))

    def _folders(self) -> None:
        control, rng = self._acceptor.control, self.rng
        states = tuple(
            FolderState(number, incarnation, rng.randrange(4), rng.randrange(4), self._position())
            for number, incarnation in (
                (1, control.incarnation), (2, "folder-of-2"), (3, "folder-of-3"), (3, "folder-of-2")
            )
            if self._chance(0.6)
        )  # fmt: skip
        if self._chance(0.85):
            self._send(FolderStates(self._cluster(), states))
        elif self._chance(0.3):
            known = FolderState(SAFEKEEPER_ID, control.incarnation if self._chance(0.7) else "folder-x", 9, 9, 9)
            self._send(FolderIsOlder(self._leader_id(), known))

    def _archive(self) -> None:
        rng, acceptor = self.rng, self._acceptor
        if self._chance(0.5):
            archiver = rng.choice((0, SAFEKEEPER_ID, SAFEKEEPER_ID, 2))
            archived_lsn = rng.choice((0, acceptor.commit_lsn, self._position()))
            self._send(ArchiveAssignment(self._leader_id(), archiver, archived_lsn, rng.choice(ARCHIVES)))
        else:
            report = (
                rng.choice((0, acceptor.commit_lsn, self._position())),
                rng.choice(("", "", "down")),
                rng.choice(ARCHIVES),
            )
            self._happens("archive_reported", *report)

    def _trim(self) -> None:
        rng = self.rng
        request = TrimRequest(
            wanted_lsn=rng.choice((None, None, self._position())),
            keep_bytes=rng.choice((0, 0, SEGMENT_SIZE, 3 * SEGMENT_SIZE)),
            limit_bytes=rng.choice((None, 2 * SEGMENT_SIZE, 4 * SEGMENT_SIZE, 4 * SEGMENT_SIZE + 1)),
            has_archive=self._chance(0.5),
        )
        self._happens("trim", request)

    def _readers(self) -> None:
        standbys = tuple(Standby(name, self.rng.randrange(3)) for name in ("R1", "R2") if self._chance(0.5))
        has_readers = bool(standbys) or self._chance(0.3)
        self._happens("readers_changed", has_readers, standbys)

    def _checkpoint(self) -> None:
        self._happens("checkpoint")

    def _exchange(self) -> None:
        cluster_id = self.rng.choice((*CLUSTERS, self._acceptor.control.cluster_id))
        message = AgentExchange(cluster_id, "agent") if self._chance(0.5) else EventExchange(cluster_id)
        self._send(message, self._connection(0.2))
