"""Orders to an acceptor, and what is around it: members, clusters, folders, the archive, readers.

See messages.py.
"""

import msgspec

from safekeeper.consensus.folder_state import FolderState
from safekeeper.consensus.membership import Member
from safekeeper.consensus.messages import (
    AgentExchange,
    ArchiveAssignment,
    Bootstrap,
    ChangeMembers,
    EventExchange,
    FolderIsOlder,
    FolderStates,
    MembersAnswer,
    Reconfigure,
    Standby,
)
from tests.simulation.lone.messages import (
    ARCHIVES,
    CLUSTERS,
    SAFEKEEPER_ID,
    SYSTEM_ID,
    DrawnMessages,
)
from tests.simulation.model.synthetic_wal import SEGMENT_SIZE


class LoneOrders(DrawnMessages):
    """Events of the other kinds."""

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
        if is_undo and (replaced is None or replaced.cluster_id != cluster_id) and self._chance(0.5):
            # Nothing of that cluster is kept here: this folder may only be a learner of it.
            others = tuple(member for member in membership.members if member.id != SAFEKEEPER_ID)
            membership = msgspec.structs.replace(membership, members=others, new_members=())
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
            leader_id = self._leader_id()
            if leader_id.term > 1 and self._chance(0.2):
                leader_id = leader_id._replace(term=leader_id.term - 1)  # Another one was elected since.
            self._send(FolderIsOlder(leader_id, known))

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
