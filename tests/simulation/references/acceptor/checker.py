"""Runs the reference of the acceptor beside the one of a simulated safekeeper, and compares (Reference).

Theory of operation. `watch` stands between the acceptor's handler and the safekeeper that executes its effects. Each
effect that changes something or is sent is compared with the next one of the reference, before it is executed; then
both are resumed with its result, or with its error. Effects that only read are executed for the acceptor alone: the
reference reads the model of the disk itself (`ModelWal`). When the handler ends, the reference must have ended too,
and the positions must be equal. A crash drops both; the next life begins with a new reference, from what is on the
disk.

It draws no random number and changes nothing, so that a seed does the same with it and without it.
"""

from operator import attrgetter
from typing import Any

import msgspec

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.acceptor.effects import (
    Close,
    DigestWal,
    Effect,
    Effects,
    FindRecordEnd,
    FindRecords,
    FindTimedRecord,
    InspectSetAside,
    ReadWal,
    Send,
    ServeAgent,
    ServeEvents,
)
from safekeeper.base.errors import RemoteProtocolError, StorageFull
from safekeeper.consensus.control_state import ControlState
from safekeeper.consensus.messages import PeerRead, Refusal
from tests.simulation.checks.violation import Violation
from tests.simulation.model.disk import ModelDisk, page_crcs
from tests.simulation.model.synthetic_wal import last_record_start
from tests.simulation.references.acceptor.acceptor import ReferenceAcceptor
from tests.simulation.references.acceptor.histories import ProtocolBroken
from tests.simulation.seeds.counts import Counts
from tests.simulation.seeds.trace import shown

# These change nothing: what follows from them is compared.
_READING = frozenset({ReadWal, DigestWal, FindRecords, FindRecordEnd, FindTimedRecord, InspectSetAside})
# The reference states only that they are requested.
_BEYOND = frozenset({ServeAgent, ServeEvents})
# What is compared after each event; the control state and the end of the log, when they have changed.
POSITIONS = (
    "write_lsn",
    "flush_lsn",
    "commit_lsn",
    "truncate_lsn",
    "archived_lsn",
    "archive_id",
    "readable_lsn",
    "leader",
    "leader_connection",
    "is_archiver",
    "pull",
    "has_readers",
    "standbys",
    "awaits_election",
    "healthy_seen_at",
)
_positions_of = attrgetter(*POSITIONS)
_READABLE_LSN = POSITIONS.index("readable_lsn")


class ModelWal:
    """The WAL of a simulated disk, read without the disk's help: the bytes of the model, by its own functions."""

    def __init__(self, disk: ModelDisk) -> None:
        self._disk = disk

    def record_end(self, lsn: int) -> int:
        """See `Wal`, as for all."""
        return ModelDisk.find_records(self._disk, lsn)[0]

    def last_record_start(self, lsn: int) -> int:
        return last_record_start(self._disk.wal, self._disk.begin_lsn, lsn)

    def last_timed_record(self, begin_lsn: int, end_lsn: int) -> int:
        return ModelDisk.find_timed_record(self._disk, begin_lsn, end_lsn)

    def read(self, begin_lsn: int, end_lsn: int) -> bytes:
        return ModelDisk.read(self._disk, begin_lsn, end_lsn)

    def page_crcs(self, begin_lsn: int, end_lsn: int) -> tuple[int, ...]:
        return page_crcs(self.read(begin_lsn, end_lsn), begin_lsn)

    def is_set_aside_incomplete(self, label: str, control: ControlState) -> bool:
        return ModelDisk.inspect_set_aside(self._disk, label, control) != ""


class ReferenceChecker:
    """The reference beside one life of a safekeeper's process."""

    def __init__(
        self, name: str, acceptor: Acceptor, wal_end_lsn: int, disk: ModelDisk, entries_max: int, counts: Counts
    ) -> None:
        """Begin with what is on the disk.

        Args:
            name: of the safekeeper.
            wal_end_lsn: as the acceptor received it.
            entries_max: of a history.
            counts: where the events that are compared are counted.
        """
        self._name = name
        self._counts = counts
        self._acceptor = acceptor
        self._reference = ReferenceAcceptor(acceptor.control, wal_end_lsn, ModelWal(disk), entries_max)
        self._same_controls = acceptor.control, self._reference.control
        self._same_readable_lsn = -1

    def watch(self, effects: Effects, event: str, *arguments: Any) -> Effects:
        """Pass on the effects of a handler, each after it was compared.

        Args:
            event: the method of the reference for this event, with its `arguments`.

        Raises:
            Violation: the acceptor does something else than the reference.
        """
        self._counts.count("events compared with the reference")
        reference = _Steps(getattr(self._reference, event)(*arguments))
        result: Any = None
        error: StorageFull | None = None
        unread = False  # Only the acceptor was refused a read: the reference reads without the disk's help.
        try:
            while True:
                try:
                    effect = effects.throw(error) if error is not None else effects.send(result)
                except StopIteration:
                    break
                result = error = None
                if unread:
                    refuses = isinstance(effect, Close) or (
                        isinstance(effect, Send) and isinstance(effect.message, Refusal)
                    )
                    self._require(event, arguments, "" if refuses else f"requests {_shown(effect)} after a failed read")
                elif type(effect) not in _READING:
                    if type(effect) in _BEYOND:
                        self._counts.count("effects beyond the reference")
                    self._require(event, arguments, difference(effect, reference.next()))
                try:
                    result = yield effect
                except StorageFull as full:
                    error = full
                if type(effect) in _READING:
                    unread = unread or error is not None
                elif not unread:
                    reference.resume_with(result, error)
            while unread and reference.next() is not None:
                pass
        except StorageFull:
            # The handler has ended with it.
            self._require(event, arguments, reference.is_full())
            self._compare_positions(event, arguments)
            raise
        except RemoteProtocolError as broken:
            self._require(event, arguments, reference.is_broken(broken))
            self._compare_positions(event, arguments)
            raise
        self._require(event, arguments, difference(None, reference.next()))
        self._compare_positions(event, arguments)

    def disconnected(self, connection: int) -> None:
        """The acceptor was informed of a closed connection."""
        self._reference.disconnected(connection)
        self._compare_positions("disconnected", (connection,))

    def serves(self, request: PeerRead, is_served: bool) -> None:
        """A member's read is done, and the acceptor has decided whether it is sent."""
        if self._reference.serves(request) != is_served:
            self._require("serves", (request,), f"is served: {is_served}, reference {not is_served}")

    def _compare_positions(self, event: str, arguments: tuple[Any, ...]) -> None:
        acceptor, reference = self._acceptor, self._reference
        actual, expected = _positions_of(acceptor), _positions_of(reference)
        if actual != expected:
            pairs = zip(POSITIONS, actual, expected, strict=True)
            self._require(event, arguments, "; ".join(filter(None, (fields_that_differ(*pair) for pair in pairs))))
        readable_lsn, controls = actual[_READABLE_LSN], (acceptor.control, reference.control)
        is_new = controls[0] is not self._same_controls[0] or controls[1] is not self._same_controls[1]
        if is_new or readable_lsn != self._same_readable_lsn:
            self._same_readable_lsn = readable_lsn
            tlis = acceptor.readable_tli, reference.readable_tli
            self._require(event, arguments, fields_that_differ("readable_tli", *tlis))
        if is_new:
            self._require(event, arguments, fields_that_differ("control", *controls))
            self._require(event, arguments, fields_that_differ("log_end", acceptor.log_end, reference.log_end))
            self._require(event, arguments, fields_that_differ("state", acceptor.state, reference.state))
            self._same_controls = controls

    def _require(self, event: str, arguments: tuple[Any, ...], problem: str) -> None:
        if problem:
            raise Violation("Reference", f"{self._name}, {event} {' '.join(map(shown, arguments))}: {problem}")


class _Steps:
    """A handler of the reference: asked for its next effect, and resumed with what came of the effect before it."""

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self._result: Any = None
        self._error: StorageFull | None = None

    def resume_with(self, result: Any, error: StorageFull | None) -> None:
        """Resume with this at `next`."""
        self._result, self._error = result, error

    def next(self) -> Effect | None:
        """Return the next effect, None at the end.

        Raises:
            Violation: the event breaks the protocol according to the reference.
        """
        try:
            return self._resume()
        except ProtocolBroken as broken:
            raise Violation("Reference", f"an acceptor does not take this message: {broken}") from broken

    def _resume(self) -> Effect | None:
        try:
            return self._effects.send(self._result) if self._error is None else self._effects.throw(self._error)
        except StopIteration:
            return None

    def is_broken(self, error: RemoteProtocolError) -> str:
        """Return the difference from a handler that ends with this error, empty if the reference does so too."""
        try:
            effect = self._resume()
        except ProtocolBroken:
            return ""
        return f"raises {error}, reference requests {_shown(effect)}"

    def is_full(self) -> str:
        """Return the difference from a handler that ends with `StorageFull`, empty if the reference does so too."""
        try:
            return difference(None, self.next()) or "ends with StorageFull, reference without"
        except StorageFull:
            return ""


def difference(actual: Effect | None, expected: Effect | None) -> str:
    """Return how an effect differs from that of the reference, empty if it does not; None: the handler has ended."""
    if actual == expected:
        return ""
    if type(actual) is not type(expected):
        return f"requests {_shown(actual)}, reference {_shown(expected)}"
    name = type(actual).__name__
    if isinstance(actual, Close) and isinstance(expected, Close):
        return fields_that_differ("Close.connection", actual.connection, expected.connection)
    if not (isinstance(actual, Send) and isinstance(expected, Send)):
        return fields_that_differ(name, actual, expected)
    if actual.connection != expected.connection or type(actual.message) is not type(expected.message):
        return f"requests {_shown(actual)}, reference {_shown(expected)}"
    name = type(actual.message).__name__
    if isinstance(actual.message, Refusal) and isinstance(expected.message, Refusal):
        worded = msgspec.structs.replace(expected.message, reason=actual.message.reason)
        return fields_that_differ(name, actual.message, worded)
    return fields_that_differ(name, actual.message, expected.message)


def fields_that_differ(name: str, actual: Any, expected: Any) -> str:
    """Return the innermost fields in which two values differ, with both values; empty if they are equal."""
    if actual == expected:
        return ""
    names: tuple[str, ...] = ()
    if type(actual) is type(expected):
        names = getattr(actual, "__struct_fields__", getattr(actual, "__slots__", ()))
    differences = [
        fields_that_differ(f"{name}.{each}", getattr(actual, each), getattr(expected, each)) for each in names
    ]
    return (
        "; ".join(filter(None, differences)) or f"{name} is {_shown(actual, name)}, reference {_shown(expected, name)}"
    )


def _shown(value: Any, name: str = "") -> str:
    return "nothing" if value is None else shown(value, name) or "empty"
