"""A report as one HTML page that works without a network: it contains its scripts, and loads nothing.

Names may contain any characters: the templates escape them, and the policy of the page allows only its own scripts.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final

import jinja2
import msgspec
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from safekeeper.base.errors import ConfigurationError
from walproxy.html_page.charts import Chart
from walproxy.html_page.units import duration_text, size_text

_SHARED: Final = "walproxy.html_page.templates"


def render(
    package: str,
    template: str,
    charts: Sequence[Chart],
    context: Mapping[str, Any],
    filters: Mapping[str, Callable[..., str]] | None = None,
) -> str:
    """Return a page.

    Args:
        package: the package of the template, which extends `base.html.j2`.
        template: its name in the package.
        charts: the charts of the page; the template has them by id.
        context: further variables of the template.
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
    environment.filters |= filters or {}
    return environment.get_template(template).render(
        **context,
        charts={chart.id: chart for chart in charts},
        specifications=_in_script(msgspec.json.encode([chart for chart in charts if not chart.empty])),
        style=Markup(_read(_SHARED, "page.css")),
        script=Markup(_read(_SHARED, "page.js")),
        plotly=Markup(get_plotlyjs()),
    )


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


def _in_script(json: bytes) -> Markup:
    """Return JSON that can stand in a script element: nothing in it ends that."""
    return Markup(json.decode().replace("<", "\\u003c"))
