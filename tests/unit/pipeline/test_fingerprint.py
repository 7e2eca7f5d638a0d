"""What follows from a difference between two fingerprints of a table."""

from collections.abc import Mapping

import msgspec
import pytest

from walproxy.pipeline.cdc.apply.fingerprint import (
    Evidence,
    Fingerprint,
    Heap,
    SentColumn,
    TableVerdict,
    compare,
    followed_change,
)

INT, TEXT, VARCHAR, NUMERIC = 23, 25, 1043, 1700
PLAIN = Fingerprint(
    100,
    ["member 5:6", "publication 7:8"],
    50,
    {100: Heap(100, 90)},
    {},
    {"id": SentColumn(1, INT, -1), "s": SentColumn(2, VARCHAR, 14), "n": SentColumn(4, NUMERIC, 655366)},
    {"label 30": 4, "label 31": 4},
)
NARROW = msgspec.structs.replace(PLAIN, heaps={100: Heap(100, 0)})
PARTED = msgspec.structs.replace(
    PLAIN, heaps={101: Heap(101, 90), 102: Heap(102, 91)}, partitions={101: 9, 102: 9}, types={}
)


def evidence(
    *,
    writers: Mapping[int, int] | None = None,
    is_partitioned: bool = False,
    is_member: bool = True,
    born: frozenset[int] = frozenset(),
    plain: frozenset[str] = frozenset(),
    parents: Mapping[int, int] | None = None,
) -> Evidence:
    return Evidence(writers or {}, is_partitioned, is_member, born, plain, parents or {})


def change(known: Fingerprint, **changes: object) -> Fingerprint:
    return msgspec.structs.replace(known, **changes)


def columns(**changes: SentColumn | None) -> dict[str, SentColumn]:
    return {name: column for name, column in {**PLAIN.columns, **changes}.items() if column is not None}


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (change(PLAIN, oid=200), "another table"),
        (change(PLAIN, publication=["member 5:7", "publication 7:8"]), "publication"),
        (change(PLAIN, publication=["member 6:9", "publication 7:8"]), "publication"),
        (change(PLAIN, key_constraint=51), "primary key"),
        (change(PLAIN, key_constraint=0), "primary key"),
        (change(PLAIN, heaps={100: Heap(200, 201)}), "rewritten"),
        (change(PLAIN, types={"label 30": 5, "label 31": 4}), "type of one of its columns"),
        (change(PLAIN, columns=columns(id=SentColumn(1, 20, -1))), "id is of another type"),
        (change(PLAIN, columns=columns(id=SentColumn(5, INT, -1))), "id was dropped and added again"),
        (change(PLAIN, columns=columns(s=None, z=SentColumn(2, VARCHAR, 14))), "s is called z"),
        (change(PLAIN, columns=columns(z=SentColumn(3, INT, -1))), "z was added with values"),
        (change(PLAIN, columns=columns(z=SentColumn(5, INT, -1))), "z was added with values"),
        (
            change(PLAIN, columns=columns(s=SentColumn(2, VARCHAR, 9)), heaps={100: Heap(200, 90)}),
            "s is of another type",
        ),
    ],
)
def test_what_cannot_be_followed_has_a_reason(now: Fingerprint, reason: str) -> None:
    verdict = compare(PLAIN, now, evidence())
    assert verdict.copy_reason is not None and reason in verdict.copy_reason


@pytest.mark.parametrize(
    "now",
    [
        PLAIN,
        change(PLAIN, heaps={100: Heap(200, 90)}),
        change(PLAIN, columns=columns(s=None)),
        change(PLAIN, types={**PLAIN.types, "label 32": 7}),
    ],
)
def test_what_changes_no_row_beside_the_stream_has_no_consequence(now: Fingerprint) -> None:
    assert compare(PLAIN, now, evidence()) == TableVerdict()


def test_a_plain_column_is_added_and_a_longer_varchar_is_followed() -> None:
    now = change(
        PLAIN, columns=columns(z=SentColumn(5, INT, -1), s=SentColumn(2, TEXT, -1), n=SentColumn(4, NUMERIC, 917510))
    )
    assert compare(PLAIN, now, evidence(plain=frozenset({"z"}))) == TableVerdict(added=("z",), changed=("s", "n"))
    rewritten = change(now, heaps={100: Heap(200, 90)})
    assert compare(PLAIN, rewritten, evidence(plain=frozenset({"z"}))).copy_reason is not None


def test_without_a_toast_table_only_a_truncate_of_a_listed_table_explains_another_file() -> None:
    now = change(NARROW, heaps={100: Heap(200, 0)})
    assert compare(NARROW, now, evidence(writers={100: 77})) == TableVerdict(writers=frozenset({77}))
    assert compare(NARROW, now, evidence(writers={100: 0})).copy_reason is not None
    assert compare(NARROW, now, evidence(writers={100: 77}, is_member=False)).copy_reason is not None
    assert compare(NARROW, change(NARROW, heaps={100: Heap(100, 95)}), evidence()) == TableVerdict()


def test_partitions_that_come_and_go() -> None:
    def compared(
        now: Fingerprint, born: frozenset[int] = frozenset(), writers: Mapping[int, int] | None = None
    ) -> TableVerdict:
        parents = {oid: oid - 1 if oid > 103 else 100 for oid in now.partitions}
        return compare(PARTED, now, evidence(is_partitioned=True, born=born, writers=writers, parents=parents))

    with_new = change(PARTED, heaps={**PARTED.heaps, 103: Heap(103, 0)}, partitions={**PARTED.partitions, 103: 12})
    assert compared(with_new, born=frozenset({103})) == TableVerdict(born=frozenset({103}))
    assert compared(with_new) == TableVerdict(brought=frozenset({103}))
    rewritten = change(with_new, heaps={**PARTED.heaps, 103: Heap(300, 0)})
    assert "was attached" in (compared(rewritten, born=frozenset({103})).copy_reason or "")
    below = change(PARTED, heaps={**PARTED.heaps, 104: Heap(104, 0)}, partitions={**PARTED.partitions, 103: 9, 104: 9})
    assert compared(below, born=frozenset({103, 104})) == TableVerdict(born=frozenset({103, 104}))
    assert compared(below, born=frozenset({104})) == TableVerdict(brought=frozenset({103, 104}))
    gone = change(PARTED, heaps={101: Heap(101, 90)}, partitions={101: 9})
    assert "detached or dropped" in (compared(gone).copy_reason or "")
    again = change(PARTED, partitions={101: 13, 102: 9})
    assert "detached and attached" in (compared(again).copy_reason or "")
    truncated = change(PARTED, heaps={101: Heap(301, 90), 102: Heap(302, 91)})
    assert "rewritten" in (compared(truncated, writers={101: 70, 102: 70}).copy_reason or "")


def test_an_attribute_of_a_composite_type_is_part_of_stored_values_and_a_new_label_is_not() -> None:
    known = change(PLAIN, types={"attribute 5.1": 3})
    assert compare(known, change(known, types={"attribute 5.1": 3, "attribute 5.2": 9}), evidence()).copy_reason
    assert compare(known, change(known, types={"attribute 5.1": 3, "label 9": 9}), evidence()) == TableVerdict()


def definition(columns: dict[str, SentColumn], *partitions: int, types: tuple[str, ...] = ()) -> Fingerprint:
    return Fingerprint(1, [], 0, {}, dict.fromkeys(partitions, 5), columns, dict.fromkeys(types, 5))


def test_a_change_of_a_definition_is_in_words() -> None:
    one, two = SentColumn(1, INT, -1), SentColumn(2, TEXT, -1)
    types = {"a": "int32", "b": "string"}
    same = definition({"a": one})
    assert followed_change(same, definition({"a": one}), types) is None
    assert followed_change(same, definition({"a": one, "b": two}), types) == ("column b was added, here of type string")
    assert followed_change(same, definition({}, 7, 8), types) == (
        "2 partitions added; column a was dropped, and keeps its values here"
    )
    assert followed_change(same, definition({"a": SentColumn(1, INT, 9)}, 7), types) == (
        "1 partition added; the type of column a was altered, here it is int32"
    )
    assert followed_change(same, definition({"a": one}, types=("label 3",)), types) == (
        "a type of its columns has new labels"
    )
    assert followed_change(same, definition({"a": one, "b": two}, types=("label 3",)), types) == (
        "column b was added, here of type string"
    )
