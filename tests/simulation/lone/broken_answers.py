"""Answers that break the protocol, made of answers that do not: the proposer must refuse these, and no others.

Theory of operation. One field is drawn and given another value. Most results break the protocol, and some do not: the
reference of the proposer decides (references/proposer/broken.py). Messages without a rule stay as they are.
"""

import random
from collections.abc import Callable
from typing import Any

import msgspec

from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.messages import (
    AcceptorGreeting,
    AcceptorMessage,
    AppendResponse,
    DigestResponse,
    FolderStates,
    PullEnded,
    ReadResponse,
    VoteResponse,
)
from safekeeper.consensus.term_history import HistoryEntry

FAR = 1 << 30


def broken(rng: random.Random, message: AcceptorMessage) -> AcceptorMessage:
    """Return a message with one field changed."""
    draw = _DRAWS.get(type(message))
    return message if draw is None else _with(message, **draw(rng, message))


def _positions(rng: random.Random, answer: AppendResponse) -> dict[str, Any]:
    return rng.choice(
        (
            {"flush_lsn": answer.write_lsn + 1},
            {"write_lsn": answer.write_lsn + FAR},
            {"write_lsn": answer.write_lsn + FAR, "flush_lsn": answer.write_lsn + FAR},
        )
    )


def _greeting(rng: random.Random, greeting: AcceptorGreeting) -> dict[str, Any]:
    return rng.choice(
        (
            {"safekeeper_id": greeting.safekeeper_id + 1},
            {"protocol_version": greeting.protocol_version - 1},
            {"cluster_id": ""},
        )
    )


def _vote(rng: random.Random, vote: VoteResponse) -> dict[str, Any]:
    history = vote.history
    last = history[-1] if history else HistoryEntry(1, max(1, vote.flush_lsn), 1)
    term = vote.leader_id.term
    return rng.choice(
        (
            {"history": (*history, _with(last, term=term, gives_up=False))},
            {"history": (*history, _with(last, term=last.term + 1, start_lsn=vote.flush_lsn + 1))},
            {"history": history[::-1]},
            {"history": (*history[:-1], _with(last, start_lsn=0))},
            {"flush_lsn": last.start_lsn - 1},
        )
    )


def _digest(rng: random.Random, answer: DigestResponse) -> dict[str, Any]:
    return rng.choice(
        (
            {"page_crcs": answer.page_crcs[1:]},
            {"page_crcs": (*answer.page_crcs, 1)},
            {"begin_lsn": answer.begin_lsn + 1},
            {"begin_lsn": answer.begin_lsn - 1},
            {"begin_lsn": answer.end_lsn, "page_crcs": ()},
            {"end_lsn": answer.end_lsn + FAR},
            {"request_id": answer.request_id + 1},
        )
    )


def _folders(rng: random.Random, states: FolderStates) -> dict[str, Any]:
    own = states.folders[0]
    return {"folders": (_with(own, safekeeper_id=own.safekeeper_id + 1), *states.folders[1:])}


def _read(rng: random.Random, answer: ReadResponse) -> dict[str, Any]:
    return rng.choice(
        (
            {"payload": b""},
            {"payload": bytes(answer.payload) * 9000},
            {"begin_lsn": answer.begin_lsn + 1},
            {"begin_lsn": answer.begin_lsn - 1},
            {"request_id": answer.request_id + 1},
        )
    )


def _pull(rng: random.Random, ended: PullEnded) -> dict[str, Any]:
    return rng.choice(
        (
            {"write_lsn": ended.write_lsn + FAR},
            {"write_lsn": 1},
            {"leader_id": LeaderId(ended.leader_id.term, "run-o")},
            {"request_id": ended.request_id - 1},
        )
    )


def _with(value: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(value, **changes)


_DRAWS: dict[type, Callable[[random.Random, Any], dict[str, Any]]] = {
    AppendResponse: _positions,
    AcceptorGreeting: _greeting,
    VoteResponse: _vote,
    DigestResponse: _digest,
    FolderStates: _folders,
    ReadResponse: _read,
    PullEnded: _pull,
}
