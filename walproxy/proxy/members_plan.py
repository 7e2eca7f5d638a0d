"""What a command wants of the members: the list at the end of a change, and how far the change is.

Theory of operation. A command is a function of the present membership and of the greetings of the safekeepers: it
yields the members that the operator wants, always the same ones until the change has ended. So it is resumed by
repeating it, by any process, and there is no state of a change but the membership itself and the wish of the leader.
While a change is under way, the old half of the joint membership is what the command changes.

Pure.
"""

from typing import NamedTuple

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import Lsn
from safekeeper.consensus.membership import Identity, Member, Membership, QuorumSizes, quorum_problem
from safekeeper.consensus.quorum_expression import MEMBERS_MAX
from walproxy.proposer.member_change import Target, halves_of, is_settled
from walproxy.proposer.roster import Cluster
from walproxy.proxy.sight import Sight


class Add(NamedTuple):
    """Add a safekeeper to the members."""

    safekeeper_id: int


class Remove(NamedTuple):
    """Remove a member."""

    safekeeper_id: int


class Replace(NamedTuple):
    """Replace a member by another data folder: one under the same id, or safekeeper `by`."""

    safekeeper_id: int
    by: int


class Cancel(NamedTuple):
    """End the change under way with the members before it."""


class Quorum(NamedTuple):
    """Change the sizes of the quorums, as expressions in N; None: it stays."""

    commit: str | None
    elect: str | None


Wish = Add | Remove | Replace | Quorum | Cancel


def target_of_wish(wish: Wish, cluster: Cluster, sight: Sight) -> Target:
    """Return the members and their quorums at the end of the change; the present ones if the wish is fulfilled.

    Raises:
        ConfigurationError: the wish cannot be fulfilled; it says why.
    """
    old, *new = halves_of(cluster.membership)
    if isinstance(wish, Cancel):
        return old
    if isinstance(wish, Quorum):
        sizes = QuorumSizes(wish.commit or old.sizes.commit, wish.elect or old.sizes.elect)
        problem = quorum_problem(len(old.members), sizes)
        if problem:
            raise ConfigurationError(problem)
        return Target(old.members, sizes)
    return Target(_wanted_members(wish, cluster, sight), (new or [old])[0].sizes)


def _wanted_members(wish: Add | Remove | Replace, cluster: Cluster, sight: Sight) -> tuple[Member, ...]:
    """Return the members at the end of the change; the present ones if the wish is fulfilled.

    Raises:
        ConfigurationError: the wish cannot be fulfilled; it says why.
    """
    membership = cluster.membership
    final = membership.new_members or membership.members
    old = {member.id: member for member in membership.members}
    wanted = dict(old)
    if isinstance(wish, Remove):
        wanted.pop(wish.safekeeper_id, None)
        if not wanted:
            raise ConfigurationError(f"safekeeper {wish.safekeeper_id} is the only member: a cluster needs one")
    else:
        newcomer_id = wish.safekeeper_id if isinstance(wish, Add) else wish.by
        newcomer = _newcomer(newcomer_id, cluster, sight)
        if any(newcomer.identity == member.identity for member in final):
            # Repeated: the change to it is under way, or has ended.
            newcomer = next(member for member in final if member.identity == newcomer.identity)
        if isinstance(wish, Add):
            if newcomer_id in old and old[newcomer_id].identity != newcomer.identity:
                raise ConfigurationError(
                    f"safekeeper {newcomer_id} is a member with another data folder than this one: "
                    f"if the member's folder is lost, run walproxy members replace {newcomer_id}"
                )
        else:
            _check_replaced(wish, membership, newcomer)
            wanted.pop(wish.safekeeper_id, None)
        wanted[newcomer_id] = newcomer
        if len(wanted) > MEMBERS_MAX:
            raise ConfigurationError(f"a cluster has at most {MEMBERS_MAX} members")
    return tuple(member for _, member in sorted(wanted.items()))


def _check_replaced(wish: Replace, membership: Membership, newcomer: Member) -> None:
    """Refuse a member to be replaced that is none, unless the newcomer has replaced it already."""
    ids = {member.id for member in membership.members}
    is_done = any(newcomer.identity == member.identity for member in membership.new_members or membership.members)
    if wish.safekeeper_id not in ids and not is_done:
        members = ", ".join(map(str, sorted(ids)))
        raise ConfigurationError(f"safekeeper {wish.safekeeper_id} is not a member (members: {members})")
    if wish.by != wish.safekeeper_id and wish.by in ids and wish.safekeeper_id in ids:
        raise ConfigurationError(
            f"safekeeper {wish.by} is a member already: walproxy members remove {wish.safekeeper_id}"
        )


def _newcomer(safekeeper_id: int, cluster: Cluster, sight: Sight) -> Member:
    """Return the data folder that answers for this id.

    Raises:
        ConfigurationError: none answers, or it has another cluster's WAL.
    """
    address, greeting = sight.addresses.get(safekeeper_id), sight.greetings.get(safekeeper_id)
    if address is None:
        raise ConfigurationError(
            f"the address of safekeeper {safekeeper_id} is unknown: write {safekeeper_id}=HOST:PORT"
        )
    if greeting is None:
        raise ConfigurationError(sight.problems[safekeeper_id])
    if greeting.cluster_id not in ("", cluster.id) and not greeting.is_empty:
        raise ConfigurationError(
            f"safekeeper {safekeeper_id} at {address} holds WAL of cluster {greeting.cluster_id[:8]}, and this is "
            f"cluster {cluster.id[:8]}: wipe its data folder, or correct the address"
        )
    for half in cluster.membership.halves():
        for member in half:
            if member.incarnation == greeting.incarnation and member.id != safekeeper_id:
                raise ConfigurationError(
                    f"the data folder of safekeeper {safekeeper_id} at {address} is a copy of safekeeper "
                    f"{member.id}'s: wipe it"
                )
    return Member(safekeeper_id, greeting.incarnation, address)


def _identities(members: tuple[Member, ...]) -> frozenset[Identity]:
    return frozenset(member.identity for member in members)


def has_ended(cluster: Cluster, wanted: Target, sight: Sight) -> bool:
    """Return whether the change has ended: the members are the wanted ones, and a quorum of them has that on disk."""
    membership = cluster.membership
    if not is_settled(membership, wanted):
        return False
    having = (
        (i, greeting.incarnation)
        for i, greeting in sight.greetings.items()
        if greeting.cluster_id == cluster.id
        and greeting.membership is not None
        and greeting.membership.key >= membership.key
    )
    return membership.has_commit_quorum(having)


class Headway(NamedTuple):
    """How far a change is.

    Attributes:
        what: a line for the operator.
        flush_lsn: the end of the newcomer's WAL; 0 without a newcomer, or if that is unknown.
        commit_lsn: what it needs, the end of the committed WAL; 0 if unknown.
    """

    what: str
    flush_lsn: Lsn = 0
    commit_lsn: Lsn = 0


def headway(cluster: Cluster, target: Target, sight: Sight) -> Headway:
    """Return how far the change to `target` is."""
    membership, wanted = cluster.membership, target.members
    if membership.new_members:
        return Headway(f"both the old and the new members need a quorum now ({membership.label})")
    joined = sorted(_identities(wanted) - _identities(membership.members))
    if is_settled(membership, target):
        return Headway(f"the members are decided ({membership.label}); waiting until a quorum has them on disk")
    if not joined:
        return Headway("waiting until the proxy can begin the change")
    newcomer_id = joined[0][0]
    greeting, commit_lsn = sight.greetings.get(newcomer_id), sight.commit_lsn(cluster)
    if greeting is None:
        return Headway(f"safekeeper {newcomer_id} does not reply: {sight.problems.get(newcomer_id, 'unknown')}")
    if greeting.cluster_id != cluster.id:
        return Headway(f"safekeeper {newcomer_id} has not been reached by the proxy yet", 0, commit_lsn)
    lag_bytes = max(0, commit_lsn - greeting.flush_lsn)
    return Headway(f"safekeeper {newcomer_id} receives WAL: {lag_bytes} bytes left", greeting.flush_lsn, commit_lsn)


class MemberRow(NamedTuple):
    """One safekeeper in the list of the members.

    Attributes:
        role: `voter`; `joining` or `leaving` under a joint membership; `learner`: it receives WAL and does not count;
            `lost`: a member whose id another data folder has; `unknown`: a member that does not reply.
        incarnation: of the data folder that answers; of the member's if none does.
        flush_lsn, generation: the end of its WAL, and the generation of its membership; None if unknown.
        lag_bytes: the committed WAL that it lacks, as far as the others know.
        problem: what is wrong with it, empty if nothing is.
    """

    safekeeper_id: int
    address: str
    role: str
    incarnation: str
    flush_lsn: Lsn | None
    generation: int | None
    lag_bytes: int | None
    problem: str


def member_rows(cluster: Cluster, sight: Sight) -> list[MemberRow]:
    """Return the members and the other safekeepers, by their ids."""
    membership = cluster.membership
    members = {member.id: member for half in membership.halves() for member in half}
    commit_lsn = sight.commit_lsn(cluster)
    rows = []
    for safekeeper_id in sorted(sight.addresses.keys() | members.keys()):
        greeting, member = sight.greetings.get(safekeeper_id), members.get(safekeeper_id)
        address = sight.addresses.get(safekeeper_id, member.address if member is not None else "")
        if greeting is None:
            problem = sight.problems.get(safekeeper_id, f"safekeeper {safekeeper_id}: its address is unknown")
            incarnation = member.incarnation if member is not None else ""
            rows.append(MemberRow(safekeeper_id, address, "unknown", incarnation, None, None, None, problem))
            continue
        identity = safekeeper_id, greeting.incarnation
        role, problem = _role(membership, identity), ""
        if greeting.cluster_id not in ("", cluster.id):
            problem = f"safekeeper {safekeeper_id} belongs to cluster {greeting.cluster_id[:8]}, not {cluster.id[:8]}"
        elif role == "learner" and member is not None:
            role = "lost"
            problem = (
                f"safekeeper {safekeeper_id} has another data folder than the member: run walproxy members replace "
                f"{safekeeper_id}"
            )
        rows.append(
            MemberRow(
                safekeeper_id,
                address,
                role,
                greeting.incarnation,
                greeting.flush_lsn,
                greeting.membership.generation if greeting.membership is not None else None,
                max(0, commit_lsn - greeting.flush_lsn),
                problem,
            )
        )
    return rows


def _role(membership: Membership, identity: Identity) -> str:
    is_old, is_new = (
        any(member.identity == identity for member in half)
        for half in (membership.members, membership.new_members or membership.members)
    )
    return {(True, True): "voter", (True, False): "leaving", (False, True): "joining"}.get((is_old, is_new), "learner")
