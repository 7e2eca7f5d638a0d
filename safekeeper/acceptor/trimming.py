"""Decides which WAL a safekeeper no longer needs to retain; no other module does.

    wal_begin_lsn                                                      readable_lsn  flush_lsn
        |-------------|------------------|--------------|--------------------|----------|
                      | wal_limit      | wal_keep   | two segments, always          |

No WAL is lost: what is removed is committed, and either in the archive or on every member. Of that, WAL is removed if
it exceeds `keep_bytes` and no member, slot or reader needs it. Above `limit_bytes` it is removed even if one does,
which then receives it from the archive; without an archive this limit has no effect.

The newest segments always stay, because the next primary is compared with them (S10), and record boundaries are found
in them. The segment with the last committed byte stays, too: a member that skips WAL to where this log begins has none
of it yet, so any other member that has what is committed must be ahead of it. Otherwise that member would be the donor,
with no WAL to compare.
"""

from typing import NamedTuple

from safekeeper.base.lsn import Lsn, segment_start

# At most this much is removed at a time; then the WAL still needed is determined again.
SEGMENTS_PER_TRIM_MAX = 16


class TrimRequest(NamedTuple):
    """The needs that are not part of the acceptor's state.

    Attributes:
        wanted_lsn: no slot and no reader needs WAL below it; None without slots and readers.
        keep_bytes: the amount of WAL that is retained although it is not needed.
        limit_bytes: limit of the segment files' total size; None: no limit.
        has_archive: an archive is configured: WAL that is not in it is not removed.
    """

    wanted_lsn: Lsn | None
    keep_bytes: int
    limit_bytes: int | None
    has_archive: bool


class Kept(NamedTuple):
    """The retained WAL of a safekeeper, and its positions. `readable_lsn`: committed whatever forks off."""

    begin_lsn: Lsn
    flush_lsn: Lsn
    readable_lsn: Lsn
    truncate_lsn: Lsn
    archived_lsn: Lsn
    segment_size: int


def trim_to(kept: Kept, request: TrimRequest) -> Lsn:
    """Return the new beginning of the WAL: a segment's start, `kept.begin_lsn` if nothing can be removed."""
    size = kept.segment_size
    tail_lsn = segment_start(kept.flush_lsn - 1, size)
    committed_lsn = segment_start(max(kept.readable_lsn - 1, 0), size)
    safe_lsn = kept.archived_lsn if request.has_archive else kept.truncate_lsn
    wanted_lsn = min(safe_lsn, kept.truncate_lsn, kept.flush_lsn - request.keep_bytes)
    if request.wanted_lsn is not None:
        wanted_lsn = min(wanted_lsn, request.wanted_lsn)
    if request.has_archive and request.limit_bytes is not None:
        # Counted in whole files: also the tail's, and the one that is prepared after it.
        end_lsn = tail_lsn + 2 * size
        wanted_lsn = max(wanted_lsn, end_lsn - request.limit_bytes + size - 1)
    lsn = min(wanted_lsn, safe_lsn, committed_lsn, tail_lsn - size, kept.begin_lsn + SEGMENTS_PER_TRIM_MAX * size)
    return max(kept.begin_lsn, segment_start(max(lsn, 0), size))
