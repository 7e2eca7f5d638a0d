"""The best reply of several sources to one request of a restore_command.

- A whole segment of any source, after a check; a bad one is logged, and the next source is used.
- Otherwise the longest part of it. This and "no source has it" are returned only when every source has replied:
  recovery takes either for the end of the log. So a source that does not reply is retried until the timeout, and then
  the result is an error; it is one, too, if the longest part exists and cannot be read.
- A part that was offered and is gone may have been replaced by a longer one, as the archive's part of the open segment
  is every few seconds: then all sources are asked again.
- A hole is not the end of the log either: if no source has a segment and one has a later segment, that is an error.
- Bytes that may not be committed count only if they continue bytes that are.
"""

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from safekeeper.base.errors import ArchiveRefused, ConfigurationError, RemoteProtocolError
from safekeeper.base.lsn import Lsn, format_lsn, segment_name
from safekeeper.base.timelines import lists_no_parent, parse_timeline_history, timeline_history_name
from walproxy.recovery.pages import check_pages
from walproxy.wal_sources.ranges import next_of, reach_of
from walproxy.wal_sources.source import (
    LogPath,
    Offer,
    Origin,
    SegmentSource,
    SourceCorrupt,
    SourceUnavailable,
    WalMissing,
)

_PIECE_BYTES = 1 << 20
_PAUSES_S = (0.2, 0.5, 1.0, 2.0)
_COMPARED_SUFFIX = ".compared"
_ROUNDS_MAX = 5

_log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")


class Delivered(NamedTuple):
    """A segment that was written: its bytes up to `end_lsn`, from this source."""

    source: str
    end_lsn: Lsn
    is_whole: bool


class HoleFound(SourceCorrupt):
    """No source has a segment, but one has a later segment of the same timeline."""


class _OffersChanged(Exception):
    """The offered WAL is gone, and other WAL is offered."""


class Fetcher:
    """Fetch from several sources. Blocking; may be used by several threads at once.

    Args:
        sources: in the order in which they are preferred.
        system_id: of the PostgreSQL that recovers; 0 if unknown: then that of the first source that replies.
        timeout_s: for how long a source that does not reply is retried, for each request.
        asks_once: send no further request to a source that did not reply.
    """

    def __init__(
        self,
        sources: Sequence[SegmentSource],
        *,
        system_id: int = 0,
        timeout_s: float = 0.0,
        asks_once: bool = False,
    ) -> None:
        if not sources:
            raise ConfigurationError("no source of WAL: set --archive, --safekeepers or --data-dir")
        self.sources = list(sources)
        self._timeout_s = timeout_s
        self._system_id = system_id
        self._origin: Origin | None = None
        self._admitted: set[str] = set()
        self._asks_once = asks_once
        self._silent: dict[str, SourceUnavailable] = {}

    def origin(self) -> Origin:
        """Return the origin of the WAL that the first source to reply reports.

        Raises:
            SourceUnavailable: none replies.
            ArchiveRefused: a source has the WAL of another PostgreSQL than it should.
        """

        def ask() -> Origin:
            silent = []
            for source in self.sources:
                try:
                    return self._admit(source)
                except SourceUnavailable as error:
                    silent.append(str(error))
            raise SourceUnavailable("; ".join(silent))

        return self._origin or self.until_answered(ask)

    def fetch_segment(
        self, tli: int, begin_lsn: Lsn, target: Path, *, whole_only: bool = False, find_holes: bool = True
    ) -> Delivered | None:
        """Write the existing bytes of a segment to `target`; None if every source has replied that it has none.

        Args:
            tli: the timeline in the file's name.
            whole_only: ignore parts of segments.
            find_holes: before the log is reported to end here, ask every source for a later segment.

        Raises:
            SourceUnavailable: a required source does not reply.
            SourceCorrupt: no source can send a segment that one should have; HoleFound: or a later one exists.
        """

        def ask() -> Delivered | None:
            delivered = self._fetch_steady_segment(tli, begin_lsn, target, whole_only)
            if find_holes and (delivered is None or not delivered.is_whole):
                self._refuse_hole(tli, begin_lsn)
            return delivered

        return self.until_answered(ask)

    def history(self, tli: int) -> bytes | None:
        """Return the history file of `tli`, None if every source has replied that it has none.

        That of a number that a promotion passed over has no ancestors.

        Raises:
            SourceUnavailable: a source does not reply, and the others have none.
            SourceCorrupt: no existing one can be used.
        """
        return self.until_answered(lambda: self._history(tli))

    def reach(self, path: LogPath, begin_lsn: Lsn) -> Lsn:
        """Return the highest end of the bytes of `path` from `begin_lsn` on in any source.

        Raises:
            SourceUnavailable: one of them does not reply.
        """
        return max(self._ask_each(lambda source: reach_of(source.extents(path, begin_lsn), begin_lsn)))

    def next_after(self, path: LogPath, lsn: Lsn) -> Lsn | None:
        """Return the first byte of `path` at or after `lsn` that a source has; None if there is none.

        Raises:
            SourceUnavailable: one of them does not reply.
        """
        found = self._ask_each(lambda source: next_of(source.extents(path, lsn), lsn))
        return min((each for each in found if each is not None), default=None)

    def _ask_each(self, question: Callable[[SegmentSource], _Answer]) -> list[_Answer]:
        def ask() -> list[_Answer]:
            for source in self.sources:
                self._admit(source)
            return [question(source) for source in self.sources]

        return self.until_answered(ask)

    def until_answered(self, ask: Callable[[], _Answer]) -> _Answer:
        """Call `ask`, repeatedly while it raises SourceUnavailable, until the timeout."""
        deadline = time.monotonic() + self._timeout_s
        for attempt in itertools.count():
            try:
                return ask()
            except SourceUnavailable as error:
                pause_s = _PAUSES_S[min(attempt, len(_PAUSES_S) - 1)]
                if time.monotonic() + pause_s > deadline:
                    raise
                if attempt == 0:
                    _log.warning("%s; trying again for %g s", error, self._timeout_s)
                time.sleep(pause_s)
        raise AssertionError("count() never ends")

    # Sources.

    def _admit(self, source: SegmentSource) -> Origin:
        """Check that a source has the WAL of this PostgreSQL; return the origin."""
        if self._origin is not None and source.name in self._admitted:
            return self._origin
        if source.name in self._silent:
            raise self._silent[source.name]
        try:
            origin = source.origin()
        except SourceUnavailable as error:
            if self._asks_once:
                self._silent[source.name] = error
            raise
        expected = self._origin.system_id if self._origin is not None else self._system_id
        if expected and origin.system_id != expected:
            raise ArchiveRefused(
                f"{source.name} has the WAL of the system {origin.system_id}, not of {expected}: it belongs to another "
                "cluster; correct the sources"
            )
        if self._origin is not None and origin != self._origin:
            raise ArchiveRefused(
                f"{source.name} has segments of {origin.segment_size} bytes: remove it from the sources"
            )
        self._origin = origin
        self._admitted.add(source.name)
        return origin

    def _history(self, tli: int) -> bytes | None:
        silent: list[str] = []
        corrupt: list[str] = []
        passed_over: bytes | None = None
        for source in self.sources:
            try:
                self._admit(source)
                content = source.history(tli)
                if content is None:
                    continue
                if lists_no_parent(content):
                    passed_over = content  # Another source may have the WAL of a server that was given up.
                    continue
                parse_timeline_history(tli, content)
                return content
            except SourceUnavailable as error:
                silent.append(str(error))
            except (SourceCorrupt, RemoteProtocolError) as error:
                _log.error("%s of %s cannot be used: %s", timeline_history_name(tli), source.name, error)
                corrupt.append(str(error))
            except WalMissing:
                continue
        if silent:
            raise SourceUnavailable("; ".join(silent))
        if corrupt:
            raise SourceCorrupt("; ".join(corrupt))
        return passed_over

    def _fetch_steady_segment(self, tli: int, begin_lsn: Lsn, target: Path, whole_only: bool) -> Delivered | None:
        for _ in range(_ROUNDS_MAX):
            try:
                return self._fetch_segment(tli, begin_lsn, target, whole_only)
            except _OffersChanged:
                continue
        name = segment_name(tli, begin_lsn, self.origin().segment_size)
        raise SourceUnavailable(f"the existing part of {name} changes repeatedly")

    def _offers(self, tli: int, begin_lsn: Lsn, silent: list[str], corrupt: list[str]) -> list[Offer]:
        """Return the offers of all sources; add the errors of those without one to `silent` and `corrupt`."""
        offers: list[Offer] = []
        for source in self.sources:
            try:
                self._admit(source)
                offers += source.offers(tli, begin_lsn)
            except SourceUnavailable as error:
                silent.append(str(error))
            except SourceCorrupt as error:
                name = segment_name(tli, begin_lsn, self.origin().segment_size)
                _log.error("%s of %s cannot be used: %s", name, source.name, error)
                corrupt.append(str(error))
        return offers

    def _fetch_segment(self, tli: int, begin_lsn: Lsn, target: Path, whole_only: bool) -> Delivered | None:
        segment_size = self.origin().segment_size
        name = segment_name(tli, begin_lsn, segment_size)
        silent: list[str] = []
        corrupt: list[str] = []
        offers = self._offers(tli, begin_lsn, silent, corrupt)
        whole_lsn = begin_lsn + segment_size
        # A source whose replies contradict each other may have had all of it.
        lost_lsn = whole_lsn if corrupt else 0
        for offer in _by_worth(offers, whole_lsn):
            if offer.end_lsn < whole_lsn and (whole_only or silent or lost_lsn > offer.end_lsn):
                break
            try:
                if not offer.is_committed and not self._continues_committed(offer, offers, tli, target):
                    continue
                self._take(offer, tli, target)
            except WalMissing as error:
                _log.info("%s: %s", name, error)
                if _contents(self._offers(tli, begin_lsn, silent, corrupt)) != _contents(offers):
                    raise _OffersChanged from error
            except SourceUnavailable as error:
                silent.append(str(error))
            except SourceCorrupt as error:
                _log.error("%s; trying another source", error)
                corrupt.append(str(error))
                lost_lsn = max(lost_lsn, offer.end_lsn)
            else:
                return Delivered(offer.source, offer.end_lsn, offer.end_lsn == whole_lsn)
        if silent:
            raise SourceUnavailable("; ".join(silent))
        if corrupt:
            raise SourceCorrupt(f"no source has a good copy of {name}: {'; '.join(corrupt)}")
        return None

    def _take(self, offer: Offer, tli: int, target: Path) -> None:
        offer.write(target)
        origin = self.origin()
        what = f"{segment_name(tli, offer.begin_lsn, origin.segment_size)} of {offer.source}"
        check_pages(target, tli, offer.begin_lsn, offer.end_lsn - offer.begin_lsn, origin, what)

    def _refuse_hole(self, tli: int, begin_lsn: Lsn) -> None:
        name = segment_name(tli, begin_lsn, self.origin().segment_size)
        for source in self.sources:
            later = source.has_later(tli, begin_lsn)
            if later is not None:
                raise HoleFound(
                    f"no source has all of {name}, but {source.name} has {later}: WAL after "
                    f"{format_lsn(begin_lsn)} cannot be recovered without it; add another source, or recover to a "
                    "target before it"
                )

    # WAL that may not be committed.

    def _continues_committed(self, offer: Offer, offers: Sequence[Offer], tli: int, target: Path) -> bool:
        """Return whether an uncommitted offer agrees with committed WAL, here and in the segment before."""
        if not self._agrees(offer, offers, tli, target):
            return False
        before_lsn = offer.begin_lsn - self.origin().segment_size
        before = [each for source in self.sources for each in source.offers(tli, before_lsn)]
        ours = [each for each in before if each.source == offer.source and not each.is_committed]
        return all(self._agrees(each, before, tli, target) for each in ours)

    def _agrees(self, offer: Offer, offers: Sequence[Offer], tli: int, target: Path) -> bool:
        known = [each for each in offers if each.source != offer.source and each.committed_lsn > offer.committed_lsn]
        longest = max(known, key=lambda each: min(each.committed_lsn, each.end_lsn), default=None)
        if longest is None:
            return True
        compared = target.with_name(target.name + _COMPARED_SUFFIX)
        try:
            self._take(longest, tli, compared)
            self._take(offer, tli, target)
            end_lsn = min(longest.end_lsn, longest.committed_lsn, offer.end_lsn)
            differs_at = _first_difference(target, compared, end_lsn - offer.begin_lsn)
        finally:
            compared.unlink(missing_ok=True)
        if differs_at is None:
            return True
        _log.warning(
            "the uncommitted WAL of %s differs at %s from the committed WAL in %s: the cluster has given it up, and "
            "it is not used",
            offer.source,
            format_lsn(offer.begin_lsn + differs_at),
            longest.source,
        )
        return False


def _contents(offers: Sequence[Offer]) -> list[tuple[str, Lsn, Lsn]]:
    return [(offer.source, offer.end_lsn, offer.committed_lsn) for offer in offers]


def _by_worth(offers: Sequence[Offer], whole_lsn: Lsn) -> list[Offer]:
    """Return the offers, the best first: whole and committed, whole, longest."""
    return sorted(
        offers, key=lambda offer: (offer.end_lsn == whole_lsn and offer.is_committed, offer.end_lsn), reverse=True
    )


def _first_difference(one: Path, other: Path, size: int) -> int | None:
    """Return the offset of the first of `size` bytes that differs between two files, None if none does."""
    with one.open("rb") as ours, other.open("rb") as theirs:
        for offset in range(0, size, _PIECE_BYTES):
            length = min(_PIECE_BYTES, size - offset)
            left, right = ours.read(length), theirs.read(length)
            if left != right:
                return offset + next(_differing(left, right), min(len(left), len(right)))
    return None


def _differing(left: bytes, right: bytes) -> Iterator[int]:
    return (index for index, (a, b) in enumerate(zip(left, right, strict=False)) if a != b)
