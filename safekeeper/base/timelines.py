"""PostgreSQL's timelines: history files, and the timeline of a byte.

A promoted standby continues under a new TLI. The history file of a TLI lists its ancestors, each with the LSN at which
it was left; below that LSN the bytes are the ancestor's.
Source: https://www.postgresql.org/docs/current/continuous-archiving.html (timelines), and the files themselves.

Pure. An invalid file raises RemoteProtocolError (S11).
"""

import re
from typing import TypeAlias

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.lsn import Lsn, format_lsn, parse_lsn

TLI_MAX = (1 << 32) - 1

Lineage: TypeAlias = tuple[tuple[int, Lsn], ...]
"""The ancestors of a TLI, the oldest first: (TLI, the LSN at which it was left). Empty for TLI 1."""

PASSED_OVER_HISTORY = b"# a promotion passed over this number: no WAL of this log is on this timeline\n"
"""The history file of such a number. PostgreSQL asks for one number after the other: a standby that follows from TLI 1
to TLI 3 ends if it gets no file of TLI 2, and a recovery looks for no later one. It opens that of the last TLI only."""

_HISTORY_NAME = re.compile(r"([0-9A-F]{8})\.history")
_HISTORY_LINE = re.compile(r"\s*(\d{1,10})\s+([0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8})(?:\s.*)?")


def parse_timeline_history(tli: int, content: bytes) -> Lineage:
    """Return the ancestors in the history file of `tli`.

    Raises:
        RemoteProtocolError: a line is not valid, the TLIs do not increase, or a timeline was left before it began.
    """
    lineage: list[tuple[int, Lsn]] = []
    before_tli, before_lsn = 0, 0
    # Not splitlines: the name of a restore point may contain other characters that end a line in Unicode.
    for line in content.decode(errors="replace").split("\n"):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _HISTORY_LINE.fullmatch(line)
        if match is None:
            raise RemoteProtocolError(f"the history of TLI {tli} has an invalid line: {line[:80]!r}")
        parent, end_lsn = int(match[1]), parse_lsn(match[2])
        if not before_tli < parent < tli or end_lsn < before_lsn:
            raise RemoteProtocolError(f"the history of TLI {tli} contradicts itself at {line[:80]!r}")
        lineage.append((parent, end_lsn))
        before_tli, before_lsn = parent, end_lsn
    if tli > 1 and not lineage:
        raise RemoteProtocolError(f"the history of TLI {tli} does not list a parent")
    return tuple(lineage)


def is_passed_over(tli: int, newer_tli: int, newer_content: bytes) -> bool:
    """Return whether no byte of the log of `newer_tli` is on `tli`, a number between those of two of its timelines.

    A promotion takes the first number of which it finds no history file, so it may pass some over.

    Raises:
        RemoteProtocolError: the history file of `newer_tli` is not valid.
    """
    lineage = parse_timeline_history(newer_tli, newer_content)
    parents = [parent for parent, _ in lineage]
    return min(parents, default=tli) < tli < newer_tli and tli not in parents


def lists_no_parent(content: bytes) -> bool:
    """Return whether a history file has comments only, as `PASSED_OVER_HISTORY` has."""
    lines = (line.strip() for line in content.split(b"\n"))
    return not any(line and not line.startswith(b"#") for line in lines)


def format_timeline_history(lineage: Lineage, reason: str = "no recovery target specified") -> bytes:
    """Return a history file in PostgreSQL's format for a TLI with these ancestors."""
    lines = (f"{tli}\t{format_lsn(end_lsn)}\t{reason}\n" for tli, end_lsn in lineage)
    return "\n".join(lines).encode()


def timeline_history_name(tli: int) -> str:
    """Return the name of the history file of `tli`."""
    return f"{tli:08X}.history"


def tli_of_history_name(name: str) -> int | None:
    """Return the TLI of a history file, None if this is the name of another one."""
    found = _HISTORY_NAME.fullmatch(name)
    return int(found[1], 16) if found else None


def tli_of_byte(tli: int, lineage: Lineage, lsn: Lsn) -> int:
    """Return the TLI to which byte `lsn` of the WAL of `tli` belongs: an ancestor's below its end."""
    for ancestor, end_lsn in lineage:
        if lsn < end_lsn:
            return ancestor
    return tli
