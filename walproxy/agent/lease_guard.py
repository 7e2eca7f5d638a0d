"""When an agent holds the lease (lease.py): from right before it promotes its server until it no longer leads.

A leader whose lease is lost goes on: commits do not depend on it, and another agent that gets the lease still has to
seal the timeline on a quorum of safekeepers, which does not reply while this one leads.
"""

import asyncio
import logging

from safekeeper.base.errors import WalproxyError
from safekeeper.base.logs import ProblemLog
from walproxy.agent.errors import LeaseUnavailable
from walproxy.agent.lease import EtcdLease

_log = logging.getLogger(__name__)

# The promotion begins while the lease is held for this long at least.
ENOUGH_S = 1.0
_POLL_S = 0.25


class LeaseGuard:
    """The lease of one agent.

    Attributes:
        wait_s: how long to wait for a lease that another agent holds: at least until it has ended.

    Args:
        name: of the agent.
    """

    def __init__(self, lease: EtcdLease, name: str, wait_s: float) -> None:
        self._lease = lease
        self._name = name
        self.wait_s = wait_s
        self._lock = asyncio.Lock()
        self._problem = ProblemLog(_log)

    def probe(self) -> None:
        """Check that the store can be used (blocking). One that does not reply is logged.

        Raises:
            ConfigurationError: an operator has to change something.
        """
        try:
            self._lease.probe()
        except LeaseUnavailable as error:
            _log.warning("the lease: %s; no promotion until it replies", error)

    async def require(self) -> None:
        """Get the lease, before a promotion.

        Raises:
            WalproxyError: another agent holds it, or the store does not reply.
        """
        deadline = asyncio.get_running_loop().time() + self.wait_s
        async with self._lock:
            while True:
                if await asyncio.to_thread(self._lease.acquire, self._name) and self._lease.remaining_s > ENOUGH_S:
                    return
                if asyncio.get_running_loop().time() > deadline:
                    holder = await asyncio.to_thread(self._lease.holder)
                    raise WalproxyError(f"no promotion: {holder or 'another agent'} holds the lease")
                await asyncio.sleep(_POLL_S)

    async def keep(self, is_leader: bool) -> None:
        """Extend the lease of a leader, or release that of another agent. A problem is logged once."""
        if not is_leader and not self._lease.remaining_s:
            return
        try:
            async with self._lock:
                if not is_leader:
                    await asyncio.to_thread(self._lease.release)
                    problem = ""
                else:
                    held = await asyncio.to_thread(self._lease.acquire, self._name)
                    problem = "" if held else "another agent holds the lease"
        except WalproxyError as error:
            problem = str(error)
        if problem:
            self._problem.note(problem, "the lease is not extended: %s", problem)
        else:
            self._problem.over()
