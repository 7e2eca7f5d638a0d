"""Sets of rows are compared by hashes over key ranges: whatever differs is found and named."""

import random
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from walproxy.pipeline.cdc.apply.row_hashes import Comparison, Rows, compare_rows, row_hashes

SCHEMA = pa.schema([pa.field("id", pa.int32()), pa.field("v", pa.string()), pa.field("n", pa.decimal128(10, 2))])


def reader(table: pa.Table, batch_rows: int = 7) -> Rows:
    def rows(names: Sequence[str]) -> Iterable[pa.RecordBatch]:
        yield from table.select(list(names)).to_batches(batch_rows)

    return rows


def rows_of(listed: Iterable[tuple[Any, ...]], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in listed], schema)


def compared(source: pa.Table, table: pa.Table, key: Sequence[str] = ("id",), **more: Any) -> Comparison:
    return compare_rows(
        reader(source), reader(table, 11), source.schema, key, **{"keys_max": 10, "range_rows": 10, **more}
    )


def numbered(count: int) -> list[tuple[Any, ...]]:
    return [(number, f"v{number}", Decimal(number)) for number in range(count)]


def test_the_same_rows_in_another_order_are_the_same() -> None:
    rows = numbered(100)
    other = random.Random(7).sample(rows, len(rows))
    result = compared(rows_of(rows), rows_of(other))
    assert (result.rows, result.ranges, result.differences, result.keys) == (100, 10, [], [])


def test_rows_that_are_missing_extra_or_different_are_named_with_their_range() -> None:
    rows = numbered(100)
    here = [row for row in rows if row[0] != 5] + [(1000, "extra", None)]
    here[50] = (here[50][0], here[50][1], None)
    result = compared(rows_of(rows), rows_of(here))
    assert result.keys == [("different", (here[50][0],)), ("extra", (1000,)), ("missing", (5,))]
    assert [(each.missing, each.extra, each.different) for each in result.differences] == [
        (1, 0, 0),
        (0, 0, 1),
        (0, 1, 0),
    ]
    first, _, last = result.differences
    assert (first.low, first.high, last.high) == (None, "11", None)
    assert len(compared(rows_of(rows), rows_of(here), keys_max=1).keys) == 1


@pytest.mark.parametrize(("source", "table"), [(3, 2), (2, 3), (1, 0), (0, 1)])
def test_rows_without_a_key_are_counted(source: int, table: int) -> None:
    row = (1, "same", Decimal(1))
    result = compared(rows_of([row] * source), rows_of([row] * table), key=())
    [(kind, named)] = result.keys
    assert named == row and kind == ("missing" if source > table else "extra")


@pytest.mark.parametrize(
    ("data_type", "values"),
    [
        (pa.int64(), [-(2**63), -1, 0, 1, 2**63 - 1, None]),
        (pa.float64(), [0.0, -0.0, 1.5, float("nan"), float("inf"), None]),
        (pa.float32(), [0.0, 1.5, float("inf"), None]),
        (pa.bool_(), [True, False, None]),
        (pa.string(), ["", "a", "b", "a" * 100, "ü", None]),
        (pa.binary(), [b"", b"a", b"\0", None]),
        (pa.date32(), [date(1970, 1, 1), date(1969, 12, 31), date(9999, 12, 31), None]),
        (pa.timestamp("us", tz="UTC"), [datetime(2024, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC), None]),
        (pa.decimal128(38, 2), [Decimal("0.01"), Decimal("-0.01"), Decimal("123456789012345678901234567890.12"), None]),
    ],
)
def test_different_values_have_different_hashes_and_equal_ones_equal(data_type: pa.DataType, values: list[Any]) -> None:
    twice = pa.record_batch({"a": pa.array([*values, *values], data_type)})
    hashes = row_hashes(twice).tolist()
    assert hashes[: len(values)] == hashes[len(values) :]
    assert len(set(hashes)) == len(values)


def test_any_single_change_of_a_random_table_is_found() -> None:
    chance = random.Random(42)
    for _ in range(100):
        rows = numbered(chance.randrange(1, 60))
        here = list(rows)
        index = chance.randrange(len(here))
        kind = chance.choice(["missing", "extra", "different"])
        if kind == "missing":
            del here[index]
        elif kind == "extra":
            here.append((-1, None, None))
        else:
            here[index] = (here[index][0], here[index][1] + "x", here[index][2])
        result = compared(rows_of(rows), rows_of(here))
        assert [found for found, _ in result.keys] == [kind]
        assert sum(each.missing + each.extra + each.different for each in result.differences) == 1


def test_keys_of_several_columns_and_of_text_are_ranged_by_the_first() -> None:
    schema = pa.schema([pa.field("a", pa.string()), pa.field("b", pa.date32()), pa.field("c", pa.int32())])
    rows = [(f"key{number:03}", date(2024, 1, 1 + number % 9), number) for number in range(50)]
    here = [*rows[:20], (*rows[20][:2], 99), *rows[21:]]
    result = compared(rows_of(rows, schema), rows_of(here, schema), key=("a", "b"))
    [difference] = result.differences
    assert difference.low is not None and difference.low <= "'key020'"
    assert result.keys == [("different", ("key020", date(2024, 1, 3)))]
