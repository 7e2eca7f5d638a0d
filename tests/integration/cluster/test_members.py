"""The members of a cluster are changed under load: `walproxy members` with real processes, sockets and disks."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from safekeeper.consensus.control_state import ControlState
from safekeeper.storage.control_file import ControlFile
from safekeeper.storage.filesystem import RealFileSystem
from tests.integration.cluster.cluster_fixtures import Gated, field_of, wait_for
from tests.integration.conftest import NEWEST, NewGated
from tests.integration.refusals.refusal_fixtures import only_line, run_walproxy

pytestmark = NEWEST
SAFEKEEPERS = "WALPROXY_SAFEKEEPERS"


def members(cluster: Gated, *arguments: str, safekeepers: str = "") -> subprocess.CompletedProcess[str]:
    """Run `walproxy members` with the safekeepers of the first proxy."""
    return run_walproxy("members", *arguments, environment={SAFEKEEPERS: safekeepers or first_list(cluster)})


def first_list(cluster: Gated) -> str:
    return cluster.proxy.arguments[cluster.proxy.arguments.index("--safekeepers") + 1]


def change(cluster: Gated, *arguments: str) -> list[int]:
    """Run a change to its end; return the members after it."""
    ended = members(cluster, *arguments, "--json")
    assert ended.returncode == 0, ended.stderr
    return [each["id"] for each in json.loads(ended.stdout)["members"]]


def roles(cluster: Gated) -> dict[int, str]:
    listed = members(cluster, "list", "--json")
    assert listed.returncode == 0, listed.stderr
    return {each["id"]: each["role"] for each in json.loads(listed.stdout)["safekeepers"]}


def start(cluster: Gated, safekeeper_id: int) -> None:
    """Start a safekeeper that the proxy's list lacks, or lists elsewhere; return when it replies."""
    process = cluster.add_safekeeper(safekeeper_id).start()
    wait_for(lambda: process.status() is not None, f"safekeeper {safekeeper_id} replies")


def lose_disk(cluster: Gated, safekeeper_id: int) -> None:
    """Kill a safekeeper, and put an empty folder in the place of its own."""
    cluster.safekeepers[safekeeper_id].kill9()
    shutil.rmtree(cluster.safekeeper_directory(safekeeper_id))
    cluster.safekeepers[safekeeper_id].start()


def test_a_lost_disk_is_replaced_while_commits_go_on(new_gated: NewGated) -> None:
    cluster = new_gated().start_gated()
    with cluster.load() as load:
        load.wait_for_commits(20)
        lose_disk(cluster, 3)
        wait_for(lambda: cluster.member(3)["state"] == "learner", "safekeeper 3 receives WAL as a learner")
        assert roles(cluster) == {1: "voter", 2: "voter", 3: "lost"}
        assert change(cluster, "replace", "3") == [1, 2, 3]
        assert roles(cluster) == {1: "voter", 2: "voter", 3: "voter"}
        # It counts: it is the quorum with one of the others.
        cluster.safekeepers[1].kill9()
        load.wait_for_commits(20)
        cluster.safekeepers[1].start()
        # Repeated, the command finds that all is done.
        assert "nothing is to be done" in members(cluster, "replace", "3").stdout


def test_a_folder_that_was_restored_from_a_snapshot_is_noticed_and_becomes_a_member_again(new_gated: NewGated) -> None:
    cluster = new_gated().start_gated()
    folder = cluster.safekeeper_directory(3)
    snapshot = folder.with_name("snapshot")
    with cluster.load() as load:
        load.wait_for_commits(20)
        cluster.safekeepers[3].kill9()
        shutil.copytree(folder, snapshot)
        cluster.safekeepers[3].start()
        wait_for(lambda: cluster.member(3)["state"] == "streaming", "safekeeper 3 receives WAL")
        load.wait_for_commits(20)
        # The proxy with safekeeper 3's acknowledged position ends, too: the others have it.
        wait_for(lambda: _lists(cluster, 1, 3) and _lists(cluster, 2, 3), "the others have its position")
        cluster.proxy.kill9()
        cluster.safekeepers[3].kill9()
        shutil.rmtree(folder)
        snapshot.rename(folder)
        cluster.safekeepers[3].start()
        cluster.proxy.start()
        wait_for(lambda: cluster.member(3)["state"] == "learner", "safekeeper 3 receives WAL as a learner")
        for process in (cluster.proxy, cluster.safekeepers[3]):
            assert "older copy of itself" in process.log_path.read_text()
        assert roles(cluster) == {1: "voter", 2: "voter", 3: "lost"}
        load.wait_for_commits(20)
        assert change(cluster, "replace", "3") == [1, 2, 3]
        cluster.safekeepers[1].kill9()
        load.wait_for_commits(20)
        cluster.safekeepers[1].start()


def _lists(cluster: Gated, safekeeper_id: int, other_id: int) -> bool:
    """Return whether a safekeeper's control file has the state of another one's folder, at its second start."""
    control = ControlFile(RealFileSystem(), cluster.safekeeper_directory(safekeeper_id)).load(ControlState)
    return control is not None and any(
        state.safekeeper_id == other_id and state.starts > 1 for state in control.folders
    )


def test_three_members_become_five_and_three_again(new_gated: NewGated) -> None:
    cluster = new_gated().start_gated()
    with cluster.load() as load:
        for safekeeper_id in (4, 5):
            start(cluster, safekeeper_id)
            last = change(cluster, "add", cluster.place_of(safekeeper_id))
            load.wait_for_commits(5)
        assert last == [1, 2, 3, 4, 5]
        # The proxy's --safekeepers has the first three only.
        assert [each["id"] for each in cluster.status()["safekeepers"]] == [1, 2, 3, 4, 5]
        assert cluster.status()["quorum"] == 3
        cluster.safekeepers[1].kill9()
        cluster.safekeepers[2].kill9()
        load.wait_for_commits(20)
        # The next term, too, is led by a proxy that finds the two by the membership.
        cluster.safekeepers[1].start()
        cluster.proxy.kill9()
        cluster.proxy.start()
        load.wait_for_commits(20)
        cluster.safekeepers[2].start()
        wait_for(lambda: field_of(cluster.safekeepers[2], "state") == "following", "safekeeper 2 follows")
        for safekeeper_id in (5, 4):
            last = change(cluster, "remove", str(safekeeper_id))
            wait_for(
                lambda i=safekeeper_id: i not in [each["id"] for each in cluster.status()["safekeepers"]],  # type: ignore[misc]
                "the proxy hangs up",
            )
            cluster.drop_safekeeper(safekeeper_id)
            load.wait_for_commits(5)
        assert last == [1, 2, 3]
        assert cluster.status()["quorum"] == 2


def test_every_member_is_replaced_by_another_host_s_folder(new_gated: NewGated) -> None:
    cluster = new_gated().start_gated()
    with cluster.load() as load:
        for old_id in (1, 2, 3):
            new_id = old_id + 3
            start(cluster, new_id)
            last = change(cluster, "replace", str(old_id), "--by", cluster.place_of(new_id))
            cluster.drop_safekeeper(old_id)
            load.wait_for_commits(10)
        assert last == [4, 5, 6]
        # A proxy whose list has the new members alone.
        cluster.proxies.insert(0, cluster.make_proxy("walproxy-new"))
        cluster.proxies.pop().kill9()
        cluster.start_proxy()
        load.wait_for_commits(20)


def test_a_member_moves_to_another_host_under_its_own_id(new_gated: NewGated) -> None:
    cluster = new_gated().start_gated()
    with cluster.load() as load:
        load.wait_for_commits(5)
        old = first_list(cluster)
        cluster.safekeepers[3].kill9()
        shutil.rmtree(cluster.safekeeper_directory(3))
        start(cluster, 3)
        ended = members(cluster, "replace", cluster.place_of(3), safekeepers=old)
        assert (ended.returncode, ended.stdout) == (0, "the members are 1, 2, 3 (generation 3 of term 1)\n"), (
            ended.stderr
        )
        cluster.safekeepers[1].kill9()
        load.wait_for_commits(20)
        # The list of the proxy has the old address; the membership has the new one.
        cluster.proxy.kill9()
        cluster.proxy.start()
        load.wait_for_commits(20)
        cluster.safekeepers[1].start()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("add", "4"), "the address of safekeeper 4 is unknown: write 4=HOST:PORT"),
        (("add", "4=127.0.0.1:1"), "safekeeper 4 at 127.0.0.1:1 cannot be reached"),
        (("replace", "4"), "the address of safekeeper 4 is unknown: write 4=HOST:PORT"),
        (("replace", "3", "--by", "2"), "safekeeper 2 is a member already: walproxy members remove 3"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(cluster: Gated, arguments: tuple[str, ...], line: str) -> None:
    ended = members(cluster, *arguments)
    assert ended.returncode == 3
    assert line in only_line(ended.stderr)


def test_an_id_or_a_folder_in_use_is_refused(cluster: Gated) -> None:
    ended = members(cluster, "add", f"4={cluster.place_of(1).partition('=')[2]}")
    assert ended.returncode == 3
    assert "safekeeper 1 replied where safekeeper 4 is expected" in only_line(ended.stderr)
    ended = members(cluster, "add", "3")
    assert (ended.returncode, ended.stdout.splitlines()[0]) == (0, "nothing is to be done")
    ended = members(cluster, "remove", "9")
    assert (ended.returncode, ended.stdout.splitlines()[0]) == (0, "nothing is to be done")


def test_a_removal_below_a_quorum_of_the_living_is_refused_with_numbers(new_gated: NewGated) -> None:
    cluster = new_gated().start_gated()
    with cluster.load() as load:
        load.wait_for_commits(5)
        cluster.safekeepers[3].kill9()
        wait_for(lambda: cluster.member(3)["state"] == "disconnected", "the proxy has lost safekeeper 3")
        ended = members(cluster, "remove", "2")
        assert ended.returncode == 1
        assert "of the members 1, 3 only 1 would follow, and commits need 2" in ended.stderr
        # The dead one may go: then both of the living are needed.
        assert change(cluster, "remove", "3") == [1, 2]
        load.wait_for_commits(5)
        assert roles(cluster)[3] == "unknown"
        cluster.safekeepers[3].start()
        wait_for(lambda: cluster.member(3)["state"] == "learner", "the removed member is a learner")


def test_a_change_that_waits_for_its_newcomer_outlives_the_proxy_and_can_be_cancelled(
    new_gated: NewGated, folder: Path
) -> None:
    # The newcomer needs some 20 s for what the window no longer has.
    cluster = new_gated("-c", "window_size=1MiB", "-c", "catchup_rate=1MiB").start_gated()
    with cluster.load() as load, (folder / "add.log").open("w") as log:
        cluster.postgres.execute("CREATE TABLE bulk AS SELECT repeat('x', 1000) FROM generate_series(1, 20000)")
        start(cluster, 4)
        add = subprocess.Popen(
            [sys.executable, "-m", "walproxy", "members", "add", cluster.place_of(4)],
            env={**os.environ, SAFEKEEPERS: first_list(cluster)},
            stdout=log,
            stderr=log,
        )
        try:
            wait_for(lambda: is_receiving(cluster), "safekeeper 4 receives WAL")
            cluster.proxy.kill9()
            cluster.proxy.start()
            # The leader of the change is gone; the command repeats it.
            wait_for(lambda: field_of(cluster.proxy, "state") == "streaming", "the next leader streams")
            wait_for(lambda: is_receiving(cluster), "safekeeper 4 receives WAL again")
            load.wait_for_commits(5)
            ended = members(cluster, "remove", "3")
            assert ended.returncode == 1
            assert "another change is under way, to the members 1, 2, 3, 4" in ended.stderr
            assert change(cluster, "cancel") == [1, 2, 3]
            assert add.wait(20) == 1
        finally:
            add.kill()
            add.wait()
        lines = (folder / "add.log").read_text().splitlines()
        assert lines[0] == "members 1, 2, 3 -> 1, 2, 3, 4: commits need 3 of 4"
        assert lines[1].startswith("warning: 4 members tolerate the loss of 1, as 3 would")
        assert any(line.startswith("safekeeper 4 receives WAL: ") for line in lines)
        assert lines[-1] == "walproxy: the leader refuses: the change was cancelled"
        cluster.drop_safekeeper(4)


def is_receiving(cluster: Gated) -> bool:
    """Return whether the proxy has connected to safekeeper 4, which its list lacks, and sends it WAL."""
    safekeepers = cluster.status()["safekeepers"]
    return any(each["id"] == 4 and each["state"] == "learner" and each["lag_bytes"] for each in safekeepers)


@pytest.mark.nightly
def test_without_a_leader_the_command_reports_it(new_gated: NewGated) -> None:
    cluster = new_gated().start_gated()
    cluster.proxy.kill9()
    ended = members(cluster, "remove", "3")
    assert ended.returncode == 1
    assert "no safekeeper follows a proxy for 15 s" in ended.stderr.splitlines()[-1]


def test_without_the_secret_no_client_changes_the_members_also_on_loopback(
    cluster: Gated, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another user of this machine has another secret of their own.
    (folder / "state").mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    for arguments in (("list",), ("remove", "3")):
        ended = members(cluster, *arguments)
        assert ended.returncode != 0
        assert "secret" in only_line(ended.stderr)
    wrong = folder / "secret"
    wrong.write_text("0" * 32)
    wrong.chmod(0o600)
    monkeypatch.setenv("WALPROXY_SECRET_FILE", str(wrong))
    ended = members(cluster, "remove", "3")
    assert ended.returncode != 0
    assert "secret" in only_line(ended.stderr)
    assert [each["id"] for each in cluster.status()["safekeepers"]] == [1, 2, 3]


def test_an_even_number_is_warned_of_and_a_removed_member_that_comes_back_does_not_count(new_gated: NewGated) -> None:
    cluster = new_gated().start_gated()
    with cluster.load() as load:
        start(cluster, 4)
        ended = members(cluster, "add", cluster.place_of(4))
        assert ended.returncode == 0, ended.stderr
        assert ended.stderr.splitlines()[:2] == [
            "members 1, 2, 3 -> 1, 2, 3, 4: commits need 3 of 4",
            "warning: 4 members tolerate the loss of 1, as 3 would: an odd number is better",
        ]
        # The removed member that comes back with its folder receives WAL, and does not count.
        assert change(cluster, "remove", "1") == [2, 3, 4]
        cluster.safekeepers[1].kill9()
        cluster.safekeepers[1].start()
        wait_for(lambda: cluster.member(1)["state"] == "learner", "safekeeper 1 is a learner")
        load.wait_for_commits(5)
        cluster.safekeepers[2].kill9()
        cluster.safekeepers[3].kill9()
        load.assert_stalled()
        cluster.safekeepers[2].start()
        load.wait_for_commits(5)
        cluster.safekeepers[3].start()


def test_the_sizes_of_the_quorums_change_and_commits_wait_for_fewer_disks(new_gated: NewGated) -> None:
    cluster = new_gated().start_gated()
    with cluster.load() as load:
        for safekeeper_id in (4, 5):
            start(cluster, safekeeper_id)
            change(cluster, "add", cluster.place_of(safekeeper_id))
        ended = members(cluster, "quorum", "--commit", "N/3+1", "--elect", "N-N/3")
        assert ended.returncode == 0, ended.stderr
        assert "commits need 2 of 5, elections 4" in ended.stderr
        assert (cluster.status()["quorum"], cluster.status()["elect_quorum"]) == (2, 4)
        # The term that is led goes on with two of five.
        for safekeeper_id in (3, 4, 5):
            cluster.safekeepers[safekeeper_id].kill9()
        load.wait_for_commits(20)
        # But two elect no leader, nor do three.
        cluster.safekeepers[3].start()
        cluster.proxy.kill9()
        cluster.proxy.start()
        load.assert_stalled(2.0)
        cluster.safekeepers[4].start()
        load.wait_for_commits(20)
        cluster.safekeepers[5].start()
        assert change(cluster, "quorum", "--commit", "N/2+1", "--elect", "N/2+1") == [1, 2, 3, 4, 5]
        assert (cluster.status()["quorum"], cluster.status()["elect_quorum"]) == (3, 3)


@pytest.mark.parametrize(
    ("size", "line"),
    [
        ("aaa", "'aaa' is not valid"),
        ("N+1", "the commit quorum 'N+1' is 2 for N = 1"),
        ("2^32+1", "'2^32+1' is not valid"),
        ("N/2", "the commit quorum 'N/2' is 0 for N = 1"),
    ],
)
def test_sizes_that_cannot_be_are_refused(cluster: Gated, size: str, line: str) -> None:
    ended = members(cluster, "quorum", "--commit", size)
    assert ended.returncode == 3
    assert line in only_line(ended.stderr)
