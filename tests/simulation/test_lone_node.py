"""The lone node and the lone puller find errors of the node, its listener and its pulls that are planted."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from safekeeper.acceptor.effects import Effect, Effects, Persist
from safekeeper.base.errors import StorageFull
from safekeeper.node.node import Node
from safekeeper.node.peer_reads import PeerReads
from safekeeper.node.proposer_listener import Connection, ProposerListener
from safekeeper.node.wal_pull import WalPuller
from safekeeper.storage.data_folder import DataFolder
from safekeeper.storage.disk_space import DiskSpace
from safekeeper.storage.filesystem import Space
from safekeeper.storage.wal_log import WalStorage
from tests.simulation import lone_node, lone_puller
from tests.simulation.runner import run_seed
from tests.simulation.world import SimulationFailed

SEEDS = 200
Patch = Callable[[pytest.MonkeyPatch], None]


def reads_on_while_a_message_waits(patch: pytest.MonkeyPatch) -> None:
    def planted(connection: Connection) -> None:
        connection._listener.waiting[connection.number] = connection

    patch.setattr(Connection, "_stop_reading", planted)


def newest_waits_least(patch: pytest.MonkeyPatch) -> None:
    """Of the connections that wait the last one goes first."""

    def planted(listener: ProposerListener) -> None:
        while listener.waiting and listener.node.ready:
            listener.waiting.popitem()[1].pump()

    patch.setattr(ProposerListener, "resume", planted)


def idle_connections_stay(patch: pytest.MonkeyPatch) -> None:
    watch = ProposerListener.watch

    def planted(listener: ProposerListener) -> float:
        listener._idle_timeout_s = 1000.0
        return watch(listener)

    patch.setattr(ProposerListener, "watch", planted)


def peers_that_do_not_read_are_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Connection, "pause_writing", lambda connection: None)


def a_wrong_proof_is_enough(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("safekeeper.peers.peer_auth.hmac.compare_digest", lambda one, other: True)


def flushes_after_each_message(patch: pytest.MonkeyPatch) -> None:
    append = Node.append

    def planted(node: Node, *message: Any, is_last: bool) -> bool:
        return append(node, *message, is_last=True)

    patch.setattr(Node, "append", planted)


def segments_are_prepared_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WalStorage, "prepare_ahead", lambda storage: None)


def prepares_again_at_once(patch: pytest.MonkeyPatch) -> None:
    """Without space for the next segment there is no pause."""
    count = Node._count_prepared

    def planted(node: Node, preparation: Any, full: StorageFull | None) -> None:
        count(node, preparation, full)
        node._prepare_not_before = 0.0

    patch.setattr(Node, "_count_prepared", planted)


def reports_no_write(patch: pytest.MonkeyPatch) -> None:
    """A leader is not informed of WAL whose flush takes long."""
    patch.setattr(Node, "_report_timer", lambda node: None)


def control_file_is_not_tried_again(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint does not store a control state for which there was no space."""

    def planted(node: Node) -> Any:
        yield from node.acceptor.checkpoint()

    patch.setattr(Node, "_write_lazy_positions", planted)


def space_for_the_control_file_is_unknown(patch: pytest.MonkeyPatch) -> None:
    done = Node._effect_done

    def planted(node: Node, effect: Effect, result: Any, error: BaseException | None) -> None:
        done(node, effect, result, error)
        if isinstance(effect, Persist):
            node.disk_space.lacking.clear()

    patch.setattr(Node, "_effect_done", planted)


def members_read_without_a_limit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("safekeeper.node.peer_reads.QUEUED_MAX", 5)
    patch.setattr("tests.simulation.node_reference.QUEUED_MAX", 4)


def reads_of_a_cut_log_are_sent(patch: pytest.MonkeyPatch) -> None:
    """What was read is sent although the log has changed meanwhile."""
    done = PeerReads._done

    def planted(reads: PeerReads, *arguments: Any) -> None:
        acceptor, reads._acceptor = reads._acceptor, _Serving(reads._acceptor)
        try:
            done(reads, *arguments)
        finally:
            reads._acceptor = acceptor

    patch.setattr(PeerReads, "_done", planted)


class _Serving:
    """An acceptor that serves each read."""

    def __init__(self, acceptor: Any) -> None:
        self._acceptor = acceptor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._acceptor, name)

    def serves(self, request: Any) -> bool:
        """Allow it."""
        return True


def each_measurement_of_low_space_is_an_event(patch: pytest.MonkeyPatch) -> None:
    measured = DiskSpace.measured

    def planted(space: DiskSpace, found: Space) -> None:
        space._warned_at = None
        measured(space, found)

    patch.setattr(DiskSpace, "measured", planted)


def a_start_without_space_counts_as_done(patch: pytest.MonkeyPatch) -> None:
    def planted(folder: DataFolder, effects: Effects) -> None:
        result: Any = None
        with contextlib.suppress(StopIteration):
            while True:
                effect, result = effects.send(result), None
                with contextlib.suppress(StorageFull):
                    result = folder.perform(effect)

    patch.setattr(DataFolder, "perform_all", planted)


@pytest.mark.parametrize(
    "plant",
    [
        reads_on_while_a_message_waits,
        newest_waits_least,
        idle_connections_stay,
        peers_that_do_not_read_are_read,
        a_wrong_proof_is_enough,
        flushes_after_each_message,
        segments_are_prepared_late,
        prepares_again_at_once,
        reports_no_write,
        control_file_is_not_tried_again,
        space_for_the_control_file_is_unknown,
        members_read_without_a_limit,
        reads_of_a_cut_log_are_sent,
        each_measurement_of_low_space_is_an_event,
        a_start_without_space_counts_as_done,
    ],
)
def test_errors_of_the_node_are_found(plant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(SimulationFailed):
        for seed in range(SEEDS):
            lone_node.drive(seed)


def stays_with_a_slow_source(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("safekeeper.node.wal_pull.PullSources.is_to_be_left", lambda *_: False)


def pulls_as_fast_as_it_can(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("safekeeper.node.wal_pull.PAUSE_MIN_S", 1000.0)
    patch.setattr("tests.simulation.puller_reference.wal_pull", _Original())


class _Original:
    """The constants of wal_pull as they are while a simulation runs, but the pause."""

    PAUSE_MIN_S = 0.02

    def __getattr__(self, name: str) -> Any:
        from safekeeper.node import wal_pull

        return getattr(wal_pull, name)


def pull_goes_on_at_its_end(patch: pytest.MonkeyPatch) -> None:
    """A pull that the acceptor has ended is not cancelled."""
    end = WalPuller._end

    def planted(puller: WalPuller) -> None:
        puller._task = None
        end(puller)

    patch.setattr(WalPuller, "_end", planted)


def waits_for_its_disk_for_good(patch: pytest.MonkeyPatch) -> None:
    """A pull does not notice that what it waits for is on disk."""
    patch.setattr(asyncio.Event, "set", lambda event: None)


@pytest.mark.parametrize(
    "plant",
    [stays_with_a_slow_source, pulls_as_fast_as_it_can, pull_goes_on_at_its_end, waits_for_its_disk_for_good],
)
def test_errors_of_the_pulls_are_found(plant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(SimulationFailed):
        for seed in range(SEEDS):
            lone_puller.drive(seed)


@pytest.mark.parametrize("driver", [lone_node, lone_puller])
def test_a_seed_drives_both(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def drive(seed: int) -> None:
        raise SimulationFailed(AssertionError("as planted"), [])

    monkeypatch.setattr(driver, "drive", drive)
    with pytest.raises(SimulationFailed, match="as planted"):
        run_seed(3)


def test_a_seed_does_the_same_each_time() -> None:
    assert lone_node.drive(7) == lone_node.drive(7)
    assert lone_puller.drive(7) == lone_puller.drive(7)
