"""The members of a cluster, and the size of their quorum.

A member is a safekeeper id together with the *incarnation* of its data folder (S8): a folder that was lost comes back
with another incarnation, and is then not a member and has promised nothing, although its id is the same.
`new_members` is the second half of a joint membership; while it is set, both halves need a quorum.

The sizes of the quorums are part of the membership, as expressions in the number of members (quorum_expression.py), of
each half its own. A *commit quorum* commits WAL, and has what must not be lost; an *elect quorum* wins a term. Each of
either kind has a member of each elect quorum.
"""

import hashlib
from collections.abc import Iterable

import msgspec

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.consensus.quorum_expression import MEMBERS_MAX, problem_of_sizes, size_of

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
        commit: to commit WAL, and to have a membership on disk.
        elect: to win a term.
    """

    commit: str = MAJORITY
    elect: str = MAJORITY

    def __str__(self) -> str:
        return f"commit {self.commit}, elect {self.elect}"


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
        for half in self.halves():
            for member in half:
                if member.id == safekeeper_id and member.incarnation == incarnation:
                    return True
        return False

    def is_same(self, other: "Membership | None") -> bool:
        """Return whether both are the same membership: addresses and the author make no difference."""
        return other is not None and _identifying(self) == _identifying(other)

    def ids(self) -> frozenset[int]:
        """Return the ids of all voters."""
        return frozenset(member.id for half in self.halves() for member in half)

    def identities(self) -> frozenset[Identity]:
        """Return the data folders of all voters."""
        return frozenset(member.identity for half in self.halves() for member in half)

    def half_sizes(self) -> tuple[QuorumSizes, ...]:
        """Return the quorum sizes of each of the `halves`."""
        return (self.quorum_sizes, self.new_quorum_sizes) if self.new_members else (self.quorum_sizes,)

    def commit_sizes(self) -> tuple[int, ...]:
        """Return the number of members in a commit quorum of each half."""
        pairs = zip(self.halves(), self.half_sizes(), strict=True)
        return tuple(size_of(sizes.commit, len(half)) for half, sizes in pairs)

    def elect_sizes(self) -> tuple[int, ...]:
        """Return the number of members in an elect quorum of each half."""
        if not self.new_members:
            return (size_of(self.quorum_sizes.elect, len(self.members)),)
        pairs = zip(self.halves(), self.half_sizes(), strict=True)
        return tuple(size_of(sizes.elect, len(half)) for half, sizes in pairs)

    def members_needed(self, *, elect: bool) -> int:
        """Return the number of members without which no WAL is committed, with `elect` also no leader elected."""
        return max(*self.commit_sizes(), *(self.elect_sizes() if elect else (1,)))

    def has_commit_quorum(self, identities: Iterable[Identity]) -> bool:
        """Return whether these data folders can commit WAL, and together have what was committed: of each half."""
        return self._has(self.commit_sizes(), identities)

    def has_elect_quorum(self, identities: Iterable[Identity]) -> bool:
        """Return whether these data folders can elect a leader: of each half."""
        return self._has(self.elect_sizes(), identities)

    def _has(self, sizes: tuple[int, ...], identities: Iterable[Identity]) -> bool:
        present = frozenset(identities)
        for half, size in zip(self.halves(), sizes, strict=True):
            if len([member for member in half if (member.id, member.incarnation) in present]) < size:
                return False
        return True


def check_quorum_sizes(membership: Membership) -> None:
    """Refuse a membership whose quorum sizes cannot be.

    Raises:
        RemoteProtocolError: one of its expressions is not valid, or two of them do not fit each other.
    """
    halves = ((membership.members, membership.quorum_sizes), (membership.new_members, membership.new_quorum_sizes))
    for members, sizes in halves:
        problem = quorum_problem(len(members), sizes)
        if problem:
            raise RemoteProtocolError(problem)


def quorum_problem(count: int, sizes: QuorumSizes) -> str:
    """Return why `count` members cannot have quorums of these sizes, empty if they can."""
    if count > MEMBERS_MAX and sizes != QuorumSizes():
        return f"{count} members can only have quorums of {MAJORITY}: other sizes are checked for {MEMBERS_MAX}"
    return problem_of_sizes(sizes.commit, sizes.elect)


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
