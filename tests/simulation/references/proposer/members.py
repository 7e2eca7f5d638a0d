"""A change of the members, as docs/design/protocol.md states it (step 10).

Part of the reference of the proposer (proposer.py).
"""

from typing import NamedTuple

import msgspec

from safekeeper.consensus.membership import Identity, Member, Membership, QuorumSizes
from safekeeper.consensus.messages import ChangeMembers
from tests.simulation.references.proposer.ballots import MAJORITY_ABOVE, size_of_quorum


class End(NamedTuple):
    """The members, and the sizes of their quorums, at the end of a change."""

    members: tuple[Member, ...]
    sizes: QuorumSizes


class ReferenceMembers:
    """What the leader of a term is to change its members to.

    Attributes:
        wanted: the end of the change that is under way, the present members without one (10.7).
        cancelled: what was wanted before the last change was cancelled.
        is_forced: whether the change goes on although too few of the new members follow.
    """

    def __init__(self, membership: Membership) -> None:
        self.wanted = ends_of(membership)[-1]
        self.cancelled: End | None = None
        self.is_forced = False

    def next(self, membership: Membership) -> Membership | None:
        """10.1: the membership that follows this one, None if no change is under way."""
        if ends_of(membership) == [self.wanted]:
            return None
        generation = membership.generation + 1
        if membership.new_members:
            return Membership(generation, self.wanted.members, (), membership.author, self.wanted.sizes)
        return msgspec.structs.replace(
            membership, generation=generation, new_members=self.wanted.members, new_quorum_sizes=self.wanted.sizes
        )

    def newcomers(self, membership: Membership) -> set[Identity]:
        """The data folders that the change adds."""
        return _folders(self.wanted.members) - _folders(membership.members)

    def want(self, membership: Membership, wanted: End, is_forced: bool) -> None:
        """Take a wish that `refuses` does not refuse."""
        if wanted != self.wanted:
            self.cancelled = self.wanted if wanted == ends_of(membership)[0] else None
        self.wanted, self.is_forced = wanted, is_forced

    def refuses(self, membership: Membership, wanted: End, is_forced: bool, taking_part: set[Identity]) -> bool:
        """10.10: more than one difference, a second change, and without `force` one that too few would follow."""
        ends = ends_of(membership)
        if membership.new_members:
            return wanted not in ends
        (present,) = ends
        if self.wanted != present and wanted not in (present, self.wanted):
            return True
        if not wanted.members or not are_valid(wanted):
            return True
        joined = _folders(wanted.members) - _folders(present.members)
        left = _folders(present.members) - _folders(wanted.members)
        if len(joined) > 1 or len(left) > 1:
            return True
        if is_forced or wanted == present:
            return False
        # There is one connection to each id: a newcomer follows in the place of a member of its id.
        ids = {safekeeper_id for safekeeper_id, _ in joined}
        following = joined | {folder for folder in taking_part if folder[0] not in ids}
        return any(len(following & _folders(end.members)) < _commit_size(end) for end in (present, wanted))

    def refuses_command(self, membership: Membership, message: ChangeMembers, taking_part: set[Identity]) -> bool:
        """10.10, for the leader of that cluster."""
        wanted = self.end_of(membership, message.wanted, message.quorum_sizes)
        if message.is_repeated and wanted == self.cancelled:
            return True
        if message.generation not in (membership.generation, membership.generation - 1):
            return True
        return self.refuses(membership, wanted, message.force, taking_part)

    @staticmethod
    def end_of(membership: Membership, members: tuple[Member, ...], sizes: QuorumSizes | None) -> End:
        """The wanted members; without sizes with the present ones, those of the half that has these members."""
        if sizes is None:
            sizes = next((end.sizes for end in ends_of(membership) if end.members == members), membership.quorum_sizes)
        return End(members, sizes)


def ends_of(membership: Membership) -> list[End]:
    """Each half with its sizes."""
    ends = [End(membership.members, membership.quorum_sizes)]
    if membership.new_members:
        ends.append(End(membership.new_members, membership.new_quorum_sizes))
    return ends


def are_valid(end: End) -> bool:
    """Whether the sizes of the quorums are permitted for N = 1 to 31 (Parts); more members have majorities."""
    if len(end.members) > MAJORITY_ABOVE:
        return end.sizes == QuorumSizes()
    for count in range(1, MAJORITY_ABOVE + 1):
        commit, elect = size_of_quorum(end.sizes.commit, count), size_of_quorum(end.sizes.elect, count)
        if not (1 <= commit <= count and 1 <= elect <= count < commit + elect and count < 2 * elect):
            return False
    return True


def _folders(members: tuple[Member, ...]) -> set[Identity]:
    return {(member.id, member.incarnation) for member in members}


def _commit_size(end: End) -> int:
    return size_of_quorum(end.sizes.commit, len(end.members))
