"""The charts of a report on WAL. Pure."""

from collections.abc import Sequence
from typing import Any, Final

from walproxy.html_page.charts import OTHER_SLOT, Chart, label_of, rounded, scale_of
from walproxy.html_page.units import duration_text, size_text
from walproxy.pipeline.jobs.report_data import OTHER, Report, Series, TransactionRow

_IMAGES_SLOT: Final = "images"
_CHECKPOINTS_MAX: Final = 150


def charts_of(report: Report) -> list[Chart]:
    """Return all charts, also those with nothing to draw."""
    return [
        _volume(report, "by-relation", "WAL by relation", report.bins.by_relation),
        _volume(report, "by-rmgr", "WAL by resource manager", report.bins.by_rmgr),
        _image_share(report),
        _transactions_per_second(report),
        _biggest(report),
    ]


def _volume(report: Report, id: str, title: str, series: Sequence[Series]) -> Chart:
    bins = report.bins
    chart = Chart(id=id, title=title, summary=f"{title} over {'time' if bins.has_times else 'its LSNs'}.")
    if not any(bins.wal_bytes):
        chart.empty = "No WAL has a time." if report.headline.wal_bytes else "No WAL."
        return chart
    unit, scale = scale_of(max(bins.wal_bytes))
    for slot, each in enumerate(series):
        chart.traces.append(
            {
                "type": "bar",
                "name": label_of(each.name),
                "x": bins.labels,
                "y": [rounded(value / scale) for value in each.values],
                "hovertemplate": f"%{{y:.3~r}} {unit}",
                "slot": OTHER_SLOT if each.name == OTHER else slot,
                **_bar_place(report),
            }
        )
    largest = ", ".join(f"{each.name} {size_text(sum(each.values))}" for each in series[:5])
    chart.summary += f" In all: {largest}."
    chart.layout = _over_time(report, f"{unit} per {_width(report)}") | {"barmode": "stack"}
    return chart


def _image_share(report: Report) -> Chart:
    bins = report.bins
    chart = Chart(id="image-share", title="Share of full-page images", summary="Share of full-page images in the WAL.")
    if not any(bins.wal_bytes):
        chart.empty = "No WAL has a time." if report.headline.wal_bytes else "No WAL."
        return chart
    pairs = zip(bins.image_bytes, bins.wal_bytes, strict=True)
    share = [round(100 * images / wal, 2) if wal else None for images, wal in pairs]
    chart.traces = [
        {
            "type": "bar",
            "name": "full-page images",
            "x": bins.labels,
            "y": share,
            "hovertemplate": "%{y:.1f} % of the WAL",
            "slot": _IMAGES_SLOT,
            "showlegend": False,
            **_bar_place(report),
        }
    ]
    chart.layout = _over_time(report, "% of the bytes")
    chart.layout["yaxis"]["range"] = [0, 100]
    if bins.checkpoints:
        chart.summary += f" Dotted lines are the ends of {len(bins.checkpoints)} checkpoints."
        chart.layout["shapes"] = [
            {"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper", "slot": OTHER_SLOT}
            for at in bins.checkpoints[:_CHECKPOINTS_MAX]
            if bins.has_times
        ]
    return chart


def _transactions_per_second(report: Report) -> Chart:
    bins = report.bins
    chart = Chart(id="transactions", title="Transactions per second", summary="Transactions that ended, per second.")
    if not bins.commits:
        known = report.headline.commits is not None
        chart.empty = "Fewer than two times are known: no rate." if known else "The table transactions is missing."
        return chart
    seconds = bins.width / 1e6
    for name, counts, slot in (("commits", bins.commits, 0), ("aborts", bins.aborts, 2)):
        chart.traces.append(
            {
                "type": "bar",
                "name": name,
                "x": bins.labels,
                "y": [rounded(count / seconds) for count in counts],
                "hovertemplate": "%{y:.4~r} a second",
                "slot": slot,
                **_bar_place(report),
            }
        )
    chart.layout = _over_time(report, "a second") | {"barmode": "stack"}
    return chart


def _biggest(report: Report) -> Chart:
    rows = report.transactions
    chart = Chart(id="biggest", title="Biggest transactions", summary="The transactions that wrote most WAL.")
    if not rows:
        known = report.headline.transactions is not None
        chart.empty = "No transaction wrote anything." if known else "The table transaction_volume is missing."
        return chart
    unit, scale = scale_of(max(row.wal_bytes for row in rows))
    parts = (
        ("full-page images", _IMAGES_SLOT, [row.image_bytes for row in rows]),
        ("all else", 0, [row.wal_bytes - row.image_bytes for row in rows]),
    )
    labels = [_transaction(row) for row in rows]
    chart.traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": labels,
            "x": [rounded(value / scale) for value in values],
            "hovertemplate": f"%{{x:.3~r}} {unit}",
            "slot": slot,
        }
        for name, slot, values in parts
    ]
    chart.layout = {
        "barmode": "stack",
        "height": 90 + 26 * len(rows),
        "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
        "xaxis": {"title": {"text": unit}, "rangemode": "tozero"},
        "hovermode": "y unified",
    }
    return chart


def _transaction(row: TransactionRow) -> str:
    return f"xid {row.xid}"


def _over_time(report: Report, y_title: str) -> dict[str, Any]:
    x_axis: dict[str, Any] = {"title": {"text": "UTC" if report.bins.has_times else "LSN"}}
    x_axis |= {"type": "date"} if report.bins.has_times else {"type": "category", "nticks": 12}
    return {
        "xaxis": x_axis,
        "yaxis": {"title": {"text": y_title}, "rangemode": "tozero"},
        "hovermode": "x unified",
        "bargap": 0,
    }


def _bar_place(report: Report) -> dict[str, Any]:
    """Let a bar begin where its bin does; Plotly centres it otherwise, and a date's width is in milliseconds."""
    return {"width": report.bins.width / 1000, "offset": 0} if report.bins.has_times else {}


def _width(report: Report) -> str:
    """Return `min`, `5 min` or `16 MiB of WAL`: what comes after `per`."""
    if not report.bins.has_times:
        return f"{size_text(report.bins.width)} of WAL"
    number, unit = duration_text(report.bins.width).split()
    return unit if number == "1" else f"{number} {unit}"
