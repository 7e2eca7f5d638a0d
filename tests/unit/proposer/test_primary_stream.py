"""The primary's COPY as the consensus sees it."""

from types import SimpleNamespace
from typing import Any

import pytest

from safekeeper.base.errors import InvariantViolation
from safekeeper.consensus.term_history import HistoryEntry
from walproxy.proposer.actions import StartReplication
from walproxy.proposer.primary import PrimaryIdentity
from walproxy.proposer.primary_stream import CheckRange, PrimaryStream, check_range

ONE_THEN_TWO = (HistoryEntry(1, 1024, 1), HistoryEntry(2, 2048, 2))


def test_the_comparison_begins_in_the_segment_of_the_last_byte() -> None:
    assert check_range(ONE_THEN_TWO, 1024, 3072, 2, 1024) == CheckRange(2048, 2)
    assert check_range(ONE_THEN_TWO, 1024, 3073, 2, 1024) == CheckRange(3072, 2)


def test_before_a_fork_on_a_segments_border_the_bytes_are_the_older_timelines() -> None:
    assert check_range(ONE_THEN_TWO, 1024, 2048, 2, 1024) == CheckRange(1024, 1)
    within = (HistoryEntry(1, 1024, 1), HistoryEntry(2, 1536, 2))
    assert check_range(within, 1024, 2048, 3, 1024) == CheckRange(1024, 2)
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


def test_a_stream_compares_if_it_begins_below_the_first_byte_that_the_log_lacks() -> None:
    stream = PrimaryStream(ended_lsn=7)
    for check_begin_lsn, compares in ((1024, False), (1023, True)):
        action = StartReplication(check_begin_lsn, 1, 1024, 2)
        assert stream.start(action) is action
        assert (stream.compares, stream.tli, stream.ended_lsn) == (compares, 2, None)
        assert stream.received_lsn == stream.window_begin_lsn == 1024


HISTORY = (HistoryEntry(3, 4096, 1), HistoryEntry(4, 6144, 2))
PRIMARY = PrimaryIdentity(system_id=7, tli=1, flush_lsn=9000, segment_size=1024, server_version=150000)


def leadership(received_lsn: int, tli: int = 2) -> Any:
    return SimpleNamespace(received_lsn=received_lsn, tli=tli, elected=SimpleNamespace(history=HISTORY))


def test_a_stream_continues_with_a_comparison_back_to_where_its_own_checksums_begin() -> None:
    stream = PrimaryStream(own_begin_lsn=5120, own_page_crcs=(1, 2))
    action = stream.resume(leadership(7000), PRIMARY)
    assert action == StartReplication(5120, 1, 7000, 2, resumes=True)
    assert (stream.is_open, stream.tli, stream.compares, stream.is_checked) == (True, 2, True, False)


def test_a_stream_cannot_continue_without_checksums_of_what_was_received() -> None:
    stream = PrimaryStream(own_begin_lsn=5120, is_checked=True)
    assert stream.resume(leadership(7000), PRIMARY) is None
    assert not stream.is_open


def test_a_stream_continues_at_the_very_base_of_the_log_without_a_comparison() -> None:
    stream = PrimaryStream()
    action = stream.resume(leadership(4096), PRIMARY)
    assert action == StartReplication(4096, 2, 4096, 2, resumes=True)
    assert (stream.compares, stream.is_checked, stream.is_open) == (False, True, True)


def test_the_end_of_the_connection_ends_what_was_expected_of_it_and_not_what_was_verified() -> None:
    stream = PrimaryStream(is_open=True, awaits_link=True, is_checked=True, ended_lsn=9, received_lsn=7)
    stream.identities_due = 2
    stream.disconnected()
    assert stream.identities_due == 0
    assert (stream.is_open, stream.awaits_link, stream.ended_lsn, stream.received_lsn) == (False, False, None, 7)
