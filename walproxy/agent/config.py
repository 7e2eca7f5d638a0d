"""The options of `walproxy agent`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safekeeper.base.logs import LOG_FORMATS, LOG_LEVELS
from safekeeper.base.networks import Networks
from safekeeper.base.settings import (
    Address,
    Secret,
    existing_file,
    file_option,
    http_hosts_option,
    http_tls_option,
    key,
    networks_option,
    one_of,
    option,
    optional,
    positive_integer,
    seconds,
    slot_name,
    text,
    yes_or_no,
)
from safekeeper.base.settings import address as parse_address
from safekeeper.base.settings import application_name as parse_application_name
from walproxy.proxy.config import MembersConfig

DEAD_AFTER_MIN_S = 1.0


def dead_after_seconds(written: Any) -> float:
    """Parse the time after which a leader is lost, in seconds: one at least."""
    value_s = seconds(written)
    if value_s < DEAD_AFTER_MIN_S:
        raise ValueError(f"{written!r} is below {DEAD_AFTER_MIN_S:g} s, the time without heartbeats that is normal")
    return value_s


def priority(written: Any) -> int:
    """Parse a priority, a number from 0 to 1000."""
    try:
        value = int(written)
    except (TypeError, ValueError):
        raise ValueError(f"{written!r} is not a number") from None
    if not 0 <= value <= 1000:
        raise ValueError(f"{written!r} is not between 0 and 1000")
    return value


def agent_name(written: Any) -> str:
    """Parse the name of an agent: letters, digits, `-`, `_` and `.`, at most 63."""
    name = text(written)
    if len(name) > 63 or not all(each.isascii() and (each.isalnum() or each in "-_.") for each in name):
        raise ValueError(f"{written!r} has other characters than letters, digits, '-', '_' and '.', or more than 63")
    return name


def endpoints(written: Any) -> tuple[str, ...]:
    """Parse URLs, separated by commas, or a TOML list of them; none if empty."""
    parts = written.split(",") if isinstance(written, str) else written
    if not isinstance(parts, list) or not all(isinstance(each, str) for each in parts):
        raise ValueError(f"{written!r} is not a list of URLs")
    found = tuple(each.strip() for each in parts if each.strip())
    for each in found:
        if not each.startswith(("http://", "https://")):
            raise ValueError(f"{each!r} is not a URL such as http://etcd1:2379")
    return found


def password(written: Any) -> Secret:
    """Parse a password, of any length."""
    return Secret(text(written).encode())


def folder(written: Any) -> Path:
    """Parse the path of a folder, made absolute."""
    return Path(text(written)).absolute()


@dataclass(frozen=True, kw_only=True)
class AgentConfig(MembersConfig):
    """The settings of `walproxy agent`."""

    name: str = option("Name of this agent, unique in the cluster", parse=agent_name, metavar="NAME")
    pgdata: Path = option("Data folder of the PostgreSQL beside this agent", parse=folder, metavar="DIR")
    bin_dir: Path = key("Folder with pg_ctl, postgres, pg_rewind and pg_basebackup", parse=folder, metavar="DIR")
    conninfo: str = key(
        "How to connect to the local PostgreSQL as a superuser: over a socket or an address of this machine",
        parse=text,
        metavar="CONNINFO",
    )
    address: Address = key(
        "Address of the local PostgreSQL for clients and for the other servers",
        parse=parse_address,
        metavar="HOST:PORT",
    )
    peer_conninfo: str = key(
        "How to connect to the PostgreSQL of another agent, as a superuser; its host and port are added",
        parse=text,
        default="user=postgres dbname=postgres",
        metavar="CONNINFO",
    )
    standby_conninfo: str = key(
        "primary_conninfo of standbys: the safekeepers' --pg-listen", parse=text, metavar="CONNINFO"
    )
    restore_command: str = key(
        "restore_command of standbys, e.g. with walproxy wal-fetch", parse=str, default="", metavar="COMMAND"
    )
    slot: str = key(
        "Physical replication slot of the proxy on the primary", parse=slot_name, default="walproxy", metavar="NAME"
    )
    application_name: str = key(
        "Name of the proxy, which the agent writes to synchronous_standby_names",
        parse=parse_application_name,
        default="walproxy",
        metavar="NAME",
    )
    http_listen: Address = option(
        "Address on which to serve REST: /primary, /replica, /health, /cluster and others",
        parse=parse_address,
        default="127.0.0.1:8008",
        metavar="HOST:PORT",
    )
    proxy_http: Address = key(
        "Address on which the agent's walproxy run serves HTTP",
        parse=parse_address,
        default="127.0.0.1:5453",
        metavar="HOST:PORT",
    )
    dead_after: float = key(
        "Seconds without a heartbeat of the leader after which a standby is promoted; the same on all agents",
        parse=dead_after_seconds,
        default="5",
        metavar="SECONDS",
    )
    priority: int = key(
        "Of equally advanced standbys the one with the highest is promoted", parse=priority, default="100", metavar="N"
    )
    no_failover: bool = key("Never promote the local PostgreSQL", parse=yes_or_no, default="false", metavar="BOOL")
    without_quorum: str = key(
        "What ends the writes of a primary without a quorum of safekeepers: read-only or stop",
        parse=one_of("read-only", "stop"),
        default="read-only",
        metavar="ACTION",
    )
    start_timeout: float = key(
        "Seconds that a start of PostgreSQL may take", parse=seconds, default="300", metavar="SECONDS"
    )
    server_log: Path | None = key(
        "File for the output of PostgreSQL; default: the path of the data folder with .log",
        parse=optional(folder),
        default=None,
        metavar="FILE",
    )
    config_file: Path | None = key(
        "postgresql.conf, if it is not in the data folder", parse=optional(existing_file), default=None, metavar="FILE"
    )
    discarded_dir: Path | None = key(
        "Folder for the reports of discarded transactions; default: the path of the data folder with .discarded",
        parse=optional(folder),
        default=None,
        metavar="DIR",
    )
    watchdog: str = key(
        "Whether a primary needs the watchdog device: off, automatic or required",
        parse=one_of("off", "automatic", "required"),
        default="off",
        metavar="MODE",
    )
    watchdog_device: str = key("The watchdog device", parse=text, default="/dev/watchdog", metavar="DEVICE")
    fence_command: str = key(
        "Shell command that must succeed before a promotion, e.g. one that switches the old primary off; it gets the "
        "agent's name of the old primary in WALPROXY_OLD_PRIMARY",
        parse=str,
        default="",
        metavar="COMMAND",
    )
    fence_timeout: int = key(
        "Seconds after which fence_command is ended, and the attempt has failed",
        parse=positive_integer,
        default="60",
        metavar="SECONDS",
    )
    lease_etcd: tuple[str, ...] = key(
        "Endpoints of an etcd, in which an agent must hold a lease before it promotes: http://HOST:PORT,...",
        parse=endpoints,
        default="",
        metavar="URL,...",
    )
    lease_key: str = key(
        "Key of the lease, another one for each cluster", parse=text, default="/walproxy/leader", metavar="KEY"
    )
    lease_ttl: int = key("Seconds that the lease lasts", parse=positive_integer, default="10", metavar="SECONDS")
    lease_ca: Path | None = file_option(
        "CAs that sign the certificate of that etcd; default: those of the system", is_key_only=True
    )
    lease_user: str = key("User of that etcd", parse=str, default="", metavar="NAME")
    lease_password: Secret | None = option(
        "Password of that user", parse=optional(password), default=None, metavar="PASSWORD", environment_only=True
    )
    log_level: str = key(
        "Minimum level of log lines: debug, info, warning or error",
        parse=one_of(*LOG_LEVELS),
        default="info",
        metavar="LEVEL",
        reloadable=True,
    )
    log_format: str = key(
        "Format of the log: text, or json for one JSON object per line",
        parse=one_of(*LOG_FORMATS),
        default="text",
        metavar="FORMAT",
    )
    http_tls: bool = http_tls_option()
    http_allow: Networks | None = networks_option("Networks from which HTTP is accepted, separated by commas")
    http_hosts: frozenset[str] = http_hosts_option()
    http_password_file: Path | None = file_option(
        "File of the password for HTTP: basic authentication, with any user name; none is required by default",
        is_key_only=True,
    )
