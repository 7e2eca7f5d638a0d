"""From times to LSNs: nothing of the time asked for is left out, though times do not rise strictly."""

import random
from datetime import UTC, datetime, timedelta

import pytest

from safekeeper.lsn import Lsn
from tests.unit.record_bodies import body, of_length
from tests.unit.test_pipeline_input_pieces import PATH, BuiltInput
from tests.unit.wal_builder import MIB, WalBuilder
from walproxy.pipeline.input.times import MARGIN_S, begin_of_time, end_of_time
from walproxy.pipeline.input.wal_input import Extent

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class TimedLog:
    """Twelve minutes of WAL: transactions end every second or so, in no strict order, and not at all in one segment.

    Attributes:
        ends: (time, LSN where the record ends), in the order of the log.
    """

    def __init__(self, seed: int, jitter_s: float) -> None:
        rng = random.Random(seed)
        self.wal = WalBuilder(begin_lsn=MIB, system_id=7)
        self.ends: list[tuple[datetime, Lsn]] = []
        for second in range(720):
            for _ in range(rng.randrange(3)):
                self.wal.add(of_length(rng.randrange(3, 9_000)))
            if 300 <= second < 420:
                self.wal.add(of_length(15_000))
            else:
                self.end(
                    NOON + timedelta(seconds=second + rng.uniform(-jitter_s, jitter_s)), rng.choice((0, 0x20, 0x30))
                )

    def end(self, time: datetime, operation: int) -> None:
        """Add a record that ends a transaction."""
        microseconds = (time - EPOCH) // timedelta(microseconds=1)
        record = self.wal.add(body(microseconds.to_bytes(8, "little", signed=True) + bytes(8)), rmid=1, info=operation)
        self.ends.append((time, record.end_lsn))


@pytest.mark.parametrize("jitter_s", [0, MARGIN_S / 2 - 0.1])
def test_no_transaction_of_a_time_is_left_out(jitter_s: float) -> None:
    log = TimedLog(5, jitter_s)
    wal_input = BuiltInput(log.wal)
    extents = wal_input.extents(PATH)
    first_lsn = extents[0].begin_lsn
    for second in (-30, 0, 1, 7, 100, 299, 300, 333, 419, 420, 500, 718, 800):
        time = NOON + timedelta(seconds=second)
        begin_lsn, end_lsn = begin_of_time(wal_input, PATH, extents, time), end_of_time(wal_input, PATH, extents, time)
        late = [end for at, end in log.ends if at >= time]
        early = [end for at, end in log.ends if at <= time]
        assert all(end > begin_lsn for end in late)
        assert all(end <= end_lsn for end in early)
        # And no more than that: what is in vain ended within the margin.
        before_first = [end for at, end in log.ends if not late or end < late[0]]
        assert begin_lsn == max(before_first, default=first_lsn)
        assert end_lsn == max(early, default=first_lsn)


def test_a_time_is_found_without_reading_everything() -> None:
    log = TimedLog(6, 0)
    wal_input = BuiltInput(log.wal)
    begin_of_time(wal_input, PATH, wal_input.extents(PATH), NOON + timedelta(seconds=600))
    read = {segment for each in wal_input.reads for segment in range(each.begin_lsn // MIB, each.end_lsn // MIB)}
    assert len(read) < (log.wal.position // MIB) - 2


def test_holes_are_passed_over() -> None:
    log = TimedLog(7, 0)
    extents = [Extent(MIB, 2 * MIB), Extent(4 * MIB, log.wal.position)]
    wal_input = BuiltInput(log.wal, extents)
    time, _ = next(end for end in log.ends if end[1] > 3 * MIB)
    assert begin_of_time(wal_input, PATH, extents, time) == max(end for _, end in log.ends if end <= 2 * MIB)


def test_a_log_in_which_no_transaction_ended_begins_where_it_begins() -> None:
    wal = WalBuilder(begin_lsn=MIB, system_id=7)
    wal.add(of_length(50_000))
    wal_input = BuiltInput(wal)
    assert begin_of_time(wal_input, PATH, wal_input.extents(PATH), NOON) == MIB
    assert end_of_time(wal_input, PATH, wal_input.extents(PATH), NOON) == MIB
