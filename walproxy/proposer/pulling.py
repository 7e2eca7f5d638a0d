"""Which WAL a member pulls from other members, instead of receiving it through this proxy, and from which of them.

A member that needs much WAL below the window is sent `PullWal`: it connects to the sources by itself and reads
committed WAL of this term's log from them (docs/design/protocol.md, 6.6). Meanwhile it is sent heartbeats only. It
answers `PullEnded` at the end; if it cannot pull, WAL is fetched for it as before, for a while.

Pure: each decision is a function of positions.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from safekeeper.base.lsn import Lsn
from safekeeper.consensus.membership import Membership
from safekeeper.consensus.messages import PullSource

# Less than this is fetched through this proxy: a pull is not worth its connections.
PULL_BYTES_MIN = 16 << 20
# A pull without progress for this time is ended, and WAL is fetched through this proxy. A source that does not answer
# is given up after 5 s (safekeeper/node/wal_pull.py), so several sources have their turn before.
PULL_STALL_S = 20.0
# After a pull that has failed, the next one begins after this time.
PULL_AGAIN_S = 30.0


class Pull(NamedTuple):
    """A pull of one member.

    Attributes:
        request_id: the number of its `PullWal`.
        end_lsn: where it ends.
        begin_lsn, began_at: where and when it began.
        moved_at: when the member's position has advanced last.
        is_limited: whether its rate is limited.
        is_ending: the member was sent the request to end it, `problem` is why; empty if it may begin again at once.
    """

    request_id: int
    end_lsn: Lsn
    begin_lsn: Lsn
    began_at: float
    moved_at: float
    is_limited: bool
    is_ending: bool = False
    problem: str = ""


class Candidate(NamedTuple):
    """A member that may be a source: the WAL that it retains of this term's log, and where it may listen."""

    safekeeper_id: int
    wal_begin_lsn: Lsn
    flush_lsn: Lsn
    addresses: tuple[str, ...]


def plan_pull(
    begin_lsn: Lsn, commit_lsn: Lsn, candidates: Iterable[Candidate]
) -> tuple[Lsn, tuple[PullSource, ...]] | None:
    """Return where a pull from `begin_lsn` ends, and its sources; None if it is not possible or not worth it.

    It ends at `commit_lsn` at most (6.6). Of the sources that have all of the range, those with the least WAL are
    first: commits do not wait for them. A source with two addresses is tried at the second one when all have failed
    at the first.
    """
    useful = [c for c in candidates if c.addresses and c.wal_begin_lsn <= begin_lsn < c.flush_lsn]
    end_lsn = min(commit_lsn, max((c.flush_lsn for c in useful), default=0))
    if end_lsn - begin_lsn < PULL_BYTES_MIN:
        return None
    useful.sort(key=lambda c: (c.flush_lsn < end_lsn, c.flush_lsn if c.flush_lsn >= end_lsn else -c.flush_lsn))
    firsts = [PullSource(c.safekeeper_id, c.addresses[0]) for c in useful]
    return end_lsn, (*firsts, *(PullSource(c.safekeeper_id, address) for c in useful for address in c.addresses[1:]))


def addresses_of(safekeeper_id: int, membership: Membership, configured: Mapping[int, str]) -> tuple[str, ...]:
    """Return where a safekeeper may listen: by the membership, which is a hint, then by this proxy's configuration."""
    stored = [member.address for half in membership.halves() for member in half if member.id == safekeeper_id]
    return tuple(dict.fromkeys(address for address in (*stored, configured.get(safekeeper_id, "")) if address))
