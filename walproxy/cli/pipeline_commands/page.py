"""`walproxy pipeline page`: a page of a table as it was at an LSN."""

import os
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from safekeeper import logs, settings
from safekeeper.errors import EXIT_FINE, EXIT_UNEXPECTED, ConfigurationError
from safekeeper.lsn import Lsn, format_lsn, parse_lsn
from walproxy.cli.parameters import INSTANT, TARGET_TIMELINE
from walproxy.pipeline.pages.page import hex_dump
from walproxy.pipeline.pages.primary import Verdict, verify
from walproxy.pipeline.pages.relation import FORKS, parse_relation
from walproxy.pipeline.pages.restore import PageRequest, RestoredPage, restore_page
from walproxy.recovery.config import ENVIRONMENT_PREFIX, ArchiveConfig, SourceConfig
from walproxy.recovery.plan import LATEST

_TIMEOUT_S = 60.0


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--relation", required=True, metavar="NAME", help="[DATABASE.]SCHEMA.NAME, or T/D/R in numbers.")
@click.option("--block", required=True, type=click.IntRange(0, 2**32 - 2), metavar="N", help="Number of the block.")
@click.option("--fork", type=click.Choice(FORKS), default="main", show_default=True, help="Which of its forks.")
@click.option("--at", metavar="LSN", help="Of all that was complete at this LSN.")
@click.option("--at-time", type=INSTANT, help="Instead: of all that had committed at this time (ISO 8601).")
@click.option(
    "--backup",
    required=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="What pg_basebackup has written: a folder, a folder of tars, or base.tar (also .gz, .zst).",
)
@click.option(
    "--tables",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A folder with the table page_versions, to read less WAL.",
)
@click.option(
    "--target-timeline",
    default=LATEST,
    show_default=True,
    type=TARGET_TIMELINE,
    help="Which timeline to follow: latest, current (the backup's) or a number.",
)
@click.option(
    "--work-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Where there is room for the restored backup, for as long as it takes.",
)
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the page's 8 KiB into a file.")
@click.option("--hex", "as_hex", is_flag=True, help="Print its bytes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with its bytes in base64.")
@click.option("--verify", "is_verified", is_flag=True, help="Compare it with the page of --primary.")
@click.option("--primary", envvar="WALPROXY_PRIMARY", metavar="CONNINFO", help="The server that runs.")
@settings.click_options(ArchiveConfig, ENVIRONMENT_PREFIX)
def page(
    config: Path | None,
    relation: str,
    block: int,
    fork: str,
    at: str | None,
    at_time: datetime | None,
    backup: Path,
    tables: Path | None,
    target_timeline: str,
    work_dir: Path | None,
    output: Path | None,
    as_hex: bool,
    as_json: bool,
    is_verified: bool,
    primary: str | None,
    **command_line: Any,
) -> int:
    """Restore one page of a table as it was at an LSN.

    A throw-away PostgreSQL recovers the backup and the archive's WAL up to there; nobody can reach it, and its folder
    is removed. What the page's header says is compared with the records of the WAL that make the page. --verify
    compares the bytes with those of the primary, if the page has not changed there since: the exit code is 1 if bytes
    differ that must not.

    \b
    Examples:
      walproxy pipeline page --relation public.orders --block 7 --at 5/60000000 --backup base/ \\
          --archive s3://bucket/main --output page.bin
      walproxy pipeline page --relation 1663/16384/20001 --block 0 --at 5/60000000 --backup base/ \\
          --archive s3://bucket/main --hex --verify --primary "host=db1 user=postgres"
    """
    logs.configure(lambda: "walproxy pipeline page", "warning")
    if (at is None) == (at_time is None):
        raise click.UsageError("say of when with either --at or --at-time")
    if is_verified and primary is None:
        raise click.UsageError("--verify compares with the page of --primary: name it")
    loaded = settings.load(
        ArchiveConfig, ENVIRONMENT_PREFIX, command_line=command_line, environment=os.environ, file=config
    )
    request = PageRequest(
        parse_relation(relation),
        FORKS.index(fork),
        block,
        at_time if at_time is not None else parse_lsn(at or ""),
        backup,
        SourceConfig(loaded.archive, loaded.archive_options, None, (), False, _TIMEOUT_S),
        tables.absolute() if tables is not None else None,
        target_timeline,
        work_dir.absolute() if work_dir is not None else None,
    )
    restored = _restore(request)
    verdict = verify(restored.content, restored.page, primary) if is_verified and primary is not None else None
    if output is not None:
        _write(output, restored.content)
    if as_json:
        click.echo(msgspec.json.encode(_as_json(restored, verdict)).decode())
    else:
        for line in _told(restored, verdict):
            click.echo(line)
        for line in hex_dump(restored.content) if as_hex else ():
            click.echo(line)
    return EXIT_UNEXPECTED if verdict is not None and verdict.difference.ranges else EXIT_FINE


def _restore(request: PageRequest) -> RestoredPage:
    """Restore the page, and tell a person at a terminal what takes so long."""
    console = Console(stderr=True)
    if not console.is_terminal:
        return restore_page(request)
    with console.status("") as status:
        return restore_page(request, status.update)


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise ConfigurationError(f"could not write {path}: {error.strerror}; correct --output") from error


def _told(restored: RestoredPage, verdict: Verdict | None) -> list[str]:
    header, history = restored.header, restored.history
    where = f"{restored.page.relation}, {FORKS[restored.page.fork]} fork"
    lines = [
        f"block {restored.page.block} of {where}, at {format_lsn(restored.at_lsn)} on timeline {restored.tli}: "
        f"changed last at {format_lsn(header.lsn)}",
        f"recovered by PostgreSQL {restored.major} over {restored.replayed_bytes} bytes of WAL, up to the record at "
        f"{format_lsn(restored.last_record.lsn)}",
    ]
    if history.last is None:
        lines.append("made by: the base backup; no record has changed the page since")
    else:
        last = history.last
        begin = "the base backup" if history.image_lsn is None else f"the image at {format_lsn(history.image_lsn)}"
        lines.append(
            f"made by: {begin} and {history.records_since_image} records since; the last one is {last.rmgr} "
            f"{last.operation} at {format_lsn(last.lsn)}, which ends at {format_lsn(last.end_lsn)}"
        )
    if header.is_regular:
        lines.append(
            f"header: checksum {header.checksum:#06x}, flags {header.flags:#06x}, lower {header.lower}, upper "
            f"{header.upper}, special {header.special}, layout {header.version}, {header.items} line pointers"
        )
    else:
        lines.append("header: none, the page was never used")
    return lines + (_told_verdict(verdict) if verdict is not None else [])


def _told_verdict(verdict: Verdict) -> list[str]:
    excused = ", ".join(f"{count} of {kind}" for kind, count in verdict.difference.excused.items())
    but = f", but for bytes that redo does not know: {excused}" if excused else " byte for byte"
    if not verdict.difference.ranges:
        return [f"the primary's page ({verdict.read_by}) is the same{but}"]
    ranges = ", ".join(f"{begin} to {end}" for begin, end in verdict.difference.ranges[:10])
    more = f" and {len(verdict.difference.ranges) - 10} more" if len(verdict.difference.ranges) > 10 else ""
    return [f"DIFFERENT: the primary's page ({verdict.read_by}) has other bytes from {ranges}{more}"]


def _as_json(restored: RestoredPage, verdict: Verdict | None) -> dict[str, Any]:
    def lsn(value: Lsn | None) -> str | None:
        return format_lsn(value) if value is not None else None

    history = restored.history
    content: dict[str, Any] = {
        **restored.page.relation._asdict(),
        "fork": FORKS[restored.page.fork],
        "block": restored.page.block,
        "at": lsn(restored.at_lsn),
        "tli": restored.tli,
        "page_lsn": lsn(restored.header.lsn),
        "header": {name: value for name, value in restored.header._asdict().items() if name != "lsn"},
        "recovered_to": lsn(restored.last_record.lsn),
        "image_lsn": lsn(history.image_lsn),
        "records_since_image": history.records_since_image,
        "last_record": None,
        "content": restored.content,
    }
    if history.last is not None:
        content["last_record"] = {
            "lsn": lsn(history.last.lsn),
            "end_lsn": lsn(history.last.end_lsn),
            "rmgr": history.last.rmgr,
            "operation": history.last.operation,
        }
    if verdict is not None:
        content["primary"] = {
            "read_by": verdict.read_by,
            "same": not verdict.difference.ranges,
            "excused": verdict.difference.excused,
            "different": verdict.difference.ranges,
        }
    return content
