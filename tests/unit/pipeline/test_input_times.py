"""From times to LSNs: nothing of the time asked for is left out, though times do not rise strictly."""

import random
from datetime import UTC, datetime, timedelta

import pytest

from safekeeper.base.lsn import Lsn
from tests.unit.pipeline.test_input_pieces import PATH, BuiltInput
from tests.unit.record_bodies import body, of_length
from tests.unit.wal_builder import MIB, WalBuilder
from walproxy.pipeline.input.times import MARGIN_S, begin_of_time, end_of_time
from walproxy.wal_sources.source import Extent

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class TimedLog:
    """WAL in which transactions end every now and then, in no strict order, and for a while not at all.

    Attributes:
        ends: (time, LSN where the record ends), in the order of the log.
        seconds: how long it takes.
    """

    def __init__(self, seed: int, *, jitter_s: float = 0, seconds: int = 720, records_a_second: int = 1) -> None:
        rng = random.Random(seed)
        self.seconds = seconds
        self.wal = WalBuilder(begin_lsn=MIB, system_id=7)
        self.ends: list[tuple[datetime, Lsn]] = []
        for second in range(seconds):
            for _ in range(records_a_second):
                self.wal.add(of_length(rng.randrange(3, 18_000)))
            if not 0.4 < second / seconds < 0.6:
                self.end(
                    NOON + timedelta(seconds=second + rng.uniform(-jitter_s, jitter_s)), rng.choice((0, 0x20, 0x30))
                )

    def end(self, time: datetime, operation: int) -> None:
        """Add a record that ends a transaction."""
        microseconds = (time - EPOCH) // timedelta(microseconds=1)
        record = self.wal.add(body(microseconds.to_bytes(8, "little", signed=True) + bytes(8)), rmid=1, info=operation)
        self.ends.append((time, record.end_lsn))


# A few segments in many minutes, and several in a second: then times are out of order over segments.
SLOW, BUSY = {"seconds": 720, "records_a_second": 1}, {"seconds": 24, "records_a_second": 250}


@pytest.mark.parametrize("rate", [SLOW, BUSY], ids=["slow", "busy"])
@pytest.mark.parametrize("jitter_s", [0, MARGIN_S / 2 - 0.1])
def test_no_transaction_of_a_time_is_left_out(jitter_s: float, rate: dict[str, int]) -> None:
    log = TimedLog(5, jitter_s=jitter_s, **rate)
    wal_input = BuiltInput(log.wal)
    extents = wal_input.extents(PATH)
    first_lsn = extents[0].begin_lsn
    for share in (-0.1, 0, 0.01, 0.1, 0.25, 0.35, 0.4, 0.45, 0.5, 0.59, 0.65, 0.7, 0.8, 0.9, 0.98, 1, 1.2):
        time = NOON + timedelta(seconds=share * log.seconds)
        begin_lsn, end_lsn = begin_of_time(wal_input, PATH, extents, time), end_of_time(wal_input, PATH, extents, time)
        late = [end for at, end in log.ends if at >= time]
        early = [end for at, end in log.ends if at <= time]
        # All that ended at or after the time, and nothing before the first of these.
        assert begin_lsn == max((end for _, end in log.ends if not late or end < late[0]), default=first_lsn)
        # All that ended at or before the time, and nothing behind the last of these.
        assert end_lsn == max(early, default=first_lsn)


def test_a_time_is_found_without_reading_everything() -> None:
    log = TimedLog(6)
    wal_input = BuiltInput(log.wal)
    begin_of_time(wal_input, PATH, wal_input.extents(PATH), NOON + timedelta(seconds=600))
    read = {segment for each in wal_input.reads for segment in range(each.begin_lsn // MIB, each.end_lsn // MIB)}
    assert len(read) < (log.wal.position // MIB) - 2


def test_holes_are_passed_over() -> None:
    log = TimedLog(7)
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
