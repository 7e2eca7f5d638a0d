"""The sentences of a report: what its figures show, what is not known, and what to change so that less WAL is written.

Each rule of the advice looks at one cause, and is silent where the figures do not support it. The WAL that a piece of
advice is about is measured; how much of it a change saves depends on the workload, except for images of pages that were
written again after a further checkpoint: these are counted. Pure.
"""

from collections.abc import Container, Iterator
from datetime import datetime
from typing import Final

from safekeeper.base.lsn import format_lsn
from walproxy.html_page.charts import duration_text, size_text
from walproxy.pipeline.jobs.catalog import RelationNames
from walproxy.pipeline.jobs.report_data import NO_RELATION, Advice, Headline, Report, ReportedRange

_SHARE_MIN: Final = 0.05
"""Less than this share of all WAL is not worth a change."""

_UPDATES_MIN: Final = 100
_HOT_MAX: Final = 0.7
_SPLITS_MIN: Final = 100
_PAGE_BYTES: Final = 8192


def advice_on(report: Report) -> list[Advice]:
    """Return the changes that the figures of a report suggest, the one about most WAL first."""
    found = [*_checkpoints(report), *_compression(report), *_hot(report), *_indexes(report)]
    return sorted(found, key=lambda each: -each.wal_bytes)


def _checkpoints(report: Report) -> Iterator[Advice]:
    causes, headline = report.causes, report.headline
    if causes.imaged_pages is None or not headline.image_count:
        return
    repeated = headline.image_count - causes.imaged_pages
    repeated_bytes = headline.image_bytes * repeated // headline.image_count
    if repeated_bytes < _SHARE_MIN * headline.wal_bytes or causes.checkpoint_distance is None:
        return
    every = size_text(causes.checkpoint_distance)
    if causes.checkpoint_interval:
        every += f" or {duration_text(causes.checkpoint_interval)}"
    yield Advice(
        about="checkpoints",
        cause=(
            f"A checkpoint every {every}: at least {repeated:,} of {headline.image_count:,} full-page images are of "
            f"pages that already had one, {size_text(repeated_bytes)} or "
            f"{_percent(repeated_bytes, headline.wal_bytes)} of all WAL."
        ),
        change=(
            "Set max_wal_size and checkpoint_timeout higher: each doubling of the distance avoids a part of these "
            "images. Recovery after a crash takes longer."
        ),
        wal_bytes=repeated_bytes,
    )


def _compression(report: Report) -> Iterator[Advice]:
    headline = report.headline
    if headline.image_bytes < 2 * _SHARE_MIN * headline.wal_bytes or not headline.image_count:
        return
    average = headline.image_bytes / headline.image_count
    if average < _PAGE_BYTES / 2:
        return
    yield Advice(
        about="compression",
        cause=(
            f"Full-page images are {_percent(headline.image_bytes, headline.wal_bytes)} of all WAL, "
            f"{size_text(average)} each on average."
        ),
        change="If wal_compression is off, set it to lz4 or zstd (on before PostgreSQL 15): it compresses images.",
        wal_bytes=headline.image_bytes,
    )


def _hot(report: Report) -> Iterator[Advice]:
    for row in report.relations:
        updates = (row.updates or 0) + (row.hot_updates or 0)
        if updates < _UPDATES_MIN or row.updates is None or (row.hot_updates or 0) >= _HOT_MAX * updates:
            continue
        own = [index for index in report.causes.indexes if index.table == row.name]
        wal_bytes = row.wal_bytes + sum(index.wal_bytes for index in own)
        if wal_bytes < _SHARE_MIN * report.headline.wal_bytes:
            continue
        yield Advice(
            about="HOT updates",
            cause=(
                f"{_percent(row.hot_updates or 0, updates)} of the {updates:,} updates of {row.name} are HOT: each "
                "other one writes an entry into every index of the table."
            ),
            change=(
                "Set a lower fillfactor, such as 90, for space on the same page; drop indexes on columns that these "
                "updates change, because with one of them no update can be HOT."
            ),
            wal_bytes=wal_bytes,
        )


def _indexes(report: Report) -> Iterator[Advice]:
    headline = report.headline
    for row in report.causes.indexes:
        if row.wal_bytes < _SHARE_MIN * headline.wal_bytes:
            continue
        of_table = f" of {row.table}" if row.table else ""
        share = _percent(row.wal_bytes, headline.wal_bytes)
        cause = f"The index {row.name}{of_table} wrote {size_text(row.wal_bytes)}, {share} of all WAL"
        if row.splits is not None and row.splits >= _SPLITS_MIN:
            cause += f", and grew by {row.splits:,} page splits ({size_text(row.splits * _PAGE_BYTES)})"
        if row.image_bytes * 2 > row.wal_bytes:
            yield Advice(
                about="index",
                cause=(
                    f"{cause}. {_percent(row.image_bytes, row.wal_bytes)} of it are full-page images: its changes are "
                    "scattered over many pages."
                ),
                change=(
                    "Keys in ascending order (a sequence, UUID version 7) change few pages; random ones (UUID version "
                    "4) change a page each. Drop the index if pg_stat_user_indexes shows no scans of it."
                ),
                wal_bytes=row.wal_bytes,
            )
        else:
            yield Advice(
                about="index",
                cause=f"{cause}.",
                change=(
                    "Drop it if pg_stat_user_indexes shows no scans of it. If it has grown far beyond its content, "
                    "REINDEX CONCURRENTLY makes it small again."
                ),
                wal_bytes=row.wal_bytes,
            )


def _percent(part: float, whole: float) -> str:
    share = 100 * part / whole if whole else 0.0
    return f"{share:.0f} %" if share >= 10 else f"{share:.1f} %"


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
        share = _percent(most.wal_bytes, headline.wal_bytes)
        yield f"{most.name}{with_all} wrote most: {size_text(most.wal_bytes)}, {share}."
    images = f"Full-page images are {_percent(headline.image_bytes, headline.wal_bytes)} of the WAL"
    if headline.image_bytes > _MANY_IMAGES * headline.wal_bytes:
        yield (
            f"{images}, {size_text(headline.image_bytes)}: each page's first change after a checkpoint writes one. "
            "Fewer checkpoints (max_wal_size, checkpoint_timeout) or wal_compression reduce that."
        )
    elif headline.image_bytes:
        yield f"{images}, {size_text(headline.image_bytes)}."
    if report.transactions:
        first = report.transactions[0]
        wrote = f"{size_text(first.wal_bytes)}, {_percent(first.wal_bytes, headline.wal_bytes)} of all WAL"
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


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _clock(text: str) -> str:
    """Return a time for people, in whole seconds."""
    return _time(text).strftime("%Y-%m-%d %H:%M:%S UTC")
