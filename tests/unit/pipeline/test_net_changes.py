"""Many changes, at most one for each row; test_net_columns.py compares them with the rows of a server."""

import pytest

from safekeeper.base.errors import RemoteProtocolError
from tests.unit import pgoutput_bytes as built
from tests.unit.pgoutput_bytes import UNSENT
from walproxy.pipeline.cdc.apply.net_changes import NetChanges
from walproxy.pipeline.cdc.changes import Changes
from walproxy.pipeline.cdc.messages import UNCHANGED
from walproxy.pipeline.cdc.spool import Spool
from walproxy.pipeline.cdc.transactions import committed

COLUMNS = [("id", 23), ("a", 25), ("big", 25)]
TABLE = built.relation(1, "t", COLUMNS, key=["id"])
FULL = built.relation(1, "t", COLUMNS, key=["id", "a", "big"], identity="f")
KEYLESS = built.relation(1, "t", COLUMNS, identity="n")


def net(*messages: bytes, relation: bytes = TABLE, key: tuple[int, ...] = (0,)) -> NetChanges:
    sent = [built.begin(0x100, 7), relation, *messages, built.commit(0x100, 0x130)]
    changes = NetChanges(key)
    for change in Changes(committed(((0x50, data) for data in sent), Spool(), version=4)):
        changes.add(change)
    return changes


def test_the_last_change_of_a_row_counts() -> None:
    found = net(
        built.insert(1, "1", "a", "x"),
        built.insert(1, "2", "a", "x"),
        built.update(1, ["1", "b", "x"]),
        built.delete(1, key=["2", None, None]),
        built.delete(1, key=["3", None, None]),
    )
    assert found.rows == {(b"1",): (b"1", b"b", b"x"), (b"2",): None, (b"3",): None}


@pytest.mark.parametrize(("relation", "key"), [(TABLE, (0,)), (KEYLESS, ())])
def test_an_insert_without_a_value_cannot_be_applied(relation: bytes, key: tuple[int, ...]) -> None:
    # An update by which the row comes to satisfy a row filter is sent as an insert, and lacks what is out of line.
    with pytest.raises(RemoteProtocolError, match=r"the insert of public\.t at 0/50 cannot be applied: a value"):
        net(built.insert(1, "1", "a", UNSENT), relation=relation, key=key)


def test_an_update_of_the_key_removes_the_old_row() -> None:
    found = net(built.update(1, ["2", "b", "x"], key=["1", None, None]))
    assert found.rows == {(b"1",): None, (b"2",): (b"2", b"b", b"x")}


def test_what_was_not_sent_comes_from_the_row_before_or_from_where_the_table_has_it() -> None:
    found = net(
        built.insert(1, "1", "a", "big"),
        built.update(1, ["1", "b", UNSENT]),
        built.update(1, ["2", "c", UNSENT], key=["1", None, None]),
        built.update(1, ["5", "a", UNSENT]),
        built.update(1, ["6", "b", UNSENT], key=["5", None, None]),
        built.update(1, ["6", UNSENT, UNSENT]),
    )
    assert found.rows == {
        (b"1",): None,
        (b"2",): (b"2", b"c", b"big"),
        (b"5",): None,
        (b"6",): (b"6", b"b", UNCHANGED),
    }
    assert found.homes == {(b"6",): (b"5",)}
    assert net(built.update(1, ["5", "a", UNSENT]), built.update(1, ["5", "a", "x"])).homes == {}
    assert net(built.update(1, ["5", "a", UNSENT]), built.delete(1, key=["5", None, None])).homes == {}


def test_with_a_full_identity_the_old_row_fills_what_was_not_sent() -> None:
    found = net(built.update(1, ["1", "b", UNSENT], before=["1", "a", "big"]), relation=FULL)
    assert found.rows == {(b"1",): (b"1", b"b", b"big")}


def test_a_truncate_removes_what_came_before_it() -> None:
    found = net(built.insert(1, "1", "a", "x"), built.truncate([1]), built.insert(1, "2", "b", "y"))
    assert found.truncated
    assert list(found.rows) == [(b"2",)]


def test_rows_without_a_key_are_added() -> None:
    found = net(built.insert(1, "1", "a", "x"), built.insert(1, "1", "a", "x"), relation=KEYLESS, key=())
    assert found.appended == [(b"1", b"a", b"x")] * 2
    assert found


@pytest.mark.parametrize(
    "messages",
    [
        [built.insert(1, None, "a", "x")],
        [built.delete(1, key=["1", None, None]), built.update(1, ["1", "b", UNSENT])],
        [built.truncate([1]), built.update(1, ["1", "b", UNSENT])],
        [built.update(1, [UNSENT, "b", "x"])],
    ],
)
def test_changes_that_cannot_be_are_refused(messages: list[bytes]) -> None:
    with pytest.raises(RemoteProtocolError, match=r"public\.t at 0/50"):
        net(*messages)
