"""The data source pgwal without Spark: its options, its tasks, and where its stream stands."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import format_lsn
from safekeeper.waldecode.format import PAGE_SIZE
from tests.unit.wal_builder import MIB
from tests.unit.wal_places import extend, fork, make_log, write_history, write_segments
from walproxy.pipeline.input.pieces import PlannedPiece
from walproxy.pipeline.source.options import SourceOptions
from walproxy.pipeline.source.stream import PgwalStreamReader
from walproxy.pipeline.source.tasks import WalPartition, grouped, input_of, prefetched
from walproxy.wal_sources.source import WalMissing

BIG = 16 * MIB


def parsed(**options: str) -> SourceOptions:
    return SourceOptions.parse({"path": "/wal", **options})


def reader_of(folder: Path, **options: str) -> PgwalStreamReader:
    input_of.cache_clear()
    return PgwalStreamReader(SourceOptions.parse({"path": str(folder), "columns": "lsn", **options}))


def records_of(reader: PgwalStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """The LSNs that the tasks of a batch give."""
    return [
        lsn
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for lsn in batch.column("lsn").to_pylist()
    ]


def test_options_have_any_case_and_sizes_any_unit() -> None:
    options = parsed(
        VIEW="blocks", startlsn="0/100", maxBytesPerTrigger="2MB", allowgaps="TRUE", **{"archive.Region": "x"}
    )
    assert (options.view, options.start_lsn, options.max_bytes_per_trigger) == ("blocks", 0x100, 2 << 20)
    assert options.allow_gaps
    assert options.archive_options == (("region", "x"),)


def test_columns_come_in_the_order_of_the_view() -> None:
    assert parsed(columns="xid, lsn").schema().names == ["lsn", "xid"]
    assert parsed(columns="xid").ddl() == "`xid` BIGINT NOT NULL"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"vieww": "records"}, "pgwal has no option 'vieww'"),
        ({"view": "rows"}, "unknown view 'rows'"),
        ({"columns": "lsn,nothing"}, "there is no column 'nothing'"),
        ({"startLsn": "12"}, "startLsn cannot be '12': write an LSN"),
        ({"startTime": "noon"}, "startTime cannot be 'noon': write a time"),
        ({"startLsn": "0/1", "startTime": "2026-01-01"}, "startLsn and startTime exclude each other"),
        ({"timeline": "-1"}, "timeline cannot be '-1': write a number above zero"),
        ({"maxBytesPerTrigger": "much"}, "maxBytesPerTrigger cannot be 'much': write a size"),
        ({"checkCrc": "maybe"}, "checkCrc cannot be 'maybe': write true or false"),
        ({"path": ""}, "pgwal needs a path"),
    ],
)
def test_an_option_that_cannot_be_is_named(options: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        parsed(**options)


def test_a_time_without_a_zone_is_of_this_machine() -> None:
    assert parsed(startTime="2026-01-01T00:00:00+02:00").start_time == datetime(2025, 12, 31, 22, tzinfo=UTC)
    time = parsed(startTime="2026-01-01T00:00:00").start_time
    assert time is not None
    assert time.tzinfo is not None


@pytest.mark.parametrize(
    ("pieces", "per_task", "cores", "sizes"),
    [
        (1, None, 2, [1]),
        (4, None, 2, [2, 2]),
        (32, None, 2, [8, 8, 8, 8]),
        (33, None, 2, [9, 8, 8, 8]),
        (100, None, 2, [16, 16, 16, 16, 16, 16, 4]),
        (10, None, 8, [2, 1, 1, 1, 2, 1, 1, 1]),
        (7, 3, 2, [3, 3, 1]),
    ],
)
def test_tasks_keep_every_core_busy_and_are_not_too_small(
    pieces: int, per_task: int | None, cores: int, sizes: list[int]
) -> None:
    planned = [PlannedPiece(n * BIG, (n + 1) * BIG, pieces * BIG) for n in range(pieces)]
    groups = grouped(planned, per_task, cores)
    assert [piece for group in groups for piece in group] == planned
    assert [len(group) for group in groups] == sizes


def test_items_are_made_ahead_and_their_error_is_raised_where_they_are_used() -> None:
    def items() -> Any:
        yield 1
        raise ConfigurationError("no more")

    made = prefetched(items())
    assert next(made) == 1
    with pytest.raises(ConfigurationError, match="no more"):
        next(made)


def test_whoever_wants_no_more_items_is_not_waited_for() -> None:
    made = prefetched(iter(range(1000)))
    assert next(made) == 0
    made.close()


def test_a_stream_gives_each_record_once_however_it_is_cut(tmp_path: Path) -> None:
    wal = make_log(4 * MIB)
    write_segments(tmp_path, wal)
    reader = reader_of(tmp_path)
    start = reader.initialOffset()
    found: list[int] = []
    while (end := reader.latestOffset(start, ReadMaxBytes(100_000))) != start:
        found += records_of(reader, start, end)
        start = end
    # What begins behind the last page that is whole waits for the next batch.
    assert found == [record.start_lsn for record in wal.records][: len(found)]
    assert len(found) > len(wal.records) - 10
    assert records_of(reader, reader.initialOffset(), start) == found


def test_a_batch_has_no_more_wal_than_is_allowed_but_a_page(tmp_path: Path) -> None:
    write_segments(tmp_path, make_log(3 * MIB))
    reader = reader_of(tmp_path, maxBytesPerTrigger="16kB")
    start = reader.initialOffset()
    assert reader.getDefaultReadLimit() == ReadMaxBytes(16 << 10)
    assert reader.latestOffset(start, ReadMaxBytes(16 << 10))["lsn"] == format_lsn(MIB + 2 * PAGE_SIZE)
    assert reader.latestOffset(start, ReadMaxBytes(1))["lsn"] == format_lsn(MIB + PAGE_SIZE)
    everything = reader.latestOffset(start, ReadAllAvailable())
    assert everything["lsn"] > format_lsn(3 * MIB - 50_000)


def test_a_batch_of_nothing_has_no_tasks(tmp_path: Path) -> None:
    write_segments(tmp_path, make_log(2 * MIB))
    reader = reader_of(tmp_path)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert reader.partitions(end, end) == []


def test_available_now_reads_nothing_that_came_later(tmp_path: Path) -> None:
    wal = make_log(2 * MIB)
    write_segments(tmp_path, wal)
    reader = reader_of(tmp_path)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    before = reader.latestOffset(start, ReadAllAvailable())
    write_segments(tmp_path, extend(wal, 4 * MIB))
    assert reader.latestOffset(start, ReadAllAvailable()) == before
    assert reader_of(tmp_path).latestOffset(start, ReadAllAvailable()) != before


def test_a_stream_begins_and_ends_within_a_page(tmp_path: Path) -> None:
    wal = make_log(3 * MIB, longest=500)
    write_segments(tmp_path, wal)
    lsns = [record.start_lsn for record in wal.records]
    begin, end = lsns[100], lsns[-500]
    reader = reader_of(tmp_path, startLsn=format_lsn(begin), endLsn=format_lsn(end))
    start = reader.initialOffset()
    assert records_of(reader, start, reader.latestOffset(start, ReadAllAvailable())) == lsns[100:-500]


def test_a_stream_follows_a_promotion(tmp_path: Path) -> None:
    wal = make_log(2 * MIB + 100_000)
    write_segments(tmp_path, wal)
    reader = reader_of(tmp_path)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end["tli"] == 1
    fork_lsn = wal.position
    child = extend(fork(wal, 2), 4 * MIB, seed=2)
    write_segments(tmp_path, child, [2 * MIB, 3 * MIB])
    write_history(tmp_path, 2, ((1, fork_lsn),))
    later = reader.latestOffset(end, ReadAllAvailable())
    assert later["tli"] == 2
    expected = [record.start_lsn for record in child.records]
    found = records_of(reader, start, end) + records_of(reader, end, later)
    assert found == expected[: len(found)]
    assert found[-1] > fork_lsn


def test_a_position_that_the_new_timeline_does_not_have_is_refused(tmp_path: Path) -> None:
    wal = make_log(3 * MIB)
    write_segments(tmp_path, wal)
    reader = reader_of(tmp_path)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    wal.tli = 2
    write_segments(tmp_path, wal, [2 * MIB])
    write_history(tmp_path, 2, ((1, 2 * MIB + 8192),))
    with pytest.raises(ConfigurationError, match=r"on timeline 1, .* timeline 2 .*, which left it at 0/202000"):
        reader_of(tmp_path).latestOffset(end, ReadAllAvailable())
    assert reader_of(tmp_path, timeline="1").latestOffset(end, ReadAllAvailable()) == end


def test_a_checkpoint_of_other_wal_is_refused(tmp_path: Path) -> None:
    write_segments(tmp_path, make_log(2 * MIB))
    reader = reader_of(tmp_path)
    offset = reader.initialOffset()
    for content, problem in (
        ({**offset, "system_id": "8"}, "the checkpoint is of the system 8, and .* has the WAL of 7: name the input"),
        ({**offset, "lsn": "5/0"}, "the stream is at 5/0, and the WAL of .* ends at 0/"),
        ({"offset": 3}, "is not one of pgwal: begin again"),
    ):
        with pytest.raises(ConfigurationError, match=problem):
            reader.latestOffset(content, ReadAllAvailable())


def test_wal_that_was_removed_before_it_was_read_is_missed(tmp_path: Path) -> None:
    wal = make_log(4 * MIB)
    write_segments(tmp_path, wal)
    offset = reader_of(tmp_path).initialOffset()
    next(tmp_path.glob("*1")).unlink()
    with pytest.raises(WalMissing, match="no WAL from 0/100000 on: the WAL begins at 0/200000"):
        reader_of(tmp_path).latestOffset(offset, ReadAllAvailable())
    passed_over = reader_of(tmp_path, allowGaps="true")
    end = passed_over.latestOffset(offset, ReadAllAvailable())
    assert records_of(passed_over, offset, end)[0] > 2 * MIB


def test_a_partition_can_be_sent_to_a_task(tmp_path: Path) -> None:
    import pickle

    write_segments(tmp_path, make_log(2 * MIB))
    reader = reader_of(tmp_path)
    start = reader.initialOffset()
    [partition] = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    sent = pickle.loads(pickle.dumps(partition))
    assert isinstance(sent, WalPartition)
    assert (sent.path, sent.pieces, sent.first_lsn) == (partition.path, partition.pieces, partition.first_lsn)
