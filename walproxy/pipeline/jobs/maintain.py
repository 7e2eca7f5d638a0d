"""Tables are tidied up: small files become large ones, old states and what killed tasks left are removed.

A stream writes a file per batch and task, and each commit leaves something in the table's log. Reading gets slower
with the number of files; so does a commit to Iceberg with the number of snapshots, and one to Delta with the number of
files. So this is to be run now and then, once an hour where a stream runs with batches of seconds. Commits go on
meanwhile, and readers go on that have begun less than `keep_s` ago.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from safekeeper.base.errors import ConfigurationError, WalproxyError
from walproxy.pipeline.choices import TableFormat
from walproxy.pipeline.lake.compaction import TARGET_BYTES, Compaction
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.opening import find_names, open_lake_table
from walproxy.pipeline.lake.table import RemovedFiles

KEEP_S: Final = 7 * 86400.0
ORPHANS_AFTER_S: Final = 86400.0

Progress = Callable[[str, int, int], None]
"""Called with a table's name, the bytes that were compacted so far, and those in all."""


class Maintained(NamedTuple):
    """The maintenance of a table, done or planned.

    Attributes:
        format: None if the table could not be opened.
        expired: former states and old parts of the log.
        orphans: files that no commit ever named.
        files, bytes: of the table afterwards.
        problem: why it could not be done to the end, as one line; None if it could.
    """

    name: str
    format: TableFormat | None = None
    compaction: Compaction = Compaction()
    expired: RemovedFiles = RemovedFiles()
    orphans: RemovedFiles = RemovedFiles()
    files: int = 0
    bytes: int = 0
    problem: str | None = None


def maintain(
    location: LakeLocation,
    names: Sequence[str] = (),
    *,
    target_bytes: int = TARGET_BYTES,
    keep_s: float = KEEP_S,
    orphans_after_s: float = ORPHANS_AFTER_S,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> list[Maintained]:
    """Tidy up the tables of a location. A table with a problem does not keep the others from being done.

    Args:
        names: which tables; none: all of them but Delta tables of other programs.
        target_bytes: how large files shall be.
        keep_s: how long former states can still be read.
        orphans_after_s: how long ago a file that no commit names must have been written, until it is removed.
        dry_run: only return what would be done.

    Raises:
        ConfigurationError: there is no such table.
        StorageFailed, ArchiveError: the location cannot be read.
    """
    found = find_names(location)
    for name in names:
        if name not in found:
            there = f"it has {', '.join(found)}" if found else "it has none"
            raise ConfigurationError(f"{location} has no table {name!r}: {there}")
    if not found:
        raise ConfigurationError(f"{location} has no tables")
    done = []
    for name in names or found:
        maintained = Maintained(name)
        try:
            with open_lake_table(location, name) as table:
                if not table.is_ours:
                    if not names:
                        continue
                    raise ConfigurationError(f"{location}/{name} is a table of another program: maintain it with that")
                maintained = maintained._replace(format=table.format)
                compaction = table.compact(
                    target_bytes,
                    dry_run=dry_run,
                    progress=None if progress is None else _named(progress, name),
                )
                maintained = maintained._replace(compaction=compaction)
                maintained = maintained._replace(expired=table.expire(keep_s, dry_run=dry_run))
                maintained = maintained._replace(orphans=table.remove_orphans(orphans_after_s, dry_run=dry_run))
                live = table.live_files()
                maintained = maintained._replace(files=len(live), bytes=sum(file.bytes for file in live))
        except WalproxyError as error:
            maintained = maintained._replace(problem=str(error))
        done.append(maintained)
    return done


def _named(progress: Progress, name: str) -> Callable[[int, int], None]:
    return lambda done, total: progress(name, done, total)
