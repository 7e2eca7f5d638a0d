"""A report as one HTML page without a script: charts are drawn here, as SVG, and the page loads nothing.

Its policy allows one style, by its hash, and nothing else: no script, also none that a name of a relation contains, if
an escape were forgotten. Light or dark follows the reader's system.
"""

import hashlib
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from walproxy.html_page import rendering
from walproxy.html_page.bars import BarChart


def render(
    package: str,
    template: str,
    charts: Sequence[BarChart],
    context: Mapping[str, Any],
    filters: Mapping[str, Callable[..., str]] | None = None,
) -> str:
    """Return a page.

    Args:
        package: the package of the template, which extends `still.html.j2`.
        template: its name in the package.
        charts: the charts of the page; the template has them by id.
        context: further variables of the template.
        filters: further filters, besides `size`, `duration` and `number`.
    """
    style = "".join(rendering.read(rendering.SHARED, name) for name in ("page.css", "still.css"))
    return (
        rendering.environment(package, filters)
        .get_template(template)
        .render(
            **context,
            charts={chart.id: chart for chart in charts},
            style=Markup(style),
            style_hash=b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        )
    )
