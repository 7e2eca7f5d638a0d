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
from tests.unit.proxy.statuses import standby, status
from tests.unit.replication_house import ReplicationHouse
from tests.unit.scripted_proposer import BASE_LSN
from walproxy.agent.metrics import AgentCollector
from walproxy.agent.report import AgentSettings, PrimaryChange
from walproxy.proxy.measurements import Measurements
from walproxy.proxy.metrics import ProxyCollector
from walproxy.proxy.status_fields import LimboTotals, ReconnectCounts

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
def test_every_metric_that_is_watched_is_described(file: str) -> None:
    known = {name.partition("{")[0] for name in described()}
    watched = {name for expression in expressions()[file] for name in _METRIC.findall(expression)}
    assert len(watched) > 8
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in watched} <= known


def test_every_metric_and_its_labels_are_described_and_no_others(tmp_path: Path) -> None:
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
            listeners={"replication": house.listener},
            certificates={"http": tls},
        )
        there = house.call(lambda: metrics(safekeeper)) | metrics(ProcessCollector(registry=None))
        limbo = LimboTotals(bytes=0, oldest_s=None, timeouts={"warn": 1}, read_only=False, discarded=0)
        reconnects = ReconnectCounts(primary=0, safekeepers={"1": 1})
        shown = status(standbys=[standby("standby1")], limbo=limbo, reconnects=reconnects)
        measured = Measurements()
        measured.commits.members[1] = RecentHistogram()
        of_proxy = ProxyCollector(lambda: shown, lambda: "", measured, {"http": house.listener}, {"http": tls})
        there |= house.call(lambda: metrics(of_proxy))
        change = PrimaryChange("failover", "two", tli=2, term=5)
        agent = state(STANDBY, settings=AgentSettings(changes=(change,)))
        of_agent = AgentCollector(lambda: agent, {"http": house.listener}, lambda: NOW)
        there |= house.call(lambda: metrics(of_agent))
    assert len(there) > 50
    assert sorted(described()) == sorted(there)


def described() -> list[str]:
    """Return the metrics that the documentation names: `name{label,label}`."""
    page = (DEPLOY.parent / "docs" / "reference" / "metrics.md").read_text()
    cells = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


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
