"""walproxy.lab.testing in processes: the example of its page, every fault, and nothing left behind."""

import tempfile
from pathlib import Path

import pytest

from tests.cluster_stories import hinders_and_heals, run_example, suffer_everything
from walproxy.lab.testing import WalproxyCluster
from walproxy.postgres.process_table import is_alive


def test_the_example_of_the_page_passes_in_processes(tmp_path: Path) -> None:
    run_example("processes", tmp_path)


@pytest.mark.nightly
def test_a_cluster_of_processes_suffers_everything_and_leaves_nothing_behind() -> None:
    with WalproxyCluster(proxies=2, standbys=1, engine="processes", volatile_disks=True) as cluster:
        folder = cluster.data_folder(1).parent
        assert folder.parent == Path(tempfile.gettempdir())
        suffer_everything(cluster)
        pids = cluster.process_ids()
    assert not folder.exists()
    assert not [pid for pid in pids.values() if is_alive(pid)]


def test_what_outsiders_do_to_a_cluster_of_processes_begins_and_ends() -> None:
    with WalproxyCluster(standbys=1, engine="processes") as cluster:
        hinders_and_heals(cluster)
