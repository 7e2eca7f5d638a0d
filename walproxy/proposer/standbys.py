"""The reports of all standbys: the `apply` position, and the transactions that they still need.

Theory of operation. Each safekeeper reports the standbys that stream from it to the proposer, all of them in one
message (`StandbyFeedback`), whenever one has sent new positions and after each adoption. The proposer keeps these
reports across terms:

- the last report of a disconnected safekeeper is valid until its next one, or until another safekeeper reports a
  standby of the same name, which streams from there then;
- the last report of a standby that no longer streams is kept. WAL that it has replayed stays replayed, so `apply` stays
  at that position: remote_apply waits for later WAL, `on` does not;
- a term that begins below a position that a standby has reported has cut WAL there (S9), which no longer counts.

Feedback about transactions is different: only standbys that are known to stream now hold back vacuum. The reports of
a disconnected safekeeper would hold it back indefinitely.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from safekeeper.base.lsn import LSN_MAX, Lsn
from safekeeper.consensus.messages import Standby
from walproxy.proposer.apply_rule import ApplyRule, fold_name

# The limit of kept standbys that do not stream; those that the rule names are kept in any case (S14).
GONE_MAX = 64


class StandbyRow(NamedTuple):
    """A standby for the status page.

    Attributes:
        standby: its last report.
        safekeeper_id: the safekeeper from which it streams, or has streamed last.
        connected: whether it is known to stream now.
        designated: whether remote_apply may wait for it.
    """

    standby: Standby
    safekeeper_id: int
    connected: bool
    designated: bool


class Standbys:
    """The table of all standbys.

    Attributes:
        rule: the standbys that must have replayed.
        applied_lsn: the reported position up to which the rule is met; LSN_MAX if no standby is designated.
    """

    def __init__(self, rule: ApplyRule) -> None:
        self.rule = rule
        self.applied_lsn: Lsn = LSN_MAX
        self._reports: dict[int, tuple[Standby, ...]] = {}
        self._connected: set[int] = set()
        self._gone: dict[str, tuple[int, Standby]] = {}
        self.set_rule(rule)

    def on_report(self, safekeeper_id: int, standbys: tuple[Standby, ...]) -> None:
        """Handle the report of a safekeeper about all standbys that stream from it."""
        before = self._reports.get(safekeeper_id, ())
        self._reports[safekeeper_id] = standbys
        self._connected.add(safekeeper_id)
        if len(self._connected) == len(self._reports) and [s.name for s in standbys] == [s.name for s in before]:
            # The usual report: the same standbys, new positions. No standby has come, gone or moved.
            self._count()
            return
        names = {fold_name(standby.name) for standby in standbys}
        for name in names:
            self._gone.pop(name, None)
        for other in self._reports.keys() - self._connected:
            self._reports[other] = tuple(s for s in self._reports[other] if fold_name(s.name) not in names)
        if before:
            self._remember_gone(safekeeper_id, before)
        self._count()

    def _remember_gone(self, safekeeper_id: int, before: Sequence[Standby]) -> None:
        """Keep the last reports of those of `before` that no safekeeper reports now."""
        present = {fold_name(standby.name) for reported in self._reports.values() for standby in reported}
        for standby in sorted(before, key=lambda each: -each.apply_lsn):
            if fold_name(standby.name) not in present:
                # Of two with the same name the lower position counts: it is last.
                self._gone[fold_name(standby.name)] = (safekeeper_id, standby)
        surplus = len(self._gone) - GONE_MAX
        for name in [name for name in self._gone if name not in self.rule.names][: max(0, surplus)]:
            del self._gone[name]

    def disconnected(self, safekeeper_id: int) -> None:
        """Handle the end of the connection to a safekeeper."""
        self._connected.discard(safekeeper_id)

    def cut(self, lsn: Lsn) -> None:
        """Cut all positions at `lsn`, where a term's log begins: WAL beyond it is not of this log."""
        for safekeeper_id, reported in self._reports.items():
            self._reports[safekeeper_id] = tuple(_cut(standby, lsn) for standby in reported)
        self._gone = {name: (where, _cut(standby, lsn)) for name, (where, standby) in self._gone.items()}
        self._count()

    def set_rule(self, rule: ApplyRule) -> None:
        """Designate other standbys."""
        self.rule = rule
        self._count()

    def _count(self) -> None:
        self.applied_lsn = self.rule.applied_lsn(self._positions()) if self.rule.count else LSN_MAX

    def _positions(self) -> dict[str, Lsn]:
        """Return the apply position of each name, folded."""
        positions = {name: standby.apply_lsn for name, (_, standby) in self._gone.items()}
        for reported in self._reports.values():
            for standby in reported:
                name = fold_name(standby.name)
                positions[name] = min(positions.get(name, standby.apply_lsn), standby.apply_lsn)
        return positions

    def apply_lsn(self, commit_lsn: Lsn) -> Lsn:
        """Return the `apply` position that goes with `commit_lsn`, never above it (S1)."""
        return min(commit_lsn, self.applied_lsn)

    def oldest_xmins(self) -> tuple[int, int]:
        """Return the oldest xmin and catalog_xmin that a standby which streams now needs, as 64 bits; 0 if none."""
        streaming = [standby for i in self._connected for standby in self._reports[i]]
        return (
            min((standby.xmin for standby in streaming if standby.xmin), default=0),
            min((standby.catalog_xmin for standby in streaming if standby.catalog_xmin), default=0),
        )

    def rows(self) -> list[StandbyRow]:
        """Return every standby that is known, and those that are designated and gone, by name."""
        return sorted(self._rows(), key=lambda row: (fold_name(row.standby.name), row.safekeeper_id))

    def _rows(self) -> Iterator[StandbyRow]:
        for safekeeper_id, reported in self._reports.items():
            for standby in reported:
                connected, designated = safekeeper_id in self._connected, self.rule.designates(standby.name)
                yield StandbyRow(standby, safekeeper_id, connected, designated)
        for safekeeper_id, standby in self._gone.values():
            if self.rule.designates(standby.name):
                yield StandbyRow(standby, safekeeper_id, False, True)

    def lacking(self) -> str:
        """Return why remote_apply is blocked, empty if enough designated standbys stream."""
        rule = self.rule
        streaming = {fold_name(s.name): s for i in self._connected for s in self._reports[i] if rule.designates(s.name)}
        if not rule.names:
            # For `*`: readers that do not replay, like pg_receivewal, can never meet the rule.
            replaying = sum(1 for standby in streaming.values() if standby.apply_lsn)
            return "" if replaying >= rule.count else f"{replaying} of {rule.count} required standbys replay"
        if len(streaming) >= rule.count:
            return ""
        absent = [name for name in rule.names if name not in streaming]
        return f"{', '.join(absent)} {'is' if len(absent) == 1 else 'are'} not streaming"


def _cut(standby: Standby, lsn: Lsn) -> Standby:
    if max(standby.write_lsn, standby.flush_lsn, standby.apply_lsn) <= lsn:
        return standby
    return msgspec.structs.replace(
        standby,
        write_lsn=min(standby.write_lsn, lsn),
        flush_lsn=min(standby.flush_lsn, lsn),
        apply_lsn=min(standby.apply_lsn, lsn),
    )
