"""Transactions put together: pieces, rollbacks, prepared ones, ranges."""

import itertools
import random
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.lsn import LSN_MAX
from tests.unit import pgoutput_bytes as built
from walproxy.pipeline.cdc.messages import Begin, Commit, Insert, LogicalMessage, Message, Relation, Rows, Type
from walproxy.pipeline.cdc.spool import Spool
from walproxy.pipeline.cdc.transactions import committed

TABLE = built.relation(1, "t", [("id", 23)], key=["id"])


def out(
    messages: Iterable[bytes], *, version: int = 4, begin_lsn: int = 0, end_lsn: int = LSN_MAX
) -> list[Message | Rows]:
    sent = ((index, data) for index, data in enumerate(messages))
    return [each.message for each in committed(sent, Spool(), version=version, begin_lsn=begin_lsn, end_lsn=end_lsn)]


def values(messages: Iterable[Message | Rows]) -> list[str]:
    return [
        each.after[0].decode() for each in messages if isinstance(each, Insert) and isinstance(each.after[0], bytes)
    ]


def transaction(xid: int, commit_lsn: int, *cells: str, definitions: Sequence[bytes] = ()) -> list[bytes]:
    changes = [built.insert(1, cell) for cell in cells]
    return [built.begin(commit_lsn, xid), *definitions, *changes, built.commit(commit_lsn, commit_lsn + 0x30)]


def piece(xid: int, first: bool, *changes: bytes) -> list[bytes]:
    return [built.stream_start(xid, first), *changes, built.STREAM_STOP]


def test_a_transaction_that_comes_whole_is_given_out_as_it_came() -> None:
    assert out(transaction(7, 0x100, "a", definitions=[TABLE])) == [
        Begin(0x100, 5, 7),
        Relation(0, 1, "public", "t", "d", ((("id", True, 23, -1)),)),  # type: ignore[arg-type]
        Insert(0, 1, (b"a",)),
        Commit(0x100, 0x130, 5),
    ]


def test_pieces_wait_for_their_commit_and_come_out_in_the_order_of_commits() -> None:
    messages = [
        *piece(7, True, TABLE[:1] + b"\0\0\0\7" + TABLE[1:], built.insert(1, "a", xid=7)),
        *piece(8, True, built.insert(1, "b", xid=8)),
        *transaction(9, 0x100, "c", definitions=[TABLE]),
        *piece(7, False, built.insert(1, "d", xid=7)),
        built.stream_commit(8, 0x200, 0x230),
        built.stream_commit(7, 0x300, 0x330),
    ]
    found = out(messages)
    assert values(found) == ["c", "b", "a", "d"]
    assert [each for each in found if isinstance(each, Begin)] == [
        Begin(0x100, 5, 9),
        Begin(0x200, 5, 8),
        Begin(0x300, 5, 7),
    ]
    assert found[-1] == Commit(0x300, 0x330, 5)


def test_a_subtransaction_that_is_rolled_back_takes_only_its_own_changes() -> None:
    messages = [
        *piece(7, True, built.insert(1, "a", xid=7), built.insert(1, "b", xid=8), built.insert(1, "c", xid=9)),
        built.stream_abort(7, 8),
        *piece(7, False, built.insert(1, "d", xid=7)),
        built.stream_commit(7, 0x300, 0x330),
    ]
    assert values(out(messages)) == ["a", "c", "d"]


def test_what_a_relation_looks_like_stays_when_the_subtransaction_around_it_is_rolled_back() -> None:
    in_piece = built.relation(1, "t", [("id", 23)], xid=8)
    messages = [
        *piece(7, True, in_piece, built.type_name(5, "s", "e", xid=8), built.insert(1, "b", xid=8)),
        built.stream_abort(7, 8),
        *piece(7, False, built.insert(1, "d", xid=7)),
        built.stream_commit(7, 0x300, 0x330),
    ]
    kinds = [type(each) for each in out(messages)]
    assert kinds == [Begin, Relation, Type, Insert, Commit]


def test_a_transaction_that_is_rolled_back_leaves_nothing() -> None:
    messages = [*piece(7, True, built.insert(1, "a", xid=7)), built.stream_abort(7, 7), *transaction(8, 0x100, "b")]
    assert values(out(messages)) == ["b"]


def test_pieces_without_a_commit_are_forgotten() -> None:
    assert out(piece(7, True, built.insert(1, "a", xid=7))) == []


def test_a_prepared_transaction_comes_out_when_it_is_committed() -> None:
    messages = [
        built.begin_prepare(0x10, 0x20, 7, "g"),
        TABLE,
        built.insert(1, "a"),
        built.prepare(0x10, 0x20, 7, "g"),
        *piece(8, True, built.insert(1, "b", xid=8)),
        built.stream_prepare(0x30, 0x40, 8, "h"),
        *transaction(9, 0x50, "c"),
        built.commit_prepared(0x60, 0x70, 8, "h"),
        built.rollback_prepared(0x20, 0x80, 5, "of another time"),
        built.commit_prepared(0x90, 0xA0, 7, "g"),
    ]
    found = out(messages)
    assert values(found) == ["c", "b", "a"]
    assert Begin(0x90, 5, 7) in found
    rolled_back = [*messages[:4], built.rollback_prepared(0x20, 0x80, 7, "g")]
    assert out(rolled_back) == []


def test_a_range_has_the_transactions_whose_commit_record_begins_in_it() -> None:
    messages = [
        *transaction(7, 0x100, "a"),
        *piece(8, True, built.insert(1, "b", xid=8)),
        built.stream_commit(8, 0x200, 0x230),
        *transaction(9, 0x300, "c"),
    ]
    assert values(out(messages, begin_lsn=0x100, end_lsn=0x300)) == ["a", "b"]
    assert values(out(messages, begin_lsn=0x101, end_lsn=0x200)) == []
    assert values(out(messages, begin_lsn=0x200, end_lsn=0x301)) == ["b", "c"]


def test_relations_and_types_are_given_out_also_from_transactions_outside_of_the_range() -> None:
    in_piece = built.relation(2, "u", [("id", 23)], xid=8)
    messages = [
        *transaction(7, 0x100, "a", definitions=[built.type_name(5, "s", "e"), TABLE]),
        *piece(8, True, in_piece),
        built.stream_commit(8, 0x200, 0x230),
    ]
    found = out(messages, begin_lsn=0x300)
    assert [each.name for each in found if isinstance(each, Relation | Type)] == ["e", "t", "u"]
    assert len(found) == 3


def test_a_message_of_no_transaction_is_left_out_and_one_of_a_transaction_is_not() -> None:
    messages = [
        built.message("p", b"1", transactional=False),
        built.begin(0x100, 7),
        built.message("p", b"2"),
        built.commit(0x100, 0x130),
    ]
    assert [each.content for each in out(messages) if isinstance(each, LogicalMessage)] == [b"2"]


@pytest.mark.parametrize(
    "messages",
    [
        [built.insert(1, "a")],
        [built.commit(1, 2)],
        [built.origin(1, "o")],
        [built.STREAM_STOP],
        [built.begin(1, 7), built.begin(2, 8)],
        [built.begin(1, 7), built.commit(2, 3)],
        [built.begin(1, 7), built.stream_start(8, True)],
        [built.begin(1, 7), built.insert(1, "a")],
        [built.stream_start(7, False)],
        [*piece(7, True), *piece(7, True)],
        [built.stream_start(7, True), built.begin(1, 8)],
        [built.stream_start(7, True), b"I\0\0"],
        [built.stream_start(7, True), built.insert(1, "a", xid=7)],
        [built.stream_commit(7, 1, 2)],
        [built.stream_abort(7, 7)],
        [built.stream_abort(7, 8)],
        [built.stream_prepare(1, 2, 7, "g")],
        [built.commit_prepared(1, 2, 7, "g")],
        [built.begin_prepare(1, 2, 7, "g"), built.commit(1, 2)],
        [built.begin_prepare(1, 2, 7, "g"), built.prepare(1, 2, 8, "g")],
        [built.begin_prepare(1, 2, 7, "g")],
    ],
)
def test_messages_in_an_order_that_no_server_sends_are_refused(messages: list[bytes]) -> None:
    with pytest.raises(RemoteProtocolError):
        out(messages)


class _History:
    """Transactions that ran beside each other: what a server sends of them whole, and what it sends in pieces."""

    def __init__(self, chance: random.Random) -> None:
        self.whole: list[bytes] = [TABLE]
        self.in_pieces: list[bytes] = [TABLE]
        self._chance = chance
        self._lsn = 0x100
        open_: dict[int, tuple[list[tuple[int, str]], list[int]]] = {}  # changes, subtransactions
        started: set[int] = set()
        next_xid, cell = 10, 0
        for _ in range(chance.randrange(60)):
            action = chance.randrange(6)
            if action == 0 or not open_:
                open_[next_xid] = ([], [])
                next_xid += 1
                continue
            xid = chance.choice(list(open_))
            changes, subs = open_[xid]
            if action in (1, 2, 3):
                if chance.random() < 0.3:
                    subs.append(next_xid)
                    next_xid += 1
                who = chance.choice([xid, *subs])
                part = [str(cell + number) for number in range(chance.randrange(1, 4))]
                cell += len(part)
                changes += [(who, each) for each in part]
                inserts = [built.insert(1, each, xid=who) for each in part]
                self.in_pieces += piece(xid, xid not in started, *inserts)
                started.add(xid)
            elif action == 4 and subs:
                sub = subs.pop(chance.randrange(len(subs)))
                changes[:] = [change for change in changes if change[0] != sub]
                if xid in started:
                    self.in_pieces.append(built.stream_abort(xid, sub))
            elif action == 5:
                self._end(xid, [each for _, each in changes], xid in started)
                del open_[xid]

    def _end(self, xid: int, cells: list[str], was_streamed: bool) -> None:
        if self._chance.random() < 0.2:
            if was_streamed:
                self.in_pieces.append(built.stream_abort(xid, xid))
            return
        self._lsn += self._chance.randrange(0x30, 0x100)
        self.whole += transaction(xid, self._lsn, *cells)
        if was_streamed:
            self.in_pieces.append(built.stream_commit(xid, self._lsn, self._lsn + 0x30))
        else:
            self.in_pieces += transaction(xid, self._lsn, *cells)


@given(st.integers(0, 2**32), st.integers(0, 3000))
def test_pieces_give_the_same_transactions_as_if_they_had_come_whole(seed: int, memory_bytes: int) -> None:
    history = _History(random.Random(seed))

    def all_of(messages: list[bytes]) -> list[Message | Rows]:
        sent = ((0, data) for data in messages)
        found = [each.message for each in committed(sent, Spool(memory_bytes), version=4)]
        return [each._replace(xid=0) if isinstance(each, Insert) else each for each in found]

    assert all_of(history.in_pieces) == all_of(history.whole)


@given(st.integers(0, 2**32), st.lists(st.integers(0, 0x1000), max_size=6))
def test_ranges_that_meet_have_each_transaction_once(seed: int, cuts: list[int]) -> None:
    history = _History(random.Random(seed))
    bounds = [0, *sorted(cuts), LSN_MAX]
    found: list[str] = []
    for begin_lsn, end_lsn in itertools.pairwise(bounds):
        found += values(out(history.in_pieces, begin_lsn=begin_lsn, end_lsn=end_lsn))
    assert found == values(out(history.whole))
