"""Agents in the simulator: they fail over by themselves, and a seed decides what they do."""

from tests.simulation.seeds.runner import Task as Run
from tests.simulation.seeds.runner import build, run_phases, run_world
from tests.simulation.seeds.schedule import Fault
from tests.simulation.world.faults import Faults


def test_a_seed_with_agents_decides_everything() -> None:
    first, again = (build(Run(109, "agents")) for _ in range(2))
    assert run_world(first) == run_world(again)
    assert first.trace() == again.trace()
    assert first.counts["promotions of one that had crashed in one"] > 0


def test_a_standby_is_promoted_when_the_primary_is_lost_and_that_one_rejoins() -> None:
    world = build(Run(4, "agents"))
    lost = Fault(3.0, "lose_machine", ("0.1", "M1", "7.0", "0.9"))
    run_phases(world, Faults(world, [lost]), 9.0, heals=False)
    assert world.servers.completed == 1 and world.counts["timelines sealed"] == 1
    assert world.agents is not None
    writing = [name for name, machine in world.agents.machines.items() if machine.accepts_writes]
    assert len(writing) == 1 and writing != ["M1"]
