"""A real Prometheus with the rules of deploy/observe, over the daemons of a cluster. Debian has it as prometheus.

The rules are those that are shipped, except that each alert has to hold for FOR instead of for up to ten minutes.
"""

import json
import shutil
import signal
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.waiting import NotThereYet, wait_for
from walproxy.lab.cluster.local_cluster import LocalProcess
from walproxy.postgres.local_server import free_port

PROGRAM = shutil.which("prometheus")
needs_prometheus = pytest.mark.skipif(PROGRAM is None, reason="prometheus is not installed: apt-get install prometheus")
RULES = Path(__file__).parents[2] / "deploy" / "observe" / "rules.yml"
FOR = "4s"
# Also the timeout of a scrape: on a busy machine a shorter one leaves gaps, and each of them begins FOR again.
INTERVAL = "2s"
STARTS_S = 60.0


class Prometheus:
    """One that runs.

    Attributes:
        url: of its API.
    """

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire.

        Raises:
            NotThereYet: it does not reply.
        """
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/alerts", timeout=30) as answer:
                alerts = json.load(answer)["data"]["alerts"]
        except urllib.error.URLError as error:
            raise NotThereYet(f"{self.url}: {error}") from error
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def value(self, expression: str) -> float:
        """Return the only value of an expression.

        Raises:
            NotThereYet: it has none.
        """
        query = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{query}", timeout=30) as answer:
            result = json.load(answer)["data"]["result"]
        if len(result) != 1:
            raise NotThereYet(f"{expression} has {len(result)} values")
        return float(result[0]["value"][1])


def metrics_problems(process: LocalProcess) -> str:
    """Return what promtool, which comes with Prometheus, finds wrong in a daemon's metrics; empty: nothing."""
    with urllib.request.urlopen(f"{process.url}/metrics", timeout=30) as answer:
        page = answer.read()
    ended = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, timeout=60, check=False)
    return ended.stderr.decode() if ended.returncode else ""


@contextmanager
def prometheus(folder: Path, jobs: Mapping[str, Sequence[LocalProcess]]) -> Iterator[Prometheus]:
    """Run a Prometheus that reads the metrics of these processes.

    Args:
        folder: for its files.
        jobs: the processes by the name of their job in deploy/observe/prometheus.yml.
    """
    assert PROGRAM is not None  # by needs_prometheus
    folder.mkdir()
    rules = msgspec.yaml.decode(RULES.read_bytes())
    for group in rules["groups"]:
        for rule in group["rules"]:
            if "for" in rule:
                rule["for"] = FOR
    (folder / "rules.yml").write_bytes(msgspec.yaml.encode(rules))
    jobs_of_config = [
        {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{each.http_port}" for each in processes]}]}
        for name, processes in jobs.items()
    ]
    config = {
        "global": {"scrape_interval": INTERVAL, "scrape_timeout": INTERVAL, "evaluation_interval": INTERVAL},
        "rule_files": [str(folder / "rules.yml")],
        "scrape_configs": jobs_of_config,
    }
    (folder / "prometheus.yml").write_bytes(msgspec.yaml.encode(config))
    server = Prometheus(port := free_port())
    options = [
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([PROGRAM, *options], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        wait_for(server.is_ready, lambda: f"it is ready: {(folder / 'log').read_text()[-2000:]}", STARTS_S)
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
