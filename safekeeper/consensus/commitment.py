"""Computes the quorum's position from the members' positions.

With N members and a commit quorum of Q, the position that at least Q members have reached is element [N-Q] of the
positions in ascending order. Two conditions make it safe to call that position *committed*:

- a member that has not adopted the present term's history counts as 0, at every level (S4): its log may contain
  another log's bytes;
- a position below term_start_lsn counts as 0 (S4): bytes of an older term are committed only together with the start of
  a term that a quorum has (Raft's figure 8).

Under a joint membership both halves must agree, each with its own size: the minimum of the two. What *may* have been
committed is the maximum: a leader may have counted under either half alone, before it wrote the joint membership or
after it wrote the final one.
"""

from collections.abc import Mapping
from itertools import repeat
from math import inf

from safekeeper.base.lsn import Lsn
from safekeeper.consensus.membership import Identity, Membership


class QuorumRule:
    """The rule by which a position of one term becomes the quorum's: made once a term, asked for each answer.

    Args:
        membership: the members that count.
        term_start_lsn: where the term begins.

    Attributes:
        members_needed: no position is the quorum's that fewer members have reached.
    """

    def __init__(self, membership: Membership, term_start_lsn: Lsn) -> None:
        self._term_start_lsn = term_start_lsn
        sizes = membership.commit_sizes()
        (self._members, self._rank), *second = [
            (tuple(member.identity for member in half), len(half) - size)
            for half, size in zip(membership.halves(), sizes, strict=True)
        ]
        self._second = second
        self.members_needed = max(sizes)

    def lsn(self, positions: Mapping[Identity, Lsn]) -> Lsn:
        """Return the position that a quorum holds in this term, 0 if it has not reached the term's start.

        Args:
            positions: data folder -> position, only of voters that adopted the term's history.
        """
        get = positions.get
        lsn = sorted(map(get, self._members, repeat(0)))[self._rank]
        for members, rank in self._second:
            lsn = min(lsn, sorted(map(get, members, repeat(0)))[rank])
        return lsn if lsn >= self._term_start_lsn else 0

    def possible_lsn(self, positions: Mapping[Identity, Lsn]) -> Lsn:
        """Return the highest position that a quorum of either half holds: what was committed is not above it (S9).

        Args:
            positions: data folder -> position, of every voter.
        """
        halves = [(self._members, self._rank), *self._second]
        return max(sorted(positions.get(each, 0) for each in members)[rank] for members, rank in halves)

    def time(self, times: Mapping[Identity, float]) -> float:
        """Return the time since which a quorum has answered, -inf if none has.

        Args:
            times: data folder -> time of its last answer, only of voters.
        """
        halves = [(self._members, self._rank), *self._second]
        return min([sorted([times.get(each, -inf) for each in members])[rank] for members, rank in halves])
