"""What tables of each mode have after any changes, whatever the batches are: deleted rows with marks, and history."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.pgwire.backend import POSTGRES_EPOCH_US
from tests.unit import pgoutput_bytes as built
from tests.unit.pgoutput_bytes import UNSENT
from tests.unit.pipeline.test_net_columns import (
    SOURCES,
    TEXT,
    Row,
    Source,
    Table,
    by_columns,
    rows_of,
    run_by_columns,
    run_one_by_one,
    sent,
    text_of,
)
from walproxy.pipeline.cdc.apply.fingerprint import Fingerprint, SentColumn
from walproxy.pipeline.cdc.apply.following import FollowingTable, Position
from walproxy.pipeline.cdc.apply.job_file import KnownTable
from walproxy.pipeline.cdc.apply.modes import own_columns
from walproxy.pipeline.cdc.apply.present_rows import present_rows
from walproxy.pipeline.cdc.apply.target import TargetTable
from walproxy.pipeline.cdc.changes import Change, Changes, RowsByRelation
from walproxy.pipeline.cdc.column_types import arrow_type
from walproxy.pipeline.cdc.messages import UNCHANGED
from walproxy.pipeline.cdc.spool import Spool
from walproxy.pipeline.cdc.transactions import committed
from walproxy.pipeline.choices import FollowingMode
from walproxy.postgres.logical_replication import Item

Script = tuple[list[Item], dict[int, list[Row]]]


class ModeTable(Table):
    """A table of a mode, whose rows have its columns too."""

    def __init__(self, source: Source, mode: FollowingMode) -> None:
        super().__init__(source)
        self._schema = pa.schema([*own_columns(mode), *self._schema])

    def append(self, batches: Iterable[pa.RecordBatch], position: Position, *, expected: Position) -> None:
        self.rows += self._listed(batches)

    def rewrite(self, batches: Iterable[pa.RecordBatch], position: Position, *, expected: Position) -> None:
        self.rows = self._listed(batches)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from pa.Table.from_pylist(self.rows, self._schema).select(list(columns)).to_batches()

    def dataset(self, folder: Path) -> ds.Dataset:
        pq.write_table(pa.Table.from_pylist(self.rows, self._schema), folder / "rows.parquet")
        return ds.dataset(folder, self._schema)

    def _listed(self, batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
        return pa.Table.from_batches(batches, self._schema).to_pylist()


def target_in(source: Source, mode: FollowingMode) -> tuple[TargetTable, ModeTable]:
    table = ModeTable(source, mode)
    columns = {name: SentColumn(number, oid, -1) for number, (name, oid) in enumerate(source.columns, 1)}
    fingerprint = Fingerprint(source.oid, [], 0, {}, {}, columns, {})
    known = KnownTable(source.key, fingerprint, is_full=source.identity == "f" and not source.key)
    following = cast(FollowingTable, table)
    return TargetTable(following, known, arrow_type, Position(0, 0), mode), table


def softly(source: Source) -> tuple[TargetTable, Table]:
    return target_in(source, "soft-delete")


def as_history(source: Source) -> tuple[TargetTable, Table]:
    return target_in(source, "append")


def texts(values: Iterable[Any]) -> list[str | None]:
    return [None if value is None or value is UNCHANGED else value.decode() for value in values]


class Model(NamedTuple):
    """What a table should have, made of one change after the other.

    Attributes:
        live: the rows of the source, by key; of a table without one, by a number.
        deleted: rows that it had, and the time at which they went.
        history: a row for each change, as the operation, its place, columns that were not sent, and the values.
    """

    live: dict[Any, list[str | None]]
    deleted: dict[Any, tuple[list[str | None], int]]
    history: list[tuple[Any, ...]]

    def take(self, source: Source, change: Change) -> None:
        names = [name for name, _ in source.columns]
        time, place = change.transaction.commit_time_us, (change.transaction.commit_lsn, change.sequence)

        def note(operation: str, values: Sequence[str | None], unsent: Sequence[str] = ()) -> None:
            self.history.append((operation, *place, time, list(unsent) or None, *values))

        def key_of(row: Sequence[Any]) -> Any:
            found = tuple(row[names.index(name)] for name in source.key)
            return found if source.key else len(self.live) + len(self.deleted)

        def remove(key: Any) -> list[str | None]:
            row = self.live.pop(key)
            self.deleted[key] = (row, time)
            return row

        if change.kind == "truncate":
            note("truncate", [None] * len(names))
            for key in list(self.live):
                remove(key)
            return
        if change.kind == "delete":
            assert change.old is not None
            old = texts(change.old)
            note("delete", old)
            remove(key_of(old))
            return
        assert change.after is not None
        after = texts(change.after)
        if change.kind == "insert":
            note("insert", after)
        else:
            old_key = key_of(after if change.old is None else texts(change.old))
            before = self.live[old_key]
            unsent = [name for name, value in zip(names, change.after, strict=True) if value is UNCHANGED]
            shown = list(after)
            after = [before[index] if value is UNCHANGED else shown[index] for index, value in enumerate(change.after)]
            if old_key != key_of(after):
                assert change.old is not None
                note("delete", texts(change.old))
                remove(old_key)
                unsent, shown = [], after
            elif change.old is not None and not change.old_is_key:
                unsent, shown = [], after
            note("update", shown, unsent)
        key = key_of(after)
        self.deleted.pop(key, None)
        self.live[key] = after


def modelled(items: list[Item]) -> dict[int, Model]:
    models = {source.oid: Model({}, {}, []) for source in SOURCES}
    sources = {source.oid: source for source in SOURCES}
    for change in Changes(committed(items, Spool(), version=4)):
        assert change.relation is not None
        models[change.relation.oid].take(sources[change.relation.oid], change)
    return models


def shown(row: dict[str, Any], source: Source) -> tuple[Any, ...]:
    return tuple(text_of(row[name]) for name, _ in source.columns)


def us_of(time: Any) -> int | None:
    """Return a time as in messages."""
    return None if time is None else round(time.timestamp() * 1_000_000) - POSTGRES_EPOCH_US


@settings(max_examples=40, deadline=None)
@given(sent(), st.integers(1, 30), st.sampled_from([1, 60, 1 << 20]), st.lists(st.booleans(), max_size=10))
def test_deleted_rows_stay_as_they_were_whatever_the_batches_are(
    script: Script, part: int, held_bytes_max: int, flushes: list[bool]
) -> None:
    items, _ = script
    tables, positions = run_by_columns(items, part, held_bytes_max, flushes, softly)
    one_by_one = run_one_by_one(items, positions, softly)
    for source in SOURCES:
        model = modelled(items)[source.oid]
        expected = Counter((False, None, *row) for row in model.live.values())
        expected += Counter((True, time, *row) for row, time in model.deleted.values())
        for found in (tables, one_by_one):
            rows = found[source.oid].rows
            got = Counter((row["_deleted"], us_of(row["_deleted_at"]), *shown(row, source)) for row in rows)
            assert got == expected


@settings(max_examples=40, deadline=None)
@given(sent(), st.integers(1, 30), st.sampled_from([1, 60, 1 << 20]), st.lists(st.booleans(), max_size=10))
def test_each_change_is_a_row_whatever_the_batches_are(
    script: Script, part: int, held_bytes_max: int, flushes: list[bool]
) -> None:
    items, _ = script
    tables, positions = run_by_columns(items, part, held_bytes_max, flushes, as_history)
    one_by_one = run_one_by_one(items, positions, as_history)
    for source in SOURCES:
        expected = modelled(items)[source.oid].history
        for found in (tables, one_by_one):
            rows = found[source.oid].rows
            assert sorted(repr(history_row(row, source)) for row in rows) == sorted(map(repr, expected))


@settings(max_examples=6, deadline=None)
@given(sent(), st.sampled_from([SOURCES[0], SOURCES[2], SOURCES[3]]))
def test_the_last_changes_give_the_rows_of_the_source(
    tmp_path_factory: pytest.TempPathFactory, script: Script, source: Source
) -> None:
    items, content = script
    tables, _ = run_by_columns(items, 20, 1 << 20, [True], as_history)
    assert_state(tables[source.oid], source, content[source.oid], tmp_path_factory.mktemp("state"))


def test_the_last_rows_of_keys_have_values_that_were_not_sent(tmp_path: Path) -> None:
    target, table = as_history(SOURCES[0])
    assert_state(table, SOURCES[0], [], tmp_path)
    messages = [
        built.insert(1, "1", "a", "x"),
        built.insert(1, "2", "a", "y"),
        built.update(1, ["1", "b", "z"]),
        built.update(1, ["1", "c", UNSENT]),
        built.update(1, ["1", "d", UNSENT]),
        built.update(1, ["2", "e", None]),
    ]
    target.take_rows(rows_of(*messages).parts[0])
    target.flush(Position(200, 0))
    content: list[Row] = [{"id": "1", "a": "d", "big": "z"}, {"id": "2", "a": "e", "big": None}]
    assert_state(table, SOURCES[0], content, tmp_path)
    sent = [built.begin(300, 8), SOURCES[0].described, built.truncate([1]), built.commit(300, 330)]
    [truncate] = Changes(committed([(5, each) for each in sent], Spool(), version=4))
    target.take(truncate)
    target.take_rows(rows_of(built.insert(1, "3", "f", None), lsn=400).parts[0])
    target.flush(Position(500, 0))
    assert_state(table, SOURCES[0], [{"id": "3", "a": "f", "big": None}], tmp_path)


def history_row(row: dict[str, Any], source: Source) -> tuple[Any, ...]:
    place = (row["_op"], row["_commit_lsn"], row["_sequence"], us_of(row["_commit_time"]))
    return (*place, row["_unchanged"], *shown(row, source))


def assert_state(table: Any, source: Source, content: list[Row], folder: Path) -> None:
    class Following:
        def dataset(self) -> ds.Dataset:
            return table.dataset(folder)

    read = present_rows(cast(FollowingTable, Following()), "append", source.key)
    names = [name for name, _ in source.columns]
    found = [row for batch in read(names) for row in batch.to_pylist()]
    assert sorted(repr(shown(row, source)) for row in found) == sorted(repr(tuple(row.values())) for row in content)


NO_KEY = Source(7, [("a", TEXT), ("big", TEXT)], [], "f")
MARKED = Source(7, [("a", TEXT), ("big", TEXT)], ["a", "big"], "f")


def full_rows(*messages: bytes) -> list[tuple[Any, ...]]:
    target, table = target_in(NO_KEY, "append")
    described = rows_of(*messages, source=MARKED).parts[0]
    target.take_rows(described)
    target.flush(Position(200, 0))
    return [(row["_op"], row["_sequence"], row["_unchanged"], row["a"], row["big"]) for row in table.rows]


def test_without_a_key_an_update_is_a_delete_of_the_whole_old_row_and_an_update() -> None:
    messages = (
        built.insert(7, "1", "x"),
        built.update(7, ["2", "x"], before=["1", "x"]),
        built.delete(7, before=["2", "x"]),
        built.insert(7, None, None),
    )
    expected = [
        ("insert", 0, None, "1", "x"),
        ("delete", 1, None, "1", "x"),
        ("update", 1, None, "2", "x"),
        ("delete", 2, None, "2", "x"),
        ("insert", 3, None, None, None),
    ]
    assert full_rows(*messages) == expected
    # A value that was not sent makes all of them go one by one; the old row has it.
    one_by_one = full_rows(*messages, built.update(7, ["3", UNSENT], before=["1", "y"]))
    assert one_by_one == [*expected, ("delete", 4, None, "1", "y"), ("update", 4, None, "3", "y")]
    with pytest.raises(RemoteProtocolError, match="does not identify its row"):
        full_rows(built.update(7, ["3", "y"]))


def test_a_row_has_the_time_of_its_own_end_whatever_else_is_in_the_batch() -> None:
    def taken(*, in_one_batch: bool) -> list[tuple[Any, ...]]:
        target, table = softly(SOURCES[0])
        parts = [
            (100, [built.insert(1, number, "a", "x") for number in "123"]),
            (200, [built.delete(1, key=["1", None, None])]),
            (300, [built.truncate([1])]),
            (400, [built.insert(1, number, "b", "x") for number in "45"] + [built.delete(1, key=["4", None, None])]),
            (500, [built.truncate([1])]),
            (600, [built.insert(1, "2", "c", "x")]),
        ]
        for lsn, messages in parts:
            sent = [built.begin(lsn, 7, time_us=lsn), SOURCES[0].described, *messages, built.commit(lsn, lsn + 30)]
            for change in Changes(committed([(5, each) for each in sent], Spool(), version=4)):
                target.take(change)
            if lsn == 100 or not in_one_batch:
                target.flush(Position(lsn + 1, 0))
        target.flush(Position(700, 0))
        return sorted((row["id"], row["a"], us_of(row["_deleted_at"])) for row in table.rows)

    expected = [(1, "a", 200), (2, "c", None), (3, "a", 300), (4, "b", 400), (5, "b", 500)]
    assert taken(in_one_batch=True) == taken(in_one_batch=False) == expected


def test_deletes_of_several_transactions_have_their_own_times() -> None:
    target, table = softly(SOURCES[0])
    transactions = {
        100: [SOURCES[0].described, *(built.insert(1, number, "a", "x") for number in "123")],
        200: [built.delete(1, key=["1", None, None]), built.insert(1, "4", "b", "x")],
        300: [built.delete(1, key=["2", None, None])],
        400: [built.delete(1, key=["4", None, None])],
    }
    items = []
    for lsn, messages in transactions.items():
        items += [built.begin(lsn, 7, time_us=lsn), *messages, built.commit(lsn, lsn + 30)]
    for found in by_columns([(5, each) for each in items], 99, 1 << 20):
        assert isinstance(found, RowsByRelation)
        for rows in found.parts:
            target.take_rows(rows)
        if found.transaction.commit_lsn == 100:
            target.flush(Position(200, 0))
    target.flush(Position(500, 0))
    ends = sorted((row["id"], row["a"], us_of(row["_deleted_at"])) for row in table.rows)
    assert ends == [(1, "a", 200), (2, "a", 300), (3, "a", None), (4, "b", 400)]


def test_an_insert_without_a_value_is_refused_so_that_the_table_is_copied_again() -> None:
    for make in (as_history, softly):
        target, _ = make(SOURCES[0])
        target.take_rows(rows_of(built.insert(1, "1", "a", UNSENT)).parts[0])
        with pytest.raises(RemoteProtocolError, match="was not sent; copy the table again"):
            target.flush(Position(200, 0))


def test_a_value_that_is_nowhere_is_refused() -> None:
    for make in (as_history, softly):
        target, table = make(SOURCES[0])
        target.take_rows(rows_of(built.insert(1, "1", "a", "x")).parts[0])
        target.flush(Position(150, 0))
        assert len(table.rows) == 1
        target.take_rows(rows_of(built.delete(1, key=["1", None, None]), lsn=200).parts[0])
        target.take_rows(rows_of(built.update(1, ["2", "b", UNSENT], key=["1", None, None]), lsn=250).parts[0])
        with pytest.raises(RemoteProtocolError, match="its row was deleted before"):
            target.flush(Position(300, 0))
        # The same if the table shows it.
        target, table = make(SOURCES[0])
        target.take_rows(rows_of(built.insert(1, "1", "a", "x"), built.delete(1, key=["1", None, None])).parts[0])
        target.flush(Position(150, 0))
        target.take_rows(rows_of(built.update(1, ["2", "b", UNSENT], key=["1", None, None]), lsn=250).parts[0])
        with pytest.raises(RemoteProtocolError, match=r"has no row \(1,\).*--copy-again public\.t1"):
            target.flush(Position(300, 0))


@pytest.mark.parametrize("flushes_between", [False, True])
def test_a_value_that_was_not_sent_follows_its_row_through_keys(*, flushes_between: bool) -> None:
    messages = [
        built.update(1, ["2", "b", UNSENT], key=["1", None, None]),
        built.update(1, ["2", "c", UNSENT]),
        built.update(1, ["3", "d", UNSENT], key=["2", None, None]),
    ]
    for make in (as_history, softly):
        target, table = make(SOURCES[0])
        target.take_rows(rows_of(built.insert(1, "1", "a", "x"), built.insert(1, "2", "z", "z")).parts[0])
        target.take_rows(rows_of(built.delete(1, key=["2", None, None]), lsn=150).parts[0])
        target.flush(Position(180, 0))
        for number, message in enumerate(messages):
            target.take_rows(rows_of(message, lsn=200 + 50 * number).parts[0])
            if flushes_between:
                target.flush(Position(240 + 50 * number, 0))
        target.flush(Position(400, 0))
        last = [row for row in table.rows if row["id"] == 3]
        assert [(row["a"], row["big"]) for row in last] == [("d", "x")]
        if make is as_history:
            shown = [(row["id"], row["big"], row["_unchanged"]) for row in table.rows if row["_op"] == "update"]
            assert shown == [(2, "x", None), (2, None, ["big"]), (3, "x", None)]
