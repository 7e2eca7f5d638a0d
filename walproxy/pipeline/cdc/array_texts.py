"""PostgreSQL's text of arrays as lists, and lists as that text. Pure.

    {1,NULL,3}   {"a b","say \\"x\\"","back\\\\slash","",NULL}   {}   [0:1]={1,2}   {{1,2},{3,4}}

An element is in quotes if it is empty, looks like NULL, or has a quote, a backslash, a brace, the delimiter or white
space; in quotes a backslash precedes each quote and backslash. The server prints no white space between elements. Lower
bounds are printed if one of them is not 1. The values of one column may differ in both: a list is the array of one
dimension that begins at 1, or the empty one. All others are refused, so that nothing is lost.

All texts are parsed at once: NumPy finds the bytes that are structure, and what remains is the elements.
Source: https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO
"""

import re
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Octets = npt.NDArray[np.uint8]

_QUOTE, _COMMA, _BACKSLASH, _OPEN, _CLOSE = b'",\\{}'
_NULL: Final = b"NULL"
_IS_STRUCTURE: Final = np.isin(np.arange(256), [_QUOTE, _COMMA, _BACKSLASH, _OPEN, _CLOSE])
_NEEDS_QUOTES: Final = re.compile(r'["\\{},\s]|\A\Z|\ANULL\Z', re.ASCII | re.IGNORECASE)


def lists_of(texts: pa.Array, data_type: pa.DataType, convert: Callable[[pa.Array, pa.DataType], pa.Array]) -> pa.Array:
    """Return the lists that the texts of arrays are.

    Args:
        texts: strings; null is null.
        data_type: of the lists.
        convert: returns texts of elements as an array of the type of the elements.

    Raises:
        ValueError, pa.ArrowInvalid: a text is not that of an array of one dimension with the lower bound 1, or an
            element cannot be one of its type.
    """
    present = texts.drop_null()
    counts = np.zeros(len(texts), np.int64)
    elements = pa.array([], pa.string())
    if len(present):
        elements, counts[texts.is_valid().to_numpy(zero_copy_only=False)] = _elements(present)
    offsets = pa.array(np.concatenate(([0], np.cumsum(counts))), pa.int32())
    mask = texts.is_null() if texts.null_count else None
    return pa.ListArray.from_arrays(offsets, convert(elements, data_type.value_type), type=data_type, mask=mask)


def _elements(texts: pa.Array) -> tuple[pa.Array, Numbers]:
    """Return the elements of all texts, one after the other, and the number of each text. Raises ValueError."""
    octets, begins, ends = _bytes_of(texts)
    if np.any(ends - begins < 2) or np.any(octets[ends - 1] != _CLOSE):
        raise ValueError("not the text of an array")
    at, escapes = _structure(octets)
    kinds = octets[at]
    # Each text begins with the one brace that opens it, and ends with the one that closes it.
    if not np.array_equal(at[kinds == _OPEN], begins) or not np.array_equal(at[kinds == _CLOSE], ends - 1):
        raise ValueError("an array of several dimensions, or one that does not begin at 1")
    borders = np.flatnonzero(kinds != _QUOTE)  # braces and commas: an element is between two of them
    is_first = (kinds[borders] != _CLOSE)[:-1]
    quotes = (np.diff(borders) - 1)[is_first]
    element_begins, element_ends = at[borders[:-1][is_first]] + 1, at[borders[1:][is_first]]
    is_absent = (
        (octets[element_begins - 1] == _OPEN) & (octets[element_ends] == _CLOSE) & (element_begins == element_ends)
    )
    counts = np.diff(np.append(np.flatnonzero(octets[element_begins - 1] == _OPEN), len(element_begins)))
    counts[is_absent[np.cumsum(counts) - counts]] = 0
    present = ~is_absent
    element_begins, element_ends, quotes = element_begins[present], element_ends[present], quotes[present]
    if np.any(element_begins == element_ends):
        raise ValueError("an element is missing")
    is_quoted = octets[element_begins] == _QUOTE
    if np.any(quotes != 2 * is_quoted) or np.any((octets[element_ends - 1] != _QUOTE) & is_quoted):
        raise ValueError("an element is in quotes only in part")
    is_null = element_ends - element_begins == len(_NULL)
    for index, octet in enumerate(_NULL):
        is_null[is_null] = octets[element_begins[is_null] + index] == octet
    dropped = np.sort(np.concatenate((at, escapes))) if len(escapes) else at
    kept = np.ones(len(octets), np.bool_)
    kept[dropped] = False
    # What precedes an element is dropped, so that elements follow each other.
    offsets = np.append(element_begins - np.searchsorted(dropped, element_begins), len(octets) - len(dropped))
    return _strings(octets[kept], offsets, is_null), counts


def _bytes_of(texts: pa.Array) -> tuple[Octets, Numbers, Numbers]:
    """Return the bytes of texts, none of which is null, and where each begins and ends in them."""
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    data = texts.buffers()[2]
    octets = np.frombuffer(b"" if data is None else data, np.uint8)[offsets[0] : offsets[-1]]
    positions = offsets.astype(np.int64) - int(offsets[0])
    return octets, positions[:-1], positions[1:]


def _structure(octets: Octets) -> tuple[Numbers, Numbers]:
    """Return where quotes are, and commas and braces outside of quotes; and which backslashes precede an octet.

    Raises ValueError: a backslash is outside of quotes.
    """
    at = np.flatnonzero(_IS_STRUCTURE[octets])
    kinds = octets[at]
    is_backslash = kinds == _BACKSLASH
    escapes = at[:0]
    if is_backslash.any():
        backslashes = at[is_backslash]
        # In a run of backslashes the first one precedes the second, and so on. No text ends with a backslash.
        is_start = np.append(True, np.diff(backslashes) != 1)
        start = backslashes[np.maximum.accumulate(np.where(is_start, np.arange(len(backslashes)), 0))]
        escapes = backslashes[(backslashes - start) % 2 == 0]
        at = at[~is_backslash & ~np.isin(at, escapes + 1, assume_unique=True)]
        kinds = octets[at]
    is_quote = kinds == _QUOTE
    is_within = np.cumsum(is_quote) % 2 == 1
    if len(escapes):
        before = np.searchsorted(at, escapes) - 1
        if np.any(before < 0) or not np.all(is_within[before]):
            raise ValueError("a backslash outside of quotes")
    return at[is_quote | ~is_within], escapes


def _strings(values: Octets, offsets: Numbers, is_null: Flags) -> pa.Array:
    bits = pa.py_buffer(np.packbits(~is_null, bitorder="little").tobytes()) if is_null.any() else None
    buffers = [bits, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.string(), len(is_null), buffers)


def array_text(elements: Sequence[str | None]) -> str:
    """Return the text of an array of one dimension, from those of its elements."""
    return "{" + ",".join("NULL" if each is None else _element_text(each) for each in elements) + "}"


def _element_text(text: str) -> str:
    if not _NEEDS_QUOTES.search(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
