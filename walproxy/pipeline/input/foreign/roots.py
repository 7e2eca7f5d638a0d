"""Find where an archive of another tool stores its segments, from the folder or URL that an operator names.

That may be the place of the tool's configuration (`WALG_S3_PREFIX`, pgBackRest's `repo1-path`, Barman's folder of a
server) or a folder in it. Each step lists one folder, not what is below.
"""

import re
from typing import NamedTuple

from safekeeper.archive.store import ObjectStore
from safekeeper.base.errors import ConfigurationError
from walproxy.pipeline.input.foreign.names import is_folder_of_segments, segment_of

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
