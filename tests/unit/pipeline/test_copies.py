"""Copies into tables that have rows already: mirror replaces them, append adds to them, soft-delete marks them."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from safekeeper.base.errors import ConfigurationError, StorageFailed
from walproxy.pipeline.cdc.apply.copies import Copy, plan_copy, put_copy
from walproxy.pipeline.cdc.apply.following import FollowingTable, Position, no_check
from walproxy.pipeline.cdc.apply.opening import following_table
from walproxy.pipeline.cdc.column_types import BadValue, common_type, printed
from walproxy.pipeline.cdc.publication import TableName
from walproxy.pipeline.choices import FollowingMode
from walproxy.pipeline.lake.location import LakeLocation

ID, NUMBER, TEXT = pa.field("id", pa.int32()), pa.field("n", pa.int32()), pa.field("n", pa.string())
DAY_US = 86_400_000_000


@pytest.fixture(params=["delta", "iceberg"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FollowingTable]:
    with closing(following_table(LakeLocation.parse(tmp_path), request.param, TableName("public", "t"))) as made:
        yield made


def copy(
    table: FollowingTable,
    mode: FollowingMode,
    fields: Sequence[pa.Field],
    rows: Sequence[tuple[Any, ...]],
    day: int,
    key: Sequence[str] = ("id",),
) -> frozenset[str]:
    """Put a copy into a table, as of a day; return the columns that became text."""
    plan = plan_copy(table, mode, fields)
    listed = [dict(zip(plan.schema.names, row, strict=True)) for row in rows]
    batches = pa.Table.from_pylist(listed, plan.schema).to_batches()
    made = Copy(plan, key, batches, Position(day, 0), day * DAY_US)
    put_copy(table, mode, made, require_only_job=no_check)
    assert table.position() == Position(day, 0)
    return plan.as_text


def content(table: FollowingTable, *names: str) -> list[tuple[Any, ...]]:
    found = table.to_arrow()
    rows = zip(*(found[name].to_pylist() for name in names), strict=True)
    return sorted(rows, key=repr)


def test_a_mirror_has_the_rows_of_the_last_copy_alone(table: FollowingTable) -> None:
    copy(table, "mirror", [ID, NUMBER], [(1, 10), (2, 20)], 1)
    assert copy(table, "mirror", [ID, TEXT], [(3, "c")], 2) == frozenset()
    assert content(table, "id", "n") == [(3, "c")]


def test_a_history_begins_again_and_keeps_what_it_has(table: FollowingTable, monkeypatch: pytest.MonkeyPatch) -> None:
    copy(table, "append", [ID, NUMBER], [(1, 10)], 1)
    with monkeypatch.context() as patched:
        patched.setattr(type(table), "replace", None)  # The rows that are there are not written again.
        copy(table, "append", [ID, NUMBER, pa.field("new", pa.bool_())], [(1, 11, True)], 2)
    shown = ("_op", "_commit_lsn", "_sequence", "id", "n", "new")
    first, second = ("copy", 1, -1, 1, 10, None), [("copy", 2, -1, 1, 11, True), ("reset", 2, -2, None, None, None)]
    assert content(table, *shown) == [first, *second]
    assert {row[0].date() for row in content(table, "_commit_time")} == {date(1970, 1, 2), date(1970, 1, 3)}
    # A column that the source no longer has stays; a type that holds both is used, or text.
    assert copy(table, "append", [ID, pa.field("n", pa.int64())], [(1, 1 << 40)], 3) == frozenset()
    assert copy(table, "append", [ID, pa.field("n", pa.date32())], [(1, "2024-02-29")], 4) == {"n"}
    assert copy(table, "append", [ID, NUMBER], [(1, "5")], 5) == {"n"}
    values = [row[1:] for row in content(table, "_commit_lsn", "_op", "n", "new") if row[1] == "copy"]
    old = [("copy", "10", None), ("copy", "11", True)]
    assert values == [*old, *[("copy", n, None) for n in (str(1 << 40), "2024-02-29", "5")]]


def test_rows_that_a_copy_does_not_have_are_marked(table: FollowingTable) -> None:
    copy(table, "soft-delete", [ID, NUMBER], [(1, 10), (2, 20), (3, 30)], 1)
    copy(table, "soft-delete", [ID, NUMBER], [(2, 21), (4, 40)], 2)
    shown = ("id", "n", "_deleted", "_deleted_at")
    assert [row[:3] for row in content(table, *shown)] == [(1, 10, True), (2, 21, False), (3, 30, True), (4, 40, False)]
    assert {row[0].date() for row in content(table, "_deleted_at") if row[0]} == {date(1970, 1, 3)}
    # The time at which a row went stays, a row comes back, and another type leaves it as it was.
    assert copy(table, "soft-delete", [ID, TEXT], [(1, "a"), (2, "b")], 3) == frozenset()
    found = [(*row[:3], row[3] and row[3].day) for row in content(table, *shown)]
    assert found == [(1, "a", False, None), (2, "b", False, None), (3, "30", True, 3), (4, "40", True, 4)]


def test_rows_of_another_key_are_those_of_a_copy_only_if_they_have_its_values(table: FollowingTable) -> None:
    copy(table, "soft-delete", [ID, NUMBER], [(1, 10), (2, None)], 1)
    copy(table, "soft-delete", [ID, NUMBER], [(7, 10), (8, 20)], 2, key=["n"])
    found = content(table, "id", "n", "_deleted")
    assert found == [(2, None, True), (7, 10, False), (8, 20, False)]
    copy(table, "soft-delete", [ID, NUMBER, pa.field("k", pa.int64())], [(7, 10, 1)], 3, key=["k"])
    assert (7, 10, 1, False) in content(table, "id", "n", "k", "_deleted")
    assert [row for row in content(table, "id", "_deleted") if row[1]] == [(2, True), (7, True), (8, True)]
    copy(table, "soft-delete", [ID, NUMBER], [(9, 9)], 4, key=[])
    assert [row[0] for row in content(table, "id", "_deleted") if not row[1]] == [9]


def test_a_table_of_another_mode_is_refused(table: FollowingTable) -> None:
    copy(table, "append", [ID], [(1,)], 1)
    with pytest.raises(ConfigurationError, match=r"made with --mode append, not soft-delete: name another folder"):
        plan_copy(table, "soft-delete", [ID])
    with pytest.raises(ConfigurationError, match=r"made with --mode append, not mirror"):
        plan_copy(table, "mirror", [ID])


@pytest.mark.parametrize("mode", ["append", "soft-delete"])
def test_a_copy_that_fails_leaves_the_table_as_it_was(table: FollowingTable, mode: FollowingMode) -> None:
    copy(table, mode, [ID, NUMBER], [(1, 10)], 1)
    for fields in ([ID, NUMBER], [ID, TEXT]):
        plan = plan_copy(table, mode, fields)

        def failing(schema: pa.Schema = plan.schema) -> Iterator[pa.RecordBatch]:
            yield from pa.Table.from_pylist([{"id": 2}], schema).to_batches()
            raise BadValue("a value", "public.t.n")

        failed = Copy(plan, ["id"], failing(), Position(2, 0), 0)
        with pytest.raises((BadValue, StorageFailed)) as raised:
            put_copy(table, mode, failed, require_only_job=no_check)
        assert isinstance(raised.value, BadValue)
    assert content(table, "id", "n") == [(1, 10)]
    assert table.position() == Position(1, 0)


def test_a_type_that_holds_the_values_of_two_or_text() -> None:
    decimal = pa.decimal128
    for one, other, both in [
        (pa.int16(), pa.int64(), pa.int64()),
        (pa.float64(), pa.float32(), pa.float64()),
        (decimal(10, 2), decimal(12, 2), decimal(12, 2)),
        (decimal(10, 2), decimal(12, 3), pa.string()),
        (pa.int32(), pa.float64(), pa.string()),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.string()),
        (pa.bool_(), pa.bool_(), pa.bool_()),
    ]:
        assert common_type(one, other) == common_type(other, one) == both


def test_old_values_become_text_as_postgres_prints_them() -> None:
    for values, expected in [
        (pa.array([True, False, None]), ["t", "f", None]),
        (pa.array([b"\x00\xff", None]), ["\\x00ff", None]),
        (pa.array([5, None], pa.int16()), ["5", None]),
        (pa.array([date(2024, 2, 29)]), ["2024-02-29"]),
        (pa.array(["a"]), ["a"]),
    ]:
        assert printed(values).to_pylist() == expected
