"""The sources of WAL for recovery: options, environment (WALPROXY_...), the cluster's file.

Only small modules are imported: a restore_command is a new process for each file.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from safekeeper.base.cluster_file import ClusterFile, Role, find_cluster_file
from safekeeper.base.settings import key, key_values, load, option, optional, seconds, text, yes_or_no

if TYPE_CHECKING:
    from walproxy.wal_sources.source import SegmentSource

ENVIRONMENT_PREFIX = "WALPROXY"
_Settings = TypeVar("_Settings")
DEFAULT_PREFETCH = 4
# A promotion waits for about three calls, and pg_promote waits for 60 s.
_SHORT_TIMEOUT_S = 5.0
_PREFETCH_MAX = 64


def folders(written: Any) -> tuple[Path, ...]:
    """Parse folders: several options, a TOML list, or one text with commas between them."""
    parts = written.split(",") if isinstance(written, str) else written
    if not isinstance(parts, list | tuple):
        raise ValueError(f"{written!r} is not a list of folders")
    return tuple(Path(text(part).strip()).absolute() for part in parts if part != "")


def location(written: Any) -> str:
    """Parse an archive's URL; make a path absolute: PostgreSQL runs a restore_command in its data folder."""
    url = text(written)
    return url if "://" in url else str(Path(url).absolute())


def count(written: Any) -> int:
    """Parse a whole number from 0 on."""
    try:
        number = int(written) if isinstance(written, str | int) and not isinstance(written, bool) else -1
    except ValueError:
        number = -1
    if not 0 <= number <= _PREFETCH_MAX:
        raise ValueError(f"{written!r} is not a whole number from 0 to {_PREFETCH_MAX}")
    return number


def _archive_option(**further: Any) -> Any:
    return option("The archive: a folder, or a URL of s3://, gs:// or az://", metavar="URL", **further)


def _archive_options_key() -> Any:
    return key(
        "Settings of the archive's store, by obstore's names, e.g. endpoint and region",
        parse=key_values,
        default="",
        metavar="KEY=VALUE,...",
    )


@dataclass(frozen=True)
class ArchiveConfig:
    """The archive of `walproxy archive`."""

    archive: str = _archive_option(parse=location)
    archive_options: Mapping[str, str] = _archive_options_key()


@dataclass(frozen=True)
class SourceConfig:
    """The sources of WAL."""

    archive: str | None = _archive_option(parse=optional(location), default=None)
    archive_options: Mapping[str, str] = _archive_options_key()
    safekeepers: str | None = option(
        "Running safekeepers: a libpq connection string of their replication listeners, with several hosts; all of "
        "them must reply",
        parse=optional(text),
        default=None,
        metavar="CONNINFO",
    )
    data_dir: tuple[Path, ...] = option(
        "Data folder of a stopped safekeeper; can be repeated",
        parse=folders,
        default="",
        metavar="DIR",
        repeatable=True,
    )
    uncommitted: bool = option(
        "Use also WAL of a data folder that is not known to be committed: it contains every acknowledged commit, and "
        "perhaps others",
        parse=yes_or_no,
        default="false",
        is_flag=True,
    )
    timeout: float = key(
        "Seconds for which a source that does not reply is retried", parse=seconds, default="60", metavar="SECONDS"
    )


@dataclass(frozen=True)
class FetchConfig(SourceConfig):
    """The settings of `walproxy wal-fetch`."""

    no_partial: bool = key("Deliver whole segments only", parse=yes_or_no, default="false", metavar="BOOL")
    end_at_hole: bool = key(
        "Treat missing WAL in the middle as the end of the WAL: for a recovery with a target, which PostgreSQL does "
        "not end before",
        parse=yes_or_no,
        default="false",
        metavar="BOOL",
    )
    prefetch: int = key(
        "Number of segments to fetch ahead, in parallel; 0 for none",
        parse=count,
        default=str(DEFAULT_PREFETCH),
        metavar="COUNT",
    )


RESTORE: Final = Role("restore", FetchConfig)
"""What the commands of recovery read in the cluster's file."""


def load_sources(
    settings_type: type[_Settings],
    command_line: Mapping[str, Any],
    environment: Mapping[str, str],
    given: Path | None,
    *,
    is_silent: bool = False,
) -> _Settings:
    """Return the settings of a command of recovery; see `load`.

    Args:
        given: the cluster's file, None for the default one.
        is_silent: log no warning if the default one cannot be read.
    """
    path = find_cluster_file(given, is_silent=is_silent)
    # A restore_command is a new process for each file: it reads the names of the other programs' keys nowhere.
    found = ClusterFile(path, (RESTORE,)).values(RESTORE) if path is not None else {}
    return load(settings_type, ENVIRONMENT_PREFIX, command_line=command_line, environment=environment, file=found)


def open_sources(config: SourceConfig, *, is_asked_again: bool = False) -> "list[SegmentSource]":
    """Return the configured sources: data folders, the archive, safekeepers. No request is sent to them yet.

    Args:
        is_asked_again: each request is sent once and for a few seconds only, since PostgreSQL repeats it.

    Raises:
        ConfigurationError: one cannot be used, or none is configured.
    """
    # What is not configured is not imported: psycopg alone takes longer than all the rest of a restore_command.
    sources: list[SegmentSource] = []
    if config.archive is not None:
        from walproxy.wal_sources.archive import ArchiveSource

        patience: dict[str, Any] = {"timeout_s": _SHORT_TIMEOUT_S, "retries": 0} if is_asked_again else {}
        sources.append(ArchiveSource(config.archive, config.archive_options, **patience))
    if config.safekeepers is not None:
        from walproxy.wal_sources.safekeeper import safekeeper_sources

        patience = {"timeout_s": _SHORT_TIMEOUT_S} if is_asked_again else {}
        sources += safekeeper_sources(config.safekeepers, **patience)
    if config.data_dir:
        sources += _folder_sources(config)
    if not sources:
        from safekeeper.base.errors import ConfigurationError

        raise ConfigurationError("no source of WAL: set --archive, --safekeepers or --data-dir")
    return sources


def _folder_sources(config: SourceConfig) -> "Sequence[SegmentSource]":
    """Return the data folders as sources."""
    import logging

    from safekeeper.base.lsn import format_lsn
    from walproxy.wal_sources.folder import FolderSource, choose_uncommitted

    found = [FolderSource(directory) for directory in config.data_dir]
    if config.uncommitted and (donor := choose_uncommitted(found)) is not None:
        logging.getLogger(__name__).warning(
            "uncommitted WAL is used: %s is known to be committed up to %s, and contains WAL up to %s; the WAL in "
            "between may contain commits that were never acknowledged",
            donor.name,
            format_lsn(donor.commit_lsn),
            format_lsn(donor.flush_lsn),
        )
    return found


def as_toml(config: SourceConfig) -> str:
    """Return the settings as a file of --config."""
    lines = [f"[{RESTORE.section}]\n"]
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if value is not None and value != () and value != {}:
            lines.append(f"{field.name} = {_toml_value(value)}\n")
    return "".join(lines)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml_value(each) for each in value) + "]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml_string(key)} = {_toml_string(each)}" for key, each in value.items()) + " }"
    return _toml_string(str(value))


def _toml_string(written: str) -> str:
    escaped = "".join(f"\\U{ord(c):08X}" if c in '"\\' or not c.isprintable() else c for c in written)
    return f'"{escaped}"'
