"""What pages and commands show is what a quorum of safekeepers has received."""

from dataclasses import replace

from tests.unit.agent.scripted_views import ScriptedViews
from tests.unit.agent.states import CLUSTER, COMMIT_LSN, LEADER, NOW, STANDBY, THIRD, report, state, view
from tests.unit.event_loop import on_the_loop
from walproxy.agent.report import AgentSettings
from walproxy.agent.sight import SeenReport
from walproxy.agent.state import (
    AgentState,
    ClusterView,
    LogPositions,
    cluster_content,
    is_fresh,
    lag_bytes,
    role_of,
    view_of,
)


def seen_by(views: ScriptedViews) -> ClusterView:
    found: list[ClusterView] = []

    @on_the_loop
    async def run() -> None:
        found.append(view_of(await views.exchange(b"", timeout_s=1)))

    run()
    return found[0]


def test_a_view_has_what_the_replies_have() -> None:
    settings = AgentSettings(is_paused=True)
    views = ScriptedViews(STANDBY, LEADER, settings=settings)
    found = seen_by(views)
    assert (found.cluster_id, found.has_quorum, found.problem, found.settings) == (CLUSTER, True, "", settings)
    # The highest commit_lsn of any reply is committed.
    assert found.log == LogPositions(tli=2, term=7, commit_lsn=COMMIT_LSN, flush_lsn=COMMIT_LSN + 0x100)
    assert [seen.report for seen in found.agents] == [LEADER, STANDBY]
    assert found.leader == LEADER


def test_a_view_without_a_quorum_is_a_view() -> None:
    views = ScriptedViews(LEADER)
    views.replying = (3,)
    found = seen_by(views)
    assert not found.has_quorum
    assert found.problem == "safekeeper 1 does not reply; safekeeper 2 does not reply"
    assert found.log.commit_lsn == COMMIT_LSN - 2
    views.replying = ()
    assert seen_by(views).log == LogPositions() and not seen_by(views).cluster_id


def test_a_leader_is_one_that_reports_and_of_two_the_later_one() -> None:
    assert view(STANDBY, report(is_leader=False)).leader is None
    assert view(LEADER, report(name="two", tli=3)).leader == report(name="two", tli=3)
    silent = view(LEADER, ages_s=5.1)
    assert silent.leader is None and role_of(LEADER, silent.leader) == "primary"
    assert is_fresh(SeenReport(report(dead_after_s=20), 19.9))


def test_an_agents_own_report_replaces_what_safekeepers_have_of_it() -> None:
    old = report(STANDBY, state="stopped")
    of = AgentState(STANDBY, view(old, LEADER, ages_s=2), made_at=NOW)
    assert of.view_at(NOW + 1).agents == (SeenReport(LEADER, 3.0), SeenReport(STANDBY, 1.0))
    assert of.view_at(NOW - 1).agents[1].age_s == 0, "a clock is never negative"


def test_only_a_standby_has_a_lag() -> None:
    log = LogPositions(commit_lsn=COMMIT_LSN)
    assert lag_bytes(STANDBY, log) == 0x400
    assert lag_bytes(report(STANDBY, replayed_lsn=COMMIT_LSN + 5), log) == 0
    assert lag_bytes(LEADER, log) is None
    assert lag_bytes(STANDBY, LogPositions()) is None
    assert lag_bytes(report(STANDBY, replayed_lsn=0), log) is None


def test_the_content_names_the_order_and_the_problem() -> None:
    of = replace(view(LEADER, THIRD), problem="2 is down", cluster_id="")
    content = cluster_content(of)
    assert (content["problem"], content["cluster_id"], content["order"]) == ("2 is down", None, None)
    assert [each["role"] for each in content["agents"]] == ["leader", "replica"]
    assert cluster_content(state(LEADER).view)["problem"] is None
