"""A disk in memory that loses exactly what a real one may lose.

Every file has two contents: what the page cache shows, and what a power cut would leave. `pwrite` changes the first
and notes the dirty sectors; `fdatasync` carries them over. Names work likewise: `create`, `rename` and `unlink` are
seen at once and pend until `fsync_directory`. A file that was renamed to another folder gets its new name with the sync
of that folder, and loses the old one with the sync of the other: without the first it may be lost.

- `crash()` is a power cut: each dirty range is kept, lost, or torn, at borders of 512-byte sectors or, in other power
  cuts, of 4-KiB pages; each pending change of a name is kept or lost, but never without an earlier one of the same name
  or file that it builds on.
- `kill()` ends the process only: the cache survives, and nothing has become durable by it.
- A failed fdatasync (`fail_in`) leaves pages that reads still show, that count as clean, and that are gone after the
  next crash, or as soon as the system needs the memory: at `evict()`, at the n-th read of such a file after
  `evict_in(n)`, and now and then at any.
- The kernel writes dirty pages back whenever it likes; so does this disk, now and then, so that a half-written sector's
  older content may be what a crash leaves.
- `capacity_bytes` makes it full: StorageFull; `full_in(n)` lacks space for one operation, whichever it is. `short` is
  for how many files and held folders there is no descriptor: ResourceShortage. `fail_read_in(n)` fails a read or a look
  at names.
- `short_of_memory_in(n)` fails a write for lack of memory, which has changed nothing: ResourceShortage, too.
- A file that was closed cannot be used, and `open_files` counts those that were not closed.
- `crash_in(n)` raises VirtualCrash at the n-th operation from now, before or after it took effect, and from every
  operation after it, until `crash()` or `kill()` decides which of the two it was.
- `during_fdatasync` is called in the middle of the next fdatasync: what another thread does meanwhile.

All chance comes from one `random.Random`. One instance is one machine's disk; files of an earlier life are dead.
"""

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from safekeeper.base.errors import ResourceShortage, StorageFailed, StorageFull
from safekeeper.storage.filesystem import Space

SECTOR_BYTES = 512
PAGE_BYTES = 4096
_WRITE_BACK_ONE_IN = 16
_EVICT_ONE_IN = 4


class VirtualCrash(Exception):
    """The process has ended here. Only the simulation catches this."""


class Content:
    """What an inode holds: `cached` as reads show it, `durable` as a crash leaves it, and the sectors that differ."""

    __slots__ = ("cached", "dirty", "durable", "lost")

    def __init__(self) -> None:
        self.cached = bytearray()
        self.durable = bytearray()
        self.dirty: list[tuple[int, int]] = []  # Ranges of sectors, in the order of the writes; they may overlap.
        self.lost: list[tuple[int, int]] = []  # Ranges that a failed fdatasync has marked clean.

    def write(self, data: bytes, offset: int) -> None:
        end = offset + len(data)
        if len(self.cached) < offset:
            self.cached.extend(bytes(offset - len(self.cached)))
        self.cached[offset:end] = data
        begin_sector, end_sector = offset // SECTOR_BYTES, -(-end // SECTOR_BYTES)
        if self.dirty and self.dirty[-1][0] <= begin_sector <= self.dirty[-1][1]:
            last_begin, last_end = self.dirty[-1]
            self.dirty[-1] = (last_begin, max(last_end, end_sector))
        else:
            self.dirty.append((begin_sector, end_sector))

    def persist(self, begin_sector: int, end_sector: int) -> None:
        """Carry sectors over to the disk; where the file on disk is shorter, it grows."""
        begin, end = begin_sector * SECTOR_BYTES, min(end_sector * SECTOR_BYTES, len(self.cached))
        if begin >= end:
            return
        if len(self.durable) < begin:
            self.durable.extend(bytes(begin - len(self.durable)))
        self.durable[begin:end] = self.cached[begin:end]

    def sync(self) -> None:
        if len(self.dirty) == 1 and not self.durable:
            self.durable = bytearray(self.cached)
        for begin_sector, end_sector in self.dirty:
            self.persist(begin_sector, end_sector)
        self.dirty = []

    def forget_dirty(self, rng: random.Random) -> None:
        """What Linux does when a write-back fails: what was not written stays readable and counts as clean."""
        for begin_sector, end_sector in self.dirty:
            middle = rng.randint(begin_sector, end_sector)
            self.persist(begin_sector, middle)
            self.lost.append((middle, end_sector))
        self.dirty = []

    def evict(self, rng: random.Random) -> None:
        """Drop clean pages from the cache: a lost one then reads as what the disk has."""
        dirty = {sector for begin, end in self.dirty for sector in range(begin, end)}
        still_lost = []
        for sector in sorted({sector for begin, end in self.lost for sector in range(begin, end)} - dirty):
            if rng.random() < 0.5:
                begin, end = sector * SECTOR_BYTES, min((sector + 1) * SECTOR_BYTES, len(self.cached))
                self.cached[begin:end] = self.durable[begin:end].ljust(end - begin, b"\0")
            else:
                still_lost.append((sector, sector + 1))
        self.lost = still_lost

    def settle(self, rng: random.Random, unit_bytes: int) -> int:
        """A power cut: each range is lost, kept, or torn by units. A file that grew may have kept its length only.

        Returns how many ranges were torn: of which one unit was kept, and another one lost.
        """
        if not self.dirty and not self.lost and len(self.cached) == len(self.durable):
            return 0
        torn, unit = 0, unit_bytes // SECTOR_BYTES
        if len(self.cached) > len(self.durable) and rng.random() < 0.5:
            self.durable.extend(bytes(len(self.cached) - len(self.durable)))
        for begin_sector, end_sector in self.dirty:
            fate = rng.randrange(4)
            if fate == 0:
                self.persist(begin_sector, end_sector)
            elif fate > 1:
                borders = range(begin_sector - begin_sector % unit, end_sector, unit)
                kept = [begin for begin in borders if rng.random() < 0.5]
                for begin in kept:
                    self.persist(max(begin, begin_sector), min(begin + unit, end_sector))
                torn += 0 < len(kept) < len(borders)
        self.cached = bytearray(self.durable)
        self.dirty, self.lost = [], []
        return torn


class _NameChange:
    """A pending change of a folder: some names get another inode, or none."""

    __slots__ = ("bindings", "contents")

    def __init__(self, bindings: dict[Path, Content | None], contents: list[Content]) -> None:
        self.bindings = bindings
        self.contents = contents  # The inodes that the change is about.


class VirtualFile:
    """An open file of a VirtualFileSystem."""

    __slots__ = ("_content", "_disk", "_is_open", "_life", "_path")

    def __init__(self, disk: "VirtualFileSystem", path: Path, content: Content) -> None:
        self._disk = disk
        self._path = path
        self._content = content
        self._life = disk.life
        self._is_open = True
        disk.open_files += 1

    def pwrite(self, data: bytes, offset: int) -> None:
        self._require_open()
        self._disk.step("write", self._path, self._life)
        growth = offset + len(data) - len(self._content.cached)
        if growth > 0:
            self._disk.allocate(growth, self._path)
        self._content.write(data, offset)
        self._disk.maybe_write_back(self._content)
        self._disk.step_done()

    def pread(self, length: int, offset: int) -> bytes:
        self._require_open()
        self._disk.read_step("read", self._path, self._life)
        if self._content.lost and self._disk.evicts_now():
            self._content.evict(self._disk.rng)
        return bytes(memoryview(self._content.cached)[offset : offset + length])

    def pread_at_hand(self, length: int, offset: int) -> bytes | None:
        data, count = self.pread(length, offset), self._disk.rng.choice((None, 0, length // 2, length))
        return None if count is None else data[:count]

    def fdatasync(self) -> None:
        disk = self._disk
        self._require_open()
        try:
            disk.step("sync", self._path, self._life)
        except (StorageFailed, StorageFull):
            self._content.forget_dirty(disk.rng)
            raise
        meanwhile, disk.during_fdatasync = disk.during_fdatasync, None
        # What is written during an fdatasync may or may not be covered by it.
        if meanwhile is not None and disk.rng.random() < 0.5:
            meanwhile()
            meanwhile = None
        self._content.sync()
        if meanwhile is not None:
            meanwhile()
        disk.became_durable()
        disk.step_done()

    def size(self) -> int:
        self._require_open()
        self._disk.read_step("examine", self._path, self._life)
        return len(self._content.cached)

    def close(self) -> None:
        if self._is_open and self._life == self._disk.life:
            self._disk.open_files -= 1
        self._is_open = False

    def _require_open(self) -> None:
        if not self._is_open:
            raise StorageFailed(f"could not use {self._path}: its file was closed")


class VirtualFileSystem:
    """A machine's disk. Folders need not be created; a file's folder is that of its path."""

    def __init__(self, rng: random.Random, *, capacity_bytes: int = 1 << 40) -> None:
        self.rng = rng
        self.capacity_bytes = capacity_bytes
        self.life = 0  # Grows at every crash and kill.
        self.during_fdatasync: Callable[[], None] | None = None
        self.on_durable: Callable[[], None] | None = None  # Called when a sync has made something durable.
        self.operations = 0  # Changes and syncs so far: where crashes can be put.
        self.failures = 0  # Operations that were made to fail so far.
        self.torn_by_page = 0.5  # How often a power cut tears at borders of pages, and not of sectors.
        self.torn = {SECTOR_BYTES: 0, PAGE_BYTES: 0}  # Ranges of writes that were torn so far, by what at.
        self._names: dict[Path, Content] = {}
        self._durable_names: dict[Path, Content] = {}
        self._pending: list[_NameChange] = []
        self._directories: set[Path] = set()
        self.refusals = 0  # Operations for which there was no space or no descriptor so far.
        self.short = 0  # So many of the next files cannot be opened or created for lack of a descriptor.
        self.names_made_durable = 0  # Grows when the durable names change.
        self.open_files = 0  # So many files of the present process were not closed.
        self._held: set[Path] = set()
        self._full_at: int | None = None
        self._reads_until_failure: int | None = None
        self._crashed = False
        self._crash_at: int | None = None
        self._fail_at: int | None = None
        self._fail_only: str | None = None
        self._memory_at: int | None = None
        self._reads_until_eviction: int | None = None

    # The FileSystem protocol.

    def create(self, path: Path) -> VirtualFile:
        self._take_descriptor(path)
        self.step("create", path, self.life)
        content = Content()
        self._change_names({path: content}, [content])
        self.step_done()
        return VirtualFile(self, path, content)

    def open(self, path: Path, *, read_only: bool = False) -> VirtualFile:
        self.read_step("open", path, self.life)
        self._take_descriptor(path)
        content = self._names.get(path)
        if content is None:
            raise StorageFailed(f"could not open {path}: no such file")
        return VirtualFile(self, path, content)

    def exists(self, path: Path) -> bool:
        self.read_step("look for", path, self.life)
        return path in self._names or path in self._directories

    def listdir(self, directory: Path) -> list[str]:
        self.read_step("list", directory, self.life)
        names = [path.name for path in self._names if path.parent == directory]
        self.rng.shuffle(names)
        return names

    def make_directory(self, directory: Path) -> None:
        self.step("create folder", directory, self.life)
        self._directories.add(directory)
        self.step_done()

    def rename(self, old: Path, new: Path) -> None:
        self.step("rename", old, self.life)
        content = self._names.get(old)
        if content is None:
            raise StorageFailed(f"could not rename {old}: no such file")
        replaced = self._names.get(new)
        contents = [content] + ([replaced] if replaced else [])
        if old.parent == new.parent:
            self._change_names({old: None, new: content}, contents)
        else:
            self._change_names({new: content}, contents)
            self._change_names({old: None}, [content])
        self.step_done()

    def unlink(self, path: Path) -> None:
        self.step("remove", path, self.life)
        content = self._names.get(path)
        if content is None:
            raise StorageFailed(f"could not remove {path}: no such file")
        self._change_names({path: None}, [content])
        self.step_done()

    @contextlib.contextmanager
    def hold_directory(self, directory: Path) -> Iterator[None]:
        if directory in self._held:
            yield
            return
        self._take_descriptor(directory)
        self._held.add(directory)
        try:
            yield
        finally:
            self._held.discard(directory)

    def fsync_directory(self, directory: Path) -> None:
        if directory not in self._held:
            self._take_descriptor(directory)
        self.step("sync folder", directory, self.life)
        pending = [change for change in self._pending if next(iter(change.bindings)).parent == directory]
        for change in pending:
            _bind(self._durable_names, change)
        self._pending = [change for change in self._pending if change not in pending]
        self.names_made_durable += 1
        self.became_durable()
        self.step_done()

    def space(self, directory: Path) -> Space:
        self.check_alive(self.life)
        return Space(max(0, self.capacity_bytes - self.used_bytes()), self.capacity_bytes)

    def _take_descriptor(self, path: Path) -> None:
        if self.short:
            self.short -= 1
            self.refusals += 1
            raise ResourceShortage(f"could not open {path}: too many open files")

    # What befalls the machine.

    def crash(self) -> None:
        """Cut the power. The next process finds what the disk kept."""
        lost_paths: set[Path] = set()
        lost_contents: set[int] = set()
        for change in self._pending:
            contents = {id(content) for content in change.contents}
            builds_on_lost = lost_paths & change.bindings.keys() or lost_contents & contents
            if builds_on_lost or self.rng.random() < 0.5:
                lost_paths |= change.bindings.keys()
                lost_contents |= contents
            else:
                _bind(self._durable_names, change)
        self._pending = []
        self.names_made_durable += 1
        self._names = dict(self._durable_names)
        unit_bytes = PAGE_BYTES if self.rng.random() < self.torn_by_page else SECTOR_BYTES
        for content in {id(content): content for content in self._names.values()}.values():
            self.torn[unit_bytes] += content.settle(self.rng, unit_bytes)
        self._new_life()

    def kill(self) -> None:
        """End the process. The cache stays, pending changes stay pending."""
        self._new_life()

    def evict(self) -> None:
        """Let the system need the memory of clean pages."""
        for content in self._names.values():
            content.evict(self.rng)

    def wipe(self) -> None:
        """Replace the disk with an empty one."""
        self._names = {}
        self._durable_names = {}
        self._pending = []
        self.names_made_durable += 1
        self._directories = set()
        self._new_life()

    def crash_in(self, operations: int) -> None:
        """Raise VirtualCrash at this operation from now on, 1 being the next one."""
        self._crash_at = self.operations + operations

    def fail_in(self, operations: int, *, only: str | None = None) -> None:
        """Raise StorageFailed at this operation from now on, or at the first one after it of the kind `only`.

        Kinds: create, write, sync, rename, remove, sync folder, create folder.
        """
        self._fail_at = self.operations + operations
        self._fail_only = only

    def full_in(self, operations: int) -> None:
        """Raise StorageFull at this operation from now on that is not a removal."""
        self._full_at = self.operations + operations

    def fail_read_in(self, reads: int) -> None:
        """Raise StorageFailed at this read, opening or look at names from now on."""
        self._reads_until_failure = reads

    def short_of_memory_in(self, operations: int) -> None:
        """Raise ResourceShortage at the first write that is this operation from now on, or a later one."""
        self._memory_at = self.operations + operations

    def evict_in(self, reads: int) -> None:
        """Keep lost pages in the cache until this read of a file that has some, and drop them then."""
        self._reads_until_eviction = reads

    def used_bytes(self) -> int:
        """Return the length of all files that have a name."""
        return sum(len(content.cached) for content in self._names.values())

    @property
    def shows_lost_pages(self) -> bool:
        """Whether the cache shows something that a failed fdatasync has lost."""
        return any(content.lost for content in self._names.values())

    def durable_content(self, path: Path) -> Content | None:
        """Return the file that has this name after a power cut, if no change of it is pending."""
        return self._durable_names.get(path)

    def durable_contents(self, directory: Path) -> list[tuple[Path, Content]]:
        """Return the files of a folder that have a durable name."""
        return [(path, content) for path, content in self._durable_names.items() if path.parent == directory]

    def shown_contents(self, directory: Path) -> dict[str, bytes]:
        """Return what reads show of the files of a folder, by name. Disturbs nothing."""
        return {path.name: bytes(content.cached) for path, content in self._names.items() if path.parent == directory}

    @property
    def troubles(self) -> int:
        """How often it has failed or refused something so far."""
        return self.failures + self.refusals

    @property
    def is_down(self) -> bool:
        """Whether the process has ended, and how is not decided."""
        return self._crashed

    def stop(self) -> None:
        """End the process here: every further operation raises VirtualCrash."""
        self._crashed = True

    def damage(self, path: Path, offset: int, data: bytes) -> None:
        """Change bytes behind the storage's back, on the disk and in the cache."""
        content = self._names[path]
        content.cached[offset : offset + len(data)] = data
        content.durable[offset : offset + len(data)] = data

    # For VirtualFile.

    def became_durable(self) -> None:
        """A sync has taken effect."""
        if self.on_durable is not None:
            self.on_durable()

    def check_alive(self, life: int) -> None:
        if self._crashed or life != self.life:
            raise VirtualCrash

    def step(self, kind: str, path: Path, life: int) -> None:
        """Count an operation that changes or syncs something; crash or fail if it is this one's turn."""
        self.check_alive(life)
        self.operations += 1
        if self._crash_at is not None and self.operations >= self._crash_at and self.rng.random() < 0.5:
            self._crashed = True
            raise VirtualCrash
        if self._fail_at is not None and self.operations >= self._fail_at and self._fail_only in (None, kind):
            self._fail_at = None
            self.failures += 1
            raise StorageFailed(f"could not {kind} {path}: input/output error")
        if self._full_at is not None and self.operations >= self._full_at and kind != "remove":
            self._full_at = None
            self.refusals += 1
            raise StorageFull(f"could not {kind} {path}: no space left on device")
        if self._memory_at is not None and self.operations >= self._memory_at and kind == "write":
            self._memory_at = None
            self.refusals += 1
            raise ResourceShortage(f"could not {kind} {path}: cannot allocate memory")

    def read_step(self, kind: str, path: Path, life: int) -> None:
        """Count something that changes nothing; fail if it is this one's turn."""
        self.check_alive(life)
        if self._reads_until_failure is not None:
            self._reads_until_failure -= 1
            if self._reads_until_failure <= 0:
                self._reads_until_failure = None
                self.failures += 1
                raise StorageFailed(f"could not {kind} {path}: input/output error")

    def evicts_now(self) -> bool:
        """Return whether a read of a file with lost pages drops them."""
        if self._reads_until_eviction is None:
            return self.rng.random() * _EVICT_ONE_IN < 1
        self._reads_until_eviction -= 1
        if self._reads_until_eviction:
            return False
        self._reads_until_eviction = None
        return True

    def step_done(self) -> None:
        """The operation took effect, but may be the last thing that the process did."""
        if self._crash_at is not None and self.operations >= self._crash_at:
            self._crashed = True
            raise VirtualCrash

    def allocate(self, growth_bytes: int, path: Path) -> None:
        if growth_bytes > self.capacity_bytes - self.used_bytes():
            self.refusals += 1
            raise StorageFull(f"could not write {path}: no space left on device")

    def maybe_write_back(self, content: Content) -> None:
        """Be the kernel's write-back: now and then some dirty sectors reach the disk by themselves, and stay dirty.

        Staying dirty is pessimistic and simple: a crash may keep a still newer content of theirs, or not.
        """
        if self.rng.random() * _WRITE_BACK_ONE_IN < 1:
            begin_sector, end_sector = self.rng.choice(content.dirty)
            middle = self.rng.randint(begin_sector, end_sector)
            content.persist(*self.rng.choice([(begin_sector, middle), (middle, end_sector)]))

    def _change_names(self, bindings: dict[Path, Content | None], contents: list[Content]) -> None:
        change = _NameChange(bindings, contents)
        _bind(self._names, change)
        self._pending.append(change)

    def _new_life(self) -> None:
        self.life += 1
        self._crashed = False
        self._crash_at = self._fail_at = self._fail_only = None
        self._full_at = self._reads_until_failure = self._memory_at = self._reads_until_eviction = None
        self.open_files = 0
        self._held = set()
        self.during_fdatasync = None


def _bind(names: dict[Path, Content], change: _NameChange) -> None:
    for path, content in change.bindings.items():
        if content is None:
            names.pop(path, None)
        else:
            names[path] = content
