"""Format the benchmark's results as tables for a person."""

from collections.abc import Sequence
from statistics import median

from rich import box
from rich.table import Table

from walproxy.lab.bench.archive_commits import CommitResult
from walproxy.lab.bench.archive_outage import Minute, OutageResult
from walproxy.lab.bench.bulk import BulkResult
from walproxy.lab.bench.crashes import COMMIT_GOAL_S, START_GOAL_S, CrashResult, Spread
from walproxy.lab.bench.levels import LevelResult, SingleClient
from walproxy.lab.bench.measure import Comparison
from walproxy.lab.bench.members import SLOW_MS, MemberResult
from walproxy.lab.bench.memory import GOAL_BYTES, MemoryResult
from walproxy.lab.bench.newcomer import NewcomerResult, NewcomerTurn
from walproxy.lab.bench.readers import ReaderResult
from walproxy.lab.bench.row_changes import ChangesResult
from walproxy.lab.bench.slow_cluster import SYNC_DELAY_MS
from walproxy.lab.bench.uploads import UploadResult
from walproxy.lab.bench.wal_growth import GrowthResult
from walproxy.lab.bench.wal_tables import TableResult
from walproxy.proxy.status_table import format_bytes


def arms_table(results: Sequence[Comparison], conditions: str) -> Table:
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


def bulk_table(results: Sequence[BulkResult], conditions: str) -> Table:
    """Return how fast a COPY became durable."""
    table = _table(f"A COPY until it is acknowledged {conditions}", ("arm", "MB of WAL/s", "to native", "range"))
    for each in results:
        table.add_row(each.arm, f"{each.mb_s:.0f}", _ratio(each.to_native), _range(each.low, each.high))
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
    """Return the cost of readers for commits."""
    columns = ("clients", "readers", "tps", "p50 ms", "p99 ms", "p50 to no reader", "range", "p99 to no reader")
    table = _table(f"Commits while WAL is read, each sync {SYNC_DELAY_MS:g} ms slower {conditions}", columns)
    for each in results:
        table.add_row(
            *_commit_cells(each),
            _ratio(each.to_nobody, 3),
            _range(each.low, each.high),
            _ratio(each.p99_to_nobody),
        )
    return table


def members_table(results: Sequence[MemberResult], conditions: str) -> Table:
    """Return the cost of a slow or dead member for commits."""
    columns = ("clients", "case", "tps", "p50 ms", "p99 ms", "p50 to all well", "range", "p99 to all well")
    table = _table(f"Commits with a bad member of three, each sync {SYNC_DELAY_MS:g} ms slower {conditions}", columns)
    for each in results:
        table.add_row(
            *_commit_cells(each), _ratio(each.to_well, 3), _range(each.low, each.high), _ratio(each.p99_to_well)
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


def newcomers_table(measured: Sequence[NewcomerTurn], results: Sequence[NewcomerResult], conditions: str) -> Table:
    """Return the cost of a new member for commits, and the time until it counts."""
    wal_bytes = max((turn.wal_bytes for turn in measured), default=0)
    columns = ("clients", "rate", "MB/s", "s", "p50 ms", "p50 to before", "range", "CPU to before", "proxy grew MB")
    table = _table(f"A new member receives {wal_bytes / 1e9:.2f} GB of WAL while clients commit {conditions}", columns)
    for each in results:
        table.add_row(
            str(each.clients),
            each.rate,
            f"{each.mb_s:.0f}",
            f"{each.seconds:.1f}",
            f"{each.p50_during_ms:.2f}",
            _ratio(each.to_before),
            _range(each.low, each.high),
            _ratio(each.cpu_to_before),
            f"{each.grown_bytes / 1e6:.1f}",
        )
    disk, loopback = (median([getattr(each, name) for each in results]) for name in ("disk_mb_s", "loopback_mb_s"))
    table.caption = (
        f"one file of this disk: {disk:.0f} MB/s; one connection on loopback: {loopback:.0f} MB/s; "
        "CPU: of the proxy, for a commit"
    )
    return table


def uploads_table(results: Sequence[UploadResult], conditions: str) -> Table:
    """Return how fast WAL was archived."""
    columns = ("archive", "MB/s", "range", "to disk", "CPU ms/MB", "CPUs busy", "stored")
    table = _table(f"WAL into an archive in a local folder {conditions}", columns)
    for each in results:
        table.add_row(
            each.case,
            f"{each.mb_s:.0f}",
            f"{each.low:.0f}-{each.high:.0f}",
            _ratio(each.to_disk),
            f"{each.cpu_ms_mb:.1f}",
            f"{each.cores:.2f}",
            f"{each.stored:.2f}",
        )
    table.caption = (
        "disk: files of the same sizes, written and synced and nothing else; the others: --archive-compression"
    )
    return table


def archive_commits_table(results: Sequence[CommitResult], conditions: str) -> Table:
    """Return what an archive costs those who commit, alive and dead."""
    columns = ("clients", "archive", "tps", "p50 ms", "p99 ms", "p50 to none", "p50 to alive", "range")
    table = _table(f"Commits with and without an archive, each sync {SYNC_DELAY_MS:g} ms slower {conditions}", columns)
    for each in results:
        table.add_row(
            *_commit_cells(each),
            _ratio(each.to_none, 3),
            _ratio(each.to_alive, 3),
            _range(each.alive_low, each.alive_high),
        )
    return table


def minutes_table(minutes: Sequence[Minute]) -> Table:
    """Return an outage of the archive minute by minute."""
    columns = ("clients", "archive", "minute", "tps", "p50 ms", "p99 ms", "not archived")
    table = _table(f"Commits while the archive is dead, each sync {SYNC_DELAY_MS:g} ms slower", columns)
    for each in minutes:
        table.add_row(
            str(each.clients),
            each.phase,
            str(each.number),
            f"{each.tps:.0f}",
            f"{each.p50_ms:.2f}",
            f"{each.p99_ms:.2f}",
            format_bytes(each.unarchived_bytes),
        )
    return table


def outage_line(result: OutageResult) -> str:
    """Return an outage of the archive as a whole."""
    clients = "1 client" if result.clients == 1 else f"{result.clients} clients"
    return (
        f"{clients}, dead for {result.dead_minutes:g} minutes: median commit {result.dead_ms:.2f} ms, with the archive "
        f"well {result.alive_ms:.2f} ms, ratio {result.ratio:.3f} (slowest minute {result.worst_ratio:.3f}); "
        f"{format_bytes(result.piled_up_bytes)} of WAL piled up, and was archived {result.caught_up_s:.1f} s after the "
        "archive had come back"
    )


def wal_tables_table(results: Sequence[TableResult], conditions: str) -> Table:
    """Return how fast WAL became tables."""
    columns = ("case", "seconds", "MB/s", "range", "to --stats", "to text")
    table = _table(f"WAL decoded, and as tables {conditions}", columns)
    for each in results:
        table.add_row(
            each.case,
            f"{each.seconds:.2f}",
            "-" if each.mb_s is None else f"{each.mb_s:.0f}",
            "-" if each.low is None or each.high is None else f"{each.low:.0f}-{each.high:.0f}",
            _ratio(each.to_stats),
            _ratio(each.to_text),
        )
    table.caption = "to --stats, to text: speed over that of pg_waldump for the same WAL in the same round"
    return table


def growth_table(results: Sequence[GrowthResult], conditions: str) -> Table:
    """Return what each gigabyte costs."""
    columns = ("GB of WAL", "s/GB", "to the smallest", "range", "driver", "its JVM")
    table = _table(f"Tables of more and more WAL {conditions}", columns)
    for each in results:
        table.add_row(
            f"{each.wal_gb:.2f}",
            f"{each.seconds_gb:.2f}",
            _ratio(each.to_smallest),
            _range(each.low, each.high),
            format_bytes(each.driver_bytes),
            format_bytes(each.jvm_bytes),
        )
    return table


def row_changes_table(results: Sequence[ChangesResult], conditions: str) -> Table:
    """Return how fast row changes were read."""
    columns = ("workload", "case", "changes/s", "range", "to pg_recvlogical", "changes per CPU second")
    table = _table(f"Row changes {conditions}", columns)
    for each in results:
        table.add_row(
            each.workload,
            each.reader,
            f"{each.changes_s:,.0f}",
            f"{each.low:,.0f}-{each.high:,.0f}",
            _ratio(each.to_recvlogical),
            f"{each.changes_cpu_s:,.0f}",
        )
    table.caption = "to pg_recvlogical: changes a second over its own in the same round; CPU time: of the client alone"
    return table


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD)
    for name in columns:
        words = name in ("arm", "level", "readers", "archive", "case", "process", "workload")
        table.add_column(name, justify="left" if words else "right", no_wrap=True)
    return table


def _commit_cells(each: ReaderResult | CommitResult | MemberResult) -> tuple[str, ...]:
    """Return the first cells of a row about commits: clients, case, tps, p50 and p99."""
    return str(each.clients), each.case, f"{each.tps:.0f}", f"{each.p50_ms:.2f}", f"{each.p99_ms:.2f}"


def _spread(figures: Spread | None) -> tuple[str, str]:
    """Return two cells: the median, and the range."""
    return ("-", "-") if figures is None else (f"{figures.median:.3f}", f"{figures.low:.3f}-{figures.high:.3f}")


def _ratio(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _range(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{low:.2f}-{high:.2f}"
