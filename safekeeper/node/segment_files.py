"""The segment files of a node's WAL: the next one is prepared, and old ones are removed, by threads of their own.

To prepare a segment takes far longer than a flush may wait, and a busy disk may take seconds to remove one. For want of
disk space, or of file descriptors, a preparation is retried after a pause.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Protocol

from safekeeper.base.errors import ResourceShortage, StorageFailed, StorageFull
from safekeeper.base.lsn import Lsn, segment_start
from safekeeper.base.worker import Worker
from safekeeper.storage.data_folder import DataFolder
from safekeeper.storage.disk_space import WAL, DiskSpace
from safekeeper.storage.disk_work import Preparation, Removal

# The pause before the preparation of the next segment is retried for want of disk space.
PREPARE_AGAIN_AFTER_S = 1.0
# The pauses before a file is opened again for which no descriptor was free: each is twice the last. An effect in the
# disk's thread is retried after each of these, 0.63 s in all; then it is refused, as for want of disk space.
SHORTAGE_PAUSES_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)


class WalOwner(Protocol):
    """The node, as its WAL's writer and segment files use it."""

    folder: DataFolder
    disk_space: DiskSpace
    disk: Worker
    failed: asyncio.Future[None]

    @property
    def is_between_events(self) -> bool: ...

    def post(self, event: Callable[[], None]) -> None: ...

    def acknowledge(self, flush_lsn: Lsn) -> None: ...

    def report_write(self) -> None: ...

    def fail(self, error: BaseException) -> None: ...


class SegmentFiles:
    """The segment files of one node."""

    def __init__(self, node: WalOwner, loop: asyncio.AbstractEventLoop) -> None:
        self._node = node
        self._loop = loop
        self._preparer = Worker("preparer", loop)
        self._remover = Worker("remover", loop)
        self._prepare_at_lsn: Lsn = 0  # Until then it is not time for the next segment.
        self._prepare_not_before = 0.0
        self._shortages_in_a_row = 0  # Of the preparer.

    def log_may_change(self) -> None:
        """Check at the next flush whether it is time for the next segment: the log may end elsewhere by then."""
        self._prepare_at_lsn = 0

    def prepare_if_due(self, write_lsn: Lsn, now: float) -> None:
        """Start to prepare the next segment if it is time, and not during a pause."""
        if write_lsn >= self._prepare_at_lsn and now >= self._prepare_not_before:
            self.prepare_ahead()

    def prepare_ahead(self) -> None:
        """Start to prepare the next segment if it is time."""
        storage = self._node.folder.storage
        if storage is None or not self._node.is_between_events:
            return
        try:
            preparation = storage.prepare_ahead()
        except StorageFailed as error:
            self._node.fail(error)
            return
        size = self._node.folder.control.segment_size
        half_lsn = segment_start(storage.write_lsn, size) + size // 2
        self._prepare_at_lsn = half_lsn + 1 if storage.write_lsn <= half_lsn else half_lsn + size + 1
        if preparation is not None:
            self._preparer.submit(preparation.run, self._prepared, preparation)

    def remove_below(self, lsn: Lsn) -> None:
        """Let the log begin at `lsn`, and start to remove the files below."""
        removal = self._node.folder.opened_storage().forget_below(lsn)
        if removal is not None:
            self._remover.submit(removal.run, self._removed, removal)

    def no_room(self, full: StorageFull) -> None:
        """Record that there is no disk space, or no file descriptor, for WAL."""
        storage, segment_size = self._node.folder.storage, self._node.folder.control.segment_size
        ends_at_lsn = 0
        if storage is not None and segment_size:
            ends_at_lsn = segment_start(storage.write_lsn - 1, segment_size) + segment_size
        self._node.disk_space.wal_ends_at_lsn = ends_at_lsn
        self._node.disk_space.note(WAL, full)

    def note_room(self, flush_lsn: Lsn) -> None:
        """Record that there is disk space for WAL again, if a flush has ended in a segment that was created since."""
        space = self._node.disk_space
        if WAL in space.lacking and flush_lsn > space.wal_ends_at_lsn:
            space.note(WAL, None)

    def stop(self) -> None:
        """End the threads after their present work."""
        self._preparer.stop()
        self._remover.stop()

    def _prepared(self, preparation: Preparation, _: object, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, StorageFull):
            self._node.fail(error)
            return
        self._node.post(partial(self._count_prepared, preparation, error))

    def _count_prepared(self, preparation: Preparation, full: StorageFull | None) -> None:
        self._prepare_at_lsn = 0
        if self._node.folder.storage is not None:
            self._node.folder.storage.finish_preparation(preparation)
        if full is not None:
            pause_s = PREPARE_AGAIN_AFTER_S
            if isinstance(full, ResourceShortage):
                pause_s = SHORTAGE_PAUSES_S[min(self._shortages_in_a_row, len(SHORTAGE_PAUSES_S) - 1)]
                self._shortages_in_a_row += 1
                # Without a write meanwhile there is no flush that would retry it.
                self._loop.call_later(pause_s, self.prepare_ahead)
            self._prepare_not_before = monotonic() + pause_s
            self.no_room(full)
        else:
            self._shortages_in_a_row = 0
            self._node.disk_space.note(WAL, None)

    def _removed(self, removal: Removal, _: object, error: BaseException | None) -> None:
        if error is not None:
            self._node.fail(error)
        elif self._node.folder.storage is not None:
            self._node.folder.storage.finish_removal(removal)
