"""Physical replication slots: each retains WAL for a client that may be disconnected.

A slot has a name and a restart_lsn, the position that its client last reported as flushed. One connection at a time
uses it. The creation and the removal of a persistent slot are durable before they are acknowledged. Its restart_lsn is
written lazily, because an older one retains more WAL and does no other harm. A temporary slot is stored in memory and
ends with its connection.

All persistent slots are stored in one small file of the data folder, `slots`, which is replaced as a whole in the
disk's thread. Changes are made one after the other. A slot that no connection has used for slot_idle_timeout is
dropped; the time is counted from the start of the process at the earliest. Losing slots loses retained WAL, never
committed data. Nevertheless a damaged file is refused at the start: otherwise WAL that a client still needs would be
removed without notice.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from safekeeper.base.errors import CommandError, ResourceShortage, StorageFailed, StorageFull
from safekeeper.base.logs import ProblemLog
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.base.worker import Worker
from safekeeper.storage.control_file import StateFile
from safekeeper.storage.filesystem import FileSystem

SLOTS_FILE_NAME = "slots"
# The holder of a slot that expires: no connection has this number.
EXPIRY = -1

_NAME = re.compile(r"[a-z0-9_]{1,63}")
_log = logging.getLogger(__name__)


class _StoredSlot(msgspec.Struct, frozen=True, array_like=True):
    name: str
    restart_lsn: Lsn


class _StoredSlots(msgspec.Struct, frozen=True):
    slots: tuple[_StoredSlot, ...]


class Slot:
    """One slot.

    Attributes:
        restart_lsn: its client no longer needs WAL below it; 0 if it retains none yet.
        temporary: it ends with its connection.
        holder: the number of the connection that uses it, 0 if none does.
        idle_since: when it was last used, or when this process started; not valid while it is used.
    """

    __slots__ = ("holder", "idle_since", "name", "released", "restart_lsn", "temporary")

    def __init__(
        self, name: str, restart_lsn: Lsn, idle_since: float, *, temporary: bool = False, holder: int = 0
    ) -> None:
        self.name = name
        self.idle_since = idle_since
        self.restart_lsn = restart_lsn
        self.temporary = temporary
        self.holder = holder
        self.released = asyncio.Event()


class Slots:
    """The slots of one safekeeper. Created by `open`."""

    def __init__(self, file: StateFile, disk: Worker, slots_max: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._file = file
        self._disk = disk
        self._slots_max = slots_max
        self._slots: dict[str, Slot] = {}
        self._changing = asyncio.Lock()
        self._moved = False  # A restart_lsn is newer than in the file.
        self._save_task: asyncio.Task[None] | None = None
        self._save_problem = ProblemLog(_log)
        self._drop_problem = ProblemLog(_log)

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        directory: Path,
        disk: Worker,
        slots_max: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> "Slots":
        """Read the slots of the data folder `directory`.

        Args:
            disk: the thread in which the file is written.
            slots_max: maximum number of slots, including temporary ones; if the file has more, they stay.
            clock: returns seconds, to measure how long a slot is idle.

        Raises:
            StorageFailed: the file is damaged.
        """
        file = StateFile(
            fs,
            directory / SLOTS_FILE_NAME,
            magic=b"SAFESLOT",
            what="file of slots",
            what_to_do="remove it to start without slots; standbys create theirs again, if their WAL is still there",
        )
        slots = cls(file, disk, slots_max, clock)
        stored = file.load(_StoredSlots)
        if stored is not None:
            slots._slots = {slot.name: Slot(slot.name, slot.restart_lsn, clock()) for slot in stored.slots}
        return slots

    def find(self, name: str) -> Slot | None:
        """Return the slot with that name, None if it does not exist."""
        return self._slots.get(name)

    def describe(self) -> list[Slot]:
        """Return all slots, by name."""
        return [self._slots[name] for name in sorted(self._slots)]

    async def create(self, name: str, restart_lsn: Lsn, *, connection: int, temporary: bool = False) -> Slot:
        """Create a slot and return it once it is durable, or at once if it is temporary: then `connection` holds it.

        Raises:
            CommandError: the name is not valid (42602) or in use (42710), the limit is reached (53400), the disk is
                full (53100) or failed (58030).
        """
        if _NAME.fullmatch(name) is None:
            raise CommandError(
                "42602",
                f'replication slot name "{name[:63]}" is not valid',
                hint="Replication slot names may only contain lower case letters, numbers, and the underscore "
                "character, at most 63 of them.",
            )
        async with self._changing:
            if name in self._slots:
                raise CommandError("42710", f'replication slot "{name}" already exists')
            if len(self._slots) >= self._slots_max:
                raise CommandError("53400", "all replication slots are in use", hint="Free one or increase slots_max.")
            holder = connection if temporary else 0
            slot = Slot(name, restart_lsn, self._clock(), temporary=temporary, holder=holder)
            if not temporary:
                await self._store([*self._slots.values(), slot])
            self._slots[name] = slot
            return slot

    async def drop(self, name: str, *, connection: int, wait: bool) -> None:
        """Drop a slot and return once that is durable. `wait`: if it is in use, wait until it is released.

        Raises:
            CommandError: it does not exist (42704) or is in use (55006), the disk is full (53100) or failed (58030).
        """
        while True:
            async with self._changing:
                slot = self._slots.get(name)
                if slot is None:
                    raise _missing(name)
                if slot.holder == 0 or (slot.temporary and slot.holder == connection):
                    await self._drop(slot, connection)
                    return
            if not wait:
                raise _in_use(slot)
            await slot.released.wait()

    async def _drop(self, slot: Slot, connection: int) -> None:
        slot.holder = connection  # No other connection takes it meanwhile.
        if not slot.temporary:
            try:
                await self._store([other for other in self._slots.values() if other is not slot])
            except BaseException:  # Also if the connection ends meanwhile.
                self._free(slot)  # This was not a use: its idle time continues.
                raise
        # A temporary one may have been dropped with its connection meanwhile.
        self._slots.pop(slot.name, None)
        slot.released.set()

    def acquire(self, slot: Slot, connection: int) -> None:
        """Assign the slot to `connection`, until `release`.

        Raises:
            CommandError: another connection uses it (55006).
        """
        if slot.holder not in (0, connection):
            raise _in_use(slot)
        slot.holder = connection
        slot.released.clear()

    def release(self, slot: Slot) -> None:
        """End the use of a slot; a temporary one remains assigned to its connection."""
        if not slot.temporary:
            slot.idle_since = self._clock()
            self._free(slot)

    def _free(self, slot: Slot) -> None:
        slot.holder = 0
        slot.released.set()

    def idle_s(self, slot: Slot) -> float:
        """Return how long no connection has used the slot, 0 while one does."""
        return 0.0 if slot.holder else max(0.0, self._clock() - slot.idle_since)

    async def drop_idle(self, timeout_s: float) -> None:
        """Drop the slots that no connection has used for `timeout_s`. If one cannot be dropped now, retry next time."""
        for slot in self.describe():
            idle_s = self.idle_s(slot)
            if idle_s < timeout_s:
                continue
            try:
                async with self._changing:
                    if slot.holder or self._slots.get(slot.name) is not slot:
                        continue  # It was acquired or dropped meanwhile.
                    await self._drop(slot, EXPIRY)
            except CommandError as error:
                self._drop_problem.note(str(error), "an idle replication slot could not be dropped: %s", error)
            else:
                self._drop_problem.over()
                _log.warning(
                    'dropped replication slot "%s", which retained WAL from %s: no client used it for %.0f s '
                    "(slot_idle_timeout)",
                    slot.name,
                    format_lsn(slot.restart_lsn),
                    idle_s,
                )

    def connection_lost(self, connection: int) -> None:
        """Drop the temporary slots of a connection."""
        for slot in [slot for slot in self._slots.values() if slot.temporary and slot.holder == connection]:
            del self._slots[slot.name]
            self._free(slot)

    def report(self, slot: Slot, flush_lsn: Lsn) -> None:
        """Retain WAL from `flush_lsn` on, also if that is less than before; 0 changes nothing."""
        if flush_lsn and flush_lsn != slot.restart_lsn:
            slot.restart_lsn = flush_lsn
            self._moved = self._moved or not slot.temporary

    def checkpoint(self) -> None:
        """Start to write the positions that have moved, unless a write is under way, which includes them."""
        if self._moved and not self._changing.locked() and (self._save_task is None or self._save_task.done()):
            self._save_task = asyncio.get_running_loop().create_task(self.save())

    async def save(self) -> None:
        """Write the positions if they have moved. If the write fails, the file keeps the older ones."""
        async with self._changing:
            if not self._moved:
                return
            try:
                await self._store(list(self._slots.values()))
                self._save_problem.over()
            except CommandError as error:
                self._save_problem.note(str(error), "could not save the positions of replication slots: %s", error)

    async def _store(self, slots: list[Slot]) -> None:
        """Replace the file by these slots, without the temporary ones."""
        content = _StoredSlots(tuple(_StoredSlot(slot.name, slot.restart_lsn) for slot in slots if not slot.temporary))
        moved, self._moved = self._moved, False
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._disk.submit(lambda: self._file.store(content), _done, stored)
        try:
            await stored
        except (StorageFull, StorageFailed) as error:
            self._moved = self._moved or moved
            sqlstate = "58030"
            if isinstance(error, StorageFull):
                sqlstate = "53000" if isinstance(error, ResourceShortage) else "53100"
            raise CommandError(sqlstate, f"could not save the replication slots: {error}") from error


def _done(stored: asyncio.Future[None], _: Any, error: BaseException | None) -> None:
    if stored.done():
        return  # The task that waited for it was cancelled: the process ends.
    if error is not None:
        stored.set_exception(error)
    else:
        stored.set_result(None)


def _missing(name: str) -> CommandError:
    return CommandError("42704", f'replication slot "{name[:63]}" does not exist')


def _in_use(slot: Slot) -> CommandError:
    return CommandError("55006", f'replication slot "{slot.name}" is active for PID {slot.holder}')
