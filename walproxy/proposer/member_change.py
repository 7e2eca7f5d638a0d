"""A change of the members of a cluster, made by the leader of a term: which membership may follow the present one.

Theory of operation. At most one member differs: one is added, removed, or replaced by another data folder. The leader
goes through three memberships, each with a higher key (author, generation) than the one before:

    the present one --(1)--> joint: the old and the new members --(2)--> final: the new members
                                                                \\-(2)--> the old members: the change is cancelled

From the decision for a membership on, the leader counts under it, and sends it to every safekeeper; what was committed
before stays committed. It decides for the next one only if

- a quorum of the present one has it on disk: no candidate can win without a vote of somebody that knows it, and refuses
  an older one (S8a);
- commit_lsn is known in this term: then each later leader has the log under which this one counted (S4, S8b);
- for (1), a newcomer is fed from the window and has all WAL below truncate_lsn, and the new members have a quorum that
  follows. Otherwise commits would wait, for its old WAL or indefinitely: a joint membership ends only with both;
- for (2), what a quorum of the joint one has on disk reaches the highest commit_lsn of this term: what was committed by
  the old members alone is then also on a quorum of the new ones (S8c).

A leader that finds a joint membership goes on by itself.

Pure: each function here looks at its arguments only.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from safekeeper.base.lsn import Lsn
from safekeeper.consensus.membership import Identity, Member, Membership, quorum_size


@dataclass(frozen=True, slots=True)
class ChangeFacts:
    """What a leader knows when it decides for the next membership.

    Attributes:
        persisted: the data folders that have the present membership on disk.
        counted_lsn: what a quorum of the present membership has on disk in this term; 0 below the term's start.
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
        and membership.has_quorum(facts.persisted)
        and (not membership.new_members or facts.counted_lsn >= facts.commit_lsn)
    )


def next_membership(membership: Membership, wanted: tuple[Member, ...], facts: ChangeFacts) -> Membership | None:
    """Return the membership to decide for now, None as long as the present one stays.

    Args:
        wanted: the members at the end of the change: those of one half, if the present membership is a joint one.
    """
    if wanted == membership.members and not membership.new_members:
        return None
    if not may_be_followed(membership, facts):
        return None
    generation = membership.generation + 1
    if membership.new_members:
        return msgspec.structs.replace(membership, generation=generation, members=wanted, new_members=())
    following = msgspec.structs.replace(membership, generation=generation, new_members=wanted)
    is_ready = newcomers(membership.members, wanted) <= facts.fed and (
        facts.forced or following.has_quorum(facts.following)
    )
    return following if is_ready else None


def newcomers(members: Iterable[Member], wanted: Iterable[Member]) -> frozenset[Identity]:
    """Return the data folders that are in `wanted` only."""
    return frozenset(member.identity for member in wanted) - {member.identity for member in members}


def replacement_of_lost(membership: Membership, learners: Iterable[Identity]) -> tuple[Member, ...] | None:
    """Return the members after the replacement of one whose id a learner has, with another data folder; or None.

    A safekeeper has one data folder: the member's is lost, or lies elsewhere, if another one answers in its place.
    """
    members = {member.id: member for member in membership.members}
    for safekeeper_id, incarnation in sorted(learners):
        lost = members.get(safekeeper_id)
        if lost is not None and lost.incarnation != incarnation:
            replaced = msgspec.structs.replace(lost, incarnation=incarnation)
            return tuple(replaced if member is lost else member for member in membership.members)
    return None


def describe_change(membership: Membership) -> str:
    """Return the log line of a leader that has decided for this membership."""
    old, new = _listed(membership.members), _listed(membership.new_members)
    if membership.new_members:
        return f"the members change from {old} to {new} ({membership.label}): both need a quorum until then"
    return f"the members are {old} ({membership.label})"


def describe_wish(membership: Membership, wanted: tuple[Member, ...]) -> str:
    """Return the log line of a leader that was asked for these members, and not for those that it has or changes to."""
    if wanted == membership.members:
        return f"the change of the members is cancelled: they stay {_listed(wanted)}"
    if membership.new_members:
        return f"the change of the members goes on: they become {_listed(wanted)}"
    joined = sorted(newcomers(membership.members, wanted))
    until = f" as soon as safekeeper {joined[0][0]} has the WAL that the others have" if joined else ""
    return f"the members are to become {_listed(wanted)}{until}"


def absence_reason(membership: Membership, wanted: tuple[Member, ...], facts: ChangeFacts) -> str:
    """Return why commits would wait during the change or after it, empty if they would not, and for a change's end.

    A newcomer follows before the change begins, so it counts as one that follows. There is one connection to each id: a
    member of the newcomer's id is disconnected by then.
    """
    if membership.new_members or wanted == membership.members:
        return ""
    joined = newcomers(membership.members, wanted)
    ids = {safekeeper_id for safekeeper_id, _ in joined}
    following = {identity for identity in facts.following if identity[0] not in ids} | joined
    for half in (membership.members, wanted):
        present = sum(member.identity in following for member in half)
        needed = quorum_size(len(half))
        if present < needed:
            return (
                f"of the members {_listed(half)} only {present} would follow, and commits need {needed}: start the "
                "others first (--force: commits wait until they follow)"
            )
    return ""


def refusal_of(membership: Membership, present: tuple[Member, ...], wanted: tuple[Member, ...]) -> str:
    """Return why the members cannot be changed to `wanted`, empty if they can be.

    Args:
        present: the members that the change under way leads to; the members without one.
    """
    if membership.new_members and wanted not in (membership.members, membership.new_members):
        return f"another change is under way ({membership.label}): wait for its end, or cancel it"
    if wanted not in (present, membership.members) and present != membership.members and not membership.new_members:
        return f"another change is under way, to the members {_listed(present)}: wait for its end, or cancel it"
    if not wanted:
        return "a cluster needs a member"
    joined = newcomers(membership.members, wanted)
    left = newcomers(wanted, membership.members)
    if not membership.new_members and (len(joined) > 1 or len(left) > 1):
        return f"one member is changed at a time, not {max(len(joined), len(left))}"
    return ""


def _listed(members: Iterable[Member]) -> str:
    return ", ".join(str(member.id) for member in members)
