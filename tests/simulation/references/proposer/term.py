"""What the leader of a term sends, as docs/design/protocol.md states it (steps 5 to 7, 9).

Part of the reference of the proposer (proposer.py).

Theory of operation. Where the protocol leaves a choice (when a heartbeat is sent, how much an append carries), the
actual action is checked against what is permitted: the `sent_` methods raise `Differs`. What must be done at once is
checked at the end of the event: the `require_` methods.
"""

from collections.abc import Iterable

import msgspec

from safekeeper.consensus.membership import Identity
from safekeeper.consensus.messages import AppendRequest, ArchiveAssignment, Elected, PullWal, ReadRequest
from tests.simulation.references.proposer.actions import Differs, expect
from tests.simulation.references.proposer.term_members import Member
from tests.simulation.references.proposer.term_state import TermState

# What a run may take otherwise (bends.py): 7.10.
APPEND_BYTES_MAX = 1 << 20
IN_FLIGHT_BYTES_MAX = 8 << 20


class ReferenceTerm(TermState):
    """The leader of one term: its state, and what it sends."""

    def sent_elected(self, safekeeper_id: int, folder: Identity | None, message: Elected) -> None:
        """`Elected`, to a safekeeper that has greeted (`folder`), or to one that is to skip WAL (6.1)."""
        expected = self.elected_for(safekeeper_id)
        if folder is not None:
            self.truncate_reached_lsn = self.truncate_limit()
            known = self.members.get(safekeeper_id)
            expected = self._first_elected(safekeeper_id)
            member = Member(folder)
            if known is not None:
                member.refuses, member.is_doubted = known.refuses, known.is_doubted
                if known.folder == folder:
                    member.generation = known.generation
                    if known.folder in self.voters() and known.has_adopted:
                        member.has_adopted = True
                        member.flush_lsn = member.write_lsn = known.flush_lsn
            self.members[safekeeper_id] = member
            self._regroup()
        else:
            member = self.members[safekeeper_id]
            expect(member.follows, "6.1: a member that does not follow is sent Elected again")
            expect(member.sent_lsn < self.window_begin_lsn, "6.1: a member skips WAL that the window holds")
            expect(not self.sources_for(safekeeper_id, member.sent_lsn), "6.1: a member skips WAL that one retains")
            expect(member.write_lsn == member.sent_lsn, "6.1: a member skips WAL while an append is in flight")
            base_lsn = self.base_for(safekeeper_id)
            expect(member.sent_lsn < base_lsn, "6.1: a member skips WAL to a position that it has")
            member.follows, member.skips_to_lsn = False, base_lsn
        _same(message, expected)
        member.sent_commit_lsn = self.commit_lsn
        member.sent_generation = self.membership.generation

    def _first_elected(self, safekeeper_id: int) -> Elected:
        """The one on a new connection, on which nothing was sent yet."""
        known = self.members.pop(safekeeper_id, None)
        expected = self.elected_for(safekeeper_id)
        if known is not None:
            self.members[safekeeper_id] = known
        return expected

    def sent_append(self, safekeeper_ids: Iterable[int], header: AppendRequest, end_lsn: int, now: float) -> None:
        """An append to some members, with WAL of the window or without."""
        self._sent_header(header, now)
        has_wal = end_lsn > header.begin_lsn
        for safekeeper_id in safekeeper_ids:
            member = self._follower(safekeeper_id)
            if has_wal:
                self._sent_wal(safekeeper_id, member, header.begin_lsn, end_lsn)
                member.last_begin_lsn = header.begin_lsn
            _sent_to(member, header, end_lsn)

    def sent_fetched(self, safekeeper_id: int, message: AppendRequest, now: float) -> None:
        """6.1: an append of WAL that another member has sent."""
        member = self._follower(safekeeper_id)
        end_lsn = message.begin_lsn + len(message.payload)
        expect(message.begin_lsn == member.sent_lsn < end_lsn, "7.2: fetched WAL does not continue what was sent")
        expect(end_lsn <= self.window_begin_lsn, "6.1: WAL is fetched that the window holds")
        self._sent_header(message, now)
        member.last_begin_lsn = message.begin_lsn
        _sent_to(member, message, end_lsn)

    def _follower(self, safekeeper_id: int) -> Member:
        member = self.members.get(safekeeper_id)
        if member is None or not member.follows:
            raise Differs("5.7: an append for a member that has not adopted the term on this connection")
        return member

    def _sent_header(self, header: AppendRequest, now: float) -> None:
        """7.1, 7.9: what an append carries in any case."""
        limit = self.truncate_limit()
        expect(self.truncate_lsn <= header.truncate_lsn <= limit, "7.9: truncate_lsn is not up to {:X}", limit)
        self.truncate_lsn = header.truncate_lsn
        # The event in which the stream goes on may begin with an append.
        may_be_early = not header.healthy and not self._has_streamed
        expected = AppendRequest(
            self.leader_id,
            self.membership.generation if self.append_generation is None else self.append_generation,
            header.begin_lsn,
            self.commit_lsn,
            header.truncate_lsn,
            header.sequence,
            self.is_healthy(now) and not may_be_early,
            header.payload,
        )
        _same(header, expected)

    def _sent_wal(self, safekeeper_id: int, member: Member, begin_lsn: int, end_lsn: int) -> None:
        expect(begin_lsn >= self.window_begin_lsn, "6.1: the append begins below the window")
        expect(end_lsn <= self.received_lsn, "6.1: the append ends above what was received")
        expect(member.pull is None, "6.6: WAL for a member that pulls")
        expect(end_lsn - begin_lsn <= APPEND_BYTES_MAX, "7.10: the append is too long")
        # Two appends are in flight in any case.
        limit_bytes = max(IN_FLIGHT_BYTES_MAX, 2 * APPEND_BYTES_MAX)
        expect(end_lsn - member.write_lsn <= limit_bytes, "7.10: too much WAL is in flight")
        last_begin_lsn, sent_lsn = self._before.get(safekeeper_id, (0, begin_lsn))
        if begin_lsn == sent_lsn and self.received_lsn - sent_lsn < APPEND_BYTES_MAX:
            expect(member.write_lsn >= last_begin_lsn, "7.10: two appends are in flight, and this one is not full")

    def sent_read(self, source_id: int, request: ReadRequest) -> None:
        """6.1: WAL below the window is requested from a member that has it, for one that lacks it."""
        source = self.members.get(source_id)
        expect(source is not None and source.follows, "6.1: WAL is requested from one that has not adopted the term")
        lacking = [
            i
            for i, member in self.members.items()
            if i != source_id and member.follows and member.sent_lsn == request.begin_lsn and member.pull is None
        ]
        expect(bool(lacking), "6.1: no member needs the WAL from {:X}", request.begin_lsn)
        assert source is not None
        expect(request.leader_id == self.leader_id, "6.2: another LeaderId")
        expect(source.wal_begin_lsn <= request.begin_lsn < source.flush_lsn, "6.1: the source does not retain that")
        limit = min(source.flush_lsn, self.window_begin_lsn)
        expect(request.begin_lsn < request.end_lsn <= limit, "6.1: the read ends above what the source or nobody has")
        expect(request.request_id not in self._request_ids, "a number of a request is used twice")
        self._request_ids.add(request.request_id)
        self.reads[request.request_id] = source_id, request

    def sent_pull(self, safekeeper_id: int, request: PullWal) -> None:
        """6.6: what a member may pull, and from which others. A request without sources ends a pull."""
        member = self._follower(safekeeper_id)
        expect(request.leader_id == self.leader_id, "6.6: another LeaderId")
        if not request.sources:
            is_pulling = member.pull is not None and bool(member.pull.sources)
            expect(is_pulling, "6.6: a pull is ended that was not begun, or twice")
        else:
            expect(member.pull is None, "6.6: a pull is begun before the last one has ended")
            sources = self.sources_for(safekeeper_id, member.sent_lsn)
            expect(member.sent_lsn < request.end_lsn <= self.commit_lsn, "6.6: a pull goes beyond commit_lsn")
            expect({s.safekeeper_id for s in request.sources} <= sources.keys(), "6.6: a source lacks the WAL")
        # `PullEnded` for another one would be taken for the answer to this one.
        expect(request.request_id not in self._request_ids, "6.6: a number of a request is used twice")
        self._request_ids.add(request.request_id)
        member.pull = request

    def sent_assignment(self, safekeeper_id: int, message: ArchiveAssignment) -> None:
        """9.2: which safekeeper archives, and what it has reported last."""
        member = self._follower(safekeeper_id)
        self.archive.name(message.archiver)
        lsn, archive_id = self.archive.lsn, self.archive.archive_id
        _same(message, ArchiveAssignment(self.leader_id, message.archiver, lsn, archive_id))
        member.assignment = message

    def require_wal(self, safekeeper_ids: Iterable[int]) -> None:
        """6.1, 7.10: what these members lack and the window holds is on its way."""
        for safekeeper_id in safekeeper_ids:
            member = self.members.get(safekeeper_id)
            if member is None or not member.follows or member.pull is not None:
                continue
            if not self.window_begin_lsn <= member.sent_lsn < self.received_lsn or self._awaits_read(member):
                continue
            is_full = member.sent_lsn >= member.write_lsn + IN_FLIGHT_BYTES_MAX
            rest = self.received_lsn - member.sent_lsn
            waits = member.write_lsn < member.last_begin_lsn and rest < APPEND_BYTES_MAX
            expect(is_full or waits, "6.1: safekeeper {} is not sent the WAL from {:X}", safekeeper_id, member.sent_lsn)

    def _awaits_read(self, member: Member) -> bool:
        """Whether WAL is being read for it, perhaps before the position that it has reported since (6.9)."""
        return any(read.begin_lsn in {member.sent_lsn, member.overtaken_lsn} for _, read in self.reads.values())

    def require_assignment(self) -> None:
        """9.2: each member that follows was sent what the archiver has reported last."""
        archive = self.archive
        if not archive.archiver:
            return
        expected = ArchiveAssignment(self.leader_id, archive.archiver, archive.lsn, archive.archive_id)
        for safekeeper_id, member in self.members.items():
            has_sent = not member.follows or member.assignment == expected
            expect(has_sent, "9.2: safekeeper {} was not sent {}", safekeeper_id, expected)

    def require_sent(self) -> None:
        """7.8: a member with readers has the commit_lsn, unless WAL is to be sent to it that carries it."""
        for safekeeper_id, member in self.members.items():
            if member.follows and member.has_readers and member.sent_lsn == self.received_lsn:
                reported_lsn = member.sent_commit_lsn
                expect(
                    reported_lsn >= self.commit_lsn, "7.8: safekeeper {} has readers, and no commit_lsn", safekeeper_id
                )


def _sent_to(member: Member, header: AppendRequest, end_lsn: int) -> None:
    """7.2, 7.3."""
    begin_lsn, sent_lsn = header.begin_lsn, member.sent_lsn
    expect(begin_lsn == sent_lsn, "7.2: the append begins at {:X}, not at {:X}", begin_lsn, sent_lsn)
    expect(header.sequence >= member.sent_sequence, "7.3: the sequence goes back")
    member.sent_commit_lsn, member.sent_sequence = header.commit_lsn, header.sequence
    member.sent_lsn = end_lsn


def _same(actual: msgspec.Struct, expected: msgspec.Struct) -> None:
    if actual == expected:
        return
    names = [n for n in actual.__struct_fields__ if getattr(actual, n) != getattr(expected, n)]
    texts = [f"{name} is {getattr(actual, name)}, reference {getattr(expected, name)}" for name in names]
    raise Differs(f"{type(actual).__name__}: {'; '.join(texts)}")
