"""The guards of a promotion that are configured: a lease in etcd, the watchdog device, and fence_command."""

import ssl
from pathlib import Path

from safekeeper.base.errors import WalproxyError
from walproxy.agent.activity import Activity
from walproxy.agent.config import AgentConfig
from walproxy.agent.lease import EtcdLease
from walproxy.agent.lease_guard import LeaseGuard
from walproxy.agent.server_look import ServerState
from walproxy.agent.watchdog import Watchdog
from walproxy.failover.switchover import run_command


class Guards:
    """The guards of one agent. Each method does nothing for a guard that is not configured.

    An attempt asks for them twice: before it seals, and right before it promotes. An old primary that fence_command has
    switched off stays off until a primary leads again: neither the second time nor the next attempt runs it again.

    Attributes:
        limit_s: how long both times may last together.
    """

    def __init__(self, config: AgentConfig, activity: Activity) -> None:
        self._watchdog: Watchdog | None = None
        if config.watchdog != "off":
            self._watchdog = Watchdog(Path(config.watchdog_device), required=config.watchdog == "required")
        self._lease = _lease_guard(config)
        self._fence_command = config.fence_command
        self._fence_timeout_s = float(config.fence_timeout)
        self._fenced: str | None = None
        self._activity = activity
        wait_s = self._lease.wait_s if self._lease is not None else 0.0
        self.limit_s = 2 * wait_s + (self._fence_timeout_s if self._fence_command else 0.0)

    def probe(self) -> None:
        """Check that the lease can be used (blocking). Raises ConfigurationError."""
        if self._lease is not None:
            self._lease.probe()

    def close(self) -> None:
        """Close the watchdog."""
        if self._watchdog is not None:
            self._watchdog.close()

    def led(self) -> None:
        """Take into account that a primary leads: the next old primary is to be fenced."""
        self._fenced = None

    async def require(self, old_primary: str) -> None:
        """Make sure of what a promotion requires. The watchdog stays open.

        Args:
            old_primary: the name of its agent, for fence_command.

        Raises:
            WalproxyError: a guard forbids the promotion.
        """
        if self._lease is not None:
            self._activity.doing = "failover: waiting for the lease"
            await self._lease.require()
        if self._fence_command and self._fenced != old_primary:
            self._activity.doing = "failover: waiting for fence_command"
            await run_command(
                self._fence_command,
                self._fence_timeout_s,
                name="fence_command",
                environment={"WALPROXY_OLD_PRIMARY": old_primary},
            )
            self._fenced = old_primary
            if self._lease is not None:
                self._activity.doing = "failover: waiting for the lease"
                await self._lease.require()  # It may have ended while the command ran: nothing has extended it.
        if self._watchdog is not None:
            self._watchdog.open()

    async def keep_lease(self, is_leader: bool) -> None:
        """Extend the lease of a leader, or release that of another agent."""
        if self._lease is not None:
            await self._lease.keep(is_leader)

    def keep_watchdog(self, state: ServerState, *, is_failing_over: bool, is_in_control: bool) -> None:
        """Open the watchdog beside a primary, keep it alive, and close it beside another server.

        Args:
            is_in_control: False: the machine is to restart.
        """
        watchdog = self._watchdog
        if watchdog is None:
            return
        try:
            if state in (ServerState.STANDBY, ServerState.STOPPED, ServerState.MISSING):
                if not is_failing_over:
                    watchdog.close()
                elif watchdog.is_open:
                    watchdog.keep_alive()  # The attempt may last longer than the device waits.
            elif state is ServerState.PRIMARY and not watchdog.is_open:
                watchdog.open()
            elif is_in_control:
                watchdog.keep_alive()
        except WalproxyError as error:
            self._activity.failed(str(error))


def _lease_guard(config: AgentConfig) -> LeaseGuard | None:
    if not config.lease_etcd:
        return None
    secret = config.lease_password
    lease = EtcdLease(
        config.lease_etcd,
        config.lease_key,
        config.lease_ttl,
        tls=ssl.create_default_context(cafile=config.lease_ca) if config.lease_etcd[0].startswith("https") else None,
        user=config.lease_user,
        password=secret.value.decode() if secret is not None else "",
    )
    return LeaseGuard(lease, config.name, wait_s=config.lease_ttl + 2.0)
