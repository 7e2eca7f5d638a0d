"""The primary as the consensus needs it, and whether its WAL continues the log (S9, S10).

Two questions are answered here, both without I/O:

- `plan_log`: given the donor's log and the primary's timelines, where does the new term begin, and on which timeline?
- `first_difference`: are the primary's bytes those of the log?

PostgreSQL's timelines form a line of descent: the primary's own TLI, and for each ancestor the LSN where the next one
forked off. The log fits if its timelines are a prefix of that line. One step is made per term: a log that lacks
two timelines needs two terms.
"""

from typing import NamedTuple

import msgspec

from safekeeper.base.errors import PrimaryRefused
from safekeeper.base.lsn import Lsn, format_lsn, segment_start
from safekeeper.consensus.control_state import TliHistory
from safekeeper.consensus.messages import DIGEST_PAGE_SIZE
from safekeeper.consensus.term_history import TermHistory


class Ancestor(NamedTuple):
    """An earlier timeline of the primary, and where the next one forked off."""

    tli: int
    end_lsn: Lsn


class PrimaryIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of the primary, as a connection to it has returned it.

    Attributes:
        system_id: PostgreSQL's system identifier.
        tli: its present timeline.
        flush_lsn: the end of its flushed WAL.
        segment_size: bytes of a WAL segment.
        server_version: as libpq reports it, e.g. 150018.
        ancestors: its earlier timelines, oldest first.
        tli_histories: the history files of its timelines above 1, as far as it still has them.
        slot: the name of the replication slot if it existed before this process has created it, else empty.
        host: the host's name in the connection string, so that a refusal is remembered of this host only.
    """

    system_id: int
    tli: int
    flush_lsn: Lsn
    segment_size: int
    server_version: int
    ancestors: tuple[Ancestor, ...] = ()
    tli_histories: tuple[TliHistory, ...] = ()
    slot: str = ""
    host: str = ""


class LogPlan(NamedTuple):
    """Where the new term begins.

    Attributes:
        start_lsn: term_start_lsn.
        tli: the timeline that is streamed from there.
        cuts: whether the donor's log continues beyond `start_lsn`, so that the bytes there are cut (S9).
    """

    start_lsn: Lsn
    tli: int
    cuts: bool


def first_log_plan(primary: PrimaryIdentity) -> LogPlan:
    """Return where the very first log of a cluster begins: at the segment start of the primary's flush position.

    It begins on the primary's own timeline, also if that forked off within the segment: so servers that have stayed on
    the timeline before are refused from the first byte on.
    """
    return LogPlan(segment_start(primary.flush_lsn, primary.segment_size), primary.tli, cuts=False)


def plan_log(history: TermHistory, log_end_lsn: Lsn, primary: PrimaryIdentity) -> LogPlan:
    """Return where the next term begins, after a donor with this history whose log ends at `log_end_lsn`.

    The log's timelines and the primary's are compared one by one up to the first difference. If only the primary
    continues there, so does the log; if both do, the log is to be cut there, which the caller must allow (S9).

    Raises:
        PrimaryRefused: the log is not in the primary's line of descent, or the primary's WAL ends before it.
    """
    ours = _stretches(history, log_end_lsn)
    theirs = _lineage(primary)
    if not ours:
        # Terms were won, but no WAL was streamed: any line of descent may begin here.
        return _plan_empty_log(log_end_lsn, theirs)
    offset = next((i for i, stretch in enumerate(theirs) if stretch.tli == ours[0].tli), None)
    if offset is not None:
        theirs = theirs[offset:]
    else:
        empty = next((ancestor for ancestor in primary.ancestors if ancestor.tli == ours[0].tli), None)
        if empty is None:
            raise PrimaryRefused(
                f"the quorum's log begins on timeline {ours[0].tli}, which is not in the history of the primary's "
                f"timeline {primary.tli}: it is another line of descent"
            )
        # The first log may begin before its timeline did, in the same segment. This primary has no byte of that one.
        theirs = [empty, *(their for their in theirs if their.tli > empty.tli)]
    for index, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        our_is_last, their_is_last = index == len(ours) - 1, index == len(theirs) - 1
        if our_is_last and (their.end_lsn > our.end_lsn or their_is_last):
            if their.end_lsn < our.end_lsn:
                raise PrimaryRefused(
                    f"the primary's WAL ends at {format_lsn(their.end_lsn)}, the quorum has WAL up to "
                    f"{format_lsn(our.end_lsn)} on timeline {our.tli}: it was restored from a backup or lost its disk"
                )
            # Also if the primary forks off later: the old timeline is streamed to its end first.
            return LogPlan(our.end_lsn, our.tli, cuts=False)
        if their_is_last or their.end_lsn > our.end_lsn:
            raise PrimaryRefused(
                f"the quorum's log left timeline {our.tli} at {format_lsn(our.end_lsn)} for timeline "
                f"{ours[index + 1].tli}, the primary has stayed on it: it is an old primary, or was promoted "
                "independently"
            )
        if our_is_last or their.end_lsn < our.end_lsn or ours[index + 1].tli != theirs[index + 1].tli:
            return LogPlan(their.end_lsn, theirs[index + 1].tli, cuts=their.end_lsn < log_end_lsn)
    raise AssertionError("the last stretch of either line returns or raises above")


def _lineage(primary: PrimaryIdentity) -> list[Ancestor]:
    """Return the primary's timelines without the empty ones; its present one is last."""
    lineage: list[Ancestor] = []
    for ancestor in primary.ancestors:
        if not lineage or ancestor.end_lsn > lineage[-1].end_lsn:
            lineage.append(ancestor)
    return [*lineage, Ancestor(primary.tli, primary.flush_lsn)]


def _plan_empty_log(base_lsn: Lsn, theirs: list[Ancestor]) -> LogPlan:
    tli = next((their.tli for their in theirs if their.end_lsn > base_lsn), theirs[-1].tli)
    if theirs[-1].end_lsn < base_lsn:
        raise PrimaryRefused(
            f"the primary's WAL ends at {format_lsn(theirs[-1].end_lsn)}, the quorum's log begins at "
            f"{format_lsn(base_lsn)}: it was restored from a backup or lost its disk"
        )
    return LogPlan(base_lsn, tli, cuts=False)


def _stretches(history: TermHistory, log_end_lsn: Lsn) -> list[Ancestor]:
    """Return the timelines of the log's bytes, in order, each with the position where the log leaves it.

    A timeline that was adopted and never streamed is not part of the log: another one may fork off at the same
    position.
    """
    stretches: list[Ancestor] = []
    for index, entry in enumerate(history):
        end_lsn = history[index + 1].start_lsn if index + 1 < len(history) else log_end_lsn
        if end_lsn == entry.start_lsn:
            continue
        if stretches and stretches[-1].tli == entry.tli:
            stretches.pop()
        stretches.append(Ancestor(entry.tli, end_lsn))
    return stretches


def first_difference(begin_lsn: Lsn, ours: tuple[int, ...], theirs: tuple[int, ...]) -> Lsn | None:
    """Return the start of the first page whose checksums differ, None if all are equal.

    Args:
        begin_lsn: start of the range, a page boundary.
        ours, theirs: one CRC-32C per page of the range.
    """
    for index, (our_crc, their_crc) in enumerate(zip(ours, theirs, strict=False)):
        if our_crc != their_crc:
            return begin_lsn + index * DIGEST_PAGE_SIZE
    if len(ours) != len(theirs):
        return begin_lsn + min(len(ours), len(theirs)) * DIGEST_PAGE_SIZE
    return None
