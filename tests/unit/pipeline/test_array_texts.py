"""PostgreSQL's text of arrays as lists, and back."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from walproxy.pipeline.cdc.apply.row_hashes import row_hashes
from walproxy.pipeline.cdc.array_texts import array_text
from walproxy.pipeline.cdc.column_types import BadValue, common_type, holds, printed, text_to_arrow

TEXTS = pa.list_(pa.string())
PIECES = ["a", '"', "\\", "{", "}", ",", " ", "\n", "\v", "N", "NULL", "null", "é", "日", "\U0001f40e", "[0:1]="]
ELEMENTS = st.none() | st.lists(st.sampled_from(PIECES), max_size=4).map("".join)
ROWS = st.lists(st.none() | st.lists(ELEMENTS, max_size=4), max_size=12)


def lists(*texts: str | None, data_type: pa.DataType = TEXTS) -> list[Any]:
    found = text_to_arrow(pa.array(texts, pa.string()), data_type, "public.t.c")
    found.validate(full=True)
    assert found.type == data_type
    return found.to_pylist()


def test_elements_are_those_of_postgres() -> None:
    # As array_out prints them.
    assert lists("{}", None, "{a}", '{NULL,"NULL",null,"null",NUL}') == [
        [],
        None,
        ["a"],
        [None, "NULL", "null", "null", "NUL"],
    ]
    assert lists('{"",a,"b c","x\\"y","\\\\","\\\\\\"","{","},","é 日"}') == [
        ["", "a", "b c", 'x"y', "\\", '\\"', "{", "},", "é 日"]
    ]
    assert lists() == [] and lists(None, None) == [None, None]


def test_elements_have_their_types() -> None:
    assert lists("{1,NULL,-32768}", data_type=pa.list_(pa.int16())) == [[1, None, -32768]]
    assert lists('{"\\\\x00ff","\\\\x"}', data_type=pa.list_(pa.binary())) == [[b"\x00\xff", b""]]
    assert lists("{t,f,NULL}", data_type=pa.list_(pa.bool_())) == [[True, False, None]]
    [(infinite, nan)] = lists("{-Infinity,NaN}", data_type=pa.list_(pa.float64()))
    assert infinite == -np.inf and np.isnan(nan)


NO_LISTS = [
    *("{{1,2},{3,4}}", "[0:1]={1,2}", "[2:2][1:1]={{1}}", "{{}}"),
    *("", "{", "}", "x", "{a,}", "{,a}", "{,}", '{"a}', '{"a"b}', '{a"b"}', '{"a""b"}', "{a\\,b}", '{"a","b}'),
    *("{a}{b}", "{a}}", "{{a}", '{"\\"}', '"{a}"'),
]


@pytest.mark.parametrize("text", NO_LISTS)
def test_what_is_no_list_is_refused_and_named(text: str) -> None:
    with pytest.raises(BadValue, match=r"public\.t\.c has the value .*, which list<.*> cannot hold") as raised:
        lists("{good}", text, "{good}")
    assert repr(text) in str(raised.value)
    found = text_to_arrow(pa.array(["{good}", text, None]), TEXTS, "public.t.c", bad_as_null=True)
    assert found.to_pylist() == [["good"], None, None]


@given(ROWS, st.integers(0, 12))
def test_any_list_becomes_its_text_and_comes_back(rows: list[list[str | None] | None], start: int) -> None:
    texts = pa.array([None if row is None else array_text(row) for row in rows], pa.string()).slice(start)
    found = text_to_arrow(texts, TEXTS, "public.t.c")
    found.validate(full=True)
    assert found.to_pylist() == rows[start:]
    assert printed(found).to_pylist() == texts.to_pylist()
    assert printed(pa.chunked_array([found.slice(1), found])).to_pylist() == [
        *texts.to_pylist()[1:],
        *texts.to_pylist(),
    ]


def test_a_list_is_printed_as_postgres_does() -> None:
    values = pa.array([[True, None], [], None], pa.list_(pa.bool_()))
    assert printed(values).to_pylist() == ["{t,NULL}", "{}", None]
    assert printed(pa.array([[b"\x01", None]])).to_pylist() == ['{"\\\\x01",NULL}']
    assert printed(pa.array([["", " ", "null", 'q"', "\\", "a,b", "plain"]])).to_pylist() == [
        '{""," ","null","q\\"","\\\\","a,b",plain}'
    ]


def test_a_list_holds_the_elements_that_its_type_holds() -> None:
    small, large = pa.list_(pa.int32()), pa.list_(pa.int64())
    assert holds(large, small) and not holds(small, large)
    assert common_type(small, large) == large
    for other in (pa.string(), pa.int32(), pa.list_(pa.date32())):
        assert common_type(small, other) == common_type(other, small) == pa.string()


def hashes(rows: list[Any], data_type: pa.DataType = TEXTS) -> list[int]:
    return row_hashes(pa.record_batch([pa.array(rows, data_type)], ["c"])).tolist()


def test_lists_that_differ_have_different_hashes() -> None:
    rows = [
        [],
        None,
        [None],
        [None, None],
        ["a"],
        ["b"],
        ["a", "b"],
        ["b", "a"],
        ["ab"],
        [""],
        ["a", None],
        [None, "a"],
    ]
    assert len(set(hashes(rows))) == len(rows)
    assert hashes(rows[4:]) == hashes(rows)[4:]
    table = pa.record_batch([pa.array(rows, TEXTS)], ["c"])
    assert row_hashes(table.slice(3, 5)).tolist() == hashes(rows)[3:8]
    # How a format names the elements, and what is in the place of a null, does not matter.
    other = pa.list_(pa.field("element", pa.string()))
    hidden = pa.ListArray.from_arrays([0, 1, 2], pa.array(["x", "a"]), type=other, mask=pa.array([True, False]))
    assert row_hashes(pa.record_batch([hidden], ["c"])).tolist() == hashes([None, ["a"]])
    nan = np.array([0x7FF8000000000001], np.uint64).view(np.float64)[0]
    floats = pa.list_(pa.float64())
    assert hashes([[nan, 0.0]], floats) == hashes([[np.nan, 0.0]], floats) != hashes([[np.nan, -0.0]], floats)
