"""The replies to clients: which transactions were acknowledged, and when; which are in doubt; which have failed.

Written by the thread of the clients, read by others: entries are only ever appended, each as one object, in the order
in which the transactions ended. Times are those of `time.monotonic`, in seconds.
"""

import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from operator import attrgetter
from typing import Generic, Literal, NamedTuple, TypeVar

T = TypeVar("T")
Outcome = Literal["ok", "fail", "unknown"]
_ENDED_AT = attrgetter("ended_at")


class HistoryOperation(NamedTuple, Generic[T]):
    """One transaction, as its client saw it.

    Attributes:
        client: its number, from 1.
        outcome: "ok": the commit was acknowledged. "fail": it is certain that nothing was committed. "unknown": the
            connection was lost between the statement that commits and its answer.
    """

    client: int
    transaction: T
    begun_at: float
    ended_at: float
    outcome: Outcome

    @property
    def seconds(self) -> float:
        """Its duration."""
        return self.ended_at - self.begun_at


class History(Generic[T]):
    """The clients' side of the story.

    Attributes:
        operations: all that have ended.
        acknowledged: those of them whose commit was acknowledged.
        in_doubt: those of them that may have been committed or not.
        last_begun_at: when the youngest transaction that was acknowledged had begun; -inf before the first one.
        problem: why a client last had to reconnect; empty if none had to.
    """

    def __init__(self) -> None:
        self.operations: list[HistoryOperation[T]] = []
        self.acknowledged: list[HistoryOperation[T]] = []
        self.in_doubt: list[HistoryOperation[T]] = []
        self.last_begun_at = float("-inf")
        self.problem = ""
        self._changed = threading.Condition()

    def add(self, operation: HistoryOperation[T]) -> None:
        """Append a transaction that has ended."""
        with self._changed:
            self.operations.append(operation)
            if operation.outcome == "ok":
                self.acknowledged.append(operation)
                self.last_begun_at = max(self.last_begun_at, operation.begun_at)
            elif operation.outcome == "unknown":
                self.in_doubt.append(operation)
            self._changed.notify_all()

    def wake(self) -> None:
        """Let `wait_for` look at its condition again."""
        with self._changed:
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[], object], timeout_s: float) -> bool:
        """Wait until a condition holds, which is evaluated at each new entry; return whether it does by then."""
        with self._changed:
            return bool(self._changed.wait_for(condition, timeout_s))

    def acknowledged_between(self, begin: float, end: float) -> int:
        """Return how many acknowledgements arrived in [begin, end)."""
        return self._index(end) - self._index(begin)

    def begun_since(self, moment: float) -> Iterator[HistoryOperation[T]]:
        """Yield the acknowledged transactions that began at `moment` or later, in the order of their ends.

        A transaction that began before a crash may be acknowledged after it, by an answer that was already on its way;
        one that began after it cannot.
        """
        for operation in self.acknowledged[self._index(moment) :]:
            if operation.begun_at >= moment:
                yield operation

    def first_begun_since(self, moment: float) -> HistoryOperation[T] | None:
        """Return the first acknowledged one of the transactions that began at `moment` or later; None without any."""
        return next(self.begun_since(moment), None)

    def longest_since(self, moment: float) -> float:
        """Return the seconds of the longest acknowledged transaction that ended after `moment`; 0 without any."""
        ended = self.acknowledged[self._index(moment) :]
        return max((operation.seconds for operation in ended if operation.ended_at > moment), default=0.0)

    def first_after(self, moment: float) -> float:
        """Return when the first acknowledgement arrived that did not before `moment`; infinity if none has."""
        index = self._index(moment)
        return self.acknowledged[index].ended_at if index < len(self.acknowledged) else math.inf

    def longest_pause_s(self, begin: float, end: float, others: Iterable[float] = ()) -> float:
        """Return the longest time in [begin, end) during which no acknowledgement arrived.

        Args:
            others: when others had one, in any order.
        """
        entries = self.acknowledged[self._index(begin) : self._index(end)]
        moments = [begin, *(operation.ended_at for operation in entries), end]
        moments += [moment for moment in others if begin <= moment < end]
        return max(later - earlier for earlier, later in pairwise(sorted(moments)))

    def _index(self, moment: float) -> int:
        return bisect_left(self.acknowledged, moment, key=_ENDED_AT)
