"""When a proposer begins a bootstrap or an attempt to win a term (docs/design/protocol.md, steps 0, 2 and 12)."""

from safekeeper.base.errors import ConfigurationError
from safekeeper.consensus.messages import Bootstrap
from walproxy.proposer.actions import Level
from walproxy.proposer.campaign import Campaign
from walproxy.proposer.phase import Phase
from walproxy.proposer.primary import PrimaryIdentity
from walproxy.proposer.primary_refusals import PrimaryRefusals
from walproxy.proposer.roster import (
    Cluster,
    find_cluster,
    has_unknown_tail,
    misfit_reason,
    plan_bootstrap,
    repeated_bootstrap_reason,
    stuck_reason,
)


class Attempts(PrimaryRefusals):
    """What a proposer in phase GATHERING begins."""

    def _try_to_begin(self, now: float, due: bool = False) -> None:
        """Start the bootstrap or an election, if that is possible."""
        primary = self.primary
        if self.phase is not Phase.GATHERING or primary is None or not (due or now >= self._next_attempt_at):
            return
        if self._refuse_foreigners(primary, now):
            return
        misfit = misfit_reason(self.peers)
        if misfit:
            self._finish(ConfigurationError(misfit))
            return
        cluster = find_cluster(self.peers)
        if cluster is not None:
            self.stuck = ""
            if self._is_refused_again(primary, now):
                return
            self._campaign_for(cluster, primary, now)
            return
        bootstrap = plan_bootstrap(self.peers, primary, self.config.addresses)
        stuck = stuck_reason(self.peers)
        if bootstrap is not None:
            stuck = "" if self.config.bootstrap else repeated_bootstrap_reason(primary)
            if not stuck and self.roster.are_greeted_together():
                self._begin_bootstrap(bootstrap, now)
                return
            if not stuck:
                # Greetings of different times must not be combined: a member that is empty now because its disk was
                # lost, and one that was empty before, may have acknowledged WAL together in between.
                if not self.roster.awaits_greetings():
                    self.roster.forget_greetings()
                    self.roster.greet_all(primary, now)
                return
            if not self._greeted_since_slot:
                # Another proxy may have finished its bootstrap, and created the slot, since these greetings.
                self._greeted_since_slot = True
                self.roster.forget_greetings()
                self.roster.greet_all(primary, now)
                return
        if stuck and stuck != self.stuck:
            self.stuck = stuck
            self._note(Level.ERROR, stuck)

    def _try_tail_term(self, now: float, is_due: bool) -> None:
        """Campaign for a tail term if there has been no primary for long enough, and one is wanted and of use.

        Args:
            is_due: the time of the next attempt has come.
        """
        if self.primary is not None:
            self._without_primary_since = None
            return
        if self._without_primary_since is None:
            self._without_primary_since = now
        tail_after_s, purpose = self.config.tail_after_s, self.candidacy.purpose
        if purpose is None and (tail_after_s is None or now - self._without_primary_since < tail_after_s):
            return
        if self.candidacy.obstacle is not None:
            return
        if self.phase is not Phase.GATHERING or not is_due:
            return
        cluster = find_cluster(self.peers)
        if cluster is None or not (purpose is not None or has_unknown_tail(self.peers, cluster)):
            return
        self._campaign_for(cluster, None, now)

    def _campaign_for(self, cluster: Cluster, primary: PrimaryIdentity | None, now: float) -> None:
        """Begin an attempt to win a term; without a primary, a tail term (step 12)."""
        self._stage.enter(Phase.PRE_VOTING)
        self.campaign = Campaign(
            self.config, self._stage, self.roster, self._stream, self.candidacy, cluster, primary, now, self._out
        )
        self.campaign.begin(now)

    def _begin_bootstrap(self, bootstrap: Bootstrap, now: float) -> None:
        """Have the first membership written; repeat one that was interrupted."""
        self._stage.enter(Phase.BOOTSTRAPPING)
        self._bootstrap = bootstrap
        self._bootstrapped = set()
        count = len(self.peers)
        self._note(Level.INFO, f"bootstrapping cluster {bootstrap.cluster_id[:8]} with {count} empty safekeepers")
        self._out.extend(self.roster.ask(safekeeper_id, bootstrap, now) for safekeeper_id in self.peers)
