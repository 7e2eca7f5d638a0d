"""A report as one HTML page that works without a network: it contains its scripts, and loads nothing.

Names may contain any characters: the templates escape them, and the policy of the page allows only its own scripts.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from walproxy.html_page import rendering
from walproxy.html_page.charts import Chart


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
    return (
        rendering.environment(package, filters)
        .get_template(template)
        .render(
            **context,
            charts={chart.id: chart for chart in charts},
            specifications=_in_script(msgspec.json.encode([chart for chart in charts if not chart.empty])),
            style=Markup(rendering.read(rendering.SHARED, "page.css")),
            script=Markup(rendering.read(rendering.SHARED, "page.js")),
            plotly=Markup(get_plotlyjs()),
        )
    )


def _in_script(json: bytes) -> Markup:
    """Return JSON that can stand in a script element: nothing in it ends that."""
    return Markup(json.decode().replace("<", "\\u003c"))
