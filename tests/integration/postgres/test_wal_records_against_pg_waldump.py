"""The decoder and pg_waldump read the same WAL of real servers and must find the same records in it.

Where a record ends is what pg_waldump does not print; pg_logical_emit_message() returns it.
"""

import itertools
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from safekeeper.base.lsn import format_lsn, parse_lsn, parse_segment_name, segment_start
from safekeeper.waldecode.continuity import LinkCheck
from safekeeper.waldecode.format import (
    PAGE_SIZE,
    RM_LOGICAL_MESSAGE,
    RM_XLOG,
    XLOG_OVERWRITE_CONTRECORD,
    XLOG_SWITCH,
    WalFormatError,
)
from safekeeper.waldecode.record_search import RecordEndSearch, find_records
from safekeeper.waldecode.records import Record, RecordDecoder
from tests.cluster_templates import cluster_template, init_by_copying
from tests.scratch import scratch_folder
from walproxy.postgres.local_server import LocalPostgres, find_servers

MIB = 1 << 20
# One server with the smallest segments, so that many borders are crossed, and one with the usual ones.
SEGMENT_MIB_OF_MAJOR = {15: 1, 18: 16}
RMGR_NAMES = [
    *("XLOG", "Transaction", "Storage", "CLOG", "Database", "Tablespace", "MultiXact", "RelMap", "Standby"),
    *("Heap2", "Heap", "Btree", "Hash", "Gin", "Gist", "Sequence", "SPGist", "BRIN", "CommitTs", "ReplicationOrigin"),
    *("Generic", "LogicalMessage"),
]
DUMPED = re.compile(
    r"rmgr: (\w+) +len \(rec/tot\): +\d+/ *(\d+), tx: +(\d+), lsn: ([0-9A-F/]+), prev ([0-9A-F/]+), desc: "
)


@dataclass
class RealWal:
    """The WAL in the folder of a stopped server, from the oldest segment to the last record."""

    server: LocalPostgres
    begin_lsn: int
    segment_size: int
    data: bytes  # up to the last byte of the last record
    records: list[Record]
    emitted_lsns: list[int]  # what the server called the ends of its logical messages

    @property
    def major(self) -> int:
        return self.server.binaries.major

    def read(self, begin_lsn: int, end_lsn: int) -> bytes:
        return self.data[begin_lsn - self.begin_lsn : end_lsn - self.begin_lsn]


def read_wal(server: LocalPostgres, segment_size: int, emitted_lsns: list[int]) -> RealWal:
    segments = {}
    for path in server.pg_wal.iterdir():
        parsed = parse_segment_name(path.name, segment_size)
        if parsed is not None:
            segments[parsed[1]] = path
    begin_lsn = min(segments)
    data = b"".join(segments[lsn].read_bytes() for lsn in sorted(segments))
    assert len(data) == len(segments) * segment_size
    assert sorted(segments) == list(range(begin_lsn, begin_lsn + len(data), segment_size))
    records = []
    # The last segment's rest is zeros, or old bytes if the file was recycled.
    decoder = RecordDecoder(begin_lsn, segment_size, {RM_LOGICAL_MESSAGE})
    with pytest.raises(WalFormatError):
        for record in decoder.walk(data):
            records.append(record)
    return RealWal(server, begin_lsn, segment_size, data[: records[-1].end_lsn - begin_lsn], records, emitted_lsns)


def dumped_by_pg_waldump(wal: RealWal) -> list[tuple[int, int, int, int, int]]:
    """Return (start_lsn, previous_lsn, total_length, rmid, xid) of all records."""
    program = wal.server.binaries.path("pg_waldump")
    command: list[str | Path] = [program, "-p", wal.server.pg_wal, "-s", format_lsn(wal.begin_lsn)]
    # It prints messages in full, in hexadecimal; the start of each line is enough.
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as dump:
        lines = subprocess.run(["cut", "-b", "1-160"], stdin=dump.stdout, capture_output=True, text=True, check=True)
    found = []
    for line in lines.stdout.splitlines():
        match = DUMPED.match(line)
        if match is not None:
            name, length, xid, start, previous = match.groups()
            found.append((parse_lsn(start), parse_lsn(previous), int(length), RMGR_NAMES.index(name), int(xid)))
    return found


def work(server: LocalPostgres) -> list[int]:
    """Write WAL of many kinds and return the ends of the logical messages in it."""
    messages = "SELECT pg_logical_emit_message(false, 'p', repeat('x', (n * 7919) % 311)) FROM generate_series(1, {}) n"
    ends = []
    server.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    server.execute("INSERT INTO t SELECT n, repeat('v', n % 97) FROM generate_series(1, 5000) n")
    ends += server.execute(messages.format(10_000))
    ends += server.execute("SELECT pg_logical_emit_message(true, 'big', repeat('b', 20 * 1024 * 1024))")
    server.execute("UPDATE t SET v = v || 'w'")
    for _ in range(3):
        server.execute("SELECT pg_switch_wal()")
        ends += server.execute(messages.format(200))
    return [parse_lsn(end) for (end,) in ends]


@pytest.fixture(scope="module", params=SEGMENT_MIB_OF_MAJOR)
def wal(request: pytest.FixtureRequest) -> Iterator[RealWal]:
    major: int = request.param
    if major not in find_servers():
        pytest.skip(f"no PostgreSQL {major} on this machine")
    settings = {"fsync": "off", "autovacuum": "off", "wal_keep_size": "1GB", "max_wal_size": "1GB"}
    with (
        scratch_folder() as folder,
        LocalPostgres(find_servers()[major], folder / "data", settings=settings) as server,
    ):
        init_by_copying(server, cluster_template(server.binaries, SEGMENT_MIB_OF_MAJOR[major])).start()
        emitted_lsns = work(server)
        server.stop()
        yield read_wal(server, SEGMENT_MIB_OF_MAJOR[major] * MIB, emitted_lsns)


def test_every_record_is_found_as_pg_waldump_finds_it(wal: RealWal) -> None:
    ours = [(r.start_lsn, r.previous_lsn, r.total_length, r.rmid, r.xid) for r in wal.records]
    assert ours == dumped_by_pg_waldump(wal)
    assert len(ours) > 15_000
    last = wal.records[-1]
    assert (last.rmid, last.info) == (RM_XLOG, 0), "the last record must be the checkpoint of the shutdown"


def test_a_record_ends_where_the_server_reported_its_end(wal: RealWal) -> None:
    ends = [record.end_lsn for record in wal.records if record.rmid == RM_LOGICAL_MESSAGE]
    assert ends == wal.emitted_lsns
    at_boundaries = [lsn for lsn in ends if lsn % PAGE_SIZE == 0]
    assert len(at_boundaries) > 5, "the workload should end records on page boundaries, too"


def test_each_record_begins_where_the_one_before_ended(wal: RealWal) -> None:
    for record, following in itertools.pairwise(wal.records):
        header = following.start_lsn - record.end_lsn
        if record.end_lsn % wal.segment_size == 0:
            assert header == 40
        else:
            assert header == (24 if record.end_lsn % PAGE_SIZE == 0 else 0)
    switches = [r for r in wal.records if r.rmid == RM_XLOG and r.info == XLOG_SWITCH]
    assert len(switches) == 3
    assert all(switch.end_lsn % wal.segment_size == 0 for switch in switches)


@pytest.mark.parametrize(("chunk", "length"), [(1, 200_000), (7, MIB), (8192, 1 << 30), (128 * 1024, 1 << 30)])
def test_the_chunks_make_no_difference(wal: RealWal, chunk: int, length: int) -> None:
    data = wal.data[:length]
    decoder = RecordDecoder(wal.begin_lsn, wal.segment_size, {RM_LOGICAL_MESSAGE})
    records: list[Record] = []
    for offset in range(0, len(data), chunk):
        records += decoder.feed(data[offset : offset + chunk])
    assert records == [record for record in wal.records if record.end_lsn <= wal.begin_lsn + len(data)]
    assert decoder.major == wal.major


def test_the_big_message_is_whole(wal: RealWal) -> None:
    big = max(wal.records, key=lambda record: record.total_length)
    assert big.body.endswith(b"b" * 20 * MIB)


def test_every_border_between_segments_links(wal: RealWal) -> None:
    size = wal.segment_size
    borders = range(wal.begin_lsn + size, wal.begin_lsn + len(wal.data), size)
    assert len(borders) >= 3
    begin = wal.begin_lsn
    unknown = []
    for border in borders:
        tail = find_records(wal.read, border, border - size, border, size).log_tail
        if tail is None:
            unknown.append(border)
            continue
        link = LinkCheck(tail, size)
        link.feed(wal.data[border - begin :])
        assert link.linked is True, link.reason
        other = LinkCheck(tail._replace(previous_lsn=tail.previous_lsn - 8, record_lsn=None, record_head=b""), size)
        other.feed(wal.data[border - begin :])
        assert other.linked is False
    # Segments inside the big message have no boundary; with all before them the same search finds one.
    big = max(wal.records, key=lambda record: record.total_length)
    assert unknown == [border for border in borders if big.start_lsn < border - size and border < big.end_lsn]
    if unknown:
        border = unknown[-1]
        tail = find_records(wal.read, border, begin, border, size).log_tail
        assert tail is not None
        assert LinkCheck(tail, size).feed(wal.data[border - begin :]) is True


def test_the_record_at_a_fork_is_found(wal: RealWal) -> None:
    at_boundaries = [n for n in range(1, len(wal.records)) if wal.records[n - 1].end_lsn % PAGE_SIZE == 0]
    for n in [*at_boundaries[:6], *range(1, len(wal.records), 3000)]:
        fork_lsn, record = wal.records[n - 1].end_lsn, wal.records[n]
        end_lsn = wal.begin_lsn + len(wal.data)
        half_lsn = record.start_lsn + record.total_length // 2
        for held_lsn, found_lsn in ((half_lsn, 0), (end_lsn, record.end_lsn)):
            around = find_records(wal.read, fork_lsn, wal.begin_lsn, held_lsn, wal.segment_size)
            assert (around.record_end_lsn, around.last_record_lsn) == (found_lsn, wal.records[n - 1].start_lsn)
            assert RecordEndSearch(fork_lsn, wal.segment_size).find(wal.read, held_lsn) == found_lsn


@pytest.mark.parametrize("wal", [15], indirect=True)
def test_a_record_that_a_crash_cut_off_is_passed_over(wal: RealWal) -> None:
    server = wal.server
    server.start()
    [(before,)] = server.execute("SELECT pg_current_wal_insert_lsn()")
    server.execute("SELECT pg_logical_emit_message(false, 'lost', repeat('l', 3 * 1024 * 1024))")
    server.kill9()
    cut_lsn = segment_start(parse_lsn(before), wal.segment_size) + wal.segment_size
    for path in server.pg_wal.iterdir():
        parsed = parse_segment_name(path.name, wal.segment_size)
        if parsed is not None and parsed[1] >= cut_lsn:
            path.unlink()
    server.start()
    server.stop()
    after = read_wal(server, wal.segment_size, [])
    assert [(r.start_lsn, r.previous_lsn, r.total_length, r.rmid, r.xid) for r in after.records] == (
        dumped_by_pg_waldump(after)
    )
    [overwriting] = [r for r in after.records if r.rmid == RM_XLOG and r.info == XLOG_OVERWRITE_CONTRECORD]
    assert overwriting.start_lsn == cut_lsn + 40
    assert overwriting.previous_lsn < cut_lsn
    # Our log ended inside the lost record: the primary continues it nevertheless.
    begin = after.begin_lsn
    tail = find_records(after.read, cut_lsn, cut_lsn - MIB, cut_lsn, MIB).log_tail
    assert tail is not None
    assert tail.record_lsn is not None
    link = LinkCheck(tail, MIB)
    assert link.feed(after.data[cut_lsn - begin :]) is True, link.reason
    # A fork in front of the lost record cuts what came after the crash.
    around = find_records(after.read, tail.record_lsn, begin, begin + len(after.data), MIB)
    assert around.record_end_lsn == overwriting.end_lsn
