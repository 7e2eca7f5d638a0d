"""The reference agrees with the acceptor, and finds wrong decisions in the event in which they are made."""

import inspect
import typing
from typing import Any

import pytest

from safekeeper.acceptor import effects as effects_module
from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.acceptor.acceptor_log import AcceptorLog
from safekeeper.acceptor.effects import Close, Effect, Effects, FlushWal, Send
from safekeeper.consensus.control_state import NOBODY, ControlState
from safekeeper.consensus.messages import Elected, ProposerGreeting, ProposerMessage, Refusal, RefusalCode
from tests.simulation.lone import acceptor as lone_acceptor
from tests.simulation.lone.acceptor import LoneAcceptor
from tests.simulation.references.acceptor.acceptor import NOT_MODELLED, ReferenceAcceptor
from tests.simulation.references.acceptor.checker import difference
from tests.simulation.seeds.counts import Counts
from tests.simulation.seeds.runner import Failure, Task, attempt
from tests.simulation.world.world import SimulationFailed

SEEDS = 12
RANDOM_SEEDS = 60


def _none_is_live(acceptor: Acceptor, now: float, *, needs_health: bool) -> str:
    return ""


def _claims_a_flush(acceptor: AcceptorLog) -> Effects:
    acceptor.flush_lsn = acceptor.write_lsn
    yield from ()


def _shows_open_forks(acceptor: AcceptorLog) -> int:
    return min(acceptor.commit_lsn, acceptor.flush_lsn)


@pytest.mark.parametrize(
    ("kind", "name", "wrong"),
    [
        (Acceptor, "_live_proposer_id", _none_is_live),
        (AcceptorLog, "_flush_all", _claims_a_flush),
        (AcceptorLog, "readable_lsn", property(_shows_open_forks)),
    ],
)
def test_a_wrong_decision_is_found_in_a_cluster(
    kind: type, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lone_acceptor, "drive", lambda seed: Counts())
    monkeypatch.setattr(kind, name, wrong)
    found = (outcome for seed in range(SEEDS) if isinstance(outcome := attempt(Task(seed)), Failure))
    assert next(found).invariant == "Reference"


def _always_superseded(acceptor: AcceptorLog, message: Elected) -> bool:
    return True


def _gives_up_again(acceptor: AcceptorLog, message: Elected) -> bool:
    return False


def _never_forgotten(acceptor: AcceptorLog, message: Elected) -> bool:
    return False


@pytest.mark.parametrize(
    ("holder", "name", "wrong"),
    [
        (AcceptorLog, "_is_superseded", _always_superseded),
        (AcceptorLog, "_gives_up_anew", _gives_up_again),
        (AcceptorLog, "_shares_forgotten_terms_only", _never_forgotten),
    ],
)
def test_a_wrong_decision_is_found_by_random_messages(
    holder: Any, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holder, name, wrong)
    with pytest.raises(SimulationFailed, match="Reference"):
        for seed in range(600):
            lone_acceptor.drive(seed)


def test_random_messages_reach_each_effect_and_each_refusal() -> None:
    requested: set[str] = set()
    for seed in range(RANDOM_SEEDS):
        lone = LoneAcceptor(seed, history_entries_max=10_000)
        lone.run(150)
        requested |= lone.requested
    effects = {each.__name__ for each in typing.get_args(effects_module.Effect)}
    assert effects | set(RefusalCode) == requested


def test_each_message_is_modelled() -> None:
    reference = ReferenceAcceptor(ControlState(safekeeper_id=1, incarnation="x"), 0, _NoWal(), 10)
    assert {ProposerGreeting, *reference._steps} == set(typing.get_args(ProposerMessage))
    assert set(NOT_MODELLED) >= {"AgentExchange", "EventExchange"}


class _NoWal:
    def record_end(self, lsn: int) -> int:
        return 0

    def last_record_start(self, lsn: int) -> int:
        return 0

    def last_timed_record(self, begin_lsn: int, end_lsn: int) -> int:
        return 0

    def read(self, begin_lsn: int, end_lsn: int) -> bytes:
        return b""

    def page_crcs(self, begin_lsn: int, end_lsn: int) -> tuple[int, ...]:
        return ()

    def is_set_aside_incomplete(self, label: str, control: ControlState) -> bool:
        return False


def test_the_reference_shares_no_code_with_the_acceptor() -> None:
    shared = ("safekeeper.acceptor.acceptor", "safekeeper.acceptor.trimming", "safekeeper.consensus")
    for kind in (ReferenceAcceptor, *ReferenceAcceptor.__mro__[1:-1]):
        for name, value in vars(inspect.getmodule(kind)).items():
            is_shared = inspect.isfunction(value) and value.__module__.startswith(shared)
            assert not is_shared, f"{name} of {value.__module__}"


def _refusal(code: RefusalCode, reason: str) -> Effect:
    return Send(1, Refusal(code, reason, NOBODY))


_OTHER_CODE = "Refusal.code is range, reference position"


@pytest.mark.parametrize(
    ("actual", "expected", "text"),
    [
        (_refusal(RefusalCode.RANGE, "here"), _refusal(RefusalCode.RANGE, ""), ""),
        (
            _refusal(RefusalCode.RANGE, ""),
            _refusal(RefusalCode.HISTORY, ""),
            "Refusal.code is range, reference history",
        ),
        (Close(1, "here"), Close(1, ""), ""),
        (Close(1, ""), Close(2, ""), "Close.connection is 1, reference 2"),
        (None, None, ""),
        (None, FlushWal(), "requests nothing, reference FlushWal()"),
        (FlushWal(), None, "requests FlushWal(), reference nothing"),
    ],
)
def test_effects_are_compared_but_not_their_wording(actual: Effect | None, expected: Effect | None, text: str) -> None:
    assert difference(actual, expected) == text
