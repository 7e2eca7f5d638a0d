"""Who the members are, and how many of them make a quorum.

A member is a safekeeper id together with the *incarnation* of its data folder (S8): a folder that was lost comes back
with another incarnation, and is then a stranger that has promised nothing, whatever its id says.
`new_members` is the second half of a joint membership; while it is set, both halves need a quorum.
"""

import hashlib
from collections.abc import Iterable

import msgspec


class Member(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One safekeeper's data folder.

    Attributes:
        id: the safekeeper's number, as the operator gave it; positive.
        incarnation: random id of its data folder, 32 hexadecimal digits.
    """

    id: int
    incarnation: str


class Membership(msgspec.Struct, frozen=True):
    """The members of a cluster.

    Attributes:
        generation: grows by one with every change; a message with a lower one is refused.
        members: the members, ordered by id.
        new_members: the members that are being moved to, empty when no change is under way.
    """

    generation: int
    members: tuple[Member, ...]
    new_members: tuple[Member, ...] = ()

    def halves(self) -> tuple[tuple[Member, ...], ...]:
        """Return the member lists that each need a quorum: one, or two under a joint membership."""
        return (self.members, self.new_members) if self.new_members else (self.members,)

    def is_voter(self, safekeeper_id: int, incarnation: str) -> bool:
        """Tell whether this data folder votes and counts."""
        member = Member(safekeeper_id, incarnation)
        return any(member in half for half in self.halves())

    def ids(self) -> frozenset[int]:
        """Return the ids of all voters."""
        return frozenset(member.id for half in self.halves() for member in half)

    def has_quorum(self, ids: Iterable[int]) -> bool:
        """Tell whether `ids` (of voters) hold a majority of each half."""
        present = frozenset(ids)
        return all(sum(member.id in present for member in half) >= quorum_size(len(half)) for half in self.halves())


def quorum_size(member_count: int) -> int:
    """Return how many of `member_count` members make a majority."""
    return member_count // 2 + 1


def bootstrap_cluster_id(system_id: int, members: Iterable[Member]) -> str:
    """Return the id of the cluster that a bootstrap with these members makes: the same each time it is repeated.

    A digest of the PostgreSQL system id and of every member's incarnation, 32 hexadecimal digits.
    """
    text = f"{system_id}:" + ",".join(f"{m.id}={m.incarnation}" for m in sorted(members))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
