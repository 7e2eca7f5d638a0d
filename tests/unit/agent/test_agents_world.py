"""Three agents' decisions in a small model of servers, safekeepers, networks and clocks, with faults at random.

The decisions are the product's; what the steps do is modelled. After every step of time:

- no two servers accept writes while the agents of both run, and at most one server's commits reach the quorum;
- a timeline number is written by one server only.

Once the faults end, commits resume within bounded time, also if no guard of a promotion ever succeeds again. Consensus
itself is not modelled here but in tests/simulation: a seal, and a term, are one atomic act on a quorum.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec
import pytest

from walproxy.agent import decision
from walproxy.agent.control_data import ControlData
from walproxy.agent.decision import (
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
)
from walproxy.agent.report import AgentReport, AgentSettings, Order
from walproxy.agent.server_look import ServerLook, ServerState
from walproxy.agent.sight import SeenReport
from walproxy.agent.state import ClusterView, LogPositions

STEP_S = 0.05
FAULTS_END_S = 60.0
RESUMES_WITHIN_S = 60.0
# An agent that comes back ends writes within this time.
COMES_BACK_S = 3.0
SAFEKEEPERS = (1, 2, 3)
PRIMARY, STANDBY, STOPPED, HANGS = (
    ServerState.PRIMARY,
    ServerState.STANDBY,
    ServerState.STOPPED,
    ServerState.HANGS,
)


@dataclass
class Safekeeper:
    received_at: float = 0.0
    reports: dict[str, tuple[AgentReport, float]] = field(default_factory=dict)
    settings: tuple[int, AgentSettings] = (0, AgentSettings())


@dataclass
class Node:
    name: str
    decider: Decider
    drift: float  # Seconds of its clock for a second.
    state: ServerState
    is_primary_folder: bool  # What the data folder is when the server is stopped.
    tli: int = 1
    parent_tli: int = 1  # That of the log from which it was promoted.
    is_read_only: bool = False
    is_paused: bool = False  # SIGSTOP of agent, proxy and server.
    agent_runs: bool = True
    hangs: bool = False
    proxy_at: float | None = None
    look: ServerLook = field(default_factory=lambda: ServerLook(STOPPED))
    exempt_until: float = 0.0
    commits: bool = False
    view: ClusterView | None = None
    report: AgentReport | None = None
    next_exchange_at: float = 0.0
    next_look_at: float = 0.0
    step_ends_at: float = 0.0
    step: Step | None = None
    has_sealed: bool = False
    steps: list[tuple[float, str]] = field(default_factory=list)

    @property
    def runs(self) -> bool:
        return not self.is_paused and self.agent_runs

    @property
    def accepts_writes(self) -> bool:
        return self.state is PRIMARY and not self.is_read_only and not self.is_paused and not self.hangs


class World:
    def __init__(self, seed: int, dead_after_s: float) -> None:
        self.random = random.Random(seed)
        self.now = 100.0
        self.dead_after_s = dead_after_s
        self.safekeepers = {i: Safekeeper(received_at=self.now) for i in SAFEKEEPERS}
        self.cut: set[tuple[str, int]] = set()
        self.log_tli, self.floor, self.given = 1, 0, 1
        self.sealer = ""
        self.guards_fail = False
        self.taken_back = self.let_in = 0
        self.writers: dict[int, str] = {1: "pg1"}
        self.nodes = [
            Node(
                name,
                Decider(Own(name, dead_after_s=dead_after_s)),
                drift=1 + self.random.uniform(-0.01, 0.01),
                state=PRIMARY if name == "pg1" else STANDBY,
                is_primary_folder=name == "pg1",
            )
            for name in ("pg1", "pg2", "pg3")
        ]
        self.nodes[0].proxy_at = self.now
        self.changes = 0
        self.last_commit_at = self.now

    def clock(self, node: Node) -> float:
        return self.now * node.drift

    def reached(self, node: Node) -> list[Safekeeper]:
        return [each for i, each in self.safekeepers.items() if (node.name, i) not in self.cut]

    def leads(self, node: Node) -> bool:
        """Whether the node's proxy is, or is elected, the leader now."""
        if node.is_paused or node.hangs or node.state is not PRIMARY or len(self.reached(node)) < 2:
            return False
        if node.proxy_at is None or self.now < node.proxy_at:
            return False
        is_continued = node.tli == self.log_tli or node.tli > self.log_tli == node.parent_tli
        return node.tli > self.floor and is_continued

    def acknowledge(self) -> None:
        leaders = [node for node in self.nodes if self.leads(node)]
        assert len({node.tli for node in leaders}) == len(leaders), f"two servers acknowledge: {leaders}"
        # Of two that were promoted from one log the first one is elected, and the log goes on without the other.
        for node in sorted(leaders, key=lambda node: node.proxy_at or 0.0)[:1]:
            if self.log_tli != node.tli:
                self.log_tli = node.tli
            for safekeeper in self.reached(node):
                safekeeper.received_at = self.now
            if node.accepts_writes:
                self.last_commit_at = self.now

    def check(self) -> None:
        accepting = [
            node for node in self.nodes if node.accepts_writes and node.agent_runs and self.now > node.exempt_until
        ]
        assert len(accepting) <= 1, (
            f"{self.now - 100:.2f}: two servers accept writes: "
            f"{[(node.name, node.tli, node.steps[-4:]) for node in accepting]}, floor {self.floor}, log {self.log_tli}"
        )

    def run_agent(self, node: Node) -> None:
        clock = self.clock(node)
        if self.now >= node.next_look_at:
            node.look, node.commits = self.look(node), self.leads(node)
            node.next_look_at = self.now + (self.random.uniform(0.5, 0.7) if self.random.random() < 0.9 else 1.5)
        if self.now >= node.next_exchange_at:
            self.exchange(node)
            node.next_exchange_at = self.now + (self.random.uniform(0.25, 0.4) if self.random.random() < 0.9 else 1.0)
        if node.step is not None:
            if self.now >= node.step_ends_at:
                self.finish(node, node.step)
                node.next_look_at = self.now
            return
        if node.view is None or self.now == node.next_look_at:
            return
        step = node.decider.decide(clock, node.look, node.view, commits=node.commits)
        node.proxy_at = self.proxy(node)
        if not isinstance(step, Wait):
            node.step = step
            node.steps.append((round(self.now - 100, 2), type(step).__name__))
            node.step_ends_at = self.now + self.duration(step)
            if isinstance(step, EndWrites) and not node.hangs:
                node.step_ends_at = self.now + self.random.uniform(0.05, 0.25)

    def proxy(self, node: Node) -> float | None:
        if node.look.state is PRIMARY and not (node.view and node.view.is_sealed_off(node.look.tli)):
            return node.proxy_at if node.proxy_at is not None else self.now + self.random.uniform(0.3, 0.6)
        return None if node.look.state is STANDBY else node.proxy_at

    def duration(self, step: Step) -> float:
        if isinstance(step, FailOver):
            return self.random.uniform(0.1, 0.5)
        if isinstance(step, StartPrimary | StartStandby | Rejoin | Rebuild):
            return self.random.uniform(0.3, 4.0)
        return self.random.uniform(0.05, 0.4)

    def look(self, node: Node) -> ServerLook:
        if node.hangs:
            state = "in production" if node.is_primary_folder else "in archive recovery"
            return ServerLook(HANGS, pid=1, tli=node.tli, control=control(state), problem="no reply")
        if node.state is STOPPED:
            state = "in production" if node.is_primary_folder else "shut down in recovery"
            return ServerLook(STOPPED, tli=node.tli, control=control(state))
        return ServerLook(node.state, pid=1, tli=node.tli, is_read_only=node.is_read_only, received_lsn=1000)

    def exchange(self, node: Node) -> None:
        clock, reached = self.clock(node), self.reached(node)
        view = node.view
        leads = node.commits and not node.decider.ended_writes and view is not None and view.has_quorum
        report = AgentReport(
            node.name,
            state=node.look.state.value,
            tli=node.look.tli,
            received_lsn=1000,
            is_leader=bool(leads and node.look.state is PRIMARY and not view.is_sealed_off(node.look.tli)),  # type: ignore[union-attr]
            has_resigned=node.decider.has_resigned,
            dead_after_s=self.dead_after_s,
            is_failing_over=isinstance(node.step, FailOver),
            has_sealed=node.has_sealed,
        )
        reports: dict[str, tuple[AgentReport, float]] = {}
        for safekeeper in reached:
            safekeeper.reports[node.name] = report, self.now
            for name, (each, at) in safekeeper.reports.items():
                if name not in reports or self.now - at < reports[name][1]:
                    reports[name] = each, self.now - at
        ages = sorted((self.now - each.received_at for each in reached), reverse=True)
        has_quorum = len(reached) >= 2
        node.view = ClusterView(
            sent_at=clock - self.random.uniform(0.0, 0.2),
            has_quorum=has_quorum,
            leader_silent_s=ages[1] if has_quorum else None,
            log=LogPositions(tli=self.log_tli, floor=self.floor),
            agents=tuple(SeenReport(*reports[name]) for name in sorted(reports)),
            settings=max((each.settings for each in reached), key=lambda each: each[0], default=(0, AgentSettings()))[
                1
            ],
        )
        node.decider.saw(node.view)

    def change_settings(self, node: Node, order: Order) -> None:
        self.changes += 1
        for safekeeper in self.reached(node):
            safekeeper.settings = self.changes, safekeeper.settings[1].without(order)

    def finish(self, node: Node, step: Step) -> None:
        decider, node.step = node.decider, None
        if isinstance(step, FailOver):
            self.fail_over(node, step)
        elif node.hangs and not isinstance(step, Kill):
            if isinstance(step, EndWrites | Stop):
                node.hangs, node.state = False, STOPPED  # By SIGKILL, in the end.
            else:
                decider.failed(self.clock(node))
        elif isinstance(step, StartPrimary):
            if node.state is STOPPED:
                node.state, node.is_read_only, decider.ended_writes = PRIMARY, True, True
        elif isinstance(step, StartStandby):
            if node.state is STOPPED:
                node.state, node.is_read_only, decider.ended_writes = STANDBY, False, False
        elif isinstance(step, EndWrites):
            node.is_read_only, decider.ended_writes = True, True
        elif isinstance(step, AllowWrites):
            node.is_read_only, decider.ended_writes = False, False
        elif isinstance(step, Stop):
            node.state, node.proxy_at = STOPPED, None
        elif isinstance(step, Kill):
            decider.resigned(self.clock(node))
            node.state, node.hangs, node.proxy_at = STOPPED, False, None
        elif isinstance(step, Rejoin):
            node.is_primary_folder, node.tli = False, self.log_tli
            decider.rejoined()
        elif isinstance(step, LetIn):
            reached = self.reached(node)
            is_led = sum(self.now - each.received_at < 1.0 for each in reached) > len(reached) - 2
            if len(reached) < 2 or is_led or any(each.has_sealed and each.runs for each in self.nodes):
                decider.failed(self.clock(node))
                return
            self.floor, self.let_in = min(self.floor, step.tli - 1), self.let_in + 1
        elif isinstance(step, StepDown):
            if step.order is not None:
                decider.orders_done.add(step.order.id)
            decider.resigned(self.clock(node))
            node.state, node.proxy_at = STOPPED, None
        elif isinstance(step, Resign):
            decider.resigned(self.clock(node))
        elif isinstance(step, Refuse):
            decider.orders_done.add(step.order.id)
            self.change_settings(node, step.order)

    def fail_over(self, node: Node, step: FailOver) -> None:
        decider = node.decider
        reached = self.reached(node)
        if not node.has_sealed:
            is_led = sum(self.now - each.received_at < 1.0 for each in reached) > len(reached) - 2
            if self.guards_fail or len(reached) < 2 or is_led or node.state is not STANDBY:
                decider.failed(self.clock(node))
                return
            self.floor, self.sealer, node.has_sealed = max(self.log_tli, self.floor), node.name, True
            node.step, node.step_ends_at = step, self.now + self.random.uniform(0.2, 2.0)
            return
        node.has_sealed = False
        is_able = node.state is STANDBY and not node.hangs and len(reached) >= 2
        if self.sealer != node.name or self.log_tli > self.floor or not is_able:
            decider.failed(self.clock(node))  # Another one goes on; or the seal stays.
            return
        if self.guards_fail or self.random.random() < 0.1:
            self.floor, self.taken_back = self.log_tli - 1, self.taken_back + 1
            decider.failed(self.clock(node))
            return
        self.given += 1
        tli = node.tli = self.given
        node.parent_tli = self.log_tli
        assert self.writers.setdefault(tli, node.name) == node.name, f"timeline {tli} is taken twice"
        if self.random.random() < 0.1:
            node.state = STOPPED  # It crashes before it is a primary: a standby on its new timeline.
            decider.failed(self.clock(node))
            return
        node.state, node.is_primary_folder = PRIMARY, True
        node.is_read_only, decider.ended_writes = True, True
        node.proxy_at = self.now + self.random.uniform(0.3, 0.6)
        if step.order is not None:
            decider.orders_done.add(step.order.id)
            self.change_settings(node, step.order)

    def fault(self) -> None:
        node = self.random.choice(self.nodes)
        kind = self.random.randrange(10)
        if kind == 0:
            self.cut |= {(node.name, i) for i in SAFEKEEPERS}
        elif kind == 1:
            self.cut.add((node.name, self.random.choice(SAFEKEEPERS)))
        elif kind == 2:
            self.cut = {pair for pair in self.cut if self.random.random() < 0.5}
        elif kind == 3 and not node.hangs and node.state is not STOPPED:  # kill -9 of the server
            node.state = STOPPED
        elif kind == 4:
            node.is_paused = True
        elif kind == 5:
            for each in self.nodes:
                self.resume(each)
        elif kind == 6 and node.state in (PRIMARY, STANDBY):
            node.hangs = True
        elif kind == 7 and node.agent_runs:  # kill -9 of the agent, and with it of the proxy
            node.agent_runs, node.proxy_at, node.step, node.has_sealed = False, None, None, False
        elif kind == 8:
            order = Order(str(self.random.random()), self.random.choice(["switchover", "failover"]), node.name)
            self.changes += 1
            for safekeeper in self.safekeepers.values():
                shared = safekeeper.settings[1]
                safekeeper.settings = self.changes, msgspec.structs.replace(shared, order=order)
        elif kind == 9:
            self.guards_fail = not self.guards_fail

    def resume(self, node: Node) -> None:
        """Let a host or an agent go on. Nothing but a watchdog protects reads before the agent's first step."""
        if node.is_paused or not node.agent_runs:
            node.exempt_until = self.now + COMES_BACK_S
        node.is_paused = False
        if not node.agent_runs:
            node.agent_runs = True
            node.decider = Decider(node.decider.own, ended_writes=node.is_read_only)
            node.view, node.look, node.next_look_at, node.next_exchange_at = None, ServerLook(STOPPED), 0.0, 0.0

    def end_faults(self) -> None:
        self.cut = set()
        for node in self.nodes:
            self.resume(node)
            if node.hangs:
                node.hangs, node.exempt_until = False, self.now + COMES_BACK_S

    def run(self) -> None:
        end_s = 100.0 + FAULTS_END_S
        next_fault_at = self.now + self.random.uniform(1, 8)
        while True:
            self.now = round(self.now + STEP_S, 6)
            if self.now >= next_fault_at and self.now < end_s:
                self.fault()
                next_fault_at = self.now + self.random.uniform(0.2, 8)
            if end_s <= self.now < end_s + STEP_S:
                self.end_faults()
            self.acknowledge()
            for node in self.nodes:
                if node.runs:
                    self.run_agent(node)
            self.check()
            resumed = self.now > end_s + 1 and self.last_commit_at > end_s + 1
            if resumed and all(node.state in (PRIMARY, STANDBY) for node in self.nodes):
                return
            assert self.now < end_s + RESUMES_WITHIN_S, [
                (node.name, node.state, node.tli, node.is_read_only, node.steps[-5:]) for node in self.nodes
            ]


def control(state: str) -> ControlData:
    return ControlData(0, state, 0, 1, 0, 0, 16 << 20, can_be_rewound=True)


def run(seed: int) -> World:
    world = World(seed, dead_after_s=1.0 if seed % 4 == 0 else 5.0)
    world.run()
    return world


def test_no_two_servers_accept_writes_and_commits_resume() -> None:
    worlds = [run(seed) for seed in range(80)]
    assert sum(world.log_tli > 1 for world in worlds) >= 40
    assert sum(world.taken_back for world in worlds) >= 5 and sum(world.let_in for world in worlds) >= 3


def test_quiet_world_changes_nothing() -> None:
    world = World(1, 5.0)
    world.fault = lambda: None  # type: ignore[method-assign]
    world.run()
    assert (world.log_tli, world.floor) == (1, 0)
    assert all(not node.steps for node in world.nodes)
    assert replace(world.nodes[0].look, pid=None).state is PRIMARY


def late_end_of_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision, "demote_after_s", lambda dead_after_s: 1.5 * dead_after_s)


def seal_that_is_not_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClusterView, "is_sealed_off", lambda self, tli: False)


def never_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Decider, "_let_in", lambda *_: None)


def writes_before_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = Decider.decide

    def weaker(self: Decider, now: float, look: ServerLook, view: ClusterView, *, commits: bool) -> Step:
        step = decide(self, now, look, view, commits=commits)
        return AllowWrites() if isinstance(step, Wait) and look.state is PRIMARY and self.ended_writes else step

    monkeypatch.setattr(Decider, "decide", weaker)


TWO = "two servers"
STUCK = "ServerState"  # The servers, none of which commits.


@pytest.mark.parametrize(
    "plant, seed, found",
    [
        (late_end_of_writes, 159, TWO),
        (writes_before_commits, 109, TWO),
        (seal_that_is_not_noticed, 97, STUCK),
        (never_let_in, 97, STUCK),
    ],
)
def test_weaker_decision_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], seed: int, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(seed)
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=found):
        run(seed)
