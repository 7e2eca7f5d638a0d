"""One acceptor beside its reference, driven by random messages: states that clusters seldom reach.

Theory of operation. In a cluster most messages fit the state that a proposer has just received. Here they are drawn
from the state of the acceptor (messages.py); disks are full, and processes die between any two effects
(acceptor_process.py). There is no proposer and no other member, so these need not be the messages of any cluster;
the reference (references/acceptor) states what the acceptor must do nevertheless, and refuses messages that break the
protocol.

Now and then the checks of the acceptor's state are given states that an error could leave (corrupted_states.py).

The bytes are those of `ModelDisk`, the time is drawn, and one seed decides everything.
"""

from collections.abc import Callable

from tests.simulation.lone.acceptor_process import LoneProcess
from tests.simulation.model.bends import Bends
from tests.simulation.seeds.counts import Counts
from tests.simulation.world.world import SimulationFailed, history_entries_max, small_frames

EVENTS = 100


def drive(seed: int, events: int = EVENTS) -> Counts:
    """Let random events happen to an acceptor; return how many were compared.

    Raises:
        SimulationFailed: it does something else than the reference.
    """
    entries_max = history_entries_max(seed)
    with small_frames(entries_max, Bends()):
        lone = LoneAcceptor(seed, entries_max)
        try:
            lone.run(events)
        except Exception as error:
            raise SimulationFailed(error, lone.trace()) from error
    return lone.counts


class LoneAcceptor(LoneProcess):
    """An acceptor, its disk, and the events that happen to it."""

    def run(self, events: int) -> None:
        """Let so many events happen.

        Raises:
            Violation: the acceptor does something else than the reference.
        """
        kinds: dict[Callable[[], None], int] = {
            self._append: 60,
            self._flushed: 40,
            self._elected: 22,
            self._vote: 10,
            self._pre_vote: 8,
            self._greet: 5,
            self._disconnect: 3,
            self._bootstrap: 8,
            self._reconfigure: 4,
            self._relay: 2,
            self._folders: 4,
            self._pull: 8,
            self._pulled: 12,
            self._read: 8,
            self._archive: 8,
            self._trim: 8,
            self._readers: 8,
            self._checkpoint: 3,
            self._exchange: 1,
            self._fill_disk: 4,
            self._die: 5,
        }
        # Without a leader these are refused: that is not tried more often than now and then.
        of_term = (self._append, self._pull, self._pulled, self._reconfigure, self._archive, self._flushed)
        self._start()
        if self._chance(0.15):
            self._begin_clusters()
        for kind in self.rng.choices(list(kinds), list(kinds.values()), k=events):
            self._now_s += self.rng.choice((0.0, 0.01, 0.3, 0.6, 1.0))
            while self._closing and self._chance(0.9):
                self._close(self._closing.pop(0))
            while not self._greeted:
                self._greet(well=True)
            if self._acceptor.control.replaced is not None and self._chance(0.06):
                kind = self._bootstrap  # Mostly the undo of a rebootstrap.
            if self._acceptor.control.truncate_to is not None and self._chance(0.5):
                kind = self._trim  # Space that was lacked for the cut.
            if kind in of_term and self._acceptor.leader is None and self._chance(0.95):
                kind = self._elected
            kind()

    def _begin_clusters(self) -> None:
        """Bootstrap this folder several times before a term is won: clusters are replaced that have no log."""
        self._greet(well=True)
        self._exchange()
        for _ in range(self.rng.randint(2, 4)):
            if self._greeted:
                self._bootstrap()
