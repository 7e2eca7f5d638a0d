"""Random messages and events for an acceptor that is alone, drawn from its state.

    messages.py   what random values are drawn near, and what happens to what is drawn
    elections.py  greetings, votes, and histories
    wal.py        appends, pulls, reads, removals
    orders.py     members, clusters, folders, the archive, readers

They need not be the messages of any cluster: histories that continue the log, fork off anywhere, give up WAL or have
forgotten terms; leaders that are elected, deposed, or elected again; positions at, below and above each border. Two
rules hold, because otherwise all histories would be forged: a term is won once (S3), and its history continues a part
of another one. Some messages break the protocol.
"""

import random
from abc import ABC, abstractmethod
from typing import Any

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.membership import Member, Membership
from safekeeper.consensus.messages import Elected
from tests.simulation.model.synthetic_wal import SEGMENT_SIZE

FIRST_LSN = 4 * SEGMENT_SIZE
SAFEKEEPER_ID = 1
SYSTEM_ID = 77
RUNS = ("run-a", "run-b", "run-c")
CLUSTERS = ("cluster-a", "cluster-b", "cluster-c")
ARCHIVES = ("", "archive-a", "archive-b")
# So often a message comes on the leader's connection, and is in the name of the leader that is followed or promised.
OF_LEADER, BY_LEADER = 0.93, 0.96
# So often a new term begins a timeline.
NEW_TIMELINES = 0.3


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

    def _chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def _connection(self, leader: float | None = None) -> int:
        """Draw a connection: mostly the leader's, if there is one, with probability `leader`."""
        own = self._acceptor.leader_connection
        if own is not None and own in self._greeted and self._chance(OF_LEADER if leader is None else leader):
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
        if promised.term and self._chance(BY_LEADER):
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
