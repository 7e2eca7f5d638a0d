"""PostgreSQL's text format of COPY, read by columns: lines become an array of bytes for each column.

COPY escapes tabs, line ends and backslashes within values, so that tabs and line ends always separate. So Arrow's
reader of CSV finds the values, without quotes or escapes; only columns that have a backslash are searched for escapes.
Source: https://www.postgresql.org/docs/current/sql-copy.html (File Formats, Text Format)
"""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

_NULL: Final = "\\N"
_BACKSLASH: Final = b"\\"
_PLACEHOLDER: Final = b"\0"
"""No text of PostgreSQL has a zero byte."""

_ESCAPES: Final = {b"\\b": b"\b", b"\\f": b"\f", b"\\n": b"\n", b"\\r": b"\r", b"\\t": b"\t", b"\\v": b"\v"}
_FORMAT: Final = pyarrow.csv.ParseOptions(delimiter="\t", quote_char=False, escape_char=False, ignore_empty_lines=False)


def columns_of_lines(lines: bytes, count: int) -> list[pa.Array]:
    """Return the values of whole lines, as bytes, of each of `count` columns; null where the source has null.

    Args:
        lines: each with its line end; at least one.
        count: at least one.

    Raises:
        pyarrow.ArrowInvalid: a line has another number of columns.
    """
    names = [str(number) for number in range(count)]
    found = pyarrow.csv.read_csv(
        pa.BufferReader(lines),
        read_options=pyarrow.csv.ReadOptions(column_names=names, use_threads=False, block_size=len(lines) + 1),
        parse_options=_FORMAT,
        convert_options=pyarrow.csv.ConvertOptions(
            check_utf8=False,
            column_types=dict.fromkeys(names, pa.binary()),
            null_values=[_NULL],
            strings_can_be_null=True,
        ),
    )
    return [_unescaped(column.combine_chunks()) for column in found.columns]


def _unescaped(values: pa.Array) -> pa.Array:
    """Return values without escapes. Escaped backslashes are set aside first: what follows one is not an escape."""
    if not pc.any(pc.match_substring(values, _BACKSLASH), min_count=0).as_py():
        return values
    values = pc.replace_substring(values, _BACKSLASH * 2, _PLACEHOLDER)
    for escape, meant in _ESCAPES.items():
        values = pc.replace_substring(values, escape, meant)
    return pc.replace_substring(values, _PLACEHOLDER, _BACKSLASH)
