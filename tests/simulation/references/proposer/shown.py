"""What the shell and status pages read of a proposer, as docs/design/protocol.md and its status page state it.

Part of the reference of the proposer (proposer.py). Each is a formula of the whole state; checker.py compares it now
and then between two events of the lone proposer.
"""

from collections.abc import Iterator
from typing import NamedTuple

from safekeeper.consensus.membership import Identity
from safekeeper.consensus.messages import Elected
from tests.simulation.references.acceptor.histories import folders_of
from tests.simulation.references.proposer.ballots import can_commit
from tests.simulation.references.proposer.run import ReferenceRun
from tests.simulation.references.proposer.standbys import Row
from tests.simulation.references.proposer.term import ReferenceTerm
from walproxy.proposer.phase import Phase


class Shown(NamedTuple):
    """What is read.

    Attributes:
        state: the name of the state.
        knows_a_cluster: whether a member of a cluster has greeted, or a term was asked for.
        is_spare: 2.6.
        quorum_end_lsn: what a quorum has, as far as known.
        feedback: the oldest xmin and catalog_xmin that standbys need; None while the primary is not told.
        sealed: `Elected` of the term that seals, once a quorum has adopted it (13.1).
        has_answers: 2.3, for a term that is led.
        served_by: who answers and accepts WAL.
        is_served: whether commits can succeed.
        archive: the archiver, and the progress of the archive; None if nobody has one.
        standbys: each name, where it streams or has streamed, whether it does now, whether it is designated, and its
            positions.
        lacks_standbys: whether remote_apply is blocked; False without a commit.
        committed_lsns: commit_lsn and truncate_lsn of the term that is led.
    """

    state: str
    knows_a_cluster: bool
    is_spare: bool
    quorum_end_lsn: int
    feedback: tuple[int, int] | None
    sealed: Elected | None
    has_answers: bool
    served_by: frozenset[int]
    is_served: bool
    archive: tuple[int, int] | None
    standbys: tuple[Row, ...]
    lacks_standbys: bool
    committed_lsns: tuple[int, int]


class ShownState(ReferenceRun):
    """The formulas."""

    def shown(self, now: float) -> Shown:
        """Return what is read at a time."""
        term = self.term
        has_committed = term is not None and term.commit_lsn > 0
        greetings = [peer.greeting for peer in self.roster.peers.values() if peer.greeting is not None]
        end_lsn = max((greeting.flush_lsn for greeting in greetings), default=0)
        folders = set(self._taking_part(term, now)) if term is not None else set()
        is_told = has_committed and term is not None and term.streams
        return Shown(
            self._state_name(now),
            self.known.requested_term > 0 or any(greeting.membership is not None for greeting in greetings),
            self.known.is_spare,
            term.commit_lsn if term is not None and has_committed else end_lsn,
            self._standbys.oldest_xmins() if is_told else None,
            term.elected if term is not None and has_committed and self.config.seal is not None else None,
            term is not None and term.has_answers(now),
            frozenset(safekeeper_id for safekeeper_id, _ in folders),
            term is not None and can_commit(term.membership, folders),
            self._archive(term),
            self._standbys.rows(),
            has_committed and self._standbys.is_lacking(),
            self._committed_lsns(term),
        )

    @staticmethod
    def _committed_lsns(term: ReferenceTerm | None) -> tuple[int, int]:
        """7.9: truncate_lsn is advanced when it is read."""
        if term is None:
            return 0, 0
        term.truncate_lsn = term.truncate_now()
        return term.commit_lsn, term.truncate_lsn

    def is_everyday(self) -> bool:
        """Whether a term is led in which all safekeepers follow and are sent WAL of the window."""
        term = self.term
        return term is not None and all(
            i in term.members and term.members[i].is_fed(term.window_begin_lsn) for i in self.roster.peers
        )

    def _state_name(self, now: float) -> str:
        if self.is_finished:
            return "fenced"
        if self.primary is None:
            has_greeted = any(peer.greeting is not None for peer in self.roster.peers.values())
            return "waiting_for_primary" if self.known.requested_term or has_greeted else "connecting"
        if self.term is not None:
            if not can_commit(self.term.membership, self._taking_part(self.term, now)):
                return "waiting_for_quorum"
            return "streaming" if self.term.commit_lsn else "recovering"
        is_electing = self.phase is not Phase.GATHERING or self.known.is_spare or self.roster.cluster() is not None
        return "electing" if is_electing else "waiting_for_quorum"

    def _taking_part(self, term: ReferenceTerm, now: float) -> Iterator[Identity]:
        """The members that have answered within the timeout and accept WAL; when the term begins, all have answered."""
        timeout_s = self.config.timing.heartbeat_timeout_s
        refusing = {m.folder for m in term.members.values() if m.refuses or m.is_doubted}
        by_folder = {member.folder: member for member in term.members.values()}
        for folder in folders_of(term.membership):
            member = by_folder.get(folder)
            has_answered = member is not None and member.is_connected and now - member.answered_at < timeout_s
            if folder not in refusing and (has_answered or term.is_young(now)):
                yield folder

    def knows_archiver(self) -> bool:
        """Whether the messages show which archiver is named: not one that was named while no member followed (9.2)."""
        return self.term is None or not self.term.archive.is_hidden

    @staticmethod
    def _archive(term: ReferenceTerm | None) -> tuple[int, int] | None:
        if term is None or not any(report.has_archive for report in term.archive.heard.values()):
            return None
        return term.archive.archiver, term.archive.archived_lsn
