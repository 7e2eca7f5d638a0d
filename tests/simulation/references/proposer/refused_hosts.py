"""The hosts that elections have refused, as docs/design/protocol.md states them (4.10).

Part of the reference of the proposer (proposer.py).
"""

from typing import NamedTuple

from walproxy.proposer.liveness import Timing
from walproxy.proposer.primary import PrimaryIdentity


class Refusal(NamedTuple):
    """The last refusal of a host by an election: its identity, how long it waits, and until when."""

    primary: PrimaryIdentity
    wait_s: float
    waits_until: float


class RefusedHosts:
    """What a run keeps of the hosts that its elections have refused."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._refusals: dict[str, Refusal] = {}

    def refused_by_election(self, primary: PrimaryIdentity, now: float) -> None:
        """An election has refused this primary."""
        before, wait_s = self._refusals.get(primary.host), self._timing.refused_wait_min_s
        if before is not None and _is_same(before.primary, primary):
            wait_s = min(2 * before.wait_s, self._timing.refused_wait_max_s)
        self._refusals[primary.host] = Refusal(primary, wait_s, now + wait_s)

    def forget(self) -> None:
        """SIGHUP."""
        self._refusals.clear()

    def waits(self, primary: PrimaryIdentity, now: float) -> bool:
        """Whether this is the server that was refused, and its wait has not ended."""
        refusal = self._refusals.get(primary.host)
        return refusal is not None and now < refusal.waits_until and _is_same(refusal.primary, primary)


def _is_same(before: PrimaryIdentity, now: PrimaryIdentity) -> bool:
    """The same server, and not gone back."""
    return before.flush_lsn <= now.flush_lsn and (
        before.system_id,
        before.segment_size,
        before.tli,
        before.ancestors,
    ) == (now.system_id, now.segment_size, now.tli, now.ancestors)
