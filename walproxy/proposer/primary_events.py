"""The events of the primary: its identity, its WAL, and the end of its connection or timeline."""

from safekeeper.base.lsn import Lsn, format_lsn
from walproxy.proposer.actions import Action, StopReplication
from walproxy.proposer.primary import PrimaryIdentity
from walproxy.proposer.terms import Terms
from walproxy.proposer.verification import difference, recycled

# A proxy whose primary is awaited for longer greets the safekeepers again before its first election.
GREETING_FRESH_S = 1.0


class PrimaryEvents(Terms):
    """What the shell reports about the primary."""

    def primary_identified(
        self,
        primary: PrimaryIdentity,
        now: float,
        own_page_crcs: tuple[int, ...] = (),
        own_begin_lsn: Lsn = 0,
    ) -> list[Action]:
        """Handle the identity of a primary on an open connection.

        Args:
            own_page_crcs, own_begin_lsn: checksums of the pages of the received WAL, from `own_begin_lsn` up to
                `received_lsn`; own_begin_lsn is the start of the last segment in which a timed record is known to
                begin, or of the log. Empty if that is unknown.
        """
        if self._stream.identities_due > 1:
            # An answer for an election that was given up; the primary did not reply then. The next one is for the last.
            self._stream.identities_due -= 1
            return self._take()
        self._stream.identities_due = 0
        first = self.primary is None and not self.candidacy.held_term
        self.primary = primary
        self._stream.own_page_crcs, self._stream.own_begin_lsn = own_page_crcs, own_begin_lsn
        self._stream.is_open = False
        if first:
            # Safekeepers that were greeted without an identity are greeted again with one, so that both sides check it.
            if not self.candidacy.term:
                # An election by greetings from before a failover is refused: the sealing term is in each membership.
                self.roster.forget_greetings(before=now - GREETING_FRESH_S)
            self.roster.greet_all(primary, now)
        campaign = self.campaign
        if self.leadership is not None:
            # A tail term ends at the next tick: then this primary is compared.
            if not self.leadership.is_tail:
                self._on_primary_in_term(self.leadership, primary, now)
        elif campaign is not None and not campaign.is_tail:
            campaign.primary = primary
            if campaign.awaits_primary and not self._refuse_foreigners(primary, now):
                campaign.primary_identified()
                self._follow_campaign(campaign, now)
        self._try_to_begin(now)
        return self._take()

    def primary_segment_removed(self, now: float) -> list[Action]:
        """Handle a primary that has recycled the segment to compare, or the one with which it was to continue."""
        # That COPY has ended; none of it was checked.
        self._stream.is_open = self._stream.is_checked = False
        if self.leadership is not None and not self._stream.compares:
            # Another term would have the same result.
            self._refuse_primary(recycled(self._stream.received_lsn), now)
        elif self.leadership is not None:
            self._end_term(now, "the primary has recycled the segment to compare")
            self._try_to_begin(now, due=True)
        elif self.campaign is not None:
            self.campaign.segment_removed()
            self._follow_campaign(self.campaign, now)
        return self._take()

    def primary_slot_in_use(self, now: float) -> list[Action]:
        """Handle a primary that replies, and cannot stream only because another walsender holds the slot (4.8)."""
        if self.campaign is not None:
            self.campaign.slot_in_use(now)
        return self._take()

    def primary_lost(self, now: float) -> list[Action]:
        """Handle the end of the connection to the primary."""
        self._part_from_primary()
        if self.campaign is not None:
            self._abandon_campaign(self.campaign, now, "the primary is disconnected")
        return self._take()

    def primary_checked(self, begin_lsn: Lsn, end_lsn: Lsn, page_crcs: tuple[int, ...], now: float) -> list[Action]:
        """Handle the page checksums of the primary's bytes [begin_lsn, end_lsn) (S10)."""
        self._stream.require_open()
        if self.leadership is not None:
            reason = difference(begin_lsn, self._stream.own_page_crcs, page_crcs, "the WAL that it sent before")
            if reason:
                self._refuse_primary(reason, now)
            else:
                self._on_primary_verified(self.leadership)
        elif self.campaign is not None:
            self.campaign.primary_checked(page_crcs)
            self._follow_campaign(self.campaign, now)
        return self._take()

    def primary_refused(self, reason: str, now: float) -> list[Action]:
        """Refuse this primary for a reason of the shell, e.g. a record that does not link to the log (S10)."""
        self._refuse_primary(reason, now)
        return self._take()

    def timeline_ended(self, next_tli: int, end_lsn: Lsn, now: float) -> list[Action]:
        """Handle the end of the term's timeline: the next timeline needs another term (S9)."""
        stream = self._stream
        if end_lsn != stream.received_lsn:
            reason = f"timeline ended at {format_lsn(end_lsn)}, but its WAL did not"
            if self.campaign is not None:
                self._abandon_campaign(self.campaign, now, reason)
            else:
                self.primary = None
                self._out.append(StopReplication(reason))
        else:
            # It may end before the donor's checksums are received, and so before the term is led.
            stream.ended_lsn = end_lsn
        stream.is_open = False
        if self.leadership is not None:
            self.leadership.set_streaming(False)
            self._follow_leadership(now)
        return self._take()

    def wal_received(self, end_lsn: Lsn, now: float) -> list[Action]:
        """Handle WAL that was appended to the window, up to `end_lsn`."""
        stream = self._stream
        stream.require_open()
        stream.received_lsn = end_lsn
        if self.leadership is not None:
            if stream.awaits_link:
                stream.awaits_link = False
                # The first record links to the log, otherwise the shell would not have passed it on.
                self._on_primary_verified(self.leadership)
            self.leadership.on_wal_received(end_lsn, now)
            if self._steady and end_lsn >= self.leadership.write_lsn:
                return self._taken()  # Nothing that is checked can have changed.
        return self._take()

    def wal_evicted(self, begin_lsn: Lsn) -> None:
        """Record that the window begins at `begin_lsn` now."""
        self._stream.window_begin_lsn = begin_lsn
        if self.leadership is not None:
            self.leadership.window_begin_lsn = begin_lsn
