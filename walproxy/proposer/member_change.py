"""A change of the members of a cluster, made by the leader of a term: which membership may follow the present one.

Theory of operation. At most one member differs: one is added, removed, or replaced by another data folder. The sizes of
the quorums change in the same way, with or without a member. The leader goes through three memberships, each with a
higher key (author, generation) than the one before:

    the present one --(1)--> joint: the old and the new members --(2)--> final: the new members
                                                                \\-(2)--> the old members: the change is cancelled

From the decision for a membership on, the leader counts under it, and sends it to every safekeeper; what was committed
before stays committed. It decides for the next one only if

- a commit quorum of the present one has it on disk: no candidate can win without a vote of somebody that knows it, and
  refuses an older one (S8a);
- commit_lsn is known in this term: then each later leader has the log under which this one counted (S4, S8b);
- for (1), a newcomer is fed from the window and has all WAL below truncate_lsn, and of the new members a commit quorum
  follows, and an elect quorum if one of the present members does. Otherwise commits would wait, for its old WAL or
  indefinitely, or no later leader could be elected: a joint membership ends only with both;
- for (2), what a commit quorum of the joint one has on disk reaches the highest commit_lsn of this term: what was
  committed by the old members alone is then also on a commit quorum of the new ones (S8c).

Each half counts by its own sizes. A leader that finds a joint membership goes on by itself.

Pure: each function here looks at its arguments only.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from safekeeper.base.lsn import Lsn
from safekeeper.consensus.membership import Identity, Member, Membership, QuorumSizes, quorum_problem
from safekeeper.consensus.quorum_expression import size_of


@dataclass(frozen=True, slots=True)
class Target:
    """The end of a change.

    Attributes:
        members: in order of their ids.
        sizes: of their quorums.
    """

    members: tuple[Member, ...]
    sizes: QuorumSizes


@dataclass(frozen=True, slots=True)
class ChangeFacts:
    """What a leader knows when it decides for the next membership.

    Attributes:
        persisted: the data folders that have the present membership on disk.
        counted_lsn: what a commit quorum of the present membership has on disk in this term; 0 below the term's start.
        commit_lsn: the highest position that was committed in this term, 0 before its start is.
        following: the data folders that follow this leader and accept WAL.
        fed: those of them that have all WAL below truncate_lsn, and need none below the window.
        forced: whether the operator accepts that commits wait until a quorum of the new members follows.
    """

    persisted: frozenset[Identity]
    counted_lsn: Lsn
    commit_lsn: Lsn
    following: frozenset[Identity]
    fed: frozenset[Identity]
    forced: bool = False


def may_be_followed(membership: Membership, facts: ChangeFacts) -> bool:
    """Return whether the leader may decide for another membership after this one (S8a, S8b, S8c)."""
    return (
        facts.commit_lsn > 0
        and membership.has_commit_quorum(facts.persisted)
        and (not membership.new_members or facts.counted_lsn >= facts.commit_lsn)
    )


def halves_of(membership: Membership) -> tuple[Target, ...]:
    """Return the members and the sizes of each half: one, or two under a joint membership."""
    return tuple(Target(*half) for half in zip(membership.halves(), membership.half_sizes(), strict=True))


def is_settled(membership: Membership, wanted: Target) -> bool:
    """Return whether no change is under way, and none is wanted."""
    return halves_of(membership) == (wanted,)


def next_membership(membership: Membership, wanted: Target, facts: ChangeFacts) -> Membership | None:
    """Return the membership to decide for now, None as long as the present one stays.

    Args:
        wanted: the end of the change: one half, if the present membership is a joint one.
    """
    if is_settled(membership, wanted):
        return None
    if not may_be_followed(membership, facts):
        return None
    generation = membership.generation + 1
    if membership.new_members:
        return msgspec.structs.replace(
            membership,
            generation=generation,
            members=wanted.members,
            quorum_sizes=wanted.sizes,
            new_members=(),
            new_quorum_sizes=QuorumSizes(),
        )
    following = msgspec.structs.replace(
        membership, generation=generation, new_members=wanted.members, new_quorum_sizes=wanted.sizes
    )
    if not newcomers(membership.members, wanted.members) <= facts.fed:
        return None
    is_ready = facts.forced or (
        following.has_commit_quorum(facts.following)
        # Where the present members have none, it is this change that may help: a lost member is replaced.
        and membership.has_elect_quorum(facts.following) <= following.has_elect_quorum(facts.following)
    )
    return following if is_ready else None


def newcomers(members: Iterable[Member], wanted: Iterable[Member]) -> frozenset[Identity]:
    """Return the data folders that are in `wanted` only."""
    return frozenset(member.identity for member in wanted) - {member.identity for member in members}


def replacement_of_lost(membership: Membership, learners: Iterable[Identity]) -> Target | None:
    """Return the members after the replacement of one whose id a learner has, with another data folder; or None.

    A safekeeper has one data folder: the member's is lost, or lies elsewhere, if another one answers in its place.
    """
    members = {member.id: member for member in membership.members}
    for safekeeper_id, incarnation in sorted(learners):
        lost = members.get(safekeeper_id)
        if lost is not None and lost.incarnation != incarnation:
            replaced = msgspec.structs.replace(lost, incarnation=incarnation)
            wanted = tuple(replaced if member is lost else member for member in membership.members)
            return Target(wanted, membership.quorum_sizes)
    return None


def describe_change(membership: Membership) -> str:
    """Return the log line of a leader that has decided for this membership."""
    halves = membership.halves()
    old, new = list_members(halves[0], halves[-1]), list_members(halves[-1], halves[0])
    sizes, new_sizes = membership.quorum_sizes, membership.new_quorum_sizes
    label = membership.label
    if not membership.new_members:
        if sizes == QuorumSizes():
            return f"the members are {old} ({label})"
        return f"the members are {old}, their quorums {sizes} ({label})"
    if sizes == new_sizes:
        return f"the members change from {old} to {new} ({label}): both need a quorum until then"
    if membership.members == membership.new_members:
        return f"the quorums change from {sizes} to {new_sizes} ({label}): both need a quorum until then"
    return (
        f"the members change from {old} to {new}, their quorums from {sizes} to {new_sizes} ({label}): both need a "
        "quorum until then"
    )


def describe_wish(membership: Membership, wanted: Target) -> str:
    """Return the log line of a leader that was asked for these members, and not for those that it has or changes to."""
    listed = list_members(wanted.members, membership.members)
    if wanted == halves_of(membership)[0]:
        return f"the change of the members is cancelled: they stay {listed}"
    if membership.new_members:
        return f"the change of the members goes on: they become {listed}"
    if wanted.members == membership.members:
        return f"the quorums of the members {listed} are to become {wanted.sizes}"
    joined = sorted(newcomers(membership.members, wanted.members))
    until = f" as soon as safekeeper {joined[0][0]} has the WAL that the others have" if joined else ""
    return f"the members are to become {listed}{until}"


def absence_reason(membership: Membership, wanted: Target, facts: ChangeFacts) -> str:
    """Return why commits would wait during the change or after it, empty if they would not, and for a change's end.

    A newcomer follows before the change begins, so it counts as one that follows. There is one connection to each id: a
    member of the newcomer's id is disconnected by then.
    """
    present = halves_of(membership)
    if len(present) > 1 or wanted == present[0]:
        return ""
    joined = newcomers(membership.members, wanted.members)
    ids = {safekeeper_id for safekeeper_id, _ in joined}
    following = {identity for identity in facts.following if identity[0] not in ids} | joined
    for half in (present[0], wanted):
        count = sum(member.identity in following for member in half.members)
        needed = size_of(half.sizes.commit, len(half.members))
        if count < needed:
            return (
                f"of the members {list_members(half.members)} only {count} would follow, and commits need {needed}: "
                "start the others first (--force: commits wait until they follow)"
            )
    return ""


def refusal_of(membership: Membership, present: Target, wanted: Target) -> str:
    """Return why the members, or the sizes of their quorums, cannot be changed to `wanted`, empty if they can be.

    Args:
        present: the end of the change under way; the members without one.
    """
    halves = halves_of(membership)
    if membership.new_members and wanted not in halves:
        return f"another change is under way ({membership.label}): wait for its end, or cancel it"
    if not membership.new_members and present != halves[0] and wanted not in (present, halves[0]):
        end = list_members(present.members)
        return f"another change is under way, to the members {end}: wait for its end, or cancel it"
    if not wanted.members:
        return "a cluster needs a member"
    problem = quorum_problem(len(wanted.members), wanted.sizes)
    if problem:
        return problem
    joined = newcomers(membership.members, wanted.members)
    left = newcomers(wanted.members, membership.members)
    if not membership.new_members and (len(joined) > 1 or len(left) > 1):
        return f"one member is changed at a time, not {max(len(joined), len(left))}"
    return ""


def target_of(membership: Membership, wanted: tuple[Member, ...], sizes: QuorumSizes | None) -> Target:
    """Return the end of a change to these members; without `sizes`, with the present ones of the same members."""
    if sizes is None:
        present = [half.sizes for half in halves_of(membership) if half.members == wanted]
        sizes = present[0] if present else membership.quorum_sizes
    return Target(wanted, sizes)


def list_members(members: Iterable[Member], others: Iterable[Member] = ()) -> str:
    """Return the ids of members as text, with the data folder of one that has another one than among `others`."""
    folders = {member.id: member.incarnation for member in others}
    return ", ".join(
        str(member.id)
        + (f" ({member.incarnation[:8]})" if folders.get(member.id, member.incarnation) != member.incarnation else "")
        for member in members
    )
