"""`walproxy archive`: list an archive, verify it, and choose the clusters that may write into it."""

import os
import sys
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from safekeeper.archive.fetch import ArchiveReader
from safekeeper.archive.store import ObjectStore
from safekeeper.archive.upload import adopt as adopt_cluster
from safekeeper.archive.upload import create as create_archive
from safekeeper.base.errors import EXIT_FINE, EXIT_UNEXPECTED, ConfigurationError
from safekeeper.base.lsn import SEGMENT_SIZE_MAX, SEGMENT_SIZE_MIN, format_lsn, parse_lsn
from walproxy.cli.configuration import archive_option
from walproxy.cli.parameters import CLUSTER_ID
from walproxy.recovery.config import ArchiveConfig, load_sources
from walproxy.recovery.plan import format_time
from walproxy.recovery.record_times import TimedCommit
from walproxy.recovery.survey import RestorableRange, describe_hole, manifest_of, restorable_ranges, verify
from walproxy.wal_sources.archive import ArchiveSource


@click.group()
def archive() -> None:
    """List an archive, verify it, or prepare it for a new cluster."""


@archive.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@archive_option
def list_(config: Path | None, as_json: bool, **command_line: Any) -> None:
    """Show the WAL in the archive, missing segments, and the times that can be restored.

    The times are those of the first and last commits near the ends of each range of WAL.

    \b
    Example:
      walproxy archive list --archive s3://bucket/main
    """
    reader = _reader(config, command_line)
    manifest, catalog = manifest_of(reader), reader.catalog()
    ranges, holes = restorable_ranges(reader, catalog), catalog.holes()
    if as_json:
        content = {
            "url": reader.store.url,
            "system_id": str(manifest.system_id),
            "segment_size": manifest.segment_size,
            "cluster_ids": manifest.cluster_ids,
            "ranges": [_range_as_json(each) for each in ranges],
            "holes": [{**_position(hole.tli, hole.begin_lsn, hole.end_lsn), "missing": hole.missing} for hole in holes],
            "conflicts": [file.name for file, _ in catalog.listing.conflicts],
            "unconfirmed": catalog.listing.unconfirmed,
        }
        click.echo(msgspec.json.encode(content).decode())
        return
    click.echo(f"archive {reader.store.url}: system {manifest.system_id}, segments of {manifest.segment_size} bytes")
    for each in ranges:
        found = each.range
        is_open = ", where an open segment ends" if found.ends_with_partial else ""
        click.echo(
            f"timeline {found.tli}: {format_lsn(found.begin_lsn)} to {format_lsn(found.end_lsn)}{is_open}; commits of "
            f"{_time(each.first_commit)} to {_time(each.last_commit)}"
        )
    for hole in holes:
        click.echo(f"HOLE: {describe_hole(hole)}")
    for file, _ in catalog.listing.conflicts:
        click.echo(f"CONFLICT: {file.name} exists with different contents, and is not used")
    if not ranges:
        click.echo("no WAL is archived yet")


@archive.command("verify")
@click.option("--since", metavar="LSN", help="Only WAL after this LSN.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@archive_option
def verify_(config: Path | None, since: str | None, as_json: bool, **command_line: Any) -> None:
    """Download all objects and verify their receipts, positions and links.

    The exit code is 1 if anything is wrong.

    \b
    Example:
      walproxy archive verify --archive s3://bucket/main --since 5/40000000
    """
    reader = _reader(config, command_line)
    since_lsn = parse_lsn(since) if since is not None else 0
    manifest_of(reader)
    console = Console(stderr=True)
    columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        verdict = verify(
            reader,
            reader.catalog(),
            since_lsn=since_lsn,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if as_json:
        click.echo(msgspec.json.encode(verdict._asdict()).decode())
    else:
        for problem in verdict.problems:
            click.echo(f"PROBLEM: {problem}")
        for note in verdict.notes:
            click.echo(f"note: {note}")
        click.echo(
            f"{verdict.checked} objects, {verdict.plain_bytes} bytes of WAL: "
            + (f"{len(verdict.problems)} problems" if verdict.problems else "no problem found")
        )
    sys.exit(EXIT_UNEXPECTED if verdict.problems else EXIT_FINE)


@archive.command("create")
@click.option(
    "--system-id",
    required=True,
    type=click.IntRange(1, 2**64 - 1),
    metavar="ID",
    help="System identifier of PostgreSQL.",
)
@click.option(
    "--cluster-id", required=True, type=CLUSTER_ID, help="Cluster id of the safekeepers, as in walproxy status --json."
)
@click.option(
    "--segment-size",
    default=16 << 20,
    show_default=True,
    type=click.IntRange(1),
    metavar="BYTES",
    help="Size of a WAL segment.",
)
@archive_option
def create(config: Path | None, system_id: int, cluster_id: str, segment_size: int, **command_line: Any) -> None:
    """Create an empty archive for a cluster whose earlier archive is lost.

    The first archive of a cluster is created without this command. Afterwards safekeepers refuse a place that has no
    manifest: it may be a file system that is not mounted. WAL that only the lost archive contained is lost: take a new
    base backup.

    \b
    Example:
      walproxy archive create --archive /archive --system-id 7312345678901234567 \\
          --cluster-id 5e1f0c3a9b7d24861c8a4f02e6b93d75
    """
    if segment_size & (segment_size - 1) or not SEGMENT_SIZE_MIN <= segment_size <= SEGMENT_SIZE_MAX:
        raise ConfigurationError(f"--segment-size {segment_size} is not a power of 2 from 1 MiB to 1 GiB")
    loaded = _config(config, command_line)
    store = ObjectStore.open(loaded.archive, options=loaded.archive_options, makes_folder=True)
    made = create_archive(store, system_id, segment_size, cluster_id)
    if (made.system_id, made.segment_size, made.cluster_ids) != (system_id, segment_size, (cluster_id,)):
        raise ConfigurationError(f"{store.url} contains an archive already: walproxy archive list shows its system")
    click.echo(f"{store.url} is an empty archive of the cluster {cluster_id}")


@archive.command("adopt")
@click.option(
    "--cluster-id", required=True, type=CLUSTER_ID, help="Id of the new cluster, which walproxy rebootstrap prints."
)
@archive_option
def adopt(config: Path | None, cluster_id: str, **command_line: Any) -> None:
    """Allow the cluster of a rebootstrap to write into the archive of the cluster that it replaced.

    \b
    Example:
      walproxy archive adopt --archive s3://bucket/main --cluster-id 5e1f0c3a9b7d24861c8a4f02e6b93d75
    """
    manifest = adopt_cluster(_reader(config, command_line).store, cluster_id)
    click.echo(f"the clusters {', '.join(manifest.cluster_ids)} may write into it")


def _config(config: Path | None, command_line: dict[str, Any]) -> ArchiveConfig:
    return load_sources(ArchiveConfig, command_line, os.environ, config)


def _reader(config: Path | None, command_line: dict[str, Any]) -> ArchiveReader:
    loaded = _config(config, command_line)
    return ArchiveReader(ArchiveSource(loaded.archive, loaded.archive_options).store)


def _time(commit: TimedCommit | None) -> str:
    return format_time(commit.time) if commit is not None else "(none found)"


def _position(tli: int, begin_lsn: int, end_lsn: int) -> dict[str, Any]:
    return {"tli": tli, "begin_lsn": format_lsn(begin_lsn), "end_lsn": format_lsn(end_lsn)}


def _range_as_json(each: RestorableRange) -> dict[str, Any]:
    found = each.range
    return {
        **_position(found.tli, found.begin_lsn, found.end_lsn),
        "ends_with_partial": found.ends_with_partial,
        "first_commit": format_time(each.first_commit.time) if each.first_commit is not None else None,
        "last_commit": format_time(each.last_commit.time) if each.last_commit is not None else None,
    }
