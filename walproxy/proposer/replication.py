"""Sending WAL to the members of a term.

A member is sent the WAL that it lacks from the window, in appends of bounded size and number (S14). WAL that is no
longer in the window is fetched from another member that retains it, at a limited rate, unless a quorum needs this
member; a member that lacks much of it pulls it from other members by itself, at the same rate (pulling.py).
If no member retains it, the member skips it: an `Elected` with a base_lsn lets its log continue at the oldest
retained WAL, if the skipped WAL is known to be committed (S6). That WAL is in the archive.

commit_lsn is sent to members with readers as soon as it advances, with the next WAL if there is any, else in an append
of its own (`_send_commit`). Otherwise the last commit before an idle time would wait for a heartbeat, and remote_apply
for the standby.

Pure.
"""

from collections.abc import Mapping

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.consensus.commitment import QuorumRule
from safekeeper.consensus.messages import (
    AppendRequest,
    Elected,
    PullEnded,
    PullSource,
    PullWal,
    ReadRequest,
    ReadResponse,
)
from walproxy.proposer.actions import Action, Disconnect, Level, Note, SendAppend, SendMessage
from walproxy.proposer.liveness import Liveness, Timing
from walproxy.proposer.progress import Fetch, Progress, State
from walproxy.proposer.pulling import PULL_AGAIN_S, PULL_STALL_S, Candidate, Pull, addresses_of, plan_pull

APPEND_BYTES_MAX = 1 << 20
IN_FLIGHT_BYTES_MAX = 8 << 20
# A member is sent the third append when it has answered the first, or when that append is full: WAL that is received
# meanwhile is sent together. Measured with a millisecond each way to the members, on two shared cores, pgbench with 32
# clients: 1.16 of the transactions for two thirds of the CPU time; with one append instead of two 1.12, and a commit
# just after one waits for a whole round trip instead of a half.
READ_BYTES = 256 << 10
# Fetches continue until they are this far ahead of their rate: the shell's ticks, which let them continue, are less
# frequent.
READ_AHEAD_S = 0.1

_STREAMING = State.STREAMING  # Looked up once: it is compared for each member and commit.


class Replication(Liveness):
    """The sending of a term's WAL to the members.

    Attributes:
        elected: the first message to every member: leader id, history, membership.
        received_lsn: end of the WAL that was received from the primary, or of the donor's log.
        window_begin_lsn: the oldest byte in the window.
        commit_lsn: on a quorum, in this term; 0 until the term's start is (S4).
        truncate_lsn: on every member, in this term; 0 until all of them have adopted it. The votes report it of
            other logs: a fork may have cut a member that has not adopted the term yet (S9).
        streaming: whether the primary streams, and was verified (S10).
    """

    def __init__(
        self, elected: Elected, timing: Timing, now: float, out: list[Action], addresses: Mapping[int, str] | None
    ) -> None:
        self.term_start_lsn = elected.history[-1].start_lsn
        super().__init__(elected.membership, QuorumRule(elected.membership, self.term_start_lsn), timing, now)
        self.elected = elected
        self.leader_id = elected.leader_id
        self.tli = elected.history[-1].tli
        self.received_lsn = self.term_start_lsn
        self.window_begin_lsn = self.term_start_lsn
        self.commit_lsn: Lsn = 0
        self.truncate_lsn: Lsn = 0
        self.streaming = False
        self._out = out
        self._addresses = addresses if addresses is not None else {}
        self._request_id = 0
        self._last_header: AppendRequest | None = None

    def on_wal_received(self, end_lsn: Lsn, now: float) -> None:
        """Handle WAL that was appended to the window, up to `end_lsn`."""
        self.received_lsn = end_lsn
        window_begin_lsn = self.window_begin_lsn
        group_lsn: Lsn = -1  # of the last append, and the members that it is sent to
        group: list[int] = []
        for safekeeper_id, progress in self.members.items():
            if progress.state is not _STREAMING:
                continue
            begin_lsn = progress.sent_lsn
            if not window_begin_lsn <= begin_lsn < end_lsn < begin_lsn + APPEND_BYTES_MAX:
                self._send_wal(safekeeper_id, progress, now)
                group_lsn = -1  # Actions stay in the order of the members.
                continue
            if progress.write_lsn < progress.last_begin_lsn:
                continue  # Two appends are in flight. Its next answer sends the rest.
            self._mark_wal_sent(progress, end_lsn, now)
            if begin_lsn == group_lsn:
                group.append(safekeeper_id)
            else:
                group_lsn, group = begin_lsn, [safekeeper_id]
                self._out.append(SendAppend(group, self._append(begin_lsn, now), end_lsn))

    def on_read_response(self, source: int, response: ReadResponse, now: float) -> None:
        """Send WAL that was fetched from `source` to the member that lacks it.

        Raises:
            RemoteProtocolError: it is not the requested WAL.
        """
        asked = (response.request_id, source)
        safekeeper_id = next((i for i, p in self.members.items() if p.fetch is not None and p.fetch[:2] == asked), None)
        if safekeeper_id is None:
            return
        progress = self.members[safekeeper_id]
        fetch = progress.end_fetch()
        size = len(response.payload)
        if response.begin_lsn != fetch.begin_lsn or not 0 < size <= fetch.end_lsn - fetch.begin_lsn:
            raise RemoteProtocolError(
                f"a read at {format_lsn(fetch.begin_lsn)} was answered with {size} bytes "
                f"at {format_lsn(response.begin_lsn)}"
            )
        # Otherwise the member has reported WAL of a pull that had ended: it lacks what follows.
        if progress.sent_lsn == fetch.begin_lsn:
            progress.fetch_allowed_at = max(now, progress.fetch_allowed_at) + size / self._timing.catchup_bytes_per_s
            self._mark_wal_sent(progress, progress.sent_lsn + size, now)
            self._out.append(SendMessage(safekeeper_id, self._append(response.begin_lsn, now, response.payload)))
        self._send_wal(safekeeper_id, progress, now)

    def on_range_refused(self, source: int, reason: str, now: float) -> None:
        """Handle a member that lacks requested WAL (the next tick asks another one) or has not adopted the term."""
        refusing = self.members.get(source)
        if refusing is not None and not refusing.follows and refusing.refusal != reason:
            refusing.refusal = reason
            text = f"safekeeper {source} does not take part in term {self.leader_id.term}: {reason}"
            self._out.append(Note(Level.WARNING, text))
        for progress in self.members.values():
            if progress.fetch is not None and progress.fetch.source == source:
                progress.end_fetch()
                progress.fetch_allowed_at = now + READ_AHEAD_S + self._timing.heartbeat_interval_s

    def probe(self, now: float) -> None:
        """Ask every member to confirm this term: `confirmed_since` returns when a quorum has."""
        self.sequence += 1
        for safekeeper_id, progress in self.members.items():
            if progress.follows:
                self._heartbeat(safekeeper_id, progress, now)

    def _header(self, begin_lsn: Lsn, now: float) -> AppendRequest:
        """Return an append at `begin_lsn` with the present positions; the same one as long as they are the same."""
        header = self._last_header
        if (
            header is None
            or header.begin_lsn != begin_lsn
            or header.commit_lsn != self.commit_lsn
            or header.sequence != self.sequence
            or header.truncate_lsn != self.truncate_lsn
            or header.healthy != self._is_healthy(now)
        ):
            header = self._last_header = self._append(begin_lsn, now)
        return header

    def _is_healthy(self, now: float) -> bool:
        """Other candidates must not depose a leader whose primary streams and for which a quorum answers (step 2)."""
        return self.streaming and (now < self._answered_until or self.answers(now))

    def _append(self, begin_lsn: Lsn, now: float, payload: bytes | memoryview = b"") -> AppendRequest:
        return AppendRequest(
            self.leader_id,
            self.membership.generation,
            begin_lsn,
            self.commit_lsn,
            self.truncate_lsn,
            self.sequence,
            self._is_healthy(now),
            payload,
        )

    def _send_elected(self, safekeeper_id: int, progress: Progress, now: float) -> None:
        """Send a member the term's history; it is sent WAL once it has answered."""
        progress.sent_commit_lsn = self.commit_lsn
        progress.last_sent_at = progress.waiting_since = now
        progress.elected_generation = self.membership.generation
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
        self._out.append(SendMessage(safekeeper_id, elected))

    def _oldest_wal(self, safekeeper_id: int, progress: Progress) -> Lsn:
        """Return the beginning of the oldest WAL that another member retains and can send to this one; 0 if unknown.

        A member that is equally far behind cannot serve it; otherwise two such members would wait for each other.

        WAL below it is committed, whether or not this term has committed it yet: a member that has adopted the term
        removes no other WAL, and skips no other WAL.
        """
        others = [p for i, p in self.members.items() if i != safekeeper_id and p.follows and p.wal_begin_lsn]
        return min((p.wal_begin_lsn for p in others if p.flush_lsn > progress.sent_lsn), default=0)

    def _send_wal(self, safekeeper_id: int, progress: Progress, now: float) -> None:
        """Send the WAL that the member lacks, within the limits on bytes and appends in flight (S14)."""
        if progress.state is not _STREAMING:
            return
        begin_lsn, end_lsn = progress.sent_lsn, self.received_lsn
        is_short = self.window_begin_lsn <= begin_lsn and end_lsn - begin_lsn < APPEND_BYTES_MAX
        if is_short and progress.write_lsn < progress.last_begin_lsn:
            return  # Two appends are in flight. Its next answer sends the rest.
        limit_lsn = min(end_lsn, progress.write_lsn + IN_FLIGHT_BYTES_MAX)
        while progress.sent_lsn < limit_lsn:
            if progress.sent_lsn < self.window_begin_lsn:
                self._fetch_for(safekeeper_id, progress, now)
                return
            end_lsn = min(limit_lsn, progress.sent_lsn + APPEND_BYTES_MAX)
            self._out.append(SendAppend([safekeeper_id], self._header(progress.sent_lsn, now), end_lsn))
            self._mark_wal_sent(progress, end_lsn, now)

    def _fetch_for(self, safekeeper_id: int, progress: Progress, now: float) -> None:
        """Request WAL below the window from another member, at a limited rate unless a quorum needs it.

        Or let the member pull it.
        """
        if self._begin_pull(safekeeper_id, progress, now):
            return
        if progress.fetch_allowed_at > now + READ_AHEAD_S and not self._quorum_needs(safekeeper_id):
            return
        sources = [
            (p.flush_lsn, source)
            for source, p in self.members.items()
            if p.follows and source != safekeeper_id and p.wal_begin_lsn <= progress.sent_lsn < p.flush_lsn
        ]
        if not sources:
            self._skip(safekeeper_id, progress, now)
            return
        source_flush_lsn, source = max(sources)
        end_lsn = min(source_flush_lsn, self.window_begin_lsn, progress.sent_lsn + READ_BYTES)
        self._request_id += 1
        progress.become_fetching(Fetch(self._request_id, source, progress.sent_lsn, end_lsn))
        request = ReadRequest(self.leader_id, self._request_id, progress.sent_lsn, end_lsn)
        self._out.append(SendMessage(source, request))

    def _begin_pull(self, safekeeper_id: int, progress: Progress, now: float) -> bool:
        """Let a member pull the WAL that it needs next, if it lacks much of it; return whether it does (6.6)."""
        if progress.pull_allowed_at > now:
            return False
        plan = plan_pull(
            progress.sent_lsn,
            self.commit_lsn,
            (
                Candidate(source, p.wal_begin_lsn, p.flush_lsn, addresses_of(source, self.membership, self._addresses))
                for source, p in self.members.items()
                if p.follows and source != safekeeper_id
            ),
        )
        if plan is None:
            return False
        end_lsn, sources = plan
        is_limited = not self._quorum_needs(safekeeper_id)
        self._request_id += 1
        progress.become_pulling(Pull(self._request_id, end_lsn, progress.sent_lsn, now, now, is_limited))
        self._send_pull(safekeeper_id, progress, sources)
        text = (
            f"safekeeper {safekeeper_id} pulls WAL [{format_lsn(progress.sent_lsn)}, {format_lsn(end_lsn)}) from "
            f"safekeeper {', '.join(dict.fromkeys(str(source.safekeeper_id) for source in sources))}"
        )
        self._out.append(Note(Level.INFO, text))
        return True

    def _send_pull(self, safekeeper_id: int, progress: Progress, sources: tuple[PullSource, ...]) -> None:
        pull = progress.pull
        assert pull is not None  # by the callers
        bytes_per_s = self._timing.catchup_bytes_per_s if pull.is_limited else 0
        request = PullWal(self.leader_id, pull.request_id, pull.end_lsn, bytes_per_s, sources)
        self._out.append(SendMessage(safekeeper_id, request))

    def watch_pull(self, safekeeper_id: int, progress: Progress, now: float) -> None:
        """End a pull that makes no progress, or whose limited rate commits would wait for."""
        pull = progress.pull
        if pull is None:
            return
        idle_s = now - pull.moved_at
        if pull.is_ending:
            if idle_s > self._timing.response_timeout_s:
                self._out.append(Disconnect(safekeeper_id, f"the end of a pull was not confirmed for {idle_s:.1f} s"))
        elif pull.is_limited and self._quorum_needs(safekeeper_id):
            # The next one, or the fetches, have no limit.
            self._stop_pull(safekeeper_id, progress, "", now)
        elif idle_s > PULL_STALL_S:
            self._stop_pull(safekeeper_id, progress, f"no progress for {idle_s:.0f} s", now)

    def _stop_pull(self, safekeeper_id: int, progress: Progress, problem: str, now: float) -> None:
        pull = progress.pull
        assert pull is not None  # by the callers
        self._request_id += 1
        progress.pull = pull._replace(request_id=self._request_id, moved_at=now, is_ending=True, problem=problem)
        self._send_pull(safekeeper_id, progress, ())

    def on_pull_ended(self, safekeeper_id: int, message: PullEnded, now: float) -> None:
        """Handle the end of a pull: send the member the next WAL.

        Raises:
            RemoteProtocolError: the position is not one of this term's log.
        """
        progress = self.members.get(safekeeper_id)
        pull = progress.pull if progress is not None else None
        if progress is None or pull is None or message.request_id != pull.request_id:
            return  # An older request: another one has replaced it, or the member has reconnected since.
        if message.leader_id != self.leader_id or not progress.sent_lsn <= message.write_lsn <= self.received_lsn:
            raise RemoteProtocolError(
                f"a pull cannot end at {format_lsn(message.write_lsn)}: it was at {format_lsn(progress.sent_lsn)}"
            )
        progress.end_pull()
        progress.sent_lsn = progress.write_lsn = message.write_lsn
        progress.waiting_since = None
        size, took_s = message.write_lsn - pull.begin_lsn, now - pull.began_at
        progress.pulled_bytes += size
        problem = message.problem or pull.problem
        if problem:
            progress.pull_allowed_at = now + PULL_AGAIN_S
            text = f"safekeeper {safekeeper_id} receives old WAL through this proxy, it cannot pull it: {problem}"
            if problem != progress.pull_problem:
                self._out.append(Note(Level.WARNING, text))
        else:
            text = f"safekeeper {safekeeper_id} has pulled {size} bytes of WAL in {took_s:.1f} s"
            self._out.append(Note(Level.INFO, text))
        progress.pull_problem = problem
        self._send_wal(safekeeper_id, progress, now)
        if progress.has_readers:
            self._send_commit(safekeeper_id, progress, now)

    def _skip(self, safekeeper_id: int, progress: Progress, now: float) -> None:
        """Let a member continue at the oldest retained WAL: no member retains what it needs next (S6).

        No WAL is in flight to it: it has answered all appends. Answers to heartbeats may be in flight.
        """
        base_lsn = self._oldest_wal(safekeeper_id, progress)
        if progress.sent_lsn < base_lsn and progress.waiting_since is None:
            text = (
                f"safekeeper {safekeeper_id} skips from {format_lsn(progress.sent_lsn)} to "
                f"{format_lsn(base_lsn)}: no member retains older WAL"
            )
            self._out.append(Note(Level.WARNING, text))
            progress.become_skipping(base_lsn)
            self._send_elected(safekeeper_id, progress, now)

    def _quorum_needs(self, safekeeper_id: int) -> bool:
        """Return whether commits wait for this member: without it, the members that are up to date are not a quorum."""
        if not self.members[safekeeper_id].voter:
            return False
        return not self.commit_lsn or not self.membership.has_commit_quorum(
            p.identity
            for i, p in self.members.items()
            if p.voter and p.follows and i != safekeeper_id and p.sent_lsn >= self.window_begin_lsn
        )

    def _send_commit(self, safekeeper_id: int, progress: Progress, now: float) -> None:
        """Send commit_lsn for the readers of a member, unless it has received it or WAL with it is about to be sent."""
        is_news = progress.sent_commit_lsn < self.commit_lsn
        if is_news and progress.follows and progress.sent_lsn == self.received_lsn:
            progress.sent_commit_lsn = self.commit_lsn
            if progress.acked_sequence < self.sequence:
                self._mark_sent(progress, now)  # Only a sequence that it has not answered yet is answered.
            self._send_empty(safekeeper_id, progress, now)

    def _heartbeat(self, safekeeper_id: int, progress: Progress, now: float) -> None:
        self._mark_sent(progress, now)
        self._send_empty(safekeeper_id, progress, now)

    def _send_empty(self, safekeeper_id: int, progress: Progress, now: float) -> None:
        """Send an append without WAL, which carries the present positions."""
        self._out.append(SendAppend([safekeeper_id], self._header(progress.sent_lsn, now), progress.sent_lsn))

    def _mark_wal_sent(self, progress: Progress, end_lsn: Lsn, now: float) -> None:
        self._mark_sent(progress, now)
        progress.last_begin_lsn, progress.sent_lsn = progress.sent_lsn, end_lsn

    def _mark_sent(self, progress: Progress, now: float) -> None:
        progress.last_sent_at = now
        progress.sent_commit_lsn = self.commit_lsn
        if progress.waiting_since is None:
            progress.waiting_since = now
