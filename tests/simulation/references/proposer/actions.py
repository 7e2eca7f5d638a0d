"""How the actions of the proposer are compared: without repeats, wording, and notes that are no events.

Part of the reference of the proposer (proposer.py).
"""

from dataclasses import replace

from safekeeper.consensus.messages import MembersAnswer, ProposerGreeting
from walproxy.proposer.actions import (
    Action,
    Disconnect,
    Level,
    Note,
    RefusePrimary,
    SendMessage,
    StartReplication,
    StopReplication,
)


class Differs(Exception):
    """The proposer does something else than the protocol says."""


def expect(holds: bool, problem: str, *values: object) -> None:
    """Raise `Differs` unless it holds; only then `values` are put into the text."""
    if not holds:
        raise Differs(problem.format(*values))


def without_repeats(actions: list[Action]) -> list[Action]:
    """Return the actions without notes that are no events (15); a connection is closed once, for all reasons."""
    kept: list[Action] = []
    closed: set[int] = set()
    for action in actions:
        if isinstance(action, Disconnect):
            if action.safekeeper_id in closed:
                continue
            closed.add(action.safekeeper_id)
        if not isinstance(action, Note) or action.event:
            kept.append(action)
    return kept


def event_of(kind: str, term: int) -> Note:
    """Return the note of an event of a term."""
    return Note(Level.INFO, "", kind, term)


def is_for_silence(action: Action) -> bool:
    """Return whether a connection is closed because an answer was awaited for too long."""
    return isinstance(action, Disconnect) and action.reason.startswith(("no reply", "the end of a pull"))


def is_greeting(action: Action) -> bool:
    return isinstance(action, SendMessage) and isinstance(action.message, ProposerGreeting)


def worded(action: Action) -> Action:
    """Return an action without its wording and the tail of the log, which are not compared."""
    if isinstance(action, Disconnect):
        return Disconnect(action.safekeeper_id, "")
    if isinstance(action, Note):
        return replace(action, text="")
    if isinstance(action, StopReplication):
        return StopReplication("")
    if isinstance(action, RefusePrimary):
        return RefusePrimary("")
    if isinstance(action, StartReplication) and action.log_tail is not None:
        return replace(action, log_tail=None)
    if isinstance(action, SendMessage) and isinstance(action.message, MembersAnswer):
        answer = action.message
        return SendMessage(action.safekeeper_id, MembersAnswer(answer.request_id, "no" if answer.refusal else ""))
    return action


def alike(action: Action, others: list[Action]) -> Action | None:
    """Return one of the same kind, for the message."""
    kind = type(action.message) if isinstance(action, SendMessage) else None
    for other in others:
        if type(other) is type(action) and (not isinstance(other, SendMessage) or type(other.message) is kind):
            return other
    return None
