"""`walproxy wal-fetch`: PostgreSQL's restore_command."""

import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from safekeeper import settings
from safekeeper.errors import ConfigurationError
from walproxy.recovery.caller import (
    Mode,
    Silence,
    data_directory_of,
    is_recovering,
    mode_of,
    sources_key,
    system_id_of,
)
from walproxy.recovery.config import ENVIRONMENT_PREFIX, EXIT_DELIVERED, EXIT_MISSING, FetchConfig
from walproxy.recovery.prefetched import Prefetched

_SEGMENT = re.compile(r"[0-9A-F]{24}")
_HISTORY = re.compile(r"[0-9A-F]{8}\.history")
# PostgreSQL's other names in pg_wal, none of which anybody archives here; and the first timeline has no history.
_NEVER_ARCHIVED = re.compile(r"[0-9A-F]{24}(\.[0-9A-F]{8}\.backup|\.partial)|00000001\.history")


@click.command("wal-fetch")
@click.argument("name", metavar="%f")
@click.argument("target", metavar="%p", type=click.Path(path_type=Path))
@settings.click_options(FetchConfig, ENVIRONMENT_PREFIX)
def wal_fetch(config: Path | None, name: str, target: Path, **command_line: Any) -> NoReturn:
    """Fetch a WAL segment, the part that exists of the last one, or a history file: for restore_command.

    From the archive, from running safekeepers, from the data folders of stopped ones, whichever has it. The exit code
    is 0 if it is delivered, 1 if every source says that it is not there, 200 for everything else: that stops recovery,
    where a lower one would end it early. A standby, which asks again, gets 1 instead of 200, and so does a server that
    is being promoted, which 200 would end halfway.

    \b
    Examples (in postgresql.conf):
      restore_command = 'walproxy wal-fetch %f %p --archive s3://bucket/main'
      restore_command = 'walproxy wal-fetch %f %p --config /etc/walproxy-fetch.toml'
    """
    # As a process without Python would die: PostgreSQL takes an end by a signal for what it is, whichever it was.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    target = target.absolute()
    data_directory = data_directory_of(target)
    mode, system_id = mode_of(data_directory), system_id_of(data_directory)
    if _NEVER_ARCHIVED.fullmatch(name):
        sys.exit(EXIT_MISSING)
    if not _SEGMENT.fullmatch(name) and not _HISTORY.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} is not the name of a WAL file: write walproxy wal-fetch %f %p, in this order"
        )
    if mode is Mode.PROMOTING and (target.parent / name).exists():
        sys.exit(EXIT_MISSING)  # PostgreSQL has it already, and looks there next.
    loaded = settings.load(
        FetchConfig, ENVIRONMENT_PREFIX, command_line=command_line, environment=os.environ, file=config
    )
    silence = Silence(target.parent, sources_key(system_id, loaded))
    if mode in (Mode.STANDBY, Mode.PROMOTING) and silence.is_recent():
        sys.exit(EXIT_MISSING)
    prefetched = None
    if system_id and loaded.prefetch and _SEGMENT.fullmatch(name) and is_recovering(data_directory):
        prefetched = Prefetched(data_directory, target.parent, system_id, loaded)
        if prefetched.take(name, target):
            _ask_for_more(prefetched, loaded, name)
            sys.exit(EXIT_DELIVERED)

    from safekeeper import logs
    from walproxy.recovery.wal_fetch import wal_fetch as fetch

    logs.configure(lambda: "walproxy wal-fetch", "info")
    code = fetch(name, target, loaded, system_id=system_id, mode=mode)
    if code == EXIT_DELIVERED and prefetched is not None:
        _ask_for_more(prefetched, loaded, name)
    sys.exit(code)


def failure_code(words: Sequence[str]) -> int:
    """Return the exit code of a command line that fails, even one that is not understood.

    Args:
        words: its arguments; one of them may be the path of the file that PostgreSQL wants.
    """
    paths = [Path(word) for word in words if not word.startswith("-")]
    modes = [mode_of(data_directory_of(path)) for path in paths]
    return next((mode for mode in modes if mode is not Mode.UNKNOWN), Mode.UNKNOWN).failure_code


def _ask_for_more(prefetched: Prefetched, config: FetchConfig, name: str) -> None:
    if not prefetched.request(name):
        from walproxy.recovery.prefetcher import start_prefetcher

        start_prefetcher(prefetched, config, name)
