"""What an agent does next: each state of its server, loss of the leader, orders, turns, and the end of writes."""

from dataclasses import replace

import pytest

from walproxy.agent.control_data import ControlData
from walproxy.agent.decision import (
    BUSY_S,
    EQUAL_BYTES,
    FIRST_VIEW_S,
    FOLLOWS_WITHIN_S,
    HEARTBEAT_ARRIVES_S,
    READMIT_AFTER_S,
    RESIGNATION_S,
    TURN_S,
    AllowWrites,
    Decider,
    EndWrites,
    FailOver,
    Kill,
    LetIn,
    Own,
    Rebuild,
    Refuse,
    Rejoin,
    Resign,
    StartPrimary,
    StartStandby,
    Step,
    StepDown,
    Stop,
    Wait,
    demote_after_s,
)
from walproxy.agent.memory import FRESH_S, RETRY_S_MAX, RETRY_S_MIN, UNSTEADY_TIMES
from walproxy.agent.report import AgentReport, AgentSettings, Order, PrimaryChange
from walproxy.agent.server_look import ServerLook, ServerState
from walproxy.agent.sight import SeenReport
from walproxy.agent.state import ClusterView, LogPositions
from walproxy.failover.candidates import LAG_BYTES_MAX

NOW = 1000.0
SYSTEM = 7
PRIMARY = ServerLook(ServerState.PRIMARY, pid=1, system_id=SYSTEM, tli=1, written_lsn=1000, is_read_only=False)
STANDBY = ServerLook(ServerState.STANDBY, pid=1, system_id=SYSTEM, tli=1, received_lsn=900, replayed_lsn=900)

PAUSED = replace(STANDBY, problem="the standby has a recovery target, recovery_target_lsn = 0/5000")


def control(state: str) -> ControlData:
    return ControlData(SYSTEM, state, 800, 1, 0, 0, 16 << 20, can_be_rewound=True)


STOPPED_PRIMARY = ServerLook(ServerState.STOPPED, system_id=SYSTEM, tli=1, control=control("in production"))
STOPPED_STANDBY = ServerLook(ServerState.STOPPED, system_id=SYSTEM, tli=1, control=control("in archive recovery"))
HANGING = ServerLook(ServerState.HANGS, pid=1, tli=1, control=control("in production"), problem="no reply")


def report(name: str, state: str = "standby", **more: object) -> AgentReport:
    positions = {"received_lsn": 900} if state == "standby" else {"written_lsn": 1000}
    return AgentReport(name, state=state, **{"system_id": SYSTEM, "tli": 1, **positions, **more})  # type: ignore[arg-type]


LEADER = report("pg1", "primary", is_leader=True)


def view(
    *reports: AgentReport,
    age_s: float = 0.0,
    silent_s: float | None = 0.1,
    log_tli: int = 1,
    floor: int = 0,
    has_quorum: bool = True,
    **more: object,
) -> ClusterView:
    known: dict[str, object] = {"system_id": SYSTEM, "sent_at": NOW, **more}
    return ClusterView(
        has_quorum=has_quorum,
        leader_silent_s=silent_s if has_quorum else None,
        log=LogPositions(tli=log_tli, floor=floor, term=3, flush_lsn=1000),
        agents=tuple(SeenReport(each, age_s) for each in sorted(reports, key=lambda each: each.name)),
        **known,  # type: ignore[arg-type]
    )


def watching(own: Own) -> Decider:
    """Return the decisions of an agent that has had replies of a quorum for a minute."""
    decider = Decider(own)
    for passed_s in range(60):
        decider.saw(replace(view(), sent_at=NOW - 60 + passed_s))
    return decider


def decide(
    look: ServerLook, seen: ClusterView, *, name: str = "pg2", now: float = NOW, commits: bool = False, **own: object
) -> Step:
    decider = watching(Own(name, **own))  # type: ignore[arg-type]
    decider.saw(seen)
    return decider.decide(now, look, seen, commits=commits)


def ordered(kind: str, agent: str = "", order_id: str = "1") -> AgentSettings:
    return AgentSettings(order=Order(order_id, kind, agent))


RESIGNED = report("pg1", "stopped", has_resigned=True)
NO_QUORUM = view(report("pg2"), has_quorum=False, problem="safekeeper 1 is down")
STEPS: dict[str, tuple[ServerLook, ClusterView, Step]] = {
    "a primary that commits": (PRIMARY, view(LEADER), Wait()),
    "a promoted one that the log is not on yet": (
        *(replace(PRIMARY, tli=2), view(floor=1, log_tli=1)),
        Wait("waiting for the quorum"),
    ),
    "a standby, and a leader": (STANDBY, view(report("pg2")), Wait()),
    "a leader that is nearly lost": (STANDBY, view(report("pg2"), silent_s=4.9), Wait()),
    "a leader that is lost": (STANDBY, view(report("pg2"), silent_s=5.0), FailOver()),
    "a standby without a quorum": (STANDBY, NO_QUORUM, Wait("safekeeper 1 is down")),
    "a leader that has resigned": (STANDBY, view(report("pg2"), RESIGNED), FailOver()),
    "another one leads": (STANDBY, view(report("pg2"), RESIGNED, report("pg3", "primary", is_leader=True)), Wait()),
    "a promoted server whose proxy is about to lead": (
        *(STANDBY, view(report("pg2"), report("pg3", "primary", tli=2), silent_s=6.0, floor=1)),
        Wait("the leader is lost: pg3 is first"),
    ),
    "an old primary beside it": (
        *(STANDBY, view(report("pg2"), report("pg1", "primary", tli=1), silent_s=6.0, floor=1)),
        FailOver(),
    ),
    "a stopped standby needs no quorum": (STOPPED_STANDBY, NO_QUORUM, StartStandby()),
    "a stopped primary of the log": (STOPPED_PRIMARY, view(), StartPrimary()),
    "a stopped primary of a new cluster": (
        *(STOPPED_PRIMARY, view(has_quorum=False, is_new=True, log_tli=0)),
        StartPrimary(),
    ),
    "a stopped primary without a quorum": (STOPPED_PRIMARY, NO_QUORUM, Wait("safekeeper 1 is down")),
    "a stopped primary that the log is not on yet": (replace(STOPPED_PRIMARY, tli=2), view(floor=1), StartPrimary()),
}


@pytest.mark.parametrize(("look", "seen", "step"), STEPS.values(), ids=STEPS)
def test_each_state_of_the_server_and_of_the_cluster_has_its_step(
    look: ServerLook, seen: ClusterView, step: Step
) -> None:
    assert decide(look, seen, commits=look is PRIMARY) == step


@pytest.mark.parametrize("look", [PRIMARY, STANDBY, STOPPED_PRIMARY])
def test_server_of_another_system_is_left_alone(look: ServerLook) -> None:
    foreign = replace(look, system_id=8)
    step = decide(foreign, view(report("pg2", system_id=8), floor=1, log_tli=5, silent_s=60.0))
    assert isinstance(step, Wait) and "another system, 8" in step.reason


@pytest.mark.parametrize(
    "floor, log_tli, others, reason",
    [
        (0, 2, (), "gone on"),
        (1, 2, (), "gone on"),
        (1, 1, (report("pg2", "primary", tli=2),), "sealed by a failover"),
        (1, 1, (report("pg2", "primary", tli=2, is_leader=True),), "sealed by a failover"),
        (1, 2, (report("pg3", "primary", tli=2, is_leader=True),), "does not go on to 3"),
    ],
)
def test_old_primary_is_stopped(floor: int, log_tli: int, others: tuple[AgentReport, ...], reason: str) -> None:
    look = replace(PRIMARY, tli=3) if "go on to 3" in reason else PRIMARY
    step = decide(look, view(*others, floor=floor, log_tli=log_tli), name="pg1")
    assert isinstance(step, Stop) and reason in step.reason


def test_a_sealed_primary_goes_on_without_writes_until_another_server_is_promoted() -> None:
    decider = watching(Own("pg1"))
    sealing = view(report("pg2", is_failing_over=True, has_sealed=True), floor=1)
    assert decider.decide(NOW, PRIMARY, sealing, commits=True) == EndWrites("timeline 1 is sealed by a failover")
    decider.ended_writes = True
    waits = Wait("timeline 1 is sealed by a failover: waiting for its end")
    assert decider.decide(NOW + 1, PRIMARY, replace(sealing, sent_at=NOW + 1), commits=False) == waits
    dead = view(report("pg2"), floor=1)
    assert until_let_in(decider, PRIMARY, dead, NOW + 2) == [waits, waits, LetIn(1)]


def test_after_an_attempt_that_has_failed_all_agents_leave_the_lead_to_the_old_primary_for_a_while() -> None:
    decider = watching(Own("pg3"))
    decider.saw(view(report("pg2", has_sealed=True), report("pg3"), silent_s=9.0, floor=1))
    over = view(report("pg2"), report("pg3", received_lsn=950), silent_s=9.0, sent_at=NOW + 1)
    decider.saw(over)
    assert isinstance(decider.decide(NOW + 1, STANDBY, over, commits=False), Wait)
    late = replace(over, sent_at=NOW + 1 + RETRY_S_MIN)
    assert decider.decide(NOW + 1 + RETRY_S_MIN, STANDBY, late, commits=False) == FailOver()


def test_primary_ends_its_writes_before_others_may_act_and_allows_them_again() -> None:
    decider = Decider(Own("pg1"))
    seen = view(silent_s=0.2)
    decider.saw(seen)
    early = demote_after_s(5.0) - 0.3
    assert decider.decide(NOW + early, PRIMARY, seen, commits=True) == Wait()
    late = decider.decide(NOW + 4.0, PRIMARY, seen, commits=True)
    assert isinstance(late, EndWrites) and "do not reply" in late.reason and not late.stops
    decider.ended_writes = True
    assert isinstance(decider.decide(NOW + 5.0, PRIMARY, seen, commits=False), Wait)
    again = replace(seen, sent_at=NOW + 6.0)
    decider.saw(again)
    assert isinstance(decider.decide(NOW + 6.0, PRIMARY, again, commits=False), Wait)
    assert decider.decide(NOW + 6.0, PRIMARY, again, commits=True) == AllowWrites()


def test_primary_that_a_new_agent_finds_ends_its_writes_soon_if_no_quorum_replies() -> None:
    decider = Decider(Own("pg1"))
    none = view(has_quorum=False, problem="safekeeper 1 is down")
    assert isinstance(decider.decide(NOW, PRIMARY, none, commits=False), Wait)
    step = decider.decide(NOW + FIRST_VIEW_S, PRIMARY, none, commits=False)
    assert isinstance(step, EndWrites) and "safekeeper 1 is down" in step.reason


def test_impatience_of_another_agent_counts() -> None:
    decider = Decider(Own("pg1", stops_without_quorum=True))
    seen = view(report("pg2", dead_after_s=1.0), silent_s=0.0)
    decider.saw(seen)
    assert decider.decide(NOW + 0.5, PRIMARY, seen, commits=True) == Wait()
    step = decider.decide(NOW + 0.7, PRIMARY, seen, commits=True)
    assert isinstance(step, EndWrites) and step.stops


def test_primary_whose_proxy_is_silent_ends_its_writes_although_a_quorum_replies() -> None:
    decider = Decider(Own("pg1"))
    decider.saw(view())
    decider.decide(NOW, PRIMARY, view(), commits=True)
    silent = replace(view(silent_s=4.5), sent_at=NOW + 4.4)
    decider.saw(silent)
    step = decider.decide(NOW + 4.4, PRIMARY, silent, commits=False)
    assert isinstance(step, EndWrites) and "nothing from its proxy" in step.reason


def test_view_that_is_old_is_no_quorum() -> None:
    seen = view(floor=1)
    decider = Decider(Own("pg1"))
    decider.saw(seen)
    assert isinstance(decider.decide(NOW + FRESH_S + 0.1, PRIMARY, seen, commits=False), Wait)


def test_standby_gives_the_leader_time_when_a_quorum_is_back() -> None:
    decider = watching(Own("pg2"))
    back_at = NOW + 30.0
    back = replace(view(report("pg2"), silent_s=30.0), sent_at=back_at)
    decider.saw(back)
    step = decider.decide(back_at, STANDBY, back, commits=False)
    assert isinstance(step, Wait) and "is back" in step.reason
    for passed_s in range(1, 6):
        decider.saw(replace(back, sent_at=back_at + passed_s))
    later = replace(back, sent_at=back_at + 5.0)
    assert decider.decide(back_at + 5.0, STANDBY, later, commits=False) == FailOver()


@pytest.mark.parametrize(
    "own, other, first",
    [
        ({}, {}, "pg2"),
        ({}, {"priority": 200}, "pg3"),
        ({}, {"received_lsn": 901}, "pg3"),
        ({"priority": 200}, {"received_lsn": 901}, "pg2"),
        ({"priority": 200}, {"received_lsn": 901 + EQUAL_BYTES}, "pg3"),
        ({}, {"priority": 200, "may_lead": False}, "pg2"),
        ({}, {"priority": 200, "problem": "disk full"}, "pg2"),
        ({}, {"priority": 200, "system_id": 8}, "pg2"),
        ({}, {"priority": 200, "state": "stopped"}, "pg2"),
    ],
)
def test_turns_of_the_candidates(own: dict[str, object], other: dict[str, object], first: str) -> None:
    ours = report("pg2", **own)  # type: ignore[arg-type]
    theirs = report("pg3", **{"state": "standby", **other})  # type: ignore[arg-type]
    decider = watching(Own("pg2"))
    lost = view(ours, theirs, silent_s=6.0)
    step = decider.decide(NOW, STANDBY, lost, commits=False)
    if first == "pg2":
        assert step == FailOver()
        return
    assert step == Wait("the leader is lost: pg3 is first")
    later = replace(lost, sent_at=NOW + TURN_S + 0.1)
    assert decider.decide(NOW + TURN_S + 0.1, STANDBY, later, commits=False) == FailOver()


def test_a_candidate_that_receives_the_rest_first_lets_the_first_one_go_on() -> None:
    decider = watching(Own("pg2"))
    lost = view(report("pg2"), report("pg1"), silent_s=6.0)
    assert decider.decide(NOW, STANDBY, lost, commits=False) == Wait("the leader is lost: pg1 is first")
    # The seal of pg1 delivers the rest, and this one reports it first.
    ahead = view(report("pg2", received_lsn=950), report("pg1"), silent_s=6.0)
    assert isinstance(decider.decide(NOW + 0.2, STANDBY, ahead, commits=False), Wait)
    # One that is no longer a candidate is not waited for.
    gone = view(report("pg2", received_lsn=950), silent_s=6.0)
    assert decider.decide(NOW + 0.3, STANDBY, gone, commits=False) == FailOver()


def test_first_candidate_lets_another_failover_that_runs_go_on_for_a_while() -> None:
    busy = report("pg3", priority=1, received_lsn=800, is_failing_over=True)
    decider = watching(Own("pg2"))
    lost = view(report("pg2"), busy, silent_s=6.0)
    assert decider.decide(NOW, STANDBY, lost, commits=False) == Wait("the leader is lost: pg3 is first")
    later = replace(lost, sent_at=NOW + BUSY_S + 0.1)
    assert decider.decide(NOW + BUSY_S + 0.1, STANDBY, later, commits=False) == FailOver()


def test_another_failover_has_the_time_of_its_guards_beside_its_own() -> None:
    busy = report("pg3", priority=1, received_lsn=800, is_failing_over=True)
    decider = watching(Own("pg2", guards_s=72.0))
    lost = view(report("pg2"), busy, silent_s=6.0)
    steps = {}
    for passed_s in (0.0, BUSY_S + 71.9, BUSY_S + 72.1):
        seen = replace(lost, sent_at=NOW + passed_s)
        steps[passed_s] = decider.decide(NOW + passed_s, STANDBY, seen, commits=False)
    wait = Wait("the leader is lost: pg3 is first")
    assert list(steps.values()) == [wait, wait, FailOver()]


def test_failed_attempt_leaves_the_next_one_to_others() -> None:
    decider = watching(Own("pg2"))
    lost = view(report("pg2"), silent_s=6.0)
    assert decider.decide(NOW, STANDBY, lost, commits=False) == FailOver()
    decider.failed(NOW)
    assert isinstance(decider.decide(NOW + 1, STANDBY, lost, commits=False), Wait)
    later = replace(lost, sent_at=NOW + RETRY_S_MIN)
    assert decider.decide(NOW + RETRY_S_MIN, STANDBY, later, commits=False) == FailOver()


def test_attempts_that_fail_are_repeated_with_pauses_that_double_up_to_a_limit() -> None:
    decider = watching(Own("pg2"))
    pauses = []
    for _ in range(5):
        decider.failed(NOW)
        pauses.append(decider.retry.at - NOW)
    assert pauses == [RETRY_S_MIN, *[RETRY_S_MAX] * 4] and RETRY_S_MAX == 2 * RETRY_S_MIN
    decider.failed(NOW + 1000)
    assert decider.retry.at == NOW + 1000 + RETRY_S_MIN


def test_a_quorum_that_is_back_counts_as_soon_as_a_heartbeat_would_have_reached_it() -> None:
    lost = view(report("pg2"), silent_s=6.0)
    away = view(report("pg2"), has_quorum=False)
    decider = watching(Own("pg2"))
    at = NOW
    for _ in range(3):  # The links are cut for 2.6 s, and open for 1.8 s.
        at += 2.6
        decider.saw(replace(away, sent_at=at))
        assert isinstance(decider.decide(at, STANDBY, replace(away, sent_at=at), commits=False), Wait)
        decider.saw(replace(lost, sent_at=at))
        step = decider.decide(at, STANDBY, replace(lost, sent_at=at), commits=False)
        assert isinstance(step, Wait) and "waiting for the leader's heartbeats" in step.reason
        decider.saw(replace(lost, sent_at=at + HEARTBEAT_ARRIVES_S))
        seen = replace(lost, sent_at=at + HEARTBEAT_ARRIVES_S)
        assert decider.decide(at + HEARTBEAT_ARRIVES_S, STANDBY, seen, commits=False) == FailOver()
        at += 1.8


@pytest.mark.parametrize(
    "look, seen, own, reason",
    [
        (STANDBY, view(report("pg2"), silent_s=9.0), {"may_lead": False}, "no_failover"),
        (STANDBY, view(silent_s=9.0), {}, "first report"),
        (
            PAUSED,
            view(report("pg2", problem=PAUSED.problem), silent_s=9.0),
            {},
            f"cannot be promoted: {PAUSED.problem}",
        ),
        (STANDBY, view(report("pg2", address="db9:5432"), silent_s=9.0), {}, "at db9:5432, has the name pg2, too"),
        (STANDBY, view(report("pg2"), silent_s=9.0, log_tli=0), {}, "no WAL"),
    ],
)
def test_standby_that_cannot_be_promoted_says_why(
    look: ServerLook, seen: ClusterView, own: dict[str, object], reason: str
) -> None:
    step = decide(look, seen, **own)  # type: ignore[arg-type]
    assert isinstance(step, Wait) and reason in step.reason


def test_old_primary_rejoins_the_leader() -> None:
    leader = report("pg3", "primary", is_leader=True, tli=2)
    assert decide(STOPPED_PRIMARY, view(leader, floor=1, log_tli=2)) == Rejoin(leader)
    assert isinstance(decide(STOPPED_PRIMARY, view(floor=1, log_tli=2)), Wait)
    begun = replace(STOPPED_PRIMARY, rejoin_begun=True)
    assert decide(begun, view(leader)) == Rejoin(leader)
    assert isinstance(decide(replace(STANDBY, rejoin_begun=True), view(leader)), Stop)


def until_let_in(decider: Decider, look: ServerLook, seen: ClusterView, since: float = NOW) -> list[Step]:
    """Return the steps at once, shortly before an old primary is let in, and then."""
    times = (since, since + READMIT_AFTER_S - 0.1, since + READMIT_AFTER_S)
    return [decider.decide(at, look, replace(seen, sent_at=at), commits=False) for at in times]


def test_a_sealed_primary_that_nobody_replaces_is_let_in_again() -> None:
    waits = Wait("an old primary: waiting for a leader to rejoin")
    assert until_let_in(watching(Own("pg1")), STOPPED_PRIMARY, view(report("pg2"), floor=1)) == [waits, waits, LetIn(1)]
    # One that asks its guards has not sealed.
    asking = view(report("pg2", is_failing_over=True), floor=1)
    assert until_let_in(watching(Own("pg1")), STOPPED_PRIMARY, asking)[-1] == LetIn(1)
    gone_on = view(report("pg2"), floor=1, log_tli=2)
    assert until_let_in(watching(Own("pg1")), STOPPED_PRIMARY, gone_on)[-1] == waits


@pytest.mark.parametrize(
    "other",
    [
        report("pg2", is_failing_over=True, has_sealed=True),
        report("pg2", "primary", tli=2),
        report("pg2", "primary", tli=2, is_leader=True),
    ],
)
def test_a_sealed_primary_that_another_server_is_about_to_replace_is_not_let_in(other: AgentReport) -> None:
    decider = watching(Own("pg1"))
    steps = until_let_in(decider, STOPPED_PRIMARY, view(other, floor=1))
    assert not any(isinstance(step, LetIn) for step in steps)
    # Its time begins when that is over.
    steps = until_let_in(decider, STOPPED_PRIMARY, view(report("pg2"), floor=1), NOW + 10)
    assert [isinstance(step, LetIn) for step in steps] == [False, False, True]


def test_a_primary_that_ends_again_and_again_gives_the_lead_up_if_there_is_a_standby() -> None:
    for others, gives_up in (((report("pg2"),), True), ((), False)):
        decider = watching(Own("pg1"))
        for passed_s in range(UNSTEADY_TIMES):
            seen = view(*others, sent_at=NOW + passed_s)
            assert decider.decide(NOW + passed_s, STOPPED_PRIMARY, seen, commits=False) == StartPrimary()
        step = decider.decide(NOW + 5, STOPPED_PRIMARY, view(*others, sent_at=NOW + 5), commits=False)
        assert isinstance(step, Resign if gives_up else StartPrimary)


def test_a_leader_that_is_lost_again_and_again_hands_over_if_there_is_a_standby() -> None:
    for others, hands_over in (((report("pg2"),), True), ((), False)):
        decider = watching(Own("pg1"))
        at = NOW
        for _ in range(UNSTEADY_TIMES):
            at += 4.6
            lost = view(*others, silent_s=4.6, sent_at=at)
            assert isinstance(decider.decide(at, PRIMARY, lost, commits=False), EndWrites)
            decider.ended_writes = True
            at += 0.4
            back = view(*others, silent_s=0.1, sent_at=at)
            decider.saw(back)
            step = decider.decide(at, PRIMARY, back, commits=True)
            decider.ended_writes = False
        assert isinstance(step, StepDown) is hands_over and (hands_over or step == AllowWrites())
        if isinstance(step, StepDown):
            assert (step.order, step.to) == (None, "pg2") and "3 times within 60 s" in step.reason


def test_a_standby_that_has_replayed_more_than_the_new_leader_has_rejoins() -> None:
    leader = report("pg3", "primary", is_leader=True, tli=2)
    for fork_lsn, is_stranded in ((899, True), (900, False), (0, False)):
        changes = (PrimaryChange("failover", "pg3", 2, 4, fork_lsn=fork_lsn, old_tli=1),)
        seen = view(leader, report("pg2"), floor=1, log_tli=2, settings=AgentSettings(changes=changes))
        decider = watching(Own("pg2"))
        step = decider.decide(NOW, STANDBY, seen, commits=False)
        assert isinstance(step, Stop) is is_stranded
        stopped = decider.decide(NOW, STOPPED_STANDBY, seen, commits=False)
        assert stopped == (Rejoin(leader) if is_stranded else StartStandby())
        decider.rejoined()
        assert decider.decide(NOW, STOPPED_STANDBY, seen, commits=False) == StartStandby()


def test_standby_whose_promotion_crashed_is_rejoined_once_commits_go_on_without_it() -> None:
    """On a timeline that no other server has it receives nothing, for as long as it runs."""
    later = (PrimaryChange("failover", "pg3", 4, 4, fork_lsn=900, old_tli=1),)
    cases = (
        (1, (), 2, False, True),  # The old primary leads again.
        (4, later, 2, False, True),  # Another one was promoted: from timeline 1.
        (4, later, 3, True, False),  # It streams.
        (4, (), 2, False, False),  # How the log came to timeline 4 is not known.
        (4, later, 1, False, False),  # It is on the log's way, and is about to follow.
    )
    for leader_tli, changes, tli, streams, is_stranded in cases:
        leader = report("pg1", "primary", tli=leader_tli, is_leader=True)
        seen = view(leader, report("pg2"), log_tli=leader_tli, settings=AgentSettings(changes=changes))
        look = replace(STANDBY, tli=tli, is_streaming=streams)
        decider = watching(Own("pg2"))
        assert decider.decide(NOW, look, seen, commits=False) == Wait(), "it may only have seen a promotion first"
        step = decider.decide(NOW + READMIT_AFTER_S, look, replace(seen, sent_at=NOW + 2.9), commits=False)
        assert isinstance(step, Stop) is is_stranded, (leader_tli, tli, step)


def test_a_standby_that_follows_nothing_for_long_rejoins_once_for_each_timeline_of_the_leader() -> None:
    """The change of the primary is not on record: whether it can follow is seen by the rejoin."""
    decider = watching(Own("pg2"))
    at = NOW

    def step(leader_tli: int, passed_s: float) -> Step:
        nonlocal at
        at += passed_s
        leader = report("pg1", "primary", tli=leader_tli, is_leader=True)
        seen = view(leader, report("pg2"), log_tli=leader_tli, sent_at=at)
        return decider.decide(at, replace(STANDBY, tli=2), seen, commits=False)

    assert isinstance(step(4, 0), Wait) and isinstance(step(4, FOLLOWS_WITHIN_S - 1), Wait)
    assert step(4, 1) == Stop("it is on timeline 2 and has received nothing for 15 s, and pg1 leads on 4")
    decider.rejoined()
    assert isinstance(step(4, 2 * FOLLOWS_WITHIN_S), Wait), "its safekeepers may only be slow"
    assert isinstance(step(5, 0), Stop)


def test_resigned_leader_does_not_take_its_own_old_report_for_another_leader() -> None:
    decider = watching(Own("pg1"))
    decider.resigned(NOW)
    decider.saw(view(LEADER, report("pg2")))
    assert decider.has_resigned
    assert isinstance(decider.decide(NOW, STOPPED_PRIMARY, view(LEADER, report("pg2")), commits=False), Wait)
    decider.saw(view(report("pg2", "primary", is_leader=True)))
    assert not decider.has_resigned


def test_resigned_leader_waits_for_another_one_then_goes_on() -> None:
    decider = Decider(Own("pg1"))
    decider.resigned(NOW)
    assert decider.has_resigned
    assert isinstance(decider.decide(NOW + 1, STOPPED_PRIMARY, view(), commits=False), Wait)
    late = replace(view(), sent_at=NOW + RESIGNATION_S + 1)
    assert decider.decide(NOW + RESIGNATION_S + 1, STOPPED_PRIMARY, late, commits=False) == StartPrimary()


@pytest.mark.parametrize(("hangs_s", "killed_at_s"), [(0.0, 6), (2.0, 4)])
def test_primary_that_hangs_is_killed(hangs_s: float, killed_at_s: int) -> None:
    decider = watching(Own("pg1"))
    for passed_s in range(killed_at_s + 1):
        seen = replace(view(), sent_at=NOW + passed_s)
        decider.saw(seen)
        look = PRIMARY if passed_s == 0 else replace(HANGING, hangs_s=hangs_s)
        step = decider.decide(NOW + passed_s, look, seen, commits=False)
        assert isinstance(step, Kill if passed_s == killed_at_s else Wait), passed_s


def test_primary_whose_commits_go_on_while_no_look_succeeds_is_not_killed_and_is_once_it_hangs() -> None:
    """Logins block, as behind a lock on pg_authid, for half a minute; then the server hangs."""
    decider = watching(Own("pg1"))
    steps = {}
    for passed_s in range(40):
        seen = replace(view(), sent_at=NOW + passed_s)
        decider.saw(seen)
        if passed_s <= 30:
            decider.commits_advanced(NOW + passed_s)
        look = PRIMARY if passed_s == 0 else replace(HANGING, hangs_s=3.0)
        steps[passed_s] = decider.decide(NOW + passed_s, look, seen, commits=False)
    assert min(passed_s for passed_s, step in steps.items() if isinstance(step, Kill)) == 35


def test_primary_that_hangs_without_a_leader_seen_is_killed_before_others_may_act() -> None:
    decider = watching(Own("pg1"))
    seen = view(silent_s=0.0)
    decider.saw(seen)
    decider.decide(NOW, PRIMARY, seen, commits=True)
    silent = replace(view(silent_s=3.9), sent_at=NOW + 3.9)
    decider.saw(silent)
    assert isinstance(decider.decide(NOW + 3.9, HANGING, silent, commits=False), Wait)
    assert isinstance(decider.decide(NOW + 4.0, HANGING, silent, commits=False), Kill)


def test_an_old_primary_that_refuses_its_agent_is_stopped() -> None:
    refusing = ServerLook(
        ServerState.REFUSES,
        pid=1,
        system_id=SYSTEM,
        tli=1,
        control=control("in production"),
        problem="too many clients",
    )
    other = report("pg2", "primary", is_leader=True, tli=2)
    replaced = view(other, floor=1, log_tli=2)
    step = watching(Own("pg1")).decide(NOW, refusing, replaced, commits=False)
    assert step == Stop("pg2 leads on timeline 2, and this server refuses its agent")
    for left, seen in (
        (replace(refusing, control=control("in archive recovery")), replaced),
        (replace(refusing, system_id=SYSTEM + 1), replaced),
        (replace(refusing, tli=2), replaced),
        (refusing, replace(replaced, has_quorum=False)),
        (refusing, view(report("pg1", "refuses", tli=2), report("pg2"), floor=1, log_tli=2)),
    ):
        assert not isinstance(watching(Own("pg1")).decide(NOW, left, seen, commits=False), Stop)


def test_primary_that_refuses_connections_ends_its_writes_too() -> None:
    decider = watching(Own("pg1"))
    decider.decide(NOW, PRIMARY, view(), commits=True)
    refusing = ServerLook(ServerState.REFUSES, pid=1, tli=1, problem="too many clients")
    assert decider.decide(NOW + 1, refusing, view(), commits=False) == Wait("too many clients")
    step = decider.decide(NOW + 5, refusing, view(), commits=False)
    assert isinstance(step, EndWrites) and "too many clients" in step.reason


def test_standby_that_hangs_is_left_alone() -> None:
    hanging = replace(HANGING, control=control("in archive recovery"))
    decider = Decider(Own("pg2"))
    decider.decide(NOW, hanging, view(), commits=False)
    assert isinstance(decider.decide(NOW + 60, hanging, view(), commits=False), Wait)


def test_missing_data_folder_is_said() -> None:
    assert "pg_basebackup" in str(decide(ServerLook(ServerState.MISSING), view()))


@pytest.mark.parametrize("look", [PRIMARY, STANDBY, STOPPED_PRIMARY, STOPPED_STANDBY])
def test_paused_agent_changes_nothing(look: ServerLook) -> None:
    seen = view(silent_s=60.0, floor=1, settings=AgentSettings(is_paused=True))
    assert decide(look, seen) == Wait("paused")


def test_a_cancelled_failover_is_not_begun_again_before_a_primary_leads_or_an_operator_orders_it() -> None:
    cancelled = ordered("cancel")
    for others in ((report("pg2"),), (report("pg2"), RESIGNED)):
        step = decide(STANDBY, view(*others, silent_s=60.0, settings=cancelled))
        assert isinstance(step, Wait) and "the failover was cancelled" in step.reason
    assert decide(STANDBY, view(report("pg2"), silent_s=60.0, settings=ordered("failover", "pg2"))) == FailOver(
        Order("1", "failover", "pg2")
    )
    # The old primary starts, and its agent takes the order back once commits succeed.
    assert decide(STOPPED_PRIMARY, view(report("pg2"), silent_s=60.0, settings=cancelled)) == StartPrimary()
    assert cancelled.order is not None
    assert decide(PRIMARY, view(LEADER, settings=cancelled), name="pg1", commits=True) == Refuse(cancelled.order, "")
    assert decide(PRIMARY, view(LEADER, settings=cancelled), name="pg1") == Wait("waiting for the quorum")


def test_a_pause_does_not_keep_a_primary_read_only_that_its_agent_made_read_only() -> None:
    decider = watching(Own("pg1"))
    decider.ended_writes = True
    for seen, commits, step in (
        (view(LEADER), True, AllowWrites()),
        (view(LEADER), False, Wait("paused")),
        (view(LEADER, floor=1), True, Wait("paused")),
        (view(LEADER, has_quorum=False), True, Wait("paused")),
    ):
        paused = replace(seen, settings=AgentSettings(is_paused=True))
        assert decider.decide(NOW, PRIMARY, paused, commits=commits) == step


def test_leader_steps_down_for_the_named_standby_or_the_first_one() -> None:
    others = (LEADER, report("pg2"), report("pg3", priority=200))
    for agent, to in (("pg2", "pg2"), ("", "pg3")):
        settings = ordered("switchover", agent)
        step = decide(PRIMARY, view(*others, settings=settings), name="pg1", commits=True)
        assert settings.order is not None and step == StepDown(settings.order, to)


@pytest.mark.parametrize(
    "kind, agent, others, reason",
    [
        ("switchover", "pg1", (), ""),
        ("switchover", "pg9", (), "no agent pg9"),
        ("switchover", "", (), "no standby can be promoted"),
        ("switchover", "pg2", (report("pg2", may_lead=False),), "no_failover"),
        ("switchover", "pg2", (report("pg2", received_lsn=0),), "bytes short"),
        ("failover", "pg2", (report("pg2"),), "use switchover"),
        ("reinit", "pg1", (), "switch over first"),
    ],
)
def test_leader_refuses_an_order(kind: str, agent: str, others: tuple[AgentReport, ...], reason: str) -> None:
    look = replace(PRIMARY, written_lsn=LAG_BYTES_MAX + 1000)
    seen = view(LEADER, *others, settings=ordered(kind, agent))
    step = decide(look, seen, name="pg1", commits=True)
    assert isinstance(step, Refuse) and reason in step.reason


def test_ordered_standby_waits_until_the_leader_has_resigned() -> None:
    settings = ordered("switchover", "pg2")
    order = settings.order
    assert decide(STANDBY, view(LEADER, report("pg2"), settings=settings)) == Wait()
    assert decide(STANDBY, view(RESIGNED, report("pg2"), report("pg3", priority=300), settings=settings)) == FailOver(
        order
    )


def test_others_leave_the_resigned_leader_to_the_ordered_standby() -> None:
    settings = ordered("switchover", "pg2")
    seen = view(RESIGNED, report("pg2"), report("pg3", priority=300), settings=settings)
    assert isinstance(decide(STANDBY, seen, name="pg3"), Wait)


def test_order_to_fail_over_needs_a_second_of_silence_only() -> None:
    settings = ordered("failover", "pg2")
    assert decide(STANDBY, view(report("pg2"), silent_s=1.0, settings=settings)) == FailOver(settings.order)
    assert decide(STANDBY, view(report("pg2"), silent_s=0.5, settings=settings)) == Wait()
    refused = decide(STANDBY, view(LEADER, report("pg2"), silent_s=1.0, settings=settings))
    assert isinstance(refused, Refuse) and "pg1 leads" in refused.reason


def test_ordered_attempt_that_has_failed_is_not_repeated_at_once() -> None:
    """Its fence_command would run several times a second."""
    for settings, others in ((ordered("failover", "pg2"), ()), (ordered("switchover", "pg2"), (RESIGNED,))):
        decider = watching(Own("pg2"))
        seen = view(report("pg2"), *others, silent_s=60.0, settings=settings)
        assert decider.decide(NOW, STANDBY, seen, commits=False) == FailOver(settings.order)
        decider.failed(NOW)
        assert isinstance(decider.decide(NOW + 1.0, STANDBY, seen, commits=False), Wait)
        later = replace(seen, sent_at=NOW + RETRY_S_MIN)
        assert decider.decide(NOW + RETRY_S_MIN, STANDBY, later, commits=False) == FailOver(settings.order)


def test_order_to_rebuild() -> None:
    settings = ordered("reinit", "pg2")
    assert settings.order is not None
    assert decide(STANDBY, view(LEADER, settings=settings)) == Rebuild(LEADER, settings.order)
    assert isinstance(decide(STANDBY, view(settings=settings)), Refuse)
    assert decide(STANDBY, view(LEADER, settings=settings), name="pg3") == Wait()
    for broken in (STOPPED_STANDBY, STOPPED_PRIMARY, replace(STOPPED_PRIMARY, rejoin_begun=True)):
        assert decide(broken, view(LEADER, settings=settings)) == Rebuild(LEADER, settings.order)


def test_order_is_executed_once() -> None:
    settings = ordered("switchover", "pg2")
    decider = Decider(Own("pg1"))
    seen = view(LEADER, report("pg2"), settings=settings)
    decider.saw(seen)
    assert isinstance(decider.decide(NOW, PRIMARY, seen, commits=True), StepDown)
    decider.orders_done.add("1")
    assert decider.decide(NOW, PRIMARY, seen, commits=True) == Wait()


def test_settings_without_the_order_that_is_done() -> None:
    settings = ordered("switchover", "pg2")
    assert settings.without(settings.order).order is None
    assert settings.without(Order("2", "switchover")) is settings
    assert settings.without(None) is settings
