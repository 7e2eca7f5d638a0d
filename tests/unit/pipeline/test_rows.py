"""Changes as rows of Arrow, from the bytes of the server on."""

from collections.abc import Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from safekeeper.base.errors import ConfigurationError, RemoteProtocolError
from tests.unit import pgoutput_bytes as built
from tests.unit.pgoutput_bytes import UNSENT
from walproxy.pipeline.cdc.changes import Change, Changes
from walproxy.pipeline.cdc.publication import TableName
from walproxy.pipeline.cdc.rows import CHANGES_SCHEMA, TypedTable, change_batches, typed_batches, typed_schema
from walproxy.pipeline.cdc.server import SourceRefused
from walproxy.pipeline.cdc.spool import Spool
from walproxy.pipeline.cdc.transactions import committed

TABLE = built.relation(1, "t", [("id", 23), ("a", 25), ("b", 25)], key=["id"])
FULL = built.relation(1, "t", [("id", 23), ("a", 25), ("b", 25)], key=["id", "a", "b"], identity="f")
TYPED = TypedTable(TableName("public", "t"), (pa.field("id", pa.int32()), pa.field("a", pa.string())))


def changes(*messages: bytes, commit_lsn: int = 0x100) -> Changes:
    sent = [built.begin(commit_lsn, 7, time_us=5), *messages, built.commit(commit_lsn, commit_lsn + 0x30)]
    return Changes(committed(((0x50 + index, data) for index, data in enumerate(sent)), Spool(), version=4))


def rows(found: Iterable[Change]) -> list[dict[str, Any]]:
    batches = list(change_batches(found))
    assert all(batch.schema.equals(CHANGES_SCHEMA) for batch in batches)
    return [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]


def typed_rows(found: Iterable[Change], typed: TypedTable = TYPED) -> list[dict[str, Any]]:
    batches = list(typed_batches(found, typed))
    assert all(batch.schema.equals(typed_schema(typed)) for batch in batches)
    return [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]


def test_a_change_says_where_it_stands() -> None:
    found = changes(TABLE, built.insert(1, "1", "x", None), built.truncate([1]), built.message("p", b"\x00"))
    first, second, third = rows(found)
    assert first == {
        "commit_lsn": 0x100,
        "commit_time": datetime(2000, 1, 1, 0, 0, 0, 5, tzinfo=UTC),
        "xid": 7,
        "sequence": 0,
        "lsn": 0x52,
        "kind": "insert",
        "schema": "public",
        "table": "t",
        "relation": 1,
        "key": {"id": "1"},
        "before": None,
        "after": {"id": "1", "a": "x", "b": None},
        "unchanged": None,
        "message_prefix": None,
        "message": None,
    }
    assert (second["kind"], second["sequence"], second["key"], second["after"]) == ("truncate", 1, None, None)
    assert (third["kind"], third["sequence"], third["relation"]) == ("message", 2, None)
    assert (third["message_prefix"], third["message"]) == ("p", b"\x00")


def test_a_truncate_of_several_tables_is_one_change_of_each() -> None:
    other = built.relation(2, "u", [("id", 23)])
    found = rows(changes(TABLE, other, built.truncate([1, 2]), built.insert(2, "1")))
    assert [(row["table"], row["kind"], row["sequence"]) for row in found] == [
        ("t", "truncate", 0),
        ("u", "truncate", 1),
        ("u", "insert", 2),
    ]


def test_updates_and_deletes_say_what_was_before_as_far_as_the_server_does() -> None:
    found = rows(
        changes(
            TABLE,
            built.update(1, ["1", "y", UNSENT]),
            built.update(1, ["2", "y", UNSENT], key=["1", None, None]),
            built.delete(1, key=["2", None, None]),
            FULL,
            built.update(1, ["3", "z", "b"], before=["3", "y", "b"]),
            built.delete(1, before=["3", "z", "b"]),
        )
    )
    assert [(row["key"], row["before"], row["after"], row["unchanged"]) for row in found] == [
        ({"id": "1"}, None, {"id": "1", "a": "y"}, ["b"]),
        ({"id": "1"}, None, {"id": "2", "a": "y"}, ["b"]),
        ({"id": "2"}, None, None, None),
        ({"id": "3", "a": "y", "b": "b"}, {"id": "3", "a": "y", "b": "b"}, {"id": "3", "a": "z", "b": "b"}, None),
        ({"id": "3", "a": "z", "b": "b"}, {"id": "3", "a": "z", "b": "b"}, None, None),
    ]


def test_one_table_has_typed_columns_and_its_new_ones_beside_them() -> None:
    wider = built.relation(1, "t", [("id", 23), ("a", 25), ("new", 25)], key=["id"])
    other = built.relation(2, "u", [("id", 23)])
    found = typed_rows(
        changes(
            TABLE,
            other,
            built.insert(1, "1", "x", "b"),
            built.insert(2, "9"),
            built.update(1, ["2", UNSENT, UNSENT], key=["1", None, None]),
            wider,
            built.update(1, ["2", "y", "n"]),
            built.delete(1, key=["2", None, None]),
            built.truncate([1, 2]),
        )
    )
    assert [
        (row["_kind"], row["id"], row["a"], row["_key_before"], row["_unchanged"], row["_other"]) for row in found
    ] == [
        ("insert", 1, "x", None, None, {"b": "b"}),
        ("update", 2, None, {"id": "1"}, ["a", "b"], {}),
        ("update", 2, "y", None, None, {"new": "n"}),
        ("delete", 2, None, None, None, None),
        ("truncate", None, None, None, None, None),
    ]
    assert [row["_sequence"] for row in found] == [0, 2, 3, 4, 5]


def test_with_a_full_identity_typed_rows_show_the_old_row_if_it_differs() -> None:
    found = typed_rows(
        changes(
            FULL,
            built.update(1, ["1", "y", UNSENT], before=["1", "x", "b"]),
            built.update(1, ["1", "y", UNSENT], before=["1", "y", "b"]),
            built.delete(1, before=["1", "y", "b"]),
        )
    )
    assert [row["_key_before"] for row in found] == [{"id": "1", "a": "x", "b": "b"}, None, None]
    assert [(row["id"], row["a"], row["_other"]) for row in found] == [(1, "y", {}), (1, "y", {}), (1, "y", {"b": "b"})]


def test_a_column_that_is_gone_is_null_in_typed_rows() -> None:
    narrow = built.relation(1, "t", [("id", 23)], key=["id"])
    assert typed_rows(changes(narrow, built.insert(1, "1")))[0]["a"] is None


def test_values_of_every_type_arrive_as_such() -> None:
    columns = {
        "i2": (pa.int16(), "-3", -3),
        "i8": (pa.int64(), "9223372036854775807", 2**63 - 1),
        "f": (pa.float64(), "-Infinity", float("-inf")),
        "n": (pa.decimal128(10, 2), "12345678.90", Decimal("12345678.90")),
        "t": (pa.bool_(), "t", True),
        "b": (pa.binary(), "\\x00ff", b"\x00\xff"),
        "d": (pa.date32(), "2024-02-29", date(2024, 2, 29)),
        "ts": (pa.timestamp("us"), "2024-02-29 01:02:03.5", datetime(2024, 2, 29, 1, 2, 3, 500000)),
        "tz": (pa.timestamp("us", "UTC"), "2024-02-29 01:02:03+00", datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC)),
        "s": (pa.string(), "{1,2}", "{1,2}"),
    }
    typed = TypedTable(TableName("public", "t"), tuple(pa.field(name, each[0]) for name, each in columns.items()))
    relation = built.relation(1, "t", [(name, 25) for name in columns], key=["i2"])
    found = typed_rows(changes(relation, built.insert(1, *(each[1] for each in columns.values()))), typed)
    assert {name: found[0][name] for name in columns} == {name: each[2] for name, each in columns.items()}


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        (pa.int32(), "x"),
        (pa.date32(), "infinity"),
        (pa.date32(), "0044-03-15 BC"),
        (pa.timestamp("us"), "10000-01-01 00:00:00"),
        (pa.decimal128(10, 2), "NaN"),
        (pa.bool_(), "yes"),
        (pa.binary(), "\\000"),
    ],
    ids=str,
)
def test_a_value_that_its_type_cannot_hold_is_named_not_changed(data_type: pa.DataType, value: str) -> None:
    typed = TypedTable(TableName("public", "t"), (pa.field("c", data_type),))
    relation = built.relation(1, "t", [("c", 25)], key=["c"])
    with pytest.raises(SourceRefused, match=r"public\.t\.c has the value .*read as text") as raised:
        typed_rows(changes(relation, built.insert(1, None), built.insert(1, value)), typed)
    assert value.replace("\\", "\\\\") in str(raised.value)


def test_a_value_in_binary_form_is_refused() -> None:
    with pytest.raises(SourceRefused, match="binary form"):
        rows(changes(TABLE, built.insert(1, b"\x00", "x", "y")))


def test_a_column_with_one_of_our_names_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="_kind"):
        typed_schema(TypedTable(TableName("public", "t"), (pa.field("_kind", pa.string()),)))


@pytest.mark.parametrize(
    "messages",
    [
        [built.insert(1, "1")],
        [TABLE, built.insert(1, "1")],
        [TABLE, built.update(1, ["1", "2", "3"], key=["1"])],
        [TABLE, built.delete(1, key=["1"])],
        [TABLE, built.truncate([2])],
    ],
)
def test_a_change_of_an_unknown_relation_or_of_another_width_is_refused(messages: list[bytes]) -> None:
    with pytest.raises(RemoteProtocolError, match="0/5"):
        list(changes(*messages))


def test_batches_have_bounded_size() -> None:
    many = [built.insert(1, str(number), "x", "y") for number in range(20_000)]
    assert [batch.num_rows for batch in change_batches(changes(TABLE, *many))] == [8192, 8192, 3616]
    large = [built.insert(1, str(number), "x" * (3 << 20), "y") for number in range(7)]
    assert [batch.num_rows for batch in change_batches(changes(TABLE, *large))] == [3, 3, 1]
