"""The nemesis does what the plan says, writes it down, and sees what must not be: a cluster here only takes notes."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import format_lsn
from walproxy.lab.testing.hindrances import GATE_REMOVED, HINDRANCES, HOSTILE_HTTP, LOGINS_BLOCKED, REPLAY_PAUSED
from walproxy.lab.torture.nemesis import PROGRESS_WITHIN_S, Nemesis
from walproxy.lab.torture.plan import (
    CUT_OFF,
    DEAF,
    FLOOD,
    FULL_DISK,
    KILL,
    MUTE,
    NO_DESCRIPTORS,
    OUTSIDERS,
    PAUSE,
    POWER_CUT,
    SILENCING,
    SLOW_DISK,
    STOP,
    Bout,
    PlannedFault,
    Targets,
    plan_bout,
    plan_power_cut,
)
from walproxy.lab.torture.quorum_check import times_without_quorum
from walproxy.lab.torture.record import Fault, Violation

SAFEKEEPERS = ("safekeeper1", "safekeeper2", "safekeeper3")
TARGETS = Targets(SAFEKEEPERS, ("walproxy", "walproxy2"), ("standby1",))


class NotedCluster:
    """A cluster of names that notes what is done to it; time passes only when the nemesis waits."""

    members = ("postgres", *SAFEKEEPERS, "walproxy", "walproxy2", "standby1")

    def __init__(self) -> None:
        self.now_s = 0.0
        self.notes: list[tuple[float, str]] = []
        self.living = set(self.members)
        self.disks = dict.fromkeys(SAFEKEEPERS, 1000)
        self.refuses_to_stop = False
        self.leader = "walproxy"
        self.gate = "gated"
        # As its own client.
        self.acknowledged_lsn = 0
        self.problem = "nobody listens"
        self.commits = True

    @property
    def last_ok_begun_s(self) -> float:
        return self.now_s if self.commits else -1.0

    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return any other method: it notes its name and its arguments."""
        return lambda *arguments: self._note(" ".join([name.replace("_", " "), *map(str, arguments)]))

    def kill(self, who: str) -> None:
        self._note(f"kill {who}")
        self.living.discard(who)

    def stop(self, who: str) -> None:
        if self.refuses_to_stop:
            raise WalproxyError("it still runs after 30 s")
        self._note(f"stop {who}")
        self.living.discard(who)

    def start(self, who: str) -> None:
        self._note(f"start {who}")
        self.living.add(who)

    def heal(self, who: str | None = None) -> None:
        self._note(f"heal {who or 'all'}")
        if who is None:
            self.living = set(self.members)

    def status_of(self, who: str) -> dict[str, Any] | None:
        if who not in self.living:
            return None
        if who in TARGETS.proxies:
            state = "streaming" if who == self.leader else "waiting"
            return {"state": state, "term": 3, "gate": {"state": self.gate}}
        return {"flush_lsn": format_lsn(self.disks[who])}

    def process_ids(self) -> dict[str, int]:
        return {name: 1 + number for number, name in enumerate(self.members) if name in self.living}

    def logs(self, who: str, lines: int = 20) -> str:
        return f"{who} said this"

    def _note(self, what: str) -> None:
        self.notes.append((round(self.now_s, 3), what))


@pytest.fixture
def cluster() -> NotedCluster:
    return NotedCluster()


def nemesis_of(cluster: NotedCluster) -> Nemesis:
    both: Any = cluster
    return Nemesis(both, both, TARGETS, lambda: cluster.now_s, cluster.wait)


def mixed(*faults: PlannedFault) -> Bout:
    return Bout("mixed", faults)


# The plan.


def bouts(seed: int, count: int = 300) -> list[Bout]:
    chance = Random(seed)
    return [plan_bout(chance, TARGETS) for _ in range(count)]


def test_a_seed_means_the_same_plan() -> None:
    assert bouts(7) == bouts(7)
    assert bouts(7) != bouts(8)


def test_every_kind_of_fault_and_of_bout_is_planned() -> None:
    planned = bouts(7)
    kinds = {fault.kind for bout in planned for fault in bout.faults}
    assert kinds == {*SILENCING, SLOW_DISK, FULL_DISK, FLOOD, NO_DESCRIPTORS, POWER_CUT, *HINDRANCES}
    assert {bout.kind for bout in planned} == {"mixed", OUTSIDERS, "no quorum", "crash", "fast stop", "power cut"}
    assert {fault.target for bout in planned for fault in bout.faults} == {
        *("postgres", "standby1"),
        *SAFEKEEPERS,
        *TARGETS.proxies,
    }


def test_commits_are_let_through_without_a_quorum_only_while_nothing_but_outsiders_is_at_work() -> None:
    for bout in bouts(7):
        kinds = {fault.kind for fault in bout.faults}
        if bout.kind == OUTSIDERS:
            assert kinds and kinds <= set(HINDRANCES)
            assert not {LOGINS_BLOCKED, REPLAY_PAUSED} <= kinds, "a standby replays the lock"
        else:
            assert GATE_REMOVED not in kinds


def test_no_target_of_a_bout_has_two_faults() -> None:
    assert all(len({fault.target for fault in bout.faults}) == len(bout.faults) for bout in bouts(7))


def test_ten_minutes_of_bouts_have_more_than_a_hundred_faults() -> None:
    planned = bouts(7, 60)
    assert sum(len(bout.faults) for bout in planned) > 100


def test_bouts_without_a_quorum_lack_it_for_two_seconds() -> None:
    for bout in bouts(7):
        if bout.kind == "no quorum":
            faults = [Fault(f.kind, f.target, f.after_s, f.after_s + f.lasts_s) for f in bout.faults]
            [(begin, end)] = times_without_quorum(faults, SAFEKEEPERS)
            assert end - begin > 2.0


def test_postgres_is_stopped_only_while_a_quorum_and_the_proxies_are_left_alone() -> None:
    for bout in bouts(7):
        if any(fault.kind == STOP and fault.target == "postgres" for fault in bout.faults):
            others = [fault.target for fault in bout.faults if fault.target != "postgres"]
            assert len(others) <= 1
            assert set(others) <= set(SAFEKEEPERS)


# What is done.


def test_faults_begin_and_end_when_they_are_due(cluster: NotedCluster) -> None:
    nemesis = nemesis_of(cluster)
    assert nemesis.carry_out(
        mixed(
            PlannedFault(KILL, "safekeeper1", 1.0, 3.0),
            PlannedFault(PAUSE, "walproxy", 2.0, 1.0),
            PlannedFault(SLOW_DISK, "safekeeper2", 2.5, 2.0, 20),
        )
    )
    assert cluster.notes == [
        (1.0, "kill safekeeper1"),
        (2.0, "pause walproxy"),
        (2.5, "slow safekeeper2 20"),
        (3.0, "heal walproxy"),
        (4.0, "start safekeeper1"),
        (4.5, "heal safekeeper2"),
        (4.5, "heal all"),
    ]
    assert nemesis.faults == [
        Fault(PAUSE, "walproxy", 2.0, 3.0),
        Fault(KILL, "safekeeper1", 1.0, 4.0),
        Fault(SLOW_DISK, "safekeeper2", 2.5, 4.5),
    ]
    assert nemesis.violations == []


@pytest.mark.parametrize(("kind", "expected"), [(FULL_DISK, "fill"), (NO_DESCRIPTORS, "take descriptors")])
def test_a_safekeeper_that_starts_still_is_left_room_to_start_in(
    cluster: NotedCluster, kind: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = cluster.status_of
    monkeypatch.setattr(cluster, "status_of", lambda who: answers(who) if cluster.now_s >= 2.0 else None)
    nemesis_of(cluster).carry_out(mixed(PlannedFault(kind, "safekeeper1", 0.0, 1.0)))
    begun_s, what = cluster.notes[0]
    assert what == f"{expected} safekeeper1" and begun_s >= 2.0


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (CUT_OFF, "partition safekeeper1 both"),
        (DEAF, "partition safekeeper1 to"),
        (MUTE, "partition safekeeper1 from"),
        (FULL_DISK, "fill safekeeper1"),
        (FLOOD, "flood safekeeper1"),
        (NO_DESCRIPTORS, "take descriptors safekeeper1"),
        (STOP, "stop safekeeper1"),
    ],
)
def test_each_kind_of_fault_is_brought_about(cluster: NotedCluster, kind: str, expected: str) -> None:
    nemesis_of(cluster).carry_out(mixed(PlannedFault(kind, "safekeeper1", 0.0, 1.0)))
    undone = "start safekeeper1" if kind == STOP else "heal safekeeper1"
    assert cluster.notes == [(0.0, expected), (1.0, undone), (1.0, "heal all")]


# What is seen.


def outsiders(kind: str, target: str) -> Bout:
    return Bout(OUTSIDERS, (PlannedFault(kind, target, 0.0, 6.0),))


def test_a_leader_that_changes_under_a_hostile_client_is_a_violation(
    cluster: NotedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    nemesis = nemesis_of(cluster)
    assert nemesis.carry_out(outsiders(HOSTILE_HTTP, "safekeeper1"))
    assert cluster.notes == [(0.0, "hinder safekeeper1 hostile HTTP"), (6.0, "heal safekeeper1"), (6.0, "heal all")]
    assert nemesis.violations == []

    def deposes(who: str, kind: str) -> None:
        cluster.leader = "walproxy2"

    monkeypatch.setattr(cluster, "hinder", deposes, raising=False)
    assert nemesis.carry_out(outsiders(HOSTILE_HTTP, "walproxy"))
    [violation] = nemesis.violations
    assert violation.rule == "Deposed"
    assert violation.message.startswith("('walproxy', 3) led before, and ('walproxy2', 3) leads after: hostile HTTP")


def test_a_commit_that_waits_as_long_as_logins_are_blocked_is_a_violation(cluster: NotedCluster) -> None:
    nemesis = nemesis_of(cluster)
    cluster.commits = False
    assert not nemesis.carry_out(outsiders(LOGINS_BLOCKED, "postgres"))
    assert [each.rule for each in nemesis.violations] == ["NoProgress", "NoProgress"]
    assert nemesis.violations[0].message == "no commit under: logins blocked postgres for 6.0 s"


@pytest.mark.parametrize(("gate", "rules"), [("gated", ["Unnoticed"]), ("not gated", [])])
def test_a_removed_gate_that_no_proxy_reports_is_a_violation(
    cluster: NotedCluster, gate: str, rules: list[str]
) -> None:
    nemesis = nemesis_of(cluster)
    cluster.gate = gate
    assert nemesis.carry_out(outsiders(GATE_REMOVED, "postgres"))
    assert [each.rule for each in nemesis.violations] == rules


def test_no_commit_behind_a_bout_is_a_violation(cluster: NotedCluster) -> None:
    cluster.commits = False
    nemesis = nemesis_of(cluster)
    assert not nemesis.carry_out(mixed(PlannedFault(KILL, "safekeeper1", 0.0, 1.0)))
    [violation] = nemesis.violations
    assert violation.rule == "NoProgress"
    assert "nobody listens; the log of walproxy ends with: walproxy said this" in violation.message
    assert cluster.now_s > PROGRESS_WITHIN_S


def test_whoever_ends_by_itself_is_a_violation_but_not_a_proxy(cluster: NotedCluster) -> None:
    cluster.living -= {"safekeeper3", "walproxy2"}
    nemesis = nemesis_of(cluster)
    assert nemesis.carry_out(mixed(PlannedFault(MUTE, "safekeeper1", 0.0, 1.0)))
    assert nemesis.violations == [
        Violation(
            "Died",
            "safekeeper3 has ended without having been killed: the log of safekeeper3 ends with: safekeeper3 said this",
        )
    ]


def test_a_postgres_that_does_not_stop_is_a_violation_and_is_killed(cluster: NotedCluster) -> None:
    cluster.refuses_to_stop = True
    nemesis = nemesis_of(cluster)
    assert nemesis.carry_out(Bout("fast stop", (PlannedFault(STOP, "postgres", 0.0, 1.0),)))
    assert nemesis.violations == [Violation("NoProgress", "postgres does not stop: it still runs after 30 s")]
    assert (0.0, "kill postgres") in cluster.notes


def test_a_power_cut_kills_all_and_starts_the_safekeepers_first(cluster: NotedCluster) -> None:
    nemesis = nemesis_of(cluster)
    assert nemesis.carry_out(plan_power_cut(TARGETS, with_postgres=True))
    done = [what for _, what in cluster.notes]
    assert done[:6] == [f"kill {name}" for name in ("postgres", *SAFEKEEPERS, "walproxy", "walproxy2")]
    assert done[6:9] == [f"start {name}" for name in SAFEKEEPERS]
    assert sorted(done[9:12]) == ["start postgres", "start walproxy", "start walproxy2"]
    assert {fault.target for fault in nemesis.faults} == {"postgres", *SAFEKEEPERS, "walproxy", "walproxy2"}
    assert nemesis.violations == []


def test_what_was_acknowledged_and_is_on_the_disks_of_a_minority_after_a_power_cut_is_a_violation(
    cluster: NotedCluster,
) -> None:
    cluster.acknowledged_lsn = 0x900
    cluster.disks = {"safekeeper1": 0x900, "safekeeper2": 0xA00, "safekeeper3": 0x800}
    nemesis = nemesis_of(cluster)
    nemesis.carry_out(plan_power_cut(TARGETS, with_postgres=False))
    [violation] = nemesis.violations
    assert violation.rule == "Durable"
    assert "fewer than 2 safekeepers have the commit after 0/900" in violation.message
    assert "safekeeper1 up to 0/900, safekeeper2 up to 0/A00, safekeeper3 up to 0/800" in violation.message


def test_what_was_acknowledged_and_is_on_the_disks_of_a_quorum_is_fine(cluster: NotedCluster) -> None:
    cluster.acknowledged_lsn = 0x900
    cluster.disks = {"safekeeper1": 0x901, "safekeeper2": 0xA00, "safekeeper3": 0x800}
    nemesis = nemesis_of(cluster)
    nemesis.carry_out(plan_power_cut(TARGETS, with_postgres=False))
    assert nemesis.violations == []
