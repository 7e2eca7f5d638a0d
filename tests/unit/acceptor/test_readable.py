"""What a reader may be sent next (S7): every case as a row."""

import pytest

from safekeeper.acceptor.readable import (
    Gone,
    NothingToSend,
    ReadableLog,
    Removed,
    SendRange,
    Step,
    TimelineEnd,
    lineage_of,
    next_step,
    refusal_of_start,
)
from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.timelines import format_timeline_history
from safekeeper.consensus.control_state import ControlState, TliHistory
from safekeeper.consensus.term_history import HistoryEntry

# Timeline 1 up to 300, then 2 up to 500, then 4; here from 100 on, readable up to 700.
LOG = ReadableLog(begin_lsn=100, end_lsn=700, tli=4, lineage=((1, 300), (2, 500)))


@pytest.mark.parametrize(
    ("tli", "position_lsn", "step"),
    [
        (4, 600, SendRange(600, 700)),
        (4, 100, SendRange(100, 700)),  # Below its fork the bytes are its ancestors'.
        (4, 699, SendRange(699, 700)),
        (4, 700, NothingToSend()),
        (4, 900, NothingToSend()),  # It began beyond what is readable yet.
        (4, 99, Removed(99, 100)),
        (2, 100, SendRange(100, 500)),
        (2, 499, SendRange(499, 500)),
        (2, 500, TimelineEnd(4, 500)),
        (2, 501, TimelineEnd(4, 500)),  # It was sent more before the fork was known.
        (1, 299, SendRange(299, 300)),
        (1, 300, TimelineEnd(2, 300)),
        (1, 99, Removed(99, 100)),
        (3, 600, Gone()),
        (5, 600, Gone()),
    ],
)
def test_a_learner_gets_its_timelines_readable_bytes_and_no_others(tli: int, position_lsn: int, step: Step) -> None:
    assert next_step(LOG, tli, position_lsn) == step


@pytest.mark.parametrize(
    ("end_lsn", "tli", "step"),
    [
        (700, 4, NothingToSend()),  # The new timeline is not committed yet.
        (701, 4, Gone()),  # The old one went on after all, with bytes that may be others.
        (700, 2, TimelineEnd(4, 500)),
    ],
)
def test_a_learner_that_was_sent_more_than_there_is_goes_on_with_a_new_timeline_only(
    end_lsn: int, tli: int, step: Step
) -> None:
    assert next_step(LOG._replace(end_lsn=end_lsn), tli, 650, retreated_to_lsn=700) == step


def test_nothing_is_sent_of_a_log_in_which_nothing_is_committed() -> None:
    log = ReadableLog(begin_lsn=100, end_lsn=0, tli=1, lineage=())
    assert next_step(log, 1, 100) == NothingToSend()


@pytest.mark.parametrize(("tli", "limit_lsn"), [(1, 300), (2, 500), (4, 700)])
def test_no_byte_beyond_the_readable_end_or_the_fork_is_ever_sent(tli: int, limit_lsn: int) -> None:
    for position_lsn in range(90, 800):
        step = next_step(LOG, tli, position_lsn)
        assert not isinstance(step, SendRange) or step == SendRange(position_lsn, limit_lsn)


@pytest.mark.parametrize(
    ("tli", "begin_lsn", "message", "detail"),
    [
        (3, 600, "requested timeline 3 is not in this server's history", ""),
        (9, 600, "requested timeline 9 is not in this server's history", ""),
        (
            2,
            501,
            "requested starting point 0/1F5 on timeline 2 is not in this server's history",
            "This server's history forked from timeline 2 at 0/1F4.",
        ),
        (
            1,
            400,
            "requested starting point 0/190 on timeline 1 is not in this server's history",
            "This server's history forked from timeline 1 at 0/12C.",
        ),
    ],
)
def test_a_start_that_is_not_in_the_history_is_refused(tli: int, begin_lsn: int, message: str, detail: str) -> None:
    assert refusal_of_start(LOG, tli, begin_lsn) == (message, detail)


@pytest.mark.parametrize(("tli", "begin_lsn"), [(4, 100), (4, 5000), (2, 500), (1, 300), (1, 0)])
def test_a_start_in_the_history_is_not_refused(tli: int, begin_lsn: int) -> None:
    assert refusal_of_start(LOG, tli, begin_lsn) is None


def control(*tlis: tuple[int, int], files: dict[int, bytes] | None = None) -> ControlState:
    entries = tuple(HistoryEntry(term, lsn, tli) for term, (lsn, tli) in enumerate(tlis, start=1))
    return ControlState(
        safekeeper_id=1,
        incarnation="a" * 32,
        history=entries,
        tli_histories=tuple(TliHistory(tli, content) for tli, content in (files or {}).items()),
    )


def test_the_lineage_comes_from_the_history_file() -> None:
    lineage = ((1, 50), (2, 300))
    state = control((100, 2), (300, 3), files={3: format_timeline_history(lineage)})
    assert lineage_of(state, 3) == lineage


def test_without_a_file_the_lineage_comes_from_the_terms() -> None:
    state = control((100, 1), (200, 1), (300, 2), (300, 4), (400, 4), (500, 5))
    assert lineage_of(state, 4) == ((1, 300), (2, 300))
    assert lineage_of(state, 1) == ()


def test_a_history_file_that_is_not_understood_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        lineage_of(control((100, 2), files={2: b"nonsense"}), 2)
