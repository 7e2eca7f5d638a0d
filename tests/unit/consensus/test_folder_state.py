"""A data folder only moves forward: what is known of one is compared with what it has."""

import pytest

from safekeeper.consensus.folder_state import FolderState, is_older, latest, learn, successor_of


def state(starts: int = 2, term: int = 5, flush_lsn: int = 100, safekeeper_id: int = 1) -> FolderState:
    return FolderState(safekeeper_id, "a" * 32, starts, term, flush_lsn)


@pytest.mark.parametrize(
    ("now", "older"),
    [
        (state(), False),
        (state(starts=3), False),
        (state(term=6, flush_lsn=10), False),  # A later term may have cut it.
        (state(flush_lsn=101), False),
        (state(starts=1), True),
        (state(starts=1, term=6), True),
        (state(flush_lsn=99), True),
        (state(starts=9, term=4, flush_lsn=1000), True),
    ],
)
def test_a_folder_is_older_if_its_starts_or_its_log_have_gone_back(now: FolderState, older: bool) -> None:
    assert is_older(now, state()) is older
    assert not is_older(now, None)


def test_what_is_known_of_a_folder_only_grows() -> None:
    known = learn({}, [state(starts=7, term=4, flush_lsn=900), state(), state(safekeeper_id=2)])
    assert known == {(1, "a" * 32): state(starts=7), (2, "a" * 32): state(safekeeper_id=2)}
    assert latest(state(starts=0, term=0, flush_lsn=0), known[1, "a" * 32]) == state(starts=7)


def test_the_incarnation_after_an_older_copy_is_another_one_for_each_leader_that_finds_it() -> None:
    successors = {
        successor_of("a" * 32, 5, "run1"),
        successor_of("a" * 32, 6, "run1"),
        successor_of("a" * 32, 5, "run2"),
    }
    assert len(successors) == 3 and all(len(each) == 32 and each.isalnum() for each in successors)
    assert successor_of("a" * 32, 5, "run1") in successors
