"""Exchanges with all safekeepers at once: an agent's report and the shared settings, for what they keep (step 14)."""

import time
from collections.abc import Callable, Sequence

from safekeeper.base.settings import Address
from safekeeper.consensus.messages import AgentSettingsVersion
from safekeeper.net.safekeeper_connection import Credentials
from walproxy.agent.report import AgentSettings
from walproxy.agent.sight import Sight


class SafekeeperViews:
    """Connections to all safekeepers: the listed ones, and the members that the list lacks.

    Args:
        name: of the agent; empty for a command.
        clock: monotonic, in seconds.

    Attributes:
        credentials: for new connections.
    """

    def __init__(
        self,
        safekeepers: Sequence[tuple[int, Address]],
        credentials: Credentials,
        name: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.credentials = credentials

    async def exchange(self, report: bytes, settings: AgentSettingsVersion | None = None, *, timeout_s: float) -> Sight:
        """Exchange with all safekeepers; return when all have replied, or when the timeout has passed."""
        raise NotImplementedError

    async def change_settings(
        self, change: Callable[[AgentSettings], AgentSettings], *, timeout_s: float
    ) -> AgentSettings:
        """Change the shared settings, and return them once a quorum has them on disk.

        Raises:
            WalproxyError: no quorum has replied.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Close all connections."""
        raise NotImplementedError
