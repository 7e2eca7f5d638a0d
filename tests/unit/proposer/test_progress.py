"""The states of a member in a term: which transitions are allowed, and what is true in each state."""

from collections.abc import Callable

import pytest

from safekeeper.base.errors import InvariantViolation
from walproxy.proposer.progress import TRANSITIONS, Fetch, Progress, State
from walproxy.proposer.pulling import Pull

FOLDER = (1, "a" * 32)
END = 1000


def streaming(sent_lsn: int = 900, write_lsn: int = 800, flush_lsn: int = 700) -> Progress:
    progress = Progress(FOLDER, voter=True)
    progress.become_streaming(flush_lsn)
    progress.sent_lsn, progress.write_lsn, progress.flush_lsn = sent_lsn, write_lsn, flush_lsn
    progress.check(END)
    return progress


def fetching() -> Progress:
    progress = streaming()
    progress.become_fetching(Fetch(1, 2, 900, 950))
    progress.check(END)
    return progress


PULL = Pull(1, 980, 900, 0.0, 0.0, is_limited=True)


def pulling() -> Progress:
    progress = streaming()
    progress.become_pulling(PULL)
    progress.check(END)
    return progress


def skipping() -> Progress:
    progress = streaming()
    progress.become_skipping(960)
    progress.check(END)
    return progress


def disconnected() -> Progress:
    progress = streaming()
    progress.become_disconnected()
    progress.check(END)
    return progress


IN_STATE: dict[State, Callable[[], Progress]] = {
    State.ADOPTING: lambda: Progress(FOLDER, voter=True),
    State.STREAMING: streaming,
    State.FETCHING: fetching,
    State.PULLING: pulling,
    State.SKIPPING: skipping,
    State.DISCONNECTED: disconnected,
}


def enter(progress: Progress, state: State) -> None:
    if state is State.STREAMING and progress.fetch is not None:
        progress.end_fetch()
    elif state is State.STREAMING and progress.pull is not None:
        progress.end_pull()
    elif state is State.STREAMING:
        progress.become_streaming(970)
        progress.sent_lsn = progress.write_lsn = 970
    elif state is State.FETCHING:
        progress.become_fetching(Fetch(1, 2, 900, 980))
    elif state is State.PULLING:
        progress.become_pulling(PULL)
    elif state is State.SKIPPING:
        progress.become_skipping(990)
    else:
        progress.become_disconnected()


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("other", [state for state in State if state is not State.ADOPTING])
def test_the_table_lists_the_transitions_that_are_allowed(state: State, other: State) -> None:
    progress = IN_STATE[state]()
    assert progress.state is state
    if other not in TRANSITIONS[state]:
        with pytest.raises(InvariantViolation, match=f"cannot change from {state.value} to {other.value}"):
            enter(progress, other)
    else:
        enter(progress, other)
        assert progress.state is other
        assert progress.follows == (other in (State.STREAMING, State.FETCHING, State.PULLING))
        progress.check(END)


def test_only_what_is_durable_outlives_a_connection() -> None:
    progress = fetching()
    progress.pull_allowed_at, progress.pull_problem, progress.pulled_bytes = 12.5, "lost", 300
    progress.become_disconnected()
    assert (progress.write_lsn, progress.fetch, progress.waiting_since) == (700, None, None)
    assert progress.is_doubted, "WAL was on its way"
    again = Progress.of(FOLDER, True, progress)
    assert (again.state, again.adopted, again.flush_lsn, again.write_lsn) == (State.ADOPTING, True, 700, 700)
    assert again.is_doubted and again.sent_lsn == 0
    assert (again.pull_allowed_at, again.pull_problem, again.pulled_bytes) == (12.5, "lost", 300)
    # Its folder came back with another incarnation.
    wiped = Progress.of((1, "b" * 32), False, progress)
    assert (wiped.adopted, wiped.flush_lsn) == (False, 0)


def test_an_end_of_the_connection_doubts_nothing_when_no_wal_was_on_its_way() -> None:
    progress = streaming(sent_lsn=800)
    progress.become_disconnected()
    assert not progress.is_doubted


@pytest.mark.parametrize(
    ("state", "change", "message"),
    [
        (State.STREAMING, {"flush_lsn": 801}, "streaming with flush_lsn 0/321, write_lsn 0/320"),
        (State.STREAMING, {"write_lsn": 1001, "sent_lsn": 1001}, "sent_lsn 0/3E9 of 0/3E8"),
        (State.STREAMING, {"write_lsn": 901}, "write_lsn 0/385, sent_lsn 0/384"),
        (State.STREAMING, {"sent_lsn": 1001}, "sent_lsn 0/3E9 of 0/3E8"),
        (State.STREAMING, {"adopted": False}, "adopted: False"),
        (State.FETCHING, {"adopted": False}, "adopted: False"),
        (State.ADOPTING, {"flush_lsn": 1, "write_lsn": 1}, "counts before it has adopted the term"),
        (State.DISCONNECTED, {"flush_lsn": 701}, "disconnected with flush_lsn 0/2BD, write_lsn 0/2BC"),
        (State.DISCONNECTED, {"write_lsn": 1001}, "write_lsn 0/3E9"),
        (State.FETCHING, {"fetch": None}, "fetching .* request: None"),
        (State.STREAMING, {"fetch": Fetch(1, 2, 3, 4)}, "streaming .* request: Fetch"),
        (State.PULLING, {"pull": None}, "pulling .* pull: None"),
        (State.STREAMING, {"pull": PULL}, "streaming .* pull: Pull"),
        (State.DISCONNECTED, {"pull": PULL}, "disconnected .* pull: Pull"),
        (State.SKIPPING, {"fetch": Fetch(1, 2, 3, 4)}, "skipping .* request: Fetch"),
        (State.DISCONNECTED, {"fetch": Fetch(1, 2, 3, 4)}, "disconnected .* request: Fetch"),
    ],
)
def test_what_cannot_be_is_noticed(state: State, change: dict[str, object], message: str) -> None:
    progress = IN_STATE[state]()
    for name, value in change.items():
        setattr(progress, name, value)
    with pytest.raises(InvariantViolation, match=message):
        progress.check(END)


def test_a_member_is_doubted_only_if_it_followed_when_its_connection_ended_with_wal_on_the_way() -> None:
    for state, is_doubted in ((State.STREAMING, True), (State.SKIPPING, False)):
        progress = IN_STATE[state]()
        assert progress.write_lsn < progress.sent_lsn
        progress.become_disconnected()
        assert progress.is_doubted is is_doubted


def test_the_position_that_a_member_is_to_skip_to_is_forgotten_when_it_follows_or_is_gone() -> None:
    for state in (State.STREAMING, State.DISCONNECTED):
        progress = skipping()
        assert progress.skipped_to_lsn == 960
        enter(progress, state)
        assert progress.skipped_to_lsn == 0
