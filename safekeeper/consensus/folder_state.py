"""How far a data folder is known to have come, so that one that was replaced by an older copy of itself is noticed.

A data folder only moves forward: each start raises its count of starts, and its log is that of a later term, or of the
same one and longer. A copy of an earlier state (a restored backup or snapshot, S8e) has the same incarnation, and lacks
WAL that was acknowledged, and promises. It does not know this; the other safekeepers do, as the leaders tell them.

Pure: each function here looks at its arguments only.
"""

import hashlib
from collections.abc import Iterable, Mapping

import msgspec

from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.consensus.membership import Identity


class FolderState(msgspec.Struct, frozen=True, array_like=True):
    """What a data folder had on disk at some time.

    Attributes:
        safekeeper_id, incarnation: its identity.
        starts: the number of starts of the safekeeper on it.
        term: the last term that its log has adopted, also if no byte of that term is on disk; 0 for none.
        flush_lsn: the end of its WAL.
    """

    safekeeper_id: int
    incarnation: str
    starts: int = 0
    term: int = 0
    flush_lsn: Lsn = 0

    @property
    def identity(self) -> Identity:
        """The identity of the data folder."""
        return self.safekeeper_id, self.incarnation

    def __str__(self) -> str:
        return f"start {self.starts}, term {self.term}, WAL up to {format_lsn(self.flush_lsn)}"


KnownFolders = Mapping[Identity, FolderState]


def is_older(state: FolderState, known: FolderState | None) -> bool:
    """Return whether a folder has gone back behind what is known of it (S8e)."""
    if known is None:
        return False
    return state.starts < known.starts or (state.term, state.flush_lsn) < (known.term, known.flush_lsn)


def latest(one: FolderState, other: FolderState | None) -> FolderState:
    """Return what is known of a folder from two states of it: each statement remains true."""
    if other is None:
        return one
    term, flush_lsn = max((one.term, one.flush_lsn), (other.term, other.flush_lsn))
    return FolderState(one.safekeeper_id, one.incarnation, max(one.starts, other.starts), term, flush_lsn)


def successor_of(incarnation: str, term: int, proposer_id: str) -> str:
    """Return the incarnation of a folder that this leader has found to be an older copy: no other folder has it."""
    return hashlib.sha256(f"{incarnation}:{term}:{proposer_id}".encode()).hexdigest()[:32]


def learn(known: KnownFolders, states: Iterable[FolderState]) -> dict[Identity, FolderState]:
    """Return what is known with these states."""
    learned = dict(known)
    for state in states:
        learned[state.identity] = latest(state, learned.get(state.identity))
    return learned
