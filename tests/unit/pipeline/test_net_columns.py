"""Changes of rows by columns: the same merges as from one change after the other, and which changes need the latter."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safekeeper.base.errors import RemoteProtocolError
from tests.unit import pgoutput_bytes as built
from tests.unit.pgoutput_bytes import UNSENT
from walproxy.pipeline.cdc.apply.fingerprint import Fingerprint, SentColumn
from walproxy.pipeline.cdc.apply.following import FollowingTable, Merge, Position
from walproxy.pipeline.cdc.apply.job_file import KnownTable
from walproxy.pipeline.cdc.apply.net_columns import combine
from walproxy.pipeline.cdc.apply.tables import Tables
from walproxy.pipeline.cdc.apply.target import TargetTable
from walproxy.pipeline.cdc.changes import Change, Changes, RowsByRelation
from walproxy.pipeline.cdc.column_types import BadValue, arrow_type
from walproxy.pipeline.cdc.messages import NotUnderstood, Relation
from walproxy.pipeline.cdc.pgoutput import decode
from walproxy.pipeline.cdc.publication import TableName
from walproxy.pipeline.cdc.server import SourceRefused
from walproxy.pipeline.cdc.slot_stream import SlotStream
from walproxy.pipeline.cdc.spool import Spool
from walproxy.pipeline.cdc.transactions import committed
from walproxy.postgres.logical_replication import Item

INT, TEXT, BYTEA, TIME, BOOL = 23, 25, 17, 1184, 16
Row = dict[str, str | None]


class Source(NamedTuple):
    """A table of the server."""

    oid: int
    columns: list[tuple[str, int]]
    key: list[str]
    identity: str = "d"

    @property
    def described(self) -> bytes:
        marked = [name for name, _ in self.columns] if self.identity == "f" else self.key
        return built.relation(self.oid, f"t{self.oid}", self.columns, key=marked, identity=self.identity)


SOURCES = [
    Source(1, [("id", INT), ("a", TEXT), ("big", TEXT)], ["id"]),
    Source(2, [("flag", BOOL), ("b", TEXT), ("bytes", BYTEA), ("a", TEXT)], ["a", "b"]),
    Source(3, [("id", INT), ("at", TIME), ("big", TEXT)], ["id"], "f"),
    Source(4, [("a", TEXT), ("big", TEXT)], [], "n"),
]
VALUES = {
    INT: st.integers(0, 3).map(str),
    TEXT: st.sampled_from(["", "a", "b", "ab", "é日本\U0001f40e", "n", "NULL"]),
    BYTEA: st.sampled_from(["\\x", "\\x00ff"]),
    TIME: st.sampled_from(["2024-02-29 12:00:00.000001+00", "1999-12-31 00:00:00+00"]),
    BOOL: st.sampled_from("tf"),
}


class Table:
    """A table of the lake that does what it is told, and notes it.

    Attributes:
        rows: the content.
        merges: what was put in, and the position.
    """

    def __init__(self, source: Source) -> None:
        self.table = TableName("public", f"t{source.oid}")
        self._key = source.key
        self._schema = pa.schema([pa.field(name, arrow_type(type_oid, -1)) for name, type_oid in source.columns])
        self.rows: list[dict[str, Any]] = []
        self.merges: list[tuple[Merge, Position]] = []

    storable = staticmethod(FollowingTable.storable)

    def schema(self) -> pa.Schema:
        return self._schema

    def merge(self, merge: Merge, key: Sequence[str], position: Position, *, expected: Position) -> None:
        self.merges.append((merge, position))
        gone = {self._key_of(row) for row in [*merge.upserts.to_pylist(), *merge.deleted.to_pylist()]}
        kept = [row for row in self.rows if not merge.truncated and (not self._key or self._key_of(row) not in gone)]
        self.rows = kept + merge.upserts.to_pylist()

    def lookup(self, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        wanted = {self._key_of(row) for row in keys.to_pylist()}
        schema = pa.schema([self._schema.field(name) for name in dict.fromkeys([*self._key, *columns])])
        return pa.Table.from_pylist([row for row in self.rows if self._key_of(row) in wanted], schema)

    def _key_of(self, row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in self._key)


def target_of(source: Source, **known: Any) -> tuple[TargetTable, Table]:
    table = Table(source)
    columns = {name: SentColumn(number, oid, -1) for number, (name, oid) in enumerate(source.columns, 1)}
    fingerprint = Fingerprint(source.oid, [], 0, {}, {}, columns, {})
    following = cast(FollowingTable, table)
    return TargetTable(following, KnownTable(source.key, fingerprint, **known), arrow_type, Position(0, 0)), table


MadeOf = Callable[[Source], tuple[TargetTable, Table]]


class Feed:
    """A server that sends what it is told to."""

    def __init__(self, items: list[Item], part: int) -> None:
        self._parts = [items[begin : begin + part] for begin in range(0, len(items), part)]

    def take(self, timeout_s: float) -> list[Item]:
        return self._parts.pop(0)

    def ask(self) -> None:
        """It sends all it has."""

    def wait_for(self, lsn: int) -> None:
        """It is on the quorum."""

    def wait_for_flushed(self) -> None:
        """It is on the quorum."""


def by_columns(items: list[Item], part: int, held_bytes_max: int) -> Iterator[Change | RowsByRelation]:
    feed = Feed([*items, (1 << 40, b"")], part)
    stream = SlotStream(
        feed,
        feed,
        0,
        version=4,
        held_bytes_max=held_bytes_max,
        is_held_back=lambda: False,
        stop=threading.Event(),
    )
    yield from stream.read(1 << 40, lambda: None)


def run_by_columns(
    items: list[Item], part: int, held_bytes_max: int, flushes: Sequence[bool], made: MadeOf = target_of
) -> tuple[Any, Any]:
    """Take all changes; return the tables, and where they were flushed."""
    targets = {source.oid: made(source) for source in SOURCES}
    positions = []
    wanted = iter(flushes)
    for found in by_columns(items, part, held_bytes_max):
        if isinstance(found, Change):
            assert found.kind == "truncate" and found.relation is not None
            targets[found.relation.oid][0].take(found)
            position = Position(found.transaction.commit_lsn, found.sequence + 1)
        else:
            for rows in found.parts:
                targets[rows.relation.oid][0].take_rows(rows)
            position = Position(found.transaction.commit_lsn, found.end_sequence)
        if next(wanted, False):
            positions.append(position)
            for target, _ in targets.values():
                target.flush(position)
    positions.append(Position(1 << 40, 0))
    for target, _ in targets.values():
        target.flush(positions[-1])
    return {oid: table for oid, (_, table) in targets.items()}, positions


def run_one_by_one(items: list[Item], positions: Sequence[Position], made: MadeOf = target_of) -> Any:
    targets = {source.oid: made(source) for source in SOURCES}
    left = list(positions)
    for change in Changes(committed(items, Spool(), version=4)):
        assert change.relation is not None
        while Position(change.transaction.commit_lsn, change.sequence) >= left[0]:
            position = left.pop(0)
            for target, _ in targets.values():
                target.flush(position)
        targets[change.relation.oid][0].take(change)
    for position in left:
        for target, _ in targets.values():
            target.flush(position)
    return {oid: table for oid, (_, table) in targets.items()}


@st.composite
def sent(draw: st.DrawFn) -> tuple[list[Item], dict[int, list[Row]]]:
    """Draw transactions of a server, and the rows that its tables have then."""
    content: dict[int, list[Row]] = {source.oid: [] for source in SOURCES}
    described: set[int] = set()
    items: list[bytes] = []
    for number in range(1, draw(st.integers(1, 4)) + 1):
        items.append(built.begin(number * 100, number, time_us=number))
        for _ in range(draw(st.integers(0, 12))):
            source = draw(st.sampled_from(SOURCES))
            change = draw_change(draw, source, content[source.oid])
            if change and (source.oid not in described or draw(st.integers(0, 9)) == 0):
                described.add(source.oid)
                items.append(source.described)
            items += change
        items.append(built.commit(number * 100, number * 100 + 30))
    return [(number, data) for number, data in enumerate(items)], content


def draw_change(draw: st.DrawFn, source: Source, rows: list[Row]) -> list[bytes]:
    new: Row = {}
    for name, type_oid in source.columns:
        value: st.SearchStrategy[str | None] = VALUES[type_oid]
        new[name] = draw(value if name in source.key else st.none() | value)
    action = draw(st.sampled_from("iiuuukdt" if source.key else "iiit"))
    if action == "t" and draw(st.booleans()):
        rows.clear()
        return [built.truncate([source.oid])]
    if action == "i" and not any(source.key and is_same(source, row, new) for row in rows):
        rows.append(new)
        return [built.insert(source.oid, *new.values())]
    if not rows or not source.key or action in "it":
        return []
    index = draw(st.integers(0, len(rows) - 1))
    old = rows[index]
    if action == "d":
        del rows[index]
        gone = old_of(source, old)
        return [built.delete(source.oid, before=gone) if source.identity == "f" else built.delete(source.oid, key=gone)]
    if action == "u":
        new |= {name: old[name] for name in source.key}
    elif any(is_same(source, row, new) for row in rows):
        return []
    after: dict[str, object] = dict(new)
    if old.get("big") is not None and draw(st.booleans()):
        new["big"], after["big"] = old["big"], UNSENT
    rows[index] = new
    if source.identity == "f":
        return [built.update(source.oid, list(after.values()), before=old_of(source, old))]
    if action == "u":
        return [built.update(source.oid, list(after.values()))]
    return [built.update(source.oid, list(after.values()), key=old_of(source, old))]


def is_same(source: Source, one: Row, other: Row) -> bool:
    return all(one[name] == other[name] for name in source.key)


def old_of(source: Source, row: Row) -> list[str | None]:
    return [value if name in source.key or source.identity == "f" else None for name, value in row.items()]


@settings(max_examples=60, deadline=None)
@given(sent(), st.integers(1, 30), st.sampled_from([1, 60, 1 << 20]), st.lists(st.booleans(), max_size=10))
def test_what_is_combined_by_columns_is_what_single_changes_give(
    script: tuple[list[Item], dict[int, list[Row]]], part: int, held_bytes_max: int, flushes: list[bool]
) -> None:
    items, content = script
    tables, positions = run_by_columns(items, part, held_bytes_max, flushes)
    expected = run_one_by_one(items, positions)
    for source in SOURCES:
        assert list(map(shown, tables[source.oid].merges)) == list(map(shown, expected[source.oid].merges))
        found = [{name: text_of(value) for name, value in row.items()} for row in tables[source.oid].rows]
        assert sorted(map(repr, found)) == sorted(map(repr, content[source.oid]))


def shown(merged: tuple[Merge, Position]) -> tuple[Any, ...]:
    """Return what a merge is, whatever the order of its rows."""
    merge, position = merged
    rows = [sorted(map(repr, table.to_pylist())) for table in (merge.upserts, merge.deleted)]
    return position, merge.truncated, rows, merge.upserts.schema, merge.deleted.schema


def text_of(value: Any) -> str | None:
    """Return a value as PostgreSQL prints it."""
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if hasattr(value, "isoformat"):
        return str(value.isoformat(" ")).removesuffix(":00")
    return None if value is None else str(value)


INSERTED = built.insert(1, "1", "a", None)


@pytest.mark.parametrize(
    "message",
    [
        built.update(1, ["1", "a", "x"]),
        built.update(1, ["1", "a", "x"], key=["2", None, None]),
        built.update(1, ["1", "a", "x"], before=["2", "a", "x"]),
        built.delete(1, key=["1", None, None]),
        built.delete(1, before=["1", None, "x"]),
    ],
)
def test_ordinary_changes_are_taken_by_columns(message: bytes) -> None:
    assert combine([INSERTED, message], 3, (0,)) is not None


@pytest.mark.parametrize(
    "message",
    [
        built.insert(1, "1", "a", b"\x01"),
        built.update(1, [UNSENT, "a", "x"]),
        built.insert(1, None, "a", "x"),
        built.update(1, ["1", "a", "x"], key=[None, None, None]),
        built.update(1, ["1", "a", "x"], key=["1", None]),
        built.insert(1, "1", "a"),
        built.insert(1, "1", "a", "x", "y"),
        INSERTED + b"n",
        b"",
        b"I",
        b"D" + INSERTED[1:],
        b"I" + built.delete(1, key=["1", None, None])[1:],
        b"U" + INSERTED[1:5] + b"X" + INSERTED[6:],
        built.update(1, ["1", "a", "x"], key=["2", None, None]).replace(b"N", b"K"),
        *(INSERTED[:end] for end in range(1, len(INSERTED))),
    ],
)
@pytest.mark.parametrize("others", [[], [INSERTED]])
def test_everything_else_is_left_to_the_reference(message: bytes, others: list[bytes]) -> None:
    assert combine([message, *others], 3, (0,)) is None
    assert combine([*others, message], 3, (0,)) is None


def test_rows_with_values_that_were_not_sent_are_left_with_all_their_changes() -> None:
    messages = [
        built.insert(1, "5", "a", "x"),
        built.insert(1, "1", "a", "x"),
        built.insert(1, "2", "a", "x"),
        built.update(1, ["3", "b", "x"], key=["2", None, None]),
        built.update(1, ["4", "b", "x"], key=["3", None, None]),
        built.update(1, ["4", "b", UNSENT]),
        built.delete(1, key=["1", None, None]),
        built.delete(1, key=["6", None, None]),
    ]
    found = combine(messages, 3, (0,))
    assert found is not None
    assert found.left.tolist() == [2, 3, 4, 5]
    assert (found.texts(0).to_pylist(), found.gone_keys(0).to_pylist()) == ([b"5"], [b"1", b"6"])
    assert combine([built.insert(1, "1", "a", "x"), built.update(1, ["1", "a", UNSENT])], 3, ()) is None


def test_a_long_chain_of_keys_from_a_value_that_was_not_sent_is_left_to_the_reference() -> None:
    first = built.update(1, ["0", "b", UNSENT], key=["1", None, None])
    for length, is_left in [(4, False), (100, True)]:
        chain = [built.update(1, [str(n), "b", "x"], key=[str(n + 1), None, None]) for n in range(1, length)]
        assert (combine([first, *chain], 3, (0,)) is None) is is_left


def test_what_is_held_is_counted_with_what_combining_it_costs() -> None:
    narrow = rows_of(INSERTED, INSERTED)
    assert narrow.size == 2 * len(INSERTED)
    assert narrow.held_bytes == narrow.size + 2 * (130 + 50 * 3)


def test_a_message_without_a_whole_oid_is_cut_short() -> None:
    with pytest.raises(NotUnderstood, match="cut short"):
        rows_of(INSERTED, b"I")


def test_rows_without_a_key_are_only_added() -> None:
    assert combine([INSERTED, INSERTED], 3, ()) is not None
    assert combine([INSERTED, built.delete(1, before=["1", None, None])], 3, ()) is None


def rows_of(*messages: bytes, source: Source = SOURCES[0], lsn: int = 100) -> RowsByRelation:
    sent = [built.begin(lsn, 7), source.described, *messages, built.commit(lsn, lsn + 30)]
    found = list(by_columns([(5, each) for each in sent], 9, 9999))
    assert len(found) == 1 and isinstance(found[0], RowsByRelation)
    return found[0]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (built.insert(1, None, "a", "x"), RemoteProtocolError),
        (built.insert(1, "1", "a", UNSENT), RemoteProtocolError),
        (built.insert(1, "1", "a"), NotUnderstood),
        (INSERTED[:-1], NotUnderstood),
        (built.insert(1, "1", b"a", "x"), SourceRefused),
        (built.insert(1, "one", "a", "x"), BadValue),
        (built.insert(1, "1", "a", "x").replace(b"x", b"\xff"), SourceRefused),
    ],
)
def test_what_cannot_be_is_refused_when_the_table_is_written(message: bytes, error: type[Exception]) -> None:
    target, _ = target_of(SOURCES[0])
    target.take_rows(rows_of(INSERTED, message).parts[0])
    with pytest.raises(error):
        target.flush(Position(200, 0))


def test_a_bad_value_becomes_null_where_that_is_asked_for() -> None:
    source = Source(3, [("id", INT), ("at", TIME)], ["id"])
    target, table = target_of(source, bad_as_null=True)
    target.take_rows(rows_of(built.insert(3, "1", "infinity"), source=source).parts[0])
    target.flush(Position(200, 0))
    assert table.rows == [{"id": 1, "at": None}]


def test_what_the_table_has_is_passed_over() -> None:
    rows = rows_of(*(built.insert(1, str(number), "a", "x") for number in range(4))).parts[0]
    for sequence, expected in [(0, [0, 1, 2, 3]), (2, [2, 3]), (4, [])]:
        target, table = target_of(SOURCES[0])
        target.position = Position(100, sequence)
        target.take_rows(rows)
        target.flush(Position(200, 0))
        assert [row["id"] for row in table.rows] == expected


def test_numbers_are_those_of_the_transaction_where_tables_take_turns() -> None:
    relation = decode(SOURCES[0].described, lsn=0, version=4)
    assert isinstance(relation, Relation)
    items = [built.begin(100, 7), SOURCES[0].described, SOURCES[3].described]
    items += [INSERTED, built.insert(4, "a", None), INSERTED, built.truncate([4]), INSERTED, built.commit(100, 130)]
    first, truncate, last = by_columns([(5, each) for each in items], 20, 9999)
    assert isinstance(first, RowsByRelation) and isinstance(last, RowsByRelation) and isinstance(truncate, Change)
    assert [(part.relation.oid, [part.place(index)[1] for index in part.indices]) for part in first.parts] == [
        (1, [0, 2]),
        (4, [1]),
    ]
    assert (first.end_sequence, truncate.sequence, last.parts[0].place(0)[1]) == (3, 3, 4)
    assert [change.sequence for change in first.parts[0].changes()] == [0, 2]


def test_a_label_that_is_no_text_is_refused_in_one_line() -> None:
    target, _ = target_of(SOURCES[0])
    target._labels = {"a": {"a"}}
    target.take_rows(rows_of(built.insert(1, "1", "a", "x").replace(b"a", b"\xff")).parts[0])
    with pytest.raises(SourceRefused, match="label"):
        target.flush(Position(200, 0))


def test_a_table_is_copied_again_for_what_cannot_be_applied_and_not_for_what_is_not_understood() -> None:
    target, table = target_of(SOURCES[0])
    tables = cast(Tables, None)
    with pytest.raises(NotUnderstood), Tables._copied_instead(tables, target):
        raise NotUnderstood("it is cut short")
    assert target.copy_reason is None
    target.take_rows(rows_of(INSERTED).parts[0])
    with Tables._copied_instead(tables, target):
        raise SourceRefused("a reason")
    assert target.copy_reason == "a reason"
    target.copy_reason = None
    assert not target.flush(Position(200, 0)), "what was held is gone"
    assert table.rows == []
