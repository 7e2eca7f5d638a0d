"""Files of certificates, users and secrets: read at the start, and again at SIGHUP. For both programs.

The proxy imports this module, and none of what only a safekeeper has.
"""

import logging
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from safekeeper.base.errors import ConfigurationError
from safekeeper.net.http_access import HttpAccess
from safekeeper.net.tls import ClientTls, ServerTls
from safekeeper.peers.shared_secret import SharedSecret

# The pages of load balancers and service managers.
PROBES = ("/healthz", "/readyz")
_EXPIRES_SOON = timedelta(days=14)

_log = logging.getLogger(__name__)


def require_pair(cert: Path | None, key: Path | None) -> None:
    """Refuse a certificate without its key, and a key without its certificate.

    Raises:
        ConfigurationError: one of them is missing.
    """
    if (cert is None) != (key is None):
        given, missing = ("tls_key", "tls_cert") if cert is None else ("tls_cert", "tls_key")
        raise ConfigurationError(f"{given} has no effect without {missing}: give both")


def server_tls(cert: Path | None, key: Path | None, client_ca: Path | None = None) -> ServerTls | None:
    """Return the TLS of a listener, None without a certificate.

    Raises:
        ConfigurationError: a file cannot be used.
    """
    return ServerTls(cert, key, client_ca) if cert is not None and key is not None else None


def https(is_wanted: bool, cert: Path | None, key: Path | None) -> ServerTls | None:
    """Return the TLS of an HTTP listener with `http_tls`, None if that is not set.

    Raises:
        ConfigurationError: there is no certificate, or a file cannot be used.
    """
    if is_wanted and (cert is None or key is None):
        raise ConfigurationError("http_tls has no effect without tls_cert and tls_key: give them, too")
    return server_tls(cert, key) if is_wanted else None


def http_access(hosts: frozenset[str], password_file: Path | None, probes: Collection[str] = PROBES) -> HttpAccess:
    """Return the protection of an HTTP listener by its options.

    Args:
        probes: see HttpAccess.

    Raises:
        ConfigurationError: the file of the password cannot be used.
    """
    return HttpAccess(hosts, http_password(password_file), probes)


def http_password(file: Path | None) -> SharedSecret | None:
    """Return the password of an HTTP listener, None without a file.

    Raises:
        ConfigurationError: the file cannot be used.
    """
    return SharedSecret(file, what="password") if file is not None else None


class Reloadable(Protocol):
    """A value that was read from files."""

    def reload(self) -> bool:
        """Read the files again; return whether the value changed. Raises ConfigurationError and keeps the old value."""


def reload_files(files: Mapping[str, Reloadable | None]) -> list[str]:
    """Read each again and return the names of those that changed; log one line per failure, which keeps the old one."""
    changed: list[str] = []
    failed: dict[str, list[str]] = {}
    for name, read in files.items():
        try:
            if read is not None and read.reload():
                changed.append(name)
        except ConfigurationError as error:
            failed.setdefault(str(error), []).append(name)
    for reason, names in failed.items():
        _log.error("could not reload %s: %s; the previous one stays in use", ", ".join(names), reason)
    return changed


def say_changes(changed: list[str], files: Mapping[str, Reloadable | None]) -> None:
    """Log what `reload_files` returned, unless no file is configured."""
    if any(read is not None for read in files.values()):
        _log.info("reloaded certificates, users and secrets; changed: %s", ", ".join(changed) or "nothing")


def report_validity(tls: ServerTls | ClientTls | None, cert: Path | None) -> None:
    """Log when the certificate in `cert` expires; as a warning if that is soon."""
    if tls is None or tls.valid_until is None:
        return
    is_soon = tls.valid_until - datetime.now(UTC) < _EXPIRES_SOON
    _log.log(
        logging.WARNING if is_soon else logging.INFO,
        "the certificate in %s expires at %s%s",
        cert,
        tls.valid_until.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        ": renew it" if is_soon else "",
    )
