"""PostgreSQL's types as Arrow's, and its text of their values as Arrow's values.

What has no counterpart stays the text that PostgreSQL prints: json, uuid, intervals, ranges, enums, network addresses,
numeric without a precision. So do the elements of arrays. Arrays of built-in types are lists, if lists are wanted;
those of enums, domains and composite types are text. What Arrow's type cannot hold (infinite dates, NaN in a numeric,
years beyond 9999, arrays of several dimensions) is refused, never rounded or made null: the column can be read as text
instead.

uuid would have a type of its own in Iceberg, but Spark does not read such files and Polars reads 16 bytes; Delta has
none. json has one in neither of the two, as the libraries write them.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from walproxy.pipeline.cdc.array_texts import array_text, lists_of
from walproxy.pipeline.cdc.messages import UNCHANGED, Binary, Value
from walproxy.pipeline.cdc.server import SourceRefused

BOOL, BYTEA, INT8, INT2, INT4, TEXT, OID = 16, 17, 20, 21, 23, 25, 26
FLOAT4, FLOAT8, DATE, TIMESTAMP, TIMESTAMPTZ, NUMERIC = 700, 701, 1082, 1114, 1184, 1700

_SIMPLE: Final = {
    BOOL: pa.bool_(),
    BYTEA: pa.binary(),
    INT2: pa.int16(),
    INT4: pa.int32(),
    INT8: pa.int64(),
    OID: pa.int64(),
    FLOAT4: pa.float32(),
    FLOAT8: pa.float64(),
    DATE: pa.date32(),
    TIMESTAMP: pa.timestamp("us"),
    TIMESTAMPTZ: pa.timestamp("us", tz="UTC"),
}
_ELEMENT_OF: Final = {
    1000: BOOL,
    1001: BYTEA,
    1005: INT2,
    1007: INT4,
    1016: INT8,
    1028: OID,
    1021: FLOAT4,
    1022: FLOAT8,
    1115: TIMESTAMP,
    1182: DATE,
    1185: TIMESTAMPTZ,
    1231: NUMERIC,
    1009: TEXT,
    1002: 18,  # "char"
    1003: 19,  # name
    1014: 1042,  # character
    1015: 1043,  # character varying
    143: 142,  # xml
    199: 114,  # json
    3807: 3802,  # jsonb
    2951: 2950,  # uuid
    1183: 1083,  # time
    1270: 1266,  # time with time zone
    1187: 1186,  # interval
    791: 790,  # money
    1041: 869,  # inet
    651: 650,  # cidr
    1040: 829,  # macaddr
    775: 774,  # macaddr8
    1561: 1560,  # bit
    1563: 1562,  # bit varying
    3221: 3220,  # pg_lsn
    3905: 3904,  # int4range
    3907: 3906,  # numrange
    3909: 3908,  # tsrange
    3911: 3910,  # tstzrange
    3913: 3912,  # daterange
    3927: 3926,  # int8range
    6150: 4451,  # int4multirange
    6151: 4532,  # nummultirange
    6152: 4533,  # tsmultirange
    6153: 4534,  # tstzmultirange
    6155: 4535,  # datemultirange
    6157: 4536,  # int8multirange
}
"""The type of the elements by that of the array: those of pg_type whose elements a comma divides."""

_DECIMAL_DIGITS_MAX: Final = 38
_MODIFIER_HEADER: Final = 4
_SCALE_BITS: Final = 11


class BadValue(SourceRefused):
    """A value cannot be one of its column's type.

    Attributes:
        column: `schema.table.column`.
    """

    def __init__(self, message: str, column: str) -> None:
        super().__init__(message)
        self.column = column


def is_array(type_oid: int) -> bool:
    """Return whether values of a PostgreSQL type can be lists."""
    return type_oid in _ELEMENT_OF


def arrow_type(type_oid: int, type_modifier: int, *, lists: bool = False) -> pa.DataType:
    """Return the Arrow type for values of a PostgreSQL type; text for what has none.

    Args:
        type_modifier: of an array, that of its elements.
        lists: arrays of built-in types are lists, not text.
    """
    if lists and type_oid in _ELEMENT_OF:
        return pa.list_(arrow_type(_ELEMENT_OF[type_oid], type_modifier))
    if type_oid == NUMERIC:
        return _decimal(type_modifier)
    return _SIMPLE.get(type_oid, pa.string())


def _decimal(type_modifier: int) -> pa.DataType:
    """numeric(precision, scale) is precision << 16 | scale + 4, the scale having 11 bits with a sign."""
    if type_modifier < _MODIFIER_HEADER:
        return pa.string()
    packed = type_modifier - _MODIFIER_HEADER
    precision = packed >> 16 & 0xFFFF
    scale = packed & ((1 << _SCALE_BITS) - 1)
    if scale >> (_SCALE_BITS - 1):
        scale -= 1 << _SCALE_BITS
    if precision > _DECIMAL_DIGITS_MAX or not 0 <= scale <= precision:
        return pa.string()
    return pa.decimal128(precision, scale)


def to_arrow(values: Sequence[Value], data_type: pa.DataType, column: str, *, bad_as_null: bool = False) -> pa.Array:
    """Return values of one column as an array.

    Args:
        values: PostgreSQL's text of them; what is UNCHANGED becomes null.
        column: `schema.table.column`, for errors.
        bad_as_null: what the type cannot hold becomes null.

    Raises:
        BadValue: a value cannot be one of the type.
        SourceRefused: a value is not text.
    """
    if any(type(value) is Binary for value in values):
        raise SourceRefused(f"the server sends {column} in binary form, which was not requested")
    raw = pa.array([None if value is UNCHANGED else value for value in values], pa.binary())
    return bytes_to_arrow(raw, data_type, column, bad_as_null=bad_as_null)


def bytes_to_arrow(raw: pa.Array, data_type: pa.DataType, column: str, *, bad_as_null: bool = False) -> pa.Array:
    """Return PostgreSQL's texts of the values of one column, as bytes, as an array of a type. Raises as `to_arrow`."""
    try:
        texts = raw.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise SourceRefused(
            f"{column} has a value that is not UTF-8: the server's encoding is not converted"
        ) from error
    return text_to_arrow(texts, data_type, column, bad_as_null=bad_as_null)


def text_to_arrow(texts: pa.Array, data_type: pa.DataType, column: str, *, bad_as_null: bool = False) -> pa.Array:
    """Return PostgreSQL's texts of the values of one column as an array of a type.

    Raises:
        BadValue: a value cannot be one of the type, and `bad_as_null` is not set.
    """
    try:
        return _convert(texts, data_type)
    except (pa.ArrowInvalid, ValueError) as error:
        if bad_as_null:
            return _good_values(texts, data_type)
        raise BadValue(
            f"{column} has the value {_first_that_fails(texts, data_type)}, which {data_type} cannot hold: name the "
            "column among those to be read as text",
            column,
        ) from error


def _good_values(texts: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Convert the distinct texts one by one, null in place of those that cannot be converted."""
    encoded = texts.dictionary_encode()
    good = []
    for index in range(len(encoded.dictionary)):
        try:
            good.append(_convert(encoded.dictionary.slice(index, 1), data_type))
        except (pa.ArrowInvalid, ValueError):
            good.append(pa.nulls(1, data_type))
    values = pa.concat_arrays(good) if good else pa.nulls(0, data_type)
    return values.take(encoded.indices)


def _convert(texts: pa.Array, data_type: pa.DataType) -> pa.Array:
    if pa.types.is_list(data_type):
        return lists_of(texts, data_type, _convert)
    if pa.types.is_binary(data_type):
        return pa.array([None if text is None else _bytes(text) for text in texts.to_pylist()], pa.binary())
    if pa.types.is_boolean(data_type):
        is_true = pc.equal(texts, "t")
        if not pc.all(pc.or_(is_true, pc.equal(texts, "f")), min_count=0).as_py():
            raise ValueError("a boolean is t or f")
        return is_true
    return texts.cast(data_type)


def holds(held: pa.DataType, sent: pa.DataType) -> bool:
    """Return whether a column of the first type holds every value of the second, from their text."""
    if held == sent:
        return True
    if pa.types.is_list(held) and pa.types.is_list(sent):
        return holds(held.value_type, sent.value_type)
    if pa.types.is_decimal(held) and pa.types.is_decimal(sent):
        return bool(held.scale == sent.scale and held.precision >= sent.precision)
    for is_kind in (pa.types.is_signed_integer, pa.types.is_floating):
        if is_kind(held) and is_kind(sent):
            return bool(held.bit_width >= sent.bit_width)
    return False


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return a type that holds every value of both: text, if neither holds those of the other."""
    if holds(one, other):
        return one
    return other if holds(other, one) else pa.string()


def printed(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return values as text, much as PostgreSQL prints them."""
    if pa.types.is_boolean(values.type):
        return pc.if_else(values, "t", "f")
    if pa.types.is_binary(values.type):
        return pa.array([None if value is None else "\\x" + value.hex() for value in values.to_pylist()], pa.string())
    if pa.types.is_list(values.type):
        return pa.array([None if row is None else array_text(row) for row in _printed_rows(values)], pa.string())
    return values.cast(pa.string())


def _printed_rows(lists: pa.Array | pa.ChunkedArray) -> Iterator[list[str | None] | None]:
    for chunk in lists.chunks if isinstance(lists, pa.ChunkedArray) else [lists]:
        elements = printed(chunk.flatten()).to_pylist()
        end = 0
        for count in pc.list_value_length(chunk).to_pylist():
            begin, end = end, end + (count or 0)
            yield None if count is None else elements[begin:end]


def _bytes(text: str) -> bytes:
    if not text.startswith("\\x"):
        raise ValueError("not in hexadecimal form")
    return bytes.fromhex(text[2:])


def _first_that_fails(texts: pa.Array, data_type: pa.DataType) -> str:
    for index in range(len(texts)):
        try:
            _convert(texts.slice(index, 1), data_type)
        except (pa.ArrowInvalid, ValueError):
            return repr(texts[index].as_py()[:40])
    return "(not found)"
