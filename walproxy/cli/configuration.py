"""The cluster's file, as the commands read it, and the options that lead to it; see safekeeper/base/cluster_file.py.

What the file does not have follows from what it has: the connection string of the primary from the addresses of the
servers, that of standbys from the listeners of the safekeepers, the URL of the proxy from the machine
(walproxy/cli/proxy_pages.py). Certificates and secrets are in the file or in the environment: an operator's command has
no options for them.
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
from walproxy.proxy.config import ENVIRONMENT_PREFIX, ConnectionConfig, MembersConfig, ProxyConfig
from walproxy.recovery.config import RESTORE

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Settings = TypeVar("_Settings")
_Result = TypeVar("_Result")

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
            "http_allow",
            "http_hosts",
            "http_password_file",
        ),
    ),
)
"""Those of `walproxy pipeline apply`."""


def roles() -> tuple[Role, ...]:
    """Return what all programs read in the cluster's file."""
    return (_safekeeper(), PROXY, AGENT, RESTORE, PIPELINE, APPLY)


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
    return _load(ProxyConfig, command_line, config)


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
    """Return the settings with which an operator's command reaches the cluster: some of those of `walproxy run`."""
    return _load(settings_type, command_line, config)


def _load(settings_type: type[_Settings], command_line: Mapping[str, Any], config: Path | None) -> _Settings:
    file, found = open_cluster_file(config), dict[str, Given]()
    if file is not None:
        found = {**file.values(PROXY), **_members(file)}
        servers = list(file.addresses("servers").values())
        if servers and "primary" in options_of(settings_type):
            _add_hosts(found, "primary", servers, f"{file.path}: servers", "")
    return load(settings_type, ENVIRONMENT_PREFIX, command_line=command_line, environment=os.environ, file=found)


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


def connection_options(command: _Command) -> _Command:
    """Give a command --safekeepers and --config. `connected` reads them."""
    declared = options_of(MembersConfig)["safekeepers"]
    safekeepers = click.option(
        "--safekeepers",
        metavar=declared.metavar,
        help=f"{declared.help}; by default those of the cluster's file. [{ENVIRONMENT_PREFIX}_SAFEKEEPERS]",
    )
    return safekeepers(config_option(command))


def connected(command: Callable[..., _Result]) -> Callable[..., _Result]:
    """Give a command `connection_options`; it receives what they lead to as `connection`, a MembersConfig."""

    @connection_options
    @functools.wraps(command)
    def with_connection(config: Path | None, safekeepers: str | None, **options: Any) -> _Result:
        connection = load_connection(MembersConfig, {"safekeepers": safekeepers}, config)
        return command(connection=connection, **options)

    return with_connection


def server_options(command: _Command) -> _Command:
    """Give a command --primary, --safekeepers and --config. `load_connection` reads them."""
    primary = click.option(
        "--primary",
        metavar="CONNINFO",
        help=f"{options_of(ConnectionConfig)['primary'].help}. [{ENVIRONMENT_PREFIX}_PRIMARY]",
    )
    return primary(connection_options(command))
