"""What can be set on a safekeeper. Read by safekeeper/base/settings.py; the environment's prefix is SAFEKEEPER_."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safekeeper.base.networks import Networks
from safekeeper.base.settings import (
    Address,
    Secret,
    address,
    file_option,
    folder,
    http_tls_option,
    key_values,
    networks_option,
    one_of,
    option,
    optional,
    positive_integer,
    seconds,
    secret_option,
    size_bytes,
    text,
)

ENVIRONMENT_PREFIX = "SAFEKEEPER"
LOG_LEVELS = ("debug", "info", "warning", "error")
COMPRESSIONS = ("none", "zstd")


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
    proposer_listen: Address = option(
        "Where proxies connect; port 0 takes any free one",
        parse=address,
        default="127.0.0.1:5454",
        metavar="HOST:PORT",
        old_name="listen",
    )
    http_listen: Address = option(
        "Where /status, /metrics, /healthz and /readyz are served; anybody who reaches it may read it",
        parse=address,
        default="127.0.0.1:7676",
        metavar="HOST:PORT",
        old_name="http",
    )
    pg_listen: Address | None = option(
        "Where standbys and pg_receivewal stream committed WAL; without it they cannot",
        parse=optional(address),
        default=None,
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
        "Connections of proxies that have proved who they are; beyond it the one silent for longest is closed",
        parse=positive_integer,
        default="64",
        metavar="NUMBER",
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
    pg_connections_max: int = option(
        "Connections of replication clients that have logged in; beyond it they are refused",
        parse=positive_integer,
        default="100",
        metavar="NUMBER",
    )
    pg_timeout: float = option(
        "Seconds of silence until a replication client that streams is closed; it is asked for a word at half of it",
        parse=seconds,
        default="60",
        metavar="SECONDS",
    )
    slots_max: int = option(
        "Replication slots that there may be", parse=positive_integer, default="64", metavar="NUMBER"
    )
    slot_idle_timeout: float | None = option(
        "Seconds after which a replication slot that no client uses is dropped; without it never",
        parse=optional(seconds),
        default=None,
        metavar="SECONDS",
        reloadable=True,
    )
    archive: str | None = option(
        "Where committed WAL is archived: a folder, or s3://, gs:// or az:// and what follows; without it nowhere",
        parse=optional(text),
        default=None,
        metavar="URL",
    )
    archive_options: Mapping[str, str] = option(
        "Settings of the archive's store, as obstore calls them, e.g. endpoint and region; credentials rather come "
        "from where the store's own tools take them",
        parse=key_values,
        default="",
        metavar="KEY=VALUE,...",
    )
    archive_compression: str = option(
        "How archived WAL is compressed: none or zstd", parse=one_of(*COMPRESSIONS), default="none", metavar="NAME"
    )
    archive_partial_interval: float = option(
        "Seconds between copies of the open segment into the archive: the archive alone is at most so far behind",
        parse=seconds,
        default="5",
        metavar="SECONDS",
        reloadable=True,
    )
    archive_timeout: float = option(
        "Seconds until a request that the archive does not answer is given up",
        parse=seconds,
        default="30",
        metavar="SECONDS",
    )
    wal_keep: int = option(
        "WAL that is kept although nobody needs it: every member and the archive have it",
        parse=size_bytes,
        default="1GiB",
        metavar="SIZE",
        reloadable=True,
    )
    wal_limit: int = option(
        "Room for WAL: beyond it archived WAL goes even if a member, a slot or a reader still needs it, and warnings "
        "are logged if it is not archived; without an archive WAL is kept as long as somebody needs it",
        parse=size_bytes,
        default="16GiB",
        metavar="SIZE",
        reloadable=True,
    )
    drain_timeout: float = option(
        "Seconds that a shutdown waits for the disk, and for the archive",
        parse=seconds,
        default="20",
        metavar="SECONDS",
    )
    tls_cert: Path | None = file_option(
        "Our TLS certificate, with its chain, in PEM format; with it the listeners take TLS connections only"
    )
    tls_key: Path | None = file_option("The private key of --tls-cert, without a passphrase")
    tls_client_ca: Path | None = file_option(
        "CAs, one of which must vouch for a proxy's certificate; without it none is demanded"
    )
    secret_file: Path | None = file_option(
        "File of the secret that proxies and safekeepers prove to each other; or set SAFEKEEPER_SECRET"
    )
    secret: Secret | None = secret_option()
    allow: Networks | None = networks_option("Networks that proxies may come from, separated by commas")
    pg_users: Path | None = file_option("File of the users of the replication listener, made with safekeeper user")
    pg_client_ca: Path | None = file_option(
        "CAs, one of which must vouch for a replication client's certificate, whose CN must be the user's name"
    )
    pg_allow: Networks | None = networks_option("Networks that replication clients may come from, separated by commas")
    http_tls: bool = http_tls_option()
    http_allow: Networks | None = networks_option("Networks that may read the HTTP pages, separated by commas")
