"""Runs the reference of the proposer beside the one of a proxy, and compares (Reference).

Theory of operation. A proposer made by `watched_proposer` handles each event as it is; then the reference takes the
event together with the actions that were returned (proposer.py), and the positions of both are compared. An end of the
process drops both. It draws no random number and changes nothing, so that a seed does the same with it and without it.
"""

from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter
from typing import Any

from safekeeper.base.errors import ConfigurationError, RemoteProtocolError
from safekeeper.consensus.membership import Member, QuorumSizes
from tests.simulation.checks.violation import Violation
from tests.simulation.references.proposer.actions import Differs
from tests.simulation.references.proposer.proposer import ReferenceProposer
from tests.simulation.seeds.counts import Counts
from tests.simulation.seeds.trace import shown
from walproxy.proposer.phase import ProposerConfig
from walproxy.proposer.proposer import Proposer

EVENTS = (
    "connected",
    "disconnected",
    "message",
    "primary_identified",
    "primary_segment_removed",
    "primary_slot_in_use",
    "primary_lost",
    "primary_checked",
    "primary_refused",
    "timeline_ended",
    "wal_received",
    "wal_evicted",
    "tick",
    "pursue",
    "set_apply_rule",
    "change_members",
    "forget_refusals",
)


# What is compared after each event, from `leader_id` on while a term is led.
POSITIONS = (
    "phase",
    "term",
    "refused",
    "leader_id",
    "membership",
    "commit_lsn",
    "received_lsn",
    "streaming",
    "wanted members",
    "wanted sizes",
)
_of_term = attrgetter("leader_id", "membership", "commit_lsn", "received_lsn")


def watched_proposer(kind: type[Proposer], config: ProposerConfig, name: str, counts: Counts) -> Proposer:
    """Return a new proposer that is compared with the reference.

    Args:
        kind: its class, which is `Proposer` unless a test has put an error into another one.
        name: of its proxy.
        counts: where the events that are compared are counted.
    """
    proposer = _watched(kind)(config)
    proposer.checker = ProposerChecker(name, proposer, counts)
    return proposer


@lru_cache(maxsize=1)  # The class of a real proxy's proposer is another one in each run, and holds a whole cluster.
def _watched(kind: type[Proposer]) -> Any:
    """Return a class whose events are compared. Methods set in an instance would make each access to it slow."""
    events = {event: _compared(kind, event) for event in EVENTS}
    return type(kind.__name__, (kind,), {"__slots__": ("checker",), **events})


def _compared(kind: type[Proposer], event: str) -> Callable[..., Any]:
    def handle(proposer: Any, *arguments: Any, **options: Any) -> Any:
        # Looked up each time: a test may have put another one in its place.
        return proposer.checker.handle(event, getattr(kind, event), *arguments, **options)

    return handle


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
        proposer = self._proposer
        if event == "change_members":
            arguments, options = _change(*arguments, **options), {}
        breaks = self._reference.breaks_protocol(*arguments[:2]) if event == "message" else False
        try:
            actions = method(proposer, *arguments, **options)
        except RemoteProtocolError as broken:
            if breaks is False:
                self._fail(event, arguments, f"refuses a message ({broken}), reference does not")
            raise
        except ConfigurationError:
            wanted, _, sizes, force = arguments
            if not self._reference.refuses_change(wanted, sizes, force):
                self._fail(event, arguments, "refuses a change of the members, reference does not")
            raise
        if breaks:
            self._fail(event, arguments, "takes a message that breaks the protocol")
        leadership = proposer.leadership
        membership = leadership.membership if leadership is not None else None
        try:
            self._reference.after(event, arguments, actions or [], proposer.phase, membership)
        except Differs as problem:
            self._fail(event, arguments, str(problem))
        self._compare(event, arguments)
        return actions

    def compare_read(self, now: float) -> None:
        """Compare the positions that the shell reads, by which it trims its window and judges a new slot.

        Raises:
            Violation: they are something else than the reference says.
        """
        proposer, reference = self._proposer, self._reference
        actual = proposer.quorum_end_lsn, proposer.tail_elected, proposer.committed_lsns()
        expected = reference.quorum_end_lsn(), reference.tail_elected(), reference.committed_lsns()
        if actual != expected:
            self._fail("read", (now,), f"what is read is {actual}, reference {expected}")

    def _compare(self, event: str, arguments: tuple[Any, ...]) -> None:
        proposer, reference = self._proposer, self._reference
        leadership, term = proposer.leadership, reference.term
        actual: tuple[Any, ...] = (proposer.phase, proposer.term, proposer.refusal is not None)
        expected: tuple[Any, ...] = (reference.phase, reference.known.requested_term, reference.is_finished)
        if leadership is not None and term is not None:
            wanted = leadership.wanted
            actual += (*_of_term(leadership), leadership.streaming, wanted.members, wanted.sizes)
            expected += (*_of_term(term), term.streams, *term.change.wanted)
        if actual != expected:
            pairs = zip(POSITIONS, actual, expected, strict=False)
            name, one, other = next(each for each in pairs if each[1] != each[2])
            self._fail(event, arguments, f"{name} is {shown(one, name)}, reference {shown(other, name)}")

    def _fail(self, event: str, arguments: tuple[Any, ...], problem: str) -> None:
        raise Violation("Reference", f"{self._name}, {event} {' '.join(map(shown, arguments))}: {problem}")


def _change(
    wanted: tuple[Member, ...], now: float, sizes: QuorumSizes | None = None, force: bool = False
) -> tuple[Any, ...]:
    """Return the arguments of `change_members`, with those that were left out."""
    return wanted, now, sizes, force
