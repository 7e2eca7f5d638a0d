"""Where the pages of the proxy are, for the commands that show them: by --url, or as the cluster's file has it."""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from safekeeper.base.cluster_file import ClusterFile, is_host
from safekeeper.base.errors import ConfigurationError, WalproxyError
from safekeeper.base.settings import (
    Address,
    Given,
    address,
    config_option,
    folder,
    key,
    load,
    option,
    optional,
    options_of,
    text,
    yes_or_no,
)
from safekeeper.net.tls import ClientTls
from safekeeper.process.credential_files import http_password
from walproxy.agent.config import AgentConfig
from walproxy.cli.configuration import AGENT, PROXY, address_of, open_cluster_file
from walproxy.proxy.config import DEFAULT_HTTP, ENVIRONMENT_PREFIX
from walproxy.proxy.status_client import Access, NoAnswer, fetch_status

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Result = TypeVar("_Result")
_WILDCARDS = ("0.0.0.0", "::")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class _PageConfig:
    """What a command needs for the pages of a proxy."""

    url: str | None = option("URL of the proxy's HTTP listener", parse=optional(text), default=None)
    http_tls: bool = key("Whether the proxy serves HTTPS", parse=yes_or_no, default=False)
    tls_ca: Path | None = option("CAs that sign the certificate of an https URL", parse=optional(folder), default=None)
    http_password_file: Path | None = option("File of the password", parse=optional(folder), default=None)


class ProxyPages(NamedTuple):
    """Where the pages of the proxy are, and what a client needs for them.

    Attributes:
        urls: of its HTTP listener; with agents, one for each server: beside a standby a proxy waits.
    """

    urls: tuple[str, ...]
    access: Access

    def fetch(self, fetch: Callable[[str, Access], _Result]) -> _Result:
        """Return what `fetch` returns for the proxy that streams, or else for the first URL that replies.

        Raises:
            NoAnswer: none does.
        """
        problems = []
        streaming = self._streaming() if len(self.urls) > 1 else None
        for url in sorted(self.urls, key=lambda each: each != streaming):
            try:
                return fetch(url, self.access)
            except NoAnswer as error:
                problems.append(str(error))
        if len(problems) == 1:
            raise NoAnswer(problems[0])
        raise NoAnswer(f"no reply from a proxy: {'; '.join(problems)}")

    def _streaming(self) -> str | None:
        for url in self.urls:
            try:
                if fetch_status(url, self.access).state == "streaming":
                    return url
            except WalproxyError:
                continue  # `fetch` reports it, if no proxy streams.
        return None


url_option = click.option(
    "--url",
    help=f"URL of the proxy's HTTP listener; by default as in the cluster's file, or http://{DEFAULT_HTTP}. "
    f"[{ENVIRONMENT_PREFIX}_URL]",
)


def proxy_options(command: _Command) -> _Command:
    """Give a command --url and --config. `proxy_pages` reads them."""
    return url_option(config_option(command))


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
        scheme = "https" if settings.http_tls else "http"
        urls = tuple(f"{scheme}://{place}" for place in places)
    needs_tls = settings.tls_ca is not None and any(each.startswith("https:") for each in urls)
    password = http_password(settings.http_password_file)
    tls = ClientTls(settings.tls_ca).context if needs_tls and settings.tls_ca is not None else None
    return ProxyPages(urls, Access(tls, password.value if password is not None else None))


def _proxy_addresses(file: ClusterFile, host_name: str) -> list[Address]:
    """Return where the proxy may serve HTTP, as seen from this host; this host's own is the first."""
    if not file.has(AGENT.section):
        listen = address_of(file.values(PROXY).get("http_listen", Given("", DEFAULT_HTTP)))
        return [Address("127.0.0.1", listen.port) if listen.host in _WILDCARDS else listen]
    default = options_of(AgentConfig)["proxy_http"].default
    here, elsewhere = list[Address](), list[Address]()
    for name, place in file.addresses(AGENT.machines).items():
        listen = address_of(file.values(AGENT, name).get("proxy_http", Given("", default)))
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
