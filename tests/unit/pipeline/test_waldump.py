"""`walproxy pipeline waldump` on WAL that was written by hand: its text, its conditions, its sums, its errors.

Whether the text is pg_waldump's is seen with real WAL (tests/pipeline/test_waldump.py).
"""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from safekeeper.base.errors import ConfigurationError, WalproxyError
from safekeeper.base.lsn import format_lsn
from safekeeper.waldecode.format import RM_XACT
from tests.unit.record_bodies import Block, Image, body
from tests.unit.transaction_bodies import ABORT_PREPARED, COMMIT, HAS_XINFO, PREPARE, prepare, transaction_end
from tests.unit.wal_builder import MIB, WalBuilder
from tests.unit.wal_places import fork, write_history, write_segments
from walproxy.cli.pipeline import pipeline
from walproxy.pipeline.input.opening import open_input
from walproxy.pipeline.jobs.waldump import LogForked, Scan
from walproxy.pipeline.jobs.waldump_selection import Selection
from walproxy.wal_sources.source import SourceCorrupt, WalMissing

HEAP, HEAP2, CUSTOM = 10, 9, 200
TIME = datetime(2026, 2, 28, 23, 59, 59, 7, tzinfo=UTC)


def microseconds(time: datetime) -> int:
    return (time - datetime(2000, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def run(folder: Path, *words: str) -> Result:
    """Run the command; an error of ours is raised."""
    result = CliRunner().invoke(pipeline, ["waldump", *words, str(folder)])
    if isinstance(result.exception, WalproxyError):
        raise result.exception
    return result


def shown(folder: Path, *words: str) -> list[str]:
    result = run(folder, *words)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def lsns(lines: list[str]) -> list[int]:
    """The LSNs in pg_waldump's text."""
    found = [re.search(r"lsn: ([0-9A-F]+)/([0-9A-F]{8}),", line) for line in lines]
    return [int(match[1], 16) << 32 | int(match[2], 16) for match in found if match is not None]


@pytest.fixture
def written(tmp_path: Path) -> tuple[WalBuilder, Path]:
    """Some records of every shape, in a folder with two segments."""
    wal = WalBuilder(begin_lsn=0x12_3450_0000, system_id=7)
    wal.add(body(b"main"), rmid=HEAP, info=0x00, xid=700)
    wal.add(body(b"m", [Block(block=7, image=Image(8000, 100, 192))]), rmid=HEAP, info=0x20, xid=700)
    wal.add(
        body(
            b"m",
            [
                Block(fork=2, block=1, relation=(1664, 0, 1262)),
                Block(1, block=4_000_000_000, image=Image(apply=False), relation=(1664, 0, 1262)),
                Block(2, block=9, relation=(1663, 5, 16399), data=b"data"),
            ],
        ),
        rmid=HEAP2,
        info=0x40,
        xid=4_294_967_295,
    )
    wal.add(body(b"m" * 60_000), rmid=CUSTOM, info=0x30)
    wal.add(
        body(
            transaction_end(
                microseconds(TIME),
                subxids=[701, 4_000_000_000],
                origin=(0xA_0000_0001, microseconds(TIME)),
                more_xinfo=1 << 29,
            ),
            origin=3,
        ),
        rmid=RM_XACT,
        info=COMMIT | HAS_XINFO,
        xid=700,
    )
    wal.add(body(prepare(microseconds(TIME), 702, b"its\nname", subxids=[703])), rmid=RM_XACT, info=PREPARE, xid=702)
    wal.add(
        body(transaction_end(microseconds(TIME), twophase_xid=702, gid=b"its\nname")),
        rmid=RM_XACT,
        info=ABORT_PREPARED | HAS_XINFO,
    )
    wal.switch()
    wal.add(body(b"behind the switch"), rmid=HEAP, info=0x10, xid=705)
    write_segments(tmp_path, wal)
    return wal, tmp_path


def test_the_lines_are_laid_out_as_pg_waldump_does(written: tuple[WalBuilder, Path]) -> None:
    wal, folder = written
    expected = [
        ("Heap       ", 30, 30, 700, "INSERT "),
        ("Heap       ", 52, 8052, 700, "UPDATE , blkref #0: rel 1663/5/16384 blk 7 FPW"),
        (
            "Heap2      ",
            *(96, 8288, 4_294_967_295),
            "VISIBLE , blkref #0: rel 1664/0/1262 fork vm blk 1, blkref #1: rel 1664/0/1262 blk 4000000000 FPW for WAL "
            "verification, blkref #2: rel 1663/5/16399 blk 9",
        ),
        ("custom200  ", 60029, 60029, 0, "0x30 "),
        (
            "Transaction",
            *(69, 69, 700),
            "COMMIT 2026-02-28 23:59:59.000007 UTC; subxacts: 701 4000000000; apply_feedback; origin: node 3, "
            "lsn A/1, at 2026-02-28 23:59:59.000007 UTC",
        ),
        ("Transaction", 118, 118, 702, "PREPARE gid its?name: 2026-02-28 23:59:59.000007 UTC; subxacts: 703"),
        ("Transaction", 51, 51, 0, "ABORT_PREPARED 702: 2026-02-28 23:59:59.000007 UTC"),
        ("XLOG       ", 24, 24, 0, "SWITCH "),
        ("Heap       ", 43, 43, 705, "DELETE "),
    ]
    lines = [
        f"rmgr: {rmgr} len (rec/tot): {length:6}/{total:6}, tx: {xid:10}, lsn: {padded(record.start_lsn)}, "
        f"prev {padded(record.previous_lsn)}, desc: {rest}"
        for (rmgr, length, total, xid, rest), record in zip(expected, wal.records, strict=True)
    ]
    assert shown(folder) == lines


def padded(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:08X}"


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        (("--rmgr", "heap"), [0, 1, 8]),
        (("-r", "Heap2", "-r", "custom200"), [2, 3]),
        (("-x", "700"), [0, 1, 4]),
        (("--xid", "0"), [3, 6, 7]),
        (("-R", "1664/0/1262"), [2]),
        (("-R", "1664/0/1262", "-B", "9"), []),
        (("-R", "1664/0/1262", "-B", "1", "-F", "vm"), [2]),
        (("-R", "1664/0/1262", "-B", "1", "-F", "main"), []),
        (("--fork", "main"), [1, 2]),
        (("--fullpage",), [1, 2]),
        (("-w", "-x", "700"), [1]),
        (("-n", "3"), [0, 1, 2]),
        (("-n", "2", "-r", "Transaction"), [4, 5]),
        (("-n", "100"), list(range(9))),
        (("-r", "Gin"), []),
    ],
)
def test_all_conditions_must_hold(written: tuple[WalBuilder, Path], words: tuple[str, ...], numbers: list[int]) -> None:
    wal, folder = written
    assert lsns(shown(folder, *words)) == [wal.records[number].start_lsn for number in numbers]


def test_the_range_takes_records_that_lie_wholly_in_it(written: tuple[WalBuilder, Path]) -> None:
    wal, folder = written
    starts = [record.start_lsn for record in wal.records]
    for first in range(9):
        for begin_lsn in (starts[first] - 7, starts[first]):
            assert lsns(shown(folder, "-s", format_lsn(begin_lsn))) == starts[first:]
        end_lsn = wal.records[first].start_lsn + 24 if first == 7 else wal.records[first].end_lsn
        assert lsns(shown(folder, "--end", format_lsn(end_lsn))) == starts[: first + 1]
        assert lsns(shown(folder, "--end", format_lsn(end_lsn - 8))) == starts[:first]


def test_a_segment_can_be_named(written: tuple[WalBuilder, Path]) -> None:
    wal, folder = written
    first, second = sorted(folder.iterdir())
    assert lsns(shown(first)) == [record.start_lsn for record in wal.records[:8]]
    assert lsns(shown(second)) == [wal.records[8].start_lsn]
    (folder / "notes").write_text("no WAL")
    with pytest.raises(ConfigurationError, match="notes is not a segment of WAL"):
        run(folder / "notes")


def test_json_has_the_columns_of_the_view(written: tuple[WalBuilder, Path]) -> None:
    wal, folder = written
    rows: list[dict[str, Any]] = [json.loads(line) for line in shown(folder, "--json")]
    assert [row["lsn"] for row in rows] == [format_lsn(record.start_lsn) for record in wal.records]
    assert (rows[1]["rmgr"], rows[1]["operation"], rows[1]["blocks"][0]["block"]) == ("Heap", "UPDATE", 7)
    assert [row["transaction"]["outcome"] for row in rows if "transaction" in row] == [
        *("commit", "prepare", "abort_prepared")
    ]
    assert rows[4]["transaction"] == {
        "xid": 700,
        "outcome": "commit",
        "time": "2026-02-28T23:59:59.000007Z",
        "database": None,
        "subxids": [701, 4_000_000_000],
        "gid": None,
        "origin_lsn": "A/1",
        "origin_time": "2026-02-28T23:59:59.000007Z",
        "remote_apply": True,
    }


def test_stats_sum_up_what_is_selected(written: tuple[WalBuilder, Path]) -> None:
    wal, folder = written
    lines = shown(folder, "-z")
    assert lines[0] == f"WAL statistics between {format_lsn(wal.begin_lsn + 40)} and {format_lsn(wal.position + 5)}:"
    assert len(lines) == 3 + 23 + 2  # 22 of PostgreSQL's own, and custom200
    by_rmgr = json.loads(shown(folder, "--stats", "--json")[0])
    assert {row["name"]: row["records"] for row in by_rmgr["rows"] if row["records"]} == {
        "Heap": 3,
        "Heap2": 1,
        "custom200": 1,
        "Transaction": 3,
        "XLOG": 1,
    }
    by_operation = json.loads(shown(folder, "--stats=record", "--json", "--xid", "700")[0])
    assert by_operation["rows"] == [
        {"name": "Transaction/COMMIT", "records": 1, "record_bytes": 69, "image_bytes": 0},
        {"name": "Heap/INSERT", "records": 1, "record_bytes": 30, "image_bytes": 0},
        {"name": "Heap/UPDATE", "records": 1, "record_bytes": 52, "image_bytes": 8000},
    ]
    assert by_operation["total"] == {"name": "Total", "records": 3, "record_bytes": 151, "image_bytes": 8000}


def test_a_log_is_followed_to_its_end_and_over_a_promotion(tmp_path: Path) -> None:
    wal = small_log(2 * MIB)
    write_segments(tmp_path, wal)
    child: WalBuilder | None = None
    found: list[int] = []
    rounds = 0
    scan = Scan(open_input(str(tmp_path)), Selection(end_lsn=6 * MIB), follow=True)
    for done in scan.run(lambda decoded, selected: decoded.lsn[selected].tolist()):
        found += done.result
        if found[-1:] != [(child or wal).records[-1].start_lsn]:
            continue  # Not all that is written is read.
        rounds += 1
        if rounds == 3:
            child = fork(wal, 2)
            write_history(tmp_path, 2, ((1, child.position),))
        grow(child or wal, (rounds + 4) * MIB // 2 + 1000)
        write_segments(tmp_path, child or wal)
    assert child is not None
    assert rounds >= 6
    assert found == [record.start_lsn for record in child.records if record.end_lsn <= 6 * MIB]


def test_a_log_that_was_left_before_what_is_shown_is_followed_no_further(tmp_path: Path) -> None:
    wal = small_log(2 * MIB)
    write_segments(tmp_path, wal)
    scan = Scan(open_input(str(tmp_path)), Selection(), follow=True)
    results = scan.run(lambda decoded, selected: len(selected))
    assert next(results).shown > 0
    fork_lsn = wal.records[-1].start_lsn
    write_history(tmp_path, 2, ((1, fork_lsn),))
    write_segments(tmp_path, grow(fork(wal, 2), 3 * MIB))
    with pytest.raises(LogForked, match=f"timeline 2 of the folder .* forks from timeline 1 at {format_lsn(fork_lsn)}"):
        list(results)


def small_log(end_lsn: int) -> WalBuilder:
    return grow(WalBuilder(begin_lsn=MIB, system_id=7), end_lsn)


def grow(wal: WalBuilder, end_lsn: int) -> WalBuilder:
    while wal.position < end_lsn:
        wal.add(body(b"m" * (len(wal.records) % 7 * 4000 + 5)))
    return wal


def test_the_newest_timeline_is_shown_unless_another_is_named(tmp_path: Path) -> None:
    old = WalBuilder(begin_lsn=MIB, system_id=7)
    for number in range(2000):
        old.add(body(b"old"), xid=number)
    new = fork(old, 2)
    old.add(body(b"lost"), xid=5000)
    for number in range(3000):
        new.add(body(b"new"), xid=number)
    fork_lsn = new.records[2000].start_lsn
    write_segments(tmp_path, old)
    write_segments(tmp_path, new)
    write_history(tmp_path, 2, ((1, fork_lsn),))
    rows = [json.loads(line) for line in shown(tmp_path, "--json")]
    assert [row["tli"] for row in rows] == [1] * 2000 + [2] * 3000
    assert lsns(shown(tmp_path, "-t", "1")) == [record.start_lsn for record in old.records]
    with pytest.raises(WalMissing, match="has no timeline 3"):
        run(tmp_path, "--timeline", "3")


def test_what_lies_before_damage_is_shown_first(written: tuple[WalBuilder, Path]) -> None:
    wal, folder = written
    bad = wal.records[3]
    first = min(folder.iterdir())
    content = bytearray(first.read_bytes())
    content[bad.start_lsn - wal.begin_lsn + 5000] ^= 1
    first.write_bytes(content)
    result = CliRunner().invoke(pipeline, ["waldump", str(folder)])
    assert lsns(result.stdout.splitlines()) == [record.start_lsn for record in wal.records[:3]]
    assert isinstance(result.exception, SourceCorrupt)
    assert re.fullmatch(
        f"WAL at {format_lsn(bad.start_lsn)}: the record's checksum should be [0-9A-F]{{8}} and is [0-9A-F]{{8}}; "
        f"in {first.name} of the folder {folder}",
        str(result.exception),
    )
    result = CliRunner().invoke(pipeline, ["waldump", "-z", str(folder)])
    assert re.search(r"^Total +3 ", result.stdout, re.MULTILINE)
    assert isinstance(result.exception, SourceCorrupt)


def test_a_gap_is_named_and_passed_over_only_if_that_is_wanted(tmp_path: Path) -> None:
    wal = WalBuilder(begin_lsn=MIB, system_id=7)
    while wal.position < 5 * MIB:
        wal.add(body(b"m" * 3000))
    write_segments(tmp_path, wal)
    (tmp_path / "000000010000000000000003").unlink()
    with pytest.raises(WalMissing, match=r"no WAL from 0/2[0-9A-F]{5} to 0/400000"):
        run(tmp_path)
    found = lsns(shown(tmp_path, "--allow-gaps"))
    assert found == [r.start_lsn for r in wal.records if r.end_lsn <= 3 * MIB or r.start_lsn >= 4 * MIB]


@pytest.mark.parametrize(
    "words",
    [
        ("-s", "5"),
        ("-e", "0/x"),
        ("-s", "0/200", "-e", "0/100"),
        ("-R", "1663/5"),
        ("-R", "1663/5/t"),
        ("-B", "1"),
        ("-F", "other"),
        ("-n", "0"),
        ("-x", "-1"),
        ("-t", "0"),
        ("--stats=all",),
        ("-f", "-z"),
    ],
)
def test_wrong_usage_is_reported(tmp_path: Path, words: tuple[str, ...]) -> None:
    result = run(tmp_path, *words)
    assert isinstance(result.exception, SystemExit | click.UsageError)
    assert result.exit_code == 2
    assert "Error: " in result.output


def test_resource_managers_are_listed_and_unknown_ones_refused(tmp_path: Path) -> None:
    assert shown(tmp_path, "-r", "list")[:3] == ["XLOG", "Transaction", "Storage"]
    with pytest.raises(ConfigurationError, match="unknown resource manager 'heap3': use one of XLOG, "):
        run(tmp_path, "-r", "heap3")
