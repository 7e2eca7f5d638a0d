"""Format the benchmark's results as tables for a person."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from walproxy.lab.bench.crashes import COMMIT_GOAL_S, START_GOAL_S, CrashResult, Spread
from walproxy.lab.bench.levels import LevelResult, SingleClient
from walproxy.lab.bench.measure import ArmMedians
from walproxy.lab.bench.members import SLOW_MS, SYNC_DELAY_MS, MemberResult
from walproxy.lab.bench.memory import GOAL_BYTES, MemoryResult


def arms_table(results: Sequence[ArmMedians], conditions: str) -> Table:
    """Return the comparison with PostgreSQL's own quorum."""
    columns = ("clients", "arm", "tps", "ms", "to local", "to native", "to three", "range", "CPU us/tx", "MB")
    table = _table(f"pgbench -N {conditions}", columns)
    for each in results:
        low, high = each.spread or (None, None)
        table.add_row(
            str(each.clients),
            each.arm,
            f"{each.tps:.0f}",
            f"{each.latency_ms:.2f}",
            _ratio(each.to_local),
            _ratio(each.to_native),
            _ratio(each.to_three),
            _range(low, high),
            f"{each.cpu_us:.0f}",
            f"{sum(each.resident_bytes.values()) / 1e6:.0f}",
        )
    table.caption = "MB: in RAM, of all receivers, or of the proxy and all safekeepers; --json has each"
    return table


def levels_table(results: Sequence[LevelResult], conditions: str) -> Table:
    """Return the levels of synchronous_commit, with published ratios beside those that were measured."""
    columns = ("clients", "arm", "level", "tps", "median ms", "to local", "to alone", "range", "published")
    table = _table(f"pgbench -N at each level of synchronous_commit {conditions}", columns)
    for each in results:
        table.add_row(
            str(each.clients),
            each.arm,
            each.level,
            f"{each.tps:.0f}",
            f"{each.median_ms:.2f}",
            _ratio(each.to_local),
            _ratio(each.to_alone),
            _range(each.alone_low, each.alone_high),
            "-" if each.published is None else f"{each.published:.3f}",
        )
    table.caption = "to alone, published (Cybertec): ratio to synchronous_commit = on without a standby"
    return table


def single_client_lines(results: Sequence[SingleClient]) -> list[str]:
    """Return one line for each arm: how long a single client on an idle system waits until its commit is applied."""
    return [
        f"{each.arm}, one client on an idle system: "
        f"remote_apply {each.remote_apply_ms:.2f} ms, on {each.on_ms:.2f} ms, ratio {each.ratio:.2f}"
        for each in results
    ]


def members_table(results: Sequence[MemberResult], conditions: str) -> Table:
    """Return the cost of a slow or dead member for commits."""
    columns = ("clients", "case", "tps", "p50 ms", "p99 ms", "p50 to all well", "range", "p99 to all well")
    table = _table(f"Commits with a bad member of three, each sync {SYNC_DELAY_MS:g} ms slower {conditions}", columns)
    for each in results:
        table.add_row(
            str(each.clients),
            each.case,
            f"{each.tps:.0f}",
            f"{each.p50_ms:.2f}",
            f"{each.p99_ms:.2f}",
            _ratio(each.to_well, 3),
            _range(each.low, each.high),
            _ratio(each.p99_to_well),
        )
    table.caption = f"one slow: each of its syncs takes {SLOW_MS:g} ms longer"
    return table


def crashes_table(results: Sequence[CrashResult], conditions: str) -> Table:
    """Return how long commits waited when a process started or died."""
    columns = ("case", "streaming s", "range", "next commit s", "range", "longest commit s", "range", "CPU s")
    table = _table(f"Commits when something happens {conditions}", columns)
    for each in results:
        figures = (each.streaming_s, each.commit_s, each.longest_s)
        cpu_s = "-" if each.cpu_s is None else f"{each.cpu_s.median:.2f}"
        table.add_row(each.case, *(cell for spread in figures for cell in _spread(spread)), cpu_s)
    table.caption = (
        f"goals: proxy started to streaming under {START_GOAL_S:g} s, "
        f"proxy killed to the next commit under {COMMIT_GOAL_S:g} s; CPU s: of the proxy until it streams"
    )
    return table


def memory_table(results: Sequence[MemoryResult], conditions: str) -> Table:
    """Return the memory of the processes while a member was dead and WAL went by."""
    wal_bytes = max((each.wal_bytes for each in results), default=0)
    columns = ("process", "MB before", "MB after", "peak", "peak, the dead one fed", "most")
    table = _table(f"Memory in RAM with one of three dead and {wal_bytes / 1e9:.2f} GB of WAL {conditions}", columns)
    for each in results:
        figures = (each.before_bytes, each.after_bytes, each.peak_bytes, each.fed_peak_bytes, each.most_bytes)
        table.add_row(each.process, *(f"{figure / 1e6:.0f}" for figure in figures))
    table.caption = f"goal: the proxy under {GOAL_BYTES / 1e6:g} MB; most: of the peaks of all rounds"
    return table


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD)
    for name in columns:
        words = name in ("arm", "level", "case", "process")
        table.add_column(name, justify="left" if words else "right", no_wrap=True)
    return table


def _spread(figures: Spread | None) -> tuple[str, str]:
    """Return two cells: the median, and the range."""
    return ("-", "-") if figures is None else (f"{figures.median:.3f}", f"{figures.low:.3f}-{figures.high:.3f}")


def _ratio(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _range(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{low:.2f}-{high:.2f}"
