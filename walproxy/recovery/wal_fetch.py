"""`walproxy wal-fetch %f %p` when the segment was not fetched ahead, and its exit codes.

PostgreSQL takes every exit code up to 125 for a missing file, and ends archive recovery with the WAL that it has. So
the result is EXIT_MISSING only if every source has replied that it does not have the file; every other error, even in
the command line, stops recovery, and the server.

A standby retries, and streams meanwhile: an unknown result is reported as missing to it. A promotion needs only files
that are in pg_wal already, and must not be stopped. Both wait for the result, so each source has a timeout of a few
seconds, and a file in pg_wal is not replaced by a shorter part: the archive's part of the open segment is older than
the WAL that was streamed.
"""

import logging
import os
from pathlib import Path

from safekeeper.base.errors import ConfigurationError, WalproxyError
from safekeeper.base.lsn import format_lsn, parse_segment_name
from safekeeper.base.timelines import tli_of_history_name
from walproxy.recovery.caller import Silence, sources_key
from walproxy.recovery.config import FetchConfig, open_sources
from walproxy.recovery.fetcher import Fetcher, HoleFound
from walproxy.recovery.server_mode import EXIT_DELIVERED, EXIT_MISSING, Mode
from walproxy.wal_sources.source import SourceUnavailable

_TEMPORARY_SUFFIX = ".walproxy"
_PIECE_BYTES = 1 << 20

_log = logging.getLogger(__name__)


def wal_fetch(name: str, target: Path, config: FetchConfig, *, system_id: int, mode: Mode, wal_directory: Path) -> int:
    """Fetch a file for PostgreSQL; return the exit code. Errors are logged.

    Args:
        name: PostgreSQL's name of it, a segment's or a history file's.
        target: the path that PostgreSQL requests; replaced atomically.
        system_id: of the PostgreSQL that recovers, 0 if unknown.
        mode: the mode of that PostgreSQL.
        wal_directory: its pg_wal.
    """
    temporary = target.with_name(target.name + _TEMPORARY_SUFFIX)
    is_asked_again = mode in (Mode.STANDBY, Mode.PROMOTING)
    try:
        timeout_s = 0.0 if is_asked_again else config.timeout
        sources = open_sources(config, is_asked_again=is_asked_again)
        fetcher = Fetcher(sources, system_id=system_id, timeout_s=timeout_s, asks_once=is_asked_again)
        tli = tli_of_history_name(name)
        if tli is not None:
            delivered = _fetch_history(fetcher, tli, temporary)
        else:
            find_holes = not is_asked_again and not config.end_at_hole
            own = wal_directory / name if is_asked_again else None
            delivered = _fetch_segment(fetcher, name, temporary, config, find_holes=find_holes, own=own)
        if not delivered:
            return EXIT_MISSING
        temporary.rename(target)
        return EXIT_DELIVERED
    except HoleFound as error:
        if (wal_directory / name).exists():
            return EXIT_MISSING  # PostgreSQL has it already, and reads it from there next.
        _log.error("%s", error)
    except WalproxyError as error:
        _log.error("cannot fetch %s: %s", name, error)
        if mode is Mode.STANDBY and isinstance(error, SourceUnavailable):
            Silence(wal_directory, sources_key(system_id, config)).begin()
    except OSError as error:
        _log.error("cannot fetch %s: %s: %s", name, error.filename or target, error.strerror or error)
    finally:
        temporary.unlink(missing_ok=True)
    return mode.failure_code


def _fetch_history(fetcher: Fetcher, tli: int, temporary: Path) -> bool:
    content = fetcher.history(tli)
    if content is not None:
        temporary.write_bytes(content)
    return content is not None


def _fetch_segment(
    fetcher: Fetcher, name: str, temporary: Path, config: FetchConfig, *, find_holes: bool, own: Path | None
) -> bool:
    """Fetch a segment; return whether there is one.

    Args:
        own: the segment as PostgreSQL may have it already. A part of a segment that it begins with is not used.
    """
    segment_size = fetcher.origin().segment_size
    parsed = parse_segment_name(name, segment_size)
    if parsed is None:
        raise ConfigurationError(
            f"{name} is not the name of a segment of {segment_size} bytes: the WAL is that of another cluster, or %f "
            "is not the first argument"
        )
    tli, begin_lsn = parsed
    delivered = fetcher.fetch_segment(tli, begin_lsn, temporary, whole_only=config.no_partial, find_holes=find_holes)
    if delivered is None:
        return False
    if not delivered.is_whole:
        if own is not None and _begins_with(own, temporary):
            return False
        _log.info("%s up to %s only, from %s", name, format_lsn(delivered.end_lsn), delivered.source)
        _pad(temporary, segment_size)
    return True


def _pad(path: Path, size: int) -> None:
    """Append zeros up to `size` bytes, with space allocated on the disk: PostgreSQL accepts no shorter segment."""
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, size)


def _begins_with(own: Path, part: Path) -> bool:
    """Return whether the file `own` exists and begins with all bytes of the file `part`."""
    try:
        longer = own.open("rb")
    except FileNotFoundError:
        return False
    with longer, part.open("rb") as shorter:
        while piece := shorter.read(_PIECE_BYTES):
            if longer.read(len(piece)) != piece:
                return False
    return True
