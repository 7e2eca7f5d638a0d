"""What a proposer reports of standbys from one term to the next, and when other standbys are designated."""

from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.messages import Standby, StandbyFeedback
from tests.unit.proposer.test_proposer import END, Table
from walproxy.proposer.actions import ReportStatus
from walproxy.proposer.apply_rule import parse_apply_rule


def replayed(lsn: int, name: str = "a") -> StandbyFeedback:
    return StandbyFeedback((Standby(name, lsn, lsn, lsn, 700, 600),))


def leading(rule: str = "") -> tuple[Table, LeaderId]:
    """Return a proposer that has committed 50 bytes in its term, of which standby a has replayed all."""
    table = Table(apply_rule=parse_apply_rule(rule))
    leader_id = table.leads()
    table.event(table.proposer.wal_received(END + 50, table.now))
    table.acknowledge(leader_id, END, 1, 2, 3)
    table.acknowledge(leader_id, END + 50, 1, 2, 3)
    table.deliver(1, replayed(END + 50))
    return table, leader_id


def test_other_standbys_that_are_designated_are_reported_at_once_and_once() -> None:
    table, _ = leading()
    table.deliver(1, replayed(END + 20))
    assert table.did(ReportStatus) == []
    for rule, apply_lsn in (("a", END + 20), ("a", None), ("b", 0), ("", END + 50), ("", None)):
        table.event(table.proposer.set_apply_rule(parse_apply_rule(rule)))
        expected = [] if apply_lsn is None else [ReportStatus(END + 50, END + 50, apply_lsn)]
        assert table.did(ReportStatus) == expected


def test_other_standbys_are_designated_without_a_term() -> None:
    table = Table()
    table.event(table.proposer.set_apply_rule(parse_apply_rule("a")))
    assert table.said == [] and table.proposer.standbys.rule.names == ("a",)


def test_a_standby_behind_a_safekeeper_that_is_disconnected_no_longer_holds_vacuum_back() -> None:
    table, _ = leading("a")
    assert table.proposer.hot_standby_feedback() == (700, 600)
    table.event(table.proposer.disconnected(1, table.now))
    assert table.proposer.hot_standby_feedback() == (0, 0)
    assert table.proposer.standbys.apply_lsn(END + 50) == END + 50, "what it has replayed stays replayed"
