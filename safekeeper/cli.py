"""The command `safekeeper`. Commands parse, call, print.

An expected error is one line on stderr and an exit code of safekeeper/base/errors.py, never a traceback.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from safekeeper.base.command import run_command
from safekeeper.base.errors import EXIT_FINE, EXIT_STORAGE, ConfigurationError
from safekeeper.base.lsn import format_lsn
from safekeeper.base.settings import click_options, folder
from safekeeper.process.config import ENVIRONMENT_PREFIX, SafekeeperConfig, load_config
from safekeeper.serving.users import user_line
from safekeeper.storage.control_file import DataDirectoryLock
from safekeeper.storage.filesystem import FileSystem, RealFileSystem
from safekeeper.storage.inspection import Inspection, as_json, control_rows, inspect_folder, settings_rows

EXIT_CODES = """\b
Exit codes:
  0  fine                      3  configuration refused
  1  unexpected                6  storage failed, or the disk was lost
  2  wrong usage
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_CODES)
@click.version_option(package_name="walproxy")
def cli() -> None:
    """Store PostgreSQL's WAL durably, as a member of a quorum.

    \b
    Examples:
      safekeeper run --id 1 --data-dir /var/lib/safekeeper --proposer-listen 0.0.0.0:5454
      safekeeper inspect --data-dir /var/lib/safekeeper
    """


@cli.command(epilog=EXIT_CODES)
@click_options(SafekeeperConfig, ENVIRONMENT_PREFIX)
@click.pass_obj
def run(disk: FileSystem | None, /, config: Path | None, **written: Any) -> None:
    """Run a safekeeper until SIGTERM.

    Each option can also be set in the environment or in the cluster's file, which has further keys. The command line
    takes precedence over the environment, the environment over the file. SIGHUP reads them again.

    \b
    Examples:
      safekeeper run
      safekeeper run --id 1 --data-dir /var/lib/safekeeper
      safekeeper run --id 2 --data-dir sk2 --proposer-listen 127.0.0.1:5455 --http-listen 127.0.0.1:7677
      safekeeper run --config walproxy.toml --id 3 -c wal_limit=100GiB
    """
    # Imported here because `inspect` and --help need no web server.
    from safekeeper.process.service import Service

    def read() -> SafekeeperConfig:
        return load_config(written, os.environ, config)

    # Tests pass a disk with faults (walproxy/lab/testing/faulty_disk.py).
    service = Service(read(), disk or RealFileSystem(), read)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        sys.exit(runner.run(service.run()))


@cli.command(epilog=EXIT_CODES)
@click.option(
    "--data-dir", required=True, metavar="DIR", envvar=f"{ENVIRONMENT_PREFIX}_DATA_DIR", help="Folder of a safekeeper."
)
@click.option("--json", "as_text", is_flag=True, help="Print JSON.")
def inspect(data_dir: str, as_text: bool) -> None:
    """Show the control file, the segments and the end of the valid WAL of a stopped safekeeper.

    Changes nothing. The exit code is 6 if data is missing that the folder must contain, or damaged so that a start
    would refuse it.

    \b
    Example:
      safekeeper inspect --data-dir /var/lib/safekeeper --json
    """
    directory = folder(data_dir)
    owner = DataDirectoryLock.owner(directory)
    if owner is not None:
        raise ConfigurationError(
            f"the safekeeper of {directory} is running (pid {owner}): stop it, or read its /status"
        )
    inspection = inspect_folder(RealFileSystem(), directory)
    if as_text:
        click.echo(msgspec.json.format(msgspec.json.encode(as_json(inspection)), indent=2).decode())
    else:
        _print_inspection(inspection)
    sys.exit(EXIT_STORAGE if inspection.lost else EXIT_FINE)


@cli.command(epilog=EXIT_CODES)
@click.argument("name")
def user(name: str) -> None:
    """Ask for a password and print the line that adds user NAME to the file of pg_users.

    Without a terminal the password is the first line of standard input. The output does not contain the password.

    \b
    Examples:
      safekeeper user standby1 >> /etc/safekeeper/users
      openssl rand -base64 24 | tee standby1.password | safekeeper user standby1 >> /etc/safekeeper/users
    """
    if sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        try:
            password = sys.stdin.readline().rstrip("\r\n")
        except UnicodeDecodeError:
            # Not chained: the error would contain the input.
            raise ConfigurationError("the password is not valid UTF-8") from None
    click.echo(user_line(name, password))


def main() -> None:
    """Run the command and exit."""
    run_command(cli, "safekeeper")


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:  # Not available on this platform.
        return None
    return uvloop.new_event_loop


def _print_inspection(inspection: Inspection) -> None:
    rows = control_rows(inspection.control) if inspection.control is not None else []
    rows += settings_rows(inspection.settings)
    rows.append(("valid WAL ends at", format_lsn(inspection.flush_lsn)))
    segments = [
        (
            segment.name,
            format_lsn(segment.begin_lsn),
            format_lsn(segment.valid_end_lsn) if segment.valid_end_lsn is not None else "damaged",
            "; ".join(segment.problems),
        )
        for segment in inspection.segments
    ]
    if sys.stdout.isatty():
        _print_tables(rows, segments)
    else:
        for name, value in rows:
            click.echo(f"{name}: {value}")
        for segment in segments:
            click.echo(f"segment {segment[0]}: [{segment[1]}, {segment[2]}) {segment[3]}".rstrip())
    for note in inspection.notes:
        click.echo(f"note: {note}")
    if inspection.lost:
        click.echo(f"LOST: {inspection.lost}")


def _print_tables(rows: list[tuple[str, str]], segments: list[tuple[str, str, str, str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    control = Table(show_header=False, box=None)
    for row in rows:
        control.add_row(*row)
    console.print(control)
    if segments:
        table = Table("segment", "begins at", "valid up to", "problems")
        for segment in segments:
            table.add_row(*segment)
        console.print(table)
