"""`walproxy wal-fetch`: PostgreSQL's restore_command."""

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from safekeeper import settings
from safekeeper.errors import ConfigurationError
from walproxy.recovery.config import ENVIRONMENT_PREFIX, EXIT_DELIVERED, EXIT_MISSING, FetchConfig
from walproxy.recovery.prefetched import Prefetched, is_recovering, is_standby, system_id_of

_SEGMENT = re.compile(r"[0-9A-F]{24}")
_HISTORY = re.compile(r"[0-9A-F]{8}\.history")
# PostgreSQL's other names in pg_wal, none of which anybody archives here.
_NEVER_ARCHIVED = re.compile(r"[0-9A-F]{24}(\.[0-9A-F]{8}\.backup|\.partial)")


@click.command("wal-fetch")
@click.argument("name", metavar="%f")
@click.argument("target", metavar="%p", type=click.Path(path_type=Path))
@settings.click_options(FetchConfig, ENVIRONMENT_PREFIX)
def wal_fetch(config: Path | None, name: str, target: Path, **command_line: Any) -> NoReturn:
    """Fetch a WAL segment, the part that exists of the last one, or a history file: for restore_command.

    From the archive, from running safekeepers, from the data folders of stopped ones, whichever has it. The exit code
    is 0 if it is delivered, 1 if every source says that it is not there, 200 for everything else: that stops recovery,
    where a lower one would end it early. A standby, which asks again, gets 1 instead of 200.

    \b
    Examples (in postgresql.conf):
      restore_command = 'walproxy wal-fetch %f %p --archive s3://bucket/main'
      restore_command = 'walproxy wal-fetch %f %p --config /etc/walproxy-fetch.toml'
    """
    # As a process without Python would die: PostgreSQL takes an end by a signal for what it is, whichever it was.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if _NEVER_ARCHIVED.fullmatch(name):
        sys.exit(EXIT_MISSING)
    if not _SEGMENT.fullmatch(name) and not _HISTORY.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} is not the name of a WAL file: write walproxy wal-fetch %f %p, in this order"
        )
    loaded = settings.load(
        FetchConfig, ENVIRONMENT_PREFIX, command_line=command_line, environment=os.environ, file=config
    )
    target = target.absolute()
    data_directory = target.parent.parent
    system_id = system_id_of(data_directory)
    prefetched = None
    if system_id and loaded.prefetch and _SEGMENT.fullmatch(name) and is_recovering(data_directory):
        prefetched = Prefetched(data_directory, target.parent, system_id, loaded)
        if prefetched.take(name, target):
            _ask_for_more(prefetched, loaded, name)
            sys.exit(EXIT_DELIVERED)

    from safekeeper import logs
    from walproxy.recovery.wal_fetch import wal_fetch as fetch

    logs.configure(lambda: "walproxy wal-fetch", "info")
    code = fetch(name, target, loaded, system_id=system_id, standby=is_standby(data_directory))
    if code == EXIT_DELIVERED and prefetched is not None:
        _ask_for_more(prefetched, loaded, name)
    sys.exit(code)


def _ask_for_more(prefetched: Prefetched, config: FetchConfig, name: str) -> None:
    if not prefetched.request(name):
        from walproxy.recovery.prefetcher import start_prefetcher

        start_prefetcher(prefetched, config, name)
