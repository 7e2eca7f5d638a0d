"""The assignment of the archiver, and the progress of the archive: the leader's part.

One safekeeper archives, the archiver; all others could. The leader assigns it, and assigns another one if it is
disconnected, has a problem that another one has not, or makes no progress without reporting a problem. A safekeeper
that archives already when a term begins continues. Two archivers at the same time do no harm: they archive the same
committed bytes, under the same names.

All must have the same archive: a safekeeper with another archive than the archiver's is not assigned, and that is
logged. WAL that is spread over several archives cannot be restored.

Nothing here decides what is safe: the archiver itself has verified archived_lsn.
"""

from dataclasses import dataclass, field

from safekeeper.base.log_once import LogOnce
from safekeeper.base.lsn import Lsn
from safekeeper.consensus.messages import ArchiveReport

# How long a new term waits for the report of a safekeeper that archives already.
INCUMBENT_GRACE_S = 2.0
# How long an archiver may be disconnected: a connection that is reopened is not a reason to replace it.
GONE_GRACE_S = 5.0
# How long it may have a problem that another one has not.
PROBLEM_GRACE_S = 10.0
# How long it may make no progress although there are whole segments to archive: how often it copies the open one is a
# setting.
STALL_S = 60.0
# How long a replaced archiver is not assigned again, unless there is no other one.
REST_S = 60.0


@dataclass(slots=True)
class _Candidate:
    report: ArchiveReport
    connected: bool = True
    gone_at: float = 0.0
    problem_since: float | None = None
    moved_at: float = 0.0
    rests_until: float = 0.0
    other_archive: LogOnce = field(default_factory=LogOnce)


class Archiving:
    """The archiver, and its progress as it was reported.

    Attributes:
        archiver: the safekeeper that archives, 0 for none.
        archived_lsn, archive_id: the position in which archive, as the archiver has reported last; 0 and empty before.
    """

    def __init__(self, segment_size: int, now: float) -> None:
        self.archiver = 0
        self.archived_lsn: Lsn = 0
        self.archive_id = ""
        self._segment_size = segment_size
        self._began_at = now
        self._candidates: dict[int, _Candidate] = {}

    @property
    def is_configured(self) -> bool:
        """Whether any safekeeper that has reported in this term has an archive."""
        return any(candidate.report.has_archive for candidate in self._candidates.values())

    @property
    def problem(self) -> str:
        """Why the archiver cannot archive, empty if it can or there is none."""
        candidate = self._candidates.get(self.archiver)
        return candidate.report.problem if candidate is not None else ""

    def on_report(self, safekeeper_id: int, report: ArchiveReport, now: float) -> str:
        """Handle the report of a safekeeper; return a new problem of its archive, empty if there is none."""
        candidate = self._candidates.setdefault(safekeeper_id, _Candidate(report, moved_at=now))
        if report.archived_lsn != candidate.report.archived_lsn:
            candidate.moved_at = now
        if not report.problem:
            candidate.problem_since = None
        elif candidate.problem_since is None:
            candidate.problem_since = now
        candidate.report, candidate.connected = report, True
        if safekeeper_id == self.archiver and report.is_archiver:
            self._take(report)
        if not self._has_other_archive(report):
            candidate.other_archive.reset()
        elif candidate.other_archive.is_new(report.archive_id):
            return (
                f"safekeeper {safekeeper_id} has another archive ({report.archive_id[:8]}) than safekeeper "
                f"{self.archiver} ({self.archive_id[:8]}): give all of them the same --archive"
            )
        return ""

    def disconnected(self, safekeeper_id: int, now: float) -> None:
        """Handle the end of the connection to a safekeeper."""
        candidate = self._candidates.get(safekeeper_id)
        if candidate is not None and candidate.connected:
            candidate.connected, candidate.gone_at = False, now

    def choose(self, commit_lsn: Lsn, now: float) -> str:
        """Assign another archiver if that is due; return why, empty if it is not."""
        present = {i: c for i, c in self._candidates.items() if c.connected and c.report.has_archive}
        current = self._candidates.get(self.archiver)
        if current is None:
            return self._assign_first(present, now)
        if self.archived_lsn + 2 * self._segment_size > commit_lsn:
            current.moved_at = now  # There is nothing to archive.
        others = {i: c for i, c in present.items() if i != self.archiver and not self._has_other_archive(c.report)}
        # None of them would ever archive WAL below its own beginning.
        others = {i: c for i, c in others.items() if c.report.wal_begin_lsn <= self.archived_lsn} or others
        healthy = {i: c for i, c in others.items() if not c.report.problem and c.rests_until <= now}
        if not current.connected or not current.report.has_archive:
            reason = "is disconnected" if now - current.gone_at >= GONE_GRACE_S else ""
            return self._replace(current, healthy or others, reason, now)
        if current.problem_since is not None and now - current.problem_since >= PROBLEM_GRACE_S:
            return self._replace(current, healthy, f"cannot archive: {current.report.problem}", now)
        if now - current.moved_at >= STALL_S:
            return self._replace(current, healthy, "makes no progress", now)
        return ""

    def _assign_first(self, present: dict[int, _Candidate], now: float) -> str:
        incumbent = next((i for i, c in sorted(present.items()) if c.report.is_archiver), None)
        if incumbent is None and now - self._began_at < INCUMBENT_GRACE_S:
            return ""
        # It would never archive WAL below its own beginning, which others still retain.
        preferences = {i: (bool(c.report.problem), c.report.wal_begin_lsn, i) for i, c in present.items()}
        chosen = incumbent or min(preferences, key=preferences.__getitem__, default=0)
        if not chosen:
            return ""
        self._assign(chosen, now)
        return f"safekeeper {chosen} is the archiver"

    def _replace(self, current: _Candidate, candidates: dict[int, _Candidate], reason: str, now: float) -> str:
        if not reason or not candidates:
            return ""
        before = self.archiver
        current.rests_until = now + REST_S
        self._assign(min(candidates), now)
        return f"safekeeper {self.archiver} is the archiver now: safekeeper {before} {reason}"

    def _assign(self, safekeeper_id: int, now: float) -> None:
        self.archiver = safekeeper_id
        candidate = self._candidates[safekeeper_id]
        candidate.moved_at = now
        if candidate.report.is_archiver:
            self._take(candidate.report)

    def _take(self, report: ArchiveReport) -> None:
        """Record the progress of the archiver."""
        if report.archive_id and report.archive_id != self.archive_id:
            # The progress of another archiver is not that of this one.
            self.archive_id, self.archived_lsn = report.archive_id, 0
        self.archived_lsn = report.archived_lsn or self.archived_lsn

    def _has_other_archive(self, report: ArchiveReport) -> bool:
        """Return whether a report is about another archive than the archiver's."""
        return bool(report.archive_id and self.archive_id and report.archive_id != self.archive_id)
