"""The page of a report on WAL. Names of relations are arbitrary text."""

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Final

from walproxy.html_page import pages
from walproxy.html_page.charts import OTHER_SLOT, BarChart, Layer, duration_text, scale_of, size_text, top_of
from walproxy.pipeline.jobs.report_data import OTHER, Report, Series

_TEMPLATES: Final = "walproxy.pipeline.jobs.templates"
_FORKS: Final = ("", "free space map", "visibility map", "init")


def render(report: Report) -> str:
    """Return the page."""
    filters = {
        "clock": lambda text: text[:19].replace("T", " "),
        "fork": lambda number: _FORKS[number] if number < len(_FORKS) else str(number),
    }
    context = {"report": report, "headline": report.headline}
    return pages.render(_TEMPLATES, "report.html.j2", pages.STILL, charts_of(report), context, filters)


def write_page(report: Report, path: Path) -> None:
    """Write the page into a file.

    Raises:
        ConfigurationError: it cannot be written.
    """
    pages.write(render(report), path, "--output")


_IMAGES_SLOT: Final = "images"
_MARKS_MAX: Final = 150
_LABELS: Final = 5
_MINUTE_US: Final = 60_000_000


def charts_of(report: Report) -> list[BarChart]:
    """Return all charts, also those with nothing to draw."""
    return [
        _volume(report, "by-relation", "WAL by relation", report.bins.by_relation),
        _volume(report, "by-rmgr", "WAL by resource manager", report.bins.by_rmgr),
        _image_share(report),
        _transactions_per_second(report),
    ]


def _volume(report: Report, id: str, title: str, series: Sequence[Series]) -> BarChart:
    bins = report.bins
    summary = f"{title} over {'time' if bins.has_times else 'its LSNs'}."
    if not any(bins.wal_bytes):
        return BarChart(id, title, summary, empty=_why_empty(report))
    unit, scale = scale_of(max(bins.wal_bytes))
    top = top_of(max(bins.wal_bytes) / scale)
    layers = [
        Layer(
            each.name,
            OTHER_SLOT if each.name == OTHER else slot,
            [value / scale / top for value in each.values],
            size_text(sum(each.values)),
        )
        for slot, each in enumerate(series)
    ]
    largest = ", ".join(f"{each.name} {size_text(sum(each.values))}" for each in series[:5])
    return BarChart(
        id,
        f"{title}, per {_width(report)}",
        f"{summary} In all: {largest}.",
        layers,
        [f"{top:g} {unit}", f"{top / 2:g}", "0"],
        _x_labels(report),
    )


def _image_share(report: Report) -> BarChart:
    bins = report.bins
    title = "Share of full-page images"
    summary = "Share of full-page images in the WAL."
    if not any(bins.wal_bytes):
        return BarChart("image-share", title, summary, empty=_why_empty(report))
    pairs = zip(bins.image_bytes, bins.wal_bytes, strict=True)
    share = [images / wal if wal else 0.0 for images, wal in pairs]
    marks = _marks(report)
    if marks:
        title += "; dotted lines are checkpoints"
        summary += f" Dotted lines are the ends of {len(bins.checkpoints)} checkpoints."
    layers = [Layer("full-page images", _IMAGES_SLOT, share)]
    return BarChart("image-share", title, summary, layers, ["100 %", "50 %", "0"], _x_labels(report), marks)


def _marks(report: Report) -> list[float]:
    bins = report.bins
    if not bins.has_times:
        return []
    first = datetime.fromisoformat(bins.labels[0])
    length_us = bins.width * len(bins.labels)
    passed = [datetime.fromisoformat(at) - first for at in bins.checkpoints[:_MARKS_MAX]]
    return [each.total_seconds() * 1e6 / length_us for each in passed]


def _transactions_per_second(report: Report) -> BarChart:
    bins = report.bins
    title, summary = "Transactions per second", "Transactions that ended, per second."
    if not bins.commits:
        known = report.headline.commits is not None
        empty = "Fewer than two times are known: no rate." if known else "The table transactions is missing."
        return BarChart("transactions", title, summary, empty=empty)
    seconds = bins.width / 1e6
    top = top_of(max(commits + aborts for commits, aborts in zip(bins.commits, bins.aborts, strict=True)) / seconds)
    layers = [
        Layer(name, slot, [count / seconds / top for count in counts], f"{sum(counts):,}")
        for name, slot, counts in (("commits", 0, bins.commits), ("aborts", 2, bins.aborts))
    ]
    return BarChart("transactions", title, summary, layers, [f"{top:g}", f"{top / 2:g}", "0"], _x_labels(report))


def _why_empty(report: Report) -> str:
    return "No WAL has a time." if report.headline.wal_bytes else "No WAL."


def _x_labels(report: Report) -> list[str]:
    """Return where some bars begin: times with the date where it changes, or LSNs."""
    labels = report.bins.labels
    last = len(labels) - 1
    chosen = [labels[last * number // (_LABELS - 1)] for number in range(_LABELS)] if last >= _LABELS - 1 else labels
    if not report.bins.has_times:
        return list(chosen)
    times = [datetime.fromisoformat(each) for each in chosen]
    clock = "%H:%M" if report.bins.width >= _MINUTE_US else "%H:%M:%S"
    texts = [f"{times[0]:%Y-%m-%d {clock}}"]
    texts += [
        f"{at:{clock}}" if at.date() == before.date() else f"{at:%m-%d {clock}}" for before, at in pairwise(times)
    ]
    return [*texts[:-1], f"{texts[-1]} UTC"]


def _width(report: Report) -> str:
    """Return `min`, `5 min` or `16 MiB of WAL`: what comes after `per`."""
    if not report.bins.has_times:
        return f"{size_text(report.bins.width)} of WAL"
    number, unit = duration_text(report.bins.width).split()
    return unit if number == "1" else f"{number} {unit}"
