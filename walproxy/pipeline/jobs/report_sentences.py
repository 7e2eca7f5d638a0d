"""The sentences of a report: its findings, and what the tables do not show. Pure."""

from collections.abc import Container, Iterator
from datetime import datetime

from safekeeper.base.lsn import format_lsn
from walproxy.html_page.charts import duration_text, size_text
from walproxy.pipeline.jobs.catalog import RelationNames
from walproxy.pipeline.jobs.report_data import NO_RELATION, Headline, Report, ReportedRange

_MANY_IMAGES = 0.3
_MISSING = {
    "transactions": "when the WAL was written, how many transactions committed, and when none did",
    "transaction_volume": "which transactions wrote most",
    "records": "when checkpoints ended",
    "blocks": "what single transactions wrote to, and times within a piece of WAL",
    "tuple_stats": "how many rows were inserted, updated and deleted",
    "page_versions": "which pages were changed most",
}


def findings_of(report: Report) -> list[str]:
    """Return the findings in sentences, the most important first."""
    return list(_findings(report))


def _findings(report: Report) -> Iterator[str]:
    headline = report.headline
    if not headline.wal_bytes:
        yield "These tables have no WAL, or none in this range."
        return
    yield _first_sentence(headline)
    rows = [row for row in report.tables or report.relations if row.name != NO_RELATION]
    if rows:
        most = rows[0]
        with_all = ", with its indexes and TOAST," if report.tables else ""
        yield f"{most.name}{with_all} wrote most: {size_text(most.wal_bytes)}, {_percent(most.wal_bytes, headline)}."
    images = f"Full-page images are {_percent(headline.image_bytes, headline)} of the WAL"
    if headline.image_bytes > _MANY_IMAGES * headline.wal_bytes:
        yield (
            f"{images}, {size_text(headline.image_bytes)}: each page's first change after a checkpoint writes one. "
            "Fewer checkpoints (max_wal_size, checkpoint_timeout) or wal_compression reduce that."
        )
    elif headline.image_bytes:
        yield f"{images}, {size_text(headline.image_bytes)}."
    if report.transactions:
        first = report.transactions[0]
        wrote = f"{size_text(first.wal_bytes)}, {_percent(first.wal_bytes, headline)} of all WAL"
        to = f", most of it to {first.relations[0].relation}" if first.relations else ""
        yield f"The transaction that wrote most is {first.xid}: {wrote}{to}."
    if report.bins.has_times and report.bins.wal_bytes:
        peak = max(report.bins.wal_bytes)
        at = _clock(report.bins.labels[report.bins.wal_bytes.index(peak)])
        yield f"The busiest span of {duration_text(report.bins.width)} began at {at}, with {size_text(peak)} of WAL."
    if report.gaps:
        gap = report.gaps[0]
        yield (
            f"The longest time without a commit was {duration_text(gap.duration)}, from {_clock(gap.begin_time)} on; "
            f"{size_text(gap.wal_bytes)} of WAL were written during it."
        )


def _first_sentence(headline: Headline) -> str:
    text = f"{size_text(headline.wal_bytes)} of WAL in {headline.records:,} records"
    if headline.begin_time and headline.end_time:
        seconds = (_time(headline.end_time) - _time(headline.begin_time)).total_seconds()
        if seconds:
            text += f", over {duration_text(seconds * 1e6)} ({size_text(headline.wal_bytes / seconds)} a second)"
    if headline.commits is not None:
        text += (
            f"; {headline.commits:,} transactions committed" if headline.commits != 1 else "; one transaction committed"
        )
    return text + "."


def unknown_of(report: Report, tables: Container[str], extent: ReportedRange | None, names: RelationNames) -> list[str]:
    """Return what the report cannot show, and why.

    Args:
        tables: those that there are.
        extent: the WAL of the report.
    """
    return list(_unknown(report, tables, extent, names))


def _unknown(
    report: Report, tables: Container[str], extent: ReportedRange | None, names: RelationNames
) -> Iterator[str]:
    headline = report.headline
    if "relation_volume" not in tables and "records" not in tables:
        yield "Without the tables relation_volume and records the report does not show how much WAL there is."
    for table, what in _MISSING.items():
        if table not in tables:
            yield f"Without the table {table} the report does not show {what}."
    if extent is None:
        return
    for begin_lsn, end_lsn in extent.holes:
        yield (
            f"WAL from {format_lsn(begin_lsn)} to {format_lsn(end_lsn)} ({size_text(end_lsn - begin_lsn)}) is not in "
            "the tables, and is not counted."
        )
    if headline.wal_bytes and not report.bins.has_times:
        yield "No two transactions ended at different times: the charts have LSNs instead of times."
    untimed = headline.wal_bytes - headline.timed_bytes
    if report.bins.has_times and untimed > headline.wal_bytes // 1000:
        yield (
            f"{size_text(untimed)} of WAL are before the end of the first transaction, or after that of the last: they "
            "have no time, and are not in charts over time."
        )
    if headline.source == "relation_volume" and report.bins.has_times:
        width = duration_text(report.bins.width)
        yield (
            f"WAL is counted in {extent.pieces:,} pieces; one that takes longer than {width} is spread evenly over its "
            "time."
        )
    if headline.unnamed:
        advice = "an older file of names may have them" if len(names) else "use --primary or --catalog"
        yield (
            f"{headline.unnamed:,} relations ({size_text(headline.unnamed_bytes)}) have no name here, only numbers "
            f"(tablespace/database/file): {advice}."
        )
    if "transactions" in tables and headline.transactions_without_end:
        yield (
            f"{headline.transactions_without_end:,} transactions or subtransactions that wrote have not ended in this "
            "range: they were in progress, or a crash ended them."
        )
    if report.transactions:
        yield (
            "WAL does not contain the begin of a transaction. A duration counts from the last commit before its first "
            "record, so it is an upper limit."
        )
    yield "Transactions that write nothing are not in the WAL; a rollback to a savepoint counts as an abort."


def _percent(part: float, headline: Headline) -> str:
    share = 100 * part / headline.wal_bytes
    return f"{share:.0f} %" if share >= 10 else f"{share:.1f} %"


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _clock(text: str) -> str:
    """Return a time for people, in whole seconds."""
    return _time(text).strftime("%Y-%m-%d %H:%M:%S UTC")
