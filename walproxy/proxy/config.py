"""The options of the proxy. Read by safekeeper/base/settings.py; the environment's prefix is WALPROXY_."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safekeeper.base.logs import LOG_FORMATS, LOG_LEVELS
from safekeeper.base.networks import Networks
from safekeeper.base.settings import (
    Address,
    Secret,
    address,
    file_option,
    http_hosts_option,
    http_tls_option,
    key,
    networks_option,
    one_of,
    option,
    positive_integer,
    seconds,
    seconds_or_never,
    secret_option,
    size_bytes,
    slot_name,
    text,
    yes_or_no,
)
from safekeeper.base.settings import application_name as parse_application_name
from safekeeper.consensus.messages import HEARTBEAT_TIMEOUT_S
from walproxy.limbo.commit_policy import ACTIONS
from walproxy.proposer.apply_rule import ApplyRule, parse_apply_rule

ENVIRONMENT_PREFIX = "WALPROXY"
DEFAULT_HTTP = "127.0.0.1:7667"
SIZE_MIN_BYTES = 1 << 20


def safekeeper_addresses(written: Any) -> tuple[tuple[int, Address], ...]:
    """Parse ID=HOST:PORT,..., or a TOML table of them: the members, ordered by id."""
    if isinstance(written, dict):
        pairs = [(str(key), value) for key, value in written.items()]
    else:
        pairs = []
        for part in text(written).split(","):
            key, equals, value = part.strip().partition("=")
            if not equals:
                raise ValueError(f"{part.strip()!r} is not ID=HOST:PORT, for example 1=10.0.0.1:5454")
            pairs.append((key, value))
    members = sorted((positive_integer(key), address(value)) for key, value in pairs)
    ids = [safekeeper_id for safekeeper_id, _ in members]
    if len(set(ids)) != len(ids):
        raise ValueError(f"safekeeper {next(i for i in ids if ids.count(i) > 1)} is listed twice")
    places = [place for _, place in members]
    if len(set(places)) != len(places):
        raise ValueError(f"{next(p for p in places if places.count(p) > 1)} is the address of two safekeepers")
    return tuple(members)


def memory_or_rate(written: Any) -> int:
    """Parse a number of bytes of at least 1 MiB, the size of the largest frame."""
    size = size_bytes(written)
    if size < SIZE_MIN_BYTES:
        raise ValueError(f"{written!r} is less than 1MiB, the minimum")
    return size


def heartbeat_seconds(written: Any) -> float:
    """Parse an interval, in seconds, well below the timeout after which safekeepers consider a proxy dead."""
    interval_s = seconds(written)
    if interval_s > HEARTBEAT_TIMEOUT_S / 2:
        raise ValueError(
            f"{written!r} is too long: after {HEARTBEAT_TIMEOUT_S:g} s without a heartbeat a proxy counts as dead"
        )
    return interval_s


@dataclass(frozen=True, kw_only=True)
class MembersConfig:
    """The settings of a command that connects to the safekeepers and not to PostgreSQL."""

    safekeepers: tuple[tuple[int, Address], ...] = option(
        "The safekeepers, separated by commas",
        parse=safekeeper_addresses,
        metavar="ID=HOST:PORT,...",
    )
    tls_ca: Path | None = file_option(
        "CAs that sign the safekeepers' certificates; if set, safekeepers are connected to over TLS only",
        is_key_only=True,
    )
    tls_cert: Path | None = file_option(
        "TLS certificate with its chain, in PEM format: for safekeepers that require one, and http_tls",
        is_key_only=True,
    )
    tls_key: Path | None = file_option("The private key of tls_cert, without a passphrase", is_key_only=True)
    secret_file: Path | None = file_option(
        "File of the secret that proxies and safekeepers prove to each other; or set WALPROXY_SECRET"
    )
    secret: Secret | None = secret_option()


@dataclass(frozen=True, kw_only=True)
class ConnectionConfig(MembersConfig):
    """The settings of a command that connects to the safekeepers and to PostgreSQL."""

    primary: str = option(
        "How to connect to PostgreSQL: a libpq connection string or URI, also with several hosts; PG* variables apply",
        parse=text,
        metavar="CONNINFO",
    )
    slot: str = key(
        "Physical replication slot; created if missing", parse=slot_name, default="walproxy", metavar="NAME"
    )
    application_name: str = key(
        "Name of this proxy in synchronous_standby_names",
        parse=parse_application_name,
        default="walproxy",
        metavar="NAME",
    )
    connect_timeout: float = key(
        "Timeout in seconds for connecting to PostgreSQL, and for its reply to a command",
        parse=seconds,
        default="5",
        metavar="SECONDS",
    )


@dataclass(frozen=True, kw_only=True)
class ProxyConfig(ConnectionConfig):
    """The settings of `walproxy run`."""

    http_listen: Address = option(
        "Address on which to serve /status, /metrics, /healthz and /readyz, to all clients that can connect",
        parse=address,
        default=DEFAULT_HTTP,
        metavar="HOST:PORT",
        old_name="http",
    )
    window_size: int = key(
        "Memory for WAL that safekeepers still need; while uncommitted WAL fills it, the proxy reads no more WAL",
        parse=memory_or_rate,
        default="64MiB",
        metavar="SIZE",
    )
    catchup_rate: int = key(
        "Bytes per second at which WAL of one safekeeper is sent to a lagging one",
        parse=memory_or_rate,
        default="64MiB",
        metavar="SIZE",
    )
    remote_apply_standbys: ApplyRule = key(
        "The standbys that remote_apply waits for: NAME, ... (all of them) or ANY COUNT (NAME, ...) or ANY COUNT (*); "
        "empty: remote_apply behaves like on",
        parse=parse_apply_rule,
        default="",
        metavar="RULE",
        reloadable=True,
    )
    heartbeat_interval: float = key(
        "Seconds between heartbeats to an idle safekeeper", parse=heartbeat_seconds, default="0.25", metavar="SECONDS"
    )
    response_timeout: float = key(
        "Seconds without a reply after which the proxy reconnects to a safekeeper",
        parse=seconds,
        default="5",
        metavar="SECONDS",
    )
    primary_timeout: float = key(
        "Seconds without data after which the proxy reconnects to the primary",
        parse=seconds,
        default="10",
        metavar="SECONDS",
    )
    takeover: bool = option(
        "Take over from another proxy although it is alive; applies once per process",
        parse=yes_or_no,
        default="false",
        metavar="BOOL",
    )
    allow_data_loss: bool = option(
        "Follow a primary whose timeline lacks WAL that may have been acknowledged: that WAL is lost",
        parse=yes_or_no,
        default="false",
        metavar="BOOL",
    )
    allow_unverified_primary: bool = option(
        "Accept a primary that no longer has the WAL to compare with the quorum's log; only safe if it wrote that log",
        parse=yes_or_no,
        default="false",
        metavar="BOOL",
    )
    bootstrap: bool = option(
        "Begin a new cluster on empty safekeepers although the replication slot exists already",
        parse=yes_or_no,
        default="false",
        metavar="BOOL",
    )
    replace_lost: bool = key(
        "Replace a member by itself when its safekeeper comes back with another, empty data folder",
        parse=yes_or_no,
        default="false",
        metavar="BOOL",
    )
    tail_after: float = key(
        "Seconds without a primary after which the proxy makes known where the quorum's log ends, 0 for never",
        parse=seconds_or_never,
        default="0",
        metavar="SECONDS",
    )
    slow_commit: float = key(
        "Seconds that a commit waits until the proxy reads which transactions and sessions wait",
        parse=seconds,
        default="1",
        metavar="SECONDS",
        reloadable=True,
    )
    commit_timeout: float = key(
        "Seconds that a commit waits until on_commit_timeout applies, 0 for never",
        parse=seconds_or_never,
        default="0",
        metavar="SECONDS",
        reloadable=True,
    )
    on_commit_timeout: str = key(
        "What happens to a commit that waits too long: warn; terminate its session; detach: report success without a "
        "quorum, which can lose it; fence: accept no new writes meanwhile",
        parse=one_of(*ACTIONS),
        default="warn",
        metavar="ACTION",
        reloadable=True,
    )
    show_literals: bool = key(
        "Show statements of waiting sessions with their literals in /limbo and on the page: passwords, personal data",
        parse=yes_or_no,
        default="false",
        metavar="BOOL",
        reloadable=True,
    )
    drain_timeout: float = key(
        "Seconds that a shutdown waits for the quorum to acknowledge the last WAL",
        parse=seconds,
        default="3",
        metavar="SECONDS",
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
