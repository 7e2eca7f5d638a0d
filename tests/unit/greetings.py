"""Greetings of safekeepers for the tests: an empty one, and what a test gives it."""

from typing import Any

import msgspec

from safekeeper.consensus.control_state import NOBODY
from safekeeper.consensus.messages import PROTOCOL_VERSION, AcceptorGreeting


def empty(safekeeper_id: int, **changes: Any) -> AcceptorGreeting:
    """Return the greeting of a safekeeper that has no cluster and no WAL, but for the changes."""
    greeting = AcceptorGreeting(
        PROTOCOL_VERSION, safekeeper_id, f"{safekeeper_id}" * 32, "", 0, 0, 0, None, NOBODY, 0, 0, 0, 0, 0, None
    )
    return msgspec.structs.replace(greeting, **changes)
