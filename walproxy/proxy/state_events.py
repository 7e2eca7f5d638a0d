"""The events of a proxy's state: what differs between two looks at it. Pure.

The proxy looks some times per second, so a change that is undone in between is not an event. Terms and the quorum are
events of their own, where they are logged. A spare reports nothing of the members and standbys: the proxy that serves
does.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from walproxy.proposer.view import ProposerView

# A safekeeper that has not been connected since the start counts as lost after this.
START_S = 5.0


class MemberState(Enum):
    """What an operator notices of a safekeeper; the value is the event on entering the state."""

    PRESENT = "member-back"  # after any other
    LOST = "member-lost"
    REFUSED = "member-refused"
    DISK_FULL = "member-disk-full"
    LEARNER = "member-learner"


class StateEvent(NamedTuple):
    """One event: kind, figures and text."""

    kind: str
    fields: Mapping[str, object]
    text: str


@dataclass(frozen=True, slots=True)
class Look:
    """What is compared.

    Attributes:
        members: state and problem by safekeeper id; empty for a spare.
        standbys: of each connected standby, the safekeeper from which it streams; None for a spare.
        begun_term: the term in which commits succeed, None if they do not.
        primary: the host that is streamed, None if none is.
        primary_problem: why none is.
        tli: of the term that is led, 0 if none is.
        change: a change of the members that is under way, empty if none is; None while no term is led.
        members_text: the members of the term, as text.
        archiver: 0 if there is none.
        archive_problem: why it cannot archive, empty if it can.
    """

    members: Mapping[int, tuple[MemberState, str]] = field(default_factory=dict)
    standbys: Mapping[str, int] | None = None
    begun_term: int | None = None
    primary: str | None = None
    primary_problem: str = ""
    tli: int = 0
    change: str | None = None
    members_text: str = ""
    archiver: int = 0
    archive_problem: str = ""


def look_at(
    view: ProposerView,
    *,
    up: frozenset[int],
    full: frozenset[int],
    problems: Mapping[int, str],
    primary: str | None,
    primary_problem: str,
    serves: bool,
) -> Look:
    """Return what is to be compared of a proxy's state.

    Args:
        up: the safekeepers that are connected.
        full: those that refuse WAL for want of disk space.
        problems: why each safekeeper does not count, empty if it does, by id.
        primary, primary_problem: see Look.
        serves: whether commits succeed.
    """
    led = view.led
    if view.is_spare and led is None:
        return Look(primary=primary, primary_problem=primary_problem)
    archive = led.archive if led is not None else None
    change = members_text = None
    if led is not None:
        present = [member.id for member in led.membership.members]
        members_text = _listed(present)
        wanted = [member.id for member in led.wanted.members]
        change = f"{members_text} to {_listed(wanted)}" if led.is_changing else ""
    return Look(
        {i: (_state(view, i, up, full), problem) for i, problem in problems.items()},
        {row.standby.name: row.safekeeper_id for row in view.standbys if row.connected},
        view.term if serves else None,
        primary,
        primary_problem,
        led.tli if led is not None else 0,
        change,
        members_text or "",
        archive.archiver if archive is not None else 0,
        archive.problem if archive is not None else "",
    )


def _state(view: ProposerView, safekeeper_id: int, up: frozenset[int], full: frozenset[int]) -> MemberState:
    member = view.led.members.get(safekeeper_id) if view.led is not None else None
    if view.peers[safekeeper_id].refused:
        return MemberState.REFUSED
    if safekeeper_id in full:
        return MemberState.DISK_FULL
    if safekeeper_id not in up:
        return MemberState.LOST
    if member is not None and member.follows and not member.voter:
        return MemberState.LEARNER
    return MemberState.PRESENT


class StateEvents:
    """Remembers what was reported.

    Args:
        now: the time of the start.
    """

    def __init__(self, now: float) -> None:
        self._started_at = now
        self._members: dict[int, MemberState] = {}
        self._standbys: dict[str, int] = {}
        self._begun_term = 0
        self._primary: str | None = None
        self._tli = 0
        self._change = ""
        self._archiver = 0
        self._archive_problem = ""

    def compare(self, look: Look, now: float) -> list[StateEvent]:
        """Return the events since the last look."""
        return [
            *self._of_primary(look),
            *self._of_term(look),
            *self._of_members(look, now),
            *self._of_change(look),
            *self._of_standbys(look),
            *self._of_archive(look),
        ]

    def _of_primary(self, look: Look) -> Iterator[StateEvent]:
        if look.primary == self._primary:
            return
        before, self._primary = self._primary, look.primary
        if look.primary is not None:
            yield StateEvent("primary-streams", {"host": look.primary}, f"WAL is received from {look.primary}")
        else:
            reason = f": {look.primary_problem}" if look.primary_problem else ""
            yield StateEvent("primary-lost", {"host": before or ""}, f"no WAL is received from {before}{reason}")

    def _of_term(self, look: Look) -> Iterator[StateEvent]:
        if look.begun_term is not None and look.begun_term != self._begun_term:
            self._begun_term = look.begun_term
            fields = {"term": look.begun_term, "tli": look.tli}
            yield StateEvent("term-begun", fields, f"commits succeed in term {look.begun_term} on timeline {look.tli}")
        if look.tli and look.tli != self._tli:
            before, self._tli = self._tli, look.tli
            if before:
                fields = {"tli": look.tli, "before": before}
                yield StateEvent("timeline-switched", fields, f"timeline {look.tli} follows timeline {before}")

    def _of_members(self, look: Look, now: float) -> Iterator[StateEvent]:
        for safekeeper_id, (state, problem) in look.members.items():
            before = self._members.get(safekeeper_id)
            if state is before:
                continue
            if before is None and state is MemberState.LOST and now - self._started_at < START_S:
                continue  # It may be connected soon.
            self._members[safekeeper_id] = state
            fields = {"safekeeper": safekeeper_id}
            if state is not MemberState.PRESENT:
                text = f"safekeeper {safekeeper_id}: {problem or 'it receives WAL as a learner'}"
                yield StateEvent(state.value, fields, text)
            elif before is not None:
                yield StateEvent(state.value, fields, f"safekeeper {safekeeper_id} takes part again")

    def _of_change(self, look: Look) -> Iterator[StateEvent]:
        if look.change is None or look.change == self._change:
            return
        before, self._change = self._change, look.change
        if look.change and not before:
            yield StateEvent("members-change-begun", {"change": look.change}, f"the members change from {look.change}")
        elif before and not look.change:
            members = look.members_text
            yield StateEvent("members-change-done", {"members": members}, f"the members are {members}")

    def _of_standbys(self, look: Look) -> Iterator[StateEvent]:
        if look.standbys is None:
            return
        before, self._standbys = self._standbys, dict(look.standbys)
        for name, safekeeper_id in look.standbys.items():
            if before.get(name) != safekeeper_id:
                fields = {"standby": name, "safekeeper": safekeeper_id}
                yield StateEvent("standby-connected", fields, f"standby {name} streams from safekeeper {safekeeper_id}")
        for name, safekeeper_id in before.items():
            if name not in look.standbys:
                fields = {"standby": name, "safekeeper": safekeeper_id}
                yield StateEvent(
                    "standby-lost", fields, f"standby {name} no longer streams from safekeeper {safekeeper_id}"
                )

    def _of_archive(self, look: Look) -> Iterator[StateEvent]:
        if not look.archiver:
            return
        fields = {"safekeeper": look.archiver}
        if look.archiver != self._archiver:
            self._archiver = look.archiver
            yield StateEvent("archiver-assigned", fields, f"safekeeper {look.archiver} is the archiver")
        if bool(look.archive_problem) != bool(self._archive_problem):
            if look.archive_problem:
                text = f"safekeeper {look.archiver} cannot archive: {look.archive_problem}"
                yield StateEvent("archive-failing", fields, text)
            else:
                yield StateEvent("archive-well", fields, f"safekeeper {look.archiver} archives again")
        self._archive_problem = look.archive_problem


def _listed(ids: list[int]) -> str:
    return ", ".join(str(each) for each in sorted(ids))
