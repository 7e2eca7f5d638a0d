"""What to change so that less WAL is written: the report's figures become advice. Pure.

Each rule looks at one cause, and is silent where the figures do not support it. The WAL that a piece of advice is about
is measured; how much of it a change saves depends on the workload, except for images of pages that were written again
after a further checkpoint: these are counted.
"""

from collections.abc import Iterator
from typing import Final

from walproxy.html_page.charts import duration_text, size_text
from walproxy.pipeline.jobs.report_data import Advice, Report

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
