"""The view `definition_changes` of rows that are made here: what a server does seldom, or only after years."""

from pathlib import Path
from typing import Any

from tests.pipeline.test_query import end, row, rows_of, write

PLACE = {"database": 5, "catalog": "pg_class"}
TUPLE = {"object": 99, "relation": 99, "name": "t", "namespace": 1, "object_kind": "r", "rewrite_of": 0}
FILE = {"tablespace": 1663, "file": 99}


def change(lsn: int, xid: int, action: str, **values: Any) -> dict[str, Any]:
    return row("catalog_changes", lsn=lsn, xid=xid, action=action, **{**PLACE, **values})


def changes(folder: Path, *columns: str) -> list[tuple[Any, ...]]:
    found = rows_of(folder, "SELECT * FROM definition_changes ORDER BY lsn, sequence")
    return [tuple(each[column] for column in columns) for each in found]


def insert(lsn: int, xid: int, **values: Any) -> dict[str, Any]:
    return change(lsn, xid, "insert", block=1, line=1, tuple_bytes=140, **{**TUPLE, **FILE, **values})


def update(lsn: int, xid: int, tuple_bytes: int, **values: Any) -> dict[str, Any]:
    place = {"block": 1, "line": 2, "old_block": 1, "old_line": 1}
    return change(lsn, xid, "update", **{**place, "tuple_bytes": tuple_bytes, "kept": [], **values})


def test_the_end_of_a_tuple_is_the_former_one_only_if_both_are_as_long(tmp_path: Path) -> None:
    shared = {"kept": ["object", "relation"], "kept_at_end": ["object_kind"], "name": "u"}
    shared |= {"partly": ["file"], "partly_mask": [0xFF], "partly_bits": [7]}
    for name, size in (("same", 140), ("longer", 150)):
        folder = tmp_path / name
        write(folder, "transactions", end(15, 3), end(25, 4))
        write(folder, "catalog_changes", insert(10, 3, file=0x1203), update(20, 4, size, **shared))
    columns = ("change", "relation", "name", "old_name", "object_kind", "file", "old_file")
    assert changes(tmp_path / "same", *columns)[1] == ("rewrite", 99, "u", "t", "r", 0x1207, 0x1203)
    assert changes(tmp_path / "longer", *columns)[1] == ("rename", 99, "u", "t", None, None, 0x1203)


def test_the_number_of_a_transaction_can_return(tmp_path: Path) -> None:
    entry = {"block": 1, "line": 2}
    write(tmp_path, "transactions", end(40, 3), end(90, 3), end(95, 4, outcome="abort"), end(99, 4))
    write(
        tmp_path,
        "catalog_changes",
        update(20, 3, 140),
        change(25, 3, "entry", relation=99, object=99, **entry),
        update(80, 3, 140),  # four billion transactions later
        change(85, 3, "entry", relation=77, object=77, **entry),
        insert(94, 4, name="never"),
        insert(97, 4, name="then"),
    )
    assert changes(tmp_path, "lsn", "relation", "commit_lsn", "name") == [
        (20, 99, 40, None),
        (80, 77, 90, None),
        (97, 99, 99, "then"),
    ]


def test_a_file_that_was_created_without_a_transaction_belongs_to_that_of_its_relation(tmp_path: Path) -> None:
    write(tmp_path, "transactions", end(40, 3), end(60, 4, outcome="abort"))
    created = {"catalog": None, "tablespace": 1663, "fork": 0}
    write(
        tmp_path,
        "catalog_changes",
        change(10, 0, "create_file", **created, file=99),
        change(11, 0, "create_file", **{**created, "fork": 3}, file=99),
        change(12, 0, "create_file", **created, file=100),  # that of a transaction which aborts
        insert(20, 3),
        insert(50, 4, file=100),
    )
    assert changes(tmp_path, "lsn", "change", "file", "xid", "commit_lsn") == [
        (10, "create_file", 99, 3, 40),
        (20, "create", 99, 3, 40),
    ]


def test_what_is_invalidated_is_shown_where_nothing_else_is_known_of_it(tmp_path: Path) -> None:
    write(tmp_path, "transactions", end(40, 3))
    none = {"catalog": None}
    write(
        tmp_path,
        "catalog_changes",
        insert(20, 3),
        change(40, 3, "invalidate", **none, relation=99),
        {**change(40, 3, "invalidate", **none, relation=98), "sequence": 1},
        change(70, 0, "truncate_file", **none, tablespace=1663, file=5, blocks=7),
    )
    assert changes(tmp_path, "lsn", "change", "relation", "commit_lsn", "blocks") == [
        (20, "create", 99, 40, None),
        (40, "changed", 98, 40, None),
        (70, "truncate_file", None, None, 7),
    ]
