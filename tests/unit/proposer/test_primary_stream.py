"""The primary's COPY as the consensus sees it."""

import pytest

from safekeeper.base.errors import InvariantViolation
from safekeeper.consensus.term_history import HistoryEntry
from walproxy.proposer.actions import StartReplication
from walproxy.proposer.primary_stream import CheckRange, PrimaryStream, check_range

ONE_THEN_TWO = (HistoryEntry(1, 1024, 1), HistoryEntry(2, 2048, 2))


def test_the_comparison_begins_in_the_segment_of_the_last_byte() -> None:
    assert check_range(ONE_THEN_TWO, 1024, 3072, 2, 1024) == CheckRange(2048, 2)
    assert check_range(ONE_THEN_TWO, 1024, 3073, 2, 1024) == CheckRange(3072, 2)


def test_before_a_fork_on_a_segments_border_the_bytes_are_the_older_timelines() -> None:
    assert check_range(ONE_THEN_TWO, 1024, 2048, 2, 1024) == CheckRange(1024, 1)
    # Within a segment the newer timeline's file has the older one's bytes, too.
    assert check_range(ONE_THEN_TWO, 1024, 2049, 2, 1024) == CheckRange(2048, 2)


def test_at_the_very_base_of_a_log_there_is_nothing_to_compare() -> None:
    assert check_range((), 0, 1024, 3, 1024) == CheckRange(1024, 3)
    assert check_range(ONE_THEN_TWO, 1024, 1024, 3, 1024) == CheckRange(1024, 3)


def test_what_comes_from_a_primary_that_is_not_to_be_streamed_is_our_own_mistake() -> None:
    stream = PrimaryStream()
    with pytest.raises(InvariantViolation, match="must not be streamed"):
        stream.require_open()
    stream.start(StartReplication(1024, 1, 1024, 1))
    stream.require_open()
    stream.disconnected()
    with pytest.raises(InvariantViolation):
        stream.require_open()
