"""The cluster's file, as the commands read it, and the options that lead to it; see safekeeper/base/cluster_file.py.

What the file does not have follows from what it has: the connection string of the primary from the addresses of the
servers, that of standbys from the listeners of the safekeepers, the URL of the proxy from the machine
(walproxy/cli/proxy_pages.py). Safekeepers, certificates and secrets are in the file or in the environment: the commands
of an operator have no options for them.
"""

import functools
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from safekeeper.base.cluster_file import ClusterFile, Role, find_cluster_file
from safekeeper.base.errors import ConfigurationError
from safekeeper.base.settings import (
    Address,
    Given,
    address,
    config_option,
    load,
    options_of,
)
from walproxy.agent.config import AgentConfig
from walproxy.cli.check_config import CHECK
from walproxy.proxy.config import ENVIRONMENT_PREFIX, ConnectionConfig, MembersConfig, ProxyConfig
from walproxy.recovery.config import RESTORE, ArchiveConfig

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Settings = TypeVar("_Settings")
_Result = TypeVar("_Result")
_SAFEKEEPERS: Final = f"{ENVIRONMENT_PREFIX}_SAFEKEEPERS"

PROXY: Final = Role("proxy", ProxyConfig, absent=("safekeepers",))
AGENT: Final = Role("agent", AgentConfig, machines="servers", machine_key="name", absent=("safekeepers",))
PIPELINE: Final = Role(
    "pipeline",
    None,
    keys=(
        *(
            "interval",
            "max_bytes_per_trigger",
            "checkpoint",
            "drain_timeout",
            "cores",
            "memory",
            "master",
            "spark_conf",
        ),
        *("archive_options", "lake_options", "iceberg_catalog", "query_cores", "query_memory"),
        *("target_size", "orphans_after"),
    ),
)
"""Those of `walproxy pipeline`, but for `apply`."""

APPLY: Final = Role(
    "apply",
    None,
    keys=(
        *("interval", "text_column", "arrays", "max_bytes", "memory", "keep", "copy_sessions", "copy_range_size"),
        *(
            "lake_options",
            "iceberg_catalog",
            "on_bad_value",
            "max_retained",
            "http_tls",
            "tls_cert",
            "tls_key",
            "http_allow",
            "http_hosts",
            "http_password_file",
        ),
    ),
)
"""Those of `walproxy pipeline apply`."""


def roles() -> tuple[Role, ...]:
    """Return what all programs read in the cluster's file."""
    return (_safekeeper(), PROXY, AGENT, RESTORE, CHECK, PIPELINE, APPLY)


def _safekeeper() -> Role:
    from safekeeper.process.config import SAFEKEEPER  # Not imported by a proxy that has no file.

    return SAFEKEEPER


def open_cluster_file(config: Path | None) -> ClusterFile | None:
    """Return the cluster's file, checked as a whole, None if there is none.

    Args:
        config: the value of --config.
    """
    path = find_cluster_file(config)
    return ClusterFile(path, roles()) if path is not None else None


def load_proxy(command_line: Mapping[str, Any], config: Path | None) -> ProxyConfig:
    """Return the settings of `walproxy run`."""
    found = _in_file(ProxyConfig, config)
    return load(ProxyConfig, ENVIRONMENT_PREFIX, command_line=command_line, environment=os.environ, file=found)


def load_agent(command_line: Mapping[str, Any], config: Path | None) -> AgentConfig:
    """Return the settings of this machine's agent."""
    file, found = open_cluster_file(config), dict[str, Given]()
    if file is not None:
        own_name = command_line.get("name") or os.environ.get(f"{ENVIRONMENT_PREFIX}_NAME")
        machine = file.machine(AGENT, own_name, socket.gethostname())
        found = {**file.values(AGENT, machine), **_members(file)}
        if machine is not None:
            found["name"] = Given(f"{file.path}: servers.{machine}", machine)
        readers = _replication_listeners(file)
        if readers:
            _add_hosts(found, "standby_conninfo", readers, f"{file.path}: safekeepers", "user=postgres")
    return load(AgentConfig, ENVIRONMENT_PREFIX, command_line=command_line, environment=os.environ, file=found)


def load_connection(settings_type: type[_Settings], command_line: Mapping[str, Any], config: Path | None) -> _Settings:
    """Return the settings with which an operator's command reaches the cluster: some of those of `walproxy run`.

    Raises:
        ConfigurationError: one is missing or not valid.
    """
    found = _in_file(settings_type, config)
    if "safekeepers" not in found and _SAFEKEEPERS not in os.environ:
        raise ConfigurationError(
            f"no safekeepers: write [safekeepers] into the cluster's file (--config), or set {_SAFEKEEPERS} to "
            "ID=HOST:PORT,..."
        )
    return load(settings_type, ENVIRONMENT_PREFIX, command_line=command_line, environment=os.environ, file=found)


def _in_file(settings_type: type, config: Path | None) -> dict[str, Given]:
    """Return what the cluster's file has for a proxy, or a part of its settings."""
    file = open_cluster_file(config)
    if file is None:
        return {}
    found = {**file.values(PROXY), **_members(file)}
    servers = list(file.addresses("servers").values())
    if servers and "primary" in options_of(settings_type):
        _add_hosts(found, "primary", servers, f"{file.path}: servers", "")
    return found


def _members(file: ClusterFile) -> dict[str, Given]:
    """Return the option of the safekeepers, as the file lists them."""
    places = {name: str(place) for name, place in file.addresses("safekeepers").items()}
    return {"safekeepers": Given(f"{file.path}: safekeepers", places)} if places else {}


def _replication_listeners(file: ClusterFile) -> list[Address]:
    """Return where the safekeepers serve standbys; empty unless all of them do."""
    found = []
    for name, place in file.addresses("safekeepers").items():
        listen = file.values(_safekeeper(), name).get("pg_listen")
        if listen is None:
            return []
        found.append(Address(place.host, address_of(listen).port))
    return found


def _add_hosts(found: dict[str, Given], name: str, places: Sequence[Address], source: str, default: str) -> None:
    """Add hosts and ports to a connection string of the file, unless it names some itself."""
    from walproxy.postgres.hosts import with_hosts

    given = found.get(name, Given(source, default))
    if isinstance(given.value, str):  # If not, its parser refuses it.
        found[name] = Given(given.place, with_hosts(given.value, [(each.host, each.port) for each in places]))


def address_of(given: Given) -> Address:
    """Return an address of the file.

    Raises:
        ConfigurationError: it is not valid; the message begins with its place.
    """
    try:
        return address(given.value)
    except ValueError as error:
        raise ConfigurationError(f"{given.place}: {error}") from error


def connected(command: Callable[..., _Result]) -> Callable[..., _Result]:
    """Give a command --config; it receives what that leads to as `connection`, a MembersConfig."""

    @config_option
    @functools.wraps(command)
    def with_connection(config: Path | None, **options: Any) -> _Result:
        return command(connection=load_connection(MembersConfig, {}, config), **options)

    return with_connection


def archive_option(command: _Command) -> _Command:
    """Give a command --archive and --config. `load_sources` reads them, as an ArchiveConfig."""
    declared = options_of(ArchiveConfig)["archive"]
    archive = click.option(
        "--archive", metavar=declared.metavar, help=f"{declared.help}. [{ENVIRONMENT_PREFIX}_ARCHIVE]"
    )
    return archive(config_option(command))


def server_options(command: _Command) -> _Command:
    """Give a command --primary and --config. `load_connection` reads them."""
    primary = click.option(
        "--primary",
        metavar="CONNINFO",
        help=f"{options_of(ConnectionConfig)['primary'].help}. [{ENVIRONMENT_PREFIX}_PRIMARY]",
    )
    return primary(config_option(command))
