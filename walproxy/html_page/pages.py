"""A report as one HTML page that works without a network: it contains its style and scripts, and loads nothing.

Names may contain any characters: the templates escape them, and the policy of a page allows only its own scripts, or
none. Needs jinja2.
"""

import hashlib
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final

import jinja2
import msgspec
from markupsafe import Markup

from safekeeper.base.errors import ConfigurationError
from walproxy.html_page.charts import BarChart, Chart, duration_text, size_text

_SHARED: Final = "walproxy.html_page.templates"
STILL: Final = ("page.css", "still.css")
"""The style of a page without a script."""


def render(
    package: str,
    template: str,
    style: Sequence[str],
    charts: Sequence[Chart] | Sequence[BarChart],
    context: Mapping[str, Any],
    filters: Mapping[str, Callable[..., str]],
) -> str:
    """Return a page.

    Args:
        package: the package of the template, which extends `base.html.j2`.
        template: its name in the package.
        style: names of shared files.
        charts: the charts of the page; the template has them by id.
        context: further variables of the template; with those of `scripts` the page has its scripts.
        filters: further filters, besides `size`, `duration` and `number`.
    """
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([_loader_of(package), _loader_of(_SHARED)]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"size": size_text, "duration": duration_text, "number": lambda value: f"{value:,}"}
    environment.filters |= filters
    styles = "".join(_read(_SHARED, name) for name in style)
    return environment.get_template(template).render(
        **context,
        charts={chart.id: chart for chart in charts},
        style=Markup(styles),
        style_hash=b64encode(hashlib.sha256(styles.encode()).digest()).decode(),
    )


def scripts(charts: Sequence[Chart], plotly: str) -> dict[str, Markup]:
    """Return the variables of a page that draws its charts with Plotly."""
    specifications = msgspec.json.encode([chart for chart in charts if not chart.empty]).decode()
    return {
        # Nothing in it ends the script element.
        "specifications": Markup(specifications.replace("<", "\\u003c")),
        "script": Markup(_read(_SHARED, "page.js")),
        "plotly": Markup(plotly),
    }


def write(page: str, path: Path, option: str) -> None:
    """Write a page into the file that `option` names.

    Raises:
        ConfigurationError: it cannot be written.
    """
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"could not write {path}: {error.strerror}; correct {option}") from error


def _loader_of(package: str) -> jinja2.FunctionLoader:
    def load(name: str) -> str | None:
        try:
            return _read(package, name)
        except FileNotFoundError:
            return None  # Another loader may have it.

    return jinja2.FunctionLoader(load)


def _read(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text("utf-8")
