"""The events of the primary, as docs/design/protocol.md states them (4.2 to 4.9, 7.10, 7.12, 7.13).

Part of the reference of the proposer (proposer.py).
"""

from tests.simulation.references.proposer.actions import expect
from tests.simulation.references.proposer.ballots import fits_log
from tests.simulation.references.proposer.leading import Leading
from tests.simulation.references.proposer.term import ReferenceTerm
from walproxy.proposer.actions import SendAppend, StopReplication
from walproxy.proposer.primary import PrimaryIdentity

# What a run may take otherwise (bends.py).
GREETING_FRESH_S = 1.0


class PrimaryEvents(Leading):
    """What the shell finds out about the primary, and receives from it."""

    def primary_identified(
        self, primary: PrimaryIdentity, now: float, own_page_crcs: tuple[int, ...] = (), own_begin_lsn: int = 0
    ) -> None:
        """1.1, 4.2, 7.12."""
        if self._stream.identities_due > 1:
            self._stream.identities_due -= 1
            return
        self._stream.identities_due = 0
        is_first = self.primary is None and not self.known.held[0]
        self.primary = primary
        stream = self._stream
        stream.own_page_crcs, stream.own_begin_lsn, stream.is_open = own_page_crcs, own_begin_lsn, False
        if is_first:
            if not self.known.requested_term:
                for peer in self.roster.peers.values():
                    if peer.greeted_at < now - GREETING_FRESH_S:
                        peer.greeting = None
            self._greet_all()
        campaign, term = self.campaign, self.term
        if term is not None:
            if not term.is_tail:
                self._primary_in_term(term, primary, now)
        elif campaign is not None and not campaign.is_tail:
            campaign.primary = primary
            if campaign.awaits_primary and not self._miss_foreigners(primary):
                campaign.identified(primary)
                self._follow_campaign(now)

    def _primary_in_term(self, term: ReferenceTerm, primary: PrimaryIdentity, now: float) -> None:
        """7.12, 13.5."""
        elected = term.elected
        is_other = (primary.system_id, primary.segment_size) != (elected.system_id, elected.segment_size)
        if is_other or primary.tli <= elected.history[-1].floor:
            self._refuse_primary()
        elif primary.tli != term.tli:
            several = self.config.several_primaries and term.commit_lsn > 0
            if several and not fits_log(elected.history, term.commit_lsn, primary):
                self._refuse_primary()
            else:
                self._end_term()
        elif primary.flush_lsn < term.received_lsn:
            self._refuse_primary()
        else:
            self._probed(term)
            self._follow_term(now)

    def _probed(self, term: ReferenceTerm) -> None:
        """7.12: each member that follows is asked to confirm the term, with a number that it was not sent yet."""
        appends = [a for a in self._actions if isinstance(a, SendAppend)]
        followers = {i for i, member in term.members.items() if member.follows}
        asked = {i for append in appends for i in append.safekeeper_ids}
        expect(followers <= asked, "7.12: of {} only {} are asked to confirm the term", followers, asked)
        sequences = [append.header.sequence for append in appends]
        old = max((member.sent_sequence for member in term.members.values()), default=-1)
        expect(min(sequences, default=old + 1) > old, "7.12: the number of a probe was used before")
        self._probe = min(sequences, default=old + 1)

    def primary_segment_removed(self, now: float) -> None:
        """4.7, 7.12."""
        self._stream.is_open = self._stream.is_checked = False
        if self.term is not None and not self._stream.compares:
            self._refuse_primary()
        elif self.term is not None:
            self._end_term()
        elif self.campaign is not None:
            self.campaign.segment_removed()
            self._follow_campaign(now)

    def primary_slot_in_use(self, now: float) -> None:
        """4.8: the comparison is awaited for longer."""

    def primary_lost(self, now: float) -> None:
        """7.6: nothing is reported to the next one before it was checked."""
        self._part()
        if self.campaign is not None:
            self._abandon()

    def primary_checked(self, begin_lsn: int, end_lsn: int, page_crcs: tuple[int, ...], now: float) -> None:
        """4.6, 7.12."""
        if self.term is not None:
            if page_crcs == self._stream.own_page_crcs:
                self._stream.is_checked = self.term.streams = True
            else:
                self._refuse_primary()
        elif self.campaign is not None:
            self.campaign.checked(page_crcs)
            self._follow_campaign(now)

    def primary_refused(self, reason: str, now: float) -> None:
        """The shell has found that it does not fit (4.7)."""
        self._refuse_primary()

    def timeline_ended(self, next_tli: int, end_lsn: int, now: float) -> None:
        """7.13."""
        stream = self._stream
        if end_lsn == stream.received_lsn:
            stream.ended_lsn = end_lsn
        elif self.campaign is not None:
            self._abandon()
        else:
            self.primary = None
            self._expected.append(StopReplication(""))
        stream.is_open = False
        if self.term is not None:
            self.term.streams = False
            self._follow_term(now)

    def wal_received(self, end_lsn: int, now: float) -> None:
        """7.10."""
        stream, term = self._stream, self.term
        stream.received_lsn = end_lsn
        if term is not None:
            if stream.awaits_link:
                stream.awaits_link, stream.is_checked, term.streams = False, True, True
            term.received_lsn = end_lsn

    def wal_evicted(self, begin_lsn: int) -> None:
        """The window begins there now."""
        self._stream.window_begin_lsn = begin_lsn
        if self.term is not None:
            self.term.window_begin_lsn = begin_lsn
