"""Old WAL goes: when safekeepers remove it, how much of it, and records that are longer than what is kept.

It has a source of chance of its own, so that a world in which all WAL is kept goes as if there were no such thing.
"""

import random
from typing import TYPE_CHECKING

from safekeeper.acceptor.trimming import TrimRequest
from tests.simulation.model.disk import StorageDisk
from tests.simulation.model.synthetic_wal import HEADER_BYTES, SEGMENT_SIZE

if TYPE_CHECKING:
    from tests.simulation.model.primary import VirtualPrimary
    from tests.simulation.model.safekeeper import SimSafekeeper
    from tests.simulation.world.world import World

LONG_RECORD_ONE_IN = 30


class SimRetention:
    """The retention of all safekeepers.

    Attributes:
        is_on: whether they remove anything in this run.
        has_archive: whether they archive it before.
    """

    def __init__(self, world: "World", seed: int) -> None:
        self.world = world
        self.rng = random.Random(f"{seed} trims")
        self.is_on = self.rng.random() < world.profile.trims
        self.has_archive = self.is_on and self.rng.random() < world.profile.archive

    def start(self) -> None:
        """Look after every safekeeper from now on, if it is on."""
        for safekeeper in self.world.safekeepers.values() if self.is_on else ():
            self.world.clock.after(self.world.profile.bends.trim_s * self.rng.random(), self._trim, safekeeper)

    def _trim(self, safekeeper: "SimSafekeeper") -> None:
        world, rng = self.world, self.rng
        if isinstance(safekeeper.disk, StorageDisk) and not world.is_healing and rng.random() < 0.1:
            safekeeper.disk.fs.crash_in(rng.randint(1, 4))
        safekeeper.trim(
            TrimRequest(
                wanted_lsn=min((s.needed_lsn for s in world.standbys if s.needed_lsn), default=None),
                keep_bytes=rng.choice((0, 0, SEGMENT_SIZE // 2, 3 * SEGMENT_SIZE)),
                limit_bytes=rng.choice((None, 2 * SEGMENT_SIZE, 2 * SEGMENT_SIZE, 4 * SEGMENT_SIZE)),
                has_archive=world.archive is not None,
            )
        )
        world.clock.after(world.profile.bends.trim_s * (0.5 + rng.random()), self._trim, safekeeper)

    def write_long_record(self, primary: "VirtualPrimary") -> bool:
        """Now and then write a record over several segments, of which the first may go before it is complete."""
        if not self.is_on or self.rng.random() * LONG_RECORD_ONE_IN >= 1:
            return False
        primary.write_record(HEADER_BYTES + self.rng.randint(1, 3 * SEGMENT_SIZE))
        primary.flush(max(primary.flush_lsn, primary.insert_lsn - self.rng.randint(0, 2 * SEGMENT_SIZE)))
        return True
