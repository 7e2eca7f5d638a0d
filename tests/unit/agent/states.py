"""States of agents for the tests of their pages: a leader and two standbys, all of them well."""

from typing import Any

import msgspec

from walproxy.agent.report import AgentReport, AgentSettings
from walproxy.agent.sight import SeenReport
from walproxy.agent.state import AgentState, ClusterView, LogPositions

COMMIT_LSN = 0x5000000
NOW = 1000.0
CLUSTER = "0123456789abcdef0123456789abcdef"
LEADER = AgentReport(
    "one",
    address="10.0.0.1:5432",
    url="http://10.0.0.1:8008",
    state="primary",
    system_id=7268616322854375442,
    server_version=150012,
    tli=2,
    written_lsn=COMMIT_LSN + 0x100,
    is_leader=True,
)
STANDBY = AgentReport(
    "two",
    address="10.0.0.2:5432",
    url="http://10.0.0.2:8008/",
    state="standby",
    system_id=7268616322854375442,
    server_version=150012,
    tli=2,
    received_lsn=COMMIT_LSN,
    replayed_lsn=COMMIT_LSN - 0x400,
    is_streaming=True,
)
THIRD = msgspec.structs.replace(STANDBY, name="three", address="[fd00::3]:5433", is_streaming=False, priority=50)


def report(of: AgentReport = LEADER, **changes: Any) -> AgentReport:
    """Return a report with other values."""
    return msgspec.structs.replace(of, **changes)


def view(*agents: AgentReport, ages_s: float = 0.1, **changes: Any) -> ClusterView:
    """Return a cluster of these agents."""
    values: dict[str, Any] = {
        "cluster_id": CLUSTER,
        "has_quorum": True,
        "log": LogPositions(tli=2, term=7, commit_lsn=COMMIT_LSN, flush_lsn=COMMIT_LSN + 0x100),
        "settings": AgentSettings(),
        "agents": tuple(SeenReport(each, ages_s) for each in agents),
    }
    return ClusterView(**(values | changes))


def state(own: AgentReport, *others: AgentReport, made_at: float = NOW, **changes: Any) -> AgentState:
    """Return the state of an agent in a cluster of these."""
    return AgentState(own, view(own, *others, **changes), made_at, started_at=100.0, quorum_seen_at=200.5)
