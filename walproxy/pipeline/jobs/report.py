"""A report on WAL: what wrote it, which tables and which transactions, when, and how much of it is full-page images.

Its input is the tables that `walproxy pipeline run` writes; if some are missing, the report lists what it lacks
without them. DuckDB adds up (`report_queries`, `report_transactions`), so the size of the tables does not
matter: charts have at most 300 bins, lists a limited number of rows and the rest as one.
"""

from collections.abc import Container, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from duckdb import DuckDBPyConnection

from safekeeper.base.lsn import LSN_MAX, Lsn, format_lsn
from walproxy.html_page.charts import bin_width_us
from walproxy.pipeline.choices import REPORT_TOP
from walproxy.pipeline.duck import connect
from walproxy.pipeline.jobs import report_queries as queries
from walproxy.pipeline.jobs import report_transactions as transaction_queries
from walproxy.pipeline.jobs.catalog import RelationNames
from walproxy.pipeline.jobs.report_data import (
    OTHER,
    GapRow,
    Headline,
    IndexRow,
    PageRow,
    RelationRow,
    Report,
    ReportedRange,
    Series,
    TransactionRow,
    WrittenWal,
)
from walproxy.pipeline.jobs.report_findings import advice_on, findings_of, unknown_of
from walproxy.pipeline.jobs.report_input import FoundTables, RangeEnd, read_tables
from walproxy.pipeline.jobs.time_axis import Axis, lsn_axis, time_axis, time_text

BINS_MAX: Final = 300
_SERIES_MAX: Final = 8
_CHECKPOINTS_MAX: Final = 1000
_WRITTEN_MAX: Final = 5
# Pieces are as large as segments. Where they are fewer than bins, `records` has finer times, if it is not too much.
_FINE_BYTES_MAX: Final = 2 << 30
_FAR_LSN: Final = LSN_MAX >> 1
"""Above every LSN; the tables have no unsigned numbers."""


def make_report(
    tables: FoundTables,
    names: RelationNames,
    *,
    begin: RangeEnd | None = None,
    end: RangeEnd | None = None,
    top: int = REPORT_TOP,
    threads: int | None = None,
    memory_bytes: int | None = None,
) -> Report:
    """Return the report on these tables.

    Args:
        names: of relations; where they are not known the report shows numbers.
        begin, end: look at this range only; pieces of WAL that reach into it count as a whole.
        top: how many rows the lists have.
        threads, memory_bytes: limits of DuckDB, see `connect`.

    Raises:
        ConfigurationError: a table has other columns.
        StorageFailed, QueryFailed: DuckDB cannot read the tables.
    """
    with connect(tables.tables, threads=threads, memory_bytes=memory_bytes) as connection:
        found = _Findings(connection, read_tables(connection, tables), names, top)
        found.restrict(begin, end)
        return found.report()


class _Findings:
    """One report in the making; each method asks for a part of it."""

    def __init__(self, connection: DuckDBPyConnection, frames: dict[str, str], names: RelationNames, top: int) -> None:
        self.connection = connection
        self.frames = frames
        self.names = names
        self.top = top
        self.extent: ReportedRange | None = None
        queries.add_names(connection, names)

    def restrict(self, begin: RangeEnd | None, end: RangeEnd | None) -> None:
        """See how far the pieces reach that are in the range, and leave out of all tables what is outside of that."""
        begin_lsn, end_lsn = 0, _FAR_LSN
        if begin is not None:
            begin_lsn = begin.lsn if begin.lsn is not None else self._lsn_before(begin)
        if end is not None:
            end_lsn = end.lsn if end.lsn is not None else self._lsn_after(end)
        wanted = self.frames
        if (begin_lsn, end_lsn) != (0, _FAR_LSN):
            wanted = queries.restrict(self.frames, begin_lsn, end_lsn)
        self.extent = queries.extent(self.connection, wanted)
        if self.extent is not None:
            wanted = queries.restrict(self.frames, self.extent.begin_lsn, self.extent.end_lsn)
        self.frames = wanted

    def _lsn_before(self, position: RangeEnd) -> Lsn:
        assert position.time_us is not None  # it has no LSN
        return queries.lsn_before(self.connection, self.frames, position.time_us)

    def _lsn_after(self, position: RangeEnd) -> Lsn:
        assert position.time_us is not None  # it has no LSN
        return queries.lsn_after(self.connection, self.frames, position.time_us)

    def report(self) -> Report:
        report = Report(made_at=datetime.now(UTC).isoformat(timespec="seconds"), headline=Headline())
        if self.extent is not None:
            self._fill(report, self.extent)
        report.findings = findings_of(report)
        report.advice = advice_on(report)
        report.unknown = unknown_of(report, set(self.frames), self.extent, self.names)
        return report

    def _fill(self, report: Report, extent: ReportedRange) -> None:
        headline = report.headline
        headline.begin_lsn, headline.end_lsn = format_lsn(extent.begin_lsn), format_lsn(extent.end_lsn)
        axis, by_bin = self._axis(extent)
        report.bins.has_times, report.bins.width, report.bins.labels = axis.has_times, axis.width, axis.labels()
        if "transactions" in self.frames:
            self._commits(report, axis, by_bin)
        volume = self._volume(extent, headline)
        if volume is not None:
            self._relations(report, volume, axis)
            self._images_and_indexes(report, volume, self.frames["blocks"] if headline.source == "records" else None)
        if "records" in self.frames:
            self._checkpoints(report, self.frames["records"], axis)
        if "transaction_volume" in self.frames:
            self._transactions(report)
        if "page_versions" in self.frames:
            report.pages, pages = queries.hot_pages(self.connection, self.frames["page_versions"], self.top)
            for records, *relation, fork, block in pages:
                name = self.names.name(*relation)
                report.hot_pages.append(PageRow(relation=name, fork=fork, block=block, records=records))

    def _checkpoints(self, report: Report, records: str, axis: Axis) -> None:
        causes = report.causes
        found = queries.checkpoints(self.connection, records, _CHECKPOINTS_MAX)
        report.headline.checkpoints = len(found)
        if len(found) >= 2:
            causes.checkpoint_distance = (found[-1] - found[0]) // (len(found) - 1)
        labels = [label for lsn in found if (label := axis.label_of(lsn)) is not None]
        report.bins.checkpoints = labels
        if axis.has_times and len(labels) >= 2:
            first, last = (datetime.fromisoformat(labels[index]) for index in (0, -1))
            causes.checkpoint_interval = round((last - first).total_seconds() * 1e6) // (len(labels) - 1)

    def _images_and_indexes(self, report: Report, volume: str, blocks: str | None) -> None:
        """Fill in what explains the WAL. Without `blocks`, which is as large as the WAL is, some of it is missing."""
        report.causes.imaged_pages = queries.imaged_pages(self.connection, blocks, self.frames.get("page_versions"))
        report.causes.indexes = [
            IndexRow(
                name=self._shown(row.name),
                table=row.table_name,
                records=row.records,
                wal_bytes=row.wal_bytes,
                image_bytes=row.image_bytes,
                splits=row.splits if blocks is not None else None,
            )
            for row in queries.indexes(self.connection, volume, blocks, self.top)
        ]

    def _axis(self, extent: ReportedRange) -> tuple[Axis, list[queries.BinOfCommits]]:
        times = queries.time_range(self.connection, self.frames)
        if times is None or times[0] == times[1]:
            return lsn_axis(extent.begin_lsn, extent.end_lsn, BINS_MAX), []
        width_us = bin_width_us(*times, BINS_MAX)
        if "transactions" not in self.frames:
            knots = queries.knots_of_pieces(self.connection, self.frames["relation_volume"], width_us)
            return time_axis(knots, width_us), []
        by_bin = queries.commits_by_bin(self.connection, self.frames["transactions"], width_us)
        return time_axis([knot for each in by_bin for knot in (each.first, each.last)], width_us), by_bin

    def _commits(self, report: Report, axis: Axis, by_bin: Sequence[queries.BinOfCommits]) -> None:
        headline, transactions = report.headline, self.frames["transactions"]
        if not axis.has_times:
            by_bin = queries.commits_by_bin(self.connection, transactions, 1)
        headline.commits = sum(each.commits for each in by_bin)
        headline.aborts = sum(each.aborts for each in by_bin)
        if by_bin:
            headline.begin_time = time_text(by_bin[0].first.time_us)
            headline.end_time = time_text(by_bin[-1].last.time_us)
        if not axis.has_times:
            return
        counts = {each.bin * axis.width: each for each in by_bin}
        for each in axis.bins:
            ended = counts.get(each.begin)
            report.bins.commits.append(ended.commits if ended else 0)
            report.bins.aborts.append(ended.aborts if ended else 0)
        gaps = transaction_queries.commit_gaps(self.connection, transactions, by_bin, axis.width, self.top)
        report.gaps = [
            GapRow(
                begin_time=time_text(gap.begin.time_us),
                end_time=time_text(gap.end.time_us),
                duration=gap.duration_us,
                begin_lsn=format_lsn(gap.begin.lsn),
                end_lsn=format_lsn(gap.end.lsn),
                wal_bytes=max(gap.end.lsn - gap.begin.lsn, 0),
            )
            for gap in gaps
            if gap.duration_us > 0
        ]

    def _volume(self, extent: ReportedRange, headline: Headline) -> str | None:
        """Return the rows that all sums of bytes come from, None if there are none."""
        span = extent.end_lsn - extent.begin_lsn
        pieces = self.frames.get("relation_volume")
        is_coarse = extent.pieces < BINS_MAX and span <= _FINE_BYTES_MAX
        has_records = "records" in self.frames and "blocks" in self.frames
        if has_records and (pieces is None or is_coarse):
            headline.source = "records"
            return queries.volume_of_records(
                self.connection, self.frames["records"], self.frames["blocks"], extent.begin_lsn, extent.end_lsn
            )
        headline.source = "relation_volume" if pieces is not None else ""
        return pieces

    def _relations(self, report: Report, volume: str, axis: Axis) -> None:
        sums = queries.sums_of(self.connection, volume, self.top)
        report.rmgrs, report.relations = _rows(sums.rmgrs), _rows(sums.relations)
        report.tables = _rows(sums.tables) if len(self.names) else []
        headline = report.headline
        headline.relations = sums.relations_count
        headline.unnamed, headline.unnamed_bytes = sums.unnamed_count, sums.unnamed_bytes
        headline.records = sum(row.records for row in report.rmgrs)
        headline.wal_bytes = sum(row.wal_bytes for row in report.rmgrs)
        headline.image_count = sum(row.image_count for row in report.rmgrs)
        headline.image_bytes = sum(row.image_bytes for row in report.rmgrs)
        if "tuple_stats" in self.frames:
            self._tuples(report.relations)
        largest = [row.name for row in report.relations[:_SERIES_MAX]]
        self._series(report, volume, axis, largest, {row.name for row in report.rmgrs[:_SERIES_MAX]})
        for row in (*report.relations, *report.tables):
            row.name = self._shown(row.name)

    def _tuples(self, rows: list[RelationRow]) -> None:
        wanted = [row.name for row in rows]
        counts = {each.name: each for each in queries.tuples(self.connection, self.frames["tuple_stats"], wanted)}
        for row in rows:
            found = counts.get(row.name)
            if found is not None:
                row.inserts, row.updates = found.inserts, found.updates
                row.hot_updates, row.deletes = found.hot_updates, found.deletes

    def _series(self, report: Report, volume: str, axis: Axis, relations: Sequence[str], rmgrs: Container[str]) -> None:
        """Fill in what each bin has, by relation and by manager."""
        relation_series: dict[str, list[float]] = {}
        rmgr_series: dict[str, list[float]] = {}
        wal_bytes, image_bytes = [0.0] * len(axis.bins), [0.0] * len(axis.bins)
        for row in queries.series(self.connection, volume, axis, relations):
            rmgr = row.rmgr if row.rmgr in rmgrs else OTHER
            for series, name in ((relation_series, row.name), (rmgr_series, rmgr)):
                series.setdefault(name, [0.0] * len(axis.bins))[row.bin] += row.wal_bytes
            wal_bytes[row.bin] += row.wal_bytes
            image_bytes[row.bin] += row.image_bytes
        report.bins.by_relation = self._ordered(relation_series)
        report.bins.by_rmgr = self._ordered(rmgr_series)
        report.bins.wal_bytes, report.bins.image_bytes = wal_bytes, image_bytes
        report.headline.timed_bytes = round(sum(wal_bytes)) if axis.has_times else 0

    def _ordered(self, series: Mapping[str, list[float]]) -> list[Series]:
        """Return the series, the largest first, the rest last."""
        names = sorted(series, key=lambda name: (name == OTHER, -sum(series[name])))
        return [Series(self._shown(name), series[name]) for name in names]

    def _transactions(self, report: Report) -> None:
        transactions = self.frames.get("transactions", transaction_queries.NO_TRANSACTIONS)
        number, without_end, rows = transaction_queries.biggest_transactions(
            self.connection, self.frames["transaction_volume"], transactions, self.top
        )
        report.headline.transactions, report.headline.transactions_without_end = number, without_end
        begins = transaction_queries.times_before(self.connection, transactions, [row.first_lsn for row in rows])
        written = None
        if "blocks" in self.frames:
            written = transaction_queries.relations_of_transactions(
                self.connection, self.frames["blocks"], transactions, rows, _WRITTEN_MAX
            )
        for row in rows:
            begin_us = begins.get(row.first_lsn)
            relations = [WrittenWal(self._shown(name), size) for name, size in (written or {}).get(row.xid, [])]
            report.transactions.append(
                TransactionRow(
                    xid=row.xid,
                    database=self.names.database(row.database) if row.database else None,
                    outcome=row.outcome,
                    records=row.records,
                    wal_bytes=row.wal_bytes,
                    image_bytes=row.image_bytes,
                    first_lsn=format_lsn(row.first_lsn),
                    last_lsn=format_lsn(row.last_lsn),
                    commit_lsn=format_lsn(row.commit_lsn) if row.commit_lsn is not None else None,
                    end_time=time_text(row.time_us) if row.time_us is not None else None,
                    duration=max(row.time_us - begin_us, 0) if row.time_us is not None and begin_us else None,
                    relations=relations if written is not None else None,
                )
            )

    def _shown(self, name: str) -> str:
        """Return a name as people see it: of what has none, the database is often known."""
        if not name.startswith("?"):
            return name
        return self.names.name(*map(int, name[1:].split("/")))


def _rows(sums: Sequence[Any]) -> list[RelationRow]:
    names = ("name", "kind", "records", "wal_bytes", "image_count", "image_bytes")
    return [RelationRow(**{name: getattr(row, name) for name in names}) for row in sums]
