"""What the benchmark has found, as tables for a person."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from walproxy.bench.levels import LevelResult, SingleClient
from walproxy.bench.measure import Comparison
from walproxy.bench.readers import SYNC_DELAY_MS, ReaderResult


def arms_table(results: Sequence[Comparison], conditions: str) -> Table:
    """Return the comparison with PostgreSQL's own quorum."""
    columns = ("clients", "arm", "tps", "ms", "to local", "to native", "range", "CPU us/tx")
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
            _range(low, high),
            f"{each.cpu_us:.0f}",
        )
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


def readers_table(results: Sequence[ReaderResult], conditions: str) -> Table:
    """Return what readers cost those who commit."""
    columns = ("clients", "readers", "tps", "p50 ms", "p99 ms", "p50 to nobody", "range", "p99 to nobody")
    table = _table(f"Commits while WAL is read, each sync {SYNC_DELAY_MS:g} ms slower {conditions}", columns)
    for each in results:
        table.add_row(
            str(each.clients),
            each.case,
            f"{each.tps:.0f}",
            f"{each.p50_ms:.2f}",
            f"{each.p99_ms:.2f}",
            _ratio(each.to_nobody, 3),
            _range(each.low, each.high),
            _ratio(each.p99_to_nobody),
        )
    return table


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD)
    for name in columns:
        words = name in ("arm", "level", "readers")
        table.add_column(name, justify="left" if words else "right", no_wrap=True)
    return table


def _ratio(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _range(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{low:.2f}-{high:.2f}"
