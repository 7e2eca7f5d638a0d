"""What a record holds of a catalog's tuples: those it inserts, updates and deletes, and those of a full-page image.

A tuple that is inserted is in the record, or in the full-page image that the record has in its place. An update of a
catalog leaves out the bytes at the tuple's begin and end that are as before, if both versions are in one page that
needs no image. What is left out is not looked up anywhere: a record is decoded from its own bytes only, so its rows do
not depend on how WAL was cut into pieces. But an update of an indexed column, such as relfilenode, adds new entries to
every index of the catalog, and each of these records has the complete key and where the tuple is: `entry_rows`.

The layouts are those of src/include/access/heapam_xlog.h, itup.h and nbtxlog.h, the same in 13 to 18.
"""

import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from walproxy.pipeline.decoder.catalog_layouts import INDEXES, WIDTHS, DecodedCatalog, FieldType, IndexKey
from walproxy.pipeline.decoder.decode import Decoded
from walproxy.pipeline.decoder.opcodes import RM_BTREE, RM_HEAP, RM_HEAP2
from walproxy.pipeline.decoder.page_images import items_of, page_image

Row = dict[str, Any]
"""The columns of a row of the view that are not null."""

# xl_info & XLOG_HEAP_OPMASK, shifted down; XLOG_HEAP_INIT_PAGE is the bit above.
_INSERT, _DELETE, _UPDATE, _HOT_UPDATE, _MULTI_INSERT = 0, 1, 2, 4, 5
_INIT_PAGE: Final = 0x80
_PREFIX, _SUFFIX = 1 << 5, 1 << 6
_HEAP_HEADER: Final = struct.Struct("<HHB")  # xl_heap_header; t_hoff is its last byte
_MULTI_HEADER: Final = struct.Struct("<HHHB")  # xl_multi_insert_tuple
_UPDATE_RECORD: Final = struct.Struct("<IHBBIH")
_DELETE_RECORD: Final = struct.Struct("<IH")
_TUPLE_HEADER: Final = 23
_HOFF: Final = 22

_REPLACED: Final = ("tablespace",)  # The view has the database's one in place of 0, so bits of it mean nothing.

# xl_info >> 4 of btrees.
_INSERT_LEAF, _SPLIT_L, _SPLIT_R, _INSERT_POST = 0, 3, 4, 5
_SPLIT_RECORD: Final = struct.Struct("<IHHH")
_INDEX_HEADER: Final = struct.Struct("<HHHH")
_INDEX_SIZE: Final = 0x1FFF
_INDEX_NULLS: Final = 0x8000


class _Part(NamedTuple):
    """The bytes of a tuple's data that are known: `data` begins after `kept` bytes, and `kept_tail` follow."""

    data: bytes
    kept: int = 0
    kept_tail: int = 0


def heap_rows(decoded: Decoded, record: int, catalog: DecodedCatalog, reference: int) -> Iterator[Row]:
    """Yield the tuples that a record of a heap inserts, updates or deletes.

    Args:
        reference: the record's first block reference, which is of this catalog.

    Raises:
        struct.error, IndexError: the record is too short for its content.
        WalFormatError: an image cannot be decompressed.
    """
    info, main = int(decoded.info[record]), _main(decoded, record)
    operation = info >> 4 & 7
    block = int(decoded.block[reference])
    if decoded.rmid[record] == RM_HEAP2:
        if operation == _MULTI_INSERT:
            yield from _multi_insert(decoded, catalog, reference, main, bool(info & _INIT_PAGE))
    elif operation == _INSERT:
        (line,) = struct.unpack_from("<H", main)
        part = _inserted(decoded, reference, line)
        yield {"action": "insert", "block": block, "line": line, **_fields(catalog, part)}
    elif operation == _DELETE:
        _, line = _DELETE_RECORD.unpack_from(main)
        found = _imaged(decoded, reference, line)
        known = _fields(catalog, found) if found is not None else {}
        yield {"action": "delete", "old_block": block, "old_line": line, **known}
    elif operation in (_UPDATE, _HOT_UPDATE):
        _, old_line, _, flags, _, line = _UPDATE_RECORD.unpack_from(main)
        # The old page is the second reference if it is another one.
        other = reference + 1
        same = other == decoded.first_block[record + 1]
        part = _updated(decoded, reference, line, flags)
        yield {
            "action": "update",
            "block": block,
            "line": line,
            "old_block": block if same else int(decoded.block[other]),
            "old_line": old_line,
            **_fields(catalog, part),
        }


def image_rows(decoded: Decoded, catalog: DecodedCatalog, reference: int, made: set[int]) -> Iterator[Row]:
    """Yield the tuples of a page of a catalog that a record has an image of, without those lines that it has made."""
    block = int(decoded.block[reference])
    for line, item in items_of(page_image(decoded, reference)).items():
        if line not in made:
            yield {"action": "image", "block": block, "line": line, **_fields(catalog, _data_of(item))}


def entry_rows(decoded: Decoded, record: int, key: IndexKey, reference: int) -> Iterator[Row]:
    """Yield the index entry that a record of a btree on a catalog inserts; none if it inserts none in a leaf.

    Raises:
        As heap_rows.
    """
    operation = int(decoded.info[record]) >> 4
    data, main = _block_data(decoded, reference), _main(decoded, record)
    found = None
    has_line = True
    if operation in (_INSERT_LEAF, _INSERT_POST):
        (line,) = struct.unpack_from("<H", main)
        if data:
            found = data[2:] if operation == _INSERT_POST else data
        else:
            # Where a posting list was split, the new item has the list's last pointer in the page, not its own.
            found, has_line = items_of(page_image(decoded, reference)).get(line), operation == _INSERT_LEAF
    elif operation in (_SPLIT_L, _SPLIT_R):
        found, has_line = _split_entry(decoded, record, reference, operation, data, main)
    if found is None:
        return
    row = {"action": "entry", **_key(key, found)}
    if has_line:
        high, low, line, _ = _INDEX_HEADER.unpack_from(found)
        row |= {"block": high << 16 | low, "line": line}
    yield row


def _split_entry(
    decoded: Decoded, record: int, reference: int, operation: int, data: bytes, main: bytes
) -> tuple[bytes | None, bool]:
    """Return the new entry of a record that splits a leaf, and whether its heap pointer is its own."""
    level, first_right, line, posting = _SPLIT_RECORD.unpack_from(main)
    if level != 0:
        return None, False
    # Of the left page the record has what is new; all of the right one.
    if posting:
        return (data, True) if data else (None, False)
    if operation == _SPLIT_L:
        return (data, True) if data else (items_of(page_image(decoded, reference)).get(line), True)
    right = reference + 1
    moved = _block_data(decoded, right)
    items = []
    at = 0
    while at < len(moved):
        size = _INDEX_HEADER.unpack_from(moved, at)[3] & _INDEX_SIZE
        if size == 0:
            raise IndexError("an index entry without a size")
        items.append(moved[at : at + size])
        at += (size + 7) & ~7
    items.reverse()  # A page is filled from its end.
    # Another page to the right, which the record refers to as its block 2, means that the right page has a high key.
    ids = decoded.block_id[decoded.first_block[record] : decoded.first_block[record + 1]].tolist()
    return items[line - first_right + (2 in ids)], True


def _multi_insert(decoded: Decoded, catalog: DecodedCatalog, reference: int, main: bytes, init: bool) -> Iterator[Row]:
    (count,) = struct.unpack_from("<H", main, 2)
    lines = range(1, count + 1) if init else struct.unpack_from(f"<{count}H", main, 4)
    data = _block_data(decoded, reference)
    items = {} if data else items_of(page_image(decoded, reference))
    at = 0
    for line in lines:
        if data:
            at += at & 1
            size, _, _, hoff = _MULTI_HEADER.unpack_from(data, at)
            at += _MULTI_HEADER.size
            part = _Part(data[at + hoff - _TUPLE_HEADER : at + size])
            at += size
        else:
            part = _data_of(items[line])
        yield {"action": "insert", "block": int(decoded.block[reference]), "line": line, **_fields(catalog, part)}


def _inserted(decoded: Decoded, reference: int, line: int) -> _Part:
    data = _block_data(decoded, reference)
    if not data:
        return _data_of(items_of(page_image(decoded, reference))[line])
    _, _, hoff = _HEAP_HEADER.unpack_from(data)
    return _Part(data[_HEAP_HEADER.size + hoff - _TUPLE_HEADER :])


def _updated(decoded: Decoded, reference: int, line: int, flags: int) -> _Part:
    data = _block_data(decoded, reference)
    if not data:
        return _data_of(items_of(page_image(decoded, reference))[line])
    at = kept = kept_tail = 0
    if flags & _PREFIX:
        (kept,) = struct.unpack_from("<H", data, at)
        at += 2
    if flags & _SUFFIX:
        (kept_tail,) = struct.unpack_from("<H", data, at)
        at += 2
    _, _, hoff = _HEAP_HEADER.unpack_from(data, at)
    return _Part(data[at + _HEAP_HEADER.size + hoff - _TUPLE_HEADER :], kept, kept_tail)


def _imaged(decoded: Decoded, reference: int, line: int) -> _Part | None:
    """Return a tuple of the image that the record has of the page, None if there is no image."""
    if not decoded.has_image[reference]:
        return None
    return _data_of(items_of(page_image(decoded, reference))[line])


def _data_of(item: bytes) -> _Part:
    """Return the data of a tuple in a page, after its header."""
    return _Part(item[item[_HOFF] :])


def _fields(catalog: DecodedCatalog, part: _Part) -> Row:
    """Return the columns of a tuple that are known."""
    size = part.kept + len(part.data) + part.kept_tail
    row: Row = {"tuple_bytes": size}
    kept: list[str] = []
    kept_at_end: list[str] = []
    partly: list[tuple[str, int, int]] = []
    for field in catalog.fields:
        begin = field.offset - part.kept
        end = begin + WIDTHS[field.type]
        if begin >= 0 and end <= len(part.data):
            row |= dict.fromkeys(field.columns, _value(field.type, part.data, begin))
        elif end <= 0:
            kept += field.columns
        elif begin >= len(part.data):
            kept_at_end += field.columns
        elif field.type in ("oid", "int", "short") and field.columns != _REPLACED:
            mask = sum(0xFF << 8 * at for at in range(end - begin) if 0 <= begin + at < len(part.data))
            known = part.data[max(begin, 0) : end]
            bits = int.from_bytes(bytes(max(-begin, 0)) + known, "little")
            partly += [(column, mask, bits) for column in field.columns]
    if part.kept or part.kept_tail:
        row |= {"kept": kept, "kept_at_end": kept_at_end}
    if partly:
        row["partly"], row["partly_mask"], row["partly_bits"] = map(list, zip(*partly, strict=True))
    return row


def _key(key: IndexKey, item: bytes) -> Row:
    """Return the columns of an index entry. Entries of catalogs have no nulls; names end with a zero byte."""
    row: Row = {}
    at = _INDEX_HEADER.size
    info = _INDEX_HEADER.unpack_from(item)[3]
    if info & _INDEX_NULLS:
        raise IndexError("an entry with nulls")
    for kind, columns in key.keys:
        if kind == "name":
            end = item.index(0, at)
            row |= dict.fromkeys(columns, item[at:end].decode(errors="replace"))
            at = end + 1
        else:
            width = WIDTHS[kind]
            at = (at + width - 1) // width * width
            row |= dict.fromkeys(columns, _value(kind, item, at))
            at += width
    return row


def _value(kind: FieldType, data: bytes, at: int) -> Any:
    if kind == "name":
        return data[at : at + WIDTHS[kind]].partition(b"\0")[0].decode(errors="replace")
    if kind == "oid":
        return int.from_bytes(data[at : at + 4], "little")
    if kind == "char":
        return chr(data[at]) if data[at] else None
    if kind == "bool":
        return data[at] != 0
    return int.from_bytes(data[at : at + WIDTHS[kind]], "little", signed=True)


def _main(decoded: Decoded, record: int) -> bytes:
    begin = int(decoded.main_offset[record])
    return decoded.stripped[begin : begin + int(decoded.main_bytes[record])].tobytes()


def _block_data(decoded: Decoded, reference: int) -> bytes:
    begin = int(decoded.data_offset[reference])
    return decoded.stripped[begin : begin + int(decoded.data_bytes[reference])].tobytes()


def rows_of_reference(
    decoded: Decoded, record: int, reference: int, catalogs: dict[int, DecodedCatalog]
) -> Iterator[Row]:
    """Yield what a record contains of the tuples of a catalog, for one of its references to a catalog or its index.

    Raises:
        As heap_rows.
    """
    file = int(decoded.relation[reference])
    is_first = reference == decoded.first_block[record]
    catalog = catalogs.get(file)
    if catalog is None:
        if is_first and decoded.rmid[record] == RM_BTREE:
            for row in entry_rows(decoded, record, INDEXES[file], reference):
                yield {"catalog": INDEXES[file].catalog, **row}
        return
    made = set()
    if is_first and decoded.rmid[record] in (RM_HEAP, RM_HEAP2):
        for row in heap_rows(decoded, record, catalog, reference):
            made.add(row.get("line", 0))
            yield {"catalog": catalog.name, **row}
    if decoded.has_image[reference]:
        for row in image_rows(decoded, catalog, reference, made):
            yield {"catalog": catalog.name, **row}
