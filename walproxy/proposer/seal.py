"""Seals: how a failover makes sure that no server on an old timeline commits again (docs/design/protocol.md, step 13).

A term without a primary (step 12) may carry a seal. It raises the *floor*, a field of each entry of the term history,
to the timeline of the log's last byte or above. Every later term inherits the floor of the donor's last entry, and
refuses a primary whose own timeline is at or below it. So from the moment at which the sealing term's start is
committed, each log that a quorum can choose has the floor, and nothing that such a server writes is ever acknowledged.

The floor is a number and no flag: a promotion may fork off exactly where the seal begins, and then the entry that
sealed is gone. A timeline is refused at or below it, not only at it: an older one must not return either.

Each seal raises the floor, also a repeated one. So the first number above the floor is that of the failover that has
raised it, and of no other: two standbys that two failovers promote have two timelines, and only the later is let in.
"""

from dataclasses import dataclass

from safekeeper.consensus.term_history import TermHistory
from walproxy.proposer.primary import PrimaryIdentity


@dataclass(frozen=True, slots=True)
class Seal:
    """A wish to seal a timeline, to cancel a seal, or to lower the floor below a server that was promoted.

    Attributes:
        tli: the timeline of the log's last byte, as the caller knows it. If the log has gone on to another one, nothing
            is sealed: a failover that is repeated must not seal the timeline of the new primary.
        cancels: lower the floor to just below the timeline, so that its server is let in again.
        readmits: lower the floor to just below this timeline, above `tli`, of a server that a failover has promoted and
            another one has sealed off. What is sealed below stays sealed. 0 for none.
    """

    tli: int
    cancels: bool = False
    readmits: int = 0

    def floor(self, inherited: TermHistory) -> int:
        """Return the floor of a sealing term.

        Args:
            inherited: the donor's history. A timeline of its last entry may have no byte yet: it is sealed, too.
        """
        if self.cancels:
            return self.tli - 1
        if self.readmits:
            return min(self.readmits - 1, inherited[-1].floor)
        return max(self.tli, inherited[-1].tli, inherited[-1].floor + 1)


def sealed_reason(primary: PrimaryIdentity, floor: int) -> str:
    """Return why a primary is refused that a failover has sealed off, empty if it is not."""
    if primary.tli > floor:
        return ""
    return (
        f"the primary is on timeline {primary.tli}, and a failover has sealed the timelines up to {floor}: make it a "
        "standby of the new primary (or, if no standby was promoted, walproxy failover --cancel)"
    )
