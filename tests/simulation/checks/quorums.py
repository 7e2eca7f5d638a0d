"""The quorums of the checkers: computed apart from the code that is checked, so that a bug in that is not a bug here.

Each size is a function here, not the expression that the code evaluates.
"""

from collections.abc import Callable, Iterable

from safekeeper.consensus.membership import Identity, Member, Membership, QuorumSizes

_SIZES: dict[str, Callable[[int], int]] = {
    "N/2+1": lambda n: n // 2 + 1,
    "N/3+1": lambda n: n // 3 + 1,
    "N-N/3": lambda n: n - n // 3,
    "N-N/4": lambda n: n - n // 4,
    "1": lambda n: 1,
    "N": lambda n: n,
    "(N+2)/3": lambda n: (n + 2) // 3,
    "(N/3)+1": lambda n: n // 3 + 1,
    "N-1*(N/3)": lambda n: n - n // 3,
    "((N+1)+1)/2": lambda n: n // 2 + 1,
}
# Quick commits and slow elections, the reverse, and both slow: of five members 2 and 4, 4 and 3, 4 and 4, 1 and 5.
CHOICES = (
    QuorumSizes(),
    QuorumSizes("N/3+1", "N-N/3"),
    QuorumSizes("N-N/4", "N/2+1"),
    QuorumSizes("N-N/4", "N-N/4"),
    QuorumSizes("1", "N"),
    QuorumSizes("N", "N/2+1"),
)
# Some of them in other words.
OTHER_SPELLINGS = (QuorumSizes("(N/3)+1", "N-1*(N/3)"), QuorumSizes("N-N/4", "((N+1)+1)/2"))
# What the code refuses: of three, five, six and seven members both together are N; or less than half can elect.
WITHOUT_OVERLAP = (QuorumSizes("(N+2)/3", "N/2+1"),)
SMALL_ELECTIONS = (QuorumSizes("N", "N/3+1"),)


def commit_size(members: tuple[Member, ...], sizes: QuorumSizes) -> int:
    """Return how many of these members a commit needs."""
    return _SIZES[sizes.commit](len(members))


def elect_size(members: tuple[Member, ...], sizes: QuorumSizes) -> int:
    """Return how many of these members elect a leader."""
    return _SIZES[sizes.elect](len(members))


def halves(membership: Membership) -> list[tuple[tuple[Member, ...], QuorumSizes]]:
    """Return the members and sizes of each half."""
    both = [(membership.members, membership.quorum_sizes), (membership.new_members, membership.new_quorum_sizes)]
    return both if membership.new_members else both[:1]


def can_commit(membership: Membership, present: Iterable[Identity]) -> bool:
    """Return whether these folders are a commit quorum of each half."""
    there = set(present)
    return all(sum(m.identity in there for m in half) >= commit_size(half, sizes) for half, sizes in halves(membership))


def can_elect(membership: Membership, present: Iterable[Identity]) -> bool:
    """Return whether these folders are an elect quorum of each half."""
    there = set(present)
    return all(sum(m.identity in there for m in half) >= elect_size(half, sizes) for half, sizes in halves(membership))


def spare(members: tuple[Member, ...], sizes: QuorumSizes) -> int:
    """Return how many of these members may be lost."""
    return len(members) - max(commit_size(members, sizes), elect_size(members, sizes))
