"""The newest log among the members of a cluster: what an election would continue, and who could be its primary."""

from typing import NamedTuple

from safekeeper.base.errors import PrimaryRefused
from safekeeper.base.lsn import Lsn
from safekeeper.consensus.term_history import TermHistory, last_tli
from tests.simulation.model.primary import VirtualPrimary
from tests.simulation.model.synthetic_wal import last_complete_end, last_timed_record
from walproxy.proposer.primary import plan_log
from walproxy.proposer.purpose import sealed_reason


class NewestLog(NamedTuple):
    """A log: where it begins, its bytes, its history."""

    begin_lsn: Lsn
    wal: bytes
    history: TermHistory

    @property
    def end_lsn(self) -> Lsn:
        """Where it ends."""
        return self.begin_lsn + len(self.wal)

    @property
    def tli(self) -> int:
        """The timeline of its last byte, 0 if it has none."""
        return last_tli(self.history, self.end_lsn)

    @property
    def floor(self) -> int:
        """The highest timeline that is sealed."""
        return self.history[-1].floor if self.history else 0

    def is_continued_by(self, primary: VirtualPrimary, *, may_be_recycled: bool = False) -> bool:
        """Return whether a primary's WAL goes on where this log ends, has its bytes before, and is not sealed off.

        One that was promoted after a seal may fork off before an incomplete record at the log's end.
        """
        end_lsn, is_sealed = self.end_lsn, self.floor > 0
        lowest_lsn = last_complete_end(self.wal, self.begin_lsn, end_lsn) if is_sealed else end_lsn
        timed_lsn, _ = last_timed_record(self.wal, self.begin_lsn, end_lsn)
        is_recycled = primary.oldest_lsn > (timed_lsn or self.begin_lsn) and not may_be_recycled
        if not self.history or primary.flush_lsn < lowest_lsn or is_recycled:
            return not self.history
        try:
            plan = plan_log(self.history, end_lsn, primary.identity())
        except PrimaryRefused:
            return False
        if plan.start_lsn < lowest_lsn or sealed_reason(primary.identity(), self.floor):
            return False
        same_lsn = min(plan.start_lsn, end_lsn)
        return primary.read(self.begin_lsn, same_lsn) == self.wal[: same_lsn - self.begin_lsn]
