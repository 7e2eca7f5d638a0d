"""The readable log of a node: when it has changed, and when readable bytes were removed from it (S7)."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from safekeeper.acceptor.readable import ReadableLog
from safekeeper.consensus.control_state import ControlState, TliHistory
from safekeeper.consensus.term_history import HistoryEntry
from safekeeper.node.readable_log import LogView

BASE = 4 << 20
FORK = BASE + 100
ONE, TWO = HistoryEntry(1, BASE, 1), HistoryEntry(2, FORK, 2)
OLD, NEW = "c" * 32, "d" * 32


class FakeNode:
    """A node whose positions the test sets."""

    def __init__(self, cluster_id: str = OLD, **changes: Any) -> None:
        control = ControlState(safekeeper_id=1, incarnation="1" * 32, cluster_id=cluster_id, history=(ONE,))
        self.acceptor = SimpleNamespace(control=control, readable_lsn=FORK, readable_tli=1)
        self.folder = SimpleNamespace(begin_lsn=BASE)
        self.view = LogView(cast(Any, self))

    def stores(self, **changes: Any) -> None:
        self.acceptor.control = msgspec.structs.replace(self.acceptor.control, **changes)


def test_the_view_is_that_of_the_log_and_the_same_until_something_changes() -> None:
    node = FakeNode()
    view = node.view
    assert view.log == ReadableLog(BASE, FORK, 1, ()) and (view.cluster_id, view.epoch) == (OLD, 0)
    assert view.refresh() is None
    before = view.log
    node.acceptor.readable_lsn += 1
    assert view.refresh() == before
    assert view.log == ReadableLog(BASE, FORK + 1, 1, ()) and view.epoch == 0
    assert view.refresh() is None


def test_a_beginning_that_has_moved_and_another_control_state_are_changes_and_no_epochs() -> None:
    node = FakeNode()
    node.folder.begin_lsn += 1 << 20
    assert node.view.refresh() is not None and node.view.log.begin_lsn == BASE + (1 << 20)
    assert node.view.refresh() is None
    node.stores(starts=7)
    assert node.view.refresh() is not None
    assert node.view.refresh() is None and node.view.epoch == 0


@pytest.mark.parametrize(("end_lsn", "epoch"), [(FORK - 1, 1), (FORK, 0), (FORK + 1, 0)])
def test_an_end_that_goes_back_is_another_epoch(end_lsn: int, epoch: int) -> None:
    node = FakeNode()
    node.stores(history=(ONE, TWO))
    node.acceptor.readable_lsn = end_lsn
    assert node.view.refresh() is not None
    assert (node.view.epoch, node.view.log.end_lsn) == (epoch, end_lsn)
    node.acceptor.readable_lsn = end_lsn + 1
    node.view.refresh()
    assert node.view.epoch == epoch


@pytest.mark.parametrize("end_lsn", [FORK - 1, FORK + 1])
def test_the_log_of_another_cluster_is_another_epoch_whatever_its_end(end_lsn: int) -> None:
    node = FakeNode()
    node.stores(cluster_id=NEW)
    node.acceptor.readable_lsn = end_lsn
    node.view.refresh()
    assert (node.view.epoch, node.view.cluster_id) == (1, NEW)
    node.acceptor.readable_lsn = end_lsn - 1
    node.view.refresh()
    assert node.view.epoch == 2


def test_the_first_cluster_of_a_folder_is_no_other_epoch() -> None:
    node = FakeNode(cluster_id="")
    node.stores(cluster_id=OLD)
    node.view.refresh()
    assert (node.view.epoch, node.view.cluster_id) == (0, OLD)


def test_the_ancestors_are_those_of_the_present_history_and_of_the_timeline_of_the_end() -> None:
    node = FakeNode()
    node.stores(history=(ONE, TWO))
    node.view.refresh()
    assert node.view.log.lineage == (), "it ends on the first timeline"
    node.acceptor.readable_lsn, node.acceptor.readable_tli = FORK + 1, 2
    node.view.refresh()
    assert node.view.log == ReadableLog(BASE, FORK + 1, 2, ((1, FORK),))
    # Of the same timeline, in another history.
    node.stores(history=(ONE, HistoryEntry(3, FORK - 10, 2)))
    node.view.refresh()
    assert node.view.log.lineage == ((1, FORK - 10),)


def test_a_timeline_history_that_is_not_valid_is_logged_and_leaves_no_ancestors(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = FakeNode()
    node.stores(history=(ONE, TWO), tli_histories=(TliHistory(2, b"not a history"),))
    node.acceptor.readable_lsn, node.acceptor.readable_tli = FORK + 1, 2
    node.view.refresh()
    assert node.view.log.lineage == () and "older timelines cannot be read" in caplog.text
