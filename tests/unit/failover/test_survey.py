"""What a failover does next, from every state in which an earlier run may have left the cluster."""

from typing import Any

import pytest

from safekeeper.consensus.membership import Member, Membership
from safekeeper.consensus.messages import AcceptorGreeting
from tests.unit.failover.looks import dead, greeting, primary, standby, survey
from walproxy.failover.candidates import NoCandidate, number_for
from walproxy.failover.survey import (
    FailoverRefused,
    Finished,
    Promote,
    Resume,
    check_cancellable,
    log_is_on,
    next_step,
    overtaken_reason,
    survey_of,
)
from walproxy.proposer.roster import Cluster
from walproxy.proxy.sight import Sight

CLUSTER = Cluster("c" * 32, Membership(1, tuple(Member(i, str(i) * 32) for i in (1, 2, 3))))
STANDBY = standby("pg2")


def refusal(*arguments: Any, **options: Any) -> str:
    with pytest.raises((FailoverRefused, NoCandidate)) as refused:
        next_step(*arguments, **options)
    return str(refused.value)


# The primary lives.


def test_a_primary_that_replies_is_not_given_up_unless_it_is_said_to_be_dead() -> None:
    found = survey(primary("pg1"), STANDBY, is_led=True)
    assert "pg1:5432 is the primary of the log (timeline 1) and replies: use walproxy switchover" in refusal(found)
    assert next_step(found, old_is_dead=True) == Promote(STANDBY, "")
    assert next_step(found, "pg2", old_is_dead=True) == Promote(STANDBY, "pg2:5432")
    assert "name a standby with --to" in refusal(found, "pg1", old_is_dead=True)


def test_a_primary_of_which_only_its_proxy_is_seen_is_not_given_up_either() -> None:
    found = survey(dead("pg1"), STANDBY, is_led=True)
    assert "a walproxy run leads and has a primary on timeline 1" in refusal(found)
    assert "pg1:5432: cannot connect" in refusal(found)
    assert next_step(found, old_is_dead=True) == Promote(STANDBY, "")


def test_a_failover_that_has_ended_is_not_repeated() -> None:
    promoted = primary("pg2", 2)
    found = survey(dead("pg1"), promoted, is_led=True, log_tli=2, floor=1, given=2)
    assert next_step(found) == next_step(found, "pg2") == Finished(promoted)
    found = survey(primary("pg2", 2), standby("pg3"), log_tli=2, floor=1, given=2)
    assert "use walproxy switchover" in refusal(found, "pg3")
    # Nor one whose promotion was not the first try, while one that was reserved since is.
    assert next_step(survey(primary("pg2", 4), is_led=True, log_tli=4, floor=1, given=4)) == Finished(primary("pg2", 4))
    found = survey(primary("pg2", 2), standby("pg3"), is_led=True, log_tli=2, floor=1, given=3)
    assert "use walproxy switchover" in refusal(found)
    # Also where the primary was never promoted, if it is named.
    assert next_step(survey(primary("pg1"), is_led=True), "pg1") == Finished(primary("pg1"))


def test_the_promoted_server_may_lack_a_proxy_again() -> None:
    found = survey(dead("pg1"), primary("pg2", 2), log_tli=2, floor=1, given=2)
    assert "pg2:5432 is the primary (timeline 2) and replies, and no walproxy run serves it" in refusal(found)


# The primary is dead.


def test_the_most_advanced_standby_is_promoted() -> None:
    best = standby("pg3", 990)
    found = survey(dead("pg1"), standby("pg2", 900), best)
    assert next_step(found) == Promote(best, "")
    assert next_step(found, "pg2") == Promote(standby("pg2", 900), "pg2:5432")


def test_without_a_standby_nothing_is_begun() -> None:
    assert "no standby can be promoted" in refusal(survey(dead("pg1"), dead("pg2")))
    assert "pg9 is none of the servers" in refusal(survey(dead("pg1"), STANDBY), "pg9")


def test_an_old_primary_that_comes_back_after_the_seal_is_none() -> None:
    found = survey(primary("pg1"), STANDBY, floor=1)
    assert found.serving is None and found.is_sealed
    assert next_step(found) == Promote(STANDBY, "")
    # A proxy that leads now has a promoted server: it is waited for.
    assert next_step(survey(primary("pg1"), primary("pg2", 2), is_led=True, floor=1)) == Resume(primary("pg2", 2))


def test_a_server_of_another_system_is_no_primary_of_this_log() -> None:
    found = survey(primary("pg1", system_id=8), STANDBY)
    assert found.serving is None
    assert next_step(found) == Promote(STANDBY, "")
    assert survey(primary("pg1", 9, system_id=8), STANDBY).in_use_tli == 1


# A server was promoted.


def test_a_server_that_was_promoted_is_waited_for() -> None:
    promoted = primary("pg2", 2)
    found = survey(dead("pg1"), promoted, standby("pg3"), floor=1, given=2)
    assert next_step(found) == next_step(found, "pg2") == Resume(promoted)
    # It may be refused by the proxies: another one can be named.
    assert next_step(found, "pg3") == Promote(standby("pg3"), "pg3:5432")
    # By hand, without a seal.
    assert next_step(survey(dead("pg1"), promoted)) == Resume(promoted)


def test_of_several_the_one_whose_number_was_handed_out_last_is_waited_for() -> None:
    by_hand, promoted = primary("pg2", 4), primary("pg3", 3)
    assert next_step(survey(by_hand, promoted, floor=1, given=3)) == Resume(promoted)
    assert next_step(survey(by_hand, promoted, floor=1, given=3), "pg2") == Resume(by_hand)
    assert "several servers were promoted: pg2:5432 (timeline 4), pg3:5432 (timeline 4)" in refusal(
        survey(by_hand, primary("pg3", 4), floor=1, given=2)
    )


def test_a_promoted_server_on_a_sealed_timeline_is_an_old_primary() -> None:
    found = survey(dead("pg1"), primary("pg3", 2), STANDBY, floor=2, given=2)
    assert next_step(found) == Promote(STANDBY, "")
    assert "pg3:5432 is a primary on timeline 2, not a standby" in refusal(found, "pg3")


def test_the_number_of_a_server_that_was_promoted_by_hand_is_not_given_out() -> None:
    found = survey(dead("pg1"), primary("pg2", 2), STANDBY)
    assert found.in_use_tli == 2
    assert number_for(STANDBY, found.estimated_end()) == 3


# Cancelling.


def test_only_a_seal_without_a_promotion_is_cancelled() -> None:
    assert check_cancellable(survey(dead("pg1"), STANDBY)) is False
    assert check_cancellable(survey(dead("pg1"), STANDBY, floor=1)) is True
    assert check_cancellable(survey(dead("pg1"), primary("pg2", 2), log_tli=2, floor=1)) is False
    with pytest.raises(FailoverRefused, match="pg2:5432 was promoted to timeline 2: finish with walproxy failover"):
        check_cancellable(survey(dead("pg1"), primary("pg2", 2), floor=1))


# What the safekeepers have.


def seen(*greetings: AcceptorGreeting, **problems: str) -> Sight:
    return Sight({each.safekeeper_id: each for each in greetings}, {int(i[1:]): each for i, each in problems.items()})


def test_the_newest_log_of_a_member_decides() -> None:
    older, newer = greeting(1, last_term=4, flush_lsn=2000), greeting(2, last_term=5, log_tli=2, floor=1)
    found = survey_of(CLUSTER, seen(older, newer, s3="safekeeper 3 is down"), {1: "", 2: ""}, (STANDBY,))
    assert (found.log.last_term, found.log.log_tli, found.replying, found.members) == (5, 2, 2, 3)
    assert found.has_quorum and not found.is_led


def test_a_quorum_must_follow_the_same_proxy() -> None:
    def is_led(*runs: str) -> bool:
        proposers = dict(enumerate(runs, 1))
        return survey_of(CLUSTER, seen(*map(greeting, (1, 2, 3))), proposers, ()).is_led

    assert is_led("a", "a", "b") and is_led("", "b", "b")
    assert not is_led("a", "b", "") and not is_led("", "", "")


def test_other_safekeepers_than_the_members_do_not_count() -> None:
    others = [greeting(4), greeting(2, incarnation="f" * 32), greeting(3, cluster_id="d" * 32)]
    assert seen(greeting(1), *others).member_greetings(CLUSTER) == {1: greeting(1)}
    with pytest.raises(FailoverRefused, match="no member of the cluster replies: safekeeper 1 is down"):
        survey_of(CLUSTER, seen(*others, s1="safekeeper 1 is down"), {}, ())
    assert not survey_of(CLUSTER, seen(greeting(1)), {}, ()).has_quorum


def test_an_empty_log_needs_no_failover() -> None:
    with pytest.raises(FailoverRefused, match="no commit was ever acknowledged"):
        survey_of(CLUSTER, seen(greeting(1, log_tli=0)), {}, ())


def test_the_log_is_on_when_wal_above_the_fork_is_committed() -> None:
    assert not log_is_on(greeting(log_tli=2, commit_lsn=900), 2, 900)
    assert log_is_on(greeting(log_tli=2, commit_lsn=901), 2, 900)
    assert not log_is_on(greeting(log_tli=1, commit_lsn=901), 2, 900)


def test_another_failover_may_overtake() -> None:
    assert overtaken_reason({1: greeting(log_tli=1, floor=1), 2: greeting(log_tli=2, floor=1)}, 2) == ""
    assert overtaken_reason({1: greeting(log_tli=3, floor=1)}, 2) == (
        "the log has gone on to timeline 3: make it a standby with pg_rewind"
    )
    assert "another failover has sealed the timelines up to 2" in overtaken_reason({1: greeting(floor=2)}, 2)


def test_a_member_that_was_away_does_not_say_that_another_failover_overtakes() -> None:
    lost_seal = greeting(2, last_term=5, floor=3)
    assert "up to 3" in overtaken_reason({2: lost_seal}, 2)
    assert overtaken_reason({1: greeting(last_term=7, floor=1), 2: lost_seal}, 2) == ""
