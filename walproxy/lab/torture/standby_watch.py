"""Watch the standbys: none may ever have WAL that is not committed.

The positions that a standby reports reach the leading proxy through the safekeepers that follow it, and are in
its /status beside commit_lsn. That commit_lsn is 0 until a quorum has the term's start, and covers whatever was
committed before from then on: so within one /status no standby may be ahead of it.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from safekeeper.base.lsn import format_lsn, parse_lsn
from walproxy.lab.torture.record import Violation
from walproxy.lab.torture.repeatedly import Repeatedly

AHEAD: Final = "Ahead"
_EVERY_S: Final = 0.5
_POSITIONS: Final = ("write_lsn", "flush_lsn", "apply_lsn")


def standbys_ahead(status: dict[str, Any]) -> Iterable[tuple[str, str]]:
    """Return (name, message) of each standby that is ahead of commit_lsn in the /status of a proxy."""
    commit_lsn = parse_lsn(status["commit_lsn"])
    if not commit_lsn:
        return
    for standby in status["standbys"]:
        furthest_lsn = max(parse_lsn(standby[position]) for position in _POSITIONS)
        if furthest_lsn > commit_lsn:
            yield (
                standby["name"],
                f"the standby {standby['name']} is at {format_lsn(furthest_lsn)} and the quorum only at "
                f"{format_lsn(commit_lsn)}, in /status of the proxy of run {status['run']}",
            )


class StandbyWatch(Repeatedly):
    """Watches while it is entered.

    Attributes:
        violations: one for each standby that was ahead, the first time.
        looked: how often a proxy has reported a standby.

    Args:
        status_of: returns the /status of a proxy, None if it does not answer; called from the watch's thread.
        proxies: their names.
    """

    def __init__(self, status_of: Callable[[str], dict[str, Any] | None], proxies: Iterable[str]) -> None:
        super().__init__("standby watch", _EVERY_S, self._ask_all)
        self.violations: list[Violation] = []
        self.looked = 0
        self._status_of = status_of
        self._proxies = tuple(proxies)
        self._seen: set[str] = set()

    def look(self, status: dict[str, Any]) -> None:
        """Look at the standbys of one /status."""
        self.looked += len(status["standbys"])
        for name, message in standbys_ahead(status):
            if name not in self._seen:
                self._seen.add(name)
                self.violations.append(Violation(AHEAD, message))

    def _ask_all(self) -> None:
        for status in filter(None, map(self._status_of, self._proxies)):
            self.look(status)
