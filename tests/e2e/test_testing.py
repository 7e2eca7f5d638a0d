"""walproxy.lab.testing in containers: the example of its page, every fault, and nothing left behind."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster_stories import run_example, suffer_everything
from walproxy.lab.testing import WalproxyCluster
from walproxy.lab.testing.leftovers import owner

_LABEL = "walproxy.testing.owner"
_DIES = """
import os, signal
from walproxy.lab.testing import WalproxyCluster
from walproxy.lab.testing.leftovers import owner
print(owner(), flush=True)
with WalproxyCluster(safekeepers=1, engine="containers"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def labelled(kind: list[str], value: str) -> list[str]:
    """The containers, networks or volumes of the clusters of one owner."""
    return subprocess.run(
        ["docker", *kind, "--quiet", "--filter", f"label={_LABEL}={value}"], capture_output=True, text=True, check=True
    ).stdout.split()


@pytest.fixture(autouse=True)
def named_images(images: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, name in images.items():
        monkeypatch.setenv(variable, name)


def test_the_example_of_the_page_passes_in_containers(tmp_path: Path) -> None:
    run_example("containers", tmp_path)


def test_a_cluster_of_containers_suffers_everything_and_leaves_nothing_behind() -> None:
    with WalproxyCluster(proxies=2, standbys=1, engine="containers", volatile_disks=True) as cluster:
        running = labelled(["ps"], owner())
        assert len(running) == len(cluster.members) + 1, {
            name: cluster.logs(name) for name in cluster.members
        }  # + relay
        suffer_everything(cluster)
    for kind in (["ps", "--all"], ["network", "ls"], ["volume", "ls"]):
        assert labelled(kind, owner()) == []


def test_what_a_killed_test_has_left_behind_is_removed_by_the_next() -> None:
    dead = subprocess.run([sys.executable, "-c", _DIES], capture_output=True, text=True, timeout=120, check=False)
    assert dead.returncode == -9, dead.stderr
    kinds = (["ps", "--all"], ["network", "ls"], ["volume", "ls"])
    assert all(labelled(kind, dead.stdout.strip()) for kind in kinds)
    with WalproxyCluster(safekeepers=1, engine="containers"):
        assert not any(labelled(kind, dead.stdout.strip()) for kind in kinds)
