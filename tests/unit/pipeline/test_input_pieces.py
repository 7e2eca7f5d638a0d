"""What a job reads: pieces, their look-ahead, the safe end of a stream."""

import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.waldecode.format import PAGE_SIZE, RECORD_HEADER_SIZE
from tests.unit.record_bodies import of_length
from tests.unit.wal_builder import MIB, WalBuilder
from tests.unit.wal_places import extend, make_log
from walproxy.pipeline.decoder.pages import content_position
from walproxy.pipeline.input.pieces import (
    AS_NEEDED_LSN,
    UNLIMITED_LSN,
    PlannedPiece,
    decode_piece,
    plan_pieces,
    safe_end,
)
from walproxy.pipeline.input.wal_input import Buffer, room_for
from walproxy.wal_sources.source import Extent, LogPath, Origin, SourceCorrupt, WalMissing

PATH = LogPath(1, (), MIB)


class BuiltInput:
    """A log as an input; it says which bytes were read, and has no others than those of `extents`."""

    name = "the built log"

    def __init__(self, wal: WalBuilder, extents: Sequence[Extent] = ()) -> None:
        self.wal = wal
        self._extents = list(extents) or [Extent(wal.begin_lsn, wal.position)]
        self.reads: list[Extent] = []

    def origin(self) -> Origin:
        return Origin(7, MIB)

    def log_path(self, tli: int | None = None) -> LogPath:
        return PATH

    def extents(self, path: LogPath, begin_lsn: Lsn = 0) -> list[Extent]:
        return self._extents

    def read(self, path: LogPath, begin_lsn: Lsn, end_lsn: Lsn, into: Buffer | None = None) -> Buffer:
        self.reads.append(Extent(begin_lsn, end_lsn))
        if not any(extent.begin_lsn <= begin_lsn and end_lsn <= extent.end_lsn for extent in self._extents):
            raise WalMissing(f"nothing from {format_lsn(begin_lsn)} to {format_lsn(end_lsn)}")
        room = room_for(begin_lsn, end_lsn, into)
        room[:] = memoryview(self.wal.read(begin_lsn, end_lsn))
        return room


def starts(wal_input: BuiltInput, pieces: Sequence[PlannedPiece]) -> list[Lsn]:
    """Return where the records begin that all pieces have together."""
    return [int(lsn) for piece in pieces for lsn in decode_piece(wal_input, PATH, piece).lsn]


def starts_in(wal: WalBuilder, begin_lsn: Lsn, end_lsn: Lsn, available_lsn: Lsn) -> list[Lsn]:
    """Return where the records begin that should be found."""
    return [
        record.start_lsn
        for record in wal.records
        if begin_lsn <= record.start_lsn < end_lsn and record.end_lsn <= available_lsn
    ]


# The plan.


def test_pieces_end_where_segments_do() -> None:
    extents = [Extent(MIB, 4 * MIB + 100)]
    assert plan_pieces(PATH, extents) == [
        PlannedPiece(MIB, 2 * MIB, 4 * MIB + 100),
        PlannedPiece(2 * MIB, 3 * MIB, 4 * MIB + 100),
        PlannedPiece(3 * MIB, 4 * MIB, 4 * MIB + 100),
        PlannedPiece(4 * MIB, 4 * MIB + 100, 4 * MIB + 100),
    ]
    assert plan_pieces(PATH, extents, 2 * MIB + PAGE_SIZE + 5, 3 * MIB + 7) == [
        PlannedPiece(2 * MIB + PAGE_SIZE, 3 * MIB, 4 * MIB + 100),
        PlannedPiece(3 * MIB, 3 * MIB + 7, 4 * MIB + 100),
    ]
    assert plan_pieces(PATH, extents, 2 * MIB, 4 * MIB, whole_until_lsn=4 * MIB) == [
        PlannedPiece(2 * MIB, 3 * MIB, UNLIMITED_LSN),
        PlannedPiece(3 * MIB, 4 * MIB, AS_NEEDED_LSN),
    ]
    # Within a page no record goes on behind a safe end, and nothing behind it may be there.
    assert plan_pieces(PATH, extents, 2 * MIB, 2 * MIB + 80, whole_until_lsn=2 * MIB + 96) == [
        PlannedPiece(2 * MIB, 2 * MIB + 80, 2 * MIB + 96)
    ]


HOLED = [Extent(MIB, 2 * MIB), Extent(4 * MIB, 5 * MIB), Extent(6 * MIB, 6 * MIB + 50)]


@pytest.mark.parametrize(
    ("begin_lsn", "end_lsn", "problem"),
    [
        (
            None,
            None,
            "000000010000000000000002 is missing: no WAL from 0/200000 to 0/400000; find that file, or skip the "
            "gap with --allow-gaps",
        ),
        (4 * MIB, None, "000000010000000000000005 is missing: no WAL from 0/500000 to 0/600000; "),
        (3 * MIB, 3 * MIB + 10, "000000010000000000000003 is missing: no WAL from 0/300000 to 0/30000A; "),
        (0, MIB + 5, "no WAL from 0/0 on: the WAL begins at 0/100000, begin there, or find 000000010000000000"),
        (6 * MIB, 7 * MIB, "no WAL up to 0/700000 yet: the WAL ends at 0/600032, end there, or wait"),
    ],
)
def test_wal_that_is_missing_is_named_by_file_and_lsn(begin_lsn: Lsn | None, end_lsn: Lsn | None, problem: str) -> None:
    with pytest.raises(WalMissing, match=re.escape(problem)) as caught:
        plan_pieces(PATH, HOLED, begin_lsn, end_lsn)
    assert "\n" not in str(caught.value)


def test_gaps_that_are_allowed_are_passed_over_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    pieces = plan_pieces(PATH, HOLED, 0, 7 * MIB, allow_gaps=True)
    assert pieces == [
        PlannedPiece(MIB, 2 * MIB, 2 * MIB),
        PlannedPiece(4 * MIB, 5 * MIB, 5 * MIB),
        PlannedPiece(6 * MIB, 6 * MIB + 50, 6 * MIB + 50),
    ]
    assert len(caplog.messages) == 4
    assert all(message.endswith(": skipped") for message in caplog.messages)
    assert plan_pieces(PATH, HOLED, MIB, 4 * MIB + PAGE_SIZE, allow_gaps=True, whole_until_lsn=4 * MIB + PAGE_SIZE) == [
        PlannedPiece(MIB, 2 * MIB, 2 * MIB),
        PlannedPiece(4 * MIB, 4 * MIB + PAGE_SIZE, AS_NEEDED_LSN),
    ]


def test_an_empty_range_is_refused_in_one_line() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^nothing to read from 0/200000 to 0/200000: the WAL goes from 0/100000 to 0/600032$"
    ):
        plan_pieces(PATH, HOLED, 2 * MIB, 2 * MIB)
    with pytest.raises(ConfigurationError, match="nothing to read from 0/700000 to 0/600032"):
        plan_pieces(PATH, HOLED, 7 * MIB)
    with pytest.raises(WalMissing, match="timeline 1 has no WAL yet"):
        plan_pieces(PATH, [], MIB)


# Pieces with what their records need.


def test_pieces_together_have_each_record_once() -> None:
    wal = make_log(6 * MIB)
    wal_input = BuiltInput(wal)
    assert starts(wal_input, plan_pieces(PATH, wal_input.extents(PATH))) == [r.start_lsn for r in wal.records]
    assert sum(read.end_lsn - read.begin_lsn for read in wal_input.reads) < 6 * MIB + 6 * 70_000


def test_a_record_over_many_segments_is_read_with_the_piece_in_which_it_begins() -> None:
    wal = make_log(MIB + 900_000)
    wal.add(of_length(5_000_000))
    extend(wal, wal.position + 100_000)
    wal_input = BuiltInput(wal)
    pieces = plan_pieces(PATH, wal_input.extents(PATH))
    assert starts(wal_input, pieces) == [r.start_lsn for r in wal.records]
    assert starts(wal_input, pieces[1:4]) == []


def test_a_record_that_is_not_wholly_there_is_left_out_at_the_end_and_before_a_gap() -> None:
    wal = make_log(4 * MIB)
    gap = [Extent(MIB, 2 * MIB), Extent(3 * MIB, 4 * MIB - 40_000)]
    wal_input = BuiltInput(wal, gap)
    pieces = plan_pieces(PATH, gap, allow_gaps=True)
    expected = starts_in(wal, MIB, 2 * MIB, 2 * MIB) + starts_in(wal, 3 * MIB, 4 * MIB, 4 * MIB - 40_000)
    assert starts(wal_input, pieces) == expected
    # The same as the end of a stream that had seen more of it: nothing may be left out then.
    safe_lsn = safe_end(BuiltInput(wal), PATH, MIB, wal.position)
    assert safe_lsn > gap[1].end_lsn
    whole = plan_pieces(PATH, [Extent(3 * MIB, wal.position)], 3 * MIB, safe_lsn, whole_until_lsn=safe_lsn)
    with pytest.raises(WalMissing, match="nothing from 0/300000 to"):
        starts(wal_input, whole)


def test_wal_that_is_not_valid_is_reported_with_its_file_and_checksums() -> None:
    wal = make_log(3 * MIB)
    record = next(record for record in wal.records if record.start_lsn > MIB + 500_000)
    wal.data[record.start_lsn + 100 - MIB] ^= 1
    wal_input = BuiltInput(wal)
    expected = rf"^WAL at {format_lsn(record.start_lsn)}: .*checksum should be [0-9A-F]{{8}} and is [0-9A-F]{{8}}; in "
    with pytest.raises(SourceCorrupt, match=expected + "000000010000000000000001 of the built log$"):
        starts(wal_input, plan_pieces(PATH, wal_input.extents(PATH)))


def test_wal_of_another_system_is_reported() -> None:
    wal = make_log(2 * MIB, system_id=8)
    wal_input = BuiltInput(wal)
    with pytest.raises(
        SourceCorrupt, match="000000010000000000000001 of the built log is WAL of the system 8, not of 7"
    ):
        starts(wal_input, plan_pieces(PATH, wal_input.extents(PATH)))


def test_the_zeros_behind_a_switch_are_no_damage_wherever_a_piece_begins() -> None:
    wal = make_log(MIB + 300_000)
    wal.switch()
    extend(wal, 2 * MIB + 100_000)
    wal_input = BuiltInput(wal)
    available_lsn = wal.position
    for cut_lsn in (MIB + 704 * 1024, 2 * MIB - PAGE_SIZE):
        pieces = plan_pieces(PATH, [Extent(MIB, available_lsn)], cut_lsn)
        assert starts(wal_input, pieces) == starts_in(wal, 2 * MIB, available_lsn, UNLIMITED_LSN)
    wal.data[2 * MIB - PAGE_SIZE - MIB + 5] = 1
    with pytest.raises(SourceCorrupt, match="WAL at 0/1FE000: page magic"):
        starts(wal_input, plan_pieces(PATH, [Extent(MIB, available_lsn)], 2 * MIB - PAGE_SIZE))


# The safe end.


LOG = make_log(3 * MIB, longest=60_000)
LONG = make_log(MIB + 200_000)
LONG.add(of_length(1_500_000))
extend(LONG, LONG.position + 50_000)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([LOG, LONG]), st.data())
def test_below_the_safe_end_is_every_record_that_is_wholly_there_and_no_other(
    wal: WalBuilder, data: st.DataObject
) -> None:
    begin_lsn = MIB + PAGE_SIZE * data.draw(st.integers(0, 120))
    available_lsn = data.draw(st.integers(begin_lsn, wal.position))
    # A record that was under way where the stream stands was handed out with the batch before.
    under_way = [r for r in wal.records if r.start_lsn < begin_lsn < r.end_lsn]
    if any(r.end_lsn > available_lsn for r in under_way):
        return
    wal_input = BuiltInput(wal, [Extent(MIB, available_lsn)])
    safe_lsn = safe_end(wal_input, PATH, begin_lsn, available_lsn)
    assert begin_lsn <= safe_lsn <= available_lsn
    is_below = {record.start_lsn < safe_lsn for record in wal.records if record.end_lsn <= available_lsn}
    assert [r for r in wal.records if begin_lsn <= r.start_lsn < safe_lsn and r.end_lsn > available_lsn] == []
    assert [r for r in wal.records if safe_lsn <= r.start_lsn and r.end_lsn <= available_lsn] == []
    assert is_below <= {True}


def streamed(wal: WalBuilder, position_lsn: Lsn, available_lsn: Lsn) -> tuple[list[Lsn], Lsn]:
    """Return the records of the batch of a stream that stands at `position_lsn`, and where it stands then."""
    wal_input = BuiltInput(wal, [Extent(MIB, available_lsn)])
    end_lsn = safe_end(wal_input, PATH, position_lsn, available_lsn)
    if end_lsn <= position_lsn:
        return [], position_lsn
    pieces = plan_pieces(PATH, wal_input.extents(PATH), position_lsn, end_lsn, whole_until_lsn=end_lsn)
    # Pieces begin at pages; whoever reads on passes over what he has had.
    return [lsn for lsn in starts(wal_input, pieces) if lsn >= position_lsn], end_lsn


def test_a_record_that_ends_with_the_page_is_there_though_nothing_behind_it_is() -> None:
    for segment_end in (False, True):
        wal = make_log(2 * MIB - 50_000)
        while True:
            wal.data += bytes(-len(wal.data) % 8)
            border_lsn = 2 * MIB if segment_end else wal.position + -wal.position % PAGE_SIZE
            room = content_position(border_lsn, MIB) - content_position(wal.position, MIB)
            if room > 100:
                break
            wal.add(of_length(3))
        wal.add(of_length(room - RECORD_HEADER_SIZE))
        assert wal.position == border_lsn
        found, position_lsn = streamed(wal, MIB, border_lsn)
        assert found == [record.start_lsn for record in wal.records]
        before = len(wal.records)
        extend(wal, wal.position + 30_000)
        more, _ = streamed(wal, position_lsn, wal.records[-1].end_lsn - 8)
        assert more == [record.start_lsn for record in wal.records[before:-1]]


def test_a_switched_segment_is_streamed_though_the_next_one_is_not_there() -> None:
    wal = make_log(MIB + 300_000)
    wal.switch()
    found, position_lsn = streamed(wal, MIB, 2 * MIB)
    assert found == [record.start_lsn for record in wal.records]
    before = len(wal.records)
    extend(wal, 2 * MIB + 100_000)
    more, _ = streamed(wal, position_lsn, wal.records[-1].start_lsn)
    assert more == [record.start_lsn for record in wal.records[before:-1]]


def test_what_a_stream_has_seen_of_a_record_behind_a_page_is_needed_when_it_is_read_again() -> None:
    wal = make_log(3 * MIB)
    record = next(record for record in wal.records if record.start_lsn < 2 * MIB < record.end_lsn)
    seen = plan_pieces(PATH, [Extent(MIB, 3 * MIB)], MIB, 2 * MIB, whole_until_lsn=2 * MIB)
    assert record.start_lsn in starts(BuiltInput(wal, [Extent(MIB, 3 * MIB)]), seen)
    less = BuiltInput(wal, [Extent(MIB, 2 * MIB)])
    again = plan_pieces(PATH, less.extents(PATH), MIB, 2 * MIB, whole_until_lsn=2 * MIB)
    with pytest.raises(WalMissing, match="nothing from 0/200000 to"):
        starts(less, again)


def test_a_stream_that_goes_from_safe_end_to_safe_end_has_each_record_once() -> None:
    found: list[Lsn] = []
    position_lsn, available_lsn = MIB, MIB
    while available_lsn < LONG.position:
        available_lsn = min(available_lsn + 77_777, LONG.position)
        more, position_lsn = streamed(LONG, position_lsn, available_lsn)
        found += more
    assert LONG.records[-1].end_lsn > LONG.position  # Its padding is not there.
    assert position_lsn == LONG.records[-1].start_lsn
    assert found == starts_in(LONG, MIB, position_lsn, LONG.position)
