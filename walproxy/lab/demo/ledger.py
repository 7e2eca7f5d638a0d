"""What the clients were told: each acknowledged transfer with its times, and those whose COMMIT never returned.

Written by the workload's thread, read by others: entries are only ever appended, each as one object, in the order in
which the acknowledgements arrived. Times are those of `time.monotonic`, in seconds.
"""

from bisect import bisect_left
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from walproxy.lab.demo.bank import Transfer

_NO_TRANSFER = Transfer(0, 0, 0, 0)
_RETURNED_AT = attrgetter("returned_at")


class Acknowledgement(NamedTuple):
    """The COMMIT of a transfer returned.

    Attributes:
        transfer: what was committed.
        begun_at: when its transaction began.
        returned_at: when its COMMIT returned.
    """

    transfer: Transfer
    begun_at: float
    returned_at: float


class Ledger:
    """The clients' side of the story.

    Attributes:
        acknowledged: in the order in which the COMMITs returned.
        in_doubt: transfers whose connection was lost between COMMIT and its answer; they may have happened or not.
        last_error: why a client last had to connect anew, empty if none had to.
    """

    def __init__(self) -> None:
        self.acknowledged: list[Acknowledgement] = []
        self.in_doubt: list[Transfer] = []
        self.last_error = ""

    def last_id(self) -> int:
        """Return the highest id of a transfer that was acknowledged or is in doubt, 0 if there is none."""
        return max(transfer.id for transfer in (*(e.transfer for e in self.acknowledged), *self.in_doubt, _NO_TRANSFER))

    def returned_between(self, begin: float, end: float) -> int:
        """Return how many acknowledgements arrived in [begin, end)."""
        return self._index(end) - self._index(begin)

    def first_begun_after(self, moment: float) -> Acknowledgement | None:
        """Return the first acknowledgement of a transfer that was begun after `moment`.

        What was begun before a crash may be acknowledged after it by an answer that was already on its way; what was
        begun after it cannot.
        """
        for entry in self.acknowledged[self._index(moment) :]:
            if entry.begun_at > moment:
                return entry
        return None

    def longest_pause_s(self, begin: float, end: float) -> float:
        """Return the longest time in [begin, end) during which no acknowledgement arrived."""
        entries = self.acknowledged[self._index(begin) : self._index(end)]
        moments = [begin, *(entry.returned_at for entry in entries), end]
        return max(later - earlier for earlier, later in pairwise(moments))

    def _index(self, moment: float) -> int:
        return bisect_left(self.acknowledged, moment, key=_RETURNED_AT)
