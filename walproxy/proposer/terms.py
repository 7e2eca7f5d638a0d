"""How a term begins, what ends it, and how the primary streams in it (docs/design/protocol.md, steps 5 to 8)."""

from safekeeper.base.errors import PrimaryRefused
from safekeeper.base.lsn import format_lsn
from safekeeper.consensus.messages import AcceptorGreeting, RefusalCode
from walproxy.proposer.actions import EmptyWindow, Level
from walproxy.proposer.attempts import Attempts
from walproxy.proposer.campaign import Campaign, Outcome
from walproxy.proposer.leadership import Leadership
from walproxy.proposer.phase import Phase
from walproxy.proposer.primary import PrimaryIdentity
from walproxy.proposer.roster import Cluster, clusters_of, later_cluster_reason, other_cluster_reason
from walproxy.proposer.verification import refusal_in_term


class Terms(Attempts):
    """The terms that a proposer leads, one after the other."""

    def _follow_campaign(self, campaign: Campaign, now: float) -> None:
        """Act on the outcome of the campaign."""
        if campaign.outcome is Outcome.WON:
            self._lead(campaign, now)
        elif isinstance(campaign.error, PrimaryRefused):
            self._refuse_primary(str(campaign.error), now)
        elif campaign.error is not None:
            self._finish(campaign.error)
        elif campaign.outcome is Outcome.LOST:
            self._abandon_campaign(campaign, now, campaign.reason)

    def _lead(self, campaign: Campaign, now: float) -> None:
        elected, stream = campaign.elected(), self._stream
        ours = Cluster(elected.cluster_id, elected.membership)
        if any(cluster.id == ours.id and cluster.is_later_than(ours) for cluster in clusters_of(self.peers)):
            # The term would end with the first member that is told of it.
            self._abandon_campaign(campaign, now, "a member has a newer membership")
            return
        term_start_lsn = elected.history[-1].start_lsn
        self.standbys.cut(term_start_lsn)
        self._stage.enter(Phase.LEADING)
        leadership = Leadership(
            elected,
            campaign.donor,
            self.standbys,
            self.timing,
            now,
            self._out,
            self.config.addresses,
            is_tail=campaign.is_tail,
        )
        candidacy = self.candidacy
        if campaign.is_tail:
            self._out.append(EmptyWindow(term_start_lsn))
            self._note(
                Level.INFO,
                f"tail term {leadership.leader_id.term}: elected by {len(campaign.votes)} of "
                f"{len(campaign.membership.members)}, donor {campaign.donor}: the log ends at "
                f"{format_lsn(term_start_lsn)} on timeline {leadership.tli}",
                "term-won",
                leadership.leader_id.term,
            )
        else:
            leadership.received_lsn = stream.received_lsn
            leadership.window_begin_lsn = stream.window_begin_lsn
            stream.awaits_link = campaign.awaits_link
            leadership.streaming = stream.is_checked = stream.is_open and not stream.awaits_link
            candidacy.has_led = True
        if campaign.is_tail and candidacy.purpose is not None:
            candidacy.served_terms.add(leadership.leader_id.term)
            self._note(Level.INFO, f"term {leadership.leader_id.term} {candidacy.purpose}")
        candidacy.held_term, candidacy.held_commit_lsn = elected.leader_id.term, term_start_lsn
        self.leadership, self.campaign = leadership, None
        for safekeeper_id, peer in self.peers.items():
            if peer.greeting is not None and not peer.refused and self.leadership is leadership:
                self._welcome(leadership, safekeeper_id, peer.greeting, now)

    def _welcome(self, leadership: Leadership, safekeeper_id: int, greeting: AcceptorGreeting, now: float) -> None:
        """Send `Elected` to a safekeeper, unless it belongs to another cluster."""
        ours = cluster_of(leadership)
        is_member = ours.membership.is_voter(safekeeper_id, greeting.incarnation)
        if is_member and self.roster.is_doubted(safekeeper_id, ours.id):
            # Others have reported more of its data folder since it has greeted.
            self.peers[safekeeper_id].greeting = None
            self._out.append(self.roster.greet(safekeeper_id, self.primary, now))
            return
        later_reason = later_cluster_reason(greeting, ours)
        if later_reason:
            # Its greeting is kept: a quorum of that cluster ends the term.
            self.roster.leave_out(safekeeper_id, later_reason)
        elif greeting.cluster_id not in ("", ours.id) and not greeting.is_empty:
            reason = other_cluster_reason(greeting)
            self.roster.refuse(safekeeper_id, RefusalCode.OTHER_CLUSTER, reason)
        elif greeting.membership and Cluster(greeting.cluster_id, greeting.membership).is_later_than(ours):
            self._end_term(now, "a member has a newer membership")
        elif not leadership.has_sent((safekeeper_id, greeting.incarnation)):
            # On this connection it may have acknowledged WAL with another data folder, which may return (S8e).
            self._learn_of_term()
            leadership.on_greeting((safekeeper_id, greeting.incarnation), now)

    def _on_primary_in_term(self, leadership: Leadership, primary: PrimaryIdentity, now: float) -> None:
        """Handle a primary that is identified in a term that is led."""
        refusal = refusal_in_term(leadership, primary, self.config.several_primaries)
        if refusal:
            self._refuse_primary(refusal, now)
        elif primary.tli != leadership.tli:
            self._end_term(now, f"the primary is on timeline {primary.tli}, the term on {leadership.tli}")
        else:
            # S10: a primary is streamed only in a term that a quorum still confirms.
            leadership.probe(now)
            self._probe_sequence = leadership.sequence
            self._follow_leadership(now)

    def _follow_leadership(self, now: float) -> None:
        """Take the next step of the leader if it is due: the check of the primary, or the switch of the timeline."""
        leadership = self.leadership
        if leadership is None:
            return
        ended_lsn = self._stream.ended_lsn
        if ended_lsn is not None and leadership.commit_lsn >= ended_lsn:
            self._end_term(now, f"timeline {leadership.tli} has ended at {format_lsn(ended_lsn)}")
            self._try_to_begin(now, due=True)
        elif self._probe_sequence is not None and leadership.confirmed_since(self._probe_sequence):
            self._probe_sequence = None
            self._resume_primary(leadership, now)
        else:
            self._check_start_is_there(now)

    def _resume_primary(self, leadership: Leadership, now: float) -> None:
        """Stream from where the primary was disconnected, after a check of the WAL that it had sent (S10)."""
        assert self.primary is not None  # a probe ends with its connection
        action = self._stream.resume(leadership, self.primary)
        if action is None:
            self._end_term(now, "no checksums of the received WAL are kept: comparing with the donor instead")
            return
        self._out.append(action)
        if self._stream.is_checked:
            self._on_primary_verified(leadership)

    def _on_primary_verified(self, leadership: Leadership) -> None:
        """Handle a primary that was verified: the quorum's positions may be reported to it (S1, S10)."""
        self._stream.is_checked = True
        leadership.set_streaming(True)

    def _check_start_is_there(self, now: float) -> None:
        if self.leadership is not None and self.leadership.has_lost_its_start():
            self._end_term(now, "the donor was disconnected before a quorum had its WAL")


def cluster_of(leadership: Leadership) -> Cluster:
    """Return the cluster and the present membership of a term."""
    return Cluster(leadership.elected.cluster_id, leadership.membership)
