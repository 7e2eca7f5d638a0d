"""What a term without a primary is for: steps of a failover that change the numbers of timelines (protocol, step 13).

Each entry of the term history has two numbers. `floor`: a primary on that timeline or below is refused. `given`: the
highest timeline that was ever handed out for a promotion. A term takes both from the donor's last entry, unless its
purpose says otherwise:

- `Seal` raises the floor to the timeline of the log's last byte. It does not rise from attempt to attempt.
- `Reserve` hands out one number for a promotion.
- `TakeBack` ends an attempt that has requested no promotion: both numbers are what they were.
- `CancelSeal` lets the sealed primary in again, on an operator's word.
- `Readmit` does so without one, when no proposer leads and no attempt is under way.

From the moment at which the start of a sealing term is committed, each log that a quorum can choose has its floor, and
nothing that a server on that timeline writes is acknowledged. The numbers are part of the log, not flags of one entry:
a promotion may fork off exactly where the seal begins, and then the entry that sealed is gone.

Two numbers, because one cannot do both: were the floor raised with each reservation, each attempt would seal off the
server that the one before has promoted. In 2 % of promotions a slow earlier one wins over a later one instead, whose
server must be rewound.
"""

from dataclasses import dataclass
from typing import NamedTuple

from safekeeper.consensus.term_history import HistoryEntry
from walproxy.proposer.primary import PrimaryIdentity


class Numbers(NamedTuple):
    """The numbers of a history entry. Attributes: see `HistoryEntry`."""

    floor: int
    given: int


class Obstacle(NamedTuple):
    """Why a term cannot serve its purpose, and never will.

    Attributes:
        reason: one line.
        log_tli: the timeline of the log's last byte, if that is the reason; else 0.
    """

    reason: str
    log_tli: int = 0


@dataclass(frozen=True, slots=True)
class Seal:
    """Seal a timeline.

    Attributes:
        tli: that of the log's last byte, as the caller knows it. If the log has gone on to another one, nothing is
            sealed: a failover that is repeated must not seal the timeline of the new primary.
    """

    tli: int

    def numbers(self, last: HistoryEntry) -> Numbers:
        return Numbers(max(last.floor, self.tli), last.given)

    def obstacle(self, last: HistoryEntry, log_tli: int, *, is_own: bool) -> Obstacle | None:
        return _gone_on(self.tli, log_tli, "sealed")

    def __str__(self) -> str:
        return f"seals timeline {self.tli}"


@dataclass(frozen=True, slots=True)
class Reserve:
    """Hand out a number for a promotion.

    Attributes:
        tli: the sealed timeline.
        number: above all that were handed out, unless it is taken.
        is_taken: a promoted server has found history files of lower numbers, and has taken this one.
    """

    tli: int
    number: int
    is_taken: bool = False

    def numbers(self, last: HistoryEntry) -> Numbers:
        return Numbers(last.floor, max(last.given, self.number))

    def obstacle(self, last: HistoryEntry, log_tli: int, *, is_own: bool) -> Obstacle | None:
        if self.is_taken:
            return None  # Harmless although others have written to the log since: the number only rises.
        return _gone_on(self.tli, log_tli, "promoted from") or _not_own(is_own)

    def __str__(self) -> str:
        return f"{'notes' if self.is_taken else 'reserves'} timeline {self.number}"


@dataclass(frozen=True, slots=True)
class TakeBack:
    """End an attempt: its timeline is not sealed from then on, also if another attempt had sealed it before.

    Attributes:
        tli: the sealed timeline.
        given: as it was before the first of its terms that follow each other in the log. One before a term of another
            attempt does not count: that attempt may have handed out a number.
    """

    tli: int
    given: int

    def numbers(self, last: HistoryEntry) -> Numbers:
        return Numbers(min(last.floor, self.tli - 1), self.given)

    def obstacle(self, last: HistoryEntry, log_tli: int, *, is_own: bool) -> Obstacle | None:
        return _gone_on(self.tli, log_tli, "let in again") or _not_own(is_own)

    def __str__(self) -> str:
        return f"takes the seal of timeline {self.tli} back"


@dataclass(frozen=True, slots=True)
class CancelSeal:
    """Let the primary of a sealed timeline in again.

    Attributes:
        tli: the sealed timeline.
    """

    tli: int

    def numbers(self, last: HistoryEntry) -> Numbers:
        return Numbers(self.tli - 1, last.given)

    def obstacle(self, last: HistoryEntry, log_tli: int, *, is_own: bool) -> Obstacle | None:
        if last.floor < self.tli:
            return Obstacle(f"timeline {self.tli} is not sealed")
        return _gone_on(self.tli, log_tli, "let in again")

    def __str__(self) -> str:
        return f"cancels the seal of timeline {self.tli}"


@dataclass(frozen=True, slots=True)
class Readmit:
    """Let a primary in again that only the floor keeps out.

    Attributes:
        tli: its own timeline.
    """

    tli: int

    def numbers(self, last: HistoryEntry) -> Numbers:
        return Numbers(min(last.floor, self.tli - 1), last.given)

    def obstacle(self, last: HistoryEntry, log_tli: int, *, is_own: bool) -> Obstacle | None:
        return None

    def __str__(self) -> str:
        return f"lets timeline {self.tli} in again"


Purpose = Seal | Reserve | TakeBack | CancelSeal | Readmit


def _gone_on(tli: int, log_tli: int, what: str) -> Obstacle | None:
    if log_tli == tli:
        return None
    return Obstacle(f"timeline {tli} is not {what}: the log has gone on to timeline {log_tli}", log_tli)


def _not_own(is_own: bool) -> Obstacle | None:
    return None if is_own else Obstacle("another proposer has written to the log since it was sealed")


def sealed_reason(primary: PrimaryIdentity, floor: int) -> str:
    """Return why a primary is refused that a failover has sealed off, empty if it is not."""
    if primary.tli > floor:
        return ""
    return (
        f"the primary is on timeline {primary.tli}, and a failover has sealed the timelines up to {floor}: make it a "
        "standby of the new primary (or, if no standby was promoted, walproxy failover --cancel)"
    )
