"""The states of an acceptor: docs/design/protocol.md lists the events that change them, and each of them does."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.acceptor.effects import ResetWal, WriteWal
from safekeeper.base.errors import StorageFull
from safekeeper.consensus.folder_state import FolderState
from safekeeper.consensus.messages import FolderIsOlder, RefusalCode
from tests.unit.acceptor.test_acceptor import (
    BASE,
    OWN,
    P1,
    P2,
    SEGMENT,
    Bench,
    asks,
    elected,
    member,
    rebootstrap,
)
from tests.unit.acceptor.test_acceptor import following as following_with
from tests.unit.acceptor.test_acceptor_pull import END, pull, pulled, pulling

PROTOCOL = Path(__file__).parents[3] / "docs" / "design" / "protocol.md"
HISTORY = (1, BASE, 1)


def state_of(acceptor: Acceptor) -> str:
    if acceptor.following is None:
        return "idle"
    return "pulling" if acceptor.following.pull is not None else "following"


def following() -> Bench:
    return following_with(100)


def adopts(bench: Bench) -> None:
    bench.deliver(elected(P2, HISTORY, (2, BASE + bench.acceptor.flush_lsn % SEGMENT, 1)))
    assert bench.acceptor.leader == P2


def is_refused_another_leader(bench: Bench) -> None:
    commits(bench)
    assert bench.deliver(elected(P2, (2, BASE, 1))).code is RefusalCode.HISTORY


def commits(bench: Bench) -> None:
    bench.append(bench.acceptor.write_lsn, commit_lsn=bench.acceptor.write_lsn)


def has_no_space_for_an_adoption(bench: Bench) -> None:
    bench.full = ResetWal
    skip = elected(P1, HISTORY, base_lsn=BASE + 2 * SEGMENT, settled_lsn=BASE + 2 * SEGMENT)
    assert bench.deliver(skip).code is RefusalCode.STORAGE_FULL


def fails_to_pull(bench: Bench) -> None:
    assert bench.acceptor.pull is not None
    bench.run(bench.acceptor.pull_failed(bench.acceptor.pull, "gone"))


def has_no_space_for_pulled_wal(bench: Bench) -> None:
    bench.full = WriteWal
    with pytest.raises(StorageFull):
        pulled(bench, 100, b"a" * 10)


def is_an_older_copy(bench: Bench) -> None:
    bench.deliver(FolderIsOlder(P1, FolderState(1, OWN, 9, 1, BASE + 500)))


# The events of the table, by the beginning of their text.
EVENTS: dict[str, Callable[[Bench], object]] = {
    "it adopts the history of an `Elected`": adopts,
    "the leader's `PullWal` names a source and": lambda bench: bench.deliver(pull()),
    "an `Elected` of another leader": is_refused_another_leader,
    "another `PullWal`": lambda bench: bench.deliver(pull(2)),
    "the leader's `PullWal` names no source": lambda bench: bench.deliver(pull(2, sources=())),
    "the WAL of the pull is written": lambda bench: pulled(bench, 100, b"a" * (END - BASE - 100)),
    "no source of the pull": fails_to_pull,
    "there is no disk space for WAL that was pulled": has_no_space_for_pulled_wal,
    "it votes": lambda bench: bench.deliver(asks(P2)),
    "there is no disk space for an adoption": has_no_space_for_an_adoption,
    "the leader's connection": lambda bench: bench.acceptor.disconnected(1),
    "a rebootstrap": lambda bench: bench.deliver(rebootstrap()),
    "a `FolderIsOlder`": is_an_older_copy,
}
IN_STATE = {"idle": member, "following": following, "pulling": pulling}


def rows() -> list[tuple[str, str, str]]:
    text = PROTOCOL.read_text().partition("\n## States of an acceptor\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| ([\w, ]+) \| (\w+) \| (.+) \|$", text, re.MULTILINE)[1:]
    return [(state, after, event) for states, after, event in found for state in states.split(", ")]


@pytest.mark.parametrize(("state", "after", "event"), rows())
def test_an_event_of_the_protocols_table_changes_the_state_as_documented(state: str, after: str, event: str) -> None:
    (happens,) = (happens for text, happens in EVENTS.items() if event.startswith(text))
    bench = IN_STATE[state]()
    assert state_of(bench.acceptor) == state
    happens(bench)
    assert state_of(bench.acceptor) == after


def test_each_event_of_this_test_is_in_the_table() -> None:
    assert len(rows()) == 21
    assert all(any(event.startswith(text) for _, _, event in rows()) for text in EVENTS)


def test_nothing_of_a_leader_outlives_it() -> None:
    bench = pulling()
    bench.append(BASE + 100, b"w", commit_lsn=BASE + 500, sequence=7, healthy=False)
    before = bench.acceptor.following
    assert before is not None and (before.commit_lsn, before.sequence, before.is_healthy) == (BASE + 500, 7, False)
    bench.deliver(elected(P1, HISTORY, commit_lsn=BASE + 50))
    after = bench.acceptor.following
    assert after is not None and after is not before
    assert (after.commit_lsn, after.sequence, after.is_healthy, after.pull) == (BASE + 50, 0, True, None)
