"""Safekeepers that do not count, bootstraps that break off, and the way out when most disks are lost."""

import re
import shutil
import subprocess
from pathlib import Path

from safekeeper.base.errors import EXIT_CONFIGURATION, EXIT_UNEXPECTED
from safekeeper.consensus.messages import Bootstrap, VoteRequest
from tests.integration.conftest import NEWEST, NewStand
from tests.integration.refusals.refusal_fixtures import (
    Relay,
    Stand,
    end_of,
    log_of,
    only_line,
    run_walproxy,
    wait_for,
)
from walproxy.lab.cluster.local_cluster import LocalProcess
from walproxy.postgres.local_server import LocalPostgres


def members(stand: Stand, **others: int) -> str:
    """Return the value of --safekeepers with other ports for some, as s3=PORT."""
    parts = stand.safekeepers_option.split(",")
    for name, port in others.items():
        number = int(name.removeprefix("s"))
        parts[number - 1] = f"{number}=127.0.0.1:{port}"
    return ",".join(parts)


def proxy_with(stand: Stand, name: str, safekeepers: str, *options: str) -> LocalProcess:
    """Make and start a proxy with these safekeepers; it is the stand's first one from then on."""
    proxy = stand.make_proxy(name, *options)
    proxy.arguments[proxy.arguments.index("--safekeepers") + 1] = safekeepers
    stand.proxies.insert(0, proxy)
    return stand.start_proxy(proxy)


def port_of(stand: Stand, safekeeper_id: int) -> int:
    return stand._listen_ports[safekeeper_id]


def rebootstrap(stand: Stand, *options: str, safekeepers: str = "") -> subprocess.CompletedProcess[str]:
    return run_walproxy(
        "rebootstrap",
        *("--primary", stand.postgres.conninfo()),
        *options,
        environment={"WALPROXY_SAFEKEEPERS": safekeepers or stand.safekeepers_option},
    )


@NEWEST
def test_a_member_that_is_somebody_else_counts_as_missing_with_the_reason(new_stand: NewStand, folder: Path) -> None:
    stand = new_stand().serve()
    stand.commit(1)
    # The address of 1 is given for 2, under another name.
    twice = stand.safekeepers_option.replace(f"2=127.0.0.1:{port_of(stand, 2)}", f"2=localhost:{port_of(stand, 1)}")
    assert stand.proxy.stop() == 0
    proxy = proxy_with(stand, "twice", twice)
    stand.wait_for_state("streaming")
    # The membership has the right address.
    stand.wait_for_member(2, "streaming")
    place = f"connecting to safekeeper 2 at 127.0.0.1:{port_of(stand, 2)}, and --safekeepers"
    assert f"{place} lists it at localhost:{port_of(stand, 1)}: correct --safekeepers" in log_of(proxy)
    stand.safekeepers[2].kill9()
    answers = "safekeeper 1 replied where safekeeper 2 is expected: correct the list of safekeepers"
    wait_for(lambda: answers in (stand.member(2)["problem"] or ""), "the reason is in the status")
    stand.commit(2)
    stand.safekeepers[2].start()
    assert proxy.stop() == 0
    # A list that lacks members is no loss of disks: the membership has them.
    short = proxy_with(stand, "short", f"1=127.0.0.1:{port_of(stand, 1)}")
    stand.wait_for_state("streaming")
    for safekeeper_id in (2, 3):
        stand.wait_for_member(safekeeper_id, "streaming")
    assert f"{place} lacks it: correct --safekeepers" in log_of(short)
    assert short.stop() == 0
    # Its disk was lost, and what is there instead belongs to a cluster of another PostgreSQL.
    stand.wipe(3)
    stand.safekeepers[3].start()
    other = LocalPostgres(stand.postgres.binaries, folder / "other").init(wal_segment_mib=1).start()
    stand.former_primaries.append(other)
    alone = stand.make_proxy("alone", conninfo=other.conninfo())
    alone.arguments[alone.arguments.index("--safekeepers") + 1] = f"3=127.0.0.1:{port_of(stand, 3)}"
    stand.proxies.insert(0, alone)
    stand.start_proxy(alone)
    stand.wait_for_state("streaming")
    assert alone.stop() == 0
    proxy = proxy_with(stand, "foreign-system", stand.safekeepers_option)
    stand.wait_for_state("streaming")
    assert "it is another PostgreSQL server" in stand.wait_for_member(3, "refused")["problem"]
    stand.commit(3)
    assert proxy.stop() == 0
    # The same PostgreSQL, another cluster.
    stand.wipe(3)
    stand.safekeepers[3].start()
    alone = proxy_with(stand, "alone-again", f"3=127.0.0.1:{port_of(stand, 3)}", "-c", "slot=other")
    stand.wait_for_state("streaming")
    assert alone.stop() == 0
    with Relay(port_of(stand, 3)) as relay:
        proxy = proxy_with(stand, "foreign-cluster", members(stand, s3=relay.port))
        stand.wait_for_state("streaming")
        assert "wipe its data folder" in stand.wait_for_member(3, "refused")["problem"]
        stand.commit(4)
        # It is tried repeatedly, and that is not logged repeatedly.
        wait_for(lambda: relay.connections >= 6, "it was asked six times")
        # By the first election, and by the leader.
        assert log_of(proxy).count("lost safekeeper 3") <= 2
        assert log_of(proxy).count("connected to safekeeper 3") == 1
    stand.verify(1, 2)


@NEWEST
def test_a_copied_data_folder_serves_no_other_safekeeper(new_stand: NewStand) -> None:
    stand = new_stand().serve()
    stand.commit(1)
    stand.safekeepers[1].kill9()
    stand.wipe(2)
    shutil.copytree(stand.safekeeper_directory(1), stand.safekeeper_directory(2))
    stand.safekeepers[1].start()
    log = stand.safekeepers[2].log_path
    log.unlink()
    code, line = end_of(stand.safekeepers[2].start())
    assert code == EXIT_CONFIGURATION
    assert "safekeeper 1" in line
    # A second process on a folder that is in use.
    twin = LocalProcess("twin", stand.safekeepers[1].arguments, 0, stand.directory / "twin.log")
    code, line = end_of(twin.start())
    assert code == EXIT_CONFIGURATION
    assert f"in use by process {stand.safekeepers[1].pid}" in line


@NEWEST
def test_a_bootstrap_that_breaks_off_in_the_middle_is_repeated(new_stand: NewStand) -> None:
    stand = new_stand()
    stand.postgres.start()
    for safekeeper in stand.safekeepers.values():
        safekeeper.start()
    with Relay(port_of(stand, 3)) as relay, Relay(port_of(stand, 2)) as without_votes:
        relay.cut_at = Bootstrap
        # Else members 1 and 2 elect the proxy, and its first message to member 3 brings that what the bootstrap would.
        without_votes.cut_at = VoteRequest
        proxy = proxy_with(stand, "first", members(stand, s2=without_votes.port, s3=relay.port))
        wait_for(lambda: relay.cut >= 2, "the bootstrap was broken off twice")

        def state_of(safekeeper_id: int) -> str:
            status = stand.safekeepers[safekeeper_id].status()
            return status["state"] if status else ""

        wait_for(lambda: state_of(1) == state_of(2) == "idle", "two members have it")
        assert state_of(3) == "empty"
        # Whoever dies now, process or safekeeper: the next attempt repeats it.
        stand.safekeepers[2].kill9()
        proxy.kill9()
        relay.cut_at = without_votes.cut_at = None
        proxy_with(stand, "second", members(stand, s2=without_votes.port, s3=relay.port))
        stand.safekeepers[2].start()
        stand.wait_for_state("streaming")
        for safekeeper_id in stand.safekeepers:
            stand.wait_for_member(safekeeper_id, "streaming")
        assert {status["generation"] for status in stand.untouched().values()} == {1}
        assert len({status["cluster_id"] for status in stand.untouched().values()}) == 1


@NEWEST
def test_empty_folders_everywhere_are_no_first_start_of_a_primary_that_had_a_cluster(new_stand: NewStand) -> None:
    stand = new_stand().serve()
    stand.commit(1)
    stand.proxy.kill9()
    for safekeeper_id in (1, 2, 3):
        stand.safekeepers[safekeeper_id].kill9()
        folder = stand.safekeeper_directory(safekeeper_id)
        folder.rename(folder.with_name(f"elsewhere{safekeeper_id}"))
        stand.safekeepers[safekeeper_id].start()
    proxy = stand.proxies[0] = stand.proxy_for("waits")
    wait_for(lambda: "walproxy rebootstrap" in log_of(proxy), "the log has what to do")
    (line,) = [line for line in log_of(proxy).splitlines() if " ERROR " in line]
    assert 'the replication slot "walproxy" already' in line and "--bootstrap true" in line
    stand.wait_for_state("waiting_for_quorum")
    assert all((stand.safekeepers[i].status() or {})["state"] == "empty" for i in (1, 2, 3))

    # With the folders back in their places it goes on by itself.
    for safekeeper_id in (1, 2, 3):
        stand.wipe(safekeeper_id)
        folder = stand.safekeeper_directory(safekeeper_id)
        folder.with_name(f"elsewhere{safekeeper_id}").rename(folder)
        stand.safekeepers[safekeeper_id].start()
    stand.wait_for_state("streaming")
    stand.commit(2)
    stand.verify()

    # Or the operator confirms that it is a first start.
    assert proxy.stop() == 0
    for safekeeper_id in (1, 2, 3):
        stand.wipe(safekeeper_id)
        stand.safekeepers[safekeeper_id].start()
    stand.proxies[0] = stand.proxy_for("first", "--bootstrap", "true")
    stand.wait_for_state("streaming")
    stand.commit(3)
    stand.verify()


@NEWEST
def test_a_rebootstrap_is_undone_and_nothing_is_lost(new_stand: NewStand) -> None:
    stand = new_stand().serve()
    stand.commit(1)
    held = stand.flush_lsn_of(1)
    assert stand.proxies[0].stop() == 0
    answer = rebootstrap(stand, "--undo", "--yes")
    assert answer.returncode == EXIT_CONFIGURATION and "nothing can be undone" in only_line(answer.stderr)

    answer = rebootstrap(stand, "--yes")
    assert answer.returncode == 0 and "walproxy rebootstrap --undo" in answer.stdout
    assert stand.flush_lsn_of(1) == 0
    # Broken off in the middle, and repeated.
    with Relay(port_of(stand, 3)) as relay:
        relay.cut_at = Bootstrap
        answer = rebootstrap(stand, "--undo", "--yes", safekeepers=members(stand, s3=relay.port))
        assert answer.returncode == EXIT_UNEXPECTED and "repeat the command" in only_line(answer.stderr)
    answer = rebootstrap(stand, "--undo", "--yes")
    assert answer.returncode == 0, answer.stderr
    assert [stand.flush_lsn_of(i) >= held for i in (1, 2, 3)] == [True] * 3
    stand.proxies[0] = stand.proxy_for("undone")
    stand.wait_for_state("streaming")
    stand.commit(2)

    # A cluster that has written since is given up only if that is typed out. This primary has its commits nevertheless.
    assert stand.proxies[0].stop() == 0
    assert rebootstrap(stand, "--yes").returncode == 0
    stand.proxies[0] = stand.proxy_for("new-cluster")
    stand.wait_for_state("streaming")
    stand.commit(3)
    assert stand.proxies[0].stop() == 0
    answer = rebootstrap(stand, "--undo", "--yes")
    assert answer.returncode == EXIT_CONFIGURATION
    advised = re.search(r"--discard-wal-above (\S+)$", only_line(answer.stderr))
    assert advised is not None
    answer = rebootstrap(stand, "--undo", "--yes", "--discard-wal-above", advised[1])
    assert answer.returncode == 0 and "LOSS: safekeeper 1 holds" in answer.stdout, answer.stderr
    stand.proxies[0] = stand.proxy_for("undone-again")
    stand.wait_for_state("streaming")
    stand.commit(4)
    stand.verify()


@NEWEST
def test_when_two_of_three_disks_are_lost_nothing_starts_until_a_rebootstrap_is_ordered(new_stand: NewStand) -> None:
    stand = new_stand().serve()
    stand.commit(1)
    stand.proxy.kill9()
    stand.safekeepers[1].kill9()
    left_behind = stand.safekeeper_directory(1).with_name("left-behind")
    shutil.copytree(stand.safekeeper_directory(1), left_behind)
    stand.safekeepers[1].start()
    for safekeeper_id in (2, 3):
        stand.wipe(safekeeper_id)
        stand.safekeepers[safekeeper_id].start()
    before = stand.untouched()
    proxy = stand.proxies[0] = stand.proxy_for("waits")
    stand.wait_for_state("waiting_for_quorum")
    wait_for(lambda: "walproxy rebootstrap" in log_of(proxy), "the log has what to do")
    for safekeeper_id in (2, 3):
        problem = stand.member(safekeeper_id)["problem"] or ""
        assert "is empty" in problem and "walproxy rebootstrap" in problem
    assert stand.untouched() == before

    # While a safekeeper is missing, the way out is closed.
    assert proxy.stop() == 0
    stand.safekeepers[2].kill9()
    answer = rebootstrap(stand, "--yes")
    assert answer.returncode == EXIT_CONFIGURATION
    assert "safekeeper 2" in only_line(answer.stderr) and "needs every safekeeper" in answer.stderr
    stand.safekeepers[2].start()
    stand.wait_until(lambda: stand.safekeepers[2].status() is not None, "safekeeper 2 answers")

    # Broken off in the middle, and repeated.
    with Relay(port_of(stand, 3)) as relay:
        relay.cut_at = Bootstrap
        answer = rebootstrap(stand, "--yes", safekeepers=members(stand, s3=relay.port))
        assert answer.returncode == EXIT_UNEXPECTED
        assert "safekeeper 3" in only_line(answer.stderr) and "repeat the command" in answer.stderr
    answer = rebootstrap(stand, "--yes")
    assert answer.returncode == 0, answer.stderr
    assert "safekeeper 1: cluster" in answer.stdout and "safekeeper 3: empty" in answer.stdout
    assert "the WAL of this primary is kept" in answer.stdout
    # Twice does no harm.
    answer = rebootstrap(stand, "--yes")
    assert answer.returncode == 0, answer.stderr
    # There is no way back: one disk of three has the old cluster's WAL.
    answer = rebootstrap(stand, "--yes", "--undo")
    assert answer.returncode == EXIT_CONFIGURATION
    assert "the rebootstrap cannot be undone" in only_line(answer.stderr)

    stand.proxies[0] = stand.proxy_for("new-cluster")
    stand.wait_for_state("streaming")
    stand.commit(2)
    stand.verify()
    # It is refused while a proxy serves.
    answer = rebootstrap(stand, "--yes")
    assert answer.returncode == EXIT_CONFIGURATION
    assert "a proxy serves on safekeeper 1" in only_line(answer.stderr) and "stop it first" in answer.stderr
    assert list(stand.safekeeper_directory(1).glob("wal.*")), "the old WAL is set aside"

    # A member that comes back with the old cluster is refused until it is wiped; then it learns.
    stand.wipe(1)
    left_behind.rename(stand.safekeeper_directory(1))
    stand.safekeepers[1].start()
    assert "wipe its data folder" in stand.wait_for_member(1, "refused")["problem"]
    stand.wipe(1)
    stand.safekeepers[1].start()
    stand.wait_for_member(1, "learner")
    stand.commit(3)
    stand.verify()
