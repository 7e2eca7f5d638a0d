"""`python -m walproxy.lab.failover`: failovers under load, with faults by a seed.

The exit code is 0 if no promise was broken. The gaps are printed, and with --goals compared with the goals.
"""

import os
import random
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
from rich.console import Console

from safekeeper.base.errors import EXIT_FINE, EXIT_UNEXPECTED, ConfigurationError, WalproxyError
from walproxy.lab.failover import isolation
from walproxy.lab.failover.manager import AGENT, AgentManager, Manager
from walproxy.lab.failover.network import LoopbackNetwork, NamespaceNetwork, Network
from walproxy.lab.failover.patroni import TTL_S, PatroniManager
from walproxy.lab.failover.plan import AGENTS_ONLY, FAULTS, NETWORK, PlannedRound, plan_rounds
from walproxy.lab.failover.results import RunResult, gap_table
from walproxy.lab.failover.rounds import Rounds
from walproxy.lab.failover.site import Site, remove
from walproxy.lab.load.clients import CONNECTION_ERRORS
from walproxy.postgres.binaries import choose_server

_AGENT, _PATRONI, _PATRONI_ALONE = "agent", "patroni", "patroni-alone"
_PLAIN_WIDTH = 180


@click.command()
@click.option("--rounds", "count", default=20, show_default=True, type=click.IntRange(1), help="Faults.")
@click.option("--seed", type=int, help="Seed of the faults; by default a random one, which is printed.")
@click.option("--dead-after", "dead_after_s", default=5.0, show_default=True, help="dead_after of the agents.")
@click.option("--kinds", default="", help="Only these faults, separated by commas.")
@click.option("--switchover-every", default=4, show_default=True, help="Faults between two switchovers; 0: none.")
@click.option("--postgres", "major", type=int, help="Major version; by default the newest installed.")
@click.option("--no-namespaces", is_flag=True, help="Use the loopback interface, without partitions.")
@click.option(
    "--manager",
    "manager_name",
    type=click.Choice([_AGENT, _PATRONI, _PATRONI_ALONE]),
    default=_AGENT,
    help="What manages the servers, to compare the gaps.",
)
@click.option("--agent-program", default="", help="Words in place of -m walproxy agent.")
@click.option("--goals", "has_goals", is_flag=True, help="A median gap above its goal is a failure, too.")
@click.option("--dir", "parent", type=click.Path(path_type=Path, exists=True, file_okay=False), help="For the data.")
@click.option(
    "--safekeeper-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="For the data of the safekeepers; by default --dir.",
)
@click.option("--keep", is_flag=True, help="Keep data and logs also of a run without a violation.")
@click.option("--results", type=click.Path(path_type=Path, dir_okay=False), help="Write the results as JSON.")
def main(
    count: int,
    seed: int | None,
    dead_after_s: float,
    kinds: str,
    switchover_every: int,
    major: int | None,
    no_namespaces: bool,
    manager_name: str,
    agent_program: str,
    has_goals: bool,
    parent: Path | None,
    safekeeper_dir: Path | None,
    keep: bool,
    results: Path | None,
) -> None:
    """Break the primary's host again and again, under load, and check that nothing acknowledged is lost."""
    obstacle = "--no-namespaces" if no_namespaces else ""
    if not isolation.is_isolated() and not obstacle:
        obstacle = isolation.obstacle()
        if not obstacle:
            sys.exit(isolation.run_isolated([sys.executable, "-m", "walproxy.lab.failover", *sys.argv[1:]]))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    wanted = tuple(kind.strip() for kind in kinds.split(",") if kind.strip()) or FAULTS
    unknown = [kind for kind in wanted if kind not in FAULTS]
    if unknown:
        raise click.UsageError(f"unknown: {', '.join(unknown)}; the faults are {', '.join(FAULTS)}")
    network: Network
    if obstacle:
        click.echo(f"no namespaces, and so no partitions: {obstacle}", err=True)
        network, wanted = LoopbackNetwork(), tuple(kind for kind in wanted if kind not in NETWORK)
    else:
        isolation.enter()
        network = NamespaceNetwork()
    seed = random.randrange(1 << 16) if seed is None else seed
    click.echo(f"seed {seed}", err=True)
    manager: Manager
    if manager_name == _AGENT:
        manager = AgentManager(dead_after_s, shlex.split(agent_program) or AGENT)
    else:
        manager, dead_after_s = PatroniManager(with_walproxy=manager_name == _PATRONI), TTL_S
        wanted = tuple(kind for kind in wanted if kind not in AGENTS_ONLY)
    planned = plan_rounds(seed, count, dead_after_s, kinds=wanted, switchover_every=switchover_every)
    folder = Path(tempfile.mkdtemp(prefix="walproxy-failover-", dir=parent))
    folder.chmod(0o755)
    binaries = choose_server(major)
    with Site(folder, binaries, network, manager, safekeeper_folder=safekeeper_dir) as site:
        played, violations = _play(site, planned, dead_after_s, seed)
    result = RunResult(
        manager=manager.name,
        seed=seed,
        dead_after_s=dead_after_s,
        postgres=binaries.version,
        isolation=f"no partitions ({obstacle})" if obstacle else "in network namespaces",
        load_average=round(os.getloadavg()[2], 1),
        cores=os.cpu_count() or 1,
        rounds=played.results,
        acknowledged=len(played.clients.history.acknowledged),
        acknowledged_on_lists=len(played.list_clients.history.acknowledged),
        violations=[*(line for each in played.results for line in each.violations), *violations],
    )
    if has_goals:
        result.violations.extend(result.missed_goals())
    if results is not None:
        results.write_bytes(msgspec.json.encode(result))
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=_PLAIN_WIDTH)
    console.print(gap_table(result))
    for violation in result.violations:
        click.echo(f"VIOLATION {violation}", err=True)
    if result.violations or keep:
        click.echo(f"seed {seed}: data and logs are in {folder}", err=True)
    else:
        remove(folder)
    sys.exit(EXIT_UNEXPECTED if result.violations else EXIT_FINE)


def _play(site: Site, planned: Sequence[PlannedRound], dead_after_s: float, seed: int) -> tuple[Rounds, list[str]]:
    """Play all rounds; return them, with the violations that belong to no round: the last ones if it was cut short."""
    rounds = Rounds(site, lambda line: click.echo(line, err=True), site.folder / "kept", dead_after_s, seed)
    violations: list[str] = []
    try:
        site.start()
        rounds.start()
        for each in planned:
            rounds.play(each)
        violations += rounds.check_all()
        rounds.stop()
        violations += rounds.check_lists()
    except KeyboardInterrupt:
        violations.append("interrupted")
    except (WalproxyError, *CONNECTION_ERRORS) as error:
        violations.append(str(error))
    return rounds, violations


if __name__ == "__main__":
    try:
        main()
    except ConfigurationError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)
