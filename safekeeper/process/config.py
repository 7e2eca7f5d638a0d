"""The settings of a safekeeper. Read by safekeeper/base/settings.py; the environment's prefix is SAFEKEEPER_."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from safekeeper.base.cluster_file import ClusterFile, Role, find_cluster_file
from safekeeper.base.logs import LOG_FORMATS, LOG_LEVELS
from safekeeper.base.networks import Networks
from safekeeper.base.settings import (
    Address,
    Given,
    Secret,
    address,
    file_option,
    folder,
    http_hosts_option,
    http_tls_option,
    key,
    key_values,
    load,
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
COMPRESSIONS = ("none", "zstd")


@dataclass(frozen=True)
class SafekeeperConfig:
    """The settings of `safekeeper run`."""

    id: int = option(
        "Number of this safekeeper, as in --safekeepers of walproxy",
        parse=positive_integer,
        metavar="NUMBER",
    )
    data_dir: Path = option(
        "Folder of the WAL and the control file; created if it does not exist", parse=folder, metavar="DIR"
    )
    proposer_listen: Address = option(
        "Address on which to accept proxies; port 0 selects a free port",
        parse=address,
        default="127.0.0.1:5454",
        metavar="HOST:PORT",
        old_name="listen",
    )
    http_listen: Address = option(
        "Address on which to serve /status, /metrics, /healthz and /readyz, to all clients that can connect",
        parse=address,
        default="127.0.0.1:7676",
        metavar="HOST:PORT",
        old_name="http",
    )
    pg_listen: Address | None = option(
        "Address on which to accept standbys and pg_receivewal, for committed WAL; off by default",
        parse=optional(address),
        default=None,
        metavar="HOST:PORT",
    )
    log_level: str = key(
        "Lowest level to log: debug, info, warning or error",
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
    checkpoint_interval: float = key(
        "Seconds between checkpoints, which write the positions that may lag on disk",
        parse=seconds,
        default="5",
        metavar="SECONDS",
    )
    disk_free_warning: int = key(
        "Warn when the disk has less free space than this",
        parse=size_bytes,
        default="1GiB",
        metavar="SIZE",
        reloadable=True,
    )
    connections_max: int = key(
        "Maximum of authenticated connections of proxies; above it the one that is idle for longest is closed",
        parse=positive_integer,
        default="64",
        metavar="NUMBER",
    )
    greeting_timeout: float = key(
        "Seconds after which a connection without a greeting is closed",
        parse=seconds,
        default="5",
        metavar="SECONDS",
    )
    idle_timeout: float = key(
        "Seconds without data after which a connection is closed", parse=seconds, default="60", metavar="SECONDS"
    )
    pg_connections_max: int = key(
        "Maximum of authenticated replication clients; above it they are refused",
        parse=positive_integer,
        default="100",
        metavar="NUMBER",
    )
    pg_timeout: float = key(
        "Seconds without data after which a streaming replication client is closed, like wal_sender_timeout",
        parse=seconds,
        default="60",
        metavar="SECONDS",
    )
    slots_max: int = key("Maximum number of replication slots", parse=positive_integer, default="64", metavar="NUMBER")
    slot_idle_timeout: float | None = key(
        "Seconds after which a replication slot that no client uses is dropped; never by default",
        parse=optional(seconds),
        default=None,
        metavar="SECONDS",
        reloadable=True,
    )
    archive: str | None = option(
        "Where to archive committed WAL: a folder, or a URL of s3://, gs:// or az://; off by default",
        parse=optional(text),
        default=None,
        metavar="URL",
    )
    archive_options: Mapping[str, str] = key(
        "Settings of the archive's store, by obstore's names, e.g. endpoint and region; store credentials rather "
        "where the store's own tools read them",
        parse=key_values,
        default="",
        metavar="KEY=VALUE,...",
    )
    archive_compression: str = key(
        "Compression of archived WAL: none or zstd", parse=one_of(*COMPRESSIONS), default="none", metavar="NAME"
    )
    archive_partial_interval: float = key(
        "Seconds between uploads of the open segment: the archive alone lags by at most this time",
        parse=seconds,
        default="5",
        metavar="SECONDS",
        reloadable=True,
    )
    archive_timeout: float = key(
        "Seconds after which a request to the archive fails without a reply",
        parse=seconds,
        default="30",
        metavar="SECONDS",
    )
    wal_keep: int = key(
        "WAL to retain even if every member and the archive have it and no reader needs it",
        parse=size_bytes,
        default="1GiB",
        metavar="SIZE",
        reloadable=True,
    )
    wal_limit: int = key(
        "Limit of retained WAL: above it archived WAL is removed even if a member, a slot or a reader needs it, and "
        "warnings are logged if it is not archived; without an archive WAL is retained until none of them needs it",
        parse=size_bytes,
        default="16GiB",
        metavar="SIZE",
        reloadable=True,
    )
    drain_timeout: float = key(
        "Seconds for which a shutdown waits for the disk, and for the archive",
        parse=seconds,
        default="20",
        metavar="SECONDS",
    )
    tls_cert: Path | None = file_option(
        "TLS certificate with its chain, in PEM format; the proposer and replication listeners then require TLS",
        is_key_only=True,
    )
    tls_key: Path | None = file_option("The private key of tls_cert, without a passphrase", is_key_only=True)
    tls_client_ca: Path | None = file_option(
        "CAs, one of which must have signed a proxy's certificate; by default none is required", is_key_only=True
    )
    tls_ca: Path | None = file_option(
        "CAs, one of which must have signed the certificate of a safekeeper from which this one pulls WAL",
        is_key_only=True,
    )
    secret_file: Path | None = file_option(
        "File of the secret that proxies and safekeepers prove to each other; or set SAFEKEEPER_SECRET"
    )
    secret: Secret | None = secret_option()
    allow: Networks | None = networks_option("Networks from which proxies are accepted, separated by commas")
    pg_users: Path | None = file_option(
        "File of the users of the replication listener, written with safekeeper user", is_key_only=True
    )
    pg_client_ca: Path | None = file_option(
        "CAs, one of which must have signed a replication client's certificate; its CN must be the user name",
        is_key_only=True,
    )
    pg_allow: Networks | None = networks_option(
        "Networks from which replication clients are accepted, separated by commas"
    )
    http_tls: bool = http_tls_option()
    http_allow: Networks | None = networks_option("Networks from which HTTP is accepted, separated by commas")
    http_hosts: frozenset[str] = http_hosts_option()
    http_password_file: Path | None = file_option(
        "File of the password for HTTP: basic authentication, with any user name; none is required by default",
        is_key_only=True,
    )


SAFEKEEPER: Final = Role("safekeeper", SafekeeperConfig, machines="safekeepers", machine_key="id")
"""What a safekeeper reads in the cluster's file."""


def load_config(
    command_line: Mapping[str, Any], environment: Mapping[str, str], given_file: Path | None
) -> SafekeeperConfig:
    """Return the settings of this machine's safekeeper; see `load`.

    Args:
        given_file: the cluster's file, None for the default one.
    """
    path, found = find_cluster_file(given_file), dict[str, Given]()
    if path is not None:
        file = ClusterFile(path, (SAFEKEEPER,))
        own_id = command_line.get("id") or environment.get(f"{ENVIRONMENT_PREFIX}_ID")
        machine = file.machine(SAFEKEEPER, own_id, socket.gethostname())
        found = file.values(SAFEKEEPER, machine)
        if machine is not None:
            place = f"{path}: safekeepers.{machine}"
            found["id"] = Given(place, machine)
            found.setdefault("proposer_listen", Given(place, str(file.addresses("safekeepers")[machine])))
    return load(SafekeeperConfig, ENVIRONMENT_PREFIX, command_line=command_line, environment=environment, file=found)
