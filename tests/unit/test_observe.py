"""deploy/observe and docs/reference/metrics.md name the metrics that the programs have, and no others."""

import re
from pathlib import Path

import msgspec
import pytest
from prometheus_client import ProcessCollector
from prometheus_client.registry import Collector

from safekeeper.base.histogram import RecentHistogram
from safekeeper.net.safekeeper_connection import Credentials
from safekeeper.net.tls import ServerTls
from safekeeper.node.wal_pull import WalPuller
from safekeeper.process.metrics import SafekeeperCollector
from safekeeper.process.retention import Retention
from tests.unit.agent.states import NOW, STANDBY, state
from tests.unit.certificates import Authority
from tests.unit.process.test_metrics import pages
from tests.unit.proxy.test_metrics import numbers
from tests.unit.proxy.test_status import proxy as proxy  # a fixture
from tests.unit.replication_house import ReplicationHouse
from tests.unit.scripted_proposer import BASE_LSN
from walproxy.agent.metrics import AgentCollector
from walproxy.agent.report import AgentSettings, PrimaryChange
from walproxy.proxy.metrics import ProxyCollector
from walproxy.proxy.proxy import Proxy
from walproxy.proxy.status import proxy_status

DEPLOY = Path(__file__).parents[2] / "deploy"
_METRIC = re.compile(r"\b(?:safekeeper|walproxy)_[a-z_]+\b")


def expressions() -> dict[str, list[str]]:
    """PromQL by the file that has it."""
    rules = msgspec.yaml.decode((DEPLOY / "observe" / "rules.yml").read_bytes())
    dashboard = msgspec.json.decode((DEPLOY / "observe" / "walproxy.json").read_bytes())
    return {
        "rules.yml": [rule["expr"] for group in rules["groups"] for rule in group["rules"]],
        "walproxy.json": [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]],
    }


@pytest.mark.parametrize("file", ["rules.yml", "walproxy.json"])
def test_every_metric_that_is_watched_is_there(file: str, tmp_path: Path, proxy: Proxy) -> None:
    status = proxy_status(proxy, 1.0)
    status["safekeepers"][0] |= {"lag_bytes": 0}
    status["gate"] = {"state": "gated", "hangs": False}
    status["standbys"] = [{"name": "standby1", "connected": True, "apply_lag_bytes": 0, "stalled_s": None}]
    said = set(numbers(ProxyCollector(lambda: status, lambda: "", proxy.measured)))
    with ReplicationHouse(tmp_path, archive=str(tmp_path / "archive")) as house:
        house.run(house.slots.create("s1", 0, connection=0))
        house.call(house.node.measure_room)
        house.until(lambda: house.node.disk_space.space is not None)
        said |= set(pages(house)[0])
    there = {name.partition("[")[0] for name in said}
    watched = {name for expression in expressions()[file] for name in _METRIC.findall(expression)}
    assert len(watched) > 8
    assert watched <= there, f"nobody says {sorted(watched - there)}"


def test_every_metric_and_its_labels_are_described_and_no_others(tmp_path: Path, proxy: Proxy) -> None:
    tls = ServerTls(*Authority(tmp_path).sign("a"))
    with ReplicationHouse(tmp_path, archive=str(tmp_path / "archive")) as house:
        house.run(house.slots.create("s1", BASE_LSN, connection=0))
        house.call(house.node.measure_room)
        house.until(lambda: house.node.disk_space.space is not None)
        retention = Retention(house.node, house.slots, house.hub, house.archiver, keep_bytes=0, limit_bytes=1 << 30)
        puller = house.call(lambda: WalPuller(house.node, Credentials()))
        puller.pulled_bytes[2] = 8192
        safekeeper = SafekeeperCollector(
            house.node,
            retention,
            hub=house.hub,
            archiver=house.archiver,
            read_through=house.read_through,
            puller=puller,
        )
        safekeeper.listeners["replication"] = house.listener
        safekeeper.certificates = {"http": tls}
        there = house.call(lambda: metrics(safekeeper)) | metrics(ProcessCollector(registry=None))
        status = proxy_status(proxy, 1.0) | {"members": [1], "gate": {"state": "gated", "hangs": False}}
        status["standbys"] = [{"name": "standby1", "connected": True, "apply_lag_bytes": 0, "stalled_s": None}]
        status["safekeepers"][0] |= {"lag_bytes": 0}
        of_proxy = ProxyCollector(lambda: status, lambda: "", proxy.measured)
        of_proxy.listeners["http"] = house.listener
        of_proxy.certificates = {"http": tls}
        proxy.measured.commits.members[1] = RecentHistogram()
        proxy.measured.connected(1)
        status |= proxy.measured.describe(1.0)
        there |= house.call(lambda: metrics(of_proxy))
        change = PrimaryChange("failover", "two", tli=2, term=5)
        agent = state(STANDBY, settings=AgentSettings(changes=(change,)))
        of_agent = AgentCollector(lambda: agent, {"http": house.listener}, lambda: NOW)
        there |= house.call(lambda: metrics(of_agent))
    page = (DEPLOY.parent / "docs" / "reference" / "metrics.md").read_text()
    cells = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    described = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    assert len(there) > 50
    assert sorted(described) == sorted(there)


def metrics(collector: Collector) -> set[str]:
    """Return the metrics of a collector as the documentation names them: `name{label,label}`."""
    found = set()
    for family in collector.collect():
        assert family.samples, f"{family.name} has no sample: its labels are unknown"
        labels = ",".join(label for label in family.samples[0].labels if label != "le")
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found.add(f"{name}{{{labels}}}" if labels else name)
    return found


def test_everything_that_is_asked_is_a_service_with_its_port() -> None:
    prometheus = msgspec.yaml.decode((DEPLOY / "observe" / "prometheus.yml").read_bytes())
    compose = (DEPLOY.parent / "docker-compose.yml").read_text()
    cluster = (DEPLOY / "walproxy.toml").read_text()
    targets = [t for job in prometheus["scrape_configs"] for part in job["static_configs"] for t in part["targets"]]
    assert len(targets) == 5
    for service, port in (target.split(":") for target in targets):
        assert re.search(rf"^  {service}:$", compose, re.MULTILINE), service
        assert re.search(rf":{port}\"", compose), port
        # Otherwise the listener answers 421.
        assert re.search(rf"^http_hosts = .*\b{service}\b", cluster, re.MULTILINE), service
