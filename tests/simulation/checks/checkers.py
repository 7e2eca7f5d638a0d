"""What must hold, looked at from outside: the checkers see every disk, every word and every byte.

Truth is kept in two forms. `_terms` has the bytes of each term, as the first safekeeper that wrote them got them: a
term is won once, so all must write the same (LogMatching). `committed` has every byte below any commit_lsn that was
ever announced: it may only grow, but for the bytes of an incomplete record that a fork of the timeline replaces (S9),
and for what an operator gives up: a term that was won by a proxy with --allow-data-loss begins where that is cut.
`acked_lsn` is how far commits were acknowledged to clients; nothing below it may ever change.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.consensus.control_state import ControlState, LeaderId
from safekeeper.consensus.membership import Identity, Membership
from safekeeper.consensus.messages import AppendResponse, Bootstrapped, Elected, VoteResponse
from safekeeper.consensus.term_history import HistoryEntry, TermHistory, check_history, divergence, last_tli, tli_at
from tests.simulation.checks import quorums
from tests.simulation.checks.archive_checker import ArchiveChecker
from tests.simulation.checks.reader_checker import ReaderChecker
from tests.simulation.checks.truncate_checker import TruncateChecker
from tests.simulation.checks.violation import Violation
from tests.simulation.model.synthetic_wal import last_complete_end, records
from walproxy.proposer.actions import ReportStatus
from walproxy.proposer.purpose import CancelSeal, Readmit, Seal, TakeBack

if TYPE_CHECKING:
    from safekeeper.consensus.messages import AcceptorMessage
    from tests.simulation.model.disk import ModelDisk
    from tests.simulation.model.primary import VirtualPrimary
    from tests.simulation.model.proxy import SimProxy
    from tests.simulation.model.safekeeper import SimSafekeeper
    from tests.simulation.world.world import World
    from walproxy.proposer.proposer import Proposer


@dataclass
class Won:
    """A term that was won: its leader, and the log that it stands for."""

    leader_id: LeaderId
    # With what was removed from its front, and as it was sent.
    history: TermHistory
    sent_history: TermHistory
    membership: Membership
    commit_lsn: Lsn = 0
    write_sent_lsn: Lsn = 0
    # Below it this log was found to be the committed one: neither changes there, unless the committed one is cut.
    compared_lsn: Lsn = 0


@dataclass
class TermBytes:
    """The bytes of one term, from its start on."""

    begin_lsn: Lsn
    data: bytearray = field(default_factory=bytearray)


class Log(NamedTuple):
    """What a data folder has of a cluster's log that is not in place there: it is put aside, or has not begun."""

    control: ControlState | None
    begin_lsn: Lsn = 0
    wal: bytes | bytearray = b""
    durable_lsn: Lsn = 0


def _key_of(disk: "ModelDisk | Log") -> tuple[int, int]:
    known = disk.control.membership if disk.control is not None else None
    return (known.author, known.generation) if known is not None else (-1, -1)


class Checker:
    """Looks at everything, changes nothing.

    Attributes:
        committed: the committed log, from `base_lsn` on.
        acked_lsn: the end of the last record whose commit was acknowledged.
        acks: how many status updates released a commit.
        membership: the latest that any leader has decided for, None before the first term.
        given_up: by term, where it begins and gives up what lay above.
        readers: looks at what readers see.
        archive: looks at what is archived, and removed.
        truncate: checks what is reported to be on every member.
        cluster_id: whose log this is the truth of, empty for the first one.
        is_given_up: whether an operator has agreed to lose what this cluster has committed.
        believes: whether an acceptor's messages are taken on trust instead of being compared with its disk. A planted
            bug that makes it lie is found at once by its messages; if they are believed, the harm that follows must be
            found.
    """

    believes = False

    def __init__(self, world: "World", cluster_id: str = "") -> None:
        self.world = world
        self.cluster_id = cluster_id
        self.base_lsn: Lsn = 0
        self.committed_term = 0
        self.committed = bytearray()
        self.acked_lsn: Lsn = 0
        self.acks = 0
        self.won: dict[int, Won] = {}
        self.membership: Membership | None = None
        self._before: dict[HistoryEntry, TermHistory] = {}
        self._votes: dict[tuple[LeaderId, int], TermHistory] = {}
        self.given_up: dict[int, Lsn] = {}
        self.is_given_up = False
        self._gone: set[Identity] = set()
        self._seals: list[tuple[int, int, Lsn]] = []  # Term, sealed timeline, and where the log ends.
        self._lowered: dict[int, int] = {}  # By term: what it lets in again is above this floor.
        self._needless: dict[str, set[int]] = {}  # By run: who has granted it a tail term although another one leads.
        self._promoted: list[VirtualPrimary] = []
        self._terms: dict[int, TermBytes] = {}
        self._memberships: dict[tuple[str, tuple[int, int]], Membership] = {}
        self._received: dict[tuple[str, int], Lsn] = {}
        self.readers = ReaderChecker(self)
        self.archive = ArchiveChecker(self)
        self.truncate = TruncateChecker(self)

    @property
    def committed_lsn(self) -> Lsn:
        """End of the committed log, 0 if nothing is committed."""
        return self.base_lsn + len(self.committed) if self.base_lsn else 0

    def on_proposer_stepped(self, proxy: "SimProxy", proposer: "Proposer") -> None:
        """A proposer has handled an event: did it win a term, did it count something as committed?"""
        leadership = proposer.leadership
        if leadership is None:
            return
        leader_id = leadership.leader_id
        won = self.won.get(leader_id.term)
        if won is None:
            sent = leadership.elected.history
            donated = self._votes.get((leader_id, leadership.donor), ())
            won = self.won[leader_id.term] = Won(
                leader_id, self._of_new_term(sent, donated), sent, leadership.membership
            )
            self._before[sent[-1]] = won.history[:-1]
            self.world.counts.count("histories cut", int(leadership.elected.forgotten_term > 0))
            self.world.counts.count("tail terms won", int(leadership.is_tail))
            if leadership.is_tail and proposer.candidacy.purpose is None:
                self._require_needed(proxy, leader_id)
            self._on_won(won, proposer.config.allow_data_loss)
        elif won.leader_id != leader_id:
            raise Violation("ElectionSafety", f"term {leader_id.term} is won by {won.leader_id} and by {leader_id}")
        elif won.sent_history is not leadership.elected.history:
            raise Violation("ElectionSafety", f"{leader_id} has won its term twice")
        self._on_decided(won, leadership.membership)
        if leadership.commit_lsn > won.commit_lsn:
            won.commit_lsn = leadership.commit_lsn
            self._on_committed(won, proxy.name)
        elif leadership.commit_lsn < won.commit_lsn:
            raise Violation("CommitMonotonic", f"{proxy.name} takes back commits of term {leader_id.term}")
        self.truncate.on_led(proxy.name, leadership)

    def on_tail_granted(self, safekeeper: "SimSafekeeper", run: str, is_needless: bool) -> None:
        """A safekeeper lets a run without a primary be elected: is another leader live there?"""
        granted = self._needless.setdefault(run, set())
        if is_needless:
            granted.add(safekeeper.id)
        else:
            granted.discard(safekeeper.id)

    def _require_needed(self, proxy: "SimProxy", leader_id: LeaderId) -> None:
        """A tail term is won only where no member that lets it be elected follows another live leader (S9a)."""
        granted = sorted(self._needless.get(leader_id.proposer_id, ()))
        if granted:
            raise Violation(
                "NoNeedlessTerm",
                f"{proxy.name} wins tail term {leader_id.term} with the consent of safekeepers {granted}, which follow "
                "another leader a moment before",
            )

    def _of_new_term(self, sent: TermHistory, donated: TermHistory) -> TermHistory:
        """Return the history of a new term, with what was removed from the donor's, now or ever."""
        start_lsn = sent[-1].start_lsn
        below = {entry for entry in self.whole(donated) if entry.start_lsn < start_lsn}
        return (*sorted(below | set(sent[:-1]), key=lambda entry: entry.term), sent[-1])

    def whole(self, history: TermHistory) -> TermHistory:
        """Return a history with what was removed from its front, or between the first entries of its timelines."""
        if not history:
            return ()
        before = self._before.get(history[-1])
        return (*(self.whole(history[:-1]) if before is None else before), history[-1])

    def _on_won(self, won: Won, may_give_up: bool) -> None:
        """A later leader's log holds what was committed (LeaderCompleteness)."""
        start_lsn = won.history[-1].start_lsn
        check_history(won.history)
        self._terms[won.leader_id.term] = TermBytes(start_lsn)
        if not self.base_lsn or won.leader_id.term < self.committed_term:
            # A deposed winner may lead late, on an older log: what it could still commit is checked when it does.
            return
        gives_up = won.history[-1].gives_up
        if gives_up:
            if not may_give_up and not self.given_up:
                raise Violation("LeaderCompleteness", f"{won.leader_id} gives up WAL, which no operator has allowed")
            self.given_up[won.leader_id.term] = start_lsn
        same = self.log_of(won.history, self.base_lsn, min(start_lsn, self.committed_lsn))
        if same != self.committed[: len(same)]:
            raise Violation("LeaderCompleteness", f"the log of {won.leader_id} has other bytes than were committed")
        if self.base_lsn + len(same) < self.committed_lsn:
            why = f"{won.leader_id} was elected on a log that ends there"
            self._cut_committed(self.base_lsn + len(same), why, gives_up and may_give_up)
        self.readers.check_tli_stays(won)

    def _cut_committed(self, lsn: Lsn, why: str, given_up: bool) -> None:
        """Bytes above a fork may go if no record is complete among them (S9), or if the operator gives them up."""
        lost = next(records(self.committed, self.base_lsn, lsn), None)
        if given_up:
            self.acked_lsn = min(self.acked_lsn, lsn)
            self.world.counts.count("committed WAL given up", int(lost is not None))
        elif lost is not None or lsn < self.acked_lsn:
            shown = lost or (lsn, self.acked_lsn)
            raise Violation(
                "LeaderCompleteness",
                f"the committed record [{format_lsn(shown[0])}, {format_lsn(shown[1])}) is cut: {why}",
            )
        self._require_fork(lsn, why)
        del self.committed[lsn - self.base_lsn :]
        self.archive.on_committed_cut(lsn)
        for won in self.won.values():
            won.compared_lsn = min(won.compared_lsn, lsn)

    def _on_committed(self, won: Won, who: str) -> None:
        """Some position was announced to be committed in a term (S4)."""
        commit_lsn = won.commit_lsn
        if not self.base_lsn:
            self.base_lsn = won.history[0].start_lsn
        self.committed_term = max(self.committed_term, won.leader_id.term)
        # It may receive so late what a quorum held that a later term has cut the beginning of a record at its end (S9).
        held_lsn = commit_lsn
        for term, later in self.won.items():
            if term > won.leader_id.term:
                parted = divergence(won.history, commit_lsn, later.history)
                if parted is None or parted.lsn < commit_lsn:
                    parted_lsn = parted.lsn if parted else self.base_lsn
                    if parted is None or not parted.gives_up:
                        self._require_incomplete(won, parted_lsn, commit_lsn, later)
                    held_lsn = min(held_lsn, parted_lsn)
        if held_lsn == won.history[0].start_lsn:
            return  # Not a byte.
        self._require_quorum("CommittedNotOverwritten", won, held_lsn, f"{who} counts it as committed")
        commit_lsn = held_lsn  # What is below may be acknowledged, also if a later term has committed nothing yet.
        begin_lsn = max(self.base_lsn, won.compared_lsn)
        log = self.log_of(won.history, begin_lsn, commit_lsn)
        if begin_lsn + len(log) < commit_lsn:
            raise Violation("CommittedNotOverwritten", f"no member holds the bytes below {format_lsn(commit_lsn)}")
        before = self.committed[begin_lsn - self.base_lsn : commit_lsn - self.base_lsn]
        if log[: len(before)] != before:
            raise Violation(
                "CommittedNotOverwritten", f"{won.leader_id} commits other bytes than were committed before"
            )
        self.committed += log[len(before) :]
        won.compared_lsn = commit_lsn

    def _require_fork(self, lsn: Lsn, why: str) -> None:
        """Not even half a record goes but where a timeline forked off in some term, written on or not."""
        histories = [won.history for won in self.won.values()]
        first_tlis = {history[0].tli for history in histories if history[0].start_lsn == lsn}
        forks = [
            entry
            for history in histories
            for entry in history
            if entry.start_lsn == lsn and tli_at(history, lsn - 1) != entry.tli
        ]
        if not forks and len(first_tlis) < 2:
            raise Violation("LeaderCompleteness", f"committed bytes above {format_lsn(lsn)} go without a fork: {why}")

    def _require_incomplete(self, won: Won, lsn: Lsn, commit_lsn: Lsn, later: Won) -> None:
        """A term was won above this one without these bytes: only an incomplete record may be among them."""
        lost = next(records(self.log_of(won.history, lsn, commit_lsn), lsn, lsn), None)
        if lost is not None:
            raise Violation(
                "LeaderCompleteness",
                f"{won.leader_id} commits up to {format_lsn(commit_lsn)}, but {later.leader_id} lacks it",
            )
        self._require_fork(lsn, f"{won.leader_id} commits them, {later.leader_id} lacks them")

    def _on_decided(self, won: Won, membership: Membership) -> None:
        if won.membership != membership:
            self.world.counts.count("memberships decided")
            self._require_on_disk(won)
            if won.membership.new_members and not membership.new_members:
                self._require_counted_again(won, membership)
        won.membership = membership
        if self.membership is None or membership.key > self.membership.key:
            self.membership = membership

    def _require_on_disk(self, won: Won) -> None:
        """A membership that is left is on the disks of a commit quorum: no leader is elected under an older one."""
        left = (won.membership.author, won.membership.generation)
        for members, sizes in quorums.halves(won.membership):
            folders = [(member.id, self._folder(member.identity)) for member in members]
            having = [i for i, disk in folders if disk is None or _key_of(disk) >= left]
            if len(having) < quorums.commit_size(members, sizes):
                raise Violation(
                    "MembershipIsOnAQuorum",
                    f"{won.leader_id} leaves the membership of {won.membership.label}, which only safekeepers {having} "
                    "of its members have on disk",
                )

    def _require_counted_again(self, won: Won, membership: Membership) -> None:
        """What was committed is on a commit quorum of the final members: a later leader computes M from so many."""
        if any(term > won.leader_id.term for term in self.won):
            return  # A deposed leader may decide late; what it decides for reaches no quorum.
        lsn = won.commit_lsn
        for members, sizes in quorums.halves(membership):
            folders = [(member.id, self._folder(member.identity)) for member in members]
            holding = [i for i, disk in folders if disk is None or self._holds(disk, won, lsn)]
            if len(holding) < quorums.commit_size(members, sizes):
                raise Violation(
                    "CommittedIsCountedAgain",
                    f"{won.leader_id} leaves a joint membership, and only safekeepers {holding} of the final members "
                    f"hold the WAL up to {format_lsn(lsn)}",
                )

    def on_membership_sent(self, leader_id: LeaderId, membership: Membership) -> None:
        """A leader sends the membership that it has decided for: the same event may have ended its term."""
        won = self.won.get(leader_id.term)
        if won is not None and won.leader_id == leader_id and membership.key > won.membership.key:
            self._on_decided(won, membership)

    def on_commit_sent(self, proxy: "SimProxy", leader_id: LeaderId, commit_lsn: Lsn) -> None:
        """A proposer sends a safekeeper what is committed."""
        won = self.won.get(leader_id.term)
        leadership = proxy.proposer.leadership if proxy.proposer is not None else None
        has_ended = leadership is None or leadership.leader_id != leader_id
        if won is not None and won.leader_id == leader_id and commit_lsn > won.commit_lsn and has_ended:
            # The event that counted it as committed has ended the term, too.
            won.commit_lsn = commit_lsn
            self._on_committed(won, proxy.name)
        if won is None or commit_lsn > won.commit_lsn:
            raise Violation(
                "CommittedNotOverwritten", f"{proxy.name} sends commit_lsn {format_lsn(commit_lsn)} too early"
            )

    def on_status(self, proxy: "SimProxy", primary: "VirtualPrimary", status: ReportStatus) -> None:
        """PostgreSQL receives positions, and releases the commits that wait for them (S1)."""
        if not status.write_lsn and not status.flush_lsn and not status.apply_lsn:
            return
        term = proxy.proposer.leadership.leader_id.term if proxy.proposer and proxy.proposer.leadership else 0
        if not term:
            raise Violation("NeverOverReport", f"{proxy.name} reports {status} without leading a term")
        won = self.won[term]
        if status.flush_lsn > won.commit_lsn or status.apply_lsn > status.flush_lsn:
            raise Violation("NeverOverReport", f"{proxy.name} reports {status}, committed is {won.commit_lsn}")
        if status.apply_lsn > self._replayed_lsn(status.flush_lsn):
            raise Violation("NeverOverReport", f"{proxy.name} reports {status}, the standbys have not replayed that")
        self._require_unsealed(primary, status.flush_lsn)
        received = {
            identity
            for identity in won.membership.identities()
            if self._received.get((identity[1], term), 0) >= status.write_lsn
        }
        # What was committed or sent before a change of members need not be on a quorum of the joint ones yet.
        sent_lsn = max(won.commit_lsn, won.write_sent_lsn)
        if status.write_lsn > sent_lsn and not quorums.can_commit(won.membership, received):
            raise Violation(
                "NeverOverReport", f"{proxy.name} reports write {format_lsn(status.write_lsn)}, a quorum lacks it"
            )
        won.write_sent_lsn = max(won.write_sent_lsn, status.write_lsn)
        # What a later term has given up is released on the old primary, if its proxy has not received it yet, and is
        # gone.
        limits = [lsn for given_up_in, lsn in self.given_up.items() if given_up_in > term]
        self._on_acked(primary, min([status.flush_lsn, *limits]))

    def on_sealed(self, seal: Seal, elected: Elected) -> None:
        """An operator gets the reply that a timeline is sealed (S15)."""
        last = elected.history[-1]
        tli = last_tli(elected.history, last.start_lsn)
        if tli != seal.tli or last.floor < tli:
            raise Violation(
                "SealNamesItsTimeline",
                f"timeline {seal.tli} was to be sealed: the floor is {last.floor}, the log's timeline {tli}",
            )
        self._seals.append((last.term, seal.tli, last.start_lsn))

    def on_floor_lowered(self, purpose: TakeBack | CancelSeal | Readmit, elected: Elected) -> None:
        """A server is let in again, and none below: the term is won, and may be in force from now on."""
        self._lowered[elected.leader_id.term] = purpose.tli - 1

    def _floor_left(self, term: int, floor: int) -> int:
        """Return what is left of the floor of a sealing term, which later ones may have lowered."""
        return min([floor, *(lower for later, lower in self._lowered.items() if later > term)])

    def on_promoted(self, primary: "VirtualPrimary", reserved: Elected, is_found: bool) -> None:
        """A failover has promoted a standby: with every record of the log that it has sealed, to a number of its own.

        Args:
            reserved: what began the term that has reserved its number. Others may have gone on since.
            is_found: it has found a history file of that number.
        """
        fork_lsn = primary.ancestors[-1].end_lsn
        log = self.log_of(self.whole(reserved.history), self.base_lsn, reserved.history[-1].start_lsn)
        lost = next(records(log, self.base_lsn, fork_lsn), None)
        if lost is not None:
            raise Violation(
                "PromotedHasEverything",
                f"{primary.name} lacks the committed record [{format_lsn(lost[0])}, {format_lsn(lost[1])})",
            )
        number = reserved.history[-1].given
        if primary.tli < number or (primary.tli > number and not is_found):
            raise Violation("PromotedTliIsFree", f"{primary.name} is on timeline {primary.tli}, not on {number}")
        if primary.tli > number:
            # It has passed over a number with a history file, and is like one that was promoted by other means.
            self.world.counts.count("promotions to another number")
            return
        for other in self._promoted:
            if other.tli == primary.tli:
                raise Violation("PromotedTliIsFree", f"{primary.name} is on timeline {primary.tli}, as {other.name}")
        self._promoted.append(primary)

    def _require_unsealed(self, primary: "VirtualPrimary", flush_lsn: Lsn) -> None:
        for term, floor, lsn in self._seals:
            if flush_lsn > lsn and primary.tli <= self._floor_left(term, floor):
                raise Violation(
                    "SealHolds",
                    f"{primary.name} on timeline {primary.tli} receives flush {format_lsn(flush_lsn)}: timelines up to "
                    f"{floor} were sealed at {format_lsn(lsn)}",
                )

    def _replayed_lsn(self, flush_lsn: Lsn) -> Lsn:
        """Return how far those have replayed, now or ever, that the operator waits for."""
        rule = self.world.apply_rule
        if not rule.count:
            return flush_lsn
        replayed = sorted(s.highest_lsn for s in self.world.standbys if rule.designates(s.name))
        return replayed[-rule.count] if rule.count <= len(replayed) else 0

    def on_actions_done(self, proxy: "SimProxy", proposer: "Proposer") -> None:
        """What an event made a proposer do is done: readers of a member get commits, or will with WAL."""
        leadership = proposer.leadership
        if leadership is None:
            return
        for safekeeper_id, progress in leadership.members.items():
            if (
                progress.has_readers
                # What was closed in this very instant reaches the proposer a moment later.
                and proxy.is_connected(safekeeper_id)
                and progress.follows
                and progress.sent_lsn == leadership.received_lsn
                and proxy.sent_commit_lsn[safekeeper_id] < leadership.commit_lsn
            ):
                raise Violation(
                    "NoLateCommit",
                    f"{proxy.name} keeps commit_lsn {format_lsn(leadership.commit_lsn)} from the readers of "
                    f"safekeeper {safekeeper_id}, to which it has nothing else to send",
                )

    def _on_acked(self, primary: "VirtualPrimary", flush_lsn: Lsn) -> None:
        """Commits up to `flush_lsn` on this primary are released: its bytes must be the committed ones."""
        if flush_lsn <= primary.reported_lsn:
            return
        # From the last record's end on, also if it received a position in the next one before.
        begin_lsn = max(self.base_lsn, primary.record_end_at_or_below(min(primary.reported_lsn, primary.insert_lsn)))
        acked_lsn = primary.record_end_at_or_below(min(flush_lsn, primary.insert_lsn))
        if acked_lsn <= begin_lsn:
            return
        self.acks += 1
        ours = self.committed[begin_lsn - self.base_lsn : acked_lsn - self.base_lsn]
        if primary.read(begin_lsn, acked_lsn) != ours:
            raise Violation(
                "NeverOverReport",
                f"{primary.name} releases commits up to {format_lsn(acked_lsn)}, its bytes are not the committed ones",
            )
        self.acked_lsn = max(self.acked_lsn, acked_lsn)

    def on_acceptor_sends(self, safekeeper: "SimSafekeeper", message: "AcceptorMessage") -> None:
        """What leaves a safekeeper must be true of its disk (S2)."""
        if isinstance(message, AppendResponse):
            control = safekeeper.disk.control
            key = (control.incarnation if control else "", message.leader_id.term)
            self._received[key] = max(self._received.get(key, 0), message.write_lsn)
        elif isinstance(message, VoteResponse) and message.granted:
            self._votes[message.leader_id, safekeeper.id] = message.history
        if self.believes:
            return
        disk = safekeeper.disk
        control = disk.control
        if isinstance(message, AppendResponse):
            if message.flush_lsn > disk.durable_lsn:
                raise Violation(
                    "AckImpliesFlushed",
                    f"{safekeeper.name} reports flush {format_lsn(message.flush_lsn)}, "
                    f"but {format_lsn(disk.durable_lsn)} is durable",
                )
            if message.write_lsn > disk.write_lsn:
                raise Violation("AckImpliesFlushed", f"{safekeeper.name} reports as received what it did not write")
            won = self.won[message.leader_id.term]
            if control is None or control.history != won.sent_history or control.promised.term < message.leader_id.term:
                raise Violation(
                    "DurableBeforeSaid", f"{safekeeper.name} answers in a term that it has not adopted on disk"
                )
        elif isinstance(message, VoteResponse) and message.granted:
            if control is None or control.promised != message.leader_id:
                raise Violation("DurableBeforeSaid", f"{safekeeper.name} promises what is not on its disk")
            if message.flush_lsn > disk.durable_lsn:
                raise Violation("AckImpliesFlushed", f"{safekeeper.name} votes with WAL that is not durable")
        elif isinstance(message, Bootstrapped) and (control is None or control.cluster_id != message.cluster_id):
            raise Violation("DurableBeforeSaid", f"{safekeeper.name} confirms a membership that is not on its disk")

    def on_write(self, safekeeper: "SimSafekeeper", begin_lsn: Lsn, payload: bytes) -> None:
        """Same term and position, same bytes (LogMatching); and none between a vote and the next `Elected`."""
        assert safekeeper.acceptor is not None  # it has just written
        control = safekeeper.acceptor.control
        if safekeeper.acceptor.leader is None:
            raise Violation("VoteIsFinal", f"{safekeeper.name} writes WAL after its promise to {control.promised}")
        history, end_lsn = self.whole(control.history), begin_lsn + len(payload)
        for index in range(len(history) - 1, -1, -1):
            entry = history[index]
            part_end = history[index + 1].start_lsn if index + 1 < len(history) else end_lsn
            first, last = max(begin_lsn, entry.start_lsn), min(end_lsn, part_end)
            if first < last:
                self._compare(safekeeper.name, entry.term, first, payload[first - begin_lsn : last - begin_lsn])
            if entry.start_lsn <= begin_lsn:
                break

    def _compare(self, who: str, term: int, begin_lsn: Lsn, data: bytes | bytearray) -> None:
        known = self._terms.get(term)
        if known is None:
            raise Violation("LogMatching", f"{who} holds bytes of term {term}, which was not won")
        offset = begin_lsn - known.begin_lsn
        if offset < 0 or offset > len(known.data):
            raise Violation("LogMatching", f"{who} writes at {format_lsn(begin_lsn)} in term {term}, beside its log")
        shared = known.data[offset : offset + len(data)]
        if shared != data[: len(shared)]:
            raise Violation("LogMatching", f"{who} has other bytes in term {term} from {format_lsn(begin_lsn)} on")
        known.data += data[len(shared) :]

    def on_persist(self, safekeeper: "SimSafekeeper") -> None:
        """The control file was replaced: it makes sense, and one key is one membership."""
        control = safekeeper.disk.control
        assert control is not None  # it was just written
        try:
            check_history(control.history)
        except RemoteProtocolError as error:
            raise Violation("LogIsMonotonic", f"{safekeeper.name}: {error}") from error
        if control.membership is not None:
            # Not its property `key`, of which a planted bug leaves a part out.
            key = (control.cluster_id, (control.membership.author, control.membership.generation))
            if self._memberships.setdefault(key, control.membership) != control.membership:
                raise Violation("OneConfigPerGeneration", f"{safekeeper.name} has another membership for {key}")
        self.archive.on_persist(safekeeper)

    def on_new_incarnation(self, safekeeper: "SimSafekeeper", before: str) -> None:
        """A data folder is another one from now on, by its leader's decision: it must be an older copy of itself."""
        if before not in safekeeper.restored:
            raise Violation("OnlyOlderCopies", f"{safekeeper.name} gives up a data folder that is not an older copy")
        self.world.counts.count("older folders noticed")

    def on_moved(self, safekeeper: "SimSafekeeper") -> None:
        """A safekeeper belongs to another cluster than before: what it still has of this one's log counts."""
        control = safekeeper.disk.control
        assert control is not None  # it was just written
        if self.log_in(safekeeper.disk) is None:
            self._gone.add((safekeeper.id, control.incarnation))
        self.check_committed_is_held()

    def on_left(self, safekeeper: "SimSafekeeper", *, is_undone: bool) -> None:
        """A safekeeper belongs to this cluster no more, because of a rebootstrap, or of the undo of one."""
        self.readers.on_death(safekeeper)
        if is_undone and self.committed and not self.is_given_up and self.membership is not None:
            left = [identity for identity in self.membership.identities() if self._folder(identity) is not None]
            if not quorums.can_elect(self.membership, left):
                raise Violation(
                    "LeaderCompleteness",
                    f"an undo gives up what the new cluster has committed, up to {format_lsn(self.committed_lsn)}",
                )

    def on_cut(self, safekeeper: "SimSafekeeper") -> None:
        """WAL was cut: what is committed must still be on a quorum."""
        self.check_committed_is_held()

    def on_start(self, safekeeper: "SimSafekeeper") -> None:
        """A safekeeper starts."""
        self.readers.on_death(safekeeper)

    def on_crash(self, safekeeper: "SimSafekeeper") -> None:
        """A crash must not take what is committed."""
        self.readers.on_death(safekeeper)
        self.check_committed_is_held()

    def on_wipe(self, safekeeper: "SimSafekeeper") -> None:
        """The disk is gone, by the fault's own hand."""

    def log_of(self, history: TermHistory, begin_lsn: Lsn, end_lsn: Lsn) -> bytes:
        """Return the bytes [begin_lsn, end_lsn) of the log with this history, fewer if no member holds all of them."""
        pieces = []
        for index, entry in enumerate(history):
            known = self._terms.get(entry.term)
            if known is None:
                # A term of another cluster: none of its bytes are this log's.
                break
            last = min(end_lsn, history[index + 1].start_lsn) if index + 1 < len(history) else end_lsn
            first = max(begin_lsn, entry.start_lsn)
            if first < last:
                piece = known.data[first - known.begin_lsn : last - known.begin_lsn]
                pieces.append(bytes(piece))
                if len(piece) < last - first:
                    break
        return b"".join(pieces)

    def _require_quorum(self, invariant: str, won: Won, lsn: Lsn, why: str) -> None:
        """No leader may be elected without one that holds the term's log up to `lsn` on its disk."""
        for members, sizes in quorums.halves(won.membership):
            folders = [(member.id, self._folder(member.identity)) for member in members]
            without = [i for i, disk in folders if disk is not None and not self._holds(disk, won, lsn)]
            if len(without) >= quorums.elect_size(members, sizes):
                raise Violation(
                    invariant,
                    f"safekeepers {without} lack the WAL up to {format_lsn(lsn)} of {won.leader_id} on their disks: "
                    f"{why}",
                )

    def may_be_given_up(self, history: TermHistory, lsn: Lsn) -> bool:
        """Return whether a log with this history may have other bytes from `lsn` on than are committed now.

        A log of a later term may, too, if it goes on without the term that gave WAL up: that one reached no member.
        """
        terms = {entry.term for entry in self.whole(history)}
        return any(given_up_lsn <= lsn and term not in terms for term, given_up_lsn in self.given_up.items())

    def is_foreign(self, control: ControlState | None) -> bool:
        """Return whether this is a log of another cluster."""
        if control is None or not control.cluster_id:
            return False
        return self.world.truths.of(control.cluster_id) is not self

    def members(self) -> "list[SimSafekeeper]":
        """Return the members whose disks are not lost, put away, replaced by older copies, or of another cluster."""
        if self.membership is None:
            return []
        members = []
        for safekeeper_id, incarnation in sorted(self.membership.identities()):
            safekeeper = self.world.safekeepers[safekeeper_id]
            control = safekeeper.disk.control
            if control is None or self.is_foreign(control) or incarnation in safekeeper.restored:
                continue
            if control.incarnation == incarnation:
                members.append(safekeeper)
        return members

    def _folder(self, identity: Identity) -> "ModelDisk | Log | None":
        """Return what a data folder has of this log, also one that is put away and may come back; None if it is lost.

        One that belongs to another cluster has what it keeps aside: an undo may bring that back.
        """
        safekeeper_id, incarnation = identity
        disk = self.world.safekeepers[safekeeper_id].folder_of(incarnation)
        if disk is None:
            return None
        return self.log_in(disk) or (None if identity in self._gone else Log(None))

    def log_in(self, disk: "ModelDisk") -> "ModelDisk | Log | None":
        """Return this cluster's log in a folder, wherever it lies there; None if it will never be used again."""
        control = disk.control
        if control is None or not self.is_foreign(control):
            if control is not None and control.restore_from in disk.aside:
                return Log(control, *disk.aside[control.restore_from])
            is_pending = control is not None and control.set_aside and not control.restore_from
            return Log(control) if is_pending else disk
        kept, label = control.replaced, control.replaced_wal
        if kept is None or self.is_foreign(kept):
            return None
        if label in disk.aside:
            return Log(kept, *disk.aside[label])
        if control.set_aside and control.set_aside_as == label:
            return Log(kept, disk.begin_lsn, disk.wal, disk.durable_lsn)
        return Log(kept)

    def _holds(self, disk: "ModelDisk | Log", won: Won, lsn: Lsn) -> bool:
        control = disk.control
        if control is None or not control.history or control.base_lsn is not None:
            return False
        end_lsn = disk.durable_lsn
        if control.truncate_to is not None:
            end_lsn = min(end_lsn, control.truncate_to)
        if end_lsn < lsn:
            return False
        if control.history == won.sent_history:
            return True
        parted = divergence(self.whole(control.history), end_lsn, won.history)
        return parted is not None and parted.lsn >= lsn

    def check_committed_is_held(self) -> None:
        """The committed bytes are on the disks of so many that no quorum can be formed without them."""
        if not self.committed:
            return
        # The last record may be incomplete, and then a fork may replace it on one disk before it does on another.
        end_lsn = self.committed_lsn
        checked_lsn = end_lsn
        without = self._could_win_without(checked_lsn)
        if without:
            checked_lsn = last_complete_end(self.committed, self.base_lsn, end_lsn)
            without = self._could_win_without(checked_lsn)
            if without:
                raise Violation(
                    "CommittedNotOverwritten",
                    f"safekeepers {without} lack the committed WAL up to {format_lsn(checked_lsn)} on their disks",
                )

    def _could_win_without(self, lsn: Lsn) -> list[int]:
        """Return the members without the committed bytes up to `lsn`, if they are an elect quorum; else []."""
        assert self.membership is not None  # something is committed
        without = {i for i in self.membership.identities() if not self._has_committed(i, lsn)}
        ids = sorted(safekeeper_id for safekeeper_id, _ in without)
        return ids if quorums.can_elect(self.membership, without) else []

    def _has_committed(self, identity: Identity, lsn: Lsn) -> bool:
        """Compare the bytes themselves, the last few KiB of them each time."""
        disk = self._folder(identity)
        if disk is None:
            return True
        if disk.durable_lsn < lsn:
            return False
        if disk.begin_lsn >= lsn:
            return True  # It had it, and has removed it; what follows was given up.
        begin_lsn = max(self.base_lsn, disk.begin_lsn, lsn - 8192)
        return (
            disk.wal[begin_lsn - disk.begin_lsn : lsn - disk.begin_lsn]
            == self.committed[begin_lsn - self.base_lsn : lsn - self.base_lsn]
        )

    def check_logs(self) -> None:
        """Every byte on every disk is the one that its term has there."""
        for safekeeper in self.world.safekeepers.values():
            disk = self.log_in(safekeeper.disk)
            control = disk.control if disk is not None else None
            if disk is None or control is None or not disk.begin_lsn or control.base_lsn is not None:
                continue
            end_lsn = disk.durable_lsn
            if control.truncate_to is not None:
                end_lsn = min(end_lsn, control.truncate_to)
            log = self.log_of(self.whole(control.history), disk.begin_lsn, end_lsn)
            held = disk.wal[: end_lsn - disk.begin_lsn]
            if log != held:
                at = next((i for i, (a, b) in enumerate(zip(log, held, strict=False)) if a != b), len(log))
                raise Violation(
                    "LogMatching",
                    f"{safekeeper.name} holds other bytes at {format_lsn(disk.begin_lsn + at)} than by its history",
                )
