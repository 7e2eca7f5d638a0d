"""A report as one HTML page that works without a network: the scripts are in it, and it asks for nothing.

Names of relations are whatever somebody called them: the template escapes them, and the page's policy lets no script
run but those that were put there.
"""

from importlib import resources
from pathlib import Path
from typing import Final

import jinja2
import msgspec
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from safekeeper.errors import ConfigurationError
from walproxy.pipeline.jobs.report_charts import charts_of
from walproxy.pipeline.jobs.report_data import Report
from walproxy.pipeline.jobs.time_axis import duration_text, size_text

_TEMPLATES: Final = "walproxy.pipeline.jobs.templates"
_FORKS: Final = ("", "free space map", "visibility map", "init")


def render(report: Report) -> str:
    """Return the page."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_read),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "size": size_text,
        "duration": duration_text,
        "number": lambda value: f"{value:,}",
        "clock": lambda text: text[:19].replace("T", " "),
        "fork": lambda number: _FORKS[number] if number < len(_FORKS) else str(number),
    }
    charts = charts_of(report)
    return environment.get_template("report.html.j2").render(
        report=report,
        headline=report.headline,
        charts={chart.id: chart for chart in charts},
        specifications=_in_script(msgspec.json.encode([chart for chart in charts if not chart.empty])),
        style=Markup(_read("report.css")),
        script=Markup(_read("report.js")),
        plotly=Markup(get_plotlyjs()),
    )


def write_page(report: Report, path: Path) -> None:
    """Write the page into a file.

    Raises:
        ConfigurationError: it cannot be written.
    """
    try:
        path.write_text(render(report), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"could not write {path}: {error.strerror}; correct --output") from error


def _read(name: str) -> str:
    return resources.files(_TEMPLATES).joinpath(name).read_text("utf-8")


def _in_script(json: bytes) -> Markup:
    """Return JSON that can stand in a script element: nothing in it ends that."""
    return Markup(json.decode().replace("<", "\\u003c"))
