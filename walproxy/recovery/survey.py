"""The content of an archive: the times that can be restored, missing WAL, and whether its bytes are right."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import NamedTuple

import msgspec

from safekeeper.archive.catalog import ArchivedRange, Catalog, Hole
from safekeeper.archive.fetch import ArchiveReader, verified_pieces
from safekeeper.archive.objects import ArchivedObject, Manifest
from safekeeper.archive.store import ObjectStore
from safekeeper.base.errors import ArchiveCorrupt, ArchiveRefused, ObjectMissing, RemoteProtocolError
from safekeeper.base.logs import one_line
from safekeeper.base.lsn import Lsn, format_lsn, segment_start
from safekeeper.base.timelines import parse_timeline_history
from walproxy.recovery.pages import PageCheck
from walproxy.recovery.record_times import TimedCommit, scan
from walproxy.wal_sources.source import Origin, SourceCorrupt

_SCANNED_SEGMENTS_MAX = 8
_DOWNLOADS = 8  # Of a remote store, most of whose time is its replies'.
_LOCAL_READS = (
    2  # The rest is computed: 10,000 segments of 1 MiB take 5.6 s with 2 threads, 6.0 s with 4, 7.4 s with 8.
)
_JOB_BYTES = 16 << 20  # 10,000 jobs of 1 MiB take 0.3 s longer.


class RestorableRange(NamedTuple):
    """WAL without a hole, and the times of the first and the last commit near its ends; None where none was found."""

    range: ArchivedRange
    first_commit: TimedCommit | None
    last_commit: TimedCommit | None


class Verdict(NamedTuple):
    """The result of a verification.

    Attributes:
        checked: the number of objects that were downloaded and compared.
        plain_bytes: the size of their content.
        problems: one line each.
        notes: findings that do no harm, one line each.
    """

    checked: int
    plain_bytes: int
    problems: list[str]
    notes: list[str]


def manifest_of(reader: ArchiveReader) -> Manifest:
    """Return the manifest of the archive.

    Raises:
        ArchiveRefused: there is none.
    """
    manifest = reader.manifest()
    if manifest is None:
        raise ArchiveRefused(f"{reader.store.url} contains no archive: no WAL was archived there; correct the URL")
    return manifest


def restorable_ranges(reader: ArchiveReader, catalog: Catalog) -> list[RestorableRange]:
    """Return the ranges of the archive with the commits at their ends."""
    by_begin: dict[Lsn, list[ArchivedObject]] = defaultdict(list)
    for archived in catalog.listing.objects:
        if archived.file.kind != "history":
            by_begin[archived.file.begin_lsn].append(archived)
    found = []
    for each in catalog.ranges():
        begin_lsn = segment_start(each.begin_lsn, catalog.segment_size)
        segments = range(begin_lsn, each.end_lsn, catalog.segment_size)
        first = _commits(reader, catalog, by_begin, each, segments, first=True)
        last = _commits(reader, catalog, by_begin, each, segments[::-1], first=False)
        found.append(RestorableRange(each, first, last))
    return found


def _commits(
    reader: ArchiveReader,
    catalog: Catalog,
    by_begin: dict[Lsn, list[ArchivedObject]],
    found: ArchivedRange,
    segments: Sequence[Lsn],
    *,
    first: bool,
) -> TimedCommit | None:
    """Return the first, or the last, commit of a range in the nearest of `segments`."""
    for begin_lsn in segments[:_SCANNED_SEGMENTS_MAX]:
        end_lsn = min(begin_lsn + catalog.segment_size, found.end_lsn)
        # The segment with a fork inside may exist under a later timeline's name only.
        holders = [each for each in by_begin[begin_lsn] if each.file.tli >= found.tli and each.file.end_lsn >= end_lsn]
        if not holders:
            return None
        try:
            content = reader.fetch_bytes(min(holders, key=lambda each: each.file.tli))
        except (ArchiveCorrupt, ObjectMissing):
            return None  # A verification reports what is wrong.
        scanned = scan([content[: end_lsn - begin_lsn]], begin_lsn, catalog.segment_size, first_only=first)
        commit = scanned.first if first else scanned.last
        if commit is not None:
            return commit
    return None


def describe_hole(hole: Hole) -> str:
    """Return a line about the WAL that cannot be recovered because of a hole."""
    if hole.begin_lsn == hole.end_lsn:
        return f"{hole.missing} is missing: nothing of timeline {hole.tli} can be recovered"
    extent = f"{format_lsn(hole.begin_lsn)} to {format_lsn(hole.end_lsn)}"
    return (
        f"{hole.missing} is missing: timeline {hole.tli} lacks {extent}; a backup from before that cannot be recovered "
        "beyond it"
    )


def verify(
    reader: ArchiveReader,
    catalog: Catalog,
    *,
    since_lsn: Lsn = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Verdict:
    """Download all objects of the archive and verify them.

    Args:
        since_lsn: segments that end at or below it are skipped.
        progress: called with the number of bytes done, and of all bytes.
    """
    manifest = manifest_of(reader)
    listing = catalog.listing
    objects = [each for each in listing.objects if each.file.kind == "history" or each.file.end_lsn > since_lsn]
    problems = [describe_hole(hole) for hole in catalog.holes() if hole.end_lsn >= since_lsn]
    for file, claims in listing.conflicts:
        keys = ", ".join(claim.receipt_key for claim in claims)
        problems.append(f"{file.name} exists with different contents: {keys}")
    problems += [
        f"{lost.receipt_key} is the receipt of an object that does not exist"
        for lost in listing.lost
        if _is_lost(reader.store, lost)
    ]
    notes = [f"{key} has no receipt: an upload that did not finish" for key in listing.unconfirmed]
    notes += [f"{key} is not a file of an archive" for key in listing.strangers]
    total = sum(each.plain_bytes for each in objects)
    done = 0
    origin = Origin(manifest.system_id, manifest.segment_size)
    threads = _DOWNLOADS if reader.store.folder is None else _LOCAL_READS
    with ThreadPoolExecutor(threads) as pool:
        # A few at a time: a job that waits takes more memory than an entry of the listing.
        batches = _batches(objects)
        jobs: set[Future[tuple[int, list[str]]]] = set()
        while True:
            for batch in itertools.islice(batches, 4 * threads - len(jobs)):
                jobs.add(pool.submit(_problems_of, reader, batch, origin))
            if not jobs:
                break
            finished, jobs = wait(jobs, return_when=FIRST_COMPLETED)
            for job in finished:
                plain_bytes, found = job.result()
                done += plain_bytes
                problems += found
            progress(done, total)
    return Verdict(len(objects), total, sorted(problems), notes)


def _is_lost(store: ObjectStore, archived: ArchivedObject) -> bool:
    """Return whether a receipt whose object was not in the listing still has none.

    A listing is not of one moment: an archiver may have removed the receipt of a partial and then the partial, or have
    added an object and then its receipt, between the entries of the two.
    """
    try:
        next(store.pieces(archived.key), b"")
    except ObjectMissing:
        pass
    else:
        return False
    try:
        store.get(archived.receipt_key)
    except ObjectMissing:
        return False
    return True


def _batches(objects: list[ArchivedObject]) -> Iterator[list[ArchivedObject]]:
    """Divide the objects into jobs of `_JOB_BYTES`, because each job wakes two threads. Unit: plain bytes."""
    batch: list[ArchivedObject] = []
    size = 0
    for each in objects:
        batch.append(each)
        size += each.plain_bytes
        if size >= _JOB_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _problems_of(reader: ArchiveReader, batch: list[ArchivedObject], origin: Origin) -> tuple[int, list[str]]:
    """Return the plain bytes of a batch, and what is wrong with its objects."""
    problems = [_problem_of(reader, each, origin) for each in batch]
    return sum(each.plain_bytes for each in batch), [problem for problem in problems if problem]


def _problem_of(reader: ArchiveReader, archived: ArchivedObject, origin: Origin) -> str:
    """Return what is wrong with an object, empty if nothing is."""
    file = archived.file
    try:
        receipt = msgspec.json.decode(reader.store.get(archived.receipt_key), type=dict)
        if receipt.get("system_id") != origin.system_id:
            return f"{archived.receipt_key} is a receipt of the system {receipt.get('system_id')}"
        if file.kind == "history":
            parse_timeline_history(file.tli, reader.fetch_bytes(archived))
        else:
            _check_content(reader, archived, origin)
    except (ArchiveCorrupt, SourceCorrupt, RemoteProtocolError) as error:
        return str(error)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return f"{archived.receipt_key} is not a receipt: {one_line(str(error)[:200])}"
    except ObjectMissing as error:
        # An archiver removes a partial once a longer one exists.
        return "" if file.kind == "partial" else str(error)
    return ""


def _check_content(reader: ArchiveReader, archived: ArchivedObject, origin: Origin) -> None:
    """Read an object, in pieces, and compare it with its receipt and its name.

    Raises:
        ArchiveCorrupt: it does not match its receipt, which is reported rather than what follows from it.
        SourceCorrupt: it does, but is not this WAL.
    """
    file = archived.file
    check = PageCheck(file.tli, file.begin_lsn, file.end_lsn - file.begin_lsn, origin, archived.key)
    wrong: SourceCorrupt | None = None
    for piece in verified_pieces(reader.store, archived):
        if wrong is None:
            try:
                check.feed(piece)
            except SourceCorrupt as error:
                wrong = error
    if wrong is not None:
        raise wrong
    check.finish()
