"""The safekeepers of a lone proposer: logs that fork off anywhere, and answers that the protocol permits.

Theory of operation. See proposer.py. There is no acceptor: each answer follows from the few fields of `Safekeeper`
and from what is drawn.
"""

import random
from collections import deque
from typing import Any

import msgspec

from safekeeper.consensus.control_state import NOBODY, LeaderId, TliHistory
from safekeeper.consensus.folder_state import FolderState
from safekeeper.consensus.membership import Member, Membership, QuorumSizes
from safekeeper.consensus.messages import (
    DIGEST_PAGE_SIZE,
    PROTOCOL_VERSION,
    AcceptorGreeting,
    AcceptorMessage,
    AppendRequest,
    AppendResponse,
    ArchiveAssignment,
    ArchiveReport,
    Bootstrap,
    Bootstrapped,
    DigestRequest,
    DigestResponse,
    Elected,
    FolderStates,
    PreVoteRequest,
    PreVoteResponse,
    ProposerGreeting,
    PullEnded,
    PullWal,
    ReadRequest,
    ReadResponse,
    Reconfigure,
    Reconfigured,
    Refusal,
    RefusalCode,
    TailPreVoteRequest,
    TailRequest,
    TailResponse,
    VoteRequest,
    VoteResponse,
)
from safekeeper.consensus.term_history import HistoryEntry, TermHistory
from tests.simulation.model.synthetic_wal import SEGMENT_SIZE

CLUSTERS = ("cluster-a", "cluster-b")
SYSTEM_ID = 77
FIRST_LSN = 4 * SEGMENT_SIZE
SIZES = (QuorumSizes(), QuorumSizes("(N+1)/2", "N/2+1"), QuorumSizes("1", "N"), QuorumSizes("N", "N/2+1"))
Line = tuple[TermHistory, int]


class Safekeeper:
    """What answers a proposer in the place of an acceptor.

    Attributes:
        requests: what it was sent on its connection, and has not answered.
        history, begin_lsn, write_lsn, flush_lsn, commit_lsn: of its log.
        starts: of its data folder.
        is_full: its disk has no space.
        is_archiver: by the last assignment that it was sent.
    """

    def __init__(self, safekeeper_id: int) -> None:
        self.id = safekeeper_id
        self.incarnation = f"folder-of-{safekeeper_id}"
        self.is_connected = False
        self.requests: deque[Any] = deque()
        self.history: TermHistory = ()
        self.forgotten = 0
        self.begin_lsn = self.write_lsn = self.flush_lsn = self.commit_lsn = 0
        self.promised = NOBODY
        self.membership: Membership | None = None
        self.cluster_id = ""
        self.starts = 1
        self.has_readers = False
        self.sequence = 0
        self.is_full = False
        self.is_archiver = False

    def take_folder(self, membership: Membership) -> bool:
        """Begin with the other data folder of its id, if a membership names two; return whether it does."""
        named = {member.incarnation for half in membership.halves() for member in half if member.id == self.id}
        if len(named) < 2 or self.incarnation not in named:
            return False
        self.incarnation = (named - {self.incarnation}).pop()
        return True

    def join_other_cluster(self) -> None:
        """A rebootstrap has reached it, and maybe no other one."""
        if self.membership is not None:
            self.cluster_id = CLUSTERS[1]
            self.membership = msgspec.structs.replace(self.membership, generation=self.membership.generation + 1)

    def lose_folder(self) -> None:
        """Begin again with an empty folder."""
        self.incarnation += "'"
        self.history, self.forgotten, self.promised = (), 0, NOBODY
        self.begin_lsn = self.write_lsn = self.flush_lsn = self.commit_lsn = 0
        self.membership, self.cluster_id, self.starts = None, "", 1


def with_other_folder(members: tuple[Member, ...], safekeeper_id: int) -> tuple[Member, ...]:
    """Return the members with another data folder in the place of one of them."""
    return tuple(
        Member(each.id, f"{each.incarnation}x", each.address) if each.id == safekeeper_id else each for each in members
    )


class LoneSafekeepers:
    """All safekeepers of a lone proposer.

    Attributes:
        lines: histories, each with the end of its log.
        all: the safekeepers, by id.
        is_frank: whether answers to requests are mostly the good ones.
        crcs: of the pages of the last digest.
        addresses: by id; some clusters have members without one.
    """

    def __init__(self, rng: random.Random, count: int, is_forgetful: bool) -> None:
        self.rng = rng
        part = rng.choice((1.0, 1.0, 1.0, 0.5))
        self.addresses = {i: f"S{i}:1" if rng.random() < part else "" for i in range(1, count + 1)}
        self._fills = rng.choice((0.0, 0.0, 0.01, 0.1))  # How often a disk fills up, or has space again.
        self._trims = 0.7 if is_forgetful else rng.choice((0.0, 0.05, 0.4))  # How often old WAL is removed.
        self._problems = rng.choice((0.0, 0.2, 0.8))  # How often an archive is out of reach.
        self._archives = self._draw_archives(count)
        self.lines = self._draw_lines()
        self.all = {i: Safekeeper(i) for i in range(1, count + 1)}
        self._draw_safekeepers()
        self.is_frank = rng.random() < 0.7
        self.crcs: tuple[int, ...] = ()

    def _chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def _draw_lines(self) -> list[Line]:
        """Draw histories that part: each continues a beginning of an earlier one."""
        rng = self.rng
        first_tli = rng.choice((1, 1, 1, 2))
        first = HistoryEntry(1, FIRST_LSN, first_tli, given=first_tli)
        lines: list[Line] = [((first,), FIRST_LSN + rng.choice((0, 500, 3000, SEGMENT_SIZE, 40_000)))]
        for _ in range(rng.randint(0, 4)):
            history, end_lsn = rng.choice(lines)
            start_lsn = rng.choice((end_lsn, end_lsn, rng.randint(FIRST_LSN, end_lsn), history[-1].start_lsn))
            kept = tuple(entry for entry in history if entry.start_lsn <= start_lsn)
            last = kept[-1]
            tli = last.tli + rng.choice((0, 0, 1))
            entry = HistoryEntry(
                max(line[0][-1].term for line in lines) + 1 + rng.choice((0, 0, 1)),
                start_lsn,
                tli,
                self._chance(0.1),
                max(last.floor, rng.choice((0, 0, 0, last.tli - 1, last.tli))),
                max(last.given, tli) + rng.choice((0, 0, 0, 1)),
            )
            end_lsn = start_lsn + rng.choice((0, 1, 700, SEGMENT_SIZE - 300, 30_000))
            if self._chance(0.3):
                end_lsn = -(-end_lsn // SEGMENT_SIZE) * SEGMENT_SIZE
            lines.append(((*kept, entry), end_lsn))
        return lines

    def _draw_safekeepers(self) -> None:
        members = self.members()
        sizes = QuorumSizes()
        if len(members) > 2 and self._chance(0.4):
            sizes = self.rng.choice((*SIZES, SIZES[-1], SIZES[-1]))
        halves: tuple[tuple[Member, ...], tuple[Member, ...]] = (members, ())
        if len(members) > 1 and self._chance(0.2):
            halves = self.rng.choice(((members, members[:-1]), (members[1:], members), self._replacing(members)))
            sizes = QuorumSizes()
        elif len(members) > 1 and self._chance(0.2):
            halves = (members[:-1], ())
        membership = Membership(2, halves[0], halves[1], 0, sizes)
        is_new = self._chance(0.15)
        for safekeeper in self.all.values():
            if is_new or self._chance(0.04):
                continue  # It has missed the end of the bootstrap.
            safekeeper.cluster_id = CLUSTERS[0]
            safekeeper.membership = membership
            self._draw_log(safekeeper)

    def _draw_log(self, safekeeper: Safekeeper) -> None:
        history, end_lsn = self.rng.choice(self.lines)
        flush_lsn = self.rng.choice((end_lsn, end_lsn, self.rng.randint(FIRST_LSN, end_lsn)))
        if self._chance(0.1):
            return
        safekeeper.history = tuple(entry for entry in history if entry.start_lsn <= flush_lsn)
        safekeeper.write_lsn = safekeeper.flush_lsn = flush_lsn
        first = FIRST_LSN if self._chance(0.7) else max(FIRST_LSN, flush_lsn // SEGMENT_SIZE * SEGMENT_SIZE)
        safekeeper.begin_lsn = first
        safekeeper.commit_lsn = self.rng.choice((0, first, self.rng.randint(first, flush_lsn)))
        safekeeper.promised = LeaderId(safekeeper.history[-1].term + self.rng.choice((0, 0, 1)), "run-o")

    def _replacing(self, members: tuple[Member, ...]) -> tuple[tuple[Member, ...], tuple[Member, ...]]:
        """Return the halves of a change in which another data folder takes the place of a member's."""
        return members, with_other_folder(members, self.rng.choice(members).id)

    def change_quorums(self) -> None:
        """A leader elsewhere has ended a change of the members, or has changed the sizes of their quorums."""
        known = [s.membership for s in self.all.values() if s.membership is not None]
        if not known:
            return
        newest = max(known, key=lambda membership: membership.key)
        members = newest.new_members or newest.members
        sizes = self.rng.choice([each for each in SIZES if each != newest.quorum_sizes])
        membership = Membership(newest.generation + 1, members, (), newest.author, sizes)
        for safekeeper in self.all.values():
            if safekeeper.membership is not None:
                safekeeper.membership = membership

    def members(self) -> tuple[Member, ...]:
        """Return all of them as members."""
        return tuple(Member(i, s.incarnation, self.addresses[i]) for i, s in self.all.items())

    def newest_line(self) -> Line:
        """Return the history and the end of the newest log."""
        newest = max(self.all.values(), key=lambda s: (s.history[-1].term if s.history else 0, s.flush_lsn))
        return (newest.history, newest.flush_lsn) if newest.history else self.lines[0]

    def page_crcs(self, begin_lsn: int, end_lsn: int) -> tuple[int, ...]:
        """Draw the checksums of the pages of some WAL."""
        return tuple(self.rng.randrange(100) for _ in range(-(-(end_lsn - begin_lsn) // DIGEST_PAGE_SIZE)))

    def answers(self, safekeeper: Safekeeper, request: Any) -> list[AcceptorMessage]:
        """Draw what a safekeeper answers to a request, and what it does with its log."""
        kind = type(request)
        if kind is ProposerGreeting:
            return self._greeting(safekeeper)
        if kind is PreVoteRequest or kind is TailPreVoteRequest:
            granted = self._chance(0.98 if self.is_frank else 0.8)
            return [PreVoteResponse(granted, "" if granted else self.rng.choice(("run-o", "run-q", "")))]
        if kind is VoteRequest:
            return self._vote(safekeeper, request)
        if kind is Bootstrap:
            safekeeper.cluster_id, safekeeper.membership = request.cluster_id, request.membership
            return [Bootstrapped(request.cluster_id, 1)]
        if kind is Elected:
            return self._adopt(safekeeper, request)
        if kind is AppendRequest:
            return self._append(safekeeper, request)
        if kind is Reconfigure:
            safekeeper.membership = request.membership
            return [Reconfigured(request.leader_id, request.membership.generation)]
        if kind is ReadRequest:
            if self._chance(0.2):
                return [Refusal(RefusalCode.RANGE, "not here", safekeeper.promised)]
            size = self.rng.randint(1, request.end_lsn - request.begin_lsn)
            return [ReadResponse(request.request_id, request.begin_lsn, b"r" * size)]
        if kind is DigestRequest:
            return self._digest(request)
        if kind is TailRequest:
            end_lsn = request.lsn + self.rng.choice((40, 300, 3000, 9000)) if self._chance(0.9) else 0
            return [TailResponse(request.request_id, request.lsn, end_lsn, max(0, request.lsn - 80))]
        if kind is ArchiveAssignment:
            safekeeper.is_archiver = request.archiver == safekeeper.id
            return [self.archive_report(safekeeper)] if self._chance(0.5) else []
        if kind is PullWal:
            safekeeper.write_lsn = max(safekeeper.write_lsn, request.end_lsn if self._chance(0.5) else 0)
            problem = "" if self._chance(0.7) else "no source"
            return [PullEnded(request.leader_id, request.request_id, safekeeper.write_lsn, problem)]
        return []

    def _folder(self, safekeeper: Safekeeper) -> list[AcceptorMessage]:
        if not safekeeper.cluster_id:
            return []
        term = safekeeper.history[-1].term if safekeeper.history else 0
        own = FolderState(safekeeper.id, safekeeper.incarnation, safekeeper.starts, term, safekeeper.flush_lsn)
        others = [
            FolderState(other.id, other.incarnation, other.starts + int(self._chance(0.02)), 0, 0)
            for other in self.all.values()
            if other is not safekeeper and self._chance(0.3)
        ]
        return [FolderStates(safekeeper.cluster_id, (own, *others))]

    def _greeting(self, safekeeper: Safekeeper) -> list[AcceptorMessage]:
        history = safekeeper.history
        last = history[-1] if history else None
        membership = safekeeper.membership
        cluster_id = safekeeper.cluster_id
        if membership is not None and self._chance(0.03 if len(self.all) > 1 else 0.15):
            cluster_id = CLUSTERS[1]
            membership = msgspec.structs.replace(membership, generation=membership.generation + self.rng.choice((0, 5)))
        elif membership is not None and self._chance(0.02):
            membership = msgspec.structs.replace(membership, author=membership.author + self.rng.choice((0, 40)))
        greeting = AcceptorGreeting(
            PROTOCOL_VERSION,
            safekeeper.id,
            safekeeper.incarnation + "x" * self._chance(0.005),
            cluster_id,
            SYSTEM_ID if history else 0,
            SEGMENT_SIZE if history else 0,
            150000,
            membership,
            safekeeper.promised,
            last.term if last is not None else 0,
            safekeeper.begin_lsn,
            safekeeper.flush_lsn,
            safekeeper.commit_lsn,
            0,
            None,
            last.tli if last is not None else 0,
            last.floor if last is not None else 0,
            last.given if last is not None else 0,
        )
        return [*self._folder(safekeeper), greeting]

    def _vote(self, safekeeper: Safekeeper, request: VoteRequest) -> list[AcceptorMessage]:
        own = safekeeper.history[-1].term if safekeeper.history else 0
        if own >= request.leader_id.term or request.leader_id.term < safekeeper.promised.term or self._chance(0.05):
            promised = LeaderId(request.leader_id.term + self.rng.choice((0, 1)), "run-o")
            return [VoteResponse(request.leader_id, False, promised)]
        safekeeper.promised = request.leader_id
        files = tuple(TliHistory(tli, b"of a member") for tli in sorted({e.tli for e in safekeeper.history}) if tli > 1)
        vote = VoteResponse(
            request.leader_id,
            True,
            request.leader_id,
            tuple(entry for entry in safekeeper.history if entry.start_lsn <= safekeeper.flush_lsn),
            files,
            safekeeper.begin_lsn,
            safekeeper.flush_lsn,
            min(safekeeper.commit_lsn, safekeeper.flush_lsn),
            0,
            safekeeper.forgotten,
        )
        return [*self._folder(safekeeper), vote]

    def _adopt(self, safekeeper: Safekeeper, request: Elected) -> list[AcceptorMessage]:
        if safekeeper.is_full or self._chance(0.02 if self.is_frank else 0.1):
            code = self.rng.choice((RefusalCode.HISTORY, RefusalCode.RANGE, RefusalCode.STORAGE_FULL))
            code = RefusalCode.STORAGE_FULL if safekeeper.is_full else code
            return [Refusal(code, "no", safekeeper.promised)]
        start_lsn = request.history[-1].start_lsn
        safekeeper.cluster_id, safekeeper.membership = request.cluster_id, request.membership
        own = safekeeper.history[-1] if safekeeper.history else None
        if own is None or own.term != request.leader_id.term:
            kept = [safekeeper.flush_lsn, start_lsn]
            kept += [e.start_lsn for e in safekeeper.history if e not in request.history]
            safekeeper.flush_lsn = min(kept)
        if safekeeper.flush_lsn < request.base_lsn:
            safekeeper.begin_lsn = safekeeper.flush_lsn = request.base_lsn
        safekeeper.history, safekeeper.forgotten = request.history, request.forgotten_term
        safekeeper.promised, safekeeper.sequence = request.leader_id, 0
        safekeeper.write_lsn = safekeeper.flush_lsn
        safekeeper.commit_lsn = min(safekeeper.commit_lsn, safekeeper.flush_lsn)
        safekeeper.has_readers = self._chance(0.3)
        answer = AppendResponse(
            request.leader_id, safekeeper.write_lsn, safekeeper.flush_lsn, 0, safekeeper.has_readers
        )
        answers: list[AcceptorMessage] = [answer]
        if self._chance(0.9):
            answers.append(self.archive_report(safekeeper))
        return answers

    def _append(self, safekeeper: Safekeeper, request: AppendRequest) -> list[AcceptorMessage]:
        if request.begin_lsn != safekeeper.write_lsn:
            return [] if not request.payload else [Refusal(RefusalCode.POSITION, "a gap", safekeeper.promised)]
        safekeeper.is_full ^= self._chance(self._fills)
        if safekeeper.is_full and request.payload:
            return [Refusal(RefusalCode.STORAGE_FULL, "full", safekeeper.promised)]
        safekeeper.write_lsn += len(request.payload)
        safekeeper.sequence = max(safekeeper.sequence, request.sequence)
        safekeeper.commit_lsn = max(safekeeper.commit_lsn, min(request.commit_lsn, safekeeper.flush_lsn))
        if self._chance(0.3):
            return []
        low = safekeeper.flush_lsn
        safekeeper.flush_lsn = self.rng.choice((low, safekeeper.write_lsn, self.rng.randint(low, safekeeper.write_lsn)))
        safekeeper.has_readers ^= self._chance(0.05)
        answers: list[AcceptorMessage] = [
            AppendResponse(
                request.leader_id,
                safekeeper.write_lsn,
                safekeeper.flush_lsn,
                safekeeper.sequence,
                safekeeper.has_readers,
            )
        ]
        end_lsn = safekeeper.commit_lsn // SEGMENT_SIZE * SEGMENT_SIZE
        if safekeeper.begin_lsn < end_lsn and self._chance(self._trims):
            safekeeper.begin_lsn = end_lsn
            answers.append(self.archive_report(safekeeper))
        return answers

    def _draw_archives(self, count: int) -> dict[int, str]:
        """Draw the archive of each safekeeper: mostly the same one; empty for none."""
        rng = self.rng
        choices = rng.choice((("a", "a", "a", ""), ("a", "b"), ("a",)))
        return {i: rng.choice(choices) for i in range(1, count + 1)}

    def archive_report(self, safekeeper: Safekeeper) -> ArchiveReport:
        """Draw what a safekeeper reports of its archive."""
        archive = self._archives[safekeeper.id]
        has_archive = archive != "" and self._chance(0.95)
        problem = ""
        if self.rng.random() < self._problems:
            problem = "down"
        return ArchiveReport(
            safekeeper.begin_lsn,
            has_archive,
            has_archive and (safekeeper.is_archiver if self._chance(0.95) else self._chance(0.15)),
            self.rng.choice((0, safekeeper.commit_lsn, safekeeper.begin_lsn)),
            problem,
            self.rng.choice(("", f"archive-{archive}", f"archive-{archive}")) if has_archive else "",
        )

    def _digest(self, request: DigestRequest) -> list[AcceptorMessage]:
        begin_lsn, end_lsn = request.begin_lsn, request.end_lsn
        timed_lsn = 0
        if request.back_to_timed:
            if self._chance(0.3):
                begin_lsn = max(FIRST_LSN, begin_lsn - SEGMENT_SIZE)
            timed_lsn = begin_lsn if self._chance(0.8) else 0
            self.crcs = ()
        if self._chance(0.2):
            half = (begin_lsn + end_lsn) // 2 // DIGEST_PAGE_SIZE * DIGEST_PAGE_SIZE
            end_lsn = half if half > begin_lsn else end_lsn
        crcs = self.page_crcs(begin_lsn, end_lsn)
        self.crcs += crcs
        return [DigestResponse(request.request_id, begin_lsn, end_lsn, crcs, timed_lsn)]
