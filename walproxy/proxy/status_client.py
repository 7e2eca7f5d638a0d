"""Fetch the /status of a proxy over HTTP."""

import base64
import http.client
import json
import re
import ssl
import urllib.error
import urllib.request
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from safekeeper.base.errors import ConfigurationError, WalproxyError
from safekeeper.net.tls import describe_failure
from walproxy.proxy.status_fields import ProxyStatus

_TIMEOUT_S = 5.0
_ADVICE = {
    401: "the proxy requires its password: set http_password_file, or give http://any:PASSWORD@HOST:PORT as --url",
    421: "it serves no host of this name: use its IP address in --url, or set http_hosts of the proxy",
}
_LACKS = re.compile(r"missing required field `(\w+)`")


class Access(NamedTuple):
    """What a client needs for a proxy's pages.

    Attributes:
        tls: for an https URL; None: the CAs of this machine.
        password: of its http_password_file, None without; one in the URL takes precedence.
    """

    tls: ssl.SSLContext | None = None
    password: bytes | None = None


NO_ACCESS = Access()


class NoAnswer(WalproxyError):
    """There is no reply from the URL."""


def fetch_status(url: str, access: Access = NO_ACCESS) -> ProxyStatus:
    """Return the proxy's /status.

    Args:
        url: of the HTTP listener; it may have a password, as http://any:PASSWORD@HOST:PORT.

    Raises:
        NoAnswer: there is no reply.
        WalproxyError: the reply is not that of a proxy of this version.
    """
    content = fetch_page(url, "/status", access)
    if not isinstance(content.get("safekeepers"), list):
        raise WalproxyError(
            f"{shown_url(url)}/status is not the status of a walproxy: it may be a safekeeper's; correct --url"
        )
    try:
        return msgspec.convert(content, ProxyStatus)
    except msgspec.ValidationError as error:
        lacks = _LACKS.search(str(error))
        problem = f"lacks {lacks[1]!r}" if lacks is not None else f"differs: {error}"
        raise WalproxyError(f"the proxy is a walproxy of another version: its /status {problem}") from None


def fetch_page(url: str, path: str, access: Access = NO_ACCESS) -> dict[str, Any]:
    """Return the JSON object of a page of the proxy. See `fetch_status`."""
    url, password = _without_password(url)
    password = access.password if password is None else password
    address = url + path
    if not address.startswith(("http://", "https://")):
        raise ConfigurationError(f"{url!r} is not a URL: write http://HOST:PORT")
    try:
        request = urllib.request.Request(address)
        if password is not None:
            # Unredirected: no other host receives it.
            credentials = base64.b64encode(b"walproxy:" + password).decode()
            request.add_unredirected_header("Authorization", f"Basic {credentials}")
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=access.tls) as response:
            body = response.read()
    except (http.client.InvalidURL, ValueError, OverflowError) as error:
        raise ConfigurationError(f"{url!r} is not a URL: {error}; write http://HOST:PORT") from None
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in _ADVICE:
            raise WalproxyError(f"{address} returned {error.code} {error.reason}: {_ADVICE[error.code]}") from None
        raise WalproxyError(
            f"{address} returned {error.code} {error.reason}: it is not a walproxy; correct --url"
        ) from None
    except http.client.HTTPException:
        raise WalproxyError(
            f"{address} does not use HTTP: correct --url, which begins with https:// where http_tls is on"
        ) from None
    except OSError as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise WalproxyError(
                f"{address}: {describe_failure(reason)}; name its CA with tls_ca in the file, or WALPROXY_TLS_CA"
            ) from None
        if isinstance(reason, ssl.SSLError):
            raise WalproxyError(f"{address}: {describe_failure(reason)}; correct --url") from None
        raise NoAnswer(f"no reply from {address}: {reason}; is walproxy running there (--url)?") from None
    try:
        content = json.loads(body)
    except ValueError:
        raise WalproxyError(f"{address} did not return JSON: it is not a walproxy; correct --url") from None
    if not isinstance(content, dict):
        raise WalproxyError(f"{address} is not the {path[1:]} of a walproxy: it may be a safekeeper's; correct --url")
    return content


def shown_url(url: str) -> str:
    """Return a URL for a message: without its password."""
    return _without_password(url)[0]


def _without_password(url: str) -> tuple[str, bytes | None]:
    """Return a URL without a slash at the end, and without user and password; and the password, None without one."""
    url = url.rstrip("/")
    try:
        parts = urlsplit(url)
        user, at, host = parts.netloc.rpartition("@")
    except ValueError:
        return url, None
    _, colon, password = user.partition(":")
    return parts._replace(netloc=host).geturl() if at else url, unquote(password).encode() if colon else None
