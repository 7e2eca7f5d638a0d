"""What the leader of a term sends, as docs/design/protocol.md states it (steps 5 to 7, 9).

Part of the reference of the proposer (proposer.py).

Theory of operation. Where the protocol leaves a choice (when a heartbeat is sent, how much an append carries), the
actual action is checked against what is permitted: the `sent_` methods raise `Differs`. What must be done at once is
checked at the end of the event: the `require_` methods.
"""

from collections.abc import Iterable, Set

import msgspec

from safekeeper.consensus.membership import Identity
from safekeeper.consensus.messages import AppendRequest, ArchiveAssignment, Elected, PullWal, ReadRequest
from tests.simulation.references.proposer.actions import Differs, expect
from tests.simulation.references.proposer.term_members import Member
from tests.simulation.references.proposer.term_state import TermState

# What a run may take otherwise (bends.py): 7.10, 6.6.
APPEND_BYTES_MAX = 1 << 20
IN_FLIGHT_BYTES_MAX = 8 << 20
PULL_BYTES_MIN = 16 << 20
PULL_STALL_S = 20.0
# 9.2.
ARCHIVER_AWAITED_S = 2.0
ARCHIVER_GONE_S, ARCHIVER_PROBLEM_S, ARCHIVER_STALL_S, ARCHIVER_REST_S = 5.0, 10.0, 60.0, 60.0


class ReferenceTerm(TermState):
    """The leader of one term: its state, and what it sends."""

    def sent_elected(self, safekeeper_id: int, folder: Identity | None, message: Elected, now: float) -> None:
        """`Elected`, to a safekeeper that has greeted (`folder`), or to one that is to skip WAL (6.1)."""
        expected = self.elected_for(safekeeper_id)
        if folder is not None:
            self.truncate_reached_lsn = self.truncate_limit()
            known = self.members.get(safekeeper_id)
            expected = self._first_elected(safekeeper_id)
            member = Member(folder)
            if known is not None:
                member.refuses, member.is_doubted = known.refuses, known.is_doubted
                member.pull_allowed_at = known.pull_allowed_at
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
            expect(member.waiting_since is None, "6.1: a member skips WAL while an append is in flight")
            base_lsn = self.base_for(safekeeper_id)
            expect(member.sent_lsn < base_lsn, "6.1: a member skips WAL to a position that it has")
            member.follows, member.skips_to_lsn, self._has_skipped = False, base_lsn, True
        _same(message, expected)
        member.told_at = member.waiting_since = now
        member.told_commit_lsn = self.commit_lsn
        member.told_generation = self.membership.generation

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
            _sent_to(member, header, end_lsn, now)

    def sent_fetched(self, safekeeper_id: int, message: AppendRequest, now: float) -> None:
        """6.1: an append of WAL that another member has sent."""
        member = self._follower(safekeeper_id)
        end_lsn = message.begin_lsn + len(message.payload)
        expect(message.begin_lsn == member.sent_lsn < end_lsn, "7.2: fetched WAL does not continue what was sent")
        expect(end_lsn <= self.window_begin_lsn, "6.1: WAL is fetched that the window holds")
        self._sent_header(message, now)
        member.last_begin_lsn = message.begin_lsn
        _sent_to(member, message, end_lsn, now)

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

    def sent_pull(self, safekeeper_id: int, request: PullWal, now: float, is_tick: bool) -> None:
        """6.6."""
        member = self.members.get(safekeeper_id)
        if member is None or not member.follows:
            raise Differs("6.6: a member is to pull that does not follow")
        expect(request.leader_id == self.leader_id, "6.6: another LeaderId")
        if request.sources:
            sources = self.sources_for(safekeeper_id, member.sent_lsn)
            expect(member.pull is None, "6.6: a member that pulls is to pull")
            expect(now >= member.pull_allowed_at, "6.6: a pull after one that has failed, too early")
            expect(member.sent_lsn < self.window_begin_lsn, "6.6: a member pulls what the window holds")
            expect(request.end_lsn <= self.commit_lsn, "6.6: a pull goes beyond commit_lsn")
            expect(request.end_lsn - member.sent_lsn >= PULL_BYTES_MIN, "6.6: a pull is too short")
            expect({s.safekeeper_id for s in request.sources} <= sources.keys(), "6.6: a source lacks the WAL")
            rate = 0 if self.is_waited_for(safekeeper_id) else self._timing.catchup_bytes_per_s
            expect(request.bytes_per_s == rate, "6.3: the rate is {}, not {}", request.bytes_per_s, rate)
        else:
            expect(member.pull is not None, "6.6: a pull is ended that was not begun")
            expect(bool(member.pull is not None and member.pull.sources), "6.6: a pull is ended twice")
            is_awaited = self._is_pull_too_slow(safekeeper_id, member)
            is_stalled = now - member.pull_moved_at > PULL_STALL_S
            expect(is_tick and (is_awaited or is_stalled), "6.6: a pull is ended without a reason")
            member.pull_problem = not is_awaited
        if request.sources:
            member.pull_problem = False
        member.pull, member.pull_moved_at = request, now

    def _is_pull_too_slow(self, safekeeper_id: int, member: Member) -> bool:
        """6.6: whether its rate is limited, and commits wait for this member."""
        return member.pull is not None and member.pull.bytes_per_s > 0 and self.is_waited_for(safekeeper_id)

    def sent_assignment(self, safekeeper_id: int, message: ArchiveAssignment, now: float, is_tick: bool) -> None:
        """9.2."""
        member, archive = self.members.get(safekeeper_id), self.archive
        if member is None or not member.follows:
            raise Differs("9.2: an assignment for a safekeeper that does not follow")
        if archive.is_hidden:
            self._take_hidden(message, now)
        elif message.archiver != archive.archiver:
            expect(is_tick, "9.2: another archiver, and no tick")
            able = {i for i, report in archive.reports.items() if report.has_archive}
            expect(message.archiver in able, "9.2: the archiver cannot archive, or is gone")
            if not archive.archiver:
                expect(message.archiver == self._first_archiver(), "9.2: another one should be the first archiver")
                archives = {i for i in able if archive.reports[i].is_archiver}
                expect(bool(archives) or now - self._began_at >= ARCHIVER_AWAITED_S, "9.2: named too early")
            else:
                expect(message.archiver in self._successors(), "9.2: {} has another archive", message.archiver)
                self._require_replacement(message.archiver, now)
                archive.rests_until[archive.archiver] = now + ARCHIVER_REST_S
            archive.archiver, archive.was_named = message.archiver, True
            archive.moved_at[message.archiver] = now
            self._take_progress(message.archiver)
        expected = ArchiveAssignment(self.leader_id, archive.archiver, archive.archived_lsn, archive.archive_id)
        _same(message, expected)
        member.told_archive = message

    def _take_hidden(self, message: ArchiveAssignment, now: float) -> None:
        """9.2: which archiver was named while no member followed. The progress is one that an archiver has reported."""
        archive = self.archive
        archivers = [report for report in archive.heard.values() if report.is_archiver]
        lsns = {0, archive.archived_lsn} | {report.archived_lsn for report in archivers}
        ids = {archive.archive_id} | {report.archive_id for report in archivers}
        is_reported = message.archived_lsn in lsns and message.archive_id in ids
        expect(is_reported, "9.2: archived_lsn {}, which no archiver has reported", message.archived_lsn)
        archive.archiver = message.archiver
        archive.archived_lsn, archive.archive_id = message.archived_lsn, message.archive_id
        archive.moved_at.setdefault(message.archiver, now)

    def _require_replacement(self, successor: int, now: float) -> None:
        """9.2: whether the archiver may be replaced now."""
        archive, archiver = self.archive, self.archive.archiver
        if archive.is_hidden:
            return
        report = archive.reports.get(archiver)
        able = self._able_successors(now)
        if report is None or not report.has_archive:
            gone_s = now - archive.gone_at.get(archiver, 0.0)
            expect(gone_s >= ARCHIVER_GONE_S, "9.2: the archiver is replaced, and gone for {} s only", gone_s)
            expect(successor in (able or {successor}), "9.2: {} has a problem, or was replaced lately", successor)
            return
        expect(successor in able, "9.2: {} has a problem, or was replaced lately", successor)
        has_problem = now - archive.problem_since.get(archiver, now) >= ARCHIVER_PROBLEM_S
        is_stalled = self._archive_is_behind() and now - archive.moved_at[archiver] >= ARCHIVER_STALL_S
        expect(has_problem or is_stalled, "9.2: the archiver is replaced without a reason")

    def _archive_is_behind(self) -> bool:
        """9.2: at least two segments behind commit_lsn."""
        return self.archive.archived_lsn + 2 * self.elected.segment_size <= self.commit_lsn

    def _able_successors(self, now: float) -> set[int]:
        """9.2: those without a problem that were not replaced lately."""
        archive = self.archive
        return {
            i for i in self._successors() if not archive.reports[i].problem and archive.rests_until.get(i, now) <= now
        }

    def _successors(self) -> set[int]:
        """9.2: who may become the archiver; who has a part of the archive that others lack is not passed over."""
        archive = self.archive
        able = {
            i: report.wal_begin_lsn
            for i, report in archive.reports.items()
            if report.has_archive and i != archive.archiver
            if not (report.archive_id and archive.archive_id and report.archive_id != archive.archive_id)
        }
        gapless = {i for i, wal_begin_lsn in able.items() if wal_begin_lsn <= archive.archived_lsn}
        return gapless or set(able)

    def _require_archiver(self, now: float) -> None:
        """9.2: that there is one, and that one which is gone, has a problem or makes no progress is replaced."""
        archive = self.archive
        is_told_to_nobody = bool(archive.heard) and not any(member.follows for member in self.members.values())
        archive.is_hidden = archive.is_hidden or is_told_to_nobody
        if archive.is_hidden:
            return
        report = archive.reports.get(archive.archiver)
        if not archive.archiver:
            able = [report for report in archive.reports.values() if report.has_archive]
            is_due = any(report.is_archiver for report in able) or now - self._began_at >= ARCHIVER_AWAITED_S
            expect(not (able and is_due), "9.2: no archiver is named")
        elif report is None or not report.has_archive:
            is_due = now - archive.gone_at.get(archive.archiver, 0.0) >= ARCHIVER_GONE_S
            expect(not (is_due and self._successors()), "9.2: an archiver that is gone is not replaced")
        elif not archive.was_named and self._able_successors(now):
            problem_s = now - archive.problem_since.get(archive.archiver, now)
            expect(problem_s < ARCHIVER_PROBLEM_S, "9.2: an archiver with a problem is not replaced")
            still_s = now - archive.moved_at[archive.archiver]
            expect(still_s < ARCHIVER_STALL_S, "9.2: an archiver without progress is not replaced")

    def _first_archiver(self) -> int:
        """9.2: one that archives already, else the one without a problem whose WAL begins first."""
        able = {i: report for i, report in self.archive.reports.items() if report.has_archive}
        archiving = [i for i, report in able.items() if report.is_archiver]
        if archiving:
            return min(archiving)
        return min(able, key=lambda i: (bool(able[i].problem), able[i].wal_begin_lsn, i), default=0)

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

    def require_tick(self, gone: Set[int], now: float) -> None:
        """The waits, 6.1, 6.6: what a tick must have done for the members that follow.

        Args:
            gone: who was disconnected in it.
        """
        self._require_archiver(now)
        for safekeeper_id, member in self.members.items():
            if not member.follows or safekeeper_id in gone:
                continue
            waited_s = now - member.told_at
            expect(waited_s < self._timing.heartbeat_interval_s, "7.3: {} has no heartbeat", safekeeper_id)
            if self._has_skipped:
                continue  # Who is waited for may have changed between two members.
            pull = member.pull
            if pull is not None and pull.sources:
                is_due = self._is_pull_too_slow(safekeeper_id, member) or now - member.pull_moved_at > PULL_STALL_S
                expect(not is_due, "6.6: the pull of {} is not ended", safekeeper_id)
            elif pull is None:
                self._require_fed(safekeeper_id, member, now)

    def _require_fed(self, safekeeper_id: int, member: Member, now: float) -> None:
        """6.1: WAL below the window is on its way, or cannot be."""
        sent_lsn = member.sent_lsn
        if sent_lsn >= min(self.window_begin_lsn, member.write_lsn + IN_FLIGHT_BYTES_MAX):
            return
        if self._awaits_read(member) or not self.may_fetch_for(safekeeper_id, now):
            return
        sources = self.sources_for(safekeeper_id, sent_lsn)
        expect(not sources, "6.1: safekeeper {} is not sent the WAL from {:X}, of a member", safekeeper_id, sent_lsn)
        skips = member.waiting_before is None and sent_lsn < self.base_for(safekeeper_id)
        expect(not skips, "6.1: safekeeper {} does not skip WAL that nobody retains", safekeeper_id)

    def require_told(self) -> None:
        """7.8, 9.2: what members that follow must have been told.

        One with readers has the commit_lsn, unless WAL is to be sent to it that carries it. Each has the archiver and
        the progress of the archive.
        """
        archive, assignment = self.archive, None
        if archive.archiver:
            assignment = ArchiveAssignment(self.leader_id, archive.archiver, archive.archived_lsn, archive.archive_id)
        for safekeeper_id, member in self.members.items():
            if not member.follows:
                continue
            if member.has_readers and member.sent_lsn == self.received_lsn:
                told_lsn = member.told_commit_lsn
                expect(told_lsn >= self.commit_lsn, "7.8: safekeeper {} has readers, and no commit_lsn", safekeeper_id)
            if assignment is not None:
                is_told = member.told_archive == assignment
                expect(is_told, "9.2: safekeeper {} was not told {}", safekeeper_id, assignment)


def _sent_to(member: Member, header: AppendRequest, end_lsn: int, now: float) -> None:
    """7.2, 7.3: what is answered is awaited."""
    begin_lsn, sent_lsn = header.begin_lsn, member.sent_lsn
    expect(begin_lsn == sent_lsn, "7.2: the append begins at {:X}, not at {:X}", begin_lsn, sent_lsn)
    expect(header.sequence >= member.told_sequence, "7.3: the sequence goes back")
    member.told_commit_lsn, member.told_sequence = header.commit_lsn, header.sequence
    is_answered = end_lsn > sent_lsn or header.sequence > member.answered_sequence
    if is_answered and member.waiting_since is None:
        member.waiting_since = now
    member.told_at = now
    member.sent_lsn = end_lsn


def _same(actual: msgspec.Struct, expected: msgspec.Struct) -> None:
    if actual == expected:
        return
    names = [n for n in actual.__struct_fields__ if getattr(actual, n) != getattr(expected, n)]
    texts = [f"{name} is {getattr(actual, name)}, reference {getattr(expected, name)}" for name in names]
    raise Differs(f"{type(actual).__name__}: {'; '.join(texts)}")
