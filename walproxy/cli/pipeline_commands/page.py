"""`walproxy pipeline page`: a page of a table as it was at an LSN."""

import os
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from safekeeper.base import logs
from safekeeper.base.lsn import Lsn, parse_lsn
from walproxy.cli.configuration import archive_option
from walproxy.cli.parameters import INSTANT, TARGET_TIMELINE, Parameter
from walproxy.pipeline.pages.relation import FORKS
from walproxy.recovery.config import ArchiveConfig, SourceConfig, load_sources
from walproxy.recovery.plan import LATEST

_TIMEOUT_S = 60.0


def _moment(text: str) -> Lsn | datetime:
    if "/" in text:
        return parse_lsn(text)
    try:
        moment: datetime = INSTANT.convert(text, None, None)
    except click.BadParameter:
        raise ValueError("write an LSN like 5/60000000, or a time like 2026-11-21T14:16:05+01:00") from None
    return moment


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--relation", required=True, metavar="NAME", help="[DATABASE.]SCHEMA.NAME, or T/D/R in numbers.")
@click.option("--block", required=True, type=click.IntRange(0, 2**32 - 2), metavar="N", help="Number of the block.")
@click.option("--fork", type=click.Choice(FORKS), default="main", show_default=True, help="Fork of the relation.")
@click.option(
    "--line",
    type=click.IntRange(1, 2**11),
    metavar="N",
    help="Print the row at this line pointer: ctid is (block,line).",
)
@click.option(
    "--at", required=True, type=Parameter("LSN|TIME", _moment), help="State at this LSN, or at this time (ISO 8601)."
)
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
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the page's 8 KiB into a file.")
@click.option("--hex", "as_hex", is_flag=True, help="Print its bytes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with its bytes in base64.")
@click.option("--verify", "primary", metavar="CONNINFO", help="Compare it with the page of this running server.")
@archive_option
def page(
    config: Path | None,
    relation: str,
    block: int,
    fork: str,
    line: int | None,
    at: Lsn | datetime,
    backup: Path,
    tables: Path | None,
    target_timeline: str,
    output: Path | None,
    as_hex: bool,
    as_json: bool,
    primary: str | None,
    **command_line: Any,
) -> int:
    """Restore one page of a table, or a row of it, as it was at an LSN.

    A temporary PostgreSQL recovers the backup and the archive's WAL up to there, in a temporary folder (TMPDIR); it
    accepts no connections from other users, and its folder is removed. The header of the page is compared with the
    WAL records of the page. --verify compares the bytes with those of the primary, if the page has not changed
    there since: the exit code is 1 if bytes differ that must not.

    --line prints the row version that the line pointer leads to, visible or not: its columns, and which transactions
    have made and ended it.

    \b
    Examples:
      walproxy pipeline page --relation public.orders --block 7 --at 5/60000000 --backup base/ \\
          --archive s3://bucket/main --output page.bin
      walproxy pipeline page --relation shop.public.orders --block 7 --line 3 --at 5/60000000 --backup base/ \\
          --archive s3://bucket/main
      walproxy pipeline page --relation 1663/16384/20001 --block 0 --at 5/60000000 --backup base/ \\
          --archive s3://bucket/main --hex --verify "host=db1 user=postgres"
    """
    logs.configure(lambda: "walproxy pipeline page", "warning")
    if line is not None and fork != "main":
        raise click.UsageError(f"--line is of the fork main: the fork {fork} has no rows")
    loaded = load_sources(ArchiveConfig, command_line, os.environ, config)
    from walproxy.cli.pipeline_work.page import PageRequest, parse_relation, restore_and_print

    request = PageRequest(
        parse_relation(relation),
        FORKS.index(fork),
        block,
        at,
        backup,
        SourceConfig(loaded.archive, loaded.archive_options, None, (), False, _TIMEOUT_S),
        tables.absolute() if tables is not None else None,
        target_timeline,
        line,
    )
    return restore_and_print(request, primary, output, as_json=as_json, as_hex=as_hex)
