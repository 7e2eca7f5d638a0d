"""Fetch the /status of a proxy over HTTP."""

import http.client
import json
import ssl
import urllib.error
import urllib.request
from typing import Any

from safekeeper.base.errors import ConfigurationError, WalproxyError
from safekeeper.net.tls import describe_failure

_TIMEOUT_S = 5.0
_SHOWN = {"state", "term", "tli", "quorum", "received_lsn", "write_lsn", "flush_lsn", "apply_lsn", "commit_lsn"}


class NoAnswer(WalproxyError):
    """There is no reply from the URL."""


def fetch_status(url: str, tls: ssl.SSLContext | None = None) -> dict[str, Any]:
    """Return the proxy's /status.

    Args:
        tls: for an https URL; None: the CAs of this machine.

    Raises:
        NoAnswer: there is no reply.
        WalproxyError: the reply is not that of a proxy.
    """
    content = fetch_page(url, "/status", tls)
    if not isinstance(content.get("safekeepers"), list) or _SHOWN - content.keys():
        raise WalproxyError(
            f"{url.rstrip('/')}/status is not the status of a walproxy: it may be a safekeeper's; correct --url"
        )
    return content


def fetch_page(url: str, path: str, tls: ssl.SSLContext | None = None) -> dict[str, Any]:
    """Return the JSON object of a page of the proxy. See `fetch_status`."""
    address = url.rstrip("/") + path
    if not address.startswith(("http://", "https://")):
        raise ConfigurationError(f"{url!r} is not a URL: write http://HOST:PORT")
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT_S, context=tls) as response:
            body = response.read()
    except (http.client.InvalidURL, ValueError, OverflowError) as error:
        raise ConfigurationError(f"{url!r} is not a URL: {error}; write http://HOST:PORT") from None
    except urllib.error.HTTPError as error:
        error.close()
        raise WalproxyError(
            f"{address} returned {error.code} {error.reason}: it is not a walproxy; correct --url"
        ) from None
    except http.client.HTTPException:
        raise WalproxyError(
            f"{address} does not use HTTP: correct --url, which begins with https:// where --http-tls is on"
        ) from None
    except OSError as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise WalproxyError(f"{address}: {describe_failure(reason)}; name its CA with --tls-ca") from None
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
