"""Which WAL a safekeeper no longer needs to retain. The one place that decides it.

    wal_begin_lsn                                                      readable_lsn  flush_lsn
        |-------------|------------------|--------------|--------------------|----------|
                      | --wal-limit      | --wal-keep   | two segments, always          |

No WAL is lost by it: what is removed is committed, and either in the archive or on every member. Within that,
WAL goes if it exceeds `keep_bytes` and is not needed: by no member, no slot, no reader. Beyond `limit_bytes` it goes
even if somebody does, who then gets it from the archive; without an archive there is no such limit.

The newest segments stay in any case: the next primary is compared with them (S10), and they say where records begin.
The segment that holds the last committed byte stays, too: a member that skips WAL to where this log begins has not a
byte, so any other member that has what is committed must be ahead of it, or it would be the donor, with nothing to
compare.
"""

from typing import NamedTuple

from safekeeper.base.lsn import Lsn, segment_start

# So much goes at a time; then what is still needed is determined again.
SEGMENTS_PER_TRIM_MAX = 16


class TrimRequest(NamedTuple):
    """What the acceptor does not know by itself.

    Attributes:
        wanted_lsn: below it no slot and no reader needs anything; None if there are none.
        keep_bytes: the amount of WAL that is retained although it is not needed.
        limit_bytes: so much room the segment files may take; None for as much as there is.
        has_archive: an archive is configured: what is not in it is not removed.
    """

    wanted_lsn: Lsn | None
    keep_bytes: int
    limit_bytes: int | None
    has_archive: bool


class Kept(NamedTuple):
    """The WAL of a safekeeper, and what is known of it. `readable_lsn`: committed up to there, whatever forks off."""

    begin_lsn: Lsn
    flush_lsn: Lsn
    readable_lsn: Lsn
    truncate_lsn: Lsn
    archived_lsn: Lsn
    segment_size: int


def trim_to(kept: Kept, request: TrimRequest) -> Lsn:
    """Return where the WAL is to begin from now on: a segment's start, `kept.begin_lsn` if nothing can go."""
    size = kept.segment_size
    tail_lsn = segment_start(kept.flush_lsn - 1, size)
    committed_lsn = segment_start(max(kept.readable_lsn - 1, 0), size)
    safe_lsn = kept.archived_lsn if request.has_archive else kept.truncate_lsn
    wanted_lsn = min(safe_lsn, kept.truncate_lsn, kept.flush_lsn - request.keep_bytes)
    if request.wanted_lsn is not None:
        wanted_lsn = min(wanted_lsn, request.wanted_lsn)
    if request.has_archive and request.limit_bytes is not None:
        # The room is that of whole files: the tail's, and of the one that is prepared behind it.
        end_lsn = tail_lsn + 2 * size
        wanted_lsn = max(wanted_lsn, end_lsn - request.limit_bytes + size - 1)
    lsn = min(wanted_lsn, safe_lsn, committed_lsn, tail_lsn - size, kept.begin_lsn + SEGMENTS_PER_TRIM_MAX * size)
    return max(kept.begin_lsn, segment_start(max(lsn, 0), size))
