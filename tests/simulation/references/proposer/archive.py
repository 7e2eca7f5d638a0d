"""The archiver, and the archive, as docs/design/protocol.md states them (9.2).

Part of the reference of the proposer (proposer.py). Which safekeeper is named is the proposer's choice; what the
members are sent about its archive is not.
"""

from safekeeper.consensus.messages import ArchiveReport


class Archive:
    """What an archiver has reported.

    Attributes:
        archiver: the safekeeper that was named last, 0 before.
        lsn, archive_id: what the archivers of this term have reported last.
    """

    def __init__(self) -> None:
        self.archiver = 0
        self.lsn = 0
        self.archive_id = ""
        self._reports: dict[int, ArchiveReport] = {}

    def reported(self, safekeeper_id: int, report: ArchiveReport) -> None:
        """A report of a member that follows."""
        self._reports[safekeeper_id] = report
        if safekeeper_id == self.archiver:
            self._take(report)

    def name(self, archiver: int) -> None:
        """The archiver in an assignment."""
        if archiver != self.archiver:
            self.archiver = archiver
            self._take(self._reports[archiver])

    def _take(self, report: ArchiveReport) -> None:
        """What it reports counts if it archives already; 0 and an empty id are no news."""
        if not report.is_archiver:
            return
        if report.archive_id not in ("", self.archive_id):
            self.archive_id, self.lsn = report.archive_id, 0
        if report.archived_lsn:
            self.lsn = report.archived_lsn
