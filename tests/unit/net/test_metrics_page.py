"""The parts of /metrics that all programs share."""

import platform
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from safekeeper.base.histogram import Histogram
from safekeeper.net.http_server import Text
from safekeeper.net.metrics_page import Metrics, metrics_route
from safekeeper.net.tls import ClientTls, ServerTls
from tests.unit.certificates import Authority


class OneFigure(Collector):
    def collect(self) -> list[GaugeMetricFamily]:
        return [GaugeMetricFamily("answer", "An answer", value=42)]


def test_the_page_has_the_figures_of_its_collector_and_of_the_process() -> None:
    status, page = metrics_route(OneFigure())()
    assert status == 200 and isinstance(page, Text)
    names = {sample.name for family in text_string_to_metric_families(page.body.decode()) for sample in family.samples}
    assert {"answer", "process_open_fds", "process_max_fds", "process_cpu_seconds_total"} <= names


def test_the_versions_are_labels() -> None:
    (sample,) = Metrics("walproxy").build_info().samples
    assert (sample.name, sample.value) == ("walproxy_build_info", 1)
    assert sample.labels["python"] == platform.python_version() and sample.labels["version"]


def test_the_remaining_time_of_each_certificate_in_use_is_reported_and_of_no_other(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    expires_at = datetime.now(UTC) + timedelta(days=3)
    server = ServerTls(*authority.sign("server", valid_until=expires_at))
    certificates = {"http": server, "safekeepers": ClientTls(authority.ca), "replication": None}
    metric = Metrics("walproxy").certificates(certificates)
    assert [sample.labels for sample in metric.samples] == [{"certificate": "http"}]
    assert metric.samples[0].value == pytest.approx(3 * 86400, abs=60)


def test_histograms_with_a_label_are_one_family_and_their_buckets_are_powers_of_two() -> None:
    histograms = {"1": Histogram(), "2": Histogram()}
    histograms["2"].observe(0.75)
    metric = Metrics("x").histograms("seconds", "X", "safekeeper", histograms.items())
    at = {(sample.name, *sample.labels.values()): sample.value for sample in metric.samples}
    assert (at["x_seconds_bucket", "2", "0.5"], at["x_seconds_bucket", "2", "1.0"]) == (0, 1)
    assert (at["x_seconds_count", "1"], at["x_seconds_count", "2"], at["x_seconds_sum", "2"]) == (0, 1, 0.75)
