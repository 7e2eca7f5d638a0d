"""Which file of an archive of another tool is which segment.

| tool | segments, below the root that `roots` finds |
|---|---|
| WAL-G | NAME.lz4, .lzma, .zst, .br, .gz, or without a suffix |
| pgBackRest | first 16 digits of NAME/NAME-SHA1, with .gz, .lz4, .zst, .bz2, or without a suffix |
| Barman | first 16 digits of NAME/NAME, without a suffix also if it is compressed; in clouds with one |

History files are stored at the root. What else is there (backup labels, partial segments, metadata of the tools) is not
read. Only complete segments are archived, but for partial ones, which a promotion leaves.

Source: the tools' documentation, and files that they write. Pure.
"""

import re
from typing import NamedTuple

_SEGMENT = re.compile(r"(?P<name>[0-9A-F]{24})(?:-(?P<sha1>[0-9a-f]{40}))?(?:\.(?P<suffix>[A-Za-z0-9.]+))?")
_HISTORY = re.compile(r"(?P<name>[0-9A-F]{8})\.history(?:\.(?P<suffix>[A-Za-z0-9.]+))?")
_FOLDER_DIGITS = 16
# Parts of the suffixes of files that are stored beside segments, compressed or not.
_NO_SEGMENT = frozenset({"backup", "partial", "json", "tmp", "ready", "done"})


class ForeignFile(NamedTuple):
    """A segment or a history file.

    Attributes:
        key: where it is stored.
        name: PostgreSQL's name of a segment, or the timeline in the name of a history file, in hexadecimal digits.
        suffix: what follows the name, without the dot; empty if nothing does.
        sha1: of the segment as PostgreSQL wrote it, in hexadecimal digits; empty if the name has none.
        size: in bytes, as it is stored; 0 if only its name is known.
    """

    key: str
    name: str
    suffix: str
    sha1: str = ""
    size: int = 0


def segment_of(key: str, root: str = "", size: int = 0) -> ForeignFile | None:
    """Return the segment that is stored at `key`, None if it is not one that is complete."""
    folder, name = _below(key, root)
    match = _SEGMENT.fullmatch(name)
    if match is None or folder not in ("", match["name"][:_FOLDER_DIGITS]):
        return None
    suffix = match["suffix"] or ""
    if not _NO_SEGMENT.isdisjoint(suffix.split(".")):
        return None
    return ForeignFile(key, match["name"], suffix, match["sha1"] or "", size)


def history_of(key: str, root: str = "", size: int = 0) -> ForeignFile | None:
    """Return the history file that is stored at `key`, None if it is not one."""
    folder, name = _below(key, root)
    match = _HISTORY.fullmatch(name)
    if match is None or folder or int(match["name"], 16) < 2:
        return None
    return ForeignFile(key, match["name"], match["suffix"] or "", size=size)


def is_folder_of_segments(name: str) -> bool:
    """Whether pgBackRest and Barman store segments in a folder of this name."""
    return re.fullmatch(r"[0-9A-F]{16}", name) is not None


def _below(key: str, root: str) -> tuple[str, str]:
    folder, _, name = key.removeprefix(f"{root}/" if root else "").rpartition("/")
    return folder, name
