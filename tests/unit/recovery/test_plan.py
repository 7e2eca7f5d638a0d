"""How far recovery reaches, of sources that change while they are asked."""

from typing import cast

from walproxy.recovery.fetcher import Fetcher
from walproxy.recovery.plan import reach_of_all
from walproxy.wal_sources.source import LogPath

PATH = LogPath(1, (), 1 << 20)


class OneSource:
    """Stands for a fetcher. Each answer is of another moment: its source has WAL up to the next of `ends`."""

    def __init__(self, *ends: int, again_at: int | None = None) -> None:
        self._ends = list(ends)
        self._again_at = again_at

    def _end(self) -> int:
        return self._ends.pop(0) if len(self._ends) > 1 else self._ends[0]

    def reach(self, path: LogPath, begin_lsn: int) -> int:
        return max(self._end(), begin_lsn)

    def next_after(self, path: LogPath, lsn: int) -> int | None:
        return lsn if lsn < self._end() else self._again_at


def reached(source: OneSource) -> tuple[int, int | None, bool]:
    return reach_of_all(cast(Fetcher, source), PATH, 100, [])


def test_wal_that_arrives_meanwhile_is_no_hole() -> None:
    assert reached(OneSource(200, 200, 300, 300, 300)) == (300, None, False)


def test_wal_behind_missing_wal_is_a_hole() -> None:
    assert reached(OneSource(200, again_at=500)) == (200, 500, False)
