"""The credentials for connections to safekeepers: read from the settings at the start, and again at SIGHUP."""

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.networks import is_loopback
from safekeeper.net.safekeeper_connection import Credentials
from safekeeper.net.tls import ClientTls, ServerTls
from safekeeper.peers.local_secret import LocalSecret
from safekeeper.peers.shared_secret import read_shared_secret
from safekeeper.process.credential_files import Reloadable, reload_files, require_pair, say_changes
from walproxy.proxy.config import MembersConfig, ProxyConfig


def read_credentials(config: ProxyConfig) -> Credentials:
    """Return the credentials that the settings name.

    Raises:
        ConfigurationError: a file cannot be used, or an option requires another one.
    """
    require_pair(config.tls_cert, config.tls_key)
    if config.tls_cert is not None and config.tls_ca is None and not config.http_tls:
        raise ConfigurationError("tls_cert has no effect without tls_ca or http_tls: give one of them, too")
    return read_peer_credentials(config)


def read_peer_credentials(config: MembersConfig) -> Credentials:
    """Return the credentials for the safekeepers; for commands that do not serve HTTP.

    Raises:
        ConfigurationError: a file cannot be used, or an option requires another one.
    """
    require_pair(config.tls_cert, config.tls_key)
    tls = ClientTls(config.tls_ca, config.tls_cert, config.tls_key) if config.tls_ca is not None else None
    secret = read_shared_secret(config.secret_file, config.secret, "WALPROXY_SECRET")
    proves_by_certificate = config.tls_ca is not None and config.tls_cert is not None
    if secret is not None or proves_by_certificate:
        return Credentials(tls, secret)
    local = LocalSecret()
    if any(is_loopback(place.host) for _, place in config.safekeepers):
        local.ensure()
    return Credentials(tls, local_secret=local)


def reload_credentials(
    credentials: Credentials, http_tls: ServerTls | None, http_password: Reloadable | None = None
) -> None:
    """Read the files again, for new connections, and log what has changed; on an error, log it and keep the old."""
    files: dict[str, Reloadable | None] = {
        "the certificates for safekeepers": credentials.tls,
        "the certificate of HTTP": http_tls,
        "the shared secret": credentials.secret or credentials.local_secret,
        "the password of HTTP": http_password,
    }
    say_changes(reload_files(files), files)
