"""Who archives, and how far the archive is: the leader's side of it.

One safekeeper archives, the archiver; all others could. The leader names it, and names another one if it is gone, has a
problem that another one has not, or falls behind without saying why. Whoever archives already when a term begins goes
on. Two archivers at once do no harm: they archive the same committed bytes, under the same names.

All must have the same archive: whoever has another one than the archiver is not named, and an operator is told. From
WAL that is spread over several archives nothing could be restored.

Nothing here decides what is safe: how far the archive is, the archiver has seen itself.
"""

from dataclasses import dataclass

from safekeeper.base.lsn import Lsn
from safekeeper.consensus.messages import ArchiveReport

# A new term waits so long for the word of the one that archives already.
INCUMBENT_GRACE_S = 2.0
# An archiver may be gone for so long: a connection that breaks is no reason.
GONE_GRACE_S = 5.0
# It may have a problem that another one has not for so long.
PROBLEM_GRACE_S = 10.0
# It may make no progress for so long although there are whole segments to archive: how often it copies the open one is
# the operator's to say.
STALL_S = 60.0
# Whoever was replaced is not named again so soon, unless there is nobody else.
REST_S = 60.0


@dataclass(slots=True)
class _Candidate:
    report: ArchiveReport
    connected: bool = True
    gone_at: float = 0.0
    problem_since: float | None = None
    moved_at: float = 0.0
    rests_until: float = 0.0
    told_stranger: str = ""


class Archiving:
    """What the leader knows of the archive.

    Attributes:
        archiver: the safekeeper that archives, 0 for none.
        archived_lsn, archive_id: how far which archive is, as the archiver has said last; 0 and empty before that.
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
        """A safekeeper has reported; return what is wrong with its archive, empty if nothing is that is news."""
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
        if not self._is_stranger(report):
            candidate.told_stranger = ""
        elif candidate.told_stranger != report.archive_id:
            candidate.told_stranger = report.archive_id
            return (
                f"safekeeper {safekeeper_id} has another archive ({report.archive_id[:8]}) than safekeeper "
                f"{self.archiver} ({self.archive_id[:8]}): give all of them the same --archive"
            )
        return ""

    def disconnected(self, safekeeper_id: int, now: float) -> None:
        """Its connection is gone."""
        candidate = self._candidates.get(safekeeper_id)
        if candidate is not None and candidate.connected:
            candidate.connected, candidate.gone_at = False, now

    def choose(self, commit_lsn: Lsn, now: float) -> str:
        """Name another archiver if it is time; return why, empty if it is not."""
        present = {i: c for i, c in self._candidates.items() if c.connected and c.report.has_archive}
        current = self._candidates.get(self.archiver)
        if current is None:
            return self._name_first(present, now)
        others = {i: c for i, c in present.items() if i != self.archiver and not self._is_stranger(c.report)}
        # What lies below its own beginning, none of them would ever bring into the archive.
        others = {i: c for i, c in others.items() if c.report.wal_begin_lsn <= self.archived_lsn} or others
        healthy = {i: c for i, c in others.items() if not c.report.problem and c.rests_until <= now}
        if not current.connected or not current.report.has_archive:
            reason = "is gone" if now - current.gone_at >= GONE_GRACE_S else ""
            return self._replace(current, healthy or others, reason, now)
        if current.problem_since is not None and now - current.problem_since >= PROBLEM_GRACE_S:
            return self._replace(current, healthy, f"cannot archive: {current.report.problem}", now)
        if self.archived_lsn + 2 * self._segment_size > commit_lsn:
            current.moved_at = now
        if now - current.moved_at >= STALL_S:
            return self._replace(current, healthy, "makes no progress", now)
        return ""

    def _name_first(self, present: dict[int, _Candidate], now: float) -> str:
        incumbent = next((i for i, c in sorted(present.items()) if c.report.is_archiver), None)
        if incumbent is None and now - self._began_at < INCUMBENT_GRACE_S:
            return ""
        # What others keep below its own beginning, it would never bring into the archive.
        preferences = {i: (bool(c.report.problem), c.report.wal_begin_lsn, i) for i, c in present.items()}
        chosen = incumbent or min(preferences, key=preferences.__getitem__, default=0)
        if not chosen:
            return ""
        self._name(chosen, now)
        return f"safekeeper {chosen} archives"

    def _replace(self, current: _Candidate, candidates: dict[int, _Candidate], reason: str, now: float) -> str:
        if not reason or not candidates:
            return ""
        before = self.archiver
        current.rests_until = now + REST_S
        self._name(min(candidates), now)
        return f"safekeeper {self.archiver} archives from now on: safekeeper {before} {reason}"

    def _name(self, safekeeper_id: int, now: float) -> None:
        self.archiver = safekeeper_id
        candidate = self._candidates[safekeeper_id]
        candidate.moved_at = now
        if candidate.report.is_archiver:
            self._take(candidate.report)

    def _take(self, report: ArchiveReport) -> None:
        """Take note of the archiver's progress."""
        if report.archive_id and report.archive_id != self.archive_id:
            # How far another one was, says nothing of this one.
            self.archive_id, self.archived_lsn = report.archive_id, 0
        self.archived_lsn = report.archived_lsn or self.archived_lsn

    def _is_stranger(self, report: ArchiveReport) -> bool:
        """Whether it speaks of another archive than the archiver."""
        return bool(report.archive_id and self.archive_id and report.archive_id != self.archive_id)
