"""What the primary of a lone proposer does: it comes and goes, streams, switches its timeline, lacks WAL.

Part of proposer.py.
"""

import msgspec

from tests.simulation.lone.draws import draw_primary
from tests.simulation.lone.safekeepers import FIRST_LSN
from tests.simulation.lone.shell import LoneShell
from tests.simulation.model.synthetic_wal import SEGMENT_SIZE
from walproxy.proposer.primary import PrimaryIdentity


class LonePrimary(LoneShell):
    """Events of the primary, and of the window that holds its WAL."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rng = self.rng
        self._fits = rng.choice((0.5, 0.9, 0.98))  # How often a primary is the one that has written the newest log.
        self._comes = rng.choice((0.5, 0.5, 0.03))  # How soon a primary comes that is not waited for: tail terms.
        self._compares_soon = rng.choice((0.95, 0.95, 0.5))  # How soon its bytes are compared.
        self._recycles = rng.choice((0.02, 0.1, 0.1, 0.7))  # How often it has not the segment to compare.
        self._switches = rng.choice((0.01, 0.04, 0.15))  # How often its timeline ends.
        self._is_refused_one = False  # It is the one that was refused last.

    def _draw_primary(self) -> PrimaryIdentity:
        """Draw a server on the line of the term's log, of the newest log, or of any; or the one that was refused."""
        refused = self._refused
        self._is_refused_one = refused is not None and self._chance(0.9 if self._away else 0.5)
        if refused is not None and self._is_refused_one:
            flush_lsn = max(FIRST_LSN, refused.flush_lsn + self.rng.choice((0, 0, 900, -1)))
            return msgspec.structs.replace(refused, flush_lsn=flush_lsn)
        line = self.rng.choice(self._cluster.lines)
        leadership = self._proposer.leadership
        fits = self._chance(self._fits)
        if leadership is not None and (fits or self._chance(0.8)):
            line = leadership.elected.history, leadership.received_lsn
        elif fits:
            line = self._cluster.newest_line()
        return draw_primary(self.rng, line, fits)

    def _identify(self, *, again: bool = False) -> None:
        if self._proposer.candidacy.purpose is not None:
            return  # It has no primary.
        if self._primary is not None and not self._identities_due and not again and self._chance(0.95):
            return
        self._settle()
        self._identities_due, self._copy = max(0, self._identities_due - 1), None
        primary = self._primary = self._draw_primary()
        crcs: tuple[int, ...] = ()
        begin_lsn = 0
        if self._proposer.leadership is not None and self._chance(0.9):
            begin_lsn = max(FIRST_LSN, (self._received_lsn - 1) // SEGMENT_SIZE * SEGMENT_SIZE)
            crcs = self._cluster.page_crcs(begin_lsn, self._received_lsn)
        self._cluster.crcs = crcs
        self._event("primary_identified", primary, self._now_s, crcs, begin_lsn)

    def _lose_primary(self) -> None:
        if self._primary is not None:
            self._settle()
            self._primary = self._copy = None
            self._identities_due = 0
            self._event("primary_lost", self._now_s)

    def _refuse(self) -> None:
        """The shell finds that this primary does not fit, or that its connection is another server's."""
        if self._primary is not None:
            self._settle()
            self._copy = None
            self._event("primary_refused", "of the shell", self._now_s)

    def _stream(self) -> None:
        self._settle()  # The loss of a member may close the COPY.
        copy, rng = self._copy, self.rng
        if copy is None or self._identities_due:
            return
        if self._chance(self._switches):
            self._end_timeline()
        elif not self._is_checked:
            self._compare()
        elif self._received_lsn == copy.begin_lsn and self._chance(0.1):
            self._copy = None
            self._event("primary_segment_removed", self._now_s)
        elif copy.previous_record_lsn is not None and self._received_lsn == copy.begin_lsn and self._chance(0.3):
            self._event("primary_refused", "the next record does not link to the last one", self._now_s)
        else:
            self._received_lsn += rng.choice((1, 200, 1500, 3000, 20_000 if self._is_forgetful else 6000))
            self._event("wal_received", self._received_lsn, self._now_s)

    def _end_timeline(self) -> None:
        copy = self._copy
        if copy is not None:
            end_lsn = self._received_lsn + self.rng.choice((0, 0, 0, 1))
            self._copy = None
            self._event("timeline_ended", copy.tli + 1, end_lsn, self._now_s)

    def _compare(self) -> None:
        """The bytes before the beginning of the COPY are compared, or cannot be."""
        copy = self._copy
        if copy is None:
            self._tick()
        elif not self._chance(self._compares_soon):
            self._event("primary_slot_in_use", self._now_s)
            self._tick()
        elif self._chance(self._recycles):
            self._copy = None
            self._event("primary_segment_removed", self._now_s)
        elif self._chance(0.03):
            self._event("primary_refused", "of the shell", self._now_s)
        else:
            self._is_checked = True
            crcs = self._cluster.crcs
            campaign = self._proposer.campaign
            differs = self._chance(0.6 if self._is_refused_one else 0.15)
            if differs:
                crcs = self.rng.choice(((*crcs[:-1], 101), crcs[:-1], (*crcs, 3), (102, *crcs[1:])))
            self._event("primary_checked", copy.check_begin_lsn, copy.begin_lsn, crcs, self._now_s)
            if differs and campaign is not None and campaign.donor and self._chance(0.9):
                self._go_away(self._safekeepers[campaign.donor])

    def _evict(self) -> None:
        leadership = self._proposer.leadership
        if leadership is None:
            if self._copy is not None and self._chance(0.1):
                self._window_begin_lsn = self.rng.randint(self._window_begin_lsn, self._received_lsn)
                self._event("wal_evicted", self._window_begin_lsn)
        elif leadership.commit_lsn > self._window_begin_lsn:
            self._window_begin_lsn = self.rng.randint(self._window_begin_lsn, leadership.commit_lsn)
            self._event("wal_evicted", self._window_begin_lsn)
