"""The pages of an agent over HTTP: as load balancers request them."""

import asyncio
import http.client
import json

from safekeeper.base.settings import Address
from safekeeper.net.http_server import HttpListener, serve_http
from safekeeper.net.listener import Listener
from tests.unit.agent.states import COMMIT_LSN, LEADER, NOW, STANDBY, THIRD, report, state
from tests.unit.event_loop import on_the_loop
from walproxy.agent.metrics import AgentCollector
from walproxy.agent.report import AgentSettings, PrimaryChange
from walproxy.agent.rest import agent_routes
from walproxy.agent.state import AgentState

HOST = "127.0.0.1"


def answers(of: AgentState, *requests: tuple[str, str]) -> list[tuple[int, str]]:
    """Return status code and body of each request, of a method and a target."""

    def fetch(port: int) -> list[tuple[int, str]]:
        found = []
        for method, target in requests:
            connection = http.client.HTTPConnection(HOST, port, timeout=20)
            connection.request(method, target)
            response = connection.getresponse()
            found.append((response.status, response.read().decode()))
            connection.close()
        return found

    received: list[tuple[int, str]] = []

    @on_the_loop
    async def run() -> None:
        listeners: dict[str, Listener[object]] = {}
        listener: HttpListener = await serve_http(agent_routes(lambda: of, listeners, lambda: NOW), Address(HOST, 0))
        listeners["http"] = listener
        try:
            received.extend(await asyncio.to_thread(fetch, listener.address.port))
        finally:
            await listener.close()

    run()
    return received


def numbers(of: AgentState, now: float = NOW) -> dict[str, float]:
    """The numbers by name and labels."""
    return {
        sample.name.removeprefix("walproxy_agent_") + "".join(f"[{value}]" for value in sample.labels.values()): float(
            sample.value
        )
        for family in AgentCollector(lambda: of, {}, lambda: now).collect()
        for sample in family.samples
    }


def test_a_load_balancer_may_use_any_method() -> None:
    requests = [(method, path) for path in ("/primary", "/replica") for method in ("GET", "HEAD", "OPTIONS")]
    of_leader = answers(state(LEADER, STANDBY), *requests)
    assert [code for code, _ in of_leader] == [200, 200, 200, 503, 503, 503]
    assert [bool(body) for _, body in of_leader] == [True, False, False] * 2
    assert json.loads(of_leader[0][1])["role"] == "primary"
    assert [code for code, _ in answers(state(STANDBY, LEADER), *requests)] == [503, 503, 503, 200, 200, 200]


def test_the_query_of_a_request_is_read() -> None:
    requests = [("GET", "/replica?lag=1kB"), ("OPTIONS", "/replica?lag=1023"), ("GET", "/replica?lag=1%20mb")]
    found = answers(state(STANDBY, LEADER), *requests, ("GET", "/nothing"), ("POST", "/switchover"))
    assert [code for code, _ in found] == [200, 503, 400, 404, 404]
    assert found[2][1] == "400: '1 mb' is not a size: write a number of bytes, or one with kB, MB, GB or TB"


def test_metrics_are_a_page() -> None:
    ((code, body),) = answers(state(LEADER), ("GET", "/metrics"))
    assert code == 200
    assert "walproxy_agent_leader 1.0" in body
    assert 'walproxy_agent_connections{authenticated="no",listener="http"} 1.0' in body


def test_the_metrics_of_a_leader() -> None:
    change = PrimaryChange("failover", "one", tli=2, term=5, at=123.5)
    found = numbers(state(LEADER, STANDBY, settings=AgentSettings(is_paused=True, changes=(change,))), NOW + 1)
    expected = {"leader": 1, "cluster_has_leader": 1, "quorum": 1, "paused": 1, "tli": 2, "log_tli": 2, "log_term": 7}
    assert {name: found[name] for name in expected} == expected
    assert (found["server_state[primary]"], found["server_state[standby]"]) == (1, 0)
    assert (found["commit_lsn_bytes"], found["written_lsn_bytes"]) == (COMMIT_LSN, COMMIT_LSN + 0x100)
    assert (found["last_round_seconds"], found["start_time_seconds"], found["last_change_seconds"]) == (1, 100, 123.5)
    assert (found["report_age_seconds[one]"], found["report_age_seconds[two]"]) == (1, 1.1)
    assert "lag_bytes" not in found


def test_the_metrics_of_a_standby() -> None:
    own = report(STANDBY, may_lead=False, doing="rejoin", problem="no disk space", is_read_only=True)
    found = numbers(state(own, THIRD, has_quorum=False))
    expected = {"leader": 0, "cluster_has_leader": 0, "quorum": 0, "may_lead": 0, "busy": 1, "problem": 1}
    expected |= {"lag_bytes": 0x400, "streaming": 1, "read_only": 1, "received_lsn_bytes": COMMIT_LSN}
    assert {name: found[name] for name in expected} == expected
    assert "last_change_seconds" not in found


def test_a_leader_whose_agent_is_blocked_is_none_in_its_metrics() -> None:
    found = numbers(state(LEADER, STANDBY), NOW + 6)
    assert (found["leader"], found["cluster_has_leader"], found["last_round_seconds"]) == (0, 0, 6)
