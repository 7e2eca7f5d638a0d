import msgspec
import pytest

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.lsn import LSN_MAX
from safekeeper.consensus.term_history import (
    HISTORY_ENTRIES_MAX,
    Divergence,
    HistoryEntry,
    TermHistory,
    bound_history,
    check_history,
    cut_history,
    describe_history,
    divergence,
    forget_front,
    last_term,
    listed_terms,
    next_tli_switch,
    term_end,
    tli_at,
)


def history(*entries: tuple[int, int, int]) -> TermHistory:
    return tuple(HistoryEntry(*entry) for entry in entries)


ONE_TO_FIVE = history((1, 100, 1), (3, 200, 1), (5, 300, 2))


def test_a_history_that_increases_is_accepted() -> None:
    check_history(())
    check_history(ONE_TO_FIVE)
    check_history(history((1, 1, 1)))  # the least of everything
    check_history(history((1, LSN_MAX, 1)))
    check_history(history((1, 100, 1), (2, 100, 1)))  # adopted, and nothing written


@pytest.mark.parametrize(
    "bad",
    [
        history((0, 100, 1)),
        history((1, 0, 1)),
        history((1, 100, 0)),
        history((1, LSN_MAX + 1, 1)),
        (HistoryEntry(1, 100, 1, floor=-1),),
        history((2, 100, 1), (2, 200, 1)),
        history((2, 100, 1), (1, 200, 1)),
        history((1, 100, 1), (2, 99, 1)),
        history((1, 100, 2), (2, 200, 1)),
    ],
)
def test_a_history_that_no_honest_peer_has_is_refused(bad: TermHistory) -> None:
    with pytest.raises(RemoteProtocolError):
        check_history(bad)


def test_a_log_has_the_entries_that_start_at_or_below_its_end() -> None:
    assert cut_history(ONE_TO_FIVE, 99) == ()
    assert cut_history(ONE_TO_FIVE, 299) == ONE_TO_FIVE[:2]
    assert cut_history(ONE_TO_FIVE, 300) == ONE_TO_FIVE


def test_the_last_term_of_nothing_is_0() -> None:
    assert last_term(()) == 0
    assert last_term(ONE_TO_FIVE) == 5


def test_the_timeline_of_a_byte_is_that_of_the_entry_that_it_lies_in() -> None:
    assert [tli_at(ONE_TO_FIVE, lsn) for lsn in (50, 100, 299, 300, 1000)] == [1, 1, 1, 2, 2]
    assert tli_at((), 100) == 0


def test_the_next_switch_is_the_first_entry_of_another_timeline_above() -> None:
    assert next_tli_switch(ONE_TO_FIVE, 100) == 300
    assert next_tli_switch(ONE_TO_FIVE, 300) == LSN_MAX


def test_a_term_ends_where_the_next_one_starts_or_at_the_end_of_the_log() -> None:
    assert term_end(ONE_TO_FIVE, 1, 1000) == 300
    assert term_end(ONE_TO_FIVE, 2, 1000) == 1000


def test_logs_part_at_the_end_of_the_last_common_term_in_the_shorter_one() -> None:
    other = history((1, 100, 1), (3, 200, 1), (4, 250, 1))
    assert divergence(ONE_TO_FIVE, 400, other) == Divergence(250)
    assert divergence(other, 400, ONE_TO_FIVE) == Divergence(250)


def test_a_log_that_the_other_continues_parts_at_its_own_end() -> None:
    assert divergence(ONE_TO_FIVE, 400, (*ONE_TO_FIVE, HistoryEntry(6, 500, 2))) == Divergence(400)
    assert divergence(ONE_TO_FIVE, 250, ONE_TO_FIVE) == Divergence(250)


def test_what_the_other_log_has_given_up_is_said_of_the_entry_with_which_it_leaves_ours() -> None:
    given_up = (*ONE_TO_FIVE[:2], HistoryEntry(6, 250, 3, gives_up=True), HistoryEntry(7, 400, 3))
    assert divergence(ONE_TO_FIVE, 400, given_up) == Divergence(250, gives_up=True)
    assert divergence(given_up, 500, (*given_up, HistoryEntry(8, 450, 3))) == Divergence(450, gives_up=False)
    gives_up_later = (*ONE_TO_FIVE[:2], HistoryEntry(6, 250, 3), HistoryEntry(7, 400, 3, gives_up=True))
    assert divergence(ONE_TO_FIVE, 400, gives_up_later) == Divergence(250, gives_up=False)
    later = (*ONE_TO_FIVE, HistoryEntry(6, 400, 3, gives_up=True))
    assert divergence(history((1, 100, 1), (4, 150, 1)), 400, (*ONE_TO_FIVE[:1], *later[1:])) == Divergence(150)


def test_logs_without_a_common_term_share_nothing() -> None:
    assert divergence(ONE_TO_FIVE, 400, history((2, 100, 1))) is None
    assert divergence(ONE_TO_FIVE, 99, ONE_TO_FIVE) is None


def test_two_histories_of_one_term_are_a_forgery() -> None:
    with pytest.raises(RemoteProtocolError, match="term 3"):
        divergence(ONE_TO_FIVE, 400, history((1, 100, 1), (3, 201, 1)))
    with pytest.raises(RemoteProtocolError, match="term 5"):
        divergence(ONE_TO_FIVE, 400, history((1, 100, 1), (4, 200, 1), (5, 300, 2)))


def test_a_history_without_its_oldest_entries_still_matches() -> None:
    assert divergence(ONE_TO_FIVE[1:], 400, ONE_TO_FIVE) == Divergence(400)
    assert divergence(ONE_TO_FIVE, 400, ONE_TO_FIVE[1:]) == Divergence(400)
    assert divergence(ONE_TO_FIVE, 400, (*ONE_TO_FIVE[1:], HistoryEntry(9, 350, 3))) == Divergence(350)


def test_a_person_can_read_it() -> None:
    assert describe_history(history((1, 0x1000000, 1), (3, 0x2000028, 2))) == "1@0/1000000/1 3@0/2000028/2"


LONG = history((1, 100, 1), (2, 150, 1), (4, 200, 2), (5, 250, 2), (6, 300, 2), (8, 400, 3), (9, 500, 3))


def test_entries_below_what_is_kept_go_but_the_one_that_it_begins_in_and_the_first_of_each_timeline() -> None:
    assert forget_front(LONG, 0, 420) == ((LONG[0], LONG[2], LONG[5], LONG[6]), 6)
    assert forget_front(LONG, 0, 400) == ((LONG[0], LONG[2], *LONG[4:]), 5)
    assert forget_front(LONG, 0, 100) == (LONG, 0)
    assert forget_front(LONG, 0, 0) == (LONG, 0)


def test_to_forget_twice_forgets_no_more() -> None:
    shorter, forgotten_term = forget_front(LONG, 0, 420)
    assert forget_front(shorter, forgotten_term, 420) == (shorter, 6)


def test_too_many_terms_are_forgotten_from_the_oldest_on_as_far_as_they_are_committed() -> None:
    long = history(*((term, 1000 + term, 1) for term in range(1, HISTORY_ENTRIES_MAX + 101)))
    bounded, forgotten_term = bound_history(long, 0, LSN_MAX)
    assert bounded == (long[0], *long[100:]) and forgotten_term == 100
    assert bound_history(bounded, forgotten_term, LSN_MAX) == (bounded, forgotten_term)
    # The first that stays has begun below what is committed.
    bounded, forgotten_term = bound_history(long, 0, long[50].start_lsn + 1)
    assert bounded == (long[0], *long[50:]) and forgotten_term == 50
    assert bound_history(long, 0, 0) == (long, 0)
    assert bound_history(long[:HISTORY_ENTRIES_MAX], 0, LSN_MAX) == (long[:HISTORY_ENTRIES_MAX], 0)


@pytest.mark.parametrize("count", [1, 2, HISTORY_ENTRIES_MAX - 1, HISTORY_ENTRIES_MAX, HISTORY_ENTRIES_MAX + 1])
def test_a_history_that_fits_is_not_shortened(count: int) -> None:
    long = history(*((term, 1000 + term, 1) for term in range(1, count + 1)))
    bounded, forgotten_term = bound_history(long, 0, LSN_MAX)
    # Of one entry too many the first one would go, which stays as the first one of its timeline.
    assert (bounded, forgotten_term) == (long, 0)


@pytest.mark.parametrize(("above", "kept_from"), [(0, 49), (1, 50), (2, 51), (51, 100), (52, 100)])
def test_the_oldest_entry_that_stays_begins_below_what_is_committed(above: int, kept_from: int) -> None:
    long = history(*((term, 1000 + term, 1) for term in range(1, HISTORY_ENTRIES_MAX + 101)))
    bounded, forgotten_term = bound_history(long, 7, long[50].start_lsn + above)
    assert bounded == (long[0], *long[kept_from:]) and forgotten_term == kept_from
    # What was forgotten before stays so.
    assert bound_history(long, 90, long[50].start_lsn + above)[1] == max(90, kept_from)


def test_terms_that_are_forgotten_say_nothing_of_where_two_logs_part() -> None:
    shorter, forgotten_term = forget_front(LONG, 0, 420)
    assert divergence(LONG, 600, shorter, forgotten_term) == Divergence(600)
    assert divergence(LONG[:6], 450, shorter, forgotten_term) == Divergence(450)
    # The first entries of the timelines are in both, and what comes behind them is not.
    assert divergence(LONG[:4], 280, shorter, forgotten_term) is None


def test_a_history_is_listed_with_each_field_of_its_entries() -> None:
    entry = HistoryEntry(3, 0x200000028, 2, True, 1, 4)
    assert all(value not in (0, False) for value in msgspec.structs.astuple(entry))
    assert [msgspec.structs.asdict(each) for each in listed_terms((*ONE_TO_FIVE, entry))[3:]] == [
        msgspec.structs.asdict(entry) | {"start_lsn": "2/28"}
    ]
