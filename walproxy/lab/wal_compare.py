"""Safekeepers' segments compared with the primary's pg_wal, byte for byte, and read by pg_waldump.

A safekeeper's file is the segment as PostgreSQL has it, with a footer at the end (safekeeper/storage/segment_file.py).
After a promotion the WAL of one TLI is in one primary's pg_wal and that of the next in another's: name them all. What
is beyond the position to compare up to is ignored: PostgreSQL may have recycled its file, a safekeeper's
ends in zeros. Nothing is changed; both sides may be running, since WAL below commit_lsn is never written again.
"""

import re
import subprocess
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from safekeeper.base.errors import ConfigurationError, WalproxyError
from safekeeper.base.lsn import Lsn, format_lsn, parse_segment_name
from walproxy.postgres.local_server import ServerBinaries

_PIECE_BYTES = 1 << 20
_TOTAL_RECORDS = re.compile(r"^Total\s+(\d+)", re.MULTILINE)


class WalDiffers(WalproxyError):
    """A safekeeper's WAL is not the primary's, or cannot be read."""


class Segment(NamedTuple):
    """A segment file by its name."""

    begin_lsn: Lsn
    tli: int
    path: Path


class Compared(NamedTuple):
    """The equal range: the WAL [begin_lsn, end_lsn), in `segments` files."""

    begin_lsn: Lsn
    end_lsn: Lsn
    segments: int


def list_segments(directory: Path, segment_size: int) -> list[Segment]:
    """Return the segment files in `directory`, ascending; other files are passed over.

    Raises:
        ConfigurationError: there is no such folder.
    """
    if not directory.is_dir():
        raise ConfigurationError(f"{directory} is not a folder of WAL segments")
    parsed = ((parse_segment_name(path.name, segment_size), path) for path in directory.iterdir())
    return sorted(Segment(name[1], name[0], path) for name, path in parsed if name is not None)


def compare_wal(safekeeper_wal: Path, primary_wals: Sequence[Path], segment_size: int, end_lsn: Lsn) -> Compared:
    """Compare all WAL of a safekeeper below `end_lsn` with the primaries'.

    Args:
        safekeeper_wal: the folder `wal` in the safekeeper's data folder.
        primary_wals: the folders pg_wal; a segment is taken from the first that has its name.
        segment_size: in bytes.
        end_lsn: usually commit_lsn.

    Raises:
        WalDiffers: a byte differs, or the safekeeper's WAL has a gap or ends early, or the primary recycled a segment.
    """
    segments = [each for each in list_segments(safekeeper_wal, segment_size) if each.begin_lsn < end_lsn]
    if not segments:
        raise WalDiffers(f"{safekeeper_wal} holds no WAL below {format_lsn(end_lsn)}")
    expected_lsn = begin_lsn = segments[0].begin_lsn
    for segment in segments:
        if segment.begin_lsn != expected_lsn:
            raise WalDiffers(f"{safekeeper_wal} has no segment at {format_lsn(expected_lsn)}, but a later one")
        expected_lsn += segment_size
        _compare_segment(segment, primary_wals, min(expected_lsn, end_lsn))
    if expected_lsn < end_lsn:
        raise WalDiffers(f"{safekeeper_wal} ends at {format_lsn(expected_lsn)}, before {format_lsn(end_lsn)}")
    return Compared(begin_lsn, end_lsn, len(segments))


def _compare_segment(segment: Segment, primary_wals: Sequence[Path], end_lsn: Lsn) -> None:
    candidates = [folder / segment.path.name for folder in primary_wals]
    primary_path = next((path for path in candidates if path.exists()), None)
    if primary_path is None:
        raise WalDiffers(f"{candidates[0]} has been removed, so {segment.path} cannot be compared: raise wal_keep_size")
    position_lsn = segment.begin_lsn
    with segment.path.open("rb") as ours, primary_path.open("rb") as theirs:
        while position_lsn < end_lsn:
            size = min(_PIECE_BYTES, end_lsn - position_lsn)
            our_piece, their_piece = ours.read(size), theirs.read(size)
            if our_piece != their_piece or len(our_piece) != size:
                differs_lsn = position_lsn + _equal_bytes(our_piece, their_piece)
                raise WalDiffers(f"{segment.path} differs from {primary_path} at {format_lsn(differs_lsn)}")
            position_lsn += size


def _equal_bytes(one: bytes, other: bytes) -> int:
    """Return how many bytes at their beginnings are equal."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return min(len(one), len(other))


def count_records(binaries: ServerBinaries, wal_directory: Path, segment_size: int, end_lsn: Lsn) -> int:
    """Let pg_waldump read the WAL in `wal_directory` up to `end_lsn`; return how many records it found.

    It ends with an error at the first record that is not valid: zeros, a gap or a damaged byte below `end_lsn`. It
    reads one TLI at a time, and a record that goes on in the first file of the next TLI is not counted.

    Raises:
        ConfigurationError: there is no pg_waldump.
        WalDiffers: it could not read up to `end_lsn`.
    """
    segments = [each for each in list_segments(wal_directory, segment_size) if each.begin_lsn < end_lsn]
    if not segments:
        raise WalDiffers(f"{wal_directory} holds no WAL below {format_lsn(end_lsn)}")
    parts = [list(part) for _, part in groupby(segments, key=lambda segment: segment.tli)]
    ends = [min(part[-1].begin_lsn + segment_size, end_lsn) for part in parts]
    return sum(_count_part(binaries, part, end_lsn) for part, end_lsn in zip(parts, ends, strict=True))


def _count_part(binaries: ServerBinaries, segments: Sequence[Segment], end_lsn: Lsn) -> int:
    # Both files are named, because pg_waldump otherwise learns the segment size from whichever file the folder lists
    # first, and that may be one which is prepared and holds no WAL yet.
    command = [
        *(str(binaries.path("pg_waldump")), "--stats"),
        *("--start", format_lsn(segments[0].begin_lsn), "--end", format_lsn(end_lsn)),
        *(str(segments[0].path), str(segments[-1].path)),
    ]
    answer = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, cwd="/")
    total = _TOTAL_RECORDS.search(answer.stdout)
    if answer.returncode != 0 or total is None:
        reason = " ".join((answer.stderr or answer.stdout).split())
        raise WalDiffers(f"pg_waldump cannot read {segments[0].path.parent} up to {format_lsn(end_lsn)}: {reason}")
    return int(total[1])
