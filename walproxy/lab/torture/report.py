"""A run as one HTML page: violations first, then what was broken and what clients felt of it, then the processes.

Needs jinja2 and plotly, which come with the extra `testing`.
"""

from pathlib import Path
from typing import Final

from plotly.offline import get_plotlyjs

from walproxy.html_page import pages
from walproxy.html_page.charts import duration_text
from walproxy.lab.torture.growth import GROWTH_PERCENT_MAX, growth_of
from walproxy.lab.torture.record import Run
from walproxy.lab.torture.report_charts import charts_of
from walproxy.lab.torture.report_figures import figures_of
from walproxy.lab.torture.soak import is_judged

_TEMPLATES: Final = "walproxy.lab.torture.templates"


def render(run: Run) -> str:
    """Return the page."""
    figures = figures_of(run)
    context = {
        "run": run,
        "figures": figures,
        "growth": growth_of(run.samples, run.seconds, is_judged),
        "growth_percent_max": GROWTH_PERCENT_MAX,
        "is_soak": not run.faults,
    }
    filters = {
        "seconds": lambda seconds: f"{seconds:.2f} s",
        "took": lambda seconds: "–" if seconds is None else duration_text(1e6 * seconds),
    }
    charts = charts_of(run, figures)
    context |= pages.scripts(charts, get_plotlyjs())
    return pages.render(_TEMPLATES, "run.html.j2", ["page.css"], charts, context, filters)


def write_page(run: Run, path: Path) -> None:
    """Write the page into a file.

    Raises:
        ConfigurationError: it cannot be written.
    """
    pages.write(render(run), path, "--report")
