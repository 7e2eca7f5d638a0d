"""Find where an archive of another tool stores its segments, from the folder or URL that an operator names.

That may be the place of the tool's configuration (`WALG_S3_PREFIX`, pgBackRest's `repo1-path`, Barman's folder of a
server) or a folder in it. Each step lists one folder, not what is below.
"""

import re
from typing import NamedTuple

from safekeeper.archive.store import ObjectStore
from safekeeper.base.errors import ConfigurationError

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


_WALG_FOLDER = "wal_005"
_PGBACKREST_FOLDER = "archive"
_BARMAN_FOLDER = "wals"
# Major version and number of the stanza's database; the number increases with each upgrade.
_PGBACKREST_ID = re.compile(r"\d+(?:\.\d+)?-(\d+)")


class Root(NamedTuple):
    """Where segments are stored.

    Attributes:
        folder: below the store's URL; empty for the URL itself.
        is_plain: its segments are stored as PostgreSQL names and writes them.
    """

    folder: str
    is_plain: bool = False


def find_root(store: ObjectStore) -> Root | None:
    """Return where the segments of an archive of another tool are; None if it is not such an archive.

    Raises:
        ConfigurationError: it has several stanzas.
        ArchiveUnavailable, ArchiveRefused
    """
    folders, names = store.entries("")
    segments = [segment for segment in map(segment_of, names) if segment is not None]
    if segments:
        return Root("", all(not segment.suffix and not segment.sha1 for segment in segments))
    for folder in (_WALG_FOLDER, _BARMAN_FOLDER):
        if folder in folders:
            return Root(folder)
    if _PGBACKREST_FOLDER in folders:
        return _root_of_repository(store)
    if any(map(is_folder_of_segments, folders)):
        return Root("")
    newest = _newest(folders)
    return Root(newest) if newest is not None else None


def _root_of_repository(store: ObjectStore) -> Root | None:
    folders, _ = store.entries(_PGBACKREST_FOLDER)
    newest = {name: _newest(store.entries(f"{_PGBACKREST_FOLDER}/{name}")[0]) for name in sorted(folders)}
    stanzas = {name: folder for name, folder in newest.items() if folder is not None}
    if len(stanzas) > 1:
        example = f"{store.url.rstrip('/')}/{_PGBACKREST_FOLDER}/{min(stanzas)}"
        raise ConfigurationError(
            f"{store.url} has the stanzas {', '.join(stanzas)}: name one of them, for example {example}"
        )
    return next((Root(f"{_PGBACKREST_FOLDER}/{name}/{folder}") for name, folder in stanzas.items()), None)


def _newest(folders: set[str]) -> str | None:
    """Return the folder of the stanza's present database; None if no name is one of a database."""
    numbers = {int(match[1]): folder for folder in folders if (match := _PGBACKREST_ID.fullmatch(folder))}
    return numbers[max(numbers)] if numbers else None
