"""What can be set on a safekeeper. Read by safekeeper/settings.py; the environment's prefix is SAFEKEEPER_."""

from dataclasses import dataclass
from pathlib import Path

from safekeeper.settings import Address, address, folder, one_of, option, positive_integer, seconds, size_bytes

ENVIRONMENT_PREFIX = "SAFEKEEPER"
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class SafekeeperConfig:
    """The settings of `safekeeper run`."""

    id: int = option(
        "Number of this safekeeper, the one that walproxy's --safekeepers gives it",
        parse=positive_integer,
        metavar="NUMBER",
    )
    data_dir: Path = option(
        "Folder of the WAL and the control file; made if it is not there", parse=folder, metavar="DIR"
    )
    listen: Address = option(
        "Where proxies connect; port 0 takes any free one",
        parse=address,
        default="127.0.0.1:5454",
        metavar="HOST:PORT",
    )
    http: Address = option(
        "Where /status, /healthz and /readyz are served; anybody who reaches it may read it",
        parse=address,
        default="127.0.0.1:7676",
        metavar="HOST:PORT",
    )
    log_level: str = option(
        "Least important lines to log: debug, info, warning or error",
        parse=one_of(*LOG_LEVELS),
        default="info",
        metavar="LEVEL",
        reloadable=True,
    )
    checkpoint_interval: float = option(
        "Seconds between writes of the positions that may lag on disk",
        parse=seconds,
        default="5",
        metavar="SECONDS",
    )
    disk_free_warning: int = option(
        "Warn when the disk has less free space than this",
        parse=size_bytes,
        default="1GiB",
        metavar="SIZE",
        reloadable=True,
    )
    connections_max: int = option(
        "Connections of proxies served at once", parse=positive_integer, default="64", metavar="NUMBER"
    )
    greeting_timeout: float = option(
        "Seconds until a connection that has not introduced itself is closed",
        parse=seconds,
        default="5",
        metavar="SECONDS",
    )
    idle_timeout: float = option(
        "Seconds of silence until a connection is closed", parse=seconds, default="60", metavar="SECONDS"
    )
    drain_timeout: float = option(
        "Seconds that a shutdown waits for the disk", parse=seconds, default="20", metavar="SECONDS"
    )
