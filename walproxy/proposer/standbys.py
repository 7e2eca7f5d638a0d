"""What the standbys of all safekeepers have said: the `apply` position, and the transactions that they still need.

Theory of operation. Each safekeeper tells the proposer about the standbys that stream from it, all of them at a time
(`StandbyFeedback`), whenever one has said something new and whenever a proposer was adopted. The proposer keeps these
words across terms:

- a safekeeper whose connection is gone has said its last words for now: they hold until it speaks again, or until
  another safekeeper speaks of a standby of the same name, which has moved there then;
- a standby that streams from nowhere any more is remembered with its last words. What it has replayed stays replayed,
  so `apply` stays where it is: remote_apply waits for what comes after, `on` does not;
- a term that begins below a position that a standby has reached has cut bytes there (S9). They are nobody's any more.

Feedback about transactions is different: only those that are known to stream now hold back vacuum. The words of a
safekeeper that nobody hears from would hold it back for ever.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from safekeeper.base.lsn import LSN_MAX, Lsn
from safekeeper.consensus.messages import Standby
from walproxy.proposer.apply_rule import ApplyRule, fold_name

# Standbys that stream from nowhere; whoever is named in the rule is remembered in any case (S14).
GONE_MAX = 64


class StandbyRow(NamedTuple):
    """A standby as a status page shows it.

    Attributes:
        standby: what it said last.
        safekeeper_id: where it streams from, or did last.
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
        rule: who must have replayed.
        applied_lsn: how far the designated have replayed, as far as is known; LSN_MAX if nobody is designated.
    """

    def __init__(self, rule: ApplyRule) -> None:
        self.rule = rule
        self.applied_lsn: Lsn = LSN_MAX
        self._said: dict[int, tuple[Standby, ...]] = {}
        self._heard: set[int] = set()
        self._gone: dict[str, tuple[int, Standby]] = {}
        self.set_rule(rule)

    # ------------------------------------------------------------------ what happens

    def on_report(self, safekeeper_id: int, standbys: tuple[Standby, ...]) -> None:
        """A safekeeper speaks of all standbys that stream from it."""
        before = self._said.get(safekeeper_id, ())
        self._said[safekeeper_id] = standbys
        self._heard.add(safekeeper_id)
        names = {fold_name(standby.name) for standby in standbys}
        for name in names:
            self._gone.pop(name, None)
        for other in self._said.keys() - self._heard:
            self._said[other] = tuple(s for s in self._said[other] if fold_name(s.name) not in names)
        if before:
            self._remember_gone(safekeeper_id, before)
        self._count()

    def _remember_gone(self, safekeeper_id: int, before: Sequence[Standby]) -> None:
        """Keep the last words of those of `before` whom nobody speaks of any more."""
        present = {fold_name(standby.name) for said in self._said.values() for standby in said}
        for standby in sorted(before, key=lambda each: -each.apply_lsn):
            if fold_name(standby.name) not in present:
                # Of two that bear one name the lower position counts: it comes last.
                self._gone[fold_name(standby.name)] = (safekeeper_id, standby)
        surplus = len(self._gone) - GONE_MAX
        for name in [name for name in self._gone if name not in self.rule.names][: max(0, surplus)]:
            del self._gone[name]

    def disconnected(self, safekeeper_id: int) -> None:
        """The connection to a safekeeper is gone."""
        self._heard.discard(safekeeper_id)

    def cut(self, lsn: Lsn) -> None:
        """A term's log begins anew at `lsn`: what anybody had beyond it is not of this log."""
        for safekeeper_id, said in self._said.items():
            self._said[safekeeper_id] = tuple(_cut(standby, lsn) for standby in said)
        self._gone = {name: (where, _cut(standby, lsn)) for name, (where, standby) in self._gone.items()}
        self._count()

    def set_rule(self, rule: ApplyRule) -> None:
        """Somebody else is designated from now on."""
        self.rule = rule
        self._count()

    def _count(self) -> None:
        self.applied_lsn = self.rule.applied_lsn(self._positions()) if self.rule.count else LSN_MAX

    def _positions(self) -> dict[str, Lsn]:
        """Return the apply position of each name, folded."""
        positions = {name: standby.apply_lsn for name, (_, standby) in self._gone.items()}
        for said in self._said.values():
            for standby in said:
                name = fold_name(standby.name)
                positions[name] = min(positions.get(name, standby.apply_lsn), standby.apply_lsn)
        return positions

    # ------------------------------------------------------------------ what follows

    def apply_lsn(self, commit_lsn: Lsn) -> Lsn:
        """Return the `apply` position that goes with `commit_lsn`, never above it (S1)."""
        return min(commit_lsn, self.applied_lsn)

    def oldest_xmins(self) -> tuple[int, int]:
        """Return the oldest xmin and catalog_xmin that a standby which streams now needs, as 64 bits; 0 if none."""
        streaming = [standby for i in self._heard for standby in self._said[i]]
        return (
            min((standby.xmin for standby in streaming if standby.xmin), default=0),
            min((standby.catalog_xmin for standby in streaming if standby.catalog_xmin), default=0),
        )

    def rows(self) -> list[StandbyRow]:
        """Return every standby that is known, and those that are designated and gone, by name."""
        return sorted(self._rows(), key=lambda row: (fold_name(row.standby.name), row.safekeeper_id))

    def _rows(self) -> Iterator[StandbyRow]:
        for safekeeper_id, said in self._said.items():
            for standby in said:
                connected, designated = safekeeper_id in self._heard, self.rule.designates(standby.name)
                yield StandbyRow(standby, safekeeper_id, connected, designated)
        for safekeeper_id, standby in self._gone.values():
            if self.rule.designates(standby.name):
                yield StandbyRow(standby, safekeeper_id, False, True)

    def lacking(self) -> str:
        """Return why remote_apply waits in vain, empty if enough of the designated stream."""
        rule = self.rule
        streaming = {fold_name(s.name): s for i in self._heard for s in self._said[i] if rule.designates(s.name)}
        if not rule.names:
            # Of everybody, those that replay nothing, like pg_receivewal, can never meet the rule.
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
