"""The HTTP pages of an agent: REST as Patroni's users know it, and its own /status and /metrics.

Their content is in walproxy/agent/rest_answers.py and walproxy/agent/metrics.py.
"""

import time
from collections.abc import Callable
from typing import Any

from safekeeper.net.http_server import Answer, Query, QueryRoute, Route, made_at_first_request
from safekeeper.net.listener import Listener
from walproxy.agent.rest_answers import PAGES, Page, answer
from walproxy.agent.state import AgentState


def agent_routes(
    state: Callable[[], AgentState],
    listeners: dict[str, Listener[Any]],
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Route | QueryRoute]:
    """Return the pages of an agent, for `serve_http`.

    Args:
        state: returns what the agent has found in its last round; must not block.
        listeners: the agent's listeners by name, for /metrics; one that is added later is in it, too.
        clock: that of `AgentState.made_at`.
    """

    def route(page: Page) -> QueryRoute:
        def reply(query: Query) -> Answer:
            return answer(page, query, state(), clock())

        return QueryRoute(reply)

    def metrics() -> Route:
        from safekeeper.net.metrics_page import metrics_route
        from walproxy.agent.metrics import AgentCollector

        return metrics_route(AgentCollector(state, listeners, clock))

    # As the proxy's: what it imports is not needed before.
    return {**{path: route(page) for path, page in PAGES.items()}, "/metrics": made_at_first_request(metrics)}
