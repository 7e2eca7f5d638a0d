"""One term in which this proposer leads: the members' positions, and the quorum's.

Theory of operation. Every member of the term has a `Progress` (progress.py). It begins with `Elected`; the answer shows
that the member's log is now a prefix of the term's log (S5) and where it ends, and from there on it is sent WAL
(replication.py). `AppendResponse` returns its positions; from them follow commit_lsn (S4) and the positions that are
reported to PostgreSQL (S1). liveness.py records which members answer.

A member keeps its flush position when its connection is closed: durable WAL stays durable. WAL that it had only
received does not count then. A data folder with another incarnation counts as empty (S8).

Every method is an event, or part of one: it appends actions to the list `out`, which its owner reads.
`check` holds after each event, in production too.
"""

from collections.abc import Callable, Mapping
from typing import Any

from safekeeper.base.errors import InvariantViolation, RemoteProtocolError
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.consensus.commitment import QuorumRule
from safekeeper.consensus.folder_state import FolderState, KnownFolders
from safekeeper.consensus.membership import Identity
from safekeeper.consensus.messages import (
    AcceptorMessage,
    AppendResponse,
    ArchiveAssignment,
    ArchiveReport,
    Elected,
    FolderStates,
    PullEnded,
    ReadResponse,
    Reconfigure,
    Reconfigured,
    Standby,
)
from walproxy.proposer.actions import Action, Disconnect, Level, Note, ReportStatus, SendMessage
from walproxy.proposer.archiving import Archiving
from walproxy.proposer.liveness import Timing
from walproxy.proposer.member_change import (
    ChangeFacts,
    Target,
    absence_reason,
    describe_change,
    describe_wish,
    halves_of,
    is_settled,
    next_membership,
    refusal_of,
    replacement_of_lost,
)
from walproxy.proposer.progress import Progress, State
from walproxy.proposer.replication import Replication
from walproxy.proposer.standbys import Standbys

_DISCONNECTED = State.DISCONNECTED  # Looked up once: it is compared for each answer.


class Leadership(Replication):
    """A term that this proposer has won.

    Attributes:
        donor: the safekeeper whose log is the log of the term below its start.
        is_tail: whether this is a tail term: it has no primary, and makes known where the log ends (step 12).
        write_lsn: received by a quorum, in this term; 0 while commit_lsn is.
        archiving: the archiver, and the archive's progress.
        wanted: the members and their quorums at the end of the change under way; the present ones without a change.
        cancelled: those that an operator wanted before the last change was cancelled, None if none was.
        is_forced: whether that change goes on although too few of them follow.
    """

    def __init__(
        self,
        elected: Elected,
        donor: int,
        standbys: Standbys,
        timing: Timing,
        now: float,
        out: list[Action],
        addresses: Mapping[int, str] | None = None,
        *,
        is_tail: bool = False,
    ) -> None:
        super().__init__(elected, timing, now, out, addresses)
        self.donor = donor
        self.is_tail = is_tail
        self.write_lsn: Lsn = 0
        self.archiving = Archiving(elected.segment_size, now)
        self._standbys = standbys
        self._voters = elected.membership.identities()
        # A joint membership is that of a change which an earlier leader has begun.
        self.wanted = halves_of(elected.membership)[-1]
        self.cancelled: Target | None = None
        self.is_forced = False
        # The voters that have adopted the term, and the members with readers, as `_group` has found them last.
        self._counted: tuple[Progress, ...] = ()
        self._with_readers: tuple[tuple[int, Progress], ...] = ()
        self._is_regrouped = False  # since the quorum's positions were computed: a member may have lower ones
        self._reported: tuple[Lsn, Lsn] = (0, 0)
        self._checked: tuple[Lsn, Lsn] = (0, 0)
        self._handlers: dict[type, Callable[[int, Any, float], None]] = {
            AppendResponse: self.on_append_response,
            Reconfigured: self.on_reconfigured,
            ArchiveReport: self.on_archive_report,
            ReadResponse: self.on_read_response,
            PullEnded: self.on_pull_ended,
        }

    def message(self, safekeeper_id: int, message: AcceptorMessage, now: float) -> None:
        """Handle a message about this term.

        Raises:
            RemoteProtocolError: the message is invalid.
        """
        self._handlers[type(message)](safekeeper_id, message, now)

    def check(self) -> None:
        """Check the positions of this term after an event.

        Raises:
            InvariantViolation: a position has gone back, or two are not in order. Stop the process.
        """
        self._check_quorum()
        received_lsn = self.received_lsn
        for progress in self.members.values():
            progress.check(received_lsn)

    def check_answer(self, progress: Progress) -> None:
        """Check what an answer of this member can have changed: the others are as they were at the last check."""
        self._check_quorum()
        progress.check(self.received_lsn)

    def _check_quorum(self) -> None:
        commit_lsn, truncate_lsn, received_lsn = self.commit_lsn, self.truncate_lsn, self.received_lsn
        checked_commit_lsn, checked_truncate_lsn = self._checked
        if commit_lsn < checked_commit_lsn or truncate_lsn < checked_truncate_lsn:
            raise InvariantViolation(
                f"commit_lsn {format_lsn(commit_lsn)} or truncate_lsn {format_lsn(truncate_lsn)} has gone back from "
                f"{format_lsn(checked_commit_lsn)} or {format_lsn(checked_truncate_lsn)} in one term"
            )
        if not truncate_lsn <= commit_lsn <= self.write_lsn <= received_lsn:
            raise InvariantViolation(
                f"truncate_lsn {format_lsn(truncate_lsn)}, commit_lsn {format_lsn(commit_lsn)}, write_lsn "
                f"{format_lsn(self.write_lsn)} and received_lsn {format_lsn(received_lsn)} are not in order"
            )
        if 0 < commit_lsn < self.term_start_lsn:
            raise InvariantViolation(
                f"commit_lsn {format_lsn(commit_lsn)} is below the start of term {self.leader_id.term}, "
                f"{format_lsn(self.term_start_lsn)}"
            )
        self._checked = commit_lsn, truncate_lsn

    # Connections of members.

    def has_sent(self, identity: Identity) -> bool:
        """Return whether a safekeeper was sent `Elected` on its present connection.

        Another greeting on it answers an earlier one. If `Elected` were sent again, with the oldest WAL of that moment,
        the answers to the two could not be told apart.
        """
        progress = self.members.get(identity[0])
        return progress is not None and progress.is_connected and progress.identity == identity

    def on_greeting(self, identity: Identity, now: float) -> None:
        """Send `Elected` to a safekeeper that has greeted. WAL that is durable in the same folder still counts."""
        safekeeper_id = identity[0]
        progress = Progress.of(identity, identity in self._voters, self.members.get(safekeeper_id))
        self.members[safekeeper_id] = progress
        self._group()
        self._update_write()  # Another folder counts as empty, and what the same one had only received may be lost.
        self._answered_until = now
        self._send_elected(safekeeper_id, progress, now)

    def disconnected(self, safekeeper_id: int, now: float) -> None:
        """Handle a closed connection. Members that were sent WAL of this safekeeper are sent that of another one."""
        progress = self.members.get(safekeeper_id)
        if progress is None:
            return
        progress.become_disconnected()
        self._answered_until = now
        self.archiving.disconnected(safekeeper_id, now)
        self._update_write()
        for other_id, other in self.members.items():
            if other.fetch is not None and other.fetch.source == safekeeper_id:
                other.end_fetch()
                self._send_wal(other_id, other, now)

    def has_lost_its_start(self) -> bool:
        """Return whether the WAL below the term's start can no longer reach a quorum in this term (step 6)."""
        if self.commit_lsn:
            return False
        holders = [p for p in self.members.values() if p.adopted and p.flush_lsn >= self.term_start_lsn]
        donor = self.members.get(self.donor)
        donor_may_come = donor is not None and donor.is_connected
        return not donor_may_come and not any(holder.is_connected for holder in holders)

    # Positions of members.

    def on_append_response(self, safekeeper_id: int, response: AppendResponse, now: float) -> None:
        """Record the positions of a member; send it WAL, and report the quorum's positions.

        Raises:
            RemoteProtocolError: positions that no acceptor of this term can have.
        """
        progress = self.members.get(safekeeper_id)
        if progress is None or progress.state is _DISCONNECTED or response.leader_id != self.leader_id:
            return
        write_lsn, flush_lsn = response.write_lsn, response.flush_lsn
        if not flush_lsn <= write_lsn <= max(self.received_lsn, self.term_start_lsn):
            raise RemoteProtocolError(
                f"write position {format_lsn(write_lsn)} and flush position {format_lsn(flush_lsn)} cannot be: "
                f"the log ends at {format_lsn(self.received_lsn)}"
            )
        is_first = not progress.follows
        if is_first:
            if write_lsn < progress.skipped_to_lsn:
                return  # Sent before the member skipped WAL: these positions are of a log that is given up.
            progress.become_streaming(write_lsn)
            if self.archiving.archiver:
                self._out.append(self._archive_assignment(safekeeper_id))
        if write_lsn > progress.sent_lsn:
            # That is the end of its log, or the position that it skipped to.
            progress.sent_lsn = write_lsn
            if progress.pull is not None:
                progress.pull = progress.pull._replace(moved_at=now)
        progress.last_response_at = now
        progress.acked_sequence = response.sequence
        progress.waiting_since = None if write_lsn >= progress.sent_lsn else now
        is_lower = write_lsn < progress.write_lsn or flush_lsn < progress.flush_lsn
        if is_first or is_lower or response.has_readers is not progress.has_readers:
            progress.has_readers = response.has_readers
            self._group()
        progress.write_lsn = write_lsn
        progress.flush_lsn = flush_lsn
        if progress.refusal or progress.is_doubted:
            self._trust_again(safekeeper_id, progress)
        self._after_answer(safekeeper_id, progress, now)
        if is_first and not response.has_readers:
            # This may be reported, after which the window may shrink: behind the WAL that was sent from it. A member
            # that must skip WAL has been told so meanwhile, and no longer follows: none streams from it either.
            self._count_standbys(safekeeper_id, ())
        if progress.has_readers:
            # Its readers may be new, or the commit may have been advanced between `Elected` and this answer.
            self._send_commit(safekeeper_id, progress, now)

    def _after_answer(self, safekeeper_id: int, progress: Progress, now: float) -> None:
        """Advance the quorum's positions by those of a member that has answered, send it WAL, and report.

        The positions are reported to PostgreSQL, and commit_lsn to the members with readers.
        """
        # Positions above the quorum's advance them only if a quorum's worth of members has such: of three acks only the
        # second one costs something (with the shortcut in _update_write: 45 us to 34 us of CPU time for one receive,
        # three sends, three acks when only the third one was without cost).
        commit_lsn, write_lsn = self.commit_lsn, self.write_lsn
        moves = has_advanced = False
        if progress.flush_lsn > commit_lsn or progress.write_lsn > write_lsn:
            have_flushed = have_written = 0
            for member in self._counted:
                if member.flush_lsn > commit_lsn:
                    have_flushed += 1
                if member.write_lsn > write_lsn:
                    have_written += 1
            needed = self.rule.members_needed
            # Rare events may have lowered write_lsn, which is not reported by itself.
            if (
                have_flushed >= needed
                or have_written >= needed
                or self._is_regrouped
                or self._reported != (write_lsn, commit_lsn)
            ):
                moves = True
                has_advanced = self._advance()
        if progress.sent_lsn < self.received_lsn:
            # After the positions, which the append carries; before the report, after which the window may shrink.
            self._send_wal(safekeeper_id, progress, now)
        if moves:
            self._report(has_advanced, now)

    def _report(self, has_advanced: bool, now: float) -> None:
        """Report the quorum's positions to PostgreSQL if they have changed, and a new commit_lsn to the readers."""
        write_lsn, commit_lsn = reported = self.write_lsn, self.commit_lsn
        if self.streaming and reported != self._reported:
            self._reported = reported
            self._out.append(ReportStatus(write_lsn, commit_lsn, self._standbys.apply_lsn(commit_lsn)))
        if has_advanced:
            for reader_id, reader in self._with_readers:
                self._send_commit(reader_id, reader, now)

    def _trust_again(self, safekeeper_id: int, progress: Progress) -> None:
        """Let a member take part again if an append has succeeded on this connection, or if it lacks nothing."""
        if progress.write_lsn <= progress.adopted_lsn and progress.write_lsn < self.received_lsn:
            return
        if progress.refusal:
            self._out.append(Note(Level.INFO, f"safekeeper {safekeeper_id} accepts WAL again"))
        progress.refusal, progress.is_doubted = "", False

    def _advance(self) -> bool:
        """Recompute the quorum's positions; return whether commit_lsn has advanced."""
        self._is_regrouped = False
        flush_lsns: dict[Identity, Lsn] = {}
        all_is_flushed = True
        for progress in self._counted:
            flush_lsns[progress.identity] = flush_lsn = progress.flush_lsn
            if progress.write_lsn != flush_lsn:
                all_is_flushed = False
        committed_lsn = self.rule.lsn(flush_lsns)
        advanced = committed_lsn > self.commit_lsn
        if advanced:
            self.commit_lsn = committed_lsn
        if all_is_flushed and self.commit_lsn == committed_lsn:
            self.write_lsn = committed_lsn  # The usual case on a quick disk.
        else:
            self._update_write()
        return advanced

    def _group(self) -> None:
        """Find the members whose positions count in this term (S4, S8), and those with readers."""
        self._is_regrouped = True
        self._counted = tuple(p for p in self.members.values() if p.voter and p.adopted)
        self._with_readers = tuple((i, p) for i, p in self.members.items() if p.has_readers)

    def update_truncate(self) -> None:
        """Recompute truncate_lsn: until the last member has adopted this term, a fork may still cut WAL of its log.

        It follows commit_lsn at each tick, and when the window is to be trimmed.
        """
        flush_lsns = {p.identity: p.flush_lsn for p in self._counted}
        if self._voters <= flush_lsns.keys():
            self.truncate_lsn = max(self.truncate_lsn, min(self.commit_lsn, *flush_lsns.values()))

    def _update_write(self) -> None:
        """Recompute the end of the WAL that a quorum has received: within S4, and never below commit_lsn."""
        if not self.commit_lsn:
            self.write_lsn = 0
            return
        self.write_lsn = max(self.commit_lsn, self.rule.lsn({p.identity: p.write_lsn for p in self._counted}))

    def status(self) -> ReportStatus:
        """Return the positions to report to PostgreSQL (S1): 0 before it is known to have this log's bytes (S10)."""
        if not self.streaming:
            return ReportStatus(0, 0, 0)
        return ReportStatus(self.write_lsn, self.commit_lsn, self._standbys.apply_lsn(self.commit_lsn))

    def set_streaming(self, streaming: bool) -> None:
        """Record whether the primary was checked and streams; report the positions that it may receive from now on."""
        self.streaming = streaming
        self._reported = (self.write_lsn, self.commit_lsn)
        self._out.append(self.status())

    def on_standby_feedback(self, safekeeper_id: int, standbys: tuple[Standby, ...]) -> None:
        """Handle the report of a safekeeper about its standbys; before its adoption they may be of another log."""
        progress = self.members.get(safekeeper_id)
        if progress is not None and progress.follows:
            self._count_standbys(safekeeper_id, standbys)

    def _count_standbys(self, safekeeper_id: int, standbys: tuple[Standby, ...]) -> None:
        before_lsn = self._standbys.apply_lsn(self.commit_lsn)
        self._standbys.on_report(safekeeper_id, standbys)
        self.report_apply(before_lsn)

    def report_apply(self, before_lsn: Lsn) -> None:
        """Report the apply position to PostgreSQL if it differs from `before_lsn`, also if it has gone back."""
        if self.streaming and self._standbys.apply_lsn(self.commit_lsn) != before_lsn:
            self._reported = (self.write_lsn, self.commit_lsn)
            self._out.append(self.status())

    def on_storage_full(self, safekeeper_id: int, reason: str) -> None:
        """Handle a member that refuses WAL because its disk is full: it takes part again once an append has succeeded.

        Its connection is closed, and on the next one it adopts the term and answers heartbeats. That alone must not
        count, or a majority of full disks would appear as a quorum once a second.
        """
        progress = self.members.get(safekeeper_id)
        if progress is None or progress.refusal == reason:
            return
        progress.refusal = reason
        self._out.append(Note(Level.WARNING, f"safekeeper {safekeeper_id} refuses WAL: {reason}"))

    # The members.

    def on_reconfigured(self, safekeeper_id: int, message: Reconfigured, now: float) -> None:
        """Handle a member that has the membership on disk; decide for the next one if it is time."""
        progress = self.members.get(safekeeper_id)
        if progress is None or not progress.is_connected or message.leader_id != self.leader_id:
            return
        progress.waiting_since = None if progress.write_lsn >= progress.sent_lsn else now
        progress.generation = max(progress.generation, message.generation)
        self.continue_change(now)

    def refusal_of_change(self, wanted: Target, force: bool) -> str:
        """Return why the members cannot be changed to `wanted`, empty if they can be."""
        return refusal_of(self.membership, self.wanted, wanted) or (
            "" if force else absence_reason(self.membership, wanted, self._change_facts())
        )

    def begin_change(self, wanted: Target, force: bool, now: float) -> None:
        """Change the members to `wanted` from now on, which `refusal_of_change` does not refuse."""
        if (wanted, force) != (self.wanted, self.is_forced):
            if wanted != self.wanted:
                self.cancelled = self.wanted if wanted == halves_of(self.membership)[0] else None
            self.wanted, self.is_forced = wanted, force
            self._out.append(Note(Level.INFO, describe_wish(self.membership, wanted)))
        self.continue_change(now)

    def replace_lost(self, now: float) -> None:
        """Replace a member by a learner with its id, without an operator: never while that would make commits wait."""
        if not is_settled(self.membership, self.wanted):
            return
        learners = [p.identity for p in self.members.values() if p.follows and not p.voter]
        wanted = replacement_of_lost(self.membership, learners)
        if wanted is not None and wanted != self.cancelled and not self.refusal_of_change(wanted, force=False):
            self.begin_change(wanted, force=False, now=now)

    def forget(self, safekeeper_id: int, now: float) -> None:
        """Forget a safekeeper that is no member."""
        self.disconnected(safekeeper_id, now)
        if self.members.pop(safekeeper_id, None) is not None:
            self._group()

    # What is known of the members' data folders (S8e).

    def folder_states(self) -> list[FolderState]:
        """Return what the data folders of the members have on disk, by their answers in this term."""
        term = self.leader_id.term
        return [FolderState(*p.identity, term=term, flush_lsn=p.flush_lsn) for p in self._counted]

    def send_folders(self, known: KnownFolders) -> None:
        """Tell every member that follows what is known of the members' data folders, if it was not told yet."""
        folders = tuple(known[identity] for identity in sorted(self._voters & known.keys()))
        if not folders:
            return
        message = FolderStates(self.elected.cluster_id, folders)
        for safekeeper_id, progress in self.members.items():
            if progress.follows and progress.sent_folders != message:
                progress.sent_folders = message
                self._out.append(SendMessage(safekeeper_id, message))

    def continue_change(self, now: float) -> None:
        """Decide for the next membership of a change, if that is safe now (member_change.py)."""
        membership = self.membership
        if is_settled(membership, self.wanted):
            return
        following = next_membership(membership, self.wanted, self._change_facts())
        if following is None:
            return
        self.membership = following
        self.rule = QuorumRule(following, self.term_start_lsn)
        self._voters = following.identities()
        self._answered_until = now
        self._last_header = None
        message = Reconfigure(self.leader_id, following)
        for safekeeper_id, progress in self.members.items():
            progress.voter = progress.identity in self._voters
            if progress.is_connected:
                # In order behind `Elected`, if that is not answered yet, and before appends of the new generation.
                if progress.waiting_since is None:
                    progress.waiting_since = now
                self._out.append(SendMessage(safekeeper_id, message))
        self._group()
        self._out.append(Note(Level.INFO, describe_change(following)))
        # More may be committed under this one, e.g. with a smaller quorum: nothing else would tell so before an answer.
        has_advanced = self._advance()
        self._report(has_advanced, now)

    def _change_facts(self) -> ChangeFacts:
        generation = self.membership.generation
        members = self.members.values()
        following = [p for p in members if p.follows and not (p.refusal or p.is_doubted)]
        return ChangeFacts(
            frozenset(p.identity for p in members if p.generation == generation),
            self.rule.lsn({p.identity: p.flush_lsn for p in self._counted}),
            self.commit_lsn,
            frozenset(p.identity for p in following),
            frozenset(
                p.identity
                for p in following
                if p.sent_lsn >= self.window_begin_lsn and p.flush_lsn >= self.truncate_lsn
            ),
            self.is_forced,
        )

    # The archive.

    def on_archive_report(self, safekeeper_id: int, report: ArchiveReport, now: float) -> None:
        """Handle the report of a safekeeper about the WAL that it retains, and about its archive."""
        progress = self.members.get(safekeeper_id)
        if progress is None or not progress.follows:
            return
        progress.wal_begin_lsn = report.wal_begin_lsn
        archiving = self.archiving
        before = (archiving.archived_lsn, archiving.archive_id)
        stranger = archiving.on_report(safekeeper_id, report, now)
        if stranger:
            self._out.append(Note(Level.ERROR, stranger))
        if (archiving.archived_lsn, archiving.archive_id) != before:
            self._send_archive_assignments()

    def _send_archive_assignments(self) -> None:
        for safekeeper_id, progress in self.members.items():
            if progress.follows:
                self._out.append(self._archive_assignment(safekeeper_id))

    def _archive_assignment(self, safekeeper_id: int) -> SendMessage:
        archiving = self.archiving
        assignment = ArchiveAssignment(self.leader_id, archiving.archiver, archiving.archived_lsn, archiving.archive_id)
        return SendMessage(safekeeper_id, assignment)

    # Time.

    def tick(self, now: float) -> None:
        """Send heartbeats, continue to send WAL, disconnect members that do not answer, and choose the archiver."""
        self.sequence += 1
        self.update_truncate()
        self.continue_change(now)
        news = self.archiving.choose(self.commit_lsn, now)
        if news:
            self._out.append(Note(Level.INFO, news))
            self._send_archive_assignments()
        for safekeeper_id, progress in self.members.items():
            if not progress.is_connected:
                continue
            waited_s = now - progress.waiting_since if progress.waiting_since is not None else 0.0
            if waited_s > self._timing.response_timeout_s:
                self._out.append(Disconnect(safekeeper_id, f"no reply for {waited_s:.1f} s"))
                continue
            if not progress.follows:
                continue
            self._send_wal(safekeeper_id, progress, now)
            self.watch_pull(safekeeper_id, progress, now)
            if now - progress.last_sent_at >= self._timing.heartbeat_interval_s:
                self._heartbeat(safekeeper_id, progress, now)
