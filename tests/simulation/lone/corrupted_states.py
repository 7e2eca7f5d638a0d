"""States that an error could leave in memory: the checks of the product must find these, and no others.

Theory of operation. `Acceptor.check` and `Proposer.check` stop a process before a wrong state does damage. In runs
without an error they never find anything, so nothing shows that they could. Here one attribute of a state is given
another value, near the others; whether the state is sound then is decided by a plain formula of what must hold
(docs/design/invariants.md). The check must find exactly what is not. The same holds for the end of a flush. Afterwards
everything is as it was.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.acceptor.following import Following
from safekeeper.base.errors import InvariantViolation
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.messages import PullWal
from tests.simulation.checks.violation import Violation
from tests.simulation.references.acceptor.histories import last_term
from walproxy.proposer.leadership import Leadership
from walproxy.proposer.phase import Phase
from walproxy.proposer.progress import Fetch, Progress, State
from walproxy.proposer.proposer import Proposer
from walproxy.proposer.pulling import Pull

_CAMPAIGNS = (Phase.PRE_VOTING, Phase.VOTING, Phase.VERIFYING)
_FOLLOWING = (State.STREAMING, State.FETCHING, State.PULLING)


def check_acceptor(rng: random.Random, acceptor: Acceptor) -> None:
    """Change one attribute of an acceptor, let it check its state, and undo all.

    Raises:
        Violation: it finds what is sound, or does not find what is not.
    """
    with _undone(acceptor), _undone(acceptor.following):
        if rng.random() < 0.1:
            flush_lsn = _near(rng, (acceptor.write_lsn, acceptor.flush_lsn, acceptor.commit_lsn))
            is_sound = acceptor.flush_lsn <= flush_lsn <= acceptor.write_lsn
            _require(partial(acceptor.flushed, flush_lsn), is_sound, f"an acceptor's flush up to {flush_lsn}")
            return
        name, value = _of_acceptor(rng, acceptor)
        setattr(acceptor, name, value)
        is_sound = _is_sound_acceptor(acceptor)
        checks: list[Callable[[], Any]] = [acceptor.check]
        is_advanced = acceptor.following is None or acceptor.following.commit_lsn <= acceptor.commit_lsn
        if acceptor.flush_lsn <= acceptor.write_lsn and is_advanced:
            checks.append(lambda: acceptor.flushed(acceptor.flush_lsn))
        _require(rng.choice(checks), is_sound, f"an acceptor with {name} {value}")


def check_proposer(rng: random.Random, proposer: Proposer) -> None:
    """Change one attribute of a proposer, of its term, or of a member in it; let it check its state, and undo all.

    Raises:
        Violation: it finds what is sound, or does not find what is not.
    """
    leadership, stage = proposer.leadership, proposer._stage
    if not proposer._stream.is_open and rng.random() < 0.1:
        _require_closed(rng, proposer)
    members = list(leadership.members.values()) if leadership is not None else []
    choices: list[Any] = [stage, proposer]
    if leadership is not None:
        choices += [leadership] * 4 + rng.choices(members, k=8) if members else [leadership] * 4
    owner = rng.choice(choices)
    with _undone(owner), _undone(leadership):
        name, value = _of_owner(rng, proposer, owner)
        setattr(owner, name, value)
        if isinstance(owner, Progress):
            owner.follows = owner.state in _FOLLOWING
        text = f"a proposer whose {type(owner).__name__} has {name} {value}"
        _require(proposer.check, _is_sound_proposer(proposer), text)


def _require_closed(rng: random.Random, proposer: Proposer) -> None:
    """Let WAL come of a COPY that is not open: the shell should have dropped it."""
    received: Callable[[], Any] = partial(Proposer.wal_received, proposer, proposer._stream.received_lsn + 1, 0.0)
    checked: Callable[[], Any] = partial(Proposer.primary_checked, proposer, 0, 0, (), 0.0)
    _require(rng.choice((received, checked)), False, "WAL of a COPY that is not open")


@contextmanager
def _undone(owner: Any) -> Iterator[None]:
    """Give an object its present attributes back at the end."""
    if owner is None:
        yield
        return
    names = getattr(type(owner), "__slots__", None) if not hasattr(owner, "__dict__") else None
    before = {name: getattr(owner, name) for name in names} if names is not None else dict(vars(owner))
    try:
        yield
    finally:
        for name, value in before.items():
            if getattr(owner, name) is not value:
                setattr(owner, name, value)


def _require(check: Callable[[], Any], is_sound: bool, text: str) -> None:
    try:
        check()
    except InvariantViolation as found:
        if is_sound:
            raise Violation("Checked", f"{text} is sound, and is found: {found}") from found
        return
    if not is_sound:
        raise Violation("Checked", f"{text} is not sound, and is not found")


def _near(rng: random.Random, positions: tuple[int, ...]) -> int:
    return max(0, rng.choice(positions) + rng.choice((0, 0, -1, 1, 500, -500)))


def _of_acceptor(rng: random.Random, acceptor: Acceptor) -> tuple[str, Any]:
    """Draw the attribute of an acceptor to change, and its value."""
    control, promised = acceptor.control, acceptor.control.promised
    positions = acceptor.write_lsn, acceptor.flush_lsn, acceptor.commit_lsn, acceptor.truncate_lsn
    other = LeaderId(max(0, promised.term + rng.choice((-1, 0, 1))), "run-z")
    pull = PullWal(rng.choice((promised, other)), 1, 1, 0, ())
    leader = rng.choice((None, promised, other))
    followed = acceptor.following or Following(promised, 1, 0, 0.0)
    return rng.choice(
        (
            ("write_lsn", _near(rng, positions)),
            ("flush_lsn", _near(rng, positions)),
            ("commit_lsn", _near(rng, positions)),
            ("truncate_lsn", _near(rng, positions)),
            ("control", msgspec.structs.replace(control, promised=other)),
            ("control", msgspec.structs.replace(control, starts=control.starts)),
            ("following", replace(followed, leader_id=leader) if leader is not None else None),
            ("following", replace(followed, connection=rng.choice((1, 2)))),
            ("following", replace(followed, pull=rng.choice((None, pull)))),
            ("logs_adopted", acceptor.logs_adopted + 1),
        )
    )


def _is_sound_acceptor(acceptor: Acceptor) -> bool:
    """Whether positions are in order, nothing has gone back, and the leader is the one that was promised."""
    control, before, following = acceptor.control, acceptor._checked, acceptor.following
    lsns = acceptor.commit_lsn, acceptor.truncate_lsn
    old_lsns = acceptor._checked_commit_lsn, acceptor._checked_truncate_lsn
    is_another_log = acceptor.logs_adopted != acceptor._checked_logs_adopted
    is_ordered = acceptor.flush_lsn <= acceptor.write_lsn and acceptor.truncate_lsn <= acceptor.commit_lsn
    keeps_positions = is_another_log or all(new >= old for new, old in zip(lsns, old_lsns, strict=True))
    keeps_promise = (
        control.promised.term >= before.promised.term and last_term(control.history) <= control.promised.term
    )
    leads = following is None or following.leader_id == control.promised
    pulls = following is None or following.pull is None or following.pull.leader_id == following.leader_id
    return is_ordered and keeps_positions and keeps_promise and leads and pulls


def _of_owner(rng: random.Random, proposer: Proposer, owner: Any) -> tuple[str, Any]:
    """Draw the attribute of a part of a proposer to change, and its value."""
    if owner is proposer:
        return "campaign", rng.choice((None, object()))
    if isinstance(owner, Leadership):
        positions = owner.truncate_lsn, owner.commit_lsn, owner.write_lsn, owner.received_lsn, owner.term_start_lsn, 0
        return rng.choice(("truncate_lsn", "commit_lsn", "write_lsn", "received_lsn")), _near(rng, positions)
    if isinstance(owner, Progress):
        assert proposer.leadership is not None
        positions = owner.flush_lsn, owner.write_lsn, owner.sent_lsn, proposer.leadership.received_lsn
        return rng.choice(
            (
                ("flush_lsn", _near(rng, positions)),
                ("write_lsn", _near(rng, positions)),
                ("sent_lsn", _near(rng, positions)),
                ("adopted", not owner.adopted),
                ("fetch", None if owner.fetch is not None else Fetch(1, 1, 1, 2)),
                ("pull", None if owner.pull is not None else Pull(1, 2, 1, 0.0, 0.0, False)),
                ("state", rng.choice(list(State))),
            )
        )
    return "phase", rng.choice(list(Phase))


def _is_sound_proposer(proposer: Proposer) -> bool:
    """Whether the phase is that of the state, and each position is in order and has not gone back."""
    leadership, phase = proposer.leadership, proposer.phase
    if leadership is None:
        return phase is not Phase.LEADING and (proposer.campaign is not None) == (phase in _CAMPAIGNS)
    commit_lsn, truncate_lsn, received_lsn = leadership.commit_lsn, leadership.truncate_lsn, leadership.received_lsn
    old_commit_lsn, old_truncate_lsn = leadership._checked
    return (
        phase is Phase.LEADING
        and proposer.campaign is None
        and commit_lsn >= old_commit_lsn
        and truncate_lsn >= old_truncate_lsn
        and truncate_lsn <= commit_lsn <= leadership.write_lsn <= received_lsn
        and (commit_lsn == 0 or commit_lsn >= leadership.term_start_lsn)
        and all(_is_sound_member(member, received_lsn) for member in leadership.members.values())
    )


def _is_sound_member(member: Progress, received_lsn: int) -> bool:
    """Whether a member has what its state needs, and nothing else, and has no more than was sent or received."""
    if (member.fetch is not None) != (member.state is State.FETCHING):
        return False
    if (member.pull is not None) != (member.state is State.PULLING):
        return False
    if not member.flush_lsn <= member.write_lsn <= received_lsn:
        return False
    if member.state in _FOLLOWING:
        return member.adopted and member.write_lsn <= member.sent_lsn <= received_lsn
    return member.adopted or member.flush_lsn == 0
