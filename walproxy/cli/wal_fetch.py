"""`walproxy wal-fetch`: PostgreSQL's restore_command."""

import contextlib
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from safekeeper.base import settings
from safekeeper.base.cluster_file import find_cluster_file
from safekeeper.base.errors import ConfigurationError
from walproxy.recovery.caller import Silence, sources_key, system_id_of
from walproxy.recovery.config import ENVIRONMENT_PREFIX, FetchConfig, load_sources
from walproxy.recovery.prefetched import Prefetched
from walproxy.recovery.server_mode import EXIT_DELIVERED, EXIT_MISSING, Mode, data_directory_of, mode_of

_SEGMENT = re.compile(r"[0-9A-F]{24}")
_HISTORY = re.compile(r"[0-9A-F]{8}\.history")
# PostgreSQL's other names in pg_wal, which are never archived here; and the first timeline has no history.
_NEVER_ARCHIVED = re.compile(r"[0-9A-F]{24}(\.[0-9A-F]{8}\.backup|\.partial)|00000001\.history")


@click.command("wal-fetch")
@click.argument("name", metavar="%f")
@click.argument("target", metavar="%p", type=click.Path(path_type=Path))
@click.option(
    "--missing-code",
    type=click.IntRange(1, 125),
    default=EXIT_MISSING,
    show_default=True,
    metavar="CODE",
    help="Exit code for a missing file, to distinguish it from that of a program that could not start.",
)
@settings.click_options(FetchConfig, ENVIRONMENT_PREFIX)
def wal_fetch(config: Path | None, name: str, target: Path, missing_code: int, **command_line: Any) -> NoReturn:
    """Fetch a WAL segment, the part that exists of the last one, or a history file: for restore_command.

    Sources are the archive, running safekeepers, and the data folders of stopped ones. The exit code is 0 if the file
    is delivered, 1 if every source has replied that it does not exist, 200 for everything else: that stops recovery,
    where a lower one would end it early. For a standby, which retries, it is 1 instead of 200, and also for a server
    that is being promoted, which 200 would stop in the middle.

    \b
    Examples (in postgresql.conf):
      restore_command = 'walproxy wal-fetch %f %p --archive s3://bucket/main'
      restore_command = 'walproxy wal-fetch %f %p --config /etc/walproxy/walproxy.toml'
    """
    # As in a process without Python: PostgreSQL must see that the process was ended by a signal.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Those by which walproxy-wal-fetch recognizes the same command.
    options = [word for word in sys.argv[2:] if word not in (name, str(target))]
    target = target.absolute()
    data_directory = data_directory_of(target)
    mode, system_id = mode_of(data_directory), system_id_of(data_directory)
    # A script around the command may use another target than a file in pg_wal.
    wal_directory = data_directory / "pg_wal" if mode is not Mode.UNKNOWN else target.parent
    if _NEVER_ARCHIVED.fullmatch(name):
        sys.exit(missing_code)
    if not _SEGMENT.fullmatch(name) and not _HISTORY.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} is not the name of a WAL file: write walproxy wal-fetch %f %p, in this order"
        )
    if mode is Mode.PROMOTING and (wal_directory / name).exists():
        sys.exit(missing_code)  # PostgreSQL has it already, and reads it from there next.
    # PostgreSQL's log would have the same warning for each segment.
    config = find_cluster_file(config, is_silent=True)
    loaded = load_sources(FetchConfig, command_line, os.environ, config, is_silent=True)
    silence = Silence(wal_directory, sources_key(system_id, loaded))
    if mode in (Mode.STANDBY, Mode.PROMOTING) and silence.is_recent():
        sys.exit(missing_code)
    prefetched = None
    if system_id and loaded.prefetch and _SEGMENT.fullmatch(name):
        ahead = Prefetched(data_directory, system_id, loaded, options)
        prefetched = ahead if ahead.run else None
    if prefetched is not None and prefetched.take(name, target):
        _request_more(prefetched, loaded, name, target, config)
        sys.exit(EXIT_DELIVERED)

    from safekeeper.base import logs
    from walproxy.recovery.wal_fetch import wal_fetch as fetch

    logs.configure(lambda: "walproxy wal-fetch", "info")
    code = fetch(name, target, loaded, system_id=system_id, mode=mode, wal_directory=wal_directory)
    if code == EXIT_DELIVERED and prefetched is not None:
        _request_more(prefetched, loaded, name, target, config)
    sys.exit(missing_code if code == EXIT_MISSING else code)


def _request_more(
    prefetched: Prefetched, config: FetchConfig, name: str, target: Path, settings_file: Path | None
) -> None:
    """Have the segments after `name`, which was delivered into `target`, fetched ahead."""
    if not prefetched.report(name):
        from walproxy.recovery.prefetcher import start_prefetcher

        with contextlib.suppress(OSError):  # E.g. no memory for a process: the next call fetches by itself.
            start_prefetcher(prefetched, config, name, target.stat().st_size, settings_file)
