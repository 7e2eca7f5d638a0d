"""What can befall the files of a data folder behind a safekeeper's back, and what inspection must report."""

import random
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from safekeeper.base.errors import ConfigurationError
from safekeeper.consensus.control_state import FORMAT_VERSION, ControlState
from safekeeper.storage.control_file import StateFile
from safekeeper.storage.data_folder import AGENTS_FILE_NAME
from safekeeper.storage.inspection import inspect_folder
from tests.simulation.lone.folder_model import CONTROL_PATH, DIRECTORY, WAL_DIRECTORY, require
from tests.simulation.model.virtual_disk import VirtualFileSystem
from tests.simulation.references.folder import SLOT_BYTES, FoundLog, Start, control_of, log_of, start_in, valid_end


class Damage:
    """Damages files of a disk, at random."""

    def __init__(self, fs: VirtualFileSystem, rng: random.Random) -> None:
        self._fs = fs
        self._rng = rng

    def of_folder(self) -> str:
        """Damage one thing, or nothing; return what."""
        kinds: list[Callable[[], str]] = [
            self._nothing,
            self._flip_wal,
            self._flip_wal,
            self._flip_slot,
            self._flip_slot,
            self._lose_slots,
            self._lose_file,
            self._cut_file,
            self._copy_file,
            self._foreign_name,
            self._flip_control,
            self._cut_control,
            self._lose_control,
            self._other_control,
            self._other_version,
            self._flip_agents,
        ]
        return self._rng.choice(kinds)()

    def of_copy(self, directory: Path) -> Callable[[], None] | None:
        """Damage a byte, or both slots, of some file in a folder; return what undoes it, None if there is no file."""
        names = sorted(self._fs.shown_contents(directory))
        if not names:
            return None
        path = directory / self._rng.choice((*names, names[-1]))
        content = self._fs.shown_contents(directory)[path.name]
        at, damaged = len(content) - 2 * SLOT_BYTES, bytes(2 * SLOT_BYTES)
        if self._rng.random() < 0.5:
            at = self._rng.randrange(len(content))
            damaged = bytes([content[at] ^ 1])
        self._fs.damage(path, at, damaged)
        return lambda: self._fs.damage(path, at, content[at : at + len(damaged)])

    def _segment(self) -> tuple[Path, bytes] | None:
        files = self._fs.shown_contents(WAL_DIRECTORY)
        names = [name for name in sorted(files) if not name.endswith(".new")]
        if not names:
            return None
        name = self._rng.choice((*names, names[-1]))
        return WAL_DIRECTORY / name, files[name]

    def _size(self) -> int:
        control = control_of(self._fs.shown_contents(DIRECTORY)["control"])
        return control.segment_size if isinstance(control, ControlState) else 0

    def _nothing(self) -> str:
        return "nothing"

    def _flip_wal(self) -> str:
        return self._flip(range(self._size()))

    def _flip_slot(self) -> str:
        slot = self._size() + self._rng.randrange(2) * SLOT_BYTES
        return self._flip(range(slot, slot + 40))

    def _flip(self, offsets: range) -> str:
        segment = self._segment()
        if segment is None or not offsets:
            return "nothing"
        path, content = segment
        end = valid_end(content, start_in(path.name, self._size()) or 0, self._size()) or 0
        # Near the end of the WAL: older bytes are not read at a start.
        used = end % self._size() or self._size()
        at = self._rng.choice((self._rng.choice(offsets), offsets[max(0, min(len(offsets), used) - 1)]))
        if at >= len(content):
            return "nothing"
        self._fs.damage(path, at, bytes([content[at] ^ 0x55]))
        return f"{path.name} at {at}"

    def _lose_slots(self) -> str:
        segment = self._segment()
        if segment is None:
            return "nothing"
        self._fs.damage(segment[0], self._size(), bytes(2 * SLOT_BYTES))
        return f"the slots of {segment[0].name}"

    def _lose_file(self) -> str:
        segment = self._segment()
        if segment is None:
            return "nothing"
        self._fs.unlink(segment[0])
        return f"{segment[0].name} is gone"

    def _cut_file(self) -> str:
        segment = self._segment()
        if segment is None:
            return "nothing"
        path, content = segment
        self._write(path, content[: -self._rng.choice((1, SLOT_BYTES))] if self._rng.random() < 0.5 else content + b"x")
        return f"{path.name} has another length"

    def _copy_file(self) -> str:
        segment = self._segment()
        if segment is None:
            return "nothing"
        path, content = segment
        tli = int(path.name[:8], 16) + self._rng.randrange(2)
        low = int(path.name[16:], 16) + self._rng.randrange(3)
        self._write(path.with_name(f"{tli:08X}{path.name[8:16]}{low:08X}"), content)
        return f"{path.name} is copied to timeline {tli}, {low:08X}"

    def _foreign_name(self) -> str:
        name = self._rng.choice(
            ("history", "0" * 24, "0" * 16 + "F" * 8, f"{1:024X}.partial", f"{1:024X}.new", "G" * 24, "F" * 25)
        )
        self._write(WAL_DIRECTORY / name, b"x")
        return f"a file {name}"

    def _flip_control(self) -> str:
        content = self._fs.shown_contents(DIRECTORY)["control"]
        at = self._rng.choice((self._rng.randrange(len(content)), self._rng.randrange(16), len(content) - 1))
        self._fs.damage(CONTROL_PATH, at, bytes([content[at] ^ 0x55]))
        return f"the control file at {at}"

    def _cut_control(self) -> str:
        content = self._fs.shown_contents(DIRECTORY)["control"]
        self._write(CONTROL_PATH, content[: self._rng.choice((0, 4, 19, 20, len(content) - 1))])
        return "the control file is shorter"

    def _flip_agents(self) -> str:
        content = self._fs.shown_contents(DIRECTORY).get(AGENTS_FILE_NAME)
        if not content:
            return "nothing"
        self._fs.damage(DIRECTORY / AGENTS_FILE_NAME, len(content) // 2, bytes([content[len(content) // 2] ^ 1]))
        return "the agents' settings"

    def _lose_control(self) -> str:
        self._fs.unlink(CONTROL_PATH)
        return "the control file is gone"

    def _other_control(self) -> str:
        """Let the control file be another one, as of another safekeeper, or with WAL that is not there."""
        control = control_of(self._fs.shown_contents(DIRECTORY)["control"])
        assert isinstance(control, ControlState)
        lsn = max(control.wal_begin_lsn, control.commit_lsn) + self._rng.choice((-1, 1, 1, control.segment_size))
        changes: dict[str, object] = self._rng.choice(
            (
                {"safekeeper_id": control.safekeeper_id + 1},
                {"starts": self._rng.choice((0, 1, 7, 1 << 40))},
                {"commit_lsn": lsn},
                {"commit_lsn": lsn, "base_lsn": control.wal_begin_lsn},
                {"wal_begin_lsn": max(0, control.wal_begin_lsn - control.segment_size)},
                {"wal_begin_lsn": 0, "commit_lsn": lsn},
                {"truncate_to": lsn, "base_lsn": None},
                {"restore_from": "x"},
            )
        )
        self._store(FORMAT_VERSION, msgspec.structs.replace(control, **changes))
        return f"the control file with {changes}"

    def _other_version(self) -> str:
        control = control_of(self._fs.shown_contents(DIRECTORY)["control"])
        assert isinstance(control, ControlState)
        version = self._rng.choice((0, 1, FORMAT_VERSION - 1, FORMAT_VERSION + 1))
        self._store(version, control)
        return f"the control file in version {version}"

    def _store(self, version: int, control: ControlState) -> None:
        StateFile(self._fs, CONTROL_PATH, magic=b"SAFEKEEP", what="", what_to_do="", version=version).store(control)

    def _write(self, path: Path, content: bytes) -> None:
        file = self._fs.create(path)
        file.pwrite(content, 0)
        file.fdatasync()
        self._fs.fsync_directory(path.parent)


def require_not_found(fs: VirtualFileSystem) -> None:
    """Check that `safekeeper inspect` refuses a folder that does not exist."""
    try:
        inspect_folder(fs, DIRECTORY)
    except ConfigurationError:
        return
    raise AssertionError("a folder that does not exist is inspected")


def inspected(fs: VirtualFileSystem, expected: Start | type[Exception], files: Mapping[str, bytes]) -> None:
    """Compare what `safekeeper inspect` would print with what a start must find.

    Args:
        files: of the WAL.
    """
    found = inspect_folder(fs, DIRECTORY)
    if not isinstance(expected, Start):
        is_reported = bool(found.lost) or expected is ConfigurationError
        require(is_reported, f"inspection finds nothing lost, and a start ends with {expected}")
        return
    control, log = expected.control, expected.log
    if control is None or log is None or control.is_log_pending:
        return
    require(found.flush_lsn == log.end_lsn or not log.names, "inspection finds another end of the WAL")
    require(not found.lost, f"inspection finds that WAL is lost, and a start does not: {found.lost}")
    size = control.segment_size
    for segment in found.segments:
        content = files[segment.name]
        end_lsn = valid_end(content, segment.begin_lsn, size)
        require(
            (segment.begin_lsn, segment.valid_end_lsn) == (start_in(segment.name, size), end_lsn),
            f"inspection finds that {segment.name} ends at {segment.valid_end_lsn}, not {end_lsn}",
        )
        is_odd = end_lsn is None or len(content) != size + 2 * SLOT_BYTES
        require(bool(segment.problems) or not is_odd, f"inspection finds nothing wrong with {segment.name}")
    require(isinstance(log_of(files, size, control.wal_begin_lsn), FoundLog), "the log is not one")
