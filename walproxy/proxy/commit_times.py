"""How long commits wait for the safekeepers, as the proxy measures it: from the arrival of WAL to each position.

    commit    every batch of WAL: from `wal_received` until commit_lsn, as reported to PostgreSQL, has passed its end.
              What synchronous_commit = on adds to the primary's own flush
    write     the same until a quorum has received it (remote_write): one batch at a time, not every one
    apply     the same until the designated standbys have replayed it (remote_apply), likewise; nothing without them
    members   from an append to the reply that its WAL is durable there, by safekeeper: one append at a time

Every batch counts for the first one, since a commit that waited long must be in it; its time is put aside, and counted
five times a second. The others are samples: the proxy permits the next one of each five times a second, so they cost
the hot path a test of an empty container. Measured on a busy core, for a batch that is received, sent to three members,
acknowledged by each, and reported: 12.1 us of CPU time without this module, 14.0 us with it (medians of seven runs
each, alternately), sockets left out; with them one client's commit takes some 200 us.

WAL that is received again in another term keeps the time at which it first arrived, so that a commit that waits for an
election counts with all its time. Nothing here decides.
"""

from collections import deque
from collections.abc import Iterable

from safekeeper.base.histogram import RecentHistogram
from safekeeper.base.lsn import Lsn
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.messages import AppendResponse
from walproxy.proposer.actions import ReportStatus, SendAppend
from walproxy.proxy.status_fields import CommitLatencies

# Batches that wait at the same time; those beyond are not timed. A full window of 64 MiB has that many of 8 KiB.
BATCHES_MAX = 8192


class CommitTimes:
    """The times of one proxy.

    All of them are seconds of `time.monotonic`. The clock of uvloop has the same base, and is not exact enough: it is
    that of the loop's present turn, in milliseconds.

    Attributes:
        write, apply: histograms, see above.
        members: a histogram for each safekeeper that has acknowledged WAL.
        armed: the safekeepers whose next append with WAL is timed.
        pending: of each timed append its leader id, the end of its WAL, and when it was sent.
    """

    def __init__(self) -> None:
        self._commit = RecentHistogram()
        self._taken_s: list[float] = []  # What `_commit` does not count yet.
        self.write = RecentHistogram()
        self.apply = RecentHistogram()
        self.members: dict[int, RecentHistogram] = {}
        self.armed: set[int] = set()
        self.pending: dict[int, tuple[LeaderId, Lsn, float]] = {}
        self._batches: deque[tuple[Lsn, float]] = deque()
        self._last_lsn: Lsn = 0
        self._tli = 0
        self._samples_write = self._samples_apply = False
        self._write: tuple[Lsn, float] | None = None
        self._apply: tuple[Lsn, float] | None = None

    # The hot path.

    def received(self, end_lsn: Lsn, now: float) -> None:
        """Handle WAL that has arrived, up to `end_lsn`."""
        if end_lsn <= self._last_lsn or len(self._batches) >= BATCHES_MAX:
            return
        self._last_lsn = end_lsn
        batch = (end_lsn, now)
        self._batches.append(batch)
        if self._samples_write:
            self._write, self._samples_write = batch, False
        if self._samples_apply:
            self._apply, self._samples_apply = batch, False

    def reported(self, status: ReportStatus, now: float) -> None:
        """Handle positions that are reported to PostgreSQL."""
        batches, flush_lsn = self._batches, status.flush_lsn
        while batches and batches[0][0] <= flush_lsn:
            self._taken_s.append(now - batches.popleft()[1])
        if self._write is not None and self._write[0] <= status.write_lsn:
            self.write.observe(now - self._write[1])
            self._write = None
        if self._apply is not None and self._apply[0] <= status.apply_lsn:
            self.apply.observe(now - self._apply[1])
            self._apply = None

    def appended(self, action: SendAppend, now: float) -> None:
        """Handle an append that is sent; call it only while a safekeeper is armed."""
        if action.begin_lsn == action.end_lsn:
            return  # A heartbeat.
        for safekeeper_id in action.safekeeper_ids:
            if safekeeper_id in self.armed:
                self.armed.discard(safekeeper_id)
                self.pending[safekeeper_id] = (action.header.leader_id, action.end_lsn, now)

    def acknowledged(self, safekeeper_id: int, response: AppendResponse, now: float) -> None:
        """Handle the reply of a safekeeper; call it only while an append is pending."""
        pending = self.pending.get(safekeeper_id)
        if pending is None:
            return
        leader_id, end_lsn, sent_at = pending
        if response.leader_id != leader_id:
            del self.pending[safekeeper_id]  # Another term answers for other appends.
        elif response.flush_lsn >= end_lsn:
            del self.pending[safekeeper_id]
            self.members.setdefault(safekeeper_id, RecentHistogram()).observe(now - sent_at)

    # Rare events.

    @property
    def commit(self) -> RecentHistogram:
        """The histogram of all batches."""
        for taken_s in self._taken_s:
            self._commit.observe(taken_s)
        self._taken_s.clear()
        return self._commit

    def restarted(self, begin_lsn: Lsn, tli: int) -> None:
        """Handle the start of replication at `begin_lsn`: what was received of another timeline above it is discarded.

        No commit_lsn covers it, and one that is higher covers other WAL.
        """
        if tli != self._tli and self._tli:
            while self._batches and self._batches[-1][0] > begin_lsn:
                self._batches.pop()
            self._last_lsn = min(self._last_lsn, begin_lsn)
            self._write = self._apply = None
        self._tli = tli

    def disconnected(self, safekeeper_id: int) -> None:
        """Handle the end of a connection: no reply to the timed append will arrive on it."""
        self.armed.discard(safekeeper_id)
        self.pending.pop(safekeeper_id, None)

    def forget(self, safekeeper_id: int) -> None:
        """Forget a safekeeper that was removed."""
        self.disconnected(safekeeper_id)
        self.members.pop(safekeeper_id, None)

    def permit_samples(self, now: float, connected: Iterable[int], *, is_apply_timed: bool) -> None:
        """Let the next sample of each kind be taken.

        Args:
            connected: the safekeepers with a connection.
            is_apply_timed: whether standbys are designated; otherwise nothing distinguishes `apply` from `commit`.
        """
        self.armed.update(i for i in connected if i not in self.pending)
        self._samples_write = self._write is None
        self._samples_apply = is_apply_timed and self._apply is None
        if not is_apply_timed:
            self._apply = None
        for histogram in (self.commit, self.write, self.apply, *self.members.values()):
            histogram.mark(now)

    def oldest_s(self, now: float) -> float | None:
        """Return how long the oldest batch has waited for a quorum, None if none waits."""
        return max(0.0, now - self._batches[0][1]) if self._batches else None

    def describe(self, now: float) -> CommitLatencies:
        """Return the content of `times` in /status."""
        oldest_s = self.oldest_s(now)
        return CommitLatencies(
            quorum=self.commit.describe(),
            write=self.write.describe(),
            apply=self.apply.describe(),
            members={str(i): histogram.describe() for i, histogram in sorted(self.members.items())},
            oldest_s=round(oldest_s, 3) if oldest_s is not None else None,
        )
