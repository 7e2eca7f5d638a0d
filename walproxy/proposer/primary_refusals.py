"""Primaries that are refused: at their identity, by a check, or again without an election (S10; 4.9, 4.10).

The refusals of elections are kept in refusals.py.
"""

from safekeeper.base.errors import PrimaryRefused
from walproxy.proposer.actions import Level, RefusePrimary
from walproxy.proposer.phase import Phase
from walproxy.proposer.primary import PrimaryIdentity
from walproxy.proposer.proposer_state import ProposerState
from walproxy.proposer.roster import majority_against


class PrimaryRefusals(ProposerState):
    """When a primary is refused, and what follows."""

    def _refuse_primary(self, reason: str, now: float) -> None:
        """End the process, or continue without this primary: none of its WAL has passed the check (S10)."""
        if not self.config.several_primaries:
            self._finish(PrimaryRefused(reason))
            return
        campaign = self.campaign
        if campaign is not None and campaign.leader_id is not None:
            self._note(Level.INFO, f"term {campaign.leader_id.term} is not led, the primary is refused: {reason}")
        if campaign is not None and campaign.phase is Phase.VERIFYING and campaign.primary is not None:
            self.refusals.remember(campaign.primary, reason, now)
        self._out.append(RefusePrimary(reason))
        self._part_from_primary()
        if self.campaign is not None or self._bootstrap is not None:
            # No other candidate is the cause: the next primary need not wait for long.
            self._gather(now)

    def _refuse_foreigners(self, primary: PrimaryIdentity, now: float) -> bool:
        """Check S10's identity part before votes are requested. True if the primary is refused."""
        self.roster.refuse_foreigners(primary)
        reason = majority_against(self.peers)
        if reason:
            self._refuse_primary(reason, now)
            self.roster.forgive_foreigners()
        return bool(reason)

    def _is_refused_again(self, primary: PrimaryIdentity, now: float) -> bool:
        """Refuse a primary without an election while it waits (4.10). True if it is refused."""
        reason = self.refusals.reason(primary, now)
        if reason:
            self._refuse_primary(reason, now)
        return bool(reason)
