"""One term in which this proposer leads: feeding the members, and knowing what a quorum holds.

Theory of operation. Every member of the term has a `Progress`. It begins with `Elected`; the answer says that the
member's log is now a prefix of the term's log (S5) and where it ends, and from there on it is fed: out of the window if
the window still has those bytes, else out of another member's log through `ReadRequest`. Positions come back in
`AppendResponse`; from them follow commit_lsn (S4) and what PostgreSQL is told (S1).

Commits reach whoever reads at a member as soon as they reach the proxy: what has news for readers is sent at once, with
the next WAL if there is any, else by itself (`_tell_commit`). Otherwise the last commit before a silence would wait for
a heartbeat, and remote_apply for the standby that waits for it.

A member whose log ends below the oldest WAL that any other one keeps cannot be fed: it skips ahead, by an `Elected`
whose base_lsn lies there, if what it skips is known to be committed (S6). That WAL is in the archive.

A member keeps its flush position when its connection breaks: what is on disk stays on disk. What it had only received
does not count then. A folder that comes back with another incarnation counts as nothing (S8).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from safekeeper.base.errors import InvariantViolation, RemoteProtocolError
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.consensus.commitment import quorum_lsn
from safekeeper.consensus.membership import Membership
from safekeeper.consensus.messages import (
    AppendRequest,
    AppendResponse,
    ArchiveAssignment,
    ArchiveReport,
    Elected,
    ReadRequest,
    ReadResponse,
    Standby,
)
from walproxy.proposer.actions import Action, Disconnect, Level, Note, ReportStatus, SendAppend, SendMessage
from walproxy.proposer.archiving import Archiving
from walproxy.proposer.standbys import Standbys

APPEND_BYTES_MAX = 1 << 20
IN_FLIGHT_BYTES_MAX = 8 << 20
# A member gets the third append when it has answered the first, or when that append is full: what comes meanwhile goes
# together. Measured with a millisecond each way to the members, on two shared cores, pgbench with 32 clients: 1.16 of
# the transactions for two thirds of the CPU time; with one append instead of two 1.12, and a commit that comes just
# behind one waits for a whole way there and back instead of a half.
READ_BYTES = 256 << 10
# Reads go on until they are so far ahead of their rate: the shell's ticks, which let them go on, come less often.
READ_AHEAD_S = 0.1


@dataclass(frozen=True, slots=True)
class Timing:
    """The waits of a proposer, in seconds.

    Attributes:
        refused_wait_min_s, refused_wait_max_s: how long a host whose bytes were refused waits for its next election,
            the first time and at most.
    """

    heartbeat_interval_s: float = 0.25
    heartbeat_timeout_s: float = 1.0
    response_timeout_s: float = 5.0
    vote_timeout_s: float = 2.0
    vote_grace_s: float = 0.1
    verify_timeout_s: float = 60.0
    retry_interval_s: float = 0.2
    refused_wait_min_s: float = 10.0
    refused_wait_max_s: float = 300.0
    catchup_bytes_per_s: int = 64 << 20


@dataclass(slots=True)
class Progress:
    """How far one safekeeper is in this term.

    Attributes:
        voter: whether it counts; a learner is fed and does not.
        connected: whether `Elected` was sent on a connection that still stands.
        adopted: whether it has adopted the term's history, on any connection.
        answered: whether it has answered `Elected` on this connection: only then is it fed.
        sent_lsn, write_lsn, flush_lsn: sent to it, received by it, on its disk.
        last_begin_lsn: where the last append that it was sent out of the window begins.
        wal_begin_lsn: the first byte of WAL that it keeps, as it has said in this term; 0 before.
        skipped_to_lsn: where it last skipped to on this connection; 0 if it did not.
        told_commit_lsn: the commit_lsn that the last word to it carried.
        acked_sequence: the newest word of ours that it has heard.
        waiting_since: when the oldest word without an answer was sent, None if all are answered.
        read_request, read_end_lsn: the outstanding read of its missing WAL: (request id, safekeeper asked), and the
            end of the range asked for.
        read_allowed_at: when the rate of reads for it allows the next one, so that the hot path does not feel them.
        has_readers: it streams to others, so it wants to hear of commits at once.
        adopted_lsn: the end of its log in its answer to `Elected` on this connection.
        refuses: why it has refused WAL, or `Elected`; empty if it has not, or if an append has succeeded since.
        is_doubted: a connection to it broke with WAL on its way, and no append has succeeded since: a refusal may have
            been lost with that connection.
    """

    voter: bool
    connected: bool = True
    adopted: bool = False
    answered: bool = False
    sent_lsn: Lsn = 0
    last_begin_lsn: Lsn = 0
    write_lsn: Lsn = 0
    flush_lsn: Lsn = 0
    wal_begin_lsn: Lsn = 0
    skipped_to_lsn: Lsn = 0
    told_commit_lsn: Lsn = 0
    acked_sequence: int = -1
    last_sent_at: float = 0.0
    last_response_at: float | None = None
    waiting_since: float | None = None
    read_request: tuple[int, int] | None = None
    read_end_lsn: Lsn = 0
    read_allowed_at: float = 0.0
    has_readers: bool = False
    adopted_lsn: Lsn = 0
    refuses: str = ""
    is_doubted: bool = False


class Leadership:
    """A term that was won.

    Attributes:
        elected: what every member is told first: node id, history, membership.
        donor: the safekeeper whose log is the term's log below its start.
        received_lsn: end of the WAL that came from the primary, or of the donor's log.
        window_begin_lsn: the oldest byte that the window still holds.
        commit_lsn: on a quorum, in this term; 0 until the term's start is (S4).
        write_lsn: received by a quorum, in this term; 0 until then as well.
        truncate_lsn: on every member, in this term; 0 until all of them have adopted it. What the votes say of it is of
            other logs: a fork may have cut one that has not heard of it yet (S9).
        sequence: number of the last word sent.
        streaming: whether the primary streams, and its bytes were found to be ours (S10).
        archiving: who archives.
    """

    def __init__(self, elected: Elected, donor: int, standbys: Standbys, timing: Timing, now: float) -> None:
        self.elected = elected
        self.leader_id = elected.leader_id
        self.membership: Membership = elected.membership
        self.term_start_lsn = elected.history[-1].start_lsn
        self.tli = elected.history[-1].tli
        self.donor = donor
        self.received_lsn = self.term_start_lsn
        self.window_begin_lsn = self.term_start_lsn
        self.commit_lsn: Lsn = 0
        self.write_lsn: Lsn = 0
        self.truncate_lsn: Lsn = 0
        self.sequence = 0
        self.streaming = False
        self.members: dict[int, Progress] = {}
        self.archiving = Archiving(elected.segment_size, now)
        self._standbys = standbys
        self._timing = timing
        self._began_at = now
        self._request_id = 0
        self._told: tuple[Lsn, Lsn] = (0, 0)

    # ------------------------------------------------------------------ members come and go

    def welcome(self, safekeeper_id: int, voter: bool, now: float) -> Iterator[Action]:
        """A safekeeper has greeted: tell it who leads. What the same folder had on disk before still counts."""
        known = self.members.get(safekeeper_id)
        progress = Progress(voter)
        if known is not None:
            progress.refuses, progress.is_doubted = known.refuses, known.is_doubted
        if known is not None and known.voter and voter:
            progress.adopted, progress.flush_lsn = known.adopted, known.flush_lsn
            progress.write_lsn = known.flush_lsn
        self.members[safekeeper_id] = progress
        yield self._tell_elected(safekeeper_id, progress, now)

    def _tell_elected(self, safekeeper_id: int, progress: Progress, now: float) -> SendMessage:
        """Tell a member who leads; it is fed when it has answered."""
        progress.answered = False
        progress.told_commit_lsn = self.commit_lsn
        progress.last_sent_at = progress.waiting_since = now
        base_lsn = self._oldest_wal(safekeeper_id, progress)
        elected = Elected(
            self.leader_id,
            self.elected.cluster_id,
            self.elected.system_id,
            self.elected.segment_size,
            self.elected.server_version,
            self.membership,
            self.elected.history,
            self.elected.tli_histories,
            base_lsn or self.elected.base_lsn,
            self.commit_lsn,
            max(base_lsn, self.elected.settled_lsn),
            self.elected.forgotten_term,
        )
        return SendMessage(safekeeper_id, elected)

    def _oldest_wal(self, safekeeper_id: int, progress: Progress) -> Lsn:
        """Return where the oldest WAL begins that another one keeps and can give to this member; 0 if none has said.

        Whoever is as far behind as this member has nothing for it: two of them must not wait for each other.

        What lies below is committed, whether or not this term knows it yet: a member that has adopted the term removes
        nothing else, and begins anew nowhere else.
        """
        others = [p for i, p in self.members.items() if i != safekeeper_id and p.answered and p.wal_begin_lsn]
        return min((p.wal_begin_lsn for p in others if p.flush_lsn > progress.sent_lsn), default=0)

    def parted(self, safekeeper_id: int, now: float) -> Iterator[Action]:
        """A connection is gone. Whoever was fed from it is fed from another."""
        progress = self.members.get(safekeeper_id)
        if progress is None:
            return
        if progress.answered and progress.write_lsn < progress.sent_lsn:
            progress.is_doubted = True
        progress.connected = progress.answered = False
        progress.write_lsn = progress.flush_lsn
        progress.waiting_since = progress.read_request = None
        self.archiving.parted(safekeeper_id, now)
        self._update_write()
        for other_id, other in self.members.items():
            if other.read_request is not None and other.read_request[1] == safekeeper_id:
                other.read_request = None
                yield from self._feed(other_id, other, now)

    def has_lost_its_start(self) -> bool:
        """Whether the WAL below the term's start can reach no quorum any more in this term (step 6)."""
        if self.commit_lsn:
            return False
        holders = [p for p in self.members.values() if p.adopted and p.flush_lsn >= self.term_start_lsn]
        donor = self.members.get(self.donor)
        donor_may_come = donor is not None and donor.connected
        return not donor_may_come and not any(holder.connected for holder in holders)

    # ------------------------------------------------------------------ positions come back

    def on_append_response(self, safekeeper_id: int, response: AppendResponse, now: float) -> Iterator[Action]:
        """Take a member's positions; feed it, and report what the quorum holds.

        Raises:
            RemoteProtocolError: positions that no acceptor of this term can have.
        """
        progress = self.members.get(safekeeper_id)
        if progress is None or not progress.connected or response.leader_id != self.leader_id:
            return
        if not response.flush_lsn <= response.write_lsn <= max(self.received_lsn, self.term_start_lsn):
            raise RemoteProtocolError(
                f"write position {format_lsn(response.write_lsn)} and flush position "
                f"{format_lsn(response.flush_lsn)} cannot be: the log ends at {format_lsn(self.received_lsn)}"
            )
        if not progress.answered:
            if response.write_lsn < progress.skipped_to_lsn:
                return  # It was on its way when the member skipped WAL: of a log that is given up.
            progress.answered = progress.adopted = True
            progress.adopted_lsn = response.write_lsn
            if not response.has_readers:
                yield from self.on_standby_feedback(safekeeper_id, ())
            if self.archiving.archiver:
                yield self._archive_assignment(safekeeper_id)
        if response.write_lsn > progress.sent_lsn:
            # That is where its log ends, or where it skipped to.
            progress.sent_lsn = response.write_lsn
        progress.last_response_at = now
        progress.acked_sequence = response.sequence
        progress.waiting_since = None if response.write_lsn >= progress.sent_lsn else now
        progress.has_readers = response.has_readers
        progress.write_lsn = response.write_lsn
        progress.flush_lsn = response.flush_lsn
        if progress.refuses or progress.is_doubted:
            yield from self._trust_again(safekeeper_id, progress)
        if progress.sent_lsn < self.received_lsn:
            yield from self._feed(safekeeper_id, progress, now)
        if progress.flush_lsn > self.commit_lsn or progress.write_lsn > self.write_lsn:
            # A member at or below what the quorum has cannot move it: the last of three acks costs nothing (with the
            # shortcut in _update_write: 45 us to 34 us of CPU time for one receive, three sends, three acks).
            yield from self._advance(now)
        if progress.has_readers:
            # Its readers may be new, or the commit may have come between `Elected` and this answer.
            yield from self._tell_commit(safekeeper_id, progress, now)

    def _trust_again(self, safekeeper_id: int, progress: Progress) -> Iterator[Action]:
        """Let a member take part again if an append has succeeded on this connection, or if it lacks nothing."""
        if progress.write_lsn <= progress.adopted_lsn and progress.write_lsn < self.received_lsn:
            return
        if progress.refuses:
            yield Note(Level.INFO, f"safekeeper {safekeeper_id} accepts WAL again")
        progress.refuses, progress.is_doubted = "", False

    def _advance(self, now: float) -> Iterator[Action]:
        """Recompute what the quorum holds, and say so where it is wanted."""
        flush_lsns = self._flush_lsns()
        committed = quorum_lsn(flush_lsns, self.membership, self.term_start_lsn)
        advanced = committed > self.commit_lsn
        if advanced:
            if committed > self.received_lsn:
                raise InvariantViolation(
                    f"commit_lsn {format_lsn(committed)} beyond what was received, {format_lsn(self.received_lsn)}"
                )
            self.commit_lsn = committed
            self._update_truncate(flush_lsns)
        self._update_write(flush_lsns)
        if self.streaming and (self.write_lsn, self.commit_lsn) != self._told:
            self._told = (self.write_lsn, self.commit_lsn)
            yield self.status()
        if advanced:
            for safekeeper_id, progress in self.members.items():
                if progress.has_readers:
                    yield from self._tell_commit(safekeeper_id, progress, now)

    def _flush_lsns(self) -> dict[int, Lsn]:
        """Return what each member has on its disk of this term's log."""
        return {i: p.flush_lsn for i, p in self.members.items() if p.voter and p.adopted}

    def _update_truncate(self, flush_lsns: dict[int, Lsn]) -> None:
        """Recompute what every member has: a fork cuts what it likes until the last of them has adopted this term."""
        if self.membership.ids() <= flush_lsns.keys():
            self.truncate_lsn = max(self.truncate_lsn, min(self.commit_lsn, *flush_lsns.values()))

    def _tell_commit(self, safekeeper_id: int, progress: Progress, now: float) -> Iterator[Action]:
        """Let readers see what is committed now, unless they do already or WAL is about to bring the news."""
        is_news = progress.told_commit_lsn < self.commit_lsn
        if is_news and progress.answered and progress.sent_lsn == self.received_lsn:
            progress.told_commit_lsn = self.commit_lsn
            if progress.acked_sequence < self.sequence:
                self._mark_sent(progress, now)  # Only a sequence that it has not answered yet will be.
            yield SendAppend(safekeeper_id, progress.sent_lsn, progress.sent_lsn)

    def _update_write(self, flush_lsns: dict[int, Lsn] | None = None) -> None:
        """Recompute what a quorum has received; only as good as S4 allows, never behind commit_lsn."""
        if not self.commit_lsn:
            self.write_lsn = 0
            return
        write_lsns = {i: p.write_lsn for i, p in self.members.items() if p.voter and p.adopted}
        if write_lsns == flush_lsns:  # The usual case on a quick disk.
            self.write_lsn = self.commit_lsn
            return
        self.write_lsn = max(self.commit_lsn, quorum_lsn(write_lsns, self.membership, self.term_start_lsn))

    def status(self) -> ReportStatus:
        """Return what PostgreSQL may be told (S1): nothing before it is known to have our bytes (S10)."""
        if not self.streaming:
            return ReportStatus(0, 0, 0)
        return ReportStatus(self.write_lsn, self.commit_lsn, self._standbys.apply_lsn(self.commit_lsn))

    def set_streaming(self, streaming: bool) -> ReportStatus:
        """The primary was checked and streams, or does not any more; return what it may be told from now on."""
        self.streaming = streaming
        self._told = (self.write_lsn, self.commit_lsn)
        return self.status()

    def on_standby_feedback(self, safekeeper_id: int, standbys: tuple[Standby, ...]) -> Iterator[Action]:
        """A safekeeper speaks of its standbys. Before it has adopted this term they may have bytes of another log."""
        progress = self.members.get(safekeeper_id)
        if progress is None or not progress.answered:
            return
        before_lsn = self._standbys.apply_lsn(self.commit_lsn)
        self._standbys.hear(safekeeper_id, standbys)
        yield from self.report_apply(before_lsn)

    def report_apply(self, before_lsn: Lsn) -> Iterator[Action]:
        """Tell PostgreSQL the apply position if it is not the one from before, also if it has gone back."""
        if self.streaming and self._standbys.apply_lsn(self.commit_lsn) != before_lsn:
            yield self.status()

    # ------------------------------------------------------------------ bytes go out

    def on_wal_received(self, end_lsn: Lsn, now: float) -> Iterator[Action]:
        """The window has grown up to `end_lsn`."""
        self.received_lsn = end_lsn
        for safekeeper_id, progress in self.members.items():
            if progress.answered:
                yield from self._feed(safekeeper_id, progress, now)

    def _feed(self, safekeeper_id: int, progress: Progress, now: float) -> Iterator[Action]:
        """Send what the member lacks, as far as the bounds on bytes and on appends in flight allow (S14)."""
        if not progress.answered or progress.read_request is not None:
            return
        if progress.write_lsn < progress.last_begin_lsn and self.received_lsn - progress.sent_lsn < APPEND_BYTES_MAX:
            return  # Its next answer comes here again.
        limit_lsn = min(self.received_lsn, progress.write_lsn + IN_FLIGHT_BYTES_MAX)
        while progress.sent_lsn < limit_lsn:
            if progress.sent_lsn < self.window_begin_lsn:
                yield from self._read_for(safekeeper_id, progress, now)
                return
            end_lsn = min(limit_lsn, progress.sent_lsn + APPEND_BYTES_MAX)
            self._mark_sent(progress, now)
            yield SendAppend(safekeeper_id, progress.sent_lsn, end_lsn)
            progress.last_begin_lsn, progress.sent_lsn = progress.sent_lsn, end_lsn

    def _read_for(self, safekeeper_id: int, progress: Progress, now: float) -> Iterator[Action]:
        """Ask another member for WAL that the window has no more; slowly, unless a quorum waits for it."""
        if progress.read_allowed_at > now + READ_AHEAD_S and not self._quorum_needs(safekeeper_id, now):
            return
        sources = [
            (p.flush_lsn, source)
            for source, p in self.members.items()
            if p.answered and source != safekeeper_id and p.wal_begin_lsn <= progress.sent_lsn < p.flush_lsn
        ]
        if not sources:
            yield from self._skip(safekeeper_id, progress, now)
            return
        source_flush_lsn, source = max(sources)
        end_lsn = min(source_flush_lsn, self.window_begin_lsn, progress.sent_lsn + READ_BYTES)
        self._request_id += 1
        progress.read_request, progress.read_end_lsn = (self._request_id, source), end_lsn
        yield SendMessage(source, ReadRequest(self.leader_id, self._request_id, progress.sent_lsn, end_lsn))

    def _skip(self, safekeeper_id: int, progress: Progress, now: float) -> Iterator[Action]:
        """Nobody has the WAL that this member needs next: let it go on from the oldest that is left (S6).

        No WAL is on its way to it: what it was sent it has answered. Answers to heartbeats may be on their way from it.
        """
        base_lsn = self._oldest_wal(safekeeper_id, progress)
        if progress.sent_lsn < base_lsn and progress.waiting_since is None:
            yield Note(
                Level.WARNING,
                f"safekeeper {safekeeper_id} skips from {format_lsn(progress.sent_lsn)} to "
                f"{format_lsn(base_lsn)}: no member retains older WAL",
            )
            progress.skipped_to_lsn = base_lsn
            yield self._tell_elected(safekeeper_id, progress, now)

    def on_storage_full(self, safekeeper_id: int, reason: str) -> Iterator[Action]:
        """A member has refused WAL for lack of room: it takes part again once an append has succeeded.

        Its connection is closed, and the next one begins well: it adopts the term and answers heartbeats. That alone
        must not count, or a majority of full disks would look like a quorum once a second.
        """
        progress = self.members.get(safekeeper_id)
        if progress is None or progress.refuses == reason:
            return
        progress.refuses = reason
        yield Note(Level.WARNING, f"safekeeper {safekeeper_id} refuses WAL: {reason}")

    # ------------------------------------------------------------------ the archive

    def on_archive_report(self, safekeeper_id: int, report: ArchiveReport, now: float) -> Iterator[Action]:
        """A safekeeper has said what it keeps, and how its part of the archive goes."""
        progress = self.members.get(safekeeper_id)
        if progress is None or not progress.answered:
            return
        progress.wal_begin_lsn = report.wal_begin_lsn
        archiving = self.archiving
        before = (archiving.archived_lsn, archiving.archive_id)
        stranger = archiving.hear(safekeeper_id, report, now)
        if stranger:
            yield Note(Level.ERROR, stranger)
        if (archiving.archived_lsn, archiving.archive_id) != before:
            yield from self._tell_archive_assignments()

    def _tell_archive_assignments(self) -> Iterator[Action]:
        for safekeeper_id, progress in self.members.items():
            if progress.answered:
                yield self._archive_assignment(safekeeper_id)

    def _archive_assignment(self, safekeeper_id: int) -> SendMessage:
        archiving = self.archiving
        return SendMessage(
            safekeeper_id,
            ArchiveAssignment(self.leader_id, archiving.archiver, archiving.archived_lsn, archiving.archive_id),
        )

    # ------------------------------------------------------------------ more bytes go out

    def on_read_response(self, source: int, response: ReadResponse, now: float) -> Iterator[Action]:
        """Hand WAL of one member on to the one that lacks it."""
        asked = (response.request_id, source)
        safekeeper_id = next((i for i, p in self.members.items() if p.read_request == asked), None)
        if safekeeper_id is None:
            return
        progress = self.members[safekeeper_id]
        progress.read_request = None
        end_lsn = response.begin_lsn + len(response.payload)
        if response.begin_lsn != progress.sent_lsn or not progress.sent_lsn < end_lsn <= progress.read_end_lsn:
            raise RemoteProtocolError(
                f"a read at {format_lsn(progress.sent_lsn)} was answered with {len(response.payload)} bytes "
                f"at {format_lsn(response.begin_lsn)}"
            )
        size = len(response.payload)
        progress.read_allowed_at = max(now, progress.read_allowed_at) + size / self._timing.catchup_bytes_per_s
        self._mark_sent(progress, now)
        progress.sent_lsn += size
        yield SendMessage(safekeeper_id, self.append_request(response.begin_lsn, now, response.payload))
        yield from self._feed(safekeeper_id, progress, now)

    def on_range_refused(self, source: int, reason: str, now: float) -> Iterator[Action]:
        """A member lacks what was asked of it: another is asked at the next tick. Or it does not adopt the term yet."""
        refusing = self.members.get(source)
        if refusing is not None and not refusing.answered and refusing.refuses != reason:
            refusing.refuses = reason
            yield Note(Level.WARNING, f"safekeeper {source} does not take part in term {self.leader_id.term}: {reason}")
        for progress in self.members.values():
            if progress.read_request is not None and progress.read_request[1] == source:
                progress.read_request = None
                progress.read_allowed_at = now + READ_AHEAD_S + self._timing.heartbeat_interval_s

    def append_request(self, begin_lsn: Lsn, now: float, payload: bytes | memoryview = b"") -> AppendRequest:
        """Return an append with everything that is known now; the shell sends the window's bytes behind it."""
        return AppendRequest(
            self.leader_id,
            self.membership.generation,
            begin_lsn,
            self.commit_lsn,
            self.truncate_lsn,
            self.sequence,
            self.is_healthy(now),
            payload,
        )

    def _mark_sent(self, progress: Progress, now: float) -> None:
        progress.last_sent_at = now
        progress.told_commit_lsn = self.commit_lsn
        if progress.waiting_since is None:
            progress.waiting_since = now

    def _heartbeat(self, safekeeper_id: int, progress: Progress, now: float) -> Iterator[Action]:
        self._mark_sent(progress, now)
        yield SendAppend(safekeeper_id, progress.sent_lsn, progress.sent_lsn)

    # ------------------------------------------------------------------ time

    def tick(self, now: float) -> Iterator[Action]:
        """Send heartbeats, go on feeding, give up on members that do not answer, and see to the archive."""
        self.sequence += 1
        self._update_truncate(self._flush_lsns())
        news = self.archiving.choose(self.commit_lsn, now)
        if news:
            yield Note(Level.INFO, news)
            yield from self._tell_archive_assignments()
        for safekeeper_id, progress in self.members.items():
            if not progress.connected:
                continue
            waited_s = now - progress.waiting_since if progress.waiting_since is not None else 0.0
            if waited_s > self._timing.response_timeout_s:
                yield Disconnect(safekeeper_id, f"no answer for {waited_s:.1f} s")
                continue
            if not progress.answered:
                continue
            yield from self._feed(safekeeper_id, progress, now)
            if now - progress.last_sent_at >= self._timing.heartbeat_interval_s:
                yield from self._heartbeat(safekeeper_id, progress, now)

    def probe(self, now: float) -> Iterator[Action]:
        """Ask every member whether this term still stands: `confirmed_since` tells when a quorum has said so."""
        self.sequence += 1
        for safekeeper_id, progress in self.members.items():
            if progress.answered:
                yield from self._heartbeat(safekeeper_id, progress, now)

    def confirmed_since(self, sequence: int) -> bool:
        """Whether a quorum has heard word number `sequence` or a later one, and still follows."""
        return self.membership.has_quorum(
            i for i, p in self.members.items() if p.voter and p.answered and p.acked_sequence >= sequence
        )

    def answers(self, now: float) -> bool:
        """Whether a quorum has answered within the heartbeat timeout; its votes count as answers."""
        return self.membership.has_quorum(self._answering(now))

    def is_served(self, now: float) -> bool:
        """Whether a quorum answers, of members that accept WAL: only then can a commit go through."""
        return self.membership.has_quorum(self.taking_part(now))

    def taking_part(self, now: float) -> set[int]:
        """Return the ids of the members that answer and accept WAL."""
        members = self.members
        return {
            i for i in self._answering(now) if i not in members or not (members[i].refuses or members[i].is_doubted)
        }

    def _answering(self, now: float) -> Iterator[int]:
        """Return the voters that have answered within the heartbeat timeout; at the term's beginning all of them."""
        timeout_s = self._timing.heartbeat_timeout_s
        if now - self._began_at < timeout_s:
            yield from self.membership.ids()
            return
        for safekeeper_id, progress in self.members.items():
            answered_at = progress.last_response_at
            if progress.voter and progress.connected and answered_at is not None and now - answered_at < timeout_s:
                yield safekeeper_id

    def is_healthy(self, now: float) -> bool:
        """Whether this proposer deserves to be left alone: its primary streams and a quorum answers (step 2)."""
        return self.streaming and self.answers(now)

    def _quorum_needs(self, safekeeper_id: int, now: float) -> bool:
        """Whether commits wait for this very member: without it, those that are up to date are no quorum."""
        if not self.members[safekeeper_id].voter:
            return False
        return not self.commit_lsn or not self.membership.has_quorum(
            i
            for i, p in self.members.items()
            if p.voter and p.answered and i != safekeeper_id and p.sent_lsn >= self.window_begin_lsn
        )
