"""What the safekeepers of a lone proposer send: answers, late and repeated ones, and unrequested messages.

Part of proposer.py.
"""

from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.folder_state import FolderState
from safekeeper.consensus.messages import (
    AcceptorMessage,
    AppendResponse,
    ArchiveReport,
    Bootstrapped,
    DigestResponse,
    FolderStates,
    PreVoteResponse,
    ProposerGreeting,
    PullEnded,
    PullWal,
    ReadRequest,
    ReadResponse,
    Reconfigured,
    Refusal,
    RefusalCode,
    Standby,
    StandbyFeedback,
    TailResponse,
    VoteResponse,
)
from tests.simulation.lone.broken_answers import broken
from tests.simulation.lone.safekeepers import CLUSTERS, Safekeeper
from tests.simulation.lone.shell import LoneShell
from walproxy.proposer.phase import Phase

# What may come from another safekeeper than it is of: whose positions these are does not matter.
_OF_ANY = (
    PreVoteResponse,
    VoteResponse,
    DigestResponse,
    TailResponse,
    ReadResponse,
    PullEnded,
    Reconfigured,
    Bootstrapped,
    Refusal,
)


class LoneAnswers(LoneShell):
    """Messages of safekeepers."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rng = self.rng
        self._patience = rng.choice((0.3, 0.9, 0.98, 1.0))  # With which pulls last.
        self._breaks = rng.choice((0.0, 0.01, 0.05))  # How often an answer breaks the protocol.
        self._confirms = rng.choice((0.7, 0.02))  # How soon the end of a pull is confirmed that was to end.
        self._falls_mute = rng.choice((0.0, 0.0, 0.004, 0.03))

    def _waiting(self) -> list[Safekeeper]:
        """Return those that have something to answer, also on a connection whose end was not reported yet."""
        late = self._pending_losses
        return [
            s
            for s in self._safekeepers.values()
            if (s.is_connected or s.id in late) and s.requests and s.id != self._mute
        ]

    def _answer(self) -> None:
        """Answer the oldest request of a safekeeper."""
        self._settle()
        if self._chance(self._falls_mute):
            self._mute = self.rng.choice((0, *self._safekeepers))
        waiting = self._waiting()
        if not waiting:
            if self._chance(0.3):
                self._mute = 0
            return
        self._answer_of(self.rng.choice(waiting))

    def _answer_of(self, safekeeper: Safekeeper) -> None:
        request = safekeeper.requests.popleft()
        if isinstance(request, PullWal):
            is_slow = self._chance(self._patience if request.sources else 1 - self._confirms)
            if is_slow or self._chance(0.4):
                safekeeper.requests.append(request)  # The last WAL that it has received may be reported after the end.
            if is_slow:
                if self._chance(0.3):
                    self._advance_pull(safekeeper, request)
                return
        elif isinstance(request, ReadRequest):
            self._report_pulled()
        elif isinstance(request, ProposerGreeting) and self._receives_folders(safekeeper):
            self._greet_late(safekeeper, request)
            return
        if not self._cluster.is_frank and self._chance(0.05):
            self._send_answer(safekeeper, self._refusal(safekeeper))
            return
        for answer in self._cluster.answers(safekeeper, request):
            self._send_if_open(safekeeper, answer)

    def _refusal(self, safekeeper: Safekeeper) -> Refusal:
        codes = [code for code in RefusalCode if code is not RefusalCode.NO_LEADER]
        promised = LeaderId(safekeeper.promised.term + self.rng.choice((0, 0, 2)), "run-o")
        return Refusal(self.rng.choice(codes), self.rng.choice(("no", "no", "never")), promised)

    def _report_pulled(self) -> None:
        """Members for which WAL is fetched report WAL of a pull that has ended."""
        leadership = self._proposer.leadership
        members = leadership.members if leadership is not None else {}
        for safekeeper in self._open_ones():
            if safekeeper.id in members and members[safekeeper.id].fetch is not None and self._chance(0.5):
                for pull in [each for each in safekeeper.requests if isinstance(each, PullWal) and each.sources][:1]:
                    self._advance_pull(safekeeper, pull)

    def _receives_folders(self, safekeeper: Safekeeper) -> bool:
        """Whether it was sent `Elected` on its connection."""
        leadership = self._proposer.leadership
        member = leadership.members.get(safekeeper.id) if leadership is not None else None
        return member is not None and member.is_connected

    def _greet_late(self, safekeeper: Safekeeper, request: ProposerGreeting) -> None:
        """Greet on a connection on which `Elected` was sent: with another folder, or an older copy of one."""
        has_other_folder = self._chance(0.25)
        if has_other_folder:
            safekeeper.incarnation += "x"  # Another leader has found its folder to be an older copy.
        answers = self._cluster.answers(safekeeper, request)
        others = [each for each in self._open_ones() if each is not safekeeper and each.cluster_id]
        if others and not has_other_folder:
            other = self.rng.choice(others)
            own = FolderState(other.id, other.incarnation, other.starts, 0, 0)
            later = FolderState(safekeeper.id, safekeeper.incarnation, safekeeper.starts + 1, 0, 0)
            self._send_answer(other, FolderStates(other.cluster_id, (own, later)))
            safekeeper.starts += self.rng.choice((0, 1, 1))
        for answer in answers:
            self._send_if_open(safekeeper, answer)

    def _advance_pull(self, safekeeper: Safekeeper, pull: PullWal) -> None:
        """It has received a part of what it pulls."""
        if safekeeper.write_lsn < pull.end_lsn:
            safekeeper.write_lsn = self.rng.randint(safekeeper.write_lsn, pull.end_lsn)
            flush_lsn = safekeeper.flush_lsn = self.rng.choice((safekeeper.flush_lsn, safekeeper.write_lsn))
            sequence, has_readers = safekeeper.sequence, safekeeper.has_readers
            answer = AppendResponse(pull.leader_id, safekeeper.write_lsn, flush_lsn, sequence, has_readers)
            self._send_answer(safekeeper, answer)

    def _rest(self) -> None:
        """All is answered, and then nothing happens for long."""
        pause_s = self.rng.choice((0.5, 1.2, 1.6, 4.0, 11.0, 61.0))
        for _ in range(self.rng.choice((1, 2, 4))):
            self._answer_all()
            if self._proposer.phase is Phase.VERIFYING and self._chance(0.9):
                return  # The primary would not be compared in time.
            self._now_s += pause_s
            self._tick()

    def _answer_all(self) -> None:
        """Answer what was requested, and what is requested then, as far as that ends soon."""
        for _ in range(30):
            waiting = [s for s in self._waiting() if s.is_connected]
            if not waiting:
                break
            self._answer_of(self.rng.choice(waiting))

    def _send_if_open(self, safekeeper: Safekeeper, message: AcceptorMessage) -> None:
        if safekeeper.is_connected or safekeeper.id in self._pending_losses:
            self._send_answer(safekeeper, message)

    def _send_answer(self, safekeeper: Safekeeper, message: AcceptorMessage) -> None:
        self._sent.append((safekeeper.id, message))
        if self._chance(self._breaks):
            message = broken(self.rng, message)
        elif self._chance(0.003):
            self._event("message", safekeeper.id, message, self._now_s)  # Once too often.
            if not safekeeper.is_connected:
                return
        self._event("message", safekeeper.id, message, self._now_s)

    def _repeat(self) -> None:
        """An old answer comes once more; positions of a member never go back within a term."""
        if not self._sent:
            return
        safekeeper_id, message = self.rng.choice(self._sent)
        if isinstance(message, _OF_ANY) and self._chance(0.4):
            safekeeper_id = self.rng.choice(list(self._safekeepers))
        leadership = self._proposer.leadership
        leader_id = leadership.leader_id if leadership is not None else None
        goes_back = isinstance(message, AppendResponse) and message.leader_id == leader_id
        if self._safekeepers[safekeeper_id].is_connected and not goes_back:
            self._event("message", safekeeper_id, message, self._now_s)

    def _send_unasked(self) -> None:
        """A safekeeper sends what answers no request, or one of an earlier connection."""
        self._settle()
        ids = [each.id for each in self._open_ones()] if self._chance(0.9) else list(self._proposer.peers)
        if ids:
            safekeeper = self._safekeepers[self.rng.choice(ids)]
            self._event("message", safekeeper.id, self._unasked(safekeeper), self._now_s)

    def _send_out_of_place(self) -> None:
        """A safekeeper that does not take part in what is under way sends a message about it, perhaps once more."""
        self._settle()
        leadership, campaign = self._proposer.leadership, self._proposer.campaign
        members = leadership.members if leadership is not None else {}
        asked = campaign.asked if campaign is not None else {}
        open_ones = self._open_ones()
        outside = [s for s in open_ones if s.id not in asked and not (s.id in members and members[s.id].follows)]
        busy = [s for s in open_ones if self._is_busy(s)]
        if open_ones:
            likely = busy if busy and self._chance(0.5) else outside
            safekeeper = self.rng.choice(likely if likely and self._chance(0.8) else open_ones)
            message = self._out_of_place(safekeeper)
            for _ in range(self.rng.choice((1, 1, 2))):
                if safekeeper.is_connected:
                    self._event("message", safekeeper.id, message, self._now_s)

    def _is_busy(self, safekeeper: Safekeeper) -> bool:
        """Whether it pulls WAL, or its log is compared with the primary's."""
        leadership, campaign = self._proposer.leadership, self._proposer.campaign
        member = leadership.members.get(safekeeper.id) if leadership is not None else None
        is_donor = campaign is not None and campaign.plan is not None and campaign.donor == safekeeper.id
        return is_donor or (member is not None and member.pull is not None)

    def _out_of_place(self, safekeeper: Safekeeper) -> AcceptorMessage:
        rng, leadership, campaign = self.rng, self._proposer.leadership, self._proposer.campaign
        if campaign is not None and campaign.plan is not None and self._is_busy(safekeeper):
            return TailResponse(0, campaign.plan.start_lsn + rng.choice((0, 1)), 0, 0)
        if campaign is not None:
            asks_for = campaign.leader_id or LeaderId(1, "run-o")
            promised = LeaderId(asks_for.term + 1, "run-o")
            return rng.choice(
                (
                    PreVoteResponse(True, ""),
                    VoteResponse(LeaderId(asks_for.term, "run-o"), False, promised),
                    VoteResponse(asks_for, False, promised),
                )
            )
        if leadership is None:
            promised = LeaderId(1, "run-o")
            codes = (RefusalCode.NOT_A_MEMBER, RefusalCode.NOT_EMPTY, RefusalCode.OTHER_SYSTEM)
            return rng.choice((Refusal(rng.choice(codes), "no", promised), Bootstrapped(rng.choice(CLUSTERS), 1)))
        leader_id, promised = leadership.leader_id, leadership.leader_id
        begin_lsn, end_lsn = leadership.term_start_lsn, leadership.received_lsn
        member = leadership.members.get(safekeeper.id)
        if member is not None and member.pull is not None and self._chance(0.5):
            leader_id = rng.choice((leader_id, LeaderId(leader_id.term, "run-o")))
            return PullEnded(leader_id, member.pull.request_id, member.write_lsn)  # Before its time.
        # Of another pull, or of another term. In this term a safekeeper reports no WAL that it lacks.
        others = [p.pull.request_id for p in leadership.members.values() if p.pull is not None and p is not member]
        ended = PullEnded(
            rng.choice((leader_id, LeaderId(leader_id.term, "run-o"))),
            rng.choice((*others, *others, 0)),
            rng.choice((begin_lsn, end_lsn, end_lsn + 1)),
        )
        if self._is_busy(safekeeper):
            return ended
        choices: list[AcceptorMessage] = [
            Refusal(rng.choice((RefusalCode.RANGE, RefusalCode.STORAGE_FULL)), "no", promised),
            Reconfigured(leader_id, leadership.membership.generation),
            ended,
        ]
        if member is None or not member.is_connected:
            choices.append(AppendResponse(leader_id, end_lsn, begin_lsn, 0, False))
        else:
            earlier = LeaderId(max(1, leader_id.term - 1), "run-o")  # In which it had less.
            write_lsn = max(member.flush_lsn, member.write_lsn - 1)
            choices.append(AppendResponse(earlier, write_lsn, member.flush_lsn, 0, False))
        return rng.choice(choices)

    def _unasked(self, safekeeper: Safekeeper) -> AcceptorMessage:
        rng, leadership, campaign = self.rng, self._proposer.leadership, self._proposer.campaign
        leader_id = LeaderId(max(1, self._proposer.term - rng.choice((0, 0, 1))), self._proposer.config.proposer_id)
        lsn = leadership.term_start_lsn if leadership is not None else safekeeper.flush_lsn
        if campaign is not None and campaign.plan is not None:
            lsn = campaign.plan.start_lsn
        generation = safekeeper.membership.generation if safekeeper.membership is not None else 1
        earlier = LeaderId(max(1, leader_id.term - 1), "run-o")
        promised = LeaderId(leader_id.term + rng.choice((0, 1)), "run-o")
        choices: tuple[AcceptorMessage, ...] = (
            self._refusal(safekeeper),
            Reconfigured(rng.choice((leader_id, earlier)), generation),
            AppendResponse(earlier, safekeeper.write_lsn, safekeeper.flush_lsn, 0, False),
            Bootstrapped(rng.choice(CLUSTERS), 1),
            PreVoteResponse(self._chance(0.5), rng.choice(("", "run-o", "run-q"))),
            VoteResponse(rng.choice((leader_id, earlier)), False, promised),
            DigestResponse(leader_id.term + rng.choice((0, 1)), lsn, lsn + 1, (1,), 0),
            TailResponse(0, lsn + rng.choice((0, 0, 1)), lsn + 300, max(0, lsn - 80)),
            ReadResponse(rng.randrange(9), lsn, b"r"),
            PullEnded(leader_id, rng.randrange(9), safekeeper.write_lsn),
            ArchiveReport(safekeeper.begin_lsn, True, True, safekeeper.commit_lsn, "", "archive-b"),
        )
        return rng.choice(choices)

    def _depose(self) -> None:
        """A safekeeper has promised a higher term to another candidate."""
        self._settle()
        leadership, open_ones = self._proposer.leadership, self._open_ones()
        if leadership is not None and open_ones:
            safekeeper = self.rng.choice(open_ones)
            safekeeper.promised = LeaderId(leadership.leader_id.term + 1, "run-o")
            refusal = Refusal(RefusalCode.STALE_TERM, "no", safekeeper.promised)
            self._event("message", safekeeper.id, refusal, self._now_s)

    def _report(self) -> None:
        """What a safekeeper sends unasked."""
        self._settle()
        open_ones = self._open_ones()
        if not open_ones:
            return
        safekeeper = self.rng.choice(open_ones)
        message: AcceptorMessage
        if self._chance(0.4):
            names = [name for name in ("R1", "r2", "R3") if self._chance(0.5)]
            message = StandbyFeedback(tuple(self._standby(name, safekeeper) for name in names))
        else:
            message = self._cluster.archive_report(safekeeper)
        self._event("message", safekeeper.id, message, self._now_s)

    def _standby(self, name: str, safekeeper: Safekeeper) -> Standby:
        xmin, catalog_xmin = (self.rng.choice((0, 0, 3, 900)) for _ in range(2))
        write_lsn, apply_lsn = self._position(safekeeper), self._position(safekeeper)
        return Standby(name, write_lsn=write_lsn, apply_lsn=apply_lsn, xmin=xmin, catalog_xmin=catalog_xmin)

    def _position(self, safekeeper: Safekeeper) -> int:
        end_lsn = safekeeper.flush_lsn
        return self.rng.choice((0, end_lsn, end_lsn + 2000, self.rng.randint(0, max(1, end_lsn))))
