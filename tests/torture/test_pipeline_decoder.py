"""A hundred megabytes of WAL of each server and more: the decoder finds what pg_waldump finds, whatever its pieces."""

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.decoder_comparison import Compared, arrays_of_pieces, differing
from tests.pipeline.pg_waldump import stats
from tests.pipeline.wal_maker import MIB, make_wal
from walproxy.postgres.local_server import find_servers

WAL_MIB = int(os.environ.get("WALPROXY_TORTURE_PIPELINE_WAL_MIB", "120"))
SEGMENT_MIB_OF_MAJOR = {15: 16, 17: 1, 18: 16}
PAGE_SIZE = 8192


@pytest.fixture(scope="module", params=SEGMENT_MIB_OF_MAJOR, ids=lambda major: f"pg{major}")
def compared(request: pytest.FixtureRequest) -> Iterator[Compared]:
    major: int = request.param
    if major not in find_servers():
        pytest.skip(f"no PostgreSQL {major} on this machine")
    with tempfile.TemporaryDirectory(prefix="walproxy-torture-") as folder:
        made = make_wal(
            find_servers()[major],
            Path(folder) / "wal",
            segment_mib=SEGMENT_MIB_OF_MAJOR[major],
            volume_bytes=WAL_MIB * MIB,
            rows=40_000,
        )
        yield Compared(made)


@pytest.mark.timeout(1800)
def test_every_record_of_both_timelines_is_what_pg_waldump_says(compared: Compared) -> None:
    made = compared.made
    assert len(compared.log(1).wal) >= WAL_MIB * MIB
    assert compared.differences(1) == []
    assert compared.differences(2) == []
    assert compared.rows(1).sums_by_operation() == stats(made.binaries, made.folder, 1, made.begin_lsn)
    assert len({rmgr for rmgr, _ in compared.rows(1).sums_by_operation()}) == 22
    old, new = compared.dump(1), compared.dump(2)
    print(
        f"\nPostgreSQL {made.major}, segments of {made.segment_size // MIB} MiB: {len(compared.log(1).wal) // MIB} MiB "
        f"with {len(old)} records on timeline 1 and {len(new)} up to the end of 2, {len(old.blocks)} block references, "
        f"{len(old.transactions)} ends of transactions, {len(compared.rows(1).sums_by_operation())} kinds of records"
    )


@pytest.mark.timeout(1800)
def test_the_pieces_make_no_difference(compared: Compared) -> None:
    log = compared.log(1)
    began_at = time.monotonic()
    whole = arrays_of_pieces(log, log.borders(log.segment_size))
    print(f"\ndecoded by segments at {len(log.wal) / (time.monotonic() - began_at) / 1e6:.0f} MB/s")
    for step in (64 * MIB, 3 * PAGE_SIZE, PAGE_SIZE):
        assert differing(whole, arrays_of_pieces(log, log.borders(step))) == [], f"pieces of {step} bytes"
