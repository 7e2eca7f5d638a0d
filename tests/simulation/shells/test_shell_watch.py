"""What is compared of a real node's work, each rule with an error that breaks it."""

from collections.abc import Callable
from typing import Any

import pytest

from safekeeper.acceptor.effects import Effect, Effects
from safekeeper.base.errors import StorageFailed
from safekeeper.consensus.messages import ProposerMessage
from safekeeper.node.node import Node
from safekeeper.node.proposer_listener import ProposerListener
from safekeeper.node.readable_log import LogView
from tests.simulation.seeds.counts import Counts
from tests.simulation.seeds.runner import Outcome, Task, attempt, has_real_shells

SEEDS = [seed for seed in range(1200) if has_real_shells(Task(seed))]
Patch = Callable[[pytest.MonkeyPatch], None]


def answers_are_lost(patch: pytest.MonkeyPatch) -> None:
    """An answer in sixteen is not sent."""
    send, count = ProposerListener.send, iter(range(1 << 30))

    def planted(listener: ProposerListener, connection: int, message: Any) -> None:
        if next(count) % 16:
            send(listener, connection, message)

    patch.setattr(ProposerListener, "send", planted)


def messages_are_handled_twice(patch: pytest.MonkeyPatch) -> None:
    receive = Node.receive

    def planted(node: Node, connection: int, message: ProposerMessage) -> None:
        receive(node, connection, message)
        if node.ready:
            receive(node, connection, message)

    patch.setattr(Node, "receive", planted)


def readers_are_not_informed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Node, "_after_events", lambda node: None)


def flushes_on_after_a_failure(patch: pytest.MonkeyPatch) -> None:
    """The node ignores that an effect of the disk has failed, and goes on with the next event."""
    done = Node._effect_done

    def planted(node: Node, effect: Effect, result: Any, error: BaseException | None) -> None:
        if isinstance(error, StorageFailed):
            node._handled = None
            node._handle_events()
        else:
            done(node, effect, result, error)

    patch.setattr(Node, "_effect_done", planted)


def readers_keep_their_epoch(patch: pytest.MonkeyPatch) -> None:
    refresh = LogView.refresh

    def planted(view: LogView) -> Any:
        epoch = view.epoch
        before = refresh(view)
        view.epoch = epoch
        return before

    patch.setattr(LogView, "refresh", planted)


def members_receive_another_range(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("safekeeper.node.peer_reads.READ_BYTES_MAX", 100)


def pulls_end_with_the_first_source(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("safekeeper.acceptor.pull_sources.PullSources.failed", lambda sources, _: sources._sources.clear())


def stops_with_unsaved_positions(patch: pytest.MonkeyPatch) -> None:
    def planted(node: Node) -> Effects:
        yield from ()

    patch.setattr(Node, "_write_lazy_positions", planted)


# With each a seed that finds it: from there on others are tried, because a change may let it find nothing.
@pytest.mark.parametrize(
    ("plant", "invariant", "seed"),
    [
        (answers_are_lost, "EffectsExecuted", 0),
        (messages_are_handled_twice, "MessagesInOrder", 0),
        (readers_are_not_informed, "ReadersKnow", 0),
        (members_receive_another_range, "ReadsOfMembers", 34),
        (readers_keep_their_epoch, "ReadersKnow", 357),
        (pulls_end_with_the_first_source, "PullsAsAsked", 607),
        (stops_with_unsaved_positions, "DrainedIsDurable", 119),
        (flushes_on_after_a_failure, "FailedIsSilent", 105),
    ],
)
def test_an_error_of_the_node_is_found(
    plant: Patch, invariant: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("acceptor", "folder", "proposer"):
        monkeypatch.setattr(f"tests.simulation.lone.{name}.drive", lambda seed: Counts())
    plant(monkeypatch)
    for each in SEEDS:
        failed = attempt(Task(each)) if each >= seed else None
        if failed is not None and not isinstance(failed, Outcome):
            assert failed.invariant == invariant, failed.text
            return
    raise AssertionError("no seed has found it")
