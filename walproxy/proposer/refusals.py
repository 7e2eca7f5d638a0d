"""The hosts that elections have refused: each waits before the next election, longer each time (4.10).

An election uses a term, and decides the same about a server that has not changed. No primary is accepted here.
"""

from dataclasses import dataclass

from walproxy.proposer.primary import PrimaryIdentity


@dataclass(frozen=True, slots=True)
class RefusedPrimary:
    """One primary that an election has refused.

    Attributes:
        identity: the primary's, as it was refused.
        reason: why.
        wait_s: the time until the next election may decide about it, in seconds.
        retry_at: when that wait ends.
    """

    identity: PrimaryIdentity
    reason: str
    wait_s: float
    retry_at: float


class Refusals:
    """The last refusal of each host by the elections of one proposer.

    Args:
        wait_min_s, wait_max_s: the wait after a refusal: it doubles each time, within these limits.
    """

    def __init__(self, wait_min_s: float, wait_max_s: float) -> None:
        self._wait_min_s = wait_min_s
        self._wait_max_s = wait_max_s
        self._by_host: dict[str, RefusedPrimary] = {}

    def remember(self, primary: PrimaryIdentity, reason: str, now: float) -> None:
        """Record that an election has refused this primary."""
        before, wait_s = self._by_host.get(primary.host), self._wait_min_s
        if before is not None and _may_be_same(before.identity, primary):
            wait_s = min(2 * before.wait_s, self._wait_max_s)
        self._by_host[primary.host] = RefusedPrimary(primary, reason, wait_s, now + wait_s)

    def forget(self) -> None:
        """Forget all refusals: an election decides about every host again."""
        self._by_host.clear()

    def reason(self, primary: PrimaryIdentity, now: float) -> str:
        """Return why this primary was refused if it waits, empty if an election may decide about it."""
        past = self._by_host.get(primary.host)
        if past is None or now >= past.retry_at or not _may_be_same(past.identity, primary):
            return ""
        return past.reason


def _may_be_same(before: PrimaryIdentity, now: PrimaryIdentity) -> bool:
    """Return whether a server may be the same as before: of the same line of descent, and not gone back."""
    same = (before.system_id, before.segment_size, before.tli, before.ancestors)
    return same == (now.system_id, now.segment_size, now.tli, now.ancestors) and before.flush_lsn <= now.flush_lsn
