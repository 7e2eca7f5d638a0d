"""Rules of agents and of their attempts, each left out: for planted.py, in the profile `agents`."""

from typing import Any

from walproxy.failover.attempt import PromotionAttempt
from walproxy.failover.candidates import HostLook
from walproxy.failover.log_end import LogEnd

_ASK_GUARD = PromotionAttempt._ask_guard


def never_let_in(*_: Any) -> None:
    """An old primary that only the floor keeps out waits for a leader."""


def never_gone_ahead(look: HostLook, end: LogEnd) -> bool:
    """A standby whose promotion has crashed is on a timeline that no failover promotes."""
    return False


async def asked_under_the_seal(attempt: PromotionAttempt) -> None:
    """The guards are asked once the timeline is sealed."""
    if attempt.is_sealed:
        await _ASK_GUARD(attempt)
