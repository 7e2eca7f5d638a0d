"""What standbys have replayed, as docs/design/protocol.md states it (7.6, 7.14).

Part of the reference of the proposer (proposer.py).
"""

from collections.abc import Iterable

import msgspec

from safekeeper.consensus.messages import Standby
from walproxy.proposer.apply_rule import ApplyRule

# A standby's name, the safekeeper, whether it streams, whether it is designated, and its positions.
Row = tuple[str, int, bool, bool, tuple[int, int, int]]
NO_LIMIT = (1 << 64) - 1


class ReferenceStandbys:
    """The reports of all safekeepers, in this term and before.

    Attributes:
        rule: which standbys are designated.
    """

    def __init__(self, rule: ApplyRule) -> None:
        self.rule = rule
        self._reports: dict[int, dict[str, int]] = {}  # safekeeper: name: apply_lsn
        self._connected: set[int] = set()
        self._gone: dict[str, int] = {}
        self._whole: dict[int, tuple[Standby, ...]] = {}  # as reported
        self._left: dict[str, tuple[int, Standby]] = {}  # where one that is gone has streamed last, and its last report

    def report(self, safekeeper_id: int, standbys: Iterable[Standby]) -> None:
        """A safekeeper reports all standbys that stream from it."""
        standbys = tuple(standbys)
        before = self._reports.get(safekeeper_id, {})
        last = {_folded(standby.name): standby for standby in self._whole.get(safekeeper_id, ())}
        self._whole[safekeeper_id] = standbys
        names: dict[str, int] = {}
        for standby in standbys:
            name = _folded(standby.name)
            names[name] = min(standby.apply_lsn, names.get(name, NO_LIMIT))
        self._connected.add(safekeeper_id)
        self._reports[safekeeper_id] = names
        for other, reported in self._reports.items():
            if other not in self._connected:
                self._reports[other] = {name: lsn for name, lsn in reported.items() if name not in names}
        present = {name for reported in self._reports.values() for name in reported}
        left = {name: lsn for name, lsn in before.items() if name not in present}
        self._gone.update(left)
        self._left.update({name: (safekeeper_id, last[name]) for name in left})
        self._gone = {name: lsn for name, lsn in self._gone.items() if name not in names}

    def disconnected(self, safekeeper_id: int) -> None:
        """The last report counts until the next one, or until another safekeeper reports the same name."""
        self._connected.discard(safekeeper_id)

    def cut(self, lsn: int) -> None:
        """A term begins there."""
        self._reports = {
            safekeeper_id: {name: min(apply_lsn, lsn) for name, apply_lsn in reported.items()}
            for safekeeper_id, reported in self._reports.items()
        }
        self._gone = {name: min(apply_lsn, lsn) for name, apply_lsn in self._gone.items()}
        self._whole = {i: tuple(_up_to(standby, lsn) for standby in whole) for i, whole in self._whole.items()}
        self._left = {name: (i, _up_to(standby, lsn)) for name, (i, standby) in self._left.items()}

    def oldest_xmins(self) -> tuple[int, int]:
        """The oldest xmin and catalog_xmin of those that stream now, 0 for none."""
        now = [standby for safekeeper_id in self._connected for standby in self._whole[safekeeper_id]]
        xmins = sorted(standby.xmin for standby in now if standby.xmin)
        catalog_xmins = sorted(standby.catalog_xmin for standby in now if standby.catalog_xmin)
        return (*xmins[:1], 0)[0], (*catalog_xmins[:1], 0)[0]

    def rows(self) -> tuple[Row, ...]:
        """Each standby, also one that is designated and gone."""
        rows = [
            (name, safekeeper_id, safekeeper_id in self._connected, self._is_designated(name), positions_of(standby))
            for safekeeper_id, names in self._reports.items()
            for standby in self._whole[safekeeper_id]
            if (name := _folded(standby.name)) in names
        ]
        for name in self._gone:
            if self._is_designated(name):
                safekeeper_id, standby = self._left[name]
                rows.append((name, safekeeper_id, False, True, positions_of(standby)))
        return tuple(sorted(rows))

    def _is_designated(self, name: str) -> bool:
        return self.rule.count > 0 and (not self.rule.names or name in self.rule.names)

    def is_lacking(self) -> bool:
        """Whether too few of the designated ones stream; where each one is designated, too few that replay."""
        streaming = {
            name: lsn for safekeeper_id in self._connected for name, lsn in self._reports[safekeeper_id].items()
        }
        if self.rule.names:
            return len(streaming.keys() & set(self.rule.names)) < self.rule.count
        last = {_folded(s.name): s.apply_lsn for i in self._connected for s in self._whole[i]}
        return sum(1 for name in streaming if last[name]) < self.rule.count

    def apply_lsn(self, commit_lsn: int) -> int:
        """7.6: the smaller of commit_lsn and what the designated standbys have replayed."""
        if not self.rule.count:
            return commit_lsn
        lsns: dict[str, list[int]] = {name: [lsn] for name, lsn in self._gone.items()}
        for reported in self._reports.values():
            for name, lsn in reported.items():
                lsns.setdefault(name, []).append(lsn)
        names = self.rule.names or tuple(lsns)
        counted = sorted((min(lsns.get(name, [0])) for name in names), reverse=True)
        return min(commit_lsn, counted[self.rule.count - 1]) if len(counted) >= self.rule.count else 0


def positions_of(standby: Standby) -> tuple[int, int, int]:
    """Return what a standby has received, has on its disk, and has replayed."""
    return standby.write_lsn, standby.flush_lsn, standby.apply_lsn


def _up_to(standby: Standby, lsn: int) -> Standby:
    write_lsn, flush_lsn, apply_lsn = (min(position, lsn) for position in positions_of(standby))
    return msgspec.structs.replace(standby, write_lsn=write_lsn, flush_lsn=flush_lsn, apply_lsn=apply_lsn)


def _folded(name: str) -> str:
    return "".join(chr(ord(letter) + 32) if "A" <= letter <= "Z" else letter for letter in name)
