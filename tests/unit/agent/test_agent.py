"""What an agent remembers of its own failover."""

import logging
from pathlib import Path

import pytest

from safekeeper.base import settings
from safekeeper.net.safekeeper_connection import Credentials
from walproxy.agent.activity import Activity
from walproxy.agent.agent import Agent
from walproxy.agent.config import AgentConfig
from walproxy.agent.state import ClusterView, LogPositions
from walproxy.failover.server import Promotion


def agent(folder: Path) -> Agent:
    options = {
        "name": "pg2",
        "pgdata": str(folder),
        "bin_dir": str(folder),
        "conninfo": "host=/nowhere",
        "address": "pg2:5432",
        "safekeepers": "1=sk1:5454",
        "standby_conninfo": "host=sk1",
    }
    config = settings.load(AgentConfig, "WALPROXY_AGENT_", command_line=options, environment={}, file=None)
    return Agent(config, Credentials())


def test_a_promotion_that_another_failover_has_sealed_off_is_over(tmp_path: Path) -> None:
    """The others would wait half a minute for it."""
    ours = agent(tmp_path)
    ours.work.fail_over(None, 0.0)
    ours.work.promoted(15, Promotion(16, 0x1000))
    ours.cluster.view = ClusterView(sent_at=0.0, has_quorum=True, log=LogPositions(tli=15, floor=15))
    ours._note_resumption(1.0)
    assert ours.report().is_failing_over
    ours.cluster.view = ClusterView(sent_at=1.0, has_quorum=True, log=LogPositions(tli=15, floor=16))
    ours._note_resumption(2.0)
    assert not ours.report().is_failing_over
    # It is not the one that commits go on with, either.
    ours.watch.commits = True
    ours._note_resumption(3.0)
    assert ours._recording is None


def test_the_others_wait_until_the_safekeepers_have_received_a_heartbeat_of_the_new_primary(tmp_path: Path) -> None:
    ours = agent(tmp_path)
    ours.work.fail_over(None, 0.0)
    ours.work.promoted(15, Promotion(16, 0x1000))
    silent_s = (5.0, 0.5, None, 1.0, 0.9)
    waits = []
    for seconds in silent_s:
        if seconds is None:
            ours.work.resumed()
        ours._received(ClusterView(has_quorum=True, leader_heard_age_s=seconds))
        waits.append(ours.report().is_failing_over)
    assert waits == [True, True, True, True, False], "before commits go on, a heartbeat is that of another proxy"


def test_an_outage_whose_reason_changes_each_second_is_a_few_lines_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    activity = Activity()
    with caplog.at_level(logging.INFO):
        for second in range(60):
            # Safekeepers that reply and do not, and a server that does not start.
            activity.wait_for(f"safekeeper {second % 3} at sk:5454 cannot be reached")
            activity.wait_for("")
            activity.log("starting PostgreSQL as a standby")
            activity.failed("PostgreSQL did not start" if second % 2 else "PostgreSQL has not started within 30 s")
    # 6 a minute of each of the three kinds.
    assert 3 <= len(caplog.records) <= 18, [record.getMessage() for record in caplog.records]
    assert caplog.records[0].getMessage() == "waiting: safekeeper 0 at sk:5454 cannot be reached"
