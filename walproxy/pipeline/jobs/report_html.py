"""The page of a report on WAL. Names of relations are arbitrary text."""

from pathlib import Path
from typing import Final

from walproxy.html_page import pages
from walproxy.pipeline.jobs.report_charts import charts_of
from walproxy.pipeline.jobs.report_data import Report

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
