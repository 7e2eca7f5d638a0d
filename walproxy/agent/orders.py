"""Orders to the agents: whether one can be given, and how far it is. Pure.

The agents execute an order or refuse it; each one that has done either reports the order's id and how it ended. The
checks here are of what the safekeepers have received of the agents, so that a misspelt name or a server that is stopped
is one line at once; the agents check again.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from safekeeper.base.errors import ConfigurationError, WalproxyError
from walproxy.agent.report import AgentReport, Order
from walproxy.agent.sight import SeenReport
from walproxy.agent.state import ClusterView, is_copying, is_fresh, is_standby

SWITCHOVER, FAILOVER, CANCEL, REINIT = "switchover", "failover", "cancel", "reinit"
NO_AGENTS = "no agent reports to the safekeepers: start walproxy agent beside each PostgreSQL server"


@dataclass(frozen=True, slots=True)
class OrderHeadway:
    """How far an order is.

    Attributes:
        what: what the agents do, one line.
        has_begun: an agent acts on it.
        is_done: it is executed.
        is_gone: it is not in the shared settings, and no agent has reported its end: an agent's report of it is under
            way, or another command has withdrawn it.
        failure: who refused it or failed, and why, one line; "" if no agent has.
    """

    what: str
    has_begun: bool = False
    is_done: bool = False
    is_gone: bool = False
    failure: str = ""


def check_quorum(view: ClusterView) -> None:
    """Check that the shared settings can be changed, and that agents read them.

    Raises:
        WalproxyError: a quorum of safekeepers has not replied, or no agent has reported.
    """
    if not view.has_quorum:
        raise WalproxyError(f"no quorum of safekeepers has replied: {view.problem}")
    if not view.agents:
        raise WalproxyError(NO_AGENTS)


def _check_orders(view: ClusterView, wanted: str) -> None:
    check_quorum(view)
    if view.settings.is_paused:
        raise WalproxyError("the agents are paused, and execute no order: walproxy cluster resume")
    if wanted:
        _known(view, wanted)


def check_switchover(view: ClusterView, wanted: str) -> AgentReport:
    """Check a switchover; return the leader.

    Args:
        wanted: the agent to promote, "" for the most advanced.

    Raises:
        ConfigurationError: that agent is unknown or may not lead.
        WalproxyError: it cannot be made now.
    """
    _check_orders(view, wanted)
    leader = view.leader
    if leader is None:
        raise WalproxyError("no agent leads: walproxy failover promotes a standby")
    if wanted != leader.name:
        _check_candidates(view, wanted, leader)
    return leader


def check_failover(view: ClusterView, wanted: str) -> None:
    """Check a failover.

    Raises:
        ConfigurationError: the wanted agent is unknown or may not lead.
        WalproxyError: it cannot be made now.
    """
    _check_orders(view, wanted)
    if view.leader is not None:
        raise WalproxyError(f"{view.leader.name} leads, and commits succeed: walproxy switchover moves the lead")
    _check_candidates(view, wanted, None)


def check_reinit(view: ClusterView, wanted: str) -> AgentReport:
    """Check that an agent may rebuild its data folder; return the leader, from which it copies.

    Raises:
        ConfigurationError: that agent is unknown, or leads.
        WalproxyError: it cannot be done now.
    """
    _check_orders(view, wanted)
    seen, leader = _known(view, wanted), view.leader
    if leader is None:
        raise WalproxyError("no agent leads: a base backup needs a primary")
    if leader.name == wanted:
        raise ConfigurationError(f"{wanted} leads: its data folder is what the others are copied from")
    if not is_fresh(seen):
        raise WalproxyError(_no_report(seen))
    return leader


def headway(view: ClusterView, order: Order, old_leader: str = "") -> OrderHeadway:
    """Return how far an order is.

    Args:
        old_leader: the agent that led when it was given; "" for none.
    """
    ended = [seen.report for seen in view.agents if seen.report.order_done == order.id]
    leader = view.leader
    if order.kind == REINIT:
        is_done = any(report.name == order.agent and not report.order_result for report in ended)
    else:
        # What counts is the new primary: the agents may have come there by themselves, and refuse the order afterwards.
        is_done = leader is not None and leader.name != old_leader and order.agent in ("", leader.name)
    if is_done:
        return OrderHeadway("done", has_begun=True, is_done=True)
    for report in ended:
        if report.order_result:
            return OrderHeadway("", has_begun=True, failure=f"{report.name}: {report.order_result}")
    has_begun = bool(ended) or any(_acts_on(seen.report, order, old_leader) for seen in view.agents if is_fresh(seen))
    present = view.settings.order
    # Fewer safekeepers than a quorum may have older settings only.
    if view.has_quorum and (present is None or present.id != order.id):
        if present is not None:
            return OrderHeadway("", has_begun, failure=f"another order has replaced it: {describe(present)}")
        return OrderHeadway("waiting for the agents' reports", has_begun, is_gone=not ended)
    activities = "; ".join(_activities(view, order))
    if has_begun:
        return OrderHeadway(activities or "waiting until commits succeed on the new primary", has_begun=True)
    return OrderHeadway(
        f"waiting until {order.agent or old_leader or 'an agent'} acts{activities and ': '}{activities}"
    )


def describe(order: Order) -> str:
    """Return an order as people call it."""
    if order.kind == REINIT:
        return f"reinit of {order.agent}"
    return f"{order.kind} to {order.agent}" if order.agent else order.kind


def is_pending(view: ClusterView) -> bool:
    """Return whether no agent has reported that it has executed or refused the last order."""
    order = view.settings.order
    return order is not None and all(seen.report.order_done != order.id for seen in view.agents)


def _acts_on(report: AgentReport, order: Order, old_leader: str) -> bool:
    """Return whether an agent has begun with an order."""
    if order.kind == REINIT:
        return report.name == order.agent and is_copying(report)
    return report.doing.startswith(order.kind) or (report.has_resigned and report.name == old_leader)


def _activities(view: ClusterView, order: Order) -> Iterator[str]:
    """Yield what the agents of an order do, and what prevents them."""
    for seen in view.agents:
        report = seen.report
        if is_fresh(seen) and (order.kind != REINIT or report.name == order.agent):
            doing = "; ".join(part for part in (report.doing, report.problem) if part)
            if doing:
                yield f"{report.name}: {doing}"


def _known(view: ClusterView, wanted: str) -> SeenReport:
    seen = view.agent(wanted)
    if seen is None:
        listed = ", ".join(each.report.name for each in view.agents)
        raise ConfigurationError(f"no agent is called {wanted!r}: the agents are {listed}")
    return seen


def _check_candidates(view: ClusterView, wanted: str, leader: AgentReport | None) -> None:
    if wanted:
        seen = _known(view, wanted)
        if obstacle := _obstacle(seen):
            raise (WalproxyError if seen.report.may_lead else ConfigurationError)(obstacle)
        return
    obstacles = [_obstacle(seen) for seen in view.agents if leader is None or seen.report.name != leader.name]
    if all(obstacles):
        raise WalproxyError(f"no standby can be promoted: {'; '.join(obstacles) or 'no other agent reports'}")


def _obstacle(seen: SeenReport) -> str:
    """Return why this agent's server cannot be promoted; "" if it may be."""
    report = seen.report
    if not report.may_lead:
        return f"{report.name} must not lead: its agent runs with no_failover"
    if not is_fresh(seen):
        return _no_report(seen)
    if not is_standby(report):
        return f"{report.name} is not a running standby: its server is {report.state}"
    return ""


def _no_report(seen: SeenReport) -> str:
    return f"{seen.report.name} has not reported for {seen.age_s:.0f} s: its agent is stopped or cut off"
