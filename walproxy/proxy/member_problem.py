"""Why a safekeeper does not count for the quorum, in one line: for the log and for /status.

Four reasons, the simplest first: it is refused (wrong id, another cluster, ...), it cannot be reached, its id is not in
the membership, or its data folder is not the one in the membership (S8). If too many folders are lost for the others to
be a quorum again, the line names the command that helps; nothing starts automatically then. Pure.
"""

from collections.abc import Mapping

from safekeeper.consensus.membership import Membership
from walproxy.proposer.roster import Peer, newest_membership

_REBOOTSTRAP = "too few data folders are left for a quorum: walproxy rebootstrap starts a new cluster"


def member_problem(
    safekeeper_id: int, peers: Mapping[int, Peer], link_problem: str, led: Membership | None = None
) -> str:
    """Return why a safekeeper does not count, empty if it does or if that is not known yet.

    Args:
        peers: the state of each safekeeper.
        link_problem: why there is no connection to this one, empty if there is one.
        led: the membership of the term that is led, None if none is: greetings may be older.
    """
    peer = peers[safekeeper_id]
    if peer.refused or link_problem or peer.problem:
        return peer.refused or link_problem or peer.problem
    membership = led if led is not None else newest_membership(peers)
    if peer.greeting is None or membership is None:
        return ""
    if membership.is_voter(safekeeper_id, peer.greeting.incarnation):
        return ""
    if safekeeper_id not in membership.ids():
        members = ", ".join(str(each) for each in sorted(membership.ids()))
        return (
            f"it is not a member (generation {membership.generation}: {members}), so it receives WAL as a learner and "
            "does not vote"
        )
    folder = "its data folder is empty" if peer.greeting.is_empty else "its data folder has been replaced"
    lost = lost_members(membership, peers)
    left = {identity for identity in membership.identities() if identity[0] not in lost}
    if membership.has_commit_quorum(left) and membership.has_elect_quorum(left):
        return (
            f"{folder}, so it receives WAL as a learner and does not vote (walproxy members replace {safekeeper_id} "
            "makes it a member)"
        )
    return f"{folder}, so it does not vote; {_REBOOTSTRAP}"


def lost_members(membership: Membership, peers: Mapping[int, Peer]) -> set[int]:
    """Return the ids of the members whose data folder was replaced by another one."""
    return {
        safekeeper_id
        for safekeeper_id, peer in peers.items()
        if safekeeper_id in membership.ids()
        and peer.greeting is not None
        and not membership.is_voter(safekeeper_id, peer.greeting.incarnation)
    }
