"""Choose the timeline to read, where files of segments and of histories show which there are.

Pure but for `lineage_of`, which reads a file.
"""

from collections.abc import Callable, Set

from safekeeper.base.timelines import Lineage, timeline_history_name
from walproxy.wal_sources.source import LogPath, SourceUnavailable, WalMissing


def choose_path(
    name: str,
    timelines: Set[int],
    histories: Set[int],
    lineage_of: Callable[[int], Lineage],
    tli: int | None,
    segment_size: int,
) -> LogPath:
    """Return timeline `tli` with its ancestors; the newest one if it is None.

    A timeline without its history file counts as one without ancestors, if it can be one: a server that is promoted
    writes the first segment of its timeline before the history file.

    Args:
        name: the source, for messages.
        timelines: those that have a segment.
        histories: those that have a history file.
        lineage_of: reads one of these.

    Raises:
        SourceUnavailable: the newest timeline has no history file yet.
        WalMissing: there is no such timeline, or no WAL at all.
    """
    known = timelines | histories
    if not known:
        raise WalMissing(f"{name} has no segments of WAL")
    wanted = max(known) if tli is None else tli
    if wanted in histories:
        return LogPath(wanted, lineage_of(wanted), segment_size)
    if tli is None and wanted > min(known):
        raise SourceUnavailable(
            f"{name} has WAL of timeline {wanted}, but no {timeline_history_name(wanted)} yet, which records "
            "where it begins: put that file there, or name the timeline"
        )
    ancestors = {each for history in histories for each, _ in lineage_of(history)}
    if wanted not in known | ancestors:
        listed = ", ".join(str(each) for each in sorted(known | ancestors))
        raise WalMissing(f"{name} has no timeline {wanted}: it has {listed}")
    return LogPath(wanted, (), segment_size)
