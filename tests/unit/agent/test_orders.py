"""Orders to the agents: what is refused at once, and how far an order is from what the agents report."""

import re
from dataclasses import replace

import pytest

from safekeeper.base.errors import ConfigurationError, WalproxyError
from tests.unit.agent.states import LEADER, STANDBY, THIRD, report, view
from walproxy.agent.orders import (
    FAILOVER,
    NO_AGENTS,
    REINIT,
    SWITCHOVER,
    check_failover,
    check_reinit,
    check_switchover,
    describe,
    headway,
    is_pending,
)
from walproxy.agent.report import AgentReport, AgentSettings, Order
from walproxy.agent.sight import SeenReport
from walproxy.agent.state import ClusterView

NO_FAILOVER = report(THIRD, may_lead=False)
ORDER = Order("a" * 32, SWITCHOVER, "two")
LOST = report(is_leader=False, state="stopped")
NEW = report(STANDBY, state="primary", is_leader=True, tli=3)


def silent(of: ClusterView, name: str) -> ClusterView:
    """Return a view in which an agent has not reported for a while."""
    return replace(of, agents=tuple(SeenReport(s.report, 12.0) if s.report.name == name else s for s in of.agents))


def ordered(*agents: AgentReport, order: Order | None = ORDER, has_quorum: bool = True) -> ClusterView:
    return view(*agents, settings=AgentSettings(order=order), has_quorum=has_quorum)


def test_a_switchover_begins_at_the_leader() -> None:
    cluster = view(LEADER, STANDBY, NO_FAILOVER)
    assert check_switchover(cluster, "two") == check_switchover(cluster, "") == LEADER
    assert check_switchover(cluster, "one") == LEADER, "nothing is to be done"


def test_without_a_quorum_or_agents_no_order_is_given() -> None:
    for check in (check_switchover, check_failover, check_reinit):
        with pytest.raises(WalproxyError, match="no quorum of safekeepers has replied: 2 is down"):
            check(view(LEADER, STANDBY, has_quorum=False, problem="2 is down"), "two")
        with pytest.raises(WalproxyError, match=re.escape(NO_AGENTS)):
            check(view(), "two")


def test_while_the_agents_are_paused_no_order_is_given() -> None:
    for check in (check_switchover, check_failover, check_reinit):
        with pytest.raises(WalproxyError, match="the agents are paused, and execute no order: walproxy cluster resume"):
            check(view(LEADER, STANDBY, settings=AgentSettings(is_paused=True)), "two")


def test_a_name_that_is_unknown_is_listed_with_those_that_are() -> None:
    for check in (check_switchover, check_failover, check_reinit):
        with pytest.raises(ConfigurationError, match="no agent is called 'four': the agents are one, two"):
            check(view(LEADER, STANDBY), "four")


@pytest.mark.parametrize(
    ("cluster", "wanted", "line"),
    [
        (view(LOST, STANDBY), "two", "no agent leads: walproxy failover promotes a standby"),
        (view(LEADER, NO_FAILOVER), "three", "three must not lead: its agent runs with no_failover"),
        (view(LEADER, report(STANDBY, state="stopped")), "two", "two is not a running standby: its server is stopped"),
        (silent(view(LEADER, STANDBY), "two"), "two", "two has not reported for 12 s: its agent is stopped or cut off"),
        (view(LEADER), "", "no standby can be promoted: no other agent reports"),
        (silent(view(LEADER, STANDBY, NO_FAILOVER), "two"), "", "two has not .* cut off; three must not lead: .*"),
        (silent(view(LEADER, STANDBY), "one"), "two", "no agent leads: .*"),
    ],
)
def test_a_switchover_that_cannot_be_made_is_one_line(cluster: ClusterView, wanted: str, line: str) -> None:
    with pytest.raises(WalproxyError, match=line) as raised:
        check_switchover(cluster, wanted)
    assert isinstance(raised.value, ConfigurationError) == ("no_failover" in line and wanted != "")


def test_a_failover_needs_the_loss_of_the_leader() -> None:
    check_failover(view(LOST, STANDBY), "")
    check_failover(silent(view(LEADER, STANDBY), "one"), "two")
    with pytest.raises(WalproxyError, match="one leads, and commits succeed: walproxy switchover moves"):
        check_failover(view(LEADER, STANDBY), "two")
    with pytest.raises(
        WalproxyError, match=r"no standby can be promoted: one is not a running standby.*; two must not"
    ):
        check_failover(view(LOST, report(STANDBY, may_lead=False)), "")
    with pytest.raises(WalproxyError, match="one is not a running standby: its server is stopped"):
        check_failover(view(LOST, STANDBY), "one")


def test_a_reinit_needs_a_leader_that_is_another_one() -> None:
    assert check_reinit(view(LEADER, report(STANDBY, state="missing")), "two") == LEADER
    with pytest.raises(ConfigurationError, match="one leads: its data folder is what the others are copied from"):
        check_reinit(view(LEADER, STANDBY), "one")
    with pytest.raises(WalproxyError, match="no agent leads: a base backup needs a primary"):
        check_reinit(view(LOST, STANDBY), "two")
    with pytest.raises(WalproxyError, match="two has not reported for 12 s"):
        check_reinit(silent(view(LEADER, STANDBY), "two"), "two")


def test_a_switchover_is_followed_from_the_order_to_the_new_primary() -> None:
    def now(*agents: AgentReport, order: Order | None = ORDER) -> tuple[str, bool, bool]:
        found = headway(ordered(*agents, order=order), ORDER, "one")
        assert not found.failure
        return found.what, found.has_begun, found.is_done

    assert now(LEADER, STANDBY) == ("waiting until two acts", False, False)
    waiting = report(STANDBY, doing="waiting for WAL", problem="no disk space")
    assert now(LEADER, waiting) == ("waiting until two acts: two: waiting for WAL; no disk space", False, False)
    stopping = report(state="stopping", is_leader=False, doing="switchover to two: stopping PostgreSQL")
    assert now(stopping, STANDBY) == ("one: switchover to two: stopping PostgreSQL", True, False)
    resigned = report(state="stopped", is_leader=False, has_resigned=True, doing="has resigned: waiting")
    assert now(resigned, STANDBY) == ("one: has resigned: waiting", True, False)
    assert now(report(resigned, doing=""), STANDBY) == (
        "waiting until commits succeed on the new primary",
        True,
        False,
    )
    promoting = report(STANDBY, doing="switchover: waits for 16 bytes")
    assert now(report(resigned, doing=""), promoting) == ("two: switchover: waits for 16 bytes", True, False)
    promoted = report(STANDBY, state="primary", order_done=ORDER.id)
    assert now(LOST, promoted) == ("waiting until commits succeed on the new primary", True, False)
    assert now(LOST, promoted, order=None) == ("waiting for the agents' reports", True, False)
    assert now(LOST, NEW) == now(LOST, NEW, order=None) == ("done", True, True)
    assert now(LEADER, STANDBY, report(THIRD, state="primary", tli=3, is_leader=True))[2] is False, "another one leads"


def test_any_standby_will_do_if_none_was_named() -> None:
    order = Order("b" * 32, FAILOVER)
    assert headway(ordered(LOST, STANDBY, order=order), order).what == "waiting until an agent acts"
    assert headway(ordered(LOST, NEW, order=order), order).is_done
    assert not headway(ordered(LEADER, STANDBY, order=order), order, "one").is_done


def test_a_refusal_is_whose_and_why() -> None:
    refused = report(order_done=ORDER.id, order_result="two lacks 16 bytes")
    assert headway(ordered(refused, STANDBY), ORDER, "one").failure == "one: two lacks 16 bytes"
    assert headway(ordered(report(refused, order_done="b" * 32), STANDBY), ORDER, "one").failure == ""


def test_a_primary_that_has_moved_counts_whatever_an_agent_reports_of_the_order() -> None:
    refused = report(NEW, order_done=ORDER.id, order_result="two is the leader already")
    assert headway(ordered(LOST, refused), ORDER, "one").is_done
    order = Order("c" * 32, REINIT, "two")
    failed = report(STANDBY, order_done=order.id, order_result="no disk space")
    assert headway(ordered(LEADER, failed, order=order), order, "one").failure == "two: no disk space"


def test_an_order_that_another_command_replaces_has_failed() -> None:
    other = Order("b" * 32, REINIT, "three")
    found = headway(ordered(LEADER, STANDBY, order=other), ORDER, "one")
    assert found.failure == "another order has replaced it: reinit of three"
    without_quorum = ordered(LEADER, STANDBY, order=other, has_quorum=False)
    assert headway(without_quorum, ORDER, "one").failure == "", "these settings may be old"
    refused = report(order_done=ORDER.id, order_result="no")
    assert headway(ordered(refused, STANDBY, order=other), ORDER, "one").failure == "one: no"


def test_an_order_that_is_gone_is_withdrawn_unless_an_agent_reports_its_end() -> None:
    found = headway(ordered(LEADER, STANDBY, order=None), ORDER, "one")
    assert (found.is_gone, found.has_begun, found.failure) == (True, False, "")
    assert not headway(ordered(LEADER, STANDBY, order=None, has_quorum=False), ORDER, "one").is_gone
    ended = report(STANDBY, state="primary", order_done=ORDER.id)
    assert not headway(ordered(LOST, ended, order=None), ORDER, "one").is_gone
    refused = report(order_done=ORDER.id, order_result="no")
    assert headway(ordered(refused, order=None), ORDER, "one").failure == "one: no"


def test_a_reinit_is_done_when_its_agent_reports_that() -> None:
    order = Order("c" * 32, REINIT, "two")
    busy = report(STANDBY, state="missing", doing="rebuilding from one")
    elsewhere = report(THIRD, doing="rejoining one")
    found = headway(ordered(LEADER, busy, elsewhere, order=order), order, "one")
    assert (found.what, found.has_begun, found.is_done) == ("two: rebuilding from one", True, False)
    assert not headway(ordered(LEADER, STANDBY, elsewhere, order=order), order, "one").has_begun
    assert headway(ordered(LEADER, report(STANDBY, order_done=order.id), order=order), order, "one").is_done


def test_an_order_is_pending_until_an_agent_reports_it() -> None:
    assert not is_pending(view(LEADER))
    assert is_pending(ordered(LEADER, STANDBY))
    assert not is_pending(ordered(LEADER, report(STANDBY, order_done=ORDER.id, order_result="no")))
    assert describe(ORDER) == "switchover to two" and describe(Order("", FAILOVER)) == "failover"
