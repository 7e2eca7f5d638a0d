"""`walproxy cluster`, and `failover` and `switchover` where agents report: safekeepers in memory, agents of a test."""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import walproxy.agent.operator_client
import walproxy.cli.orders
from safekeeper.base.errors import EXIT_CONFIGURATION, EXIT_FINE, EXIT_UNEXPECTED, EXIT_USAGE
from tests.unit.agent.scripted_views import ScriptedViews
from tests.unit.agent.states import COMMIT_LSN, LEADER, STANDBY, THIRD, report
from tests.unit.cli.test_walproxy_cli import MEMBERS, Result, one_line
from tests.unit.cli.test_walproxy_cli import Here as Here
from tests.unit.cli.test_walproxy_cli import here as here  # a fixture
from walproxy.agent.report import AgentSettings, Order, PrimaryChange

ONE = report(LEADER)
TWO = report(STANDBY)


class Cluster:
    """Runs `walproxy cluster`, with `views` in place of connections to safekeepers."""

    def __init__(self, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
        self.views = ScriptedViews(ONE, TWO, report(THIRD, may_lead=False))
        self._here = here
        monkeypatch.setattr(walproxy.cli.orders, "SafekeeperViews", lambda *_: self.views)
        monkeypatch.setattr(walproxy.agent.operator_client, "_POLL_S", 0.001)
        monkeypatch.setenv("WALPROXY_SAFEKEEPERS", MEMBERS)
        monkeypatch.delenv("COLUMNS", raising=False)

    def __call__(self, *arguments: str) -> Result:
        group = () if arguments[0] in ("failover", "switchover") else ("cluster",)
        result = self._here(*group, *arguments)
        assert self.views.is_closed or self.views.exchanges == 0
        return result

    def json(self, *arguments: str) -> Any:
        result = self(*arguments, "--json")
        assert result.returncode == EXIT_FINE, result.stderr
        return json.loads(result.stdout)

    @property
    def settings(self) -> AgentSettings:
        return self.views.settings or AgentSettings()

    @property
    def order(self) -> Order | None:
        return self.settings.order


@pytest.fixture
def cluster(here: Here, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    yield Cluster(here, monkeypatch)


def present_order(views: ScriptedViews) -> Order:
    assert views.settings is not None and views.settings.order is not None
    return views.settings.order


def resigns(views: ScriptedViews) -> None:
    order = present_order(views)
    views.change("one", is_leader=False, has_resigned=True, state="stopping", doing=f"{order.kind} to {order.agent}")


def promotes(views: ScriptedViews) -> None:
    order = present_order(views)
    views.change("one", has_resigned=False, state="stopped", doing="rejoin")
    views.change("two", state="primary", is_leader=True, tli=3, order_done=order.id)
    change = PrimaryChange(order.kind, "two", tli=3, term=9, seconds=1.234, old_tli=2)
    assert views.settings is not None
    views.settings = msgspec.structs.replace(views.settings, changes=(change,), order=None)


def nothing(views: ScriptedViews) -> None:
    """Nothing happens before this exchange."""


def test_show_is_a_table_of_the_agents(cluster: Cluster) -> None:
    cluster.views.change("three", problem="no disk space", doing="rejoin", priority=50)
    cluster.views.ages_s["two"] = 12
    cluster.views.settings = AgentSettings(is_paused=True, order=Order("a" * 32, "switchover", "two"))
    result = cluster("show")
    lines = [line.rstrip() for line in result.stdout.splitlines() if line.strip()]
    assert (result.returncode, result.stderr) == (EXIT_FINE, "")
    assert lines[0] == "cluster 01234567, term 7, timeline 2, commit 0/5000000; a quorum of safekeepers replies"
    assert lines[1] == "PAUSED: agents change nothing by themselves until walproxy cluster resume"
    assert lines[2] == "ordered, not done: switchover to two"
    assert lines[3].split() == ["agent", "address", "role", "state", "TL", "lag", "tags", "doing"]
    assert lines[4].split() == ["one", "10.0.0.1:5432", "leader", "running", "2", "-"]
    assert " ".join(lines[5].split()) == (
        "three [fd00::3]:5433 replica running 2 1.0 KiB no-failover, priority 50 rejoin; no disk space"
    )
    assert " ".join(lines[6].split()) == "two 10.0.0.2:5432 replica no report for 12 s 2 1.0 KiB"


def test_show_works_without_a_quorum_and_without_a_leader(cluster: Cluster) -> None:
    cluster.views.replying = (2,)
    cluster.views.change("one", is_leader=False, is_read_only=True)
    lines = cluster("show").stdout.splitlines()
    assert lines[0].endswith("; NO QUORUM of safekeepers replies")
    assert lines[1] == "safekeeper 1 does not reply; safekeeper 3 does not reply"
    assert lines[2] == "NO LEADER: no agent reports that commits succeed through its server"
    assert lines[4].split()[2:4] == ["primary", "running"] and lines[4].split()[-1] == "read-only"


def test_show_without_agents_is_what_to_start(cluster: Cluster) -> None:
    cluster.views.agents = {}
    assert (
        cluster("show").stdout.splitlines()[1].startswith("no agent reports to the safekeepers: start walproxy agent")
    )


def test_without_any_safekeeper_a_command_ends_with_one_line(cluster: Cluster) -> None:
    cluster.views.replying = ()
    for words in (("show",), ("history",), ("pause",), ("reinit", "two", "--yes")):
        result = cluster(*words)
        assert result.returncode == EXIT_UNEXPECTED
        assert "no safekeeper has replied: no safekeeper has a cluster: start walproxy run first (" in one_line(result)


def test_show_as_json_has_everything(cluster: Cluster) -> None:
    content = cluster.json("show")
    assert (content["leader"], content["quorum"], content["commit_lsn"]) == ("one", True, "0/5000000")
    assert [each["name"] for each in content["agents"]] == ["one", "three", "two"]
    assert content["agents"][2]["lag_bytes"] == 0x400


def test_a_switchover_is_ordered_and_followed_to_its_end(cluster: Cluster) -> None:
    cluster.views.steps = [nothing, nothing, resigns, promotes]
    result = cluster("switchover", "--to", "two", "--yes")
    assert result.returncode == EXIT_FINE, result.stderr
    assert result.stdout == ("two is the primary on timeline 3 in term 7: commits go on; 1.23 s without a leader\n")
    assert result.stderr.splitlines() == ["waiting until two acts", "one: switchover to two"]
    (order,) = cluster.views.orders
    assert (order.kind, order.agent, len(order.id)) == ("switchover", "two", 32)
    assert order.at > 1_700_000_000


def test_a_switchover_as_json(cluster: Cluster) -> None:
    cluster.views.steps = [nothing, resigns, promotes]
    content = cluster.json("switchover", "--yes")
    (order,) = cluster.views.orders
    assert order.agent == ""
    assert content.pop("seconds")["all"] >= 0
    assert content == {"order": order.id, "primary": "two", "tli": 3, "term": 7}


def test_a_switchover_to_the_leader_changes_nothing(cluster: Cluster) -> None:
    result = cluster("switchover", "--to", "one", "--yes")
    assert (result.returncode, result.stdout) == (EXIT_FINE, "nothing is to be done: one leads\n")
    assert cluster.json("switchover", "--to", "one", "--yes")["order"] is None
    assert cluster.views.settings is None


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (
            ("switchover", "--to", "four"),
            EXIT_CONFIGURATION,
            "no agent is called 'four': the agents are one, three, two",
        ),
        (("switchover", "--to", "three"), EXIT_CONFIGURATION, "three must not lead: its agent runs with no_failover"),
        (("failover", "--to", "two"), EXIT_UNEXPECTED, "one leads, and commits succeed: walproxy switchover"),
        (("reinit", "one"), EXIT_CONFIGURATION, "one leads: its data folder is what the others are copied from"),
    ],
)
def test_what_cannot_be_ordered_is_one_line(cluster: Cluster, words: tuple[str, ...], code: int, line: str) -> None:
    result = cluster(*words, "--yes")
    assert (result.returncode, result.stdout) == (code, "")
    assert line in one_line(result)
    assert cluster.views.settings is None, "nothing was ordered"


def test_without_agents_or_a_quorum_nothing_is_ordered(cluster: Cluster) -> None:
    cluster.views.replying = (3,)
    for words in (("switchover", "--yes"), ("pause",), ("resume",)):
        assert "no quorum of safekeepers has replied: safekeeper 1 does not reply" in one_line(cluster(*words))
    cluster.views.replying = (1, 2, 3)
    cluster.views.agents = {}
    for words in (("reinit", "two", "--yes"), ("pause",)):
        assert "no agent reports to the safekeepers: start walproxy agent" in one_line(cluster(*words))


@pytest.mark.parametrize("yes", [("--yes",), ()])
def test_where_no_agent_reports_a_failover_acts_by_itself(cluster: Cluster, yes: tuple[str, ...]) -> None:
    def check() -> None:
        for words in (("switchover", "--to", "two"), ("failover",)):
            result = cluster(*words, *yes)
            assert result.returncode == EXIT_CONFIGURATION
            assert "--primary is missing" in one_line(result)
        assert cluster.views.settings is None, "nothing was ordered"

    for name in cluster.views.agents:
        cluster.views.ages_s[name] = 60
    check()
    cluster.views.agents = {}
    check()
    assert cluster("switchover", *yes).returncode == EXIT_USAGE
    cluster.views.replying = ()
    check()


@pytest.mark.parametrize(
    "words",
    [("failover", "--old-is-dead"), ("failover", "--dry-run"), ("switchover", "--to", "x", "--stop-command", "x")],
)
def test_what_only_the_command_itself_can_do_is_not_ordered(cluster: Cluster, words: tuple[str, ...]) -> None:
    assert "--primary is missing" in one_line(cluster(*words, "--yes"))
    assert cluster.views.exchanges == 0


def test_a_refusal_by_an_agent_is_its_reason(cluster: Cluster) -> None:
    def refuses(views: ScriptedViews) -> None:
        views.change("one", order_done=present_order(views).id, order_result="two lacks 16 bytes")

    cluster.views.steps = [nothing, refuses]
    result = cluster("switchover", "--to", "two", "--yes")
    assert result.returncode == EXIT_UNEXPECTED
    assert one_line(result) == "walproxy: the switchover to two has failed: one: two lacks 16 bytes"


def test_an_order_that_another_command_withdraws_has_failed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def withdraws(views: ScriptedViews) -> None:
        views.settings = AgentSettings()

    monkeypatch.setattr(walproxy.agent.operator_client, "_REPORT_TIMEOUT_S", 0.01)
    cluster.views.steps = [nothing, withdraws]
    result = cluster("reinit", "two", "--yes")
    last = result.stderr.splitlines()[-1]
    assert last == "walproxy: the reinit of two has failed: another command has withdrawn it"


def test_a_refusal_may_be_reported_after_the_order_is_gone(cluster: Cluster) -> None:
    ids = []

    def removes(views: ScriptedViews) -> None:
        ids.append(present_order(views).id)
        views.settings = AgentSettings()

    def reports(views: ScriptedViews) -> None:
        views.change("one", order_done=ids[0], order_result="two lacks 16 bytes")

    cluster.views.steps = [nothing, removes, nothing, reports]
    result = cluster("switchover", "--to", "two", "--yes")
    last = result.stderr.splitlines()[-1]
    assert last == "walproxy: the switchover to two has failed: one: two lacks 16 bytes"


def test_an_interrupted_command_leaves_the_order_to_the_agents(cluster: Cluster) -> None:
    def interrupts(views: ScriptedViews) -> None:
        # Not a real SIGINT: in a worker of pytest-xdist its handler may be the one that kills the JVM of other tests.
        raise KeyboardInterrupt

    cluster.views.steps = [nothing, resigns, interrupts]
    result = cluster("switchover", "--to", "two", "--yes")
    assert result.returncode == 130
    assert result.stderr.splitlines()[-1] == "interrupted: the agents may go on; walproxy cluster show shows them"
    assert cluster.order is not None and cluster.views.is_closed


def test_an_order_that_no_agent_acts_on_is_withdrawn(cluster: Cluster) -> None:
    result = cluster("switchover", "--to", "two", "--yes", "--timeout", "10ms")
    assert result.returncode == EXIT_UNEXPECTED
    last = result.stderr.splitlines()[-1]
    assert "the switchover to two is not done after 0.01 s, and is withdrawn: no agent has acted on it" in last
    assert cluster.views.settings is not None and cluster.order is None


def test_an_order_that_an_agent_acts_on_is_not_withdrawn(cluster: Cluster) -> None:
    cluster.views.steps = [nothing, resigns]
    result = cluster("switchover", "--to", "two", "--yes", "--timeout", "10ms")
    assert "is not done after 0.01 s and may go on: one: switchover to two" in result.stderr.splitlines()[-1]
    assert cluster.order is not None


def test_an_order_that_an_agent_has_acted_on_once_is_not_withdrawn(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed_s = 0.0

    def stops(views: ScriptedViews) -> None:
        nonlocal passed_s
        views.change("one", has_resigned=False, state="stopped", doing="")
        passed_s = 61.0  # More than the default of --timeout: this is the last look.

    monkeypatch.setattr(asyncio.BaseEventLoop, "time", lambda loop: time.monotonic() + passed_s)
    cluster.views.steps = [nothing, resigns, stops]
    result = cluster("switchover", "--to", "two", "--yes")
    assert "is not done after 60 s and may go on: waiting until two acts" in result.stderr.splitlines()[-1]


def test_the_order_of_another_command_is_not_withdrawn(cluster: Cluster) -> None:
    other = Order("b" * 32, "reinit", "two")

    def replaces(views: ScriptedViews) -> None:
        if views.changes == 2:
            views.settings = AgentSettings(order=other)

    cluster.views.before_change = replaces
    assert cluster("switchover", "--to", "two", "--yes", "--timeout", "10ms").returncode == EXIT_UNEXPECTED
    assert cluster.views.changes == 2 and cluster.order == other


def test_safekeepers_that_do_not_reply_for_a_while_do_not_end_it(cluster: Cluster) -> None:
    def vanish(views: ScriptedViews) -> None:
        views.replying = ()

    def promotes_meanwhile(views: ScriptedViews) -> None:
        views.replying = (1, 3)
        promotes(views)

    cluster.views.steps = [nothing, resigns, vanish, promotes_meanwhile]
    assert cluster("switchover", "--to", "two", "--yes").returncode == EXIT_FINE


def test_a_failover_is_ordered_without_a_leader(cluster: Cluster) -> None:
    cluster.views.change("one", is_leader=False, state="stopped")
    cluster.views.settings = AgentSettings(changes=(PrimaryChange("failover", "two", tli=2, term=6, seconds=1.5),))
    cluster.views.steps = [nothing, lambda views: views.change("two", state="primary", is_leader=True, tli=3)]
    # The new agent has not recorded the change yet.
    assert cluster("failover", "--yes").stdout == "two is the primary on timeline 3 in term 7: commits go on\n"
    assert [(order.kind, order.agent) for order in cluster.views.orders] == [("failover", "")]


def test_a_reinit_takes_its_time_once_it_has_begun(cluster: Cluster) -> None:
    def copies(views: ScriptedViews) -> None:
        views.change("two", state="missing", doing="rebuilding from one")

    def restarts(views: ScriptedViews) -> None:
        views.change("two", state="starting")

    def ends(views: ScriptedViews) -> None:
        views.change("two", state="standby", doing="", order_done=present_order(views).id)

    cluster.views.steps = [nothing, copies, *[nothing] * 20, restarts, *[nothing] * 20, ends]
    result = cluster("reinit", "two", "--yes", "--timeout", "1ms")
    assert result.returncode == EXIT_FINE, result.stderr
    assert result.stdout.startswith("two has been rebuilt (")
    assert result.stderr.splitlines()[0] == "two: rebuilding from one"


def test_without_a_terminal_orders_need_yes(cluster: Cluster) -> None:
    for words in (("switchover",), ("failover",), ("reinit", "two")):
        result = cluster(*words)
        assert result.returncode == EXIT_CONFIGURATION
        assert one_line(result) == "walproxy: without a terminal this needs --yes"
    assert cluster.views.settings is None, "nothing was ordered"


@pytest.mark.parametrize("reply", ["y\n", "n\n", "\n"])
def test_in_a_terminal_orders_ask_first(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, reply: str) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return reply

        def fileno(self) -> int:
            raise OSError

    monkeypatch.setattr(sys, "stdin", Terminal())
    assert cluster("switchover", "--to", "one").stdout == "nothing is to be done: one leads\n"
    cluster.views.steps = [nothing, nothing, promotes]
    result = cluster("switchover", "--to", "two")
    assert result.returncode == EXIT_FINE
    assert "Move the primary from one to two? [y/N]" in result.stderr + result.stdout
    assert "10.0.0.1:5432" in result.stderr
    if reply == "y\n":
        assert "two is the primary on timeline 3" in result.stdout
    else:
        assert result.stdout.endswith("nothing was changed\n") and cluster.views.settings is None


def test_pause_and_resume_are_settings(cluster: Cluster) -> None:
    order = Order("a" * 32, "reinit", "two")
    cluster.views.settings = AgentSettings(order=order)
    assert cluster("pause").stdout == "the agents are paused\n"
    assert cluster.settings == AgentSettings(is_paused=True, order=order)
    assert cluster("pause").stdout == "nothing is to be done: the agents are paused\n"
    assert cluster.views.changes == 1
    assert cluster.json("resume") == {"paused": False, "changed": True, "missing": []}
    assert not cluster.settings.is_paused


def test_pause_waits_for_the_agents_that_report(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def pauses(views: ScriptedViews) -> None:
        for name in ("one", "two"):
            views.change(name, is_paused=True)

    cluster.views.ages_s["three"] = 100
    cluster.views.steps = [nothing, nothing, pauses]
    assert cluster("pause", "--wait").returncode == EXIT_FINE
    assert cluster.views.exchanges == 3
    monkeypatch.setattr(walproxy.cli.cluster, "_PAUSE_TIMEOUT_S", 0.01)
    cluster.views.change("two", is_paused=False)
    result = cluster("pause", "--wait")
    assert (result.returncode, result.stderr) == (EXIT_UNEXPECTED, "not received by two within 0.01 s\n")


def test_history_is_the_changes_of_the_primary(cluster: Cluster) -> None:
    assert cluster("history").stdout == "no agent has changed the primary yet\n"
    assert cluster.json("history") == []
    change = PrimaryChange(
        "failover", "two", tli=3, term=9, fork_lsn=COMMIT_LSN, seconds=4.5, at=1_700_000_000, old_tli=1
    )
    cluster.views.settings = AgentSettings(changes=(change,))
    line = cluster("history").stdout.splitlines()[1]
    assert line.split() == ["2023-11-14T22:13:20+00:00", "failover", "two", "3", "9", "0/5000000", "4.50", "s"]
    (content,) = cluster.json("history")
    assert content["fork_lsn"] == "0/5000000" and content["old_tli"] == 1


def test_settings_that_cannot_be_read_are_one_line(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.agent.scripted_views.encode", lambda _: b"[1]")
    cluster.views.settings = AgentSettings()
    assert "an agent has sent no AgentSettings" in one_line(cluster("show"))


def test_wrong_usage_is_usage(cluster: Cluster) -> None:
    assert cluster("reinit", "--yes").returncode == EXIT_USAGE
    assert cluster("switchover", "--timeout", "60").returncode == EXIT_USAGE
    assert cluster("switch").returncode == EXIT_USAGE
