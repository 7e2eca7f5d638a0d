"""The decoder finds in real WAL what pg_waldump finds, record by record, whatever the pieces are that it gets.

The same with a hundred megabytes and more is in tests/torture/test_pipeline_decoder.py.
"""

from collections.abc import Iterator

import pytest

from tests.pipeline.decoder_comparison import Compared, arrays_of_pieces, differing
from tests.pipeline.pg_waldump import stats
from tests.pipeline.wal_maker import MIB, make_wal
from tests.scratch import scratch_folder
from walproxy.pipeline.input.opening import open_input
from walproxy.pipeline.input.pieces import decode_piece, plan_pieces
from walproxy.postgres.local_server import find_servers

SEGMENT_MIB_OF_MAJOR = {15: 1, 17: 16, 18: 1}
PAGE_SIZE = 8192
LOOKED_AT = 6 * MIB


@pytest.fixture(
    scope="module", params=[15, pytest.param(17, marks=pytest.mark.nightly), 18], ids=lambda major: f"pg{major}"
)
def compared(request: pytest.FixtureRequest) -> Iterator[Compared]:
    major: int = request.param
    if major not in find_servers():
        pytest.skip(f"no PostgreSQL {major} on this machine")
    with scratch_folder() as folder:
        segment_mib = SEGMENT_MIB_OF_MAJOR[major]
        yield Compared(make_wal(find_servers()[major], folder / "wal", segment_mib=segment_mib, rows=1500))


def test_every_record_of_both_timelines_is_what_pg_waldump_says(compared: Compared) -> None:
    assert compared.differences(1) == []
    assert compared.differences(2) == []
    assert compared.rows(1).majors == {compared.made.major}


def test_the_sums_are_those_of_pg_waldump(compared: Compared) -> None:
    made = compared.made
    assert compared.rows(1).sums_by_operation() == stats(made.binaries, made.folder, 1, made.begin_lsn)


def test_a_record_belongs_to_the_timeline_that_wrote_it(compared: Compared) -> None:
    wal = open_input(str(compared.made.folder))
    path = wal.log_path()
    assert path.lineage == ((1, compared.made.fork_lsn),)
    found = {1: 0, 2: 0}
    for piece in plan_pieces(path, wal.extents(path)):
        decoded = decode_piece(wal, path, piece)
        assert decoded.tli.tolist() == [path.tli_of(lsn) for lsn in decoded.lsn.tolist()]
        for tli in found:
            found[tli] += int((decoded.tli == tli).sum())
    assert (found[1], sum(found.values())) == (
        len(compared.dump(1).before(compared.made.fork_lsn)),
        len(compared.dump(2)),
    )


def test_the_wal_has_nearly_every_kind_of_record(compared: Compared) -> None:
    rows = compared.rows(1)
    rmgrs = {rmgr for rmgr, _ in rows.sums_by_operation()}
    assert len(rmgrs) >= 21, rmgrs  # CLOG has a record in 32,768 transactions
    assert len(rows.sums_by_operation()) > 85
    assert ("XLOG", "OVERWRITE_CONTRECORD") in rows.sums_by_operation()
    images = rows.tables["blocks"].group_by(["has_image", "image_applied"]).aggregate([]).num_rows
    assert images == 3
    transactions = rows.tables["transactions"].to_pylist()
    assert {t["outcome"] for t in transactions} == {"commit", "abort", "prepare", "commit_prepared", "abort_prepared"}
    assert max(len(t["subxids"]) for t in transactions) > 64
    assert any(t["origin_lsn"] for t in transactions)
    assert any(t["remote_apply"] for t in transactions)


def test_the_pieces_make_no_difference(compared: Compared) -> None:
    log = compared.log(1)
    whole = arrays_of_pieces(log, log.borders(log.segment_size))
    assert differing(whole, arrays_of_pieces(log, log.borders(3 * PAGE_SIZE))) == []
    # Page by page the last part only, with all images, the torn record and the fork.
    tail = log.tail(LOOKED_AT)
    assert (
        differing(
            arrays_of_pieces(tail, tail.borders(tail.segment_size)), arrays_of_pieces(tail, tail.borders(PAGE_SIZE))
        )
        == []
    )
