"""Clusters that archive: who does it, how far it is, and whether what is there is the primary's WAL.

What an archive holds is read here without the project's own code: names and receipts are taken apart, contents are
compared with their checksums and with pg_wal. Every test ends with `assert_archive_is_whole`.
"""

import contextlib
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import zstandard

from safekeeper.base.lsn import Lsn, format_lsn, parse_lsn, parse_segment_name, segment_name, segment_start
from tests.forking.daemons import run_walproxy
from tests.integration.archive.archive_fixtures import Archive
from tests.integration.archive.object_stores import LocalFolder, Place
from tests.integration.cluster.cluster_fixtures import Commit, Gated, field_of, wait_for
from tests.waiting import NotThereYet
from walproxy.lab.cluster.local_cluster import LocalProcess

# The leader waits so long before it takes another archiver for one that is gone; the machine may be busy, too.
FAILOVER_S = 30.0
_OBJECT = re.compile(r"wal/([0-9A-F]{16})/(\1[0-9A-F]{8})(?:\.([0-9A-F]{16})\.partial)?(\.zst)?")
_RECEIPT = re.compile(r"(.+)\.([0-9A-F]{8})-([0-9]+)\.receipt")
_TEMPORARY = re.compile(r"#[0-9]+$")


class ArchivedWal(NamedTuple):
    """WAL [begin_lsn, end_lsn) in an archive, with a receipt; its bytes match the receipt."""

    tli: int
    begin_lsn: Lsn
    end_lsn: Lsn
    is_partial: bool
    content: bytes


def archive_options(place: Place, *further: str, partial_interval_s: float = 0.5) -> list[str]:
    """Return the options of safekeepers that archive to `place`."""
    return [
        *("--archive", place.url, "-c", f"archive_partial_interval={partial_interval_s:g}"),
        *(("-c", f"archive_options={_settings(place)}") if place.options else ()),
        *further,
    ]


def source_options(place: Place) -> list[str]:
    """Return the options of a command that reads the archive."""
    return ["--archive", place.url, *(("-c", f"archive_options={_settings(place)}") if place.options else ())]


def _settings(place: Place) -> str:
    return ",".join(f"{name}={value}" for name, value in place.options.items())


def let_in(cluster: Gated, place: Place) -> Gated:
    """Give the safekeepers what opens the archive; before they are started."""
    for safekeeper in cluster.safekeepers.values():
        safekeeper.environment.update(place.environment)
    return cluster


# Who archives, and how far it is.


def archivers_of(cluster: Gated) -> list[int]:
    """Return the safekeepers that answer and report that they archive."""
    answers = {i: field_of(safekeeper, "archive") for i, safekeeper in cluster.safekeepers.items()}
    return [i for i, answer in answers.items() if answer is not None and answer["archiver"]]


def wait_for_archiver(cluster: Gated, *, other_than: int | None = None) -> int:
    """Wait until one safekeeper archives; return which."""
    found: list[int] = []

    def is_named() -> bool:
        found[:] = [i for i in archivers_of(cluster) if i != other_than]
        return len(found) == 1

    wait_for(is_named, "a safekeeper archives", FAILOVER_S)
    return found[0]


def archived_lsn(cluster: Gated) -> Lsn:
    """Return how far the archive is by the report of the archiver, 0 if there is none."""
    archives = (field_of(safekeeper, "archive") or {} for safekeeper in cluster.safekeepers.values())
    return max((parse_lsn(archive["archived_lsn"]) for archive in archives if archive.get("archiver")), default=0)


def archive_status(cluster: Gated, safekeeper_id: int) -> dict[str, str]:
    """Return what a safekeeper reports of the archive.

    Raises:
        NotThereYet: it does not answer, or has no archive.
    """
    status = field_of(cluster.safekeepers[safekeeper_id], "archive")
    if status is None:
        raise NotThereYet(f"safekeeper {safekeeper_id} reports no archive")
    return dict(status)


def wait_until_archived(cluster: Gated, end_lsn: Lsn = 0, timeout_s: float = 30.0) -> Lsn:
    """Wait until the archive has all WAL below `end_lsn`, by default what the primary has now; return that."""
    end_lsn = end_lsn or cluster.primary_flush_lsn()
    wait_for(lambda: archived_lsn(cluster) >= end_lsn, f"WAL to {format_lsn(end_lsn)} is archived", timeout_s)
    return end_lsn


def metric(process: LocalProcess, name: str) -> float:
    """Return one number of a safekeeper's /metrics.

    Raises:
        NotThereYet: the safekeeper does not answer, or has no such metric.
    """
    try:
        with urllib.request.urlopen(process.url + "/metrics", timeout=5) as answer:
            lines = str(answer.read().decode()).splitlines()
    except OSError as error:
        raise NotThereYet(f"{process.url}/metrics: {error}") from error
    for line in lines:
        if line.startswith(f"safekeeper_{name} "):
            return float(line.split()[1])
    raise NotThereYet(f"no metric safekeeper_{name}")


def disk_usage(directory: Path) -> int:
    """Return how much room the files below `directory` take, in bytes; what vanishes meanwhile takes none."""
    used = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            used += path.stat().st_blocks * 512
    return used


# What makes WAL.


def write_wal(cluster: Gated, mib: int, timeout_s: float = 120.0) -> None:
    """Commit so much WAL, which does not repeat."""
    message = "pg_logical_emit_message(true, 'p', repeat(md5(random()::text), 32768))"
    Commit(cluster.postgres, f"SELECT count({message}) FROM generate_series(1, {mib})").wait(timeout_s)


# What is in the archive.


def archived_wal(archive: Archive, segment_size: int) -> Iterator[ArchivedWal]:
    """Yield every WAL file that has a receipt, by name; its size and checksum match it."""
    seen: set[str] = set()
    is_complete = False
    while not is_complete:
        is_complete = True
        keys = archive.keys()
        receipts = _receipts_of(keys)
        for key in keys:
            named = _OBJECT.fullmatch(key)
            if named is None or key not in receipts or key in seen:
                continue
            try:
                content = archive.read(key)
            except (FileNotFoundError, urllib.error.HTTPError):
                assert named[3] is not None, f"{key} is gone, though nothing removes segments"
                is_complete = False  # It was removed because a longer one has come since all was listed.
                continue
            seen.add(key)
            yield _checked(named, receipts[key], content, segment_size)


def _receipts_of(keys: list[str]) -> dict[str, re.Match[str]]:
    """Return the receipts, taken apart, by the keys of what they are for."""
    receipts: dict[str, re.Match[str]] = {}
    for key in keys:
        receipt = _RECEIPT.fullmatch(key)
        if receipt is not None:
            assert receipt[1] not in receipts, f"{receipt[1]} has two receipts"
            receipts[receipt[1]] = receipt
    return receipts


def _checked(named: re.Match[str], receipt: re.Match[str], content: bytes, segment_size: int) -> ArchivedWal:
    """Return a WAL file whose content was compared with its receipt and with its name."""
    key, crc, size = receipt.groups()
    content = zstandard.ZstdDecompressor().decompress(content) if named[4] else content
    assert (google_crc32c.value(content), len(content)) == (int(crc, 16), int(size)), f"{key} is not its receipt's"
    parsed = parse_segment_name(named[2], segment_size)
    assert parsed is not None, f"{key} has a name that no segment has"
    tli, begin_lsn = parsed
    end_lsn = int(named[3], 16) if named[3] else begin_lsn + segment_size
    assert len(content) == end_lsn - begin_lsn, f"{key} has {len(content)} bytes"
    return ArchivedWal(tli, begin_lsn, end_lsn, named[3] is not None, content)


def without_receipt(archive: Archive) -> set[str]:
    """Return the names of WAL files whose upload has not ended, also of those that are only being written."""
    keys = archive.keys()
    received = {receipt[1] for key in keys if (receipt := _RECEIPT.fullmatch(key))}
    return {key for key in keys if _OBJECT.fullmatch(_TEMPORARY.sub("", key))} - received


def assert_archive_is_whole(
    archive: Archive,
    pg_wals: Sequence[Path],
    segment_size: int,
    begin_lsn: Lsn,
    end_lsn: Lsn,
    *,
    old_wal_goes: bool = False,
) -> int:
    """The archive holds all WAL [begin_lsn, end_lsn), without a hole, byte for byte as in the primaries' files.

    Args:
        pg_wals: folders of the same WAL; a segment is compared with the first that has it.
        old_wal_goes: some of it is no longer in any folder, or will be in none the next moment.

    Returns:
        how many whole segments it holds.
    """
    reach_lsn: dict[Lsn, Lsn] = {}
    segments = 0
    for found in archived_wal(archive, segment_size):
        reach_lsn[found.begin_lsn] = max(found.end_lsn, reach_lsn.get(found.begin_lsn, 0))
        segments += not found.is_partial
        theirs = _bytes_in(pg_wals, segment_name(found.tli, found.begin_lsn, segment_size), len(found.content))
        if theirs is None and old_wal_goes:
            continue
        is_equal = theirs == found.content  # Not in the assertion, which would print megabytes.
        assert is_equal, f"the primary's segment at {format_lsn(found.begin_lsn)} of timeline {found.tli} differs"
    reached_lsn = segment_start(begin_lsn, segment_size)
    while reached_lsn < end_lsn:
        next_lsn = reach_lsn.get(reached_lsn, 0)
        assert next_lsn > reached_lsn, f"the archive has a hole at {format_lsn(reached_lsn)}"
        reached_lsn = next_lsn
    return segments


def _bytes_in(pg_wals: Sequence[Path], name: str, size: int) -> bytes | None:
    """Return the first bytes of a segment from the first folder that has it, None if none has."""
    for folder in pg_wals:
        # What a promotion leaves open is renamed, and no longer written.
        for each in (name, f"{name}.partial"):
            with contextlib.suppress(FileNotFoundError), (folder / each).open("rb") as file:
                return file.read(size)
    return None


def log_begin_lsn(cluster: Gated) -> Lsn:
    """Return where the log began, before anything of it was removed."""
    history = next(found for s in cluster.safekeepers.values() if (found := field_of(s, "history")))
    return segment_start(parse_lsn(history[0]["start_lsn"]), cluster.segment_size)


def assert_is_archived(cluster: Gated, archive: Archive) -> int:
    """All that the primary has comes to the archive, byte for byte, and `walproxy archive verify` finds it good.

    Returns:
        how many whole segments the archive holds.
    """
    end_lsn = wait_until_archived(cluster)
    pg_wals = [server.pg_wal for server in (cluster.postgres, *cluster.former_primaries)]
    segments = assert_archive_is_whole(archive, pg_wals, cluster.segment_size, log_begin_lsn(cluster), end_lsn)
    verified = run_reader("archive", "verify", "--archive", archive.place.url, place=archive.place)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    return segments


def run_reader(
    *arguments: str, place: Place, answer: str = "", timeout_s: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """Run `walproxy` to its end, with what opens the archive in its environment."""
    environment = {**place.environment, "WALPROXY_ARCHIVE_OPTIONS": _settings(place)}
    return run_walproxy(*arguments, answer=answer, environment=environment, timeout_s=timeout_s)


# What happens to an archiver.


def kill_during_upload(
    cluster: Gated, archive: Archive, make_wal: Callable[[], None], timeout_s: float = 30.0
) -> tuple[int, set[str]]:
    """Kill the archiver while it uploads what `make_wal` makes; return which it was and which uploads that hit.

    Only for a local folder, in which uploads can be watched.
    """
    assert type(archive.server) is LocalFolder
    victim = wait_for_archiver(cluster)
    before = without_receipt(archive)
    make_wal()
    deadline = time.monotonic() + timeout_s
    while not without_receipt(archive) - before:
        assert time.monotonic() < deadline, "no upload was seen"
    cluster.safekeepers[victim].kill9()
    return victim, without_receipt(archive) - before
