"""Rules of agents and of their attempts, each left out: for planted.py, in the profile `agents`."""

import asyncio
from typing import Any

from safekeeper.base.errors import WalproxyError
from walproxy.agent.guards import Guards
from walproxy.failover.attempt import PromotionAttempt
from walproxy.failover.candidates import HostLook
from walproxy.failover.log_end import LogEnd
from walproxy.failover.sealer import Sealer

_REQUIRE = Guards.require
_ASK_GUARD = PromotionAttempt._ask_guard
# What encloses the guards ends before fence_command does.
ENCLOSING_S = 1.2


def never_let_in(*_: Any) -> None:
    """An old primary that only the floor keeps out waits for a leader."""


async def not_taken_back(*_: Any) -> bool:
    """An attempt that has failed leaves its seal."""
    return False


def never_gone_ahead(look: HostLook, end: LogEnd) -> bool:
    """A standby whose promotion has crashed is on a timeline that no failover promotes."""
    return False


async def asked_under_the_seal(attempt: PromotionAttempt) -> None:
    """The guards are asked once the timeline is sealed."""
    if attempt.is_sealed:
        await _ASK_GUARD(attempt)


def unnoticed(sealer: Sealer) -> None:
    """A sealer does not look whether it leads its term."""


def of_the_last_exchange(view: Any, **_: Any) -> Any:
    """What all agents share is what the safekeepers have replied last, also if none has."""
    return view


async def given_up_early(guards: Guards, old_primary: str) -> None:
    """Another limit than the guards' own ends them."""
    try:
        async with asyncio.timeout(ENCLOSING_S):
            await _REQUIRE(guards, old_primary)
    except TimeoutError:
        raise WalproxyError("the guards have not ended in time") from None
