"""`walproxy pipeline waldump` and pg_waldump print the same of the same WAL, as far as it is decoded."""

import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import zip_longest

import pytest
from click.testing import CliRunner

from safekeeper.base.lsn import format_lsn
from tests.pipeline.pg_waldump import lines
from tests.pipeline.wal_maker import MadeWal, make_wal
from tests.pipeline.wal_workload import bank, definitions, images, origins, subtransactions, two_phase
from tests.scratch import scratch_folder
from walproxy.cli.pipeline import pipeline
from walproxy.postgres.local_server import find_servers

STAGES = (bank, subtransactions, two_phase, definitions, images, origins)

_HEAD = re.compile(r"(rmgr: (\S+) +len .*?, desc: (\S+) )(.*)")
_BLOCKS = re.compile(r", blkref #\d+: rel \d+/\d+/\d+(?: fork \w+)? blk \d+(?: FPW for WAL verification| FPW)?")
_NOT_DECODED = re.compile(r"(commit |abort )?(rels|dropped stats|inval msgs|sync$|relcache init)")
_ENDS = ("COMMIT", "ABORT", "PREPARE", "COMMIT_PREPARED", "ABORT_PREPARED")


@pytest.fixture(scope="module")
def made() -> Iterator[MadeWal]:
    major = max(find_servers())
    with scratch_folder() as folder:
        yield make_wal(find_servers()[major], folder / "wal", segment_mib=1, rows=500, stages=STAGES)


def ours(made: MadeWal, *words: str) -> list[str]:
    result = CliRunner().invoke(pipeline, ["waldump", *words, str(made.folder)])
    assert result.exit_code == 0, (result.stderr, result.exception)
    return result.stdout.splitlines()


def theirs(made: MadeWal, tli: int, begin_lsn: int, *words: str) -> list[str]:
    found = lines(made.binaries, made.folder, tli, begin_lsn, None, *words)
    return [line.decode().rstrip("\n") for line in found if not line.startswith(b"first record is after ")]


def decoded_part(line: str) -> str:
    """What of pg_waldump's line is decoded here."""
    match = _HEAD.match(line)
    assert match is not None, line
    head, rmgr, operation, rest = match.groups()
    if rmgr == "Transaction" and operation in _ENDS:
        return head + "; ".join(part for part in rest.split("; ") if not _NOT_DECODED.match(part))
    return head + ("" if rmgr == "LogicalMessage" else "".join(_BLOCKS.findall(rest)))


def differences(ours: list[str], theirs: list[str]) -> list[tuple[str | None, str | None]]:
    return [(one, other) for one, other in zip_longest(ours, theirs) if one != other][:5]


def test_the_lines_are_those_of_pg_waldump(made: MadeWal) -> None:
    old = [decoded_part(line) for line in theirs(made, 1, made.begin_lsn)]
    assert differences(ours(made, "--timeline", "1"), old) == []
    new = [decoded_part(line) for line in theirs(made, 2, made.fork_lsn)]
    shared = [line for line in old if _lsn_of(line) < made.fork_lsn]
    assert differences(ours(made), shared + new) == []
    assert len(new) > 500
    assert len(old) > len(shared) + 500


def _lsn_of(line: str) -> int:
    match = re.search(r"lsn: ([0-9A-F]+)/([0-9A-F]+), prev", line)
    assert match is not None
    return int(match[1], 16) << 32 | int(match[2], 16)


@pytest.mark.parametrize("words", [("--stats=record",), ("--stats",), ("--stats=record", "-r", "Heap", "-w")])
def test_the_tables_of_sums_are_equal(made: MadeWal, words: tuple[str, ...]) -> None:
    assert ours(made, "-t", "1", *words) == theirs(made, 1, made.begin_lsn, *words)


@pytest.mark.parametrize(
    "words",
    [
        ("-r", "Heap", "-r", "Btree", "-w"),
        ("-x", "0", "-n", "40"),
        ("-F", "vm"),
        ("-R", "1663/5/1259", "-B", "0"),
        ("-R", "1663/5/1259", "-F", "main"),
    ],
)
def test_the_conditions_mean_the_same(made: MadeWal, words: tuple[str, ...]) -> None:
    expected = [decoded_part(line) for line in theirs(made, 1, made.begin_lsn, *words)]
    assert differences(ours(made, "-t", "1", *words), expected) == []
    assert expected


def test_a_range_means_the_same(made: MadeWal) -> None:
    for begin_lsn, end_lsn in ((made.torn_lsn - 100_001, made.torn_lsn + 50_000), (made.begin_lsn + 8, made.fork_lsn)):
        found = lines(made.binaries, made.folder, 1, begin_lsn, end_lsn)
        expected = [decoded_part(line.decode().rstrip("\n")) for line in found if not line.startswith(b"first record")]
        words = ("-t", "1", "-s", format_lsn(begin_lsn), "-e", format_lsn(end_lsn))
        assert differences(ours(made, *words), expected) == []
        assert expected


def test_who_reads_no_further_gets_no_errors(made: MadeWal) -> None:
    command = [sys.executable, "-m", "walproxy", "pipeline", "waldump", str(made.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith(b"rmgr: ")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 1
