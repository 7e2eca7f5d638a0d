"""Formulas about term histories, as docs/design/protocol.md states them (H1 to H5, 5.1, 5.4, 11.1).

Part of the reference of the acceptor (acceptor.py). Nothing here is shared with safekeeper/consensus but
the types: an error in one of the two must not be an error in the other. Each function looks at whole values; none is
fast.
"""

import hashlib
from collections.abc import Iterable, Set
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.folder_state import FolderState
from safekeeper.consensus.membership import Identity, Membership
from safekeeper.consensus.term_history import TermHistory

NO_END = (1 << 64) - 1


class ProtocolBroken(Exception):
    """No valid peer sends this message, according to the reference: the acceptor has to close the connection."""


class Parting(NamedTuple):
    """Where two logs part, and whether the adopted one gives up WAL there."""

    lsn: int
    gives_up: bool


def require_history(history: TermHistory) -> None:
    """H2."""
    for entry in history:
        if min(entry.term, entry.start_lsn, entry.tli) < 1:
            raise ProtocolBroken(f"{entry} has a field that is 0")
    for before, after in pairwise(history):
        if after.term <= before.term or after.start_lsn < before.start_lsn or after.tli < before.tli:
            raise ProtocolBroken(f"{after} follows {before}")


def entries_of_log(history: TermHistory, end_lsn: int) -> TermHistory:
    """H3: the entries that a log which ends there has."""
    return tuple(entry for entry in history if entry.start_lsn <= end_lsn)


def last_term(history: TermHistory) -> int:
    """The term of the last entry."""
    return max((entry.term for entry in history), default=0)


def tli_of_byte(history: TermHistory, lsn: int) -> int:
    """The timeline of the byte at a position; what lies below the first entry is of its timeline."""
    began = [entry.tli for entry in history if entry.start_lsn <= lsn] or [entry.tli for entry in history[:1]]
    return max(began, default=0)


def switches(history: TermHistory) -> list[int]:
    """The positions at which the timeline changes, ascending."""
    return sorted({after.start_lsn for before, after in pairwise(history) if after.tli != before.tli})


def parting(own: TermHistory, own_forgotten: int, theirs: TermHistory, their_forgotten: int) -> Parting | None:
    """H4, with the second part of 5.4: None if no term shows where the logs part.

    Raises:
        ProtocolBroken: one of the histories is forged.
    """
    forgotten = max(own_forgotten, their_forgotten)
    terms = {entry.term for entry in own} & {entry.term for entry in theirs}
    shared = max((term for term in terms if term > forgotten), default=0)
    if not shared:
        return None
    ours, others = ([e for e in history if forgotten < e.term <= shared] for history in (own, theirs))
    length = min(len(ours), len(others))
    if ours[-length:] != others[-length:]:
        raise ProtocolBroken(f"two histories have term {shared}, and differ before it")
    next_own, next_theirs = ([entry for entry in history if entry.term > shared][:1] for history in (own, theirs))
    # Where no term follows, the part has no end: that of the WAL is the caller's.
    lsn = min((entry.start_lsn for entry in (*next_own, *next_theirs)), default=NO_END)
    return Parting(lsn, any(entry.gives_up for entry in next_theirs))


def bounded(history: TermHistory, forgotten: int, commit_lsn: int, entries_max: int) -> tuple[TermHistory, int]:
    """5.1, last sentences: what an acceptor keeps of a history that is too long, and the highest forgotten term."""
    removable = [
        count
        for count in range(1, len(history) - entries_max + 1)
        if count < len(history) and history[count].start_lsn < commit_lsn
    ]
    old = history[: max(removable, default=0)]
    first_of_tli = {entry.tli: entry for entry in reversed(history)}
    gone = [entry for entry in old if first_of_tli[entry.tli] != entry]
    kept = tuple(entry for entry in history if entry not in gone)
    return kept, max([forgotten, *(entry.term for entry in gone)])


# Memberships and data folders.


def key(membership: Membership) -> tuple[int, int]:
    """The rank of a membership in its cluster (Parts)."""
    return membership.author, membership.generation


@lru_cache
def folders_of(membership: Membership) -> frozenset[Identity]:
    """The data folders of all members, of both halves."""
    return frozenset((member.id, member.incarnation) for member in (*membership.members, *membership.new_members))


def is_same(one: Membership, other: Membership | None) -> bool:
    """0.4 and 0.6: the author and the addresses make no difference."""
    return other is not None and _facts(one) == _facts(other)


def _facts(membership: Membership) -> tuple[object, ...]:
    halves = (membership.members, membership.new_members)
    members = [[(member.id, member.incarnation) for member in half] for half in halves]
    return membership.generation, members, membership.quorum_sizes, membership.new_quorum_sizes


def latest_states(states: Iterable[FolderState], wanted: Set[Identity]) -> tuple[FolderState, ...]:
    """11.1: of each wanted folder the higher starts, and the higher (term, flush_lsn), in the order of the folders."""
    by_folder: dict[Identity, list[FolderState]] = {}
    for state in states:
        by_folder.setdefault((state.safekeeper_id, state.incarnation), []).append(state)
    return tuple(
        FolderState(*folder, max(s.starts for s in known), *max((s.term, s.flush_lsn) for s in known))
        for folder, known in sorted(by_folder.items())
        if folder in wanted
    )


def next_incarnation(incarnation: str, leader_id: LeaderId) -> str:
    """11.8: computed from the own incarnation and the LeaderId, so that a repeated message gives the same one."""
    return hashlib.sha256(f"{incarnation}:{leader_id.term}:{leader_id.proposer_id}".encode()).hexdigest()[:32]
