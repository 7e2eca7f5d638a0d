"""When an attempt begins, a bootstrap, or the end of the run (docs/design/protocol.md, steps 0, 2, 12).

Part of the reference of the proposer (proposer.py). Its actions show that it has begun; what is checked is whether
that was permitted.
"""

from safekeeper.base.errors import ConfigurationError
from safekeeper.consensus.membership import Member, Membership
from safekeeper.consensus.messages import Bootstrap, PreVoteRequest, ProposerGreeting, TailPreVoteRequest
from tests.simulation.references.acceptor.histories import folders_of
from tests.simulation.references.proposer.actions import Differs, expect, is_greeting, worded
from tests.simulation.references.proposer.campaign import ReferenceCampaign
from tests.simulation.references.proposer.roster import Cluster
from tests.simulation.references.proposer.run import ReferenceRun
from walproxy.proposer.actions import Disconnect, Finish, RefusePrimary, SendMessage
from walproxy.proposer.phase import Phase
from walproxy.proposer.primary import PrimaryIdentity


class Beginnings(ReferenceRun):
    """What a proposer begins without being asked."""

    def _may_begin(self) -> None:
        """An attempt that the proposer begins in this event: when it does is its choice, how it does is not."""
        if self.is_finished or self.phase is not Phase.GATHERING:
            return
        asks = bool(self._sent(PreVoteRequest) or self._sent(TailPreVoteRequest))
        if self.primary is None:
            if asks:
                self._begin_tail()
            return
        primary = self.primary
        for_others = {worded(action) for action in self._expected if isinstance(action, Disconnect)}
        disconnected = {
            action.safekeeper_id
            for action in self._actions
            if isinstance(action, Disconnect) and worded(action) not in for_others
        }
        is_refused = (self._has(Finish) or self._has(RefusePrimary)) and not self._is_refused_already()
        begins = asks or is_refused or disconnected & set(self.roster.foreigners(primary))
        if begins and self._miss_foreigners(primary):
            return
        if asks and self._has(RefusePrimary) and is_refused:
            # In one tick: without that primary a tail term is wanted at once.
            self._refuse_again(primary)
            self._begin_tail()
        elif asks:
            self._begin_campaign(primary)
        elif self._sent(Bootstrap):
            self._begin_bootstrap(primary)
        elif self._has(Finish):
            self._require_misfit()
            self._finish(ConfigurationError)
        elif is_refused:
            self._refuse_again(primary)
        elif len(self._sent(ProposerGreeting)) > sum(is_greeting(action) for action in self._expected):
            self._greet_again(primary)

    def _greet_again(self, primary: PrimaryIdentity) -> None:
        """0.2: the greetings may be out of date."""
        expect(self.roster.cluster() is None, "0.2: safekeepers are greeted again although there is a cluster")
        if self._may_bootstrap(primary):
            expect(not self.roster.greeted_of_one_time, "0.2: safekeepers are greeted again for no reason")
        else:
            is_due = self._are_all_empty() and not self._greeted_since_slot
            expect(is_due, "0.2: safekeepers are greeted again for no reason")
            self._greeted_since_slot = True
        self.roster.forget_greetings()
        self._greet_all()

    def _are_all_empty(self) -> bool:
        """0.2, but for the cluster id."""
        return all(peer.is_empty and not peer.is_missing for peer in self.roster.peers.values())

    def _may_bootstrap(self, primary: PrimaryIdentity) -> bool:
        """0.2, but for the times of the greetings and the cluster id."""
        return self._are_all_empty() and (self.config.bootstrap or not primary.slot)

    def _refuse_again(self, primary: PrimaryIdentity) -> None:
        """4.10: without a vote."""
        is_due = self._refused_hosts.waits(primary, self._now)
        expect(is_due, "4.10: the host {!r} is refused without a vote", primary.host)
        self._refuse_primary()

    def _is_refused_already(self) -> bool:
        return any(isinstance(action, RefusePrimary) for action in self._expected)

    def _begin_campaign(self, primary: PrimaryIdentity) -> None:
        """2.1, 10.9, 0.12."""
        cluster = self.roster.cluster()
        if cluster is None:
            raise Differs("2.1: an attempt begins without a quorum of greetings")
        listed = {folder[0] for folder in folders_of(cluster.membership)} <= self.roster.peers.keys()
        expect(listed, "0.12: an attempt begins with a list that lacks a member")
        waits = self._refused_hosts.waits(primary, self._now)
        expect(not waits, "4.10: an attempt begins with the host {!r}, which waits", primary.host)
        self._begin(cluster, primary)

    def _begin(self, cluster: Cluster, primary: PrimaryIdentity | None) -> None:
        self.campaign = ReferenceCampaign(
            self.config, self.roster, self._stream, self.known, cluster, primary, self._expected
        )
        self.campaign.begin()

    def _begin_tail(self) -> None:
        """12.1, 13.1."""
        purpose, known = self.known.purpose, self.known
        is_wanted = (purpose is not None or self.config.tail_after_s is not None) and not known.is_done
        expect((self._is_tick or purpose is not None) and is_wanted, "12.1: a tail term is not wanted")
        cluster = self.roster.cluster()
        if cluster is None:
            raise Differs("12.1: an attempt begins without a quorum of greetings")
        expect(purpose is not None or self.roster.has_unknown_tail(cluster), "12.1: the end of the log is known")
        self._begin(cluster, None)

    def _require_misfit(self) -> None:
        """0.12."""
        cluster = self.roster.cluster()
        memberships = [each.membership for each in self.roster.clusters()]
        if cluster is not None:
            memberships = [cluster.membership]
        fits = [{f[0] for f in folders_of(each)} <= self.roster.peers.keys() for each in memberships]
        expect(bool(fits) and not any(fits), "0.12: the run ends although its list fits")

    def _begin_bootstrap(self, primary: PrimaryIdentity) -> None:
        """0.1 to 0.4."""
        peers = self.roster.peers
        expect(self.roster.cluster() is None, "0.1: a bootstrap although a cluster has a quorum")
        expect(self._are_all_empty(), "0.2: not all are empty")
        expect(self.config.bootstrap or not primary.slot, "0.2: a bootstrap although there is a slot")
        expect(self.roster.greeted_of_one_time, "0.2: a bootstrap by greetings of several times")
        addresses = self.config.addresses
        members = tuple(
            Member(i, peer.greeting.incarnation, addresses.get(i, ""))
            for i, peer in sorted(peers.items())
            if peer.greeting is not None
        )
        cluster_id = self._sent(Bootstrap)[0][1].cluster_id
        known = {peer.greeting.cluster_id for peer in peers.values() if peer.greeting is not None}
        expect(known <= {"", cluster_id}, "0.2: another cluster has begun")
        self._bootstrap = Cluster(cluster_id, Membership(1, members)).bootstrap(primary)
        self._bootstrapped = set()
        self._expected.extend(SendMessage(safekeeper_id, self._bootstrap) for safekeeper_id in peers)
