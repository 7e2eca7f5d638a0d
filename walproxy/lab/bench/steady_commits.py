"""One client that commits a row, again and again, while the processes behind its commits come and go.

In a thread of its own, because it waits as long as a commit does. It notes when each commit began and ended, on the
clock of `time.monotonic`.
"""

import threading
from bisect import bisect_left
from collections.abc import Sequence
from time import monotonic
from types import TracebackType
from typing import NamedTuple, Self

import psycopg

from safekeeper.base.errors import WalproxyError
from safekeeper.base.logs import one_line
from walproxy.postgres.local_server import LocalPostgres

_TABLE = "CREATE TABLE IF NOT EXISTS steady_commits (payload text)"
_INSERT = "INSERT INTO steady_commits VALUES (repeat('x', 100))"
_END_TIMEOUT_S = 30.0


class Commit(NamedTuple):
    """When a commit was sent, and when it was acknowledged."""

    began_at: float
    ended_at: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended_at - self.began_at


def prepare(postgres: LocalPostgres) -> None:
    """Make the table."""
    postgres.execute(_TABLE)


def first_since(commits: Sequence[Commit], since: float) -> Commit | None:
    """Return the first of commits in a row that began at `since` or later."""
    index = bisect_left(commits, since, key=lambda commit: commit.began_at)
    return commits[index] if index < len(commits) else None


def longest_since(commits: Sequence[Commit], since: float) -> float:
    """Return the seconds of the longest commit that ended after `since`; 0 if there is none."""
    return max((commit.seconds for commit in commits if commit.ended_at > since), default=0.0)


class SteadyCommits:
    """A client that commits while this is entered."""

    def __init__(self, postgres: LocalPostgres) -> None:
        self._connection = psycopg.connect(postgres.conninfo(), autocommit=True)
        self._thread = threading.Thread(target=self._run, name="steady commits", daemon=True)
        self._changed = threading.Condition()
        self._commits: list[Commit] = []
        self._problem = ""
        self._ends = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ends = True
        self._thread.join(0.0 if kind else _END_TIMEOUT_S)
        if self._thread.is_alive():
            # A commit that nobody will acknowledge any more: PostgreSQL lets it go, and warns of it.
            self._connection.cancel_safe(timeout=_END_TIMEOUT_S)
            self._thread.join(_END_TIMEOUT_S)
        self._connection.close()

    def next_commit(self, since: float, timeout_s: float = 60.0) -> Commit:
        """Wait for the first commit that began at `since` or later, and return it.

        Not the one that was under way by then: what it waited for may have come before.

        Raises:
            WalproxyError: there is none within `timeout_s`, or commits have failed.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._problem or first_since(self._commits, since), timeout_s):
                raise WalproxyError(f"no commit was acknowledged for {timeout_s:g} s")
            commit = first_since(self._commits, since)
        if commit is None:
            raise WalproxyError(f"the client of the benchmark cannot commit any more: {self._problem}")
        return commit

    def longest_s(self, since: float) -> float:
        """Return the seconds of the longest commit that ended after `since`; 0 if there is none."""
        with self._changed:
            return longest_since(self._commits, since)

    def _run(self) -> None:
        try:
            while not self._ends:
                began_at = monotonic()
                self._connection.execute(_INSERT)
                with self._changed:
                    self._commits.append(Commit(began_at, monotonic()))
                    self._changed.notify_all()
        except psycopg.Error as error:
            with self._changed:
                self._problem = one_line(str(error))
                self._changed.notify_all()
