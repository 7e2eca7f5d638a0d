"""What standbys have replayed, as docs/design/protocol.md states it (7.6, 7.14).

Part of the reference of the proposer (proposer.py).
"""

from collections.abc import Iterable

from safekeeper.consensus.messages import Standby
from walproxy.proposer.apply_rule import ApplyRule

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

    def report(self, safekeeper_id: int, standbys: Iterable[Standby]) -> None:
        """A safekeeper reports all standbys that stream from it."""
        before = self._reports.get(safekeeper_id, {})
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
        self._gone.update({name: lsn for name, lsn in before.items() if name not in present})
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


def _folded(name: str) -> str:
    return "".join(chr(ord(letter) + 32) if "A" <= letter <= "Z" else letter for letter in name)
