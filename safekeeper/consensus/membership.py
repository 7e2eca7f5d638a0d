"""The members of a cluster, and the size of their quorum.

A member is a safekeeper id together with the *incarnation* of its data folder (S8): a folder that was lost comes back
with another incarnation, and is then not a member and has promised nothing, although its id is the same.
`new_members` is the second half of a joint membership; while it is set, both halves need a quorum.

The sizes of the quorums are part of the membership, as expressions in the number of members. This release supports
only a majority.
"""

import hashlib
from collections.abc import Iterable

import msgspec

from safekeeper.base.errors import RemoteProtocolError

# One data folder: the safekeeper's id, and the folder's incarnation.
Identity = tuple[int, str]

MAJORITY = "N/2+1"
ADDRESS_BYTES_MAX = 300


class Member(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One safekeeper's data folder.

    Attributes:
        id: the safekeeper's number, as the operator gave it; positive.
        incarnation: random id of its data folder, 32 hexadecimal digits.
        address: HOST:PORT on which it last listened for proposers; a hint, not part of its identity. Empty if unknown.
    """

    id: int
    incarnation: str
    address: str = ""

    @property
    def identity(self) -> Identity:
        """The values that identify a member. Both halves of a membership may have one id, with two data folders."""
        return self.id, self.incarnation


class QuorumSizes(msgspec.Struct, frozen=True, array_like=True):
    """The number of members, of N, that each decision needs, as expressions in N.

    Attributes:
        commit: to commit WAL.
        elect: to win a term.
    """

    commit: str = MAJORITY
    elect: str = MAJORITY


class Membership(msgspec.Struct, frozen=True):
    """The members of a cluster.

    Two memberships of one cluster are compared by their `key`: a safekeeper never returns to a lower one.

    Attributes:
        generation: increases by one with every change.
        members: the members, ordered by id.
        new_members: the members after the change, empty when no change is under way.
        author: the term of the leader that wrote it or took it over, 0 for a bootstrap. Two leaders may give two
            memberships the same generation.
        quorum_sizes, new_quorum_sizes: of `members` and of `new_members`.
    """

    generation: int
    members: tuple[Member, ...]
    new_members: tuple[Member, ...] = ()
    author: int = 0
    quorum_sizes: QuorumSizes = QuorumSizes()
    new_quorum_sizes: QuorumSizes = QuorumSizes()

    @property
    def key(self) -> tuple[int, int]:
        """The rank among the memberships of one cluster: author, then generation."""
        return self.author, self.generation

    @property
    def label(self) -> str:
        """The generation, and the term of its author, for the log."""
        return f"generation {self.generation}" + (f" of term {self.author}" if self.author else "")

    def halves(self) -> tuple[tuple[Member, ...], ...]:
        """Return the member lists that each need a quorum: one, or two under a joint membership."""
        return (self.members, self.new_members) if self.new_members else (self.members,)

    def is_voter(self, safekeeper_id: int, incarnation: str) -> bool:
        """Return whether this data folder votes and counts."""
        identity = (safekeeper_id, incarnation)
        return any(member.identity == identity for half in self.halves() for member in half)

    def is_same(self, other: "Membership | None") -> bool:
        """Return whether both are the same membership: addresses and the author make no difference."""
        return other is not None and _identifying(self) == _identifying(other)

    def ids(self) -> frozenset[int]:
        """Return the ids of all voters."""
        return frozenset(member.id for half in self.halves() for member in half)

    def identities(self) -> frozenset[Identity]:
        """Return the data folders of all voters."""
        return frozenset(member.identity for half in self.halves() for member in half)

    def has_quorum(self, identities: Iterable[Identity]) -> bool:
        """Return whether these data folders include a majority of each half."""
        present = frozenset(identities)
        return all(
            sum(member.identity in present for member in half) >= quorum_size(len(half)) for half in self.halves()
        )


def quorum_size(member_count: int) -> int:
    """Return the size of a majority of `member_count` members."""
    return member_count // 2 + 1


def check_quorum_sizes(membership: Membership) -> None:
    """Refuse a membership whose quorum sizes this release does not support.

    Raises:
        RemoteProtocolError: one of its expressions is not that of a majority.
    """
    for sizes in (membership.quorum_sizes, membership.new_quorum_sizes):
        for name, size in (("commit", sizes.commit), ("elect", sizes.elect)):
            if size != MAJORITY:
                raise RemoteProtocolError(f"the {name} quorum {size[:64]!r} is not supported, only {MAJORITY!r} is")


def _identifying(membership: Membership) -> Membership:
    halves = (membership.members, membership.new_members)
    members, new_members = (tuple(Member(*member.identity) for member in half) for half in halves)
    return msgspec.structs.replace(membership, members=members, new_members=new_members, author=0)


def bootstrap_cluster_id(system_id: int, members: Iterable[Member]) -> str:
    """Return the id of the cluster that a bootstrap with these members creates: the same each time it is repeated.

    A digest of the PostgreSQL system id and of every member's incarnation, 32 hexadecimal digits.
    """
    text = f"{system_id}:" + ",".join(f"{m.id}={m.incarnation}" for m in sorted(members))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
