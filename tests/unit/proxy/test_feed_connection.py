"""The states of a connection to a primary, and that their table is that of docs/design/architecture.md."""

import re
from pathlib import Path
from typing import Any

import pytest

from safekeeper.base.errors import InvariantViolation
from tests.unit.event_loop import on_the_loop
from walproxy.postgres.problems import PrimaryProblem
from walproxy.proxy.feed_connection import TRANSITIONS, FeedConnection, FeedState

ARCHITECTURE = Path(__file__).parents[3] / "docs" / "design" / "architecture.md"


class Receiver:
    """A replication connection, as far as its end."""

    closes = 0

    def close(self) -> None:
        self.closes += 1


def connection() -> FeedConnection:
    receiver: Any = Receiver()
    slot: Any = None
    return FeedConnection(receiver, slot)


@on_the_loop
async def test_a_state_is_left_for_those_of_the_table_only() -> None:
    for before in FeedState:
        for after in FeedState:
            there = connection()
            there.state = before
            if after in TRANSITIONS[before]:
                there._enter(after)
                assert there.state is after
            else:
                with pytest.raises(InvariantViolation, match=f"from {before.value} to {after.value}"):
                    there._enter(after)


def test_the_architecture_documents_the_transitions() -> None:
    heading = "### States of the connection to a primary"
    text = ARCHITECTURE.read_text().partition(f"\n{heading}\n")[2].partition("\n#")[0]
    documented = re.findall(r"^\| (\w+) \| (\w+) \| \S", text, re.MULTILINE)[1:]
    assert sorted(documented) == sorted((now.value, then.value) for now in TRANSITIONS for then in TRANSITIONS[now])


@on_the_loop
async def test_a_copy_and_the_requested_wal_exist_in_their_states() -> None:
    there, wal = connection(), object()
    there.become_starting(wal)  # type: ignore[arg-type]
    assert (there.state, there.wal, there.copy) == (FeedState.STARTING, wal, None)
    copy = there.become_streaming(1.0)
    assert (there.state, there.wal, there.copy) == (FeedState.STREAMING, wal, copy)
    there.end_copy()
    assert (there.state, there.wal, there.copy) == (FeedState.STARTING, wal, None)
    there.become_idle()
    assert (there.state, there.wal, there.copy) == (FeedState.IDLE, None, None)


@on_the_loop
async def test_a_refusal_stays_and_drops_what_was_requested() -> None:
    there = connection()
    there.raise_if_closed()
    there.requests.put_nowait(None)
    there.stop("no term is held")
    assert (there.state, there.requests.empty()) == (FeedState.STOPPED, True)
    there.refuse("other bytes")
    there.stop("no term is held")
    assert (there.state, there.reason) == (FeedState.REFUSED, "other bytes")
    with pytest.raises(PrimaryProblem, match="other bytes"):
        there.raise_if_closed()
