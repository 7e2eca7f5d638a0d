"""What an agent does for the lead: which transitions are allowed, and that docs/design/architecture.md lists them."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from safekeeper.base.errors import InvariantViolation
from walproxy.agent.report import Order
from walproxy.agent.work import TRANSITIONS, AgentWork, WorkState
from walproxy.failover.server import Promotion

ARCHITECTURE = Path(__file__).parents[3] / "docs" / "design" / "architecture.md"
ORDER = Order("a" * 32, "switchover", "pg2")
ENTER: dict[WorkState, Callable[[AgentWork], None]] = {
    WorkState.WATCHING: AgentWork.end,
    WorkState.FAILING_OVER: lambda work: work.fail_over(None, ORDER, 7.5),
    WorkState.RESUMING: lambda work: work.promoted(15, Promotion(16, 0x1000)),
    WorkState.SETTLING: AgentWork.resumed,
}


@pytest.mark.parametrize("now", WorkState)
@pytest.mark.parametrize("then", WorkState)
def test_a_state_follows_only_those_that_the_table_lists(now: WorkState, then: WorkState) -> None:
    work = AgentWork()
    work.state = now
    if then in TRANSITIONS[now]:
        ENTER[then](work)
        assert work.state is then
    else:
        with pytest.raises(InvariantViolation, match=f"cannot change from {now.value} to {then.value}"):
            ENTER[then](work)
        assert work.state is now


def test_the_order_and_the_promotion_are_known_until_commits_have_resumed() -> None:
    work = AgentWork()
    for state in (WorkState.FAILING_OVER, WorkState.RESUMING, WorkState.SETTLING):
        ENTER[state](work)
    assert (work.order, work.kind, work.lost_at) == (ORDER, "switchover", 7.5)
    assert (work.old_tli, work.promotion) == (15, Promotion(16, 0x1000))
    work.fail_over(None, None, 8.5)
    assert (work.kind, work.lost_at) == ("failover", 8.5)


def test_the_architecture_documents_the_transitions() -> None:
    text = ARCHITECTURE.read_text().partition("\n## Inside the agent\n")[2].partition("\n## ")[0]
    documented = re.findall(r"^\| (\w+) \| (\w+) \| \S", text, re.MULTILINE)[1:]
    assert sorted(documented) == sorted((now.value, then.value) for now in TRANSITIONS for then in TRANSITIONS[now])
