"""Rules of agents and of their attempts, each left out: for planted.py, in the profile `agents`."""

from walproxy.failover.attempt import PromotionAttempt

_ASK_GUARD = PromotionAttempt._ask_guard


async def asked_under_the_seal(attempt: PromotionAttempt) -> None:
    """The guards are asked once the timeline is sealed."""
    if attempt.is_sealed:
        await _ASK_GUARD(attempt)
