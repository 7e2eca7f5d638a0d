"""What follows from the replies of the safekeepers: quorums, the time without a leader, reports, settings, the log."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.consensus.control_state import NOBODY
from safekeeper.consensus.membership import Member, Membership, QuorumSizes
from safekeeper.consensus.messages import (
    AcceptorGreeting,
    AgentSettingsVersion,
    AgentView,
    KeptReport,
)
from tests.unit.greetings import empty
from walproxy.agent.report import AgentReport, AgentSettings, encode
from walproxy.agent.sight import AgentSight, TimedView
from walproxy.proposer.roster import Cluster
from walproxy.proxy.sight import latest_cluster

CLUSTER = "c" * 32


def members(*ids: int) -> tuple[Member, ...]:
    return tuple(Member(i, f"{i}" * 32) for i in ids)


THREE = Membership(1, members(1, 2, 3))


def view(safekeeper_id: int, **changes: Any) -> AgentView:
    return msgspec.structs.replace(AgentView(CLUSTER, f"{safekeeper_id}" * 32, NOBODY, 0, 0, 0, 0, 0, 0), **changes)


def sight(
    views: Mapping[int, AgentView], membership: Membership | None = THREE, problems: Mapping[int, str] | None = None
) -> AgentSight:
    cluster = Cluster(CLUSTER, membership) if membership is not None else None
    timed = {i: TimedView(each, 10.0) for i, each in views.items()}
    return AgentSight(problems=problems or {}, began_at=10.0, cluster=cluster, views=timed)


def aged(ages_ms: Mapping[int, int], membership: Membership = THREE) -> AgentSight:
    return sight({i: view(i, leader_age_ms=age_ms) for i, age_ms in ages_ms.items()}, membership)


def version(counter: int, author: str = "a", content: bytes = b"{}") -> AgentSettingsVersion:
    return AgentSettingsVersion(counter, author * 32, content)


# Quorums.


@pytest.mark.parametrize(
    ("commit", "elect", "needed"), [("N/2+1", "N/2+1", 3), ("2", "4", 4), ("4", "3", 4), ("N", "N/2+1", 5)]
)
def test_a_quorum_is_an_elect_quorum_and_a_commit_quorum(commit: str, elect: str, needed: int) -> None:
    membership = Membership(1, members(1, 2, 3, 4, 5), quorum_sizes=QuorumSizes(commit, elect))
    for count in range(6):
        assert aged(dict.fromkeys(range(1, count + 1), 0), membership).has_quorum() is (count >= needed)


def test_a_joint_membership_needs_a_quorum_of_each_half() -> None:
    joint = Membership(2, members(1, 2, 3), members(3, 4, 5))
    assert not aged({1: 0, 2: 0, 3: 0}, joint).has_quorum()
    assert aged({1: 0, 3: 0, 4: 0}, joint).has_quorum()


def test_another_data_folder_and_a_learner_do_not_count() -> None:
    replies = {1: view(1), 2: view(2, incarnation="f" * 32), 4: view(4)}
    assert not sight(replies).has_quorum()
    assert sight(replies | {3: view(3)}).has_quorum()
    assert not sight({}, None).has_quorum()


# The time without a leader.


def test_the_leader_is_lost_for_as_long_as_an_elect_quorum_reports() -> None:
    assert aged({1: 9000}).leader_silent_s() is None
    assert aged({1: 9000, 2: 7000}).leader_silent_s() == 7.0
    assert aged({1: 9000, 2: 7000, 3: 100}).leader_silent_s() == 7.0
    assert aged({1: 9000, 2: 50, 3: 100}).leader_silent_s() == 0.1
    assert aged({1: 9000, 2: 7000, 3: 8000}).leader_silent_s() == 8.0


def test_a_large_elect_quorum_must_agree_that_the_leader_is_lost() -> None:
    # Two of five commit: a leader may reach no more than these two.
    membership = Membership(1, members(1, 2, 3, 4, 5), quorum_sizes=QuorumSizes("2", "4"))
    assert aged({1: 9000, 2: 9000, 3: 9000, 4: 100, 5: 100}, membership).leader_silent_s() == 0.1
    assert aged({1: 9000, 2: 9000, 3: 9000, 4: 8000, 5: 100}, membership).leader_silent_s() == 8.0


def test_both_halves_of_a_joint_membership_must_have_lost_the_leader() -> None:
    joint = Membership(2, members(1, 2, 3), members(3, 4, 5))
    assert aged({1: 9000, 2: 9000, 3: 50, 4: 7000, 5: 100}, joint).leader_silent_s() == 0.1


@st.composite
def clusters(draw: st.DrawFn) -> Membership:
    sizes = st.sampled_from([QuorumSizes(), QuorumSizes("1", "N"), QuorumSizes("N", "N/2+1")])
    old, new = (members(*sorted(draw(st.sets(st.integers(1, 7), min_size=1, max_size=5)))) for _ in range(2))
    return Membership(2, old, new if draw(st.booleans()) else (), 1, draw(sizes), draw(sizes))


@given(clusters(), st.dictionaries(st.integers(1, 7), st.integers(0, 5000)))
def test_the_leader_is_lost_for_x_iff_an_elect_quorum_of_each_half_reports_at_least_x(
    membership: Membership, ages_ms: dict[int, int]
) -> None:
    seen = aged(ages_ms, membership)
    age_s = seen.leader_silent_s()
    assert (age_s is None) is not seen.has_quorum()
    if age_s is not None:
        for x_ms in {0, *ages_ms.values(), *(each + 1 for each in ages_ms.values())}:
            reporting = {(i, f"{i}" * 32) for i, age_ms in ages_ms.items() if age_ms >= x_ms}
            assert membership.has_elect_quorum(reporting) is (age_s >= x_ms / 1000)


# Reports, settings and the log.


def test_the_freshest_report_of_each_agent_counts() -> None:
    old, new = (encode(AgentReport("db1", tli=tli)) for tli in (1, 2))
    other = encode(AgentReport("db2"))
    seen = sight(
        {
            1: view(1, reports=(KeptReport("db1", 3000, old), KeptReport("db2", 10, other))),
            2: view(2, reports=(KeptReport("db1", 500, new),)),
        }
    ).reports()
    assert list(seen) == ["db1", "db2"]
    assert (seen["db1"].report.tli, seen["db1"].age_s) == (2, 0.5)
    assert seen["db2"].age_s == 0.01


def test_a_report_that_cannot_be_read_is_one_with_a_problem_that_may_not_lead() -> None:
    kept = (KeptReport("db1", 0, b'{"name":5}'), KeptReport("db2", 0, encode(AgentReport("elsewhere"))))
    seen = sight({1: view(1, reports=kept)}).reports()
    assert seen["db1"].report.name == "db1" and not seen["db1"].report.may_lead
    assert seen["db1"].report.problem.startswith("an agent has sent no AgentReport: ")
    assert seen["db2"].report == AgentReport("db2")


def test_the_newest_settings_that_a_member_has_count() -> None:
    replies = {1: view(1), 2: view(2, settings=version(3, "b")), 3: view(3, settings=version(3, "a"))}
    assert sight({1: view(1)}).settings() is None
    assert sight(replies).settings() == version(3, "b")
    learner = view(4, settings=version(9))
    assert sight(replies | {4: learner}).settings() == version(3, "b")


def test_settings_are_kept_by_a_quorum_that_has_exactly_them() -> None:
    one, other = version(1), version(1, "b")
    assert not sight({1: view(1, settings=one), 2: view(2, settings=other)}).keeps(one)
    assert sight({1: view(1, settings=one), 2: view(2, settings=one), 3: view(3)}).keeps(one)
    assert not sight({}, None).keeps(one)


def test_the_content_of_the_settings_is_read() -> None:
    assert sight({1: view(1)}).shared() == AgentSettings()
    paused = version(1, content=encode(AgentSettings(is_paused=True)))
    assert sight({1: view(1, settings=paused)}).shared().is_paused
    with pytest.raises(RemoteProtocolError, match="an agent has sent no AgentSettings"):
        sight({1: view(1, settings=version(1, content=b"[]"))}).shared()


def test_the_newest_log_is_that_of_the_last_term_and_then_the_longest() -> None:
    replies = {
        1: view(1, last_term=2, flush_lsn=900),
        2: view(2, last_term=3, flush_lsn=500),
        3: view(3, last_term=3, flush_lsn=600),
        4: view(4, last_term=9, flush_lsn=999),
    }
    assert sight({}).log() is None
    assert sight(replies).log() == replies[3]


def test_what_is_missing_is_one_line() -> None:
    assert sight({}, None).missing() == "no safekeeper has a cluster: start walproxy run first"
    lost = {2: "safekeeper 2: lost", 1: "safekeeper 1: timeout"}
    assert sight({}, None, lost).missing().endswith("(safekeeper 1: timeout; safekeeper 2: lost)")
    assert sight({3: view(3)}, problems=lost).missing() == "safekeeper 1: timeout; safekeeper 2: lost"
    assert sight({3: view(3)}).missing() == "too few members of generation 1 have replied: 3"
    assert sight({1: view(1), 3: view(3)}).missing() == ""


# The cluster.


def greeting(safekeeper_id: int, cluster_id: str, membership: Membership | None) -> AcceptorGreeting:
    return empty(safekeeper_id, cluster_id=cluster_id, membership=membership)


def test_the_latest_membership_with_a_quorum_of_its_members_is_the_present_one() -> None:
    joint = Membership(2, members(1, 2, 3), members(3, 4, 5), 1)
    greetings = {1: greeting(1, CLUSTER, THREE), 2: greeting(2, CLUSTER, THREE), 3: greeting(3, CLUSTER, joint)}
    assert latest_cluster(greetings, with_quorum=True) == Cluster(CLUSTER, THREE)
    assert latest_cluster(greetings, with_quorum=False) == Cluster(CLUSTER, joint)
    greetings[4] = greeting(4, "", None)
    assert latest_cluster(greetings, with_quorum=True) == Cluster(CLUSTER, joint)


def test_without_a_membership_there_is_no_cluster() -> None:
    assert latest_cluster({}, with_quorum=False) is None
    assert latest_cluster({1: greeting(1, "", None), 2: greeting(2, "", THREE)}, with_quorum=False) is None
    assert latest_cluster({1: greeting(1, CLUSTER, THREE)}, with_quorum=True) is None
