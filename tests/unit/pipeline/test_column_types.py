"""PostgreSQL's types as Arrow's."""

import pyarrow as pa
import pytest

from walproxy.pipeline.cdc.column_types import arrow_type


def modifier(precision: int, scale: int) -> int:
    """As numerictypmodin makes it."""
    return (precision << 16 | scale & 0x7FF) + 4


@pytest.mark.parametrize(
    ("type_modifier", "expected"),
    [
        (-1, pa.string()),
        (modifier(10, 2), pa.decimal128(10, 2)),
        (modifier(38, 38), pa.decimal128(38, 38)),
        (modifier(1, 0), pa.decimal128(1, 0)),
        (modifier(39, 2), pa.string()),
        (modifier(5, -2), pa.string()),
        (modifier(3, 5), pa.string()),
    ],
)
def test_a_numeric_is_a_decimal_if_one_can_hold_all_its_values(type_modifier: int, expected: pa.DataType) -> None:
    assert arrow_type(1700, type_modifier) == expected


@pytest.mark.parametrize("type_oid", [25, 1043, 1042, 114, 3802, 2950, 1007, 1186, 1083, 790, 16_999])
def test_what_has_no_counterpart_is_text(type_oid: int) -> None:
    assert arrow_type(type_oid, -1) == pa.string()
