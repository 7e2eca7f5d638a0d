"""Computes the quorum's position from the members' positions.

With N members and a majority Q, the position that at least Q members have reached is element [N-Q] of the positions in
ascending order. Two conditions make it safe to call that position *committed*:

- a member that has not adopted the present term's history counts as 0, at every level (S4): its log may contain
  another log's bytes;
- a position below term_start_lsn counts as 0 (S4): bytes of an older term are committed only together with the start of
  a term that a quorum has (Raft's figure 8).

Under a joint membership both halves must agree: the minimum of the two.
"""

from collections.abc import Mapping

from safekeeper.base.lsn import Lsn
from safekeeper.consensus.membership import Membership, quorum_size


def quorum_lsn(positions: Mapping[int, Lsn], membership: Membership, term_start_lsn: Lsn) -> Lsn:
    """Return the position that a quorum has reached in the present term, 0 if it is below the term's start.

    Args:
        positions: safekeeper id -> position, only of voters that adopted the present term's history.
        membership: the members that count.
        term_start_lsn: the start of the present term.
    """
    result: Lsn | None = None
    for half in membership.halves():
        ascending = sorted(positions.get(member.id, 0) for member in half)
        reached = ascending[len(half) - quorum_size(len(half))]
        result = reached if result is None else min(result, reached)
    return result if result is not None and result >= term_start_lsn else 0
