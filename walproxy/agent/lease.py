"""A lease: a name that one agent at a time holds, for a limited time. An additional guard of a promotion.

Commits do not depend on it: which server's commits are acknowledged is decided by the terms and the seal in the
safekeepers (docs/design/divergence.md, Leases). It keeps two agents from promoting at the same time, and bounds how
long an old primary that demotes itself in time serves reads and local commits.

A lease is held by the local clock: from the time at which the request was sent, not from its reply, and a little
shorter than etcd's. So a process that was stopped, or whose etcd does not reply, has lost it before another one gets
it, as long as the two clocks run at about the same rate. The clock also counts the time during which the machine was
suspended. Whatever is begun while the lease is held may end after it: that is why commits cannot depend on it.
"""

import secrets
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any

from safekeeper.base.errors import ConfigurationError
from walproxy.agent.errors import LeaseUnavailable
from walproxy.agent.etcd_client import NOT_FOUND, EtcdClient, EtcdRefused, decoded, encoded

# The local clock may be slower than etcd's by that part.
_DRIFT = 0.02


def boot_clock() -> float:
    """Return seconds of a clock that no administrator sets, and that also counts suspended time."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class EtcdLease:
    """A key in etcd that exists as long as its lease there. For one thread at a time; `remaining_s` may be read by any.

    All methods that call etcd raise LeaseUnavailable if it does not reply, and ConfigurationError if an operator has to
    change something. After LeaseUnavailable the lease is held for `remaining_s`, as before the call.

    Args:
        endpoints, tls, user, password: see `EtcdClient`. The user must be allowed to read and write the keys that begin
            with `key`.
        key: one for each cluster.
        ttl_s: at least 2, the shortest time of etcd's.
        timeout_s: for each call.
        clock: in seconds.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        key: str,
        ttl_s: int,
        *,
        tls: ssl.SSLContext | None = None,
        user: str = "",
        password: str = "",
        timeout_s: float = 2.0,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        if ttl_s < 2:
            raise ConfigurationError(f"a lease of {ttl_s} s is too short for etcd: give 2 s or more")
        self._client = EtcdClient(endpoints, tls=tls, user=user, password=password, timeout_s=timeout_s)
        self._key = encoded(key)
        self._key_text = key
        self._ttl_s = ttl_s
        self._clock = clock
        self._id = ""  # of the lease in etcd; empty without one
        self._held_until = 0.0

    @property
    def remaining_s(self) -> float:
        """For how long the lease is held without a further renewal; 0 if it is not held."""
        return max(0.0, self._held_until - self._clock())

    def probe(self) -> None:
        """Check that etcd replies, accepts the login, grants such a lease, and creates a key only once.

        Raises:
            LeaseUnavailable, ConfigurationError: see the class.
        """
        key = encoded(f"{self._key_text}/probe/{secrets.token_hex(8)}")
        lease_id, granted_s = self._grant()
        try:
            if granted_s > self._ttl_s:
                raise ConfigurationError(f"etcd grants leases of {granted_s} s at least, not of {self._ttl_s} s")
            self._create(key, lease_id, "first")
            self._create(key, lease_id, "second")
            if self._read(key) != "first":
                raise ConfigurationError("etcd does not create a key only where there is none: it cannot keep a lease")
        finally:
            self._revoke_quietly(lease_id)
        if self._read(key) is not None:
            raise ConfigurationError("etcd keeps the key of a lease that was revoked: it cannot keep a lease")

    def acquire(self, name: str) -> bool:
        """Try to get the lease, or to renew it; return whether it is held now.

        Args:
            name: of this agent; for people.
        """
        if self.remaining_s and self.renew():
            return True
        self._drop()
        sent_at = self._clock()
        lease_id, granted_s = self._grant()
        try:
            is_ours = self._create(self._key, lease_id, name)
        except (LeaseUnavailable, ConfigurationError) as error:
            self._revoke_quietly(lease_id)  # The key may exist.
            if isinstance(error, EtcdRefused) and error.code == NOT_FOUND:
                return False  # The lease has ended before the key was created.
            raise
        if is_ours:
            self._id = lease_id
            self._hold_from(sent_at, granted_s)
        else:
            self._revoke_quietly(lease_id)
        return self._check()

    def renew(self) -> bool:
        """Extend the lease; return False if it is lost, or was not held."""
        if not self._check():
            return False
        sent_at = self._clock()
        granted_s = self._keep_alive()
        # A lease can live on without its key, if an operator has removed that.
        if not granted_s or not self._is_ours():
            self._drop()
            return False
        self._hold_from(sent_at, granted_s)
        return self._check()

    def release(self) -> None:
        """Give the lease up: it is not held from the beginning of the call on, whatever etcd replies."""
        lease_id, self._id, self._held_until = self._id, "", 0.0
        if lease_id:
            self._revoke(lease_id)

    def holder(self) -> str | None:
        """Return the name that holds the lease in etcd, None if there is none."""
        return self._read(self._key)

    # What is known locally.

    def _hold_from(self, sent_at: float, granted_s: int) -> None:
        self._held_until = max(self._held_until, sent_at + min(granted_s, self._ttl_s) * (1 - _DRIFT))

    def _check(self) -> bool:
        """Return whether the lease is held; one whose time has passed is dropped."""
        if self.remaining_s:
            return True
        self._drop()
        return False

    def _drop(self) -> None:
        lease_id, self._id, self._held_until = self._id, "", 0.0
        if lease_id:
            self._revoke_quietly(lease_id)

    # Calls.

    def _grant(self) -> tuple[str, int]:
        """Return the id of a new lease in etcd, and its seconds."""
        reply = self._client.call("/v3/lease/grant", {"TTL": str(self._ttl_s)})
        lease_id, granted_s = _number(reply, "ID"), _number(reply, "TTL")
        if not lease_id or not granted_s:
            raise LeaseUnavailable("etcd has granted no lease")
        return str(lease_id), granted_s

    def _create(self, key: str, lease_id: str, name: str) -> bool:
        """Create the key if it does not exist; return whether it belongs to `lease_id`.

        It also does if an earlier attempt of the same call was executed, and its reply was lost.
        """
        reply = self._client.call(
            "/v3/kv/txn",
            {
                "compare": [{"target": "CREATE", "result": "EQUAL", "key": key, "create_revision": "0"}],
                "success": [{"request_put": {"key": key, "value": encoded(name), "lease": lease_id}}],
                "failure": [{"request_range": {"key": key}}],
            },
        )
        if reply.get("succeeded") is True:
            return True
        found = _first(_object(_first(reply, "responses"), "response_range"), "kvs")
        return str(found.get("lease", "0")) == lease_id

    def _keep_alive(self) -> int:
        """Return the seconds that the lease has from now on, 0 if it no longer exists."""
        try:
            return _number(_object(self._client.call("/v3/lease/keepalive", {"ID": self._id}), "result"), "TTL")
        except EtcdRefused as error:
            if error.code != NOT_FOUND:
                raise
            return 0

    def _is_ours(self) -> bool:
        compare = {"target": "LEASE", "result": "EQUAL", "key": self._key, "lease": self._id}
        return self._client.call("/v3/kv/txn", {"compare": [compare]}).get("succeeded") is True

    def _revoke(self, lease_id: str) -> None:
        try:
            self._client.call("/v3/lease/revoke", {"ID": lease_id})
        except EtcdRefused as error:
            if error.code != NOT_FOUND:
                raise

    def _revoke_quietly(self, lease_id: str) -> None:
        """Revoke a lease that ends by itself otherwise, later."""
        try:
            self._revoke(lease_id)
        except (LeaseUnavailable, ConfigurationError):
            return

    def _read(self, key: str) -> str | None:
        found = _first(self._client.call("/v3/kv/range", {"key": key}), "kvs")
        return decoded(found.get("value", "")) if found else None


def _object(reply: dict[str, Any], name: str) -> dict[str, Any]:
    """Return an object in a reply, an empty one if there is none."""
    found = reply.get(name)
    return found if isinstance(found, dict) else {}


def _first(reply: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the first object of a list in a reply, an empty one if there is none."""
    found = reply.get(name)
    return found[0] if isinstance(found, list) and found and isinstance(found[0], dict) else {}


def _number(reply: dict[str, Any], name: str) -> int:
    """Return a number of a reply, which may be text, 0 if there is none."""
    found = reply.get(name, 0)
    if isinstance(found, str) and found.isascii() and found.isdecimal():
        return int(found)
    return found if isinstance(found, int) else 0
