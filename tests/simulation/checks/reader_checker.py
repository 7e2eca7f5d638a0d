"""What those that read from a safekeeper have seen must be committed, and stay (ReaderSafety, CommitMonotonic)."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.consensus.term_history import HistoryEntry, TermHistory, last_term
from tests.simulation.checks.violation import Violation
from tests.simulation.model.synthetic_wal import last_complete_end, records

if TYPE_CHECKING:
    from tests.simulation.checks.checkers import Checker, Won
    from tests.simulation.model.safekeeper import SimSafekeeper
    from tests.simulation.model.standby import SimStandby


@dataclass
class Seen:
    """What the readers of one safekeeper have seen in its present life."""

    begin_lsn: Lsn
    data: bytearray = field(default_factory=bytearray)
    tli: int = 0
    visible_lsn: Lsn = 0
    history: TermHistory = ()

    @property
    def end_lsn(self) -> Lsn:
        return self.begin_lsn + len(self.data)


class ReaderChecker:
    """Remembers what readers were shown, and compares it with what the checker has as committed."""

    def __init__(self, truth: "Checker") -> None:
        self._truth = truth
        self._seen: dict[int, Seen] = {}
        self._shown: dict[HistoryEntry, int] = {}

    def on_death(self, safekeeper: "SimSafekeeper") -> None:
        """After a restart the lazy positions may be older ones."""
        self._seen.pop(safekeeper.id, None)

    def on_handled(self, safekeeper: "SimSafekeeper") -> None:
        """A handler is through: look at what readers may see now."""
        acceptor = safekeeper.acceptor
        assert acceptor is not None  # it has just run
        visible_lsn = acceptor.readable_lsn
        seen = self._seen.get(safekeeper.id)
        if seen is None:
            seen = self._seen[safekeeper.id] = Seen(max(safekeeper.disk.begin_lsn, self._truth.base_lsn))
        control, seen_lsn = acceptor.control, seen.begin_lsn + len(seen.data)
        if control.base_lsn is not None and control.base_lsn >= seen_lsn:
            # It is skipping WAL: meanwhile its readers see nothing, and nothing that they saw goes.
            del self._seen[safekeeper.id]
            return
        if visible_lsn != seen_lsn and self._truth.base_lsn:
            self._check_visible(safekeeper, seen, visible_lsn)
        if visible_lsn > safekeeper.disk.begin_lsn:
            history = control.history
            if visible_lsn == seen.visible_lsn and history is seen.history:
                return  # The timeline is a function of these.
            tli = acceptor.readable_tli
            if tli != seen.tli or history is not seen.history:
                self._on_shown_tli(safekeeper, tli, history)
            seen.tli, seen.visible_lsn, seen.history = tli, visible_lsn, history

    def _on_shown_tli(self, safekeeper: "SimSafekeeper", tli: int, history: TermHistory) -> None:
        """A timeline that readers were shown is in every later log, from the same fork on (S7)."""
        entry = next((entry for entry in self._truth.whole(history) if entry.tli == tli), None)
        if entry is None:
            raise Violation("ReaderSafety", f"readers of {safekeeper.name} are shown timeline {tli}, which it has not")
        if entry not in self._shown and not self._truth.may_be_given_up(history, entry.start_lsn):
            self._shown[entry] = last_term(history)
            for won in self._truth.won.values():
                self.check_tli_stays(won)

    def check_tli_stays(self, won: "Won") -> None:
        """A term is won: its log has every timeline that readers were shown before."""
        for entry, shown_in_term in list(self._shown.items()):
            if won.history[-1].gives_up and entry.start_lsn >= won.history[-1].start_lsn:
                del self._shown[entry]
            elif won.leader_id.term > shown_in_term and entry not in won.history:
                raise Violation(
                    "ReaderSafety",
                    f"readers were shown timeline {entry.tli} from {format_lsn(entry.start_lsn)} on, "
                    f"which the log of {won.leader_id} does not have",
                )

    def _check_visible(self, safekeeper: "SimSafekeeper", seen: "Seen", visible_lsn: Lsn) -> None:
        """Readers see what is committed, and it stays; but for the bytes of an incomplete record (S9)."""
        disk = safekeeper.disk
        if visible_lsn < seen.end_lsn:
            lost = next(records(seen.data, seen.begin_lsn, max(visible_lsn, seen.begin_lsn)), None)
            history = safekeeper.disk.control.history if safekeeper.disk.control is not None else ()
            # Of what is given up from below its beginning a log keeps nothing: it begins again, and is fed from there.
            gives_up = any(e.gives_up and e.start_lsn < seen.end_lsn for e in self._truth.whole(history))
            if lost is not None and not gives_up:
                raise Violation(
                    "CommitMonotonic",
                    f"readers of {safekeeper.name} have seen the record at {format_lsn(lost[0])}, and it is gone",
                )
            del seen.data[max(0, visible_lsn - seen.begin_lsn) :]
        if seen.begin_lsn < disk.begin_lsn <= seen.end_lsn:
            # What was seen there is no longer kept; it cannot be seen in another form.
            del seen.data[: disk.begin_lsn - seen.begin_lsn]
            seen.begin_lsn = disk.begin_lsn
        if disk.begin_lsn > seen.begin_lsn or visible_lsn <= seen.begin_lsn:
            seen.begin_lsn, seen.data = max(disk.begin_lsn, self._truth.base_lsn), bytearray()
        if visible_lsn <= seen.begin_lsn:
            return
        begin_lsn = seen.end_lsn
        more = disk.wal[begin_lsn - disk.begin_lsn : visible_lsn - disk.begin_lsn]
        seen.data += more
        ours = self._truth.committed[begin_lsn - self._truth.base_lsn : visible_lsn - self._truth.base_lsn]
        if more != ours:
            same = next((i for i, (a, b) in enumerate(zip(more, ours, strict=False)) if a != b), len(ours))
            # Above a fork an old member may still show bytes of a record that was never complete.
            lost = next(records(disk.wal[: visible_lsn - disk.begin_lsn], disk.begin_lsn, begin_lsn + same), None)
            complete_lsn = last_complete_end(disk.wal, disk.begin_lsn, visible_lsn)
            history = safekeeper.acceptor.control.history if safekeeper.acceptor is not None else ()
            given_up = self._truth.may_be_given_up(history, begin_lsn + same)
            if not given_up and (lost is not None or complete_lsn > begin_lsn + same):
                raise Violation(
                    "ReaderSafety",
                    f"readers of {safekeeper.name} see bytes at {format_lsn(begin_lsn + same)} that are not committed",
                )

    def on_replayed(self, standby: "SimStandby", wal: bytes) -> None:
        """A standby replays whole records, for good: they must be committed ones, whomever it has them from."""
        begin_lsn = standby.applied_lsn
        if wal != self._truth.committed[begin_lsn - self._truth.base_lsn : begin_lsn - self._truth.base_lsn + len(wal)]:
            raise Violation(
                "ReaderSafety",
                f"{standby.name} replays {len(wal)} bytes from {format_lsn(begin_lsn)} on that are not committed",
            )
