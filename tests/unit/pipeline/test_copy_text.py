"""COPY's text format by columns, compared with a reader that takes one character after the other."""

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from walproxy.pipeline.cdc.copy_text import columns_of_lines

ESCAPES = {"\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}
VALUES = (
    st.none()
    | st.text(st.sampled_from("\\\b\f\n\r\t\vNbn,'\" é."))
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
)


def line_of(row: list[str | None]) -> str:
    values = ["\\N" if value is None else "".join(ESCAPES.get(each, each) for each in value) for value in row]
    return "\t".join(values) + "\n"


@st.composite
def tables(draw: st.DrawFn) -> list[list[str | None]]:
    width = draw(st.integers(1, 4))
    return draw(st.lists(st.lists(VALUES, min_size=width, max_size=width), min_size=1, max_size=6))


@given(tables())
@example([[""]])
@example([[None], [""], ["\\N"], ["N"]])
@example([["\\n"], ["\\\n"], ["\\\\t\t"]])
def test_columns_have_the_values_of_the_lines(rows: list[list[str | None]]) -> None:
    columns = columns_of_lines("".join(map(line_of, rows)).encode(), len(rows[0]))
    expected = [[None if value is None else value.encode() for value in column] for column in zip(*rows, strict=True)]
    assert [column.to_pylist() for column in columns] == expected
    assert {column.type for column in columns} == {pa.binary()}


def test_bytes_of_any_encoding_stay_and_lines_of_another_width_are_refused() -> None:
    assert columns_of_lines(b"\xff\xfe\tx\n", 2)[0].to_pylist() == [b"\xff\xfe"]
    with pytest.raises(pa.ArrowInvalid):
        columns_of_lines(b"1\t2\n3\n", 2)
