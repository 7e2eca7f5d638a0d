"""Recovery after a restart: finds the WAL in a folder of segment files (S13), and rewrites what is in doubt (S12).

The log is the chain of segments from the lowest on. Recovery walks upward: the newest slot whose bytes match its CRC
states where a segment's WAL ends, and the next segment counts only if that is the segment's very end (detail c). The
walk ends at flush_lsn. Files after it were prepared, or written and never acknowledged.

What was read may be in the page cache only: the process may have died between a write and its fdatasync, or after a
failed fdatasync, when the cache shows what the disk has lost. Only the segment that contains byte flush_lsn - 1 can be
in doubt, since an fdatasync of a later segment begins after its own has returned. So that one is copied to a new file,
synced and renamed, before anything in it counts (detail g), and everything after it is removed.

Two kinds of damage cannot result from a crash and end the process: a file of which both slots are invalid (DiskLost,
S8), and WAL in a later segment although an earlier one is missing or ends early.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from safekeeper.base.errors import DiskLost, StorageFailed
from safekeeper.base.lsn import Lsn, format_lsn, parse_segment_name, segment_name
from safekeeper.storage.filesystem import TEMPORARY_SUFFIX, FileSystem, sync_names
from safekeeper.storage.segment_file import (
    FOOTER_BYTES,
    FooterSlot,
    SegmentFile,
    create_segment,
    newest_valid_slot,
    read_pieces,
    read_slots,
)

_SEGMENT_NAME_LENGTH = 24


class NamedSegment(NamedTuple):
    """A segment according to its file's name. Sorts by LSN."""

    begin_lsn: Lsn
    tli: int

    def path(self, directory: Path, segment_size: int) -> Path:
        """Return the path of its file."""
        return directory / segment_name(self.tli, self.begin_lsn, segment_size)


class RecoveredLog(NamedTuple):
    """The segments of the log, ascending and without a gap, and the last of them, open and rewritten.

    `tail` is None, and `segments` empty, if there is no WAL at all.
    """

    segments: list[NamedSegment]
    tail: SegmentFile | None


class SegmentFacts(NamedTuple):
    """The findings about one file.

    Attributes:
        valid_end_lsn: the end of its WAL, None if neither slot is valid.
        problems: all that is noticeable.
        is_damaged: no crash can have left it so: recovery refuses such a file if it is the next one of the log.
    """

    name: str
    tli: int
    begin_lsn: Lsn
    valid_end_lsn: Lsn | None
    slots: tuple[FooterSlot | None, ...]
    problems: tuple[str, ...]
    is_damaged: bool = False


def recover(fs: FileSystem, directory: Path, segment_size: int, begin_lsn: Lsn = 0) -> RecoveredLog:
    """Find the end of the log, rewrite its last segment, remove what follows. Create the folder if it does not exist.

    Segments that end at or below `begin_lsn` were being removed, in no particular order: that is finished first.
    Recovery itself may be interrupted at any point and repeated.

    Raises:
        DiskLost: acknowledged WAL is damaged; this folder can no longer be a member (S8).
        StorageFailed: a file is missing in the middle, duplicate, or of a wrong size; or an operation failed.
        StorageFull: no space to rewrite the last segment. Only leftovers were removed.
    """
    if not fs.exists(directory):
        fs.make_directory(directory)
    names = fs.listdir(directory)
    _settle_names(fs, directory, names)
    old = names_below(names, begin_lsn, segment_size)
    for name in old:
        fs.unlink(directory / name)
    found = list_segments(directory, [name for name in names if name not in old], segment_size)
    if not found:
        return RecoveredLog([], None)
    last, slot = _walk(fs, directory, found, segment_size)
    # Removing files first frees space for the copy on a disk that is nearly full.
    drop_segments(fs, directory, found[last + 1 :], segment_size)
    tail = _rewrite(fs, directory, found[last], slot, segment_size)
    return RecoveredLog(found[: last + 1], tail)


def names_below(names: Sequence[str], begin_lsn: Lsn, segment_size: int) -> set[str]:
    """Return the names of the segments that end at or below `begin_lsn`."""
    found = {name: parse_segment_name(name, segment_size) for name in names}
    return {name for name, parsed in found.items() if parsed and parsed[1] + segment_size <= begin_lsn}


def list_segments(directory: Path, names: Sequence[str], segment_size: int) -> list[NamedSegment]:
    """Return the segments among the file names, ascending. Names of other kinds are ignored.

    Raises:
        StorageFailed: a segment is duplicate or missing in the middle, or a name fits no segment of this size.
    """
    found = []
    for name in names:
        parsed = parse_segment_name(name, segment_size)
        if parsed is not None:
            found.append(NamedSegment(begin_lsn=parsed[1], tli=parsed[0]))
        elif len(name) == _SEGMENT_NAME_LENGTH and not name.strip("0123456789ABCDEF"):
            raise StorageFailed(
                f"{directory / name} is not the name of a segment of {segment_size} bytes:"
                " this folder belongs to a cluster with another segment size"
            )
    found.sort()
    for low, high in pairwise(found):
        low_name, high_name = (each.path(directory, segment_size).name for each in (low, high))
        if low.begin_lsn == high.begin_lsn:
            raise StorageFailed(
                f"{directory} contains two files of one segment, {low_name} and {high_name}: remove the foreign one"
            )
        if high.begin_lsn != low.begin_lsn + segment_size:
            raise StorageFailed(
                f"the segment at {format_lsn(low.begin_lsn + segment_size)} is missing in {directory} in the middle"
                f" between {low_name} and {high_name}: restore it, or start with an empty data folder"
            )
    return found


def drop_segments(fs: FileSystem, directory: Path, segments: Sequence[NamedSegment], segment_size: int) -> None:
    """Remove the files of `segments`, durably (detail d), which ascend and are the last ones in the folder.

    They are removed in descending order, each removal durable before the next, so that a crash never leaves a gap,
    which would look like lost WAL.
    """
    for segment in reversed(segments):
        fs.unlink(segment.path(directory, segment_size))
        sync_names(fs, directory)


def inspect(
    fs: FileSystem, directory: Path, segment_size: int, begin_lsn: Lsn = 0
) -> tuple[list[SegmentFacts], list[str]]:
    """Return the facts of every segment file, ascending, and the problems of the folder as a whole.

    Segments that end at or below `begin_lsn` were being removed and are ignored.

    Reads only, and never raises for damage, but reports it. The log ends at the valid_end_lsn of the last segment of
    the unbroken chain. Inspect only a stopped safekeeper: a running one writes meanwhile.
    """
    try:
        names = sorted(fs.listdir(directory))
    except StorageFailed as error:
        return [], [str(error)]
    old = names_below(names, begin_lsn, segment_size)
    names = [name for name in names if name not in old]
    problems = [f"{name} is left over from an interrupted step" for name in names if _is_temporary(name)]
    try:
        list_segments(directory, names, segment_size)
    except StorageFailed as error:
        problems.append(str(error))
    facts = []
    for name in names:
        parsed = parse_segment_name(name, segment_size)
        if parsed is not None:
            segment = NamedSegment(begin_lsn=parsed[1], tli=parsed[0])
            facts.append(_inspect_file(fs, directory, segment, segment_size))
    facts.sort(key=lambda each: (each.begin_lsn, each.tli))
    for low, high in pairwise(facts):
        if _holds_wal(high) and (low.valid_end_lsn or 0) < high.begin_lsn:
            problems.append(f"{low.name} ends early although {high.name} contains WAL: acknowledged WAL is damaged")
    return facts, problems


def recovery_error(fs: FileSystem, directory: Path, segment_size: int, begin_lsn: Lsn = 0) -> str:
    """Return why `recover` would refuse the files of the log as they are, empty if it would not. Reads only."""
    try:
        names = fs.listdir(directory)
        old = names_below(names, begin_lsn, segment_size)
        found = list_segments(directory, [name for name in names if name not in old], segment_size)
        if found:
            _walk(fs, directory, found, segment_size)
    except StorageFailed as error:
        return str(error)
    return ""


def end_of_chain(segments: list[SegmentFacts], segment_size: int) -> Lsn:
    """Return the end of the unbroken chain of valid WAL, 0 if there is none."""
    end_lsn = 0
    for segment in segments:
        if end_lsn and (segment.begin_lsn != end_lsn or segment.valid_end_lsn == segment.begin_lsn):
            break
        if segment.valid_end_lsn is None:
            break
        end_lsn = segment.valid_end_lsn
        if end_lsn != segment.begin_lsn + segment_size:
            break
    return end_lsn


def _walk(fs: FileSystem, directory: Path, found: Sequence[NamedSegment], segment_size: int) -> tuple[int, FooterSlot]:
    """Return the index of the log's last segment and the slot that states where it ends."""
    last, slot = 0, _slot_of(fs, directory, found[0], segment_size)
    ends_early = found[0]
    while slot.end_lsn == found[last].begin_lsn + segment_size and last + 1 < len(found):
        ends_early = found[last + 1]
        following = _slot_of(fs, directory, ends_early, segment_size)
        if following.end_lsn == ends_early.begin_lsn:
            break  # Prepared only: nothing in it was ever acknowledged, unless a later segment has WAL.
        last, slot = last + 1, following
    for segment in found[last + 1 :]:
        facts = _inspect_file(fs, directory, segment, segment_size)
        if _holds_wal(facts):
            raise DiskLost(
                f"{ends_early.path(directory, segment_size)} is damaged: its WAL ends at"
                f" {format_lsn(slot.end_lsn)} although {facts.name} contains more:"
                " replace the disk and start with an empty data folder"
            )
    return last, slot


def _slot_of(fs: FileSystem, directory: Path, segment: NamedSegment, segment_size: int) -> FooterSlot:
    """Return the newest valid slot of a file that must have one."""
    path = segment.path(directory, segment_size)
    file = fs.open(path, read_only=True)
    try:
        if file.size() != segment_size + FOOTER_BYTES:
            raise StorageFailed(
                f"{path} has {file.size()} bytes, not the {segment_size + FOOTER_BYTES} of a segment with its footer:"
                " restore the file, or start with an empty data folder"
            )
        slot = newest_valid_slot(file, path, segment.begin_lsn, segment_size)
    finally:
        file.close()
    if slot is None:
        raise DiskLost(
            f"{path}: both slots of its footer have a wrong checksum, so the WAL from"
            f" {format_lsn(segment.begin_lsn)} on is lost: replace the disk and start with an empty data folder"
        )
    return slot


def _rewrite(
    fs: FileSystem, directory: Path, segment: NamedSegment, slot: FooterSlot, segment_size: int
) -> SegmentFile:
    """Copy the segment's WAL to a new file that replaces it (detail g), and open the new file."""
    path = segment.path(directory, segment_size)
    old = fs.open(path, read_only=True)
    try:
        return create_segment(
            fs,
            directory,
            tli=segment.tli,
            begin_lsn=segment.begin_lsn,
            segment_size=segment_size,
            wal=read_pieces(old, path, 0, slot.end_lsn - segment.begin_lsn),
            expected=slot,
        )
    finally:
        old.close()


def _settle_names(fs: FileSystem, directory: Path, names: Sequence[str]) -> None:
    """Remove leftover temporary files and make the present names durable.

    A killed process may have removed a file without syncing the folder. If a crash restored that file after a later
    removal has become durable, there would be a gap.
    """
    for name in names:
        if _is_temporary(name):
            fs.unlink(directory / name)
    sync_names(fs, directory)


def _is_temporary(name: str) -> bool:
    return name.endswith(TEMPORARY_SUFFIX)


def _inspect_file(fs: FileSystem, directory: Path, segment: NamedSegment, segment_size: int) -> SegmentFacts:
    path = segment.path(directory, segment_size)
    slots: list[FooterSlot | None] = [None, None]
    valid, problems = None, []
    try:
        file = fs.open(path, read_only=True)
        try:
            if file.size() != segment_size + FOOTER_BYTES:
                problems.append(f"has {file.size()} bytes, not {segment_size + FOOTER_BYTES}")
            slots = read_slots(file, path, segment.begin_lsn, segment_size)
            valid = newest_valid_slot(file, path, segment.begin_lsn, segment_size)
        finally:
            file.close()
    except StorageFailed as error:
        problems.append(str(error))
    if valid is None:
        problems.append("both slots of the footer have a wrong checksum")
    is_damaged = bool(problems)
    if valid is not None and any(slot and slot.sequence > valid.sequence for slot in slots):
        problems.append("the WAL does not match the checksum of the newest slot: the last flush was interrupted")
    valid_end_lsn = valid.end_lsn if valid else None
    return SegmentFacts(
        path.name, segment.tli, segment.begin_lsn, valid_end_lsn, tuple(slots), tuple(problems), is_damaged
    )


def _holds_wal(facts: SegmentFacts) -> bool:
    return facts.valid_end_lsn is not None and facts.valid_end_lsn > facts.begin_lsn
