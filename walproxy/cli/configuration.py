"""The cluster's file, as the commands read it, and the options that lead to it; see safekeeper/base/cluster_file.py.

What the file does not have follows from what it has: the connection string of the primary from the addresses of the
servers, that of standbys from the listeners of the safekeepers, the URL of the proxy from the machine. Certificates and
secrets are in the file or in the environment: an operator's command has no options for them.
"""

import functools
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click

from safekeeper.base.cluster_file import ClusterFile, Role, find_cluster_file, is_host
from safekeeper.base.errors import ConfigurationError
from safekeeper.base.settings import (
    Address,
    Given,
    address,
    config_option,
    folder,
    load,
    option,
    optional,
    options_of,
    text,
    yes_or_no,
)
from safekeeper.net.tls import ClientTls
from safekeeper.process.config import SAFEKEEPER
from safekeeper.process.credential_files import http_password
from walproxy.agent.config import AgentConfig
from walproxy.proxy.config import DEFAULT_HTTP, ENVIRONMENT_PREFIX, ConnectionConfig, MembersConfig, ProxyConfig
from walproxy.proxy.status_client import Access, NoAnswer
from walproxy.recovery.config import RESTORE

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Settings = TypeVar("_Settings")
_Result = TypeVar("_Result")

PROXY: Final = Role("proxy", ProxyConfig, absent=("safekeepers",))
AGENT: Final = Role("agent", AgentConfig, machines="servers", machine_key="name", absent=("safekeepers",))
PIPELINE: Final = Role(
    "pipeline",
    None,
    keys=("max_bytes_per_trigger", "checkpoint", "drain_timeout", "cores", "memory", "spark_conf"),
)
"""Those of `walproxy pipeline run`."""

APPLY: Final = Role(
    "apply",
    None,
    keys=(
        *("text_column", "arrays", "max_bytes", "memory", "keep", "copy_sessions", "copy_range_size"),
        *("on_bad_value", "max_retained", "http_allow", "http_hosts", "http_password_file"),
    ),
)
"""Those of `walproxy pipeline apply`."""

ROLES: Final = (SAFEKEEPER, PROXY, AGENT, RESTORE, PIPELINE, APPLY)
_WILDCARDS = ("0.0.0.0", "::")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def open_cluster_file(config: Path | None) -> ClusterFile | None:
    """Return the cluster's file, checked as a whole, None if there is none.

    Args:
        config: the value of --config.
    """
    path = find_cluster_file(config)
    return ClusterFile(path, ROLES) if path is not None else None


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
        listen = file.values(SAFEKEEPER, name).get("pg_listen")
        if listen is None:
            return []
        found.append(Address(place.host, _address(listen).port))
    return found


def _add_hosts(found: dict[str, Given], name: str, places: Sequence[Address], source: str, default: str) -> None:
    """Add hosts and ports to a connection string of the file, unless it names some itself."""
    from walproxy.postgres.hosts import with_hosts

    given = found.get(name, Given(source, default))
    if isinstance(given.value, str):  # If not, its parser refuses it.
        found[name] = Given(given.place, with_hosts(given.value, [(each.host, each.port) for each in places]))


def _address(given: Given) -> Address:
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


@dataclass(frozen=True)
class _PageConfig:
    """What a command needs for the pages of a proxy."""

    url: str | None = option("URL of the proxy's HTTP listener", parse=optional(text), default=None)
    tls_ca: Path | None = option("CAs that sign the certificate of an https URL", parse=optional(folder), default=None)
    http_password_file: Path | None = option("File of the password", parse=optional(folder), default=None)


class ProxyPages(NamedTuple):
    """Where the pages of the proxy are, and what a client needs for them.

    Attributes:
        urls: of its HTTP listener; with agents, one for each server: the proxy runs beside the primary.
    """

    urls: tuple[str, ...]
    access: Access

    def fetch(self, fetch: Callable[[str, Access], _Result]) -> _Result:
        """Return what `fetch` returns for the first URL that replies.

        Raises:
            NoAnswer: none does.
        """
        problems = []
        for url in self.urls:
            try:
                return fetch(url, self.access)
            except NoAnswer as error:
                problems.append(str(error))
        if len(problems) == 1:
            raise NoAnswer(problems[0])
        raise NoAnswer(f"no reply from a proxy: {'; '.join(problems)}")


def proxy_options(command: _Command) -> _Command:
    """Give a command --url and --config. `proxy_pages` reads them."""
    url = click.option(
        "--url",
        help=f"URL of the proxy's HTTP listener; by default as in the cluster's file, or http://{DEFAULT_HTTP}. "
        f"[{ENVIRONMENT_PREFIX}_URL]",
    )
    return url(config_option(command))


def proxy_pages(url: str | None, config: Path | None) -> ProxyPages:
    """Return where a command reads the proxy's pages.

    Raises:
        ConfigurationError: the file, the certificates or the password cannot be used.
    """
    file = open_cluster_file(config)
    found = file.values(PROXY) if file is not None else {}
    settings = load(_PageConfig, ENVIRONMENT_PREFIX, command_line={"url": url}, environment=os.environ, file=found)
    if settings.url is not None:
        urls: tuple[str, ...] = (settings.url,)
    else:
        places = _proxy_addresses(file, socket.gethostname()) if file is not None else [address(DEFAULT_HTTP)]
        scheme = "https" if yes_or_no(found.get("http_tls", Given("", False)).value) else "http"
        urls = tuple(f"{scheme}://{place}" for place in places)
    needs_tls = settings.tls_ca is not None and any(each.startswith("https:") for each in urls)
    password = http_password(settings.http_password_file)
    tls = ClientTls(settings.tls_ca).context if needs_tls and settings.tls_ca is not None else None
    return ProxyPages(urls, Access(tls, password.value if password is not None else None))


def _proxy_addresses(file: ClusterFile, host_name: str) -> list[Address]:
    """Return where the proxy may serve HTTP, as seen from this host; this host's own is the first."""
    if not file.has(AGENT.section):
        listen = _address(file.values(PROXY).get("http_listen", Given("", DEFAULT_HTTP)))
        return [Address("127.0.0.1", listen.port) if listen.host in _WILDCARDS else listen]
    default = options_of(AgentConfig)["proxy_http"].default
    here, elsewhere = list[Address](), list[Address]()
    for name, place in file.addresses(AGENT.machines).items():
        listen = _address(file.values(AGENT, name).get("proxy_http", Given("", default)))
        is_here = is_host(name, host_name) or is_host(place.host, host_name) or place.host in _LOOPBACK
        if listen.host in _WILDCARDS:
            listen = Address("127.0.0.1" if is_here else place.host, listen.port)
        if is_here:
            here.append(listen)
        elif listen.host not in _LOOPBACK:
            elsewhere.append(listen)
    found = list(dict.fromkeys([*here, *elsewhere]))
    if not found:
        raise ConfigurationError(
            f"{file.path}: no server is on the host {host_name}, and their proxies serve HTTP on loopback only: give "
            "--url, or set proxy_http in [agent]"
        )
    return found
