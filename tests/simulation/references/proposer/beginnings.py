"""When an attempt begins, a bootstrap, or the end of the run (docs/design/protocol.md, steps 0, 2, 12; 4.10).

Part of the reference of the proposer (proposer.py). Its actions show that it has begun; what is checked is whether
that was permitted, and that what was due and possible has begun.
"""

from typing import Any

from safekeeper.base.errors import ConfigurationError
from safekeeper.consensus.membership import Member, Membership
from safekeeper.consensus.messages import (
    AcceptorGreeting,
    Bootstrap,
    PreVoteRequest,
    ProposerGreeting,
    TailPreVoteRequest,
)
from tests.simulation.references.acceptor.histories import folders_of
from tests.simulation.references.proposer.actions import Differs, expect, is_greeting, worded
from tests.simulation.references.proposer.campaign import ReferenceCampaign
from tests.simulation.references.proposer.roster import Cluster, Peer
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
        if begins and self._miss_foreigners(primary, self._now):
            return
        if asks and self._has(RefusePrimary) and is_refused:
            # In one tick: without that primary a tail term is wanted at once.
            self._refuse_without_vote(primary)
            self._begin_tail()
        elif asks:
            self._begin_campaign(primary)
        elif self._sent(Bootstrap):
            self._begin_bootstrap(primary)
        elif self._has(Finish):
            self._require_misfit()
            self._finish(ConfigurationError)
        elif is_refused:
            self._refuse_without_vote(primary)
        elif len(self._sent(ProposerGreeting)) > sum(is_greeting(action) for action in self._expected):
            if self._repeats(primary):
                expect(self._refusals.greeted_at is None, "4.10: safekeepers are greeted twice for one host")
                self._refusals.greeted_at, self._pause_until, self._next_attempt_at = self._now, 0.0, self._now
            else:
                is_first = bool(primary.slot) and not self._greeted_since_slot
                is_of_several_times = self._may_bootstrap(primary) and not self.roster.greeted_of_one_time
                expect(is_first or is_of_several_times, "0.2: safekeepers are greeted again for no reason")
                self._greeted_since_slot = self._greeted_since_slot or not is_of_several_times
            self.roster.forget_greetings()
            self._greet_all()

    def _draw_on(self, event: str, arguments: tuple[Any, ...]) -> None:
        """The waits: whether an attempt is due in this event, which is to begin then if that is possible."""
        is_gathering = self.phase is Phase.GATHERING
        self._is_attempt_due = is_gathering and self._now >= self._next_attempt_at
        if event == "tick":
            self._jitter = arguments[1]
            if self._is_attempt_due and (self.primary is not None or self.known.requested_term):
                pause_s = self.config.timing.retry_interval_s * (0.5 + self._jitter)
                self._next_attempt_at = self._now + pause_s
        elif event == "primary_identified":
            self._is_attempt_due = self._is_attempt_due and not self._stream.identities_due > 1
        else:
            is_greeting = event == "message" and isinstance(arguments[1], AcceptorGreeting)
            self._is_attempt_due = self._is_attempt_due and is_greeting

    def _require_attempt(self, event: str, arguments: tuple[Any, ...]) -> None:
        """2.1, 0.1, 12.1: what could begin, and was due, has begun."""
        if not self._is_attempt_due or self.phase is not Phase.GATHERING or self._actions_begin():
            return
        if event == "message" and self.roster.peers[arguments[0]].greeting is None:
            return  # It has not greeted after all.
        cluster, primary = self.roster.cluster(), self.primary
        if primary is None:
            if event == "tick" and cluster is not None:
                expect(not self._wants_tail(cluster), "12.1: no tail term is campaigned for, although it is wanted")
            return
        expect(not self.roster.foreigners(primary), "1.5: safekeepers of another system do not count as missing")
        if cluster is not None:
            is_listed = {folder[0] for folder in folders_of(cluster.membership)} <= self.roster.peers.keys()
            expect(is_listed, "0.12: the list of safekeepers does not fit, and the run goes on")
            expect(self._repeats(primary), "2.1: no attempt begins, although it is due")
            return
        is_first = self._may_bootstrap(primary) and not any(map(self._is_of_a_cluster, self.roster.peers.values()))
        if any(peer.asked_with for peer in self.roster.peers.values() if peer.is_connected):
            is_first = is_first and self.roster.greeted_of_one_time
        expect(not is_first, "0.1: no bootstrap begins, although it is due")

    def _may_bootstrap(self, primary: PrimaryIdentity) -> bool:
        """0.2, but for the times of the greetings and the cluster id."""
        is_empty = all(peer.is_empty and not peer.is_missing for peer in self.roster.peers.values())
        return is_empty and (self.config.bootstrap or not primary.slot)

    @staticmethod
    def _is_of_a_cluster(peer: Peer) -> bool:
        return peer.greeting is not None and peer.greeting.cluster_id != ""

    def _actions_begin(self) -> bool:
        """Whether something was begun or refused in this event."""
        return self._has(RefusePrimary) or len(self._sent(ProposerGreeting)) > 0

    def _wants_tail(self, cluster: Cluster) -> bool:
        """12.1, 13.1."""
        seal, after_s, since = self.config.seal, self.config.tail_after_s, self._without_primary_since
        if self.known.has_gone_on:
            return False
        if seal is not None:
            return True
        waited = after_s is not None and since is not None and self._now - since >= after_s
        return waited and self.roster.has_unknown_tail(cluster)

    def _is_refused_already(self) -> bool:
        return any(isinstance(action, RefusePrimary) for action in self._expected)

    def _repeats(self, primary: PrimaryIdentity) -> bool:
        """4.10: whether an attempt with this host might only repeat a refusal."""
        return self.roster.cluster() is not None and self._refusals.is_to_be_greeted_for(primary, self._now)

    def _refuse_without_vote(self, primary: PrimaryIdentity) -> None:
        """4.10."""
        repeats, refusals = self._repeats(primary), self._refusals
        is_due = repeats and refusals.greeted_at is not None and not refusals.awaits(self.roster, self._now)
        expect(is_due and refusals.refuses(primary, self.roster, self._now), "4.10: a host is refused without a vote")
        self._refuse_primary(self._now)

    def _begin_campaign(self, primary: PrimaryIdentity) -> None:
        """2.1, 10.9, 0.12."""
        cluster = self.roster.cluster()
        if cluster is None:
            raise Differs("2.1: an attempt begins without a quorum of greetings")
        listed = {folder[0] for folder in folders_of(cluster.membership)} <= self.roster.peers.keys()
        expect(listed, "0.12: an attempt begins with a list that lacks a member")
        expect(self._now >= self._pause_until, "an attempt begins before the pause is over")
        if self._repeats(primary):
            refusals = self._refusals
            expect(refusals.greeted_at is not None, "4.10: an attempt begins with a host that may be refused again")
            expect(not refusals.awaits(self.roster, self._now), "4.10: an attempt begins before all have greeted")
            expect(not refusals.refuses(primary, self.roster, self._now), "4.10: an attempt repeats a refusal")
        self._begin(cluster, primary)

    def _begin(self, cluster: Cluster, primary: PrimaryIdentity | None) -> None:
        self.campaign = ReferenceCampaign(
            self.config, self.roster, self._stream, self.known, cluster, primary, self._now, self._expected
        )
        self.campaign.begin()

    def _begin_tail(self) -> None:
        """12.1, 13.1."""
        seal, after_s, since = self.config.seal, self.config.tail_after_s, self._without_primary_since
        expect(self._is_tick and not self.known.has_gone_on, "12.1: a tail term is not wanted")
        expect(self._now >= self._pause_until, "an attempt begins before the pause is over")
        if seal is None:
            waited = after_s is not None and since is not None and self._now - since >= after_s
            expect(waited, "12.1: a tail term is wanted too early")
        cluster = self.roster.cluster()
        if cluster is None:
            raise Differs("12.1: an attempt begins without a quorum of greetings")
        expect(seal is not None or self.roster.has_unknown_tail(cluster), "12.1: the end of the log is known")
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
        expect(all(peer.is_empty and not peer.is_missing for peer in peers.values()), "0.2: not all are empty")
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
