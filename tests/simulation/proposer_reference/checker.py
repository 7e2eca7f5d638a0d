"""Runs the reference of the proposer beside the one of a simulated proxy, and compares (Reference).

Theory of operation. `watch_proposer` takes the place of each event's method of one proposer: the event is handled,
then the reference takes it together with the actions that were returned (proposer.py), and the positions of both are
compared. An end of the process drops both. It draws no random number and changes nothing, so that a seed does the same
with it and without it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from safekeeper.base.errors import ConfigurationError
from safekeeper.consensus.membership import Member, QuorumSizes
from tests.simulation.counts import Counts
from tests.simulation.proposer_reference.actions import Differs
from tests.simulation.proposer_reference.proposer import ReferenceProposer
from tests.simulation.trace import shown
from tests.simulation.violation import Violation
from walproxy.proposer.proposer import Proposer

EVENTS = (
    "connected",
    "disconnected",
    "message",
    "primary_identified",
    "primary_segment_removed",
    "primary_lost",
    "primary_checked",
    "primary_refused",
    "timeline_ended",
    "wal_received",
    "wal_evicted",
    "tick",
    "set_apply_rule",
    "change_members",
    "forget_refusals",
)


def watch_proposer(name: str, proposer: Proposer, counts: Counts) -> None:
    """Compare a new proposer with the reference from now on.

    Args:
        name: of its proxy.
        counts: where the events that are compared are counted.
    """
    checker = ProposerChecker(name, proposer, counts)
    for event in EVENTS:
        setattr(proposer, event, partial(checker.handle, event, getattr(proposer, event)))


class ProposerChecker:
    """The reference beside one proposer."""

    def __init__(self, name: str, proposer: Proposer, counts: Counts) -> None:
        self._name = name
        self._proposer = proposer
        self._counts = counts
        self._reference = ReferenceProposer(proposer.config)

    def handle(self, event: str, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Let the proposer handle an event, and compare.

        Raises:
            Violation: the proposer does something else than the reference.
            ConfigurationError: as the proposer raises it, for a change of the members that the reference refuses, too.
        """
        self._counts.count("proposers' events compared")
        if event == "change_members":
            arguments, options = _change(*arguments, **options), {}
        try:
            actions = method(*arguments, **options)
        except ConfigurationError:
            wanted, _, sizes, force = arguments
            if not self._reference.refuses_change(wanted, sizes, force):
                self._fail(event, arguments, "refuses a change of the members, reference does not")
            raise
        proposer = self._proposer
        leadership = proposer.leadership
        membership = leadership.membership if leadership is not None else None
        try:
            self._reference.after(event, arguments, actions or [], proposer.phase, membership)
        except Differs as problem:
            self._fail(event, arguments, str(problem))
        self._compare(event, arguments)
        return actions

    def _compare(self, event: str, arguments: tuple[Any, ...]) -> None:
        proposer, reference = self._proposer, self._reference
        leadership, term = proposer.leadership, reference.term
        pairs = [
            ("phase", proposer.phase, reference.phase),
            ("term", proposer.term, reference.known.requested_term),
            ("refused", proposer.refusal is not None, reference.is_finished),
        ]
        if leadership is not None and term is not None:
            pairs += [
                ("leader_id", leadership.leader_id, term.leader_id),
                ("membership", leadership.membership, term.membership),
                ("commit_lsn", leadership.commit_lsn, term.commit_lsn),
                ("received_lsn", leadership.received_lsn, term.received_lsn),
                ("streaming", leadership.streaming, term.streams),
                ("wanted", tuple(_fields(leadership.wanted)), tuple(term.change.wanted)),
            ]
        for name, actual, expected in pairs:
            if actual != expected:
                problem = f"{name} is {shown(actual, name)}, reference {shown(expected, name)}"
                self._fail(event, arguments, problem)

    def _fail(self, event: str, arguments: tuple[Any, ...], problem: str) -> None:
        raise Violation("Reference", f"{self._name}, {event} {' '.join(map(shown, arguments))}: {problem}")


def _change(
    wanted: tuple[Member, ...], now: float, sizes: QuorumSizes | None = None, force: bool = False
) -> tuple[Any, ...]:
    """Return the arguments of `change_members`, with those that were left out."""
    return wanted, now, sizes, force


def _fields(wanted: Any) -> tuple[Any, ...]:
    return wanted.members, wanted.sizes
