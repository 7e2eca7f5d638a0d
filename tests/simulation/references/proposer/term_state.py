"""The state of a term that is led, as docs/design/protocol.md states it (steps 5 to 7, 9 to 11).

Part of the reference of the proposer (proposer.py).

Theory of operation. The state is what each member was sent and has answered. commit_lsn and everything that is
reported follow from it by the formulas of the protocol, computed anew at each event.
"""

from collections.abc import Collection, Iterator, Set
from math import inf

import msgspec

from safekeeper.consensus.folder_state import FolderState
from safekeeper.consensus.membership import Identity, Membership
from safekeeper.consensus.messages import (
    AppendResponse,
    ArchiveReport,
    Elected,
    PullEnded,
    ReadRequest,
    ReadResponse,
)
from tests.simulation.references.acceptor.histories import folders_of
from tests.simulation.references.proposer.archive import Archive
from tests.simulation.references.proposer.ballots import can_commit, can_elect, committed, halves
from tests.simulation.references.proposer.members import ReferenceMembers
from tests.simulation.references.proposer.standbys import ReferenceStandbys
from tests.simulation.references.proposer.term_members import Member
from walproxy.proposer.actions import ReportStatus
from walproxy.proposer.liveness import Timing


class TermState:
    """The leader of one term.

    Attributes:
        elected: the first `Elected` of the term, which each later one repeats but for what 5.2 states.
        donor: the safekeeper whose log was chosen.
        is_tail: whether it has no primary (step 12).
        membership: the one that counts now (10.2).
        members: what each safekeeper was sent.
        received_lsn: the end of the primary's WAL, or of the donor's log.
        window_begin_lsn: what the window still holds.
        commit_lsn, truncate_lsn: 7.5, 7.9; the second one is the least that is permitted.
        streams: whether the primary streams, and was checked (7.6).
        reported: the last positions that PostgreSQL was told.
        learnt: the acknowledged positions that the roster has learnt from this term.
    """

    def __init__(
        self, elected: Elected, donor: int, is_tail: bool, standbys: ReferenceStandbys, timing: Timing, now: float
    ) -> None:
        self.elected = elected
        self.leader_id = elected.leader_id
        self.start_lsn = elected.history[-1].start_lsn
        self.tli = elected.history[-1].tli
        self.donor = donor
        self.is_tail = is_tail
        self.membership = elected.membership
        self.change = ReferenceMembers(elected.membership)
        self.members: dict[int, Member] = {}
        self.received_lsn = self.window_begin_lsn = self.start_lsn
        self.commit_lsn = 0
        self.truncate_lsn = 0
        self.streams = False
        self.reported: ReportStatus | None = None
        self.archive = Archive()
        self.reads: dict[int, tuple[int, ReadRequest]] = {}
        self._request_ids: set[int] = set()
        self._standbys = standbys
        self._timing = timing
        self._began_at = now
        self._adopters: dict[Identity, Member] | None = None
        # What it could be before another data folder took a member's place: taken then, and not sent yet.
        self.truncate_reached_lsn = 0
        self._before: dict[int, tuple[int, int]] = {}
        self._has_streamed = False
        self.append_generation: int | None = None  # Before `Reconfigure`, in the same event: 10.3.
        self.learnt: dict[Identity, int] = {}

    def voters(self) -> dict[Identity, Member]:
        """The members of the present membership, by data folder, as far as they have greeted in this term."""
        folders = folders_of(self.membership)
        return {member.folder: member for member in self.members.values() if member.folder in folders}

    def _adopted(self) -> dict[Identity, Member]:
        """The voters that have adopted the term: computed again after `_regroup`."""
        if self._adopters is None:
            self._adopters = {folder: member for folder, member in self.voters().items() if member.has_adopted}
        return self._adopters

    def _regroup(self) -> None:
        """The members are others, or one of them has adopted the term."""
        self._adopters = None

    def counted_lsn(self) -> int:
        """7.5: what a commit quorum has on disk now."""
        return committed(self.membership, self.acknowledged(), self.start_lsn)

    def write_lsn(self) -> int:
        """7.5."""
        if not self.commit_lsn:
            return 0
        lsns = {folder: member.write_lsn for folder, member in self._adopted().items()}
        return max(self.commit_lsn, committed(self.membership, lsns, self.start_lsn))

    def truncate_limit(self) -> int:
        """How far truncate_lsn may have been advanced."""
        return max(self.truncate_now(), self.truncate_reached_lsn)

    def truncate_now(self) -> int:
        """7.9, 10.8: the lowest flush_lsn of all members, once all have adopted the term."""
        adopted = self._adopted()
        if folders_of(self.membership) != adopted.keys():
            return self.truncate_lsn
        return max(self.truncate_lsn, min(self.commit_lsn, *[member.flush_lsn for member in adopted.values()]))

    def status(self) -> ReportStatus:
        """7.6."""
        if not self.streams:
            return ReportStatus(0, 0, 0)
        return ReportStatus(self.write_lsn(), self.commit_lsn, self._standbys.apply_lsn(self.commit_lsn))

    def is_healthy(self, now: float) -> bool:
        """2.3: the primary streams, and a commit quorum of each half has answered within the timeout."""
        return self.streams and self.has_answers(now)

    def has_answers(self, now: float) -> bool:
        """2.3: whether a commit quorum of each half has answered within the timeout."""
        times = {folder: member.answered_at for folder, member in self.voters().items() if member.is_connected}
        answered_at = min(
            sorted([times.get(folder, -inf) for folder in half.folders])[len(half.folders) - half.commit]
            for half in halves(self.membership)
        )
        # Rounded as there: a difference of two such times may be less than the timeout at its very end.
        return now < max(answered_at, self._began_at) + self._timing.heartbeat_timeout_s

    def is_confirmed(self, sequence: int, sent_again: Set[int]) -> bool:
        """7.12: a commit quorum that follows has answered a message of this number or a later one.

        Args:
            sent_again: who is sent `Elected` again in this event, and does not follow before its answer.
        """
        following = {f: m for f, m in self.voters().items() if m.follows and f[0] not in sent_again}
        answered = [f for f, m in following.items() if m.answered_sequence >= sequence]
        return can_commit(self.membership, answered)

    def has_lost_its_start(self, removed: Collection[int]) -> bool:
        """6.4; `removed` are those that were hung up on in this event (10.11)."""
        if self.commit_lsn:
            return False
        donor = self.members.get(self.donor) if self.donor not in removed else None
        holders = [
            member
            for safekeeper_id, member in self.members.items()
            if member.is_connected and member.has_adopted and member.flush_lsn >= self.start_lsn
            if safekeeper_id not in removed
        ]
        return not holders and not (donor is not None and donor.is_connected)

    def base_for(self, safekeeper_id: int) -> int:
        """5.2: where another member's WAL begins that can serve this one, 0 if none has reported it."""
        sent_lsn = self.members[safekeeper_id].sent_lsn if safekeeper_id in self.members else 0
        begins = [
            other.wal_begin_lsn
            for other_id, other in self.members.items()
            if other_id != safekeeper_id and other.follows and other.wal_begin_lsn and other.flush_lsn > sent_lsn
        ]
        return min(begins, default=0)

    def elected_for(self, safekeeper_id: int) -> Elected:
        """5.2: `Elected` for a safekeeper."""
        base_lsn = self.base_for(safekeeper_id)
        return msgspec.structs.replace(
            self.elected,
            membership=self.membership,
            base_lsn=base_lsn or self.elected.base_lsn,
            commit_lsn=self.commit_lsn,
            settled_lsn=max(base_lsn, self.elected.settled_lsn),
        )

    def sources_for(self, safekeeper_id: int, lsn: int) -> dict[int, Member]:
        """6.1: the other members that have adopted the term and retain that byte."""
        return {
            other_id: other
            for other_id, other in self.members.items()
            if other_id != safekeeper_id and other.follows and other.wal_begin_lsn <= lsn < other.flush_lsn
        }

    def folder_states(self) -> Iterator[FolderState]:
        """11.3: the states of its own term."""
        for (safekeeper_id, incarnation), flush_lsn in self.acknowledged().items():
            yield FolderState(safekeeper_id, incarnation, term=self.leader_id.term, flush_lsn=flush_lsn)

    def acknowledged(self) -> dict[Identity, int]:
        """The flush_lsn of each member that has adopted the term."""
        return {folder: member.flush_lsn for folder, member in self._adopted().items()}

    def taking_part(self) -> set[Identity]:
        """The data folders that follow and accept WAL (10.5)."""
        return {m.folder for m in self.members.values() if m.follows and not (m.refuses or m.is_doubted)}

    def begin_event(self) -> None:
        """Keep what was in flight before the event, by which 7.10 decides."""
        self._before = {i: (m.last_begin_lsn, m.sent_lsn) for i, m in self.members.items()}
        self._has_streamed = self.streams

    def advance(self) -> None:
        """7.5: recompute commit_lsn, which never goes back."""
        self.commit_lsn = max(self.commit_lsn, self.counted_lsn())

    def answered(self, safekeeper_id: int, answer: AppendResponse, now: float) -> bool:
        """An `AppendResponse`; return whether it counts, and is no answer from before the member skipped WAL (6.1)."""
        member = self.members.get(safekeeper_id)
        if member is None or not member.is_connected or answer.leader_id != self.leader_id:
            return False
        is_first = not member.follows
        if is_first:
            if answer.write_lsn < member.skips_to_lsn:
                return False
            member.follows = member.has_adopted = True
            self._regroup()
            member.skips_to_lsn = 0
            member.adopted_end_lsn = answer.write_lsn
            member.generation = max(member.generation, member.sent_generation)
        if answer.write_lsn > member.sent_lsn:
            if any(read.begin_lsn == member.sent_lsn for _, read in self.reads.values()):
                member.overtaken_lsn = member.sent_lsn
            member.sent_lsn = answer.write_lsn
        member.write_lsn, member.flush_lsn = answer.write_lsn, answer.flush_lsn
        member.answered_at, member.answered_sequence = now, answer.sequence
        member.has_readers = answer.has_readers
        if answer.write_lsn > member.adopted_end_lsn or answer.write_lsn >= self.received_lsn:
            member.refuses = member.is_doubted = False
        if is_first and not answer.has_readers:
            self._standbys.report(safekeeper_id, ())
        self.advance()
        return True

    def disconnected(self, safekeeper_id: int) -> None:
        """7.7."""
        member = self.members.get(safekeeper_id)
        if member is None:
            return
        if member.follows and member.write_lsn < member.sent_lsn:
            member.is_doubted = True
        member.is_connected = member.follows = False
        member.write_lsn = member.flush_lsn
        member.skips_to_lsn = 0
        member.pull = None
        self.reads = {number: read for number, read in self.reads.items() if read[0] != safekeeper_id}

    def pull_ended(self, safekeeper_id: int, message: PullEnded) -> bool:
        """6.6, 6.9."""
        member = self.members.get(safekeeper_id)
        if member is None or member.pull is None or message.request_id != member.pull.request_id:
            return False
        member.pull = None
        member.sent_lsn = member.write_lsn = message.write_lsn
        return True

    def archive_reported(self, safekeeper_id: int, report: ArchiveReport) -> None:
        """9.1, 9.2."""
        member = self.members.get(safekeeper_id)
        if member is not None and member.follows:
            member.wal_begin_lsn = report.wal_begin_lsn
            self.archive.reported(safekeeper_id, report)

    def is_unasked(self, source_id: int, message: ReadResponse) -> bool | None:
        """6.1, 6.2: whether these bytes are not those that this source was asked for: they break the protocol."""
        read = self.reads.get(message.request_id)
        if read is None or read[0] != source_id:
            return False
        request = read[1]
        size = len(message.payload)
        if message.begin_lsn == request.begin_lsn and 0 < size <= request.end_lsn - request.begin_lsn:
            return False
        # The one that they are for may be disconnected since: then they are ignored.
        begins = {begin_lsn for m in self.members.values() if m.follows for begin_lsn in (m.sent_lsn, m.overtaken_lsn)}
        return None if request.begin_lsn in begins else False

    def read_answered(self, source_id: int, message: ReadResponse) -> None:
        """6.1."""
        if self.reads.get(message.request_id, (0, None))[0] == source_id:
            del self.reads[message.request_id]

    def removed(self, safekeeper_id: int) -> None:
        """10.11."""
        self.disconnected(safekeeper_id)
        self.members.pop(safekeeper_id, None)
        self._regroup()

    def range_refused(self, safekeeper_id: int) -> None:
        """A member lacks what it was asked for, or does not adopt the term."""
        member = self.members.get(safekeeper_id)
        if member is not None and not member.follows:
            member.refuses = True
        self.reads = {number: read for number, read in self.reads.items() if read[0] != safekeeper_id}

    def next_membership(self, truncate_lsn: int) -> Membership | None:
        """10.4 to 10.6: the membership to decide for now, None as long as the present one stays."""
        following = self.change.next(self.membership)
        if following is None or not self.commit_lsn:
            return None
        folders = {m.folder: m for m in self.members.values()}
        taking = {f for f, m in folders.items() if m.follows and not (m.refuses or m.is_doubted)}
        on_disk = {f for f, m in folders.items() if m.generation == self.membership.generation}
        fed = {
            f for f in taking if folders[f].sent_lsn >= self.window_begin_lsn and folders[f].flush_lsn >= truncate_lsn
        }
        if not can_commit(self.membership, on_disk):
            return None
        if self.membership.new_members:
            return following if self.counted_lsn() >= self.commit_lsn else None
        if not self.change.newcomers(self.membership) <= fed:
            return None
        is_ready = can_commit(following, taking) and (
            can_elect(following, taking) or not can_elect(self.membership, taking)
        )
        return following if is_ready or self.change.is_forced else None

    def decide(self, following: Membership) -> None:
        """10.2."""
        self.membership = following
        self._regroup()
        self.advance()
