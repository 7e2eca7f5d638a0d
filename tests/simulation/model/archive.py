"""A model of the archive, and of the archiver in each safekeeper.

The archive holds what has a receipt, under the name that it has for good: timeline, segment, and where its bytes end.
An archiver is dumb: whenever it may, it uploads the next segment that the archive lacks, whole or as far as readers may
see, and reports how far the present log is archived without a gap. Uploads take time, fail, and tear; the process dies
in the middle; two archivers work at once when the leader changes its mind.

It has a source of chance of its own, so that a world without an archive goes as if there were no such thing.
"""

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.base.lsn import Lsn, segment_start
from safekeeper.consensus.term_history import TermHistory, next_tli_switch, tli_at
from tests.simulation.model.synthetic_wal import SEGMENT_SIZE

if TYPE_CHECKING:
    from tests.simulation.model.safekeeper import SimSafekeeper
    from tests.simulation.world.world import World

LOOK_EVERY_S = 0.1
ARCHIVE_ID = "a" * 32


class ArchiveKey(NamedTuple):
    """A segment's bytes [begin_lsn, end_lsn), all of them or a part, by the timeline of the last one."""

    tli: int
    begin_lsn: Lsn
    end_lsn: Lsn

    @property
    def is_whole(self) -> bool:
        """Whether these are all bytes of the segment."""
        return self.end_lsn == self.begin_lsn + SEGMENT_SIZE


class ModelArchive:
    """What all safekeepers upload to.

    Attributes:
        archive_id: its id, empty if it has none.
        objects: what has a receipt.
        torn: keys of uploads that did not finish: they do not count.
    """

    def __init__(self, archive_id: str = "") -> None:
        self.archive_id = archive_id
        self.objects: dict[ArchiveKey, bytes] = {}
        self.torn: set[ArchiveKey] = set()

    def confirm(self, key: ArchiveKey, content: bytes) -> None:
        """An upload is through: it has its receipt, and what it makes superfluous goes."""
        self.objects.setdefault(key, content)
        self.torn.discard(key)
        same = [k for k in self.objects if (k.tli, k.begin_lsn) == (key.tli, key.begin_lsn)]
        for other in same:
            if other.end_lsn < key.end_lsn:
                del self.objects[other]

    def of_segment(self, begin_lsn: Lsn) -> list[tuple[ArchiveKey, bytes]]:
        """Return everything that there is of one segment."""
        return [(key, content) for key, content in self.objects.items() if key.begin_lsn == begin_lsn]

    def read(self, history: TermHistory, lsn: Lsn) -> bytes:
        """Return what a standby that follows this history gets from `lsn` on, without a gap."""
        pieces = []
        while (found := _next_piece(history, lsn, self.objects)) is not None:
            key, end_lsn = found
            pieces.append(self.objects[key][lsn - key.begin_lsn : end_lsn - key.begin_lsn])
            lsn = end_lsn
        return b"".join(pieces)


def chain(history: TermHistory, lsn: Lsn, keys: Iterable[ArchiveKey]) -> Lsn:
    """Return how far the log with this history is archived from `lsn` on without a gap, by the names."""
    keys = tuple(keys)
    while (found := _next_piece(history, lsn, keys)) is not None:
        lsn = found[1]
    return lsn


def _next_piece(history: TermHistory, lsn: Lsn, keys: Iterable[ArchiveKey]) -> tuple[ArchiveKey, Lsn] | None:
    """Return what holds byte `lsn` and most of what follows, and where what it holds of this log ends."""
    begin_lsn = segment_start(lsn, SEGMENT_SIZE)
    best: tuple[ArchiveKey, Lsn] | None = None
    for key in keys:
        if key.begin_lsn == begin_lsn and key.end_lsn > lsn:
            end_lsn = min(key.end_lsn, _tli_end(history, key.tli))
            is_ours = end_lsn > lsn and tli_at(history, end_lsn - 1) == key.tli
            if is_ours and (best is None or end_lsn > best[1]):
                best = key, end_lsn
    return best


def _tli_end(history: TermHistory, tli: int) -> Lsn:
    """Return where the log leaves a timeline, 0 if it never was on it."""
    start_lsn = next((entry.start_lsn for entry in history if entry.tli == tli), None)
    return next_tli_switch(history, start_lsn) if start_lsn is not None else 0


class SimArchiver:
    """The archiver of one safekeeper: idle, unless it is the one.

    Attributes:
        problem: why it cannot reach the archive, empty if it can.
        is_lucky: nothing goes wrong with it by chance.
    """

    def __init__(self, world: "World", archive: ModelArchive, safekeeper: "SimSafekeeper", seed: int) -> None:
        self.world = world
        self.archive = archive
        self.safekeeper = safekeeper
        self.rng = random.Random(f"{seed} archiver {safekeeper.id}")
        self.problem = ""
        self.is_lucky = False
        self._life = 0
        self._known: set[ArchiveKey] = set()
        self._has_looked = False
        self._is_uploading = False
        self._archive_id = ""

    def start(self) -> None:
        """Look after it from now on."""
        self.world.clock.after(self.rng.random() * LOOK_EVERY_S, self._tick)

    def _tick(self) -> None:
        safekeeper, acceptor = self.safekeeper, self.safekeeper.acceptor
        if acceptor is not None and safekeeper.is_serving:
            if self._life != safekeeper.life:
                self._life = safekeeper.life
                self._known, self._has_looked, self._is_uploading = set(), False, False
                self._archive_id = ""
            if not self.world.is_healing and not self.is_lucky and self.rng.random() < 0.01:
                self.problem = "the archive does not answer"
            elif self.world.is_healing or self.rng.random() < 0.05:
                self.problem = ""
            self._look(acceptor)
            if not self.problem and acceptor.leader is not None:
                self._archive_id = self.archive.archive_id
            self._report(acceptor)
        self.world.clock.after(LOOK_EVERY_S * (0.5 + self.rng.random()), self._tick)

    def _look(self, acceptor: Acceptor) -> None:
        """Upload the next segment that is not archived."""
        control = acceptor.control
        is_whole = control.wal_begin_lsn and control.base_lsn is None and control.truncate_to is None
        if not acceptor.is_archiver or self.problem or self._is_uploading or not is_whole:
            return
        if not self._has_looked:
            self._known, self._has_looked = set(self.archive.objects), True
        lsn, end_lsn = chain(control.history, control.wal_begin_lsn, self._known), self.readable_lsn(acceptor)
        begin_lsn = segment_start(lsn, SEGMENT_SIZE)
        end_lsn = min(end_lsn, begin_lsn + SEGMENT_SIZE)
        if end_lsn <= lsn:
            return
        key = ArchiveKey(tli_at(control.history, end_lsn - 1), begin_lsn, end_lsn)
        if not key.is_whole and not self.is_lucky and self.rng.random() < 0.7:
            return
        disk = self.safekeeper.disk
        content = bytes(disk.wal[begin_lsn - disk.begin_lsn : end_lsn - disk.begin_lsn])
        self.world.truths.of_folder(self.safekeeper).archive.on_upload(self.safekeeper, key, content)
        self._is_uploading = True
        delay_s = self.rng.choice((0.01, 0.05, 0.6)) * self.rng.random()
        self.world.clock.after(delay_s, self._uploaded, self._life, key, content)

    def readable_lsn(self, acceptor: Acceptor) -> Lsn:
        """Return where it must stop (S7)."""
        return acceptor.readable_lsn

    def _uploaded(self, life: int, key: ArchiveKey, content: bytes) -> None:
        is_alive = life == self.safekeeper.life
        if is_alive:
            self._is_uploading = False
        if self.problem or not is_alive or (not self.is_lucky and self.rng.random() < 0.1):
            # Without a receipt it is as if it were not there, whatever came through.
            self.archive.torn.add(key)
            if self.rng.random() < 0.5:
                return
        self.world.truths.of_folder(self.safekeeper).archive.on_confirmed(key, content)
        self.archive.confirm(key, content)
        self.world.note(self.safekeeper.name, "archives", key)
        acceptor = self.safekeeper.acceptor
        if is_alive and acceptor is not None:
            self._known.add(key)
            self._report(acceptor)

    def _report(self, acceptor: Acceptor) -> None:
        """Report how far the present log is archived; the report may be out of date when it arrives."""
        control = acceptor.control
        archived_lsn = 0
        if self._has_looked and control.wal_begin_lsn:
            archived_lsn = chain(control.history, control.wal_begin_lsn, self._known)
        self.safekeeper.archive_reported(archived_lsn, self.problem, self._archive_id)
