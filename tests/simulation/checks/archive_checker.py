"""What is archived is what is committed, it stays, and nothing is removed that no other place has (NoHole).

How far the archive is, is found by comparing bytes, whatever the names are: `archived_end`.
"""

from typing import TYPE_CHECKING

from safekeeper.base.lsn import Lsn, format_lsn, segment_start
from safekeeper.consensus.term_history import TermHistory
from tests.simulation.checks.violation import Violation
from tests.simulation.model.archive import ArchiveKey
from tests.simulation.model.synthetic_wal import SEGMENT_SIZE, last_complete_end, records

if TYPE_CHECKING:
    from tests.simulation.checks.checkers import Checker
    from tests.simulation.model.safekeeper import SimSafekeeper


class ArchiveChecker:
    """Compares the archive, and what is reported of it, with what the checker has as committed."""

    def __init__(self, truth: "Checker") -> None:
        self._truth = truth
        self._begins: dict[int, Lsn] = {}
        self._believed: dict[int, tuple[Lsn, TermHistory]] = {}
        # By log: below it every segment was found to be archived whole.
        self._whole: dict[TermHistory, Lsn] = {}
        # What every member has had once, need not be on a member again that a new term has cut below it.
        self._was_on_all_lsn: Lsn = 0

    def on_upload(self, safekeeper: "SimSafekeeper", key: ArchiveKey, content: bytes) -> None:
        """An archiver has read what it is about to upload: that is committed (S7)."""
        truth = self._truth
        ours = truth.committed[key.begin_lsn - truth.base_lsn : key.end_lsn - truth.base_lsn]
        if content != ours:
            self._require_incomplete(safekeeper.name, key, content, ours)

    def on_confirmed(self, key: ArchiveKey, content: bytes) -> None:
        """An upload is through: no other bytes were archived under that name."""
        archive = self._truth.world.archive
        if archive is not None and archive.objects.get(key, content) != content:
            raise Violation("ArchiveUnchanging", f"{key} is archived with other bytes than it was")

    def _require_incomplete(self, who: str, key: ArchiveKey, content: bytes, ours: bytes | bytearray) -> None:
        """Bytes that differ belong to a record that was never complete, and that a fork has replaced since (S9)."""
        at_lsn = key.begin_lsn + _common(content, ours)
        lost = next(records(content, key.begin_lsn, at_lsn), None)
        if lost is not None or last_complete_end(content, key.begin_lsn, key.end_lsn) > at_lsn:
            raise Violation(
                "ArchiveIsCommitted", f"{who} archives bytes at {format_lsn(at_lsn)} in {key} that are not committed"
            )

    def check_objects(self) -> None:
        """Whatever was archived is committed now, also if it was not when it was uploaded."""
        archive, truth = self._truth.world.archive, self._truth
        for key, content in archive.objects.items() if archive is not None else ():
            ours = truth.committed[key.begin_lsn - truth.base_lsn : key.end_lsn - truth.base_lsn]
            if content != ours:
                self._require_incomplete("an archiver", key, content, ours)

    def archived_end(self, history: TermHistory) -> Lsn:
        """Return how far the bytes of the log with this history are archived without a gap, from its beginning on."""
        archive = self._truth.world.archive
        history = self._truth.whole(history)
        lsn = self._whole.get(history, history[0].start_lsn)
        while archive is not None:
            begin_lsn = segment_start(lsn, SEGMENT_SIZE)
            log = self._truth.log_of(history, begin_lsn, begin_lsn + SEGMENT_SIZE)
            lsn = begin_lsn + max((_common(content, log) for _, content in archive.of_segment(begin_lsn)), default=0)
            if lsn < begin_lsn + SEGMENT_SIZE:
                break
            self._whole[history] = lsn
        return lsn

    def on_archive_sent(self, who: str, archived_lsn: Lsn, history: TermHistory) -> None:
        """A member was sent, or believes, how far its log is archived."""
        if archived_lsn and archived_lsn > self.archived_end(history):
            raise Violation(
                "ArchivedIsThere",
                f"{who} has the archive reach {format_lsn(archived_lsn)}, "
                f"but of this log it has all below {format_lsn(self.archived_end(history))} only",
            )

    def on_handled(self, safekeeper: "SimSafekeeper") -> None:
        """A handler is through: what the acceptor believes of the archive is true of its own log."""
        acceptor = safekeeper.acceptor
        if acceptor is None or self._truth.world.archive is None or not acceptor.control.history:
            return
        believed = acceptor.archived_lsn, acceptor.control.history
        if self._believed.get(safekeeper.id) != believed:
            self._believed[safekeeper.id] = believed
            self.on_archive_sent(safekeeper.name, *believed)

    def on_persist(self, safekeeper: "SimSafekeeper") -> None:
        """A log begins later from now on: what lies below is committed, and kept elsewhere."""
        control = safekeeper.disk.control
        assert control is not None  # it was just written
        begin_lsn = control.wal_begin_lsn if control.base_lsn is None else control.base_lsn
        if self._begins.get(safekeeper.id) == begin_lsn or not control.history:
            return
        self._begins[safekeeper.id] = begin_lsn
        if begin_lsn > self._truth.whole(control.history)[0].start_lsn:
            self._require_kept(safekeeper, control.history, begin_lsn)

    def _require_kept(self, safekeeper: "SimSafekeeper", history: TermHistory, begin_lsn: Lsn) -> None:
        truth = self._truth
        if truth.may_be_given_up(history, begin_lsn):
            return  # It has not received that yet, and will need nothing else of its log.
        if begin_lsn > truth.committed_lsn:
            raise Violation(
                "NoHole",
                f"the log of {safekeeper.name} begins at {format_lsn(begin_lsn)} from now on, "
                f"but only WAL below {format_lsn(truth.committed_lsn)} is committed",
            )
        if truth.world.archive is not None:
            if self.archived_end(history) < begin_lsn:
                raise Violation(
                    "NoHole",
                    f"{safekeeper.name} does not keep WAL below {format_lsn(begin_lsn)}, "
                    f"the archive has it up to {format_lsn(self.archived_end(history))} only",
                )
            return
        logs = [(member.name, truth.log_in(member.disk)) for member in truth.members()]
        lacking = [name for name, log in logs if log is not None and log.durable_lsn < begin_lsn]
        if lacking and begin_lsn > self._was_on_all_lsn:
            raise Violation(
                "NoHole", f"{safekeeper.name} does not keep WAL below {format_lsn(begin_lsn)}, which {lacking} lack"
            )
        self._was_on_all_lsn = max(self._was_on_all_lsn, begin_lsn)

    def on_committed_cut(self, lsn: Lsn) -> None:
        """A fork replaces what was committed from there on: no member has had what follows now."""
        self._was_on_all_lsn = min(self._was_on_all_lsn, lsn)

    def check_nothing_is_lost(self) -> None:
        """What any member no longer keeps is in the archive, and it is what was committed."""
        truth = self._truth
        if truth.world.archive is None:
            return
        for safekeeper in truth.members():
            control = safekeeper.disk.control
            assert control is not None  # it is a member
            if safekeeper.disk.begin_lsn > control.wal_begin_lsn and control.base_lsn is None:
                raise Violation("NoHole", f"{safekeeper.name} lacks WAL that its control file claims")
            is_begun = control.base_lsn is None and bool(control.history)
            if is_begun and control.wal_begin_lsn > self._truth.whole(control.history)[0].start_lsn:
                self._require_kept(safekeeper, control.history, control.wal_begin_lsn)


def _common(first: bytes | bytearray, second: bytes | bytearray) -> int:
    """Return how many bytes the two have in common from the beginning on."""
    size = min(len(first), len(second))
    if first[:size] == second[:size]:
        return size
    return next(i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
