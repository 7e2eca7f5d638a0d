"""The step with agents: three servers, and the machine of the primary dies. The demo does nothing but look."""

import itertools
import time

from walproxy.lab.demo.stage import DemoStage, Step
from walproxy.lab.failover.manager import AgentManager
from walproxy.lab.failover.network import LoopbackNetwork
from walproxy.lab.failover.site import Site
from walproxy.lab.load.clients import Clients
from walproxy.lab.load.transactions import SingleStatement
from walproxy.postgres.patience import slowdown

_CLIENTS = 4
_START_S_MAX = 60.0
_FAILOVER_S_MAX = 60.0


def _primary_dies(stage: DemoStage) -> str:
    directory = stage.cluster.directory / "agents"
    directory.mkdir(mode=0o755)
    binaries = stage.cluster.postgres.binaries
    with Site(directory, binaries, LoopbackNetwork(), AgentManager(), volatile_disks=False) as site:
        old = site.start().leader
        old.execute("CREATE TABLE seen (n int)")
        numbers, hosts = itertools.count(1), itertools.cycle(site.hosts.values())
        clients = Clients(
            lambda: next(hosts).place.local_conninfo,
            _CLIENTS,
            lambda _: SingleStatement("INSERT INTO seen VALUES ($1)", next(numbers)),
        )
        with clients:
            clients.wait_for_commit(time.monotonic(), _FAILOVER_S_MAX * slowdown())
            old.kill()
            clients.wait_for_commit(time.monotonic(), _FAILOVER_S_MAX * slowdown())
            new = site.wait_for_leader(timeout_s=_START_S_MAX)
            old.start()
            site.wait_until_well(_FAILOVER_S_MAX)
            clients.wait_for_commit(time.monotonic(), _FAILOVER_S_MAX * slowdown())
        acknowledged = {each.transaction.arguments[0] for each in clients.history.acknowledged}
        there = {number for (number,) in new.execute("SELECT n FROM seen")}
        lost = len(acknowledged - there)
        stage.require(not lost, f"{lost} acknowledged rows are lost")
        ends = sorted(each.ended_at for each in clients.history.acknowledged)
        gap_s = max(later - earlier for earlier, later in itertools.pairwise(ends))
    return (
        f"{old.name} died with its agent and its proxy; commits resumed on {new.name}, and the longest time without "
        f"one was {gap_s:.1f} s; {old.name} came back as a standby; all {len(acknowledged):,} acknowledged rows are "
        "there"
    )


AGENT_STEPS = (Step("the primary's machine dies, and nothing is done", _primary_dies),)
