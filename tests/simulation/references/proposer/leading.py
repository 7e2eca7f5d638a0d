"""A term is won, and who follows in it, as docs/design/protocol.md states it (steps 5 and 8; 1.6, 6.4, 7.12).

Part of the reference of the proposer (proposer.py).
"""

from safekeeper.base.errors import Fenced
from safekeeper.consensus.membership import Identity
from safekeeper.consensus.messages import AcceptorGreeting, Elected, RefusalCode
from tests.simulation.references.acceptor.histories import folders_of, key
from tests.simulation.references.proposer.actions import event_of, expect
from tests.simulation.references.proposer.ballots import segment_before, tli_of_comparison
from tests.simulation.references.proposer.campaign import Outcome, ReferenceCampaign
from tests.simulation.references.proposer.roster import Cluster
from tests.simulation.references.proposer.run import ReferenceRun
from tests.simulation.references.proposer.term import ReferenceTerm
from walproxy.proposer.actions import EmptyWindow, StartReplication


class Leading(ReferenceRun):
    """How an attempt ends, and a term begins."""

    @staticmethod
    def _ours(term: ReferenceTerm) -> Cluster:
        return Cluster(term.elected.cluster_id, term.membership)

    def _follow_campaign(self, now: float) -> None:
        campaign = self.campaign
        if campaign is None:
            return
        if campaign.outcome is Outcome.WON:
            self._lead(campaign, now)
        elif campaign.outcome is Outcome.REFUSED:
            self._refuse_primary()
        elif campaign.outcome is Outcome.FENCED:
            self._finish(Fenced)
        elif campaign.outcome is Outcome.LOST:
            self._abandon()

    def _lead(self, campaign: ReferenceCampaign, now: float) -> None:
        """Step 5."""
        elected, stream = campaign.elected(), self._stream
        ours = Cluster(elected.cluster_id, elected.membership)
        if any(each.id == ours.id and each.is_later_than(ours) for each in self.roster.clusters()):  # 10.9
            self._abandon()
            return
        start_lsn = elected.history[-1].start_lsn
        self._standbys.cut(start_lsn)
        term = ReferenceTerm(elected, campaign.donor, campaign.is_tail, self._standbys, self.config.timing, now)
        if campaign.is_tail:
            self._expected += [EmptyWindow(start_lsn), event_of("term-won", term.leader_id.term)]
        else:
            term.received_lsn, term.window_begin_lsn = stream.received_lsn, stream.window_begin_lsn
            stream.awaits_link = campaign.awaits_link
            term.streams = stream.is_checked = stream.is_open and not stream.awaits_link
            self.known.has_led = True
        self.known.held = elected.leader_id.term, start_lsn
        if campaign.is_tail and self.known.purpose is not None:
            self.known.served_terms.add(elected.leader_id.term)
        self.term = self._acting = term
        self.campaign = None
        for safekeeper_id, greeting in self.roster.greetings().items():
            if self.term is term:
                self._welcome(term, safekeeper_id, greeting)

    def _welcome(self, term: ReferenceTerm, safekeeper_id: int, greeting: AcceptorGreeting) -> None:
        """1.6, 5.2, 11.6."""
        ours = self._ours(term)
        folder = safekeeper_id, greeting.incarnation
        if folder in folders_of(ours.membership) and self.roster.is_doubted(safekeeper_id, ours.id):
            self.roster.peers[safekeeper_id].greeting = None
            self._greet(safekeeper_id)
            return
        if greeting.cluster_id not in ("", ours.id):
            membership = greeting.membership
            if membership is not None and membership.generation > ours.membership.generation:
                return
            if not self.roster.peers[safekeeper_id].is_empty:
                self.roster.miss(safekeeper_id, RefusalCode.OTHER_CLUSTER)
                self._disconnect(safekeeper_id)
                return
        elif greeting.membership is not None and key(greeting.membership) > key(ours.membership):
            self._end_term()
            return
        reported = term.members.get(safekeeper_id)
        if reported is None or not reported.is_connected or reported.folder != folder:
            self._welcomed[safekeeper_id] = folder
            # Sent now: others that are welcomed in the same event are not followers yet.
            self._take_elected(term, safekeeper_id, folder)

    def _take_elected(self, term: ReferenceTerm, safekeeper_id: int, folder: Identity) -> None:
        sent = [message for to, message in self._sent(Elected) if to == safekeeper_id]
        expect(len(sent) == 1, "5.2: safekeeper {} is sent Elected {} times, not once", safekeeper_id, len(sent))
        term.sent_elected(safekeeper_id, folder, sent[0])

    def _follow_term(self, now: float) -> None:
        """7.12, 7.13, 6.4."""
        term, stream = self.term, self._stream
        if term is None:
            return
        if stream.ended_lsn is not None and term.commit_lsn >= stream.ended_lsn:
            self._end_term()
        elif self._probe is not None and term.is_confirmed(self._probe, {to for to, _ in self._sent(Elected)}):
            self._probe = None
            self._resume(term)
        else:
            self._check_start(now)

    def _check_start(self, now: float) -> None:
        if self.term is not None and self.term.has_lost_its_start(self._removed):
            self._end_term()

    def _resume(self, term: ReferenceTerm) -> None:
        """7.12: what the primary has sent before is compared, and the COPY goes on."""
        stream, history, lsn, primary = self._stream, term.elected.history, term.received_lsn, self.primary
        if primary is None:
            return
        begin_lsn, tli = lsn, term.tli
        stream.compares = segment_before(lsn, primary.segment_size) < lsn and lsn > history[0].start_lsn
        if stream.compares:
            if not stream.own_page_crcs:
                self._end_term()
                return
            begin_lsn = stream.own_begin_lsn
            tli = tli_of_comparison(history, begin_lsn, lsn, term.tli, primary.segment_size)
        stream.is_open, stream.tli, stream.is_checked = True, term.tli, not stream.compares
        self._expected.append(StartReplication(begin_lsn, tli, lsn, term.tli, resumes=True))
        if stream.is_checked:
            term.streams = True
