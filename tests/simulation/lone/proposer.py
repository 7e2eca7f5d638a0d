"""One proposer beside its reference, driven by random answers: states that clusters seldom reach.

Theory of operation. In a cluster the votes, the primary and the members fit each other. Here they are drawn: histories
that fork off anywhere, give up WAL or have forgotten terms; primaries on any line of descent; memberships with two
halves and with any sizes of quorums; greetings of other clusters; refusals of each code; members that answer late,
lose their connections, or return with another data folder. There is no acceptor, so these need not be the answers of
any cluster; the reference (references/proposer/) states what the proposer must do nevertheless. Each answer is one that
the protocol permits: one that breaks it only closes a connection.

Each run draws how it is on the whole: how often connections break while votes are gathered, how soon a primary comes
and its bytes are compared, how much it has recycled, how patient pulls are. So situations that need the same
unlikely thing several times are not rarer than others.

What is checked besides the messages: what status pages read, what the product makes of drawn sizes of quorums, and
whether its checks find states that an error could leave (corrupted_states.py).

    shell.py         connections, and the execution of the proposer's actions
    safekeepers.py   the logs and memberships of the safekeepers, and what they answer
    answers.py       when they answer, and what they send without a request
    primary.py       the primary
    operator.py      changes of the members
    draws.py         options of the run, and servers

The time is drawn, and one seed decides everything.
"""

from collections.abc import Callable
from functools import partial

from safekeeper.consensus.messages import PullWal
from tests.simulation.lone.answers import LoneAnswers
from tests.simulation.lone.drawn_quorum_sizes import check_drawn
from tests.simulation.lone.operator import LoneOperator
from tests.simulation.lone.primary import LonePrimary
from tests.simulation.model.bends import Bends
from tests.simulation.seeds.counts import Counts
from tests.simulation.world.world import SimulationFailed, small_frames
from walproxy.proposer.leadership import Leadership
from walproxy.proposer.phase import Phase

EVENTS = 240
# How much more or less often than usual each kind of event happens in a run.
OFTEN = (0.3, 1.0, 1.0, 3.0)

# Phases in which answers are awaited.
_ANSWERED = (Phase.PRE_VOTING, Phase.VOTING, Phase.VERIFYING, Phase.LEADING)


def drive(seed: int, events: int = EVENTS) -> Counts:
    """Let random events happen to a proposer; return how many were compared.

    Raises:
        SimulationFailed: it does something else than the reference.
    """
    with small_frames(10_000, Bends()):
        lone = LoneProposer(seed)
        try:
            lone.run(events)
        except Exception as error:
            raise SimulationFailed(error, lone.trace()) from error
    return lone.counts


class LoneProposer(LonePrimary, LoneAnswers, LoneOperator):
    """A proposer, and the events that happen to it."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rng = self.rng
        self._stays = rng.choice((12, 25, 50))  # How many events without an attempt it takes until all begins again.
        self._returns = (
            0.03 if self._is_forgetful else rng.choice((0.3, 0.3, 0.02))
        )  # How soon a member comes back to a term.
        self._evicts = (
            0.2 if self._is_forgetful else rng.choice((0.0, 0.0, 0.1))
        )  # How soon the window drops what is committed.
        self._pace = rng.choice((0.5, 0.9, 0.97))  # How seldom something else happens than what leads on.
        self._strays = rng.choice((0.0, 0.0, 0.01, 0.03))  # How often a message is out of place.
        self._breaks_votes = rng.choice((0.0, 0.0, 0.03, 0.15))  # How often a connection breaks in an attempt.

    def run(self, events: int) -> None:
        """Let so many events happen, or fewer if the run ends."""
        choices: tuple[tuple[float, Callable[[], None]], ...] = (
            (60, self._answer),
            (14, self._tick),
            (8, self._identify),
            (12, self._stream),
            (5, self._connect),
            (2, self._disconnect),
            (1, self._lose_primary),
            (0.5, self._refuse),
            (4, self._evict),
            (4, self._report),
            (3, self._change),
            (1, self._operate),
            (2, self._repeat),
            (2, self._send_unasked),
            (3, self._rest),
        )
        check_drawn(self.rng)
        weights = [weight * self.rng.choice(OFTEN) for weight, _ in choices]
        idle = 0
        for _ in range(events):
            if self._proposer.phase is Phase.FINISHED:
                self._linger()
                (self._begin_again if self._chance(0.5) else self._begin_run)()
            idle = idle + 1 if self._proposer.phase is Phase.GATHERING else 0
            if idle > self._stays:
                self._begin_again()  # Nothing more is found here.
                idle = 0
            self._now_s += self.rng.choice((0.0, 0.0, 0.001, 0.001, 0.001, 0.02))
            if self._chance(self._pace):
                self._go_on()
            else:
                self.rng.choices(choices, weights)[0][1]()
            self.done.add(self._proposer.phase.value)

    def _go_on(self) -> None:
        """What leads to a term, and on in it."""
        self._settle()
        leadership = self._proposer.leadership
        has_campaign = self._proposer.campaign is not None
        requests = (request for s in self._safekeepers.values() for request in s.requests)
        pulls = leadership is not None and any(isinstance(request, PullWal) for request in requests)
        if self._chance(0.15 if pulls else 0.002 if has_campaign else 0.005):
            self._rest()
        elif self._chance(self._breaks_votes if has_campaign else 0.02 if self._is_forgetful else 0.006):
            self._disconnect()
        elif self._chance(self._returns if leadership is not None else 0.5) and self._closed_ones():
            self._connect()
        elif self._chance(0.5 if self._identities_due else self._comes if self._primary is None else 0.0):
            self._identify()
        elif self._proposer.phase is Phase.VERIFYING and self._chance(0.06):
            self._happen_while_verifying()
        elif self._proposer.phase is Phase.BOOTSTRAPPING and self._chance(0.04):
            (self._refuse if self._chance(0.3) else self._send_out_of_place)()
        elif self._proposer.phase in _ANSWERED and self._chance(self._strays * (10 if pulls else 1)):
            self._send_out_of_place()
        elif leadership is not None and (happens := self._draw_of_term(leadership)) is not None:
            happens()
        elif self._refused is not None and self._proposer.phase is Phase.GATHERING and self._chance(0.03):
            self._cluster.change_quorums()
        elif self._chance(self._evicts):
            self._evict()
        elif has_campaign and self._copy is not None and self._chance(0.3):
            self._stream()
        elif any(s.is_connected and s.requests for s in self._safekeepers.values()) and self._chance(0.8):
            self._answer()
        elif self._copy is not None and self._chance(0.7):
            self._stream()
        elif self._chance(0.3):
            self._evict()
        else:
            self._tick()

    def _draw_of_term(self, leadership: Leadership) -> Callable[[], None] | None:
        """Draw what happens in a term that is led, beside what leads on; None for nothing."""
        if self._copy is not None and not self._is_checked and self._chance(0.3):
            return self._depose
        if self._chance(0.005):
            return self._lose_primary
        if self._proposer.candidacy.purpose is not None and self._chance(0.1):
            return self._pursue
        if leadership.membership.new_members and self._chance(0.1):
            return partial(self._swap_folder, leadership.membership)
        if self._chance(0.04):
            return self._report
        if self._chance(0.06 if self._away or self._is_unlisted else 0.005):
            return self._change
        if self._copy is not None and self._is_checked and self._chance(0.05):
            return partial(self._fall_behind, leadership)
        return None

    def _fall_behind(self, leadership: Leadership) -> None:
        """A member is away while the others commit much WAL, which leaves the window."""
        following = {i: p.identity for i, p in leadership.members.items() if p.follows}
        able = [i for i in following if leadership.membership.has_commit_quorum({*following.values()} - {following[i]})]
        if not able:
            return
        safekeeper = self._safekeepers[self.rng.choice(able)]
        self._close(safekeeper)
        for _ in range(4):
            if self._copy is None or self._proposer.leadership is not leadership:
                return
            self._received_lsn += 20_000
            self._event("wal_received", self._received_lsn, self._now_s)
            self._answer_all()
        self._evict()
        if safekeeper.id in self._proposer.peers and not safekeeper.is_connected:
            self._open(safekeeper)

    def _happen_while_verifying(self) -> None:
        """Unrequested events, while the primary is compared."""
        if self._chance(0.1):
            self._identify(again=True)
        else:
            (self._repeat if self._chance(0.5) else self._send_unasked)()

    def _linger(self) -> None:
        """What the shell may still report when the run has ended."""
        for happens in (self._answer, self._tick, self._lose_primary, self._disconnect):
            happens()
        if self._chance(0.3):
            self._event("primary_refused", "of the shell", self._now_s)
        self._settle(at_once=True)
