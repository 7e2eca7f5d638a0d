"""What the benchmark of processes that start and die makes of its turns, of commits, and of memory."""

import subprocess
import sys

import pytest

from walproxy.lab.bench.crashes import (
    CASES,
    NOBODY,
    REPLACED,
    SPARE,
    START,
    CrashResult,
    CrashTurn,
    Spread,
    compare_crashes,
)
from walproxy.lab.bench.memory import PROXY, MemoryTurn, compare_memory
from walproxy.lab.bench.tables import crashes_table, memory_table
from walproxy.lab.process_resources import memory_of, resident_bytes


def test_the_figures_of_each_case_are_the_median_and_the_range_over_the_rounds() -> None:
    turns = [
        CrashTurn(
            number,
            case,
            None if case == NOBODY else figure,
            10 * figure,
            100 * figure,
            None if case == NOBODY else figure,
        )
        for case in (SPARE, NOBODY, START)
        for number, figure in enumerate([0.5, 4.0, 1.0])
    ]
    began_s, commit_s, longest_s = Spread(1.0, 0.5, 4.0), Spread(10.0, 5.0, 40.0), Spread(100.0, 50.0, 400.0)
    assert compare_crashes(turns) == [
        CrashResult(NOBODY, None, commit_s, longest_s, None),
        CrashResult(START, began_s, commit_s, longest_s, began_s),
        CrashResult(SPARE, began_s, commit_s, longest_s, began_s),
    ]
    assert (CASES[0], CASES[-1]) == (NOBODY, REPLACED)


def test_memory_is_the_median_over_the_rounds_and_the_most_in_any() -> None:
    turns = [
        MemoryTurn(number, process, 1000, 1.0, mb, 2 * mb, 3 * mb, 4 * mb)
        for number, mb in enumerate([30, 10, 20])
        for process in (PROXY, "safekeeper 1")
    ]
    proxy, safekeeper = compare_memory(turns)
    assert (proxy.process, safekeeper.process) == (PROXY, "safekeeper 1")
    assert (proxy.before_bytes, proxy.after_bytes, proxy.peak_bytes, proxy.fed_peak_bytes) == (20, 40, 60, 80)
    assert (proxy.most_bytes, proxy.wal_bytes) == (120, 1000)


def test_the_tables_say_what_the_goals_are() -> None:
    crashes = crashes_table(compare_crashes([CrashTurn(0, NOBODY, None, 0.01, 0.02, None)]), "")
    assert str(crashes.caption) == (
        "goals: proxy started to streaming under 1 s, proxy killed to the next commit under 2 s; "
        "CPU s: of the proxy until it streams"
    )
    assert [list(column.cells) for column in crashes.columns[:4]] == [[NOBODY], ["-"], ["-"], ["0.010"]]
    memory = memory_table(compare_memory([MemoryTurn(0, PROXY, 10**9, 1.0, 10**7, 2 * 10**7, 10**8, 10**8)]), "")
    assert "1.00 GB of WAL" in str(memory.title) and "the proxy under 150 MB" in str(memory.caption)
    assert [list(column.cells) for column in memory.columns[:4]] == [[PROXY], ["10"], ["20"], ["100"]]


HOLD_AND_LET_GO = """
filled = bytearray(b"x") * (100 << 20)
input("held")
del filled
input("gone")
"""


def test_the_memory_of_a_process_grows_with_what_it_holds_and_the_peak_stays() -> None:
    # A process of its own: what this one once held for another test would be its peak.
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_AND_LET_GO], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.read(4) == b"held"
        with_it = memory_of(process.pid)
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.read(4) == b"gone"
        without_it = memory_of(process.pid)
        assert with_it.resident_bytes > 100 << 20
        assert with_it.resident_bytes - without_it.resident_bytes > 90 << 20
        # The kernel counts pages a little late, each time by itself.
        assert without_it.peak_bytes == pytest.approx(with_it.resident_bytes, rel=0.01)
        assert resident_bytes({"it": process.pid})["it"] == pytest.approx(without_it.resident_bytes, rel=0.1)
        process.stdin.write(b"\n")
