"""The protection of a safekeeper's listeners: read from the settings at the start, and again at SIGHUP.

    listener      options that protect it                                    without any of them
    proposers     --secret-file, tls_client_ca, allow                        loopback only, with the local secret
    replication   pg_users, pg_client_ca, pg_allow                           loopback only, with a local password
    HTTP          http_allow, http_password_file                             the address of --http-listen

A listener that has at least one of its protections listens on the configured address. A listener without any listens
on loopback, whatever its address is set to, and logs that: a listener that is open to a network by mistake is worse
than one that is closed by mistake. On loopback the proposer listener requires the local secret
(safekeeper/peers/local_secret.py), unless --secret-file or tls_client_ca is given, because other users of the machine
can connect to loopback, too; the replication listener requires a password that is derived from it, unless pg_users or
pg_client_ca is given. TLS alone (tls_cert) encrypts but authenticates no client, so it opens no listener.

At SIGHUP certificates, CAs, users, the secret and the lists of networks are read again. A file that cannot be used is
logged, and the previous content stays in use. Adding or removing a protection, or changing a file's path, requires a
restart.
"""

import logging
from typing import NamedTuple

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.networks import Networks, is_loopback, loopback_instead_of
from safekeeper.base.settings import Address
from safekeeper.net.safekeeper_connection import Credentials
from safekeeper.net.tls import ClientTls
from safekeeper.peers.local_secret import LocalSecret
from safekeeper.peers.shared_secret import PeerSecret, read_shared_secret
from safekeeper.process.config import SafekeeperConfig
from safekeeper.process.credential_files import (
    Reloadable,
    http_access,
    https,
    reload_files,
    report_validity,
    require_pair,
    say_changes,
    server_tls,
)
from safekeeper.serving.users import KnownUsers, LocalUsers, Users

_log = logging.getLogger(__name__)


class AllowLists(NamedTuple):
    """The networks from which each listener accepts clients, None for all."""

    proposers: Networks | None
    replication: Networks | None
    http: Networks | None


class Protection:
    """The protections of the listeners of one safekeeper.

    Attributes:
        proposers_tls, replication_tls, http_tls: None for a listener without TLS.
        users: the users of the replication listener, None if it requires no password.
        secret: the secret of the proposer listener, None if it requires none. A local secret exists on disk.
        peers: the credentials for connections to other safekeepers, which require what this one requires.
        allow: the lists as of the last `reload`.
        http_access: the host names and the password of HTTP, as of the last `reload`.

    Raises:
        ConfigurationError: a file cannot be used, or an option requires another one.
    """

    def __init__(self, config: SafekeeperConfig) -> None:
        self._config = config
        require_pair(config.tls_cert, config.tls_key)
        for name, wants_tls in (
            ("tls_client_ca", config.tls_client_ca),
            ("pg_client_ca", config.pg_client_ca),
        ):
            if wants_tls and config.tls_cert is None:
                raise ConfigurationError(f"{name} has no effect without tls_cert and tls_key: give them, too")
        self.proposers_tls = server_tls(config.tls_cert, config.tls_key, config.tls_client_ca)
        self.replication_tls = server_tls(config.tls_cert, config.tls_key, config.pg_client_ca)
        self.http_tls = https(config.http_tls, config.tls_cert, config.tls_key)
        self.http_access = http_access(config.http_hosts, config.http_password_file)
        self.users: KnownUsers | None = None
        if config.pg_users is not None:
            self.users = Users(config.pg_users)
        elif (
            config.pg_listen is not None
            and config.pg_client_ca is None
            and (config.pg_allow is None or is_loopback(config.pg_listen.host))
        ):
            self.users = LocalUsers()
        shared = read_shared_secret(config.secret_file, config.secret, "SAFEKEEPER_SECRET")
        self._is_open = bool(shared or config.tls_client_ca or config.allow)
        self.secret: PeerSecret | None = shared
        if (
            shared is None
            and config.tls_client_ca is None
            and (not config.allow or is_loopback(config.proposer_listen.host))
        ):
            self.secret = local = LocalSecret()
            local.ensure()
        peer_tls = ClientTls(config.tls_ca, config.tls_cert, config.tls_key) if config.tls_ca is not None else None
        local_secret = self.secret if isinstance(self.secret, LocalSecret) else None
        if local_secret is None and shared is None and config.tls_client_ca is None:
            local_secret = LocalSecret()  # This listener requires none, those of other safekeepers here may.
        self.peers = Credentials(peer_tls, shared, local_secret)
        self.allow = AllowLists(config.allow, config.pg_allow, config.http_allow)
        report_validity(self.proposers_tls, config.tls_cert)

    @property
    def obstacle_to_peers(self) -> str:
        """Why this safekeeper cannot connect to the others, empty if it can."""
        if self.proposers_tls is not None and self.peers.tls is None:
            return "the safekeepers require TLS, and this one cannot verify their certificates: set its tls_ca"
        return ""

    def proposers_address(self) -> Address:
        """Return the address for the proposer listener; log it if it is not the configured one."""
        protections = "--secret-file, tls_client_ca or allow"
        address = _guarded(self._config.proposer_listen, self._is_open, "--proposer-listen", protections)
        if isinstance(self.secret, LocalSecret):
            _log.info("proxies on this machine must authenticate with the shared secret: %s", self.secret.origin)
        return address

    def replication_address(self, wanted: Address) -> Address:
        """Return the address for the replication listener, as `proposers_address` does."""
        config = self._config
        protected = config.pg_users or config.pg_client_ca or config.pg_allow
        address = _guarded(wanted, bool(protected), "--pg-listen", "pg_users, pg_client_ca or pg_allow")
        if isinstance(self.users, LocalUsers):
            _log.info("replication clients on this machine must authenticate: %s", self.users.advice)
        return address

    def reload(self, new: SafekeeperConfig) -> None:
        """Read every file again, take over the new lists of networks, and log the changes.

        Args:
            new: the settings as they are written now. Only their lists of networks and hosts are used.
        """
        files: dict[str, Reloadable | None] = {
            "the certificates of the proposer listener": self.proposers_tls,
            "the certificates of the replication listener": self.replication_tls,
            "the certificate of HTTP": self.http_tls,
            "the certificates of other safekeepers": self.peers.tls,
            "the users": self.users,
            "the shared secret": self.secret,
            "the password of HTTP": self.http_access.password,
        }
        say_changes(reload_files(files), files)
        report_validity(self.proposers_tls, self._config.tls_cert)
        self.http_access = self.http_access._replace(hosts=new.http_hosts)
        self._take_networks(AllowLists(new.allow, new.pg_allow, new.http_allow))

    def _take_networks(self, wanted: AllowLists) -> None:
        for field, name in zip(AllowLists._fields, ("allow", "pg_allow", "http_allow"), strict=True):
            old, new = getattr(self.allow, field), getattr(wanted, field)
            if new is not None:
                self.allow = self.allow._replace(**{field: new})
            elif old is not None:
                # This list alone may be what allows the listener its address.
                _log.warning("%s is unchanged: its removal requires a restart", name)


def _guarded(wanted: Address, protected: bool, option: str, protections: str) -> Address:
    if protected:
        return wanted
    if is_loopback(wanted.host):
        _log.info("%s listens on loopback, %s: none of %s is given", option, wanted, protections)
        return wanted
    address = Address(loopback_instead_of(wanted.host), wanted.port)
    _log.warning(
        "%s %s: listening on %s only, because no authentication is configured: to accept other machines give %s",
        option,
        wanted,
        address,
        protections,
    )
    return address
