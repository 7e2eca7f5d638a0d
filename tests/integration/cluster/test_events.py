"""`walproxy events` lists what happened to a real cluster, in order, also after all of it has been restarted."""

import json
import re
import socket
import subprocess
import urllib.request
from collections.abc import Callable
from datetime import datetime
from typing import Any

from tests.integration.cluster.cluster_fixtures import Gated, wait_for
from tests.integration.conftest import NEWEST, NewGated
from tests.integration.refusals.refusal_fixtures import only_line, run_walproxy
from walproxy.lab.cluster.local_cluster import LocalProcess

pytestmark = NEWEST
# The machine may be busy with other tests.
TIMEOUT_S = 60.0


def run_events(cluster: Gated, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_walproxy("events", *arguments, environment=cluster.operator_environment)


def events(cluster: Gated, *arguments: str) -> list[dict[str, Any]]:
    """Return what `walproxy events --json` prints."""
    ended = run_events(cluster, "--json", *arguments)
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def kinds(listed: list[dict[str, Any]], **fields: object) -> list[str]:
    return [each["event"] for each in listed if fields.items() <= each["fields"].items()]


def has_in_order(listed: list[str], wanted: list[str]) -> bool:
    """Return whether `wanted` is a subsequence of `listed`."""
    rest = iter(listed)
    return all(kind in rest for kind in wanted)


def until_listed(cluster: Gated, condition: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def is_there() -> bool:
        found[:] = events(cluster)
        return condition(found)

    wait_for(is_there, lambda: f"the events are listed: {kinds(found)}", TIMEOUT_S, poll_s=0.5)
    return found


def page(process: LocalProcess, since: int = 0) -> dict[str, Any]:
    """Return /events of a daemon."""
    with urllib.request.urlopen(f"{process.url}/events?since={since}", timeout=30) as answer:
        content: dict[str, Any] = json.load(answer)
        return content


def kept(process: LocalProcess) -> list[dict[str, Any]]:
    """Return all events of a daemon, page by page; none while it does not reply."""
    found: list[dict[str, Any]] = []
    since = 0
    while process.status() is not None:
        content = page(process, since)
        if not content["events"]:
            break
        found += content["events"]
        since = content["next"]
    return found


def until_kept_by_all(cluster: Gated, listed: dict[str, Any]) -> None:
    """Wait until each safekeeper has this event."""
    for safekeeper in cluster.safekeepers.values():
        wait_for(
            lambda one=safekeeper: any(each["id"] == listed["id"] for each in kept(one)),  # type: ignore[misc]
            f"{safekeeper.name} has {listed['event']}",
            TIMEOUT_S,
            poll_s=0.2,
        )


def has_lost(quorum_of: int) -> Callable[[list[dict[str, Any]]], bool]:
    return lambda listed: kinds(listed).count("quorum-lost") >= quorum_of


def test_what_happened_is_listed_in_order_also_after_a_restart_of_everything(cluster: Gated) -> None:
    began = len(events(cluster))
    safekeepers, term = cluster.safekeepers, cluster.status()["term"]

    # One member is lost, which changes nothing, then a second one, which is one too many.
    safekeepers[3].kill9()
    until_listed(cluster, lambda listed: "member-lost" in kinds(listed, safekeeper=3))
    lost_before = kinds(events(cluster)).count("quorum-lost")
    safekeepers[2].kill9()
    until_listed(cluster, has_lost(lost_before + 1))
    safekeepers[2].start()
    safekeepers[3].start()
    until_listed(cluster, lambda listed: {"quorum-back"} <= set(kinds(listed[began:])))
    listed = until_listed(cluster, lambda listed: kinds(listed[began:], safekeeper=3)[-1:] == ["member-back"])
    until_kept_by_all(cluster, next(each for each in reversed(listed) if each["event"] == "member-back"))

    # The proxy stops, and the next one leads.
    assert cluster.proxy.stop() == 0
    cluster.start_proxy()
    listed = until_listed(cluster, lambda listed: "term-begun" in kinds(listed, term=term + 1))
    until_kept_by_all(cluster, next(each for each in reversed(listed) if each["event"] == "term-begun"))

    happened = listed[began:]
    assert has_in_order(
        kinds(happened),
        ["member-lost", "quorum-lost", "quorum-back", "proxy-stopped", "proxy-started", "term-won", "term-begun"],
    ), kinds(happened)
    assert has_in_order(kinds(happened, safekeeper=3), ["member-lost", "member-back"])
    assert kinds(happened, term=term + 1).count("term-won") == 1
    times = [datetime.fromisoformat(each["at"]) for each in listed]
    assert times == sorted(times) and times[0].tzinfo is not None
    assert len({each["id"] for each in listed}) == len(listed)
    # Each event of a proxy names its run and its machine: spares and proxies of agents report the same loss.
    runs = {f"walproxy {each['fields']['run']}@{socket.gethostname()}" for each in listed if "run" in each["fields"]}
    assert len(runs) == 2, runs
    assert {each["source"] for each in listed} == runs | {f"safekeeper {i}" for i in safekeepers}

    # The safekeepers have these on disk, each of them those of the proxies.
    for safekeeper in safekeepers.values():
        assert safekeeper.stop() == 0
    for safekeeper in safekeepers.values():
        safekeeper.start()
    for safekeeper in safekeepers.values():
        wait_for(lambda one=safekeeper: one.status() is not None, "it replies", TIMEOUT_S)  # type: ignore[misc]
    after = until_listed(cluster, lambda listed: kinds(listed).count("safekeeper-stopped") >= len(safekeepers))
    ids = [each["id"] for each in listed]
    assert [each["id"] for each in after if each["id"] in ids] == ids
    for safekeeper in safekeepers.values():
        found = kept(safekeeper)
        assert [each["seq"] for each in found] == sorted({each["seq"] for each in found})
        assert {"quorum-lost", "term-begun"} <= set(kinds(found))

    # The proxy has its own in memory.
    wait_for(lambda: cluster.proxy.status() is not None, "the proxy replies", TIMEOUT_S)
    of_proxy = kept(cluster.proxy)
    assert kinds(of_proxy)[0] == "proxy-started"
    assert page(cluster.proxy, of_proxy[1]["seq"])["events"][: len(of_proxy) - 1] == of_proxy[1:]

    # A part of them, as lines.
    lines = run_events(cluster, "--since", happened[0]["at"]).stdout.splitlines()
    assert not any(listed[0]["at"] in line for line in lines) and len(lines) >= len(happened)
    lost = re.compile(r" walproxy [0-9a-f]{8}@\S+ quorum-lost: commits wait: no quorum for ")
    assert any(lost.search(line) for line in lines)


def test_a_command_shows_the_events_of_the_safekeepers_that_reply(cluster: Gated) -> None:
    cluster.safekeepers[1].kill9()
    ended = run_events(cluster, "--json")
    assert ended.returncode == 0 and ended.stdout
    assert only_line(ended.stderr).startswith("no events from safekeeper 1: safekeeper 1 at 127.0.0.1:")
    for safekeeper in cluster.safekeepers.values():
        safekeeper.kill9()
    ended = run_events(cluster)
    assert ended.returncode == 1 and ended.stdout == ""
    assert "cannot be reached" in only_line(ended.stderr)
    assert "--since" in run_events(cluster, "--since", "yesterday").stderr


def test_the_log_is_json_if_that_is_configured(new_gated: NewGated) -> None:
    cluster = new_gated().start_gated()
    spare = cluster.add_proxy("-c", "log_format=json")
    wait_for(lambda: (spare.status() or {}).get("spare"), "it is a spare", TIMEOUT_S)
    assert spare.stop() == 0
    lines = [json.loads(line) for line in spare.log_path.read_text().splitlines()]
    assert all({"time", "level", "process", "logger", "message"} <= line.keys() for line in lines)
    assert [line["event"] for line in lines if "event" in line] == ["proxy-started", "proxy-stopped"]
    assert lines[-1] | {"time": "", "fields": {}} == {
        "time": "",
        "level": "info",
        "process": "walproxy",
        "logger": "walproxy.cli.run",
        "message": "stopped",
        "event": "proxy-stopped",
        "fields": {},
    }
