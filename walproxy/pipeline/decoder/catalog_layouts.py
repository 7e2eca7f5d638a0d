"""Where the columns of system catalogs stand in a tuple, and those of their index entries, of PostgreSQL 13 to 18.

The columns here are of fixed width and never null, and so are all before them: each begins at the same byte of every
tuple's data. The files have the numbers that initdb gives them, which are the catalogs' OIDs. VACUUM FULL of a catalog
gives it another file, which is not known here.

The offsets of 15, 17 and 18 are what pg_attribute of a running server has of these catalogs (attlen, attalign,
attnum), which a test compares again; those of 13, 14 and 16 follow src/include/catalog/pg_*.h.
"""

import functools
from typing import Final, Literal, NamedTuple

FieldType = Literal["oid", "int", "short", "bool", "char", "name"]
WIDTHS: Final[dict[FieldType, int]] = {"oid": 4, "int": 4, "short": 2, "bool": 1, "char": 1, "name": 64}


class Field(NamedTuple):
    """A column of a catalog: its name, its offset in the data of a tuple, and the columns of the view that it fills."""

    name: str
    offset: int
    type: FieldType
    columns: tuple[str, ...]


class DecodedCatalog(NamedTuple):
    """A catalog whose tuples are decoded."""

    name: str
    file: int
    fields: tuple[Field, ...]


class IndexKey(NamedTuple):
    """An index of a catalog: the types of its columns, and the columns of the view that each fills."""

    catalog: str
    keys: tuple[tuple[FieldType, tuple[str, ...]], ...]


_SELF: Final = ("object", "relation")


@functools.cache
def catalogs_of(major: int) -> dict[int, DecodedCatalog]:
    """Return the catalogs of a major version, by the number of their file."""
    found = (
        DecodedCatalog("pg_class", 1259, _class_fields(major)),
        DecodedCatalog("pg_attribute", 1249, _attribute_fields(major)),
        DecodedCatalog(
            "pg_type",
            1247,
            (
                Field("oid", 0, "oid", ("object",)),
                Field("typname", 4, "name", ("name",)),
                Field("typnamespace", 68, "oid", ("namespace",)),
                Field("typtype", 79, "char", ("object_kind",)),
                Field("typrelid", 84, "oid", ("relation",)),
            ),
        ),
        DecodedCatalog(
            "pg_index",
            2610,
            (
                Field("indexrelid", 0, "oid", ("object",)),
                Field("indrelid", 4, "oid", ("relation",)),
            ),
        ),
        DecodedCatalog(
            "pg_constraint",
            2606,
            (
                Field("oid", 0, "oid", ("object",)),
                Field("conname", 4, "name", ("name",)),
                Field("connamespace", 68, "oid", ("namespace",)),
                Field("contype", 72, "char", ("object_kind",)),
                Field("conrelid", 76 if major < 18 else 80, "oid", ("relation",)),
            ),
        ),
    )
    return {catalog.file: catalog for catalog in found}


def _class_fields(major: int) -> tuple[Field, ...]:
    late = 0 if major < 18 else 4  # 18 has relallfrozen.
    return (
        Field("oid", 0, "oid", _SELF),
        Field("relname", 4, "name", ("name",)),
        Field("relnamespace", 68, "oid", ("namespace",)),
        Field("relfilenode", 88, "oid", ("file",)),
        Field("reltablespace", 92, "oid", ("tablespace",)),
        Field("relkind", 115 + late, "char", ("object_kind",)),
        Field("relrewrite", 128 + late, "oid", ("rewrite_of",)),
    )


def _attribute_fields(major: int) -> tuple[Field, ...]:
    number, modifier, is_dropped = (
        (78, 88, 100) if major == 13 else (78, 88, 101) if major < 16 else (74, 80, 95) if major < 18 else (74, 76, 91)
    )
    return (
        Field("attrelid", 0, "oid", ("relation",)),
        Field("attname", 4, "name", ("name",)),
        Field("atttypid", 68, "oid", ("column_type",)),
        Field("attnum", number, "short", ("column_number",)),
        Field("atttypmod", modifier, "int", ("type_modifier",)),
        Field("attisdropped", is_dropped, "bool", ("is_dropped",)),
    )


INDEXES: Final[dict[int, IndexKey]] = {
    2662: IndexKey("pg_class", (("oid", _SELF),)),
    2663: IndexKey("pg_class", (("name", ("name",)), ("oid", ("namespace",)))),
    3455: IndexKey("pg_class", (("oid", ("tablespace",)), ("oid", ("file",)))),
    2658: IndexKey("pg_attribute", (("oid", ("relation",)), ("name", ("name",)))),
    2659: IndexKey("pg_attribute", (("oid", ("relation",)), ("short", ("column_number",)))),
    2703: IndexKey("pg_type", (("oid", ("object",)),)),
    2704: IndexKey("pg_type", (("name", ("name",)), ("oid", ("namespace",)))),
    2664: IndexKey("pg_constraint", (("name", ("name",)), ("oid", ("namespace",)))),
    2667: IndexKey("pg_constraint", (("oid", ("object",)),)),
    2679: IndexKey("pg_index", (("oid", ("object",)),)),
}
"""Btrees on these catalogs, by the number of their file."""

MAPPED: Final = {
    1247: "pg_type",
    1249: "pg_attribute",
    1259: "pg_class",
    2658: "pg_attribute_relid_attnam_index",
    2659: "pg_attribute_relid_attnum_index",
    2662: "pg_class_oid_index",
    2663: "pg_class_relname_nsp_index",
    2703: "pg_type_oid_index",
    2704: "pg_type_typname_nsp_index",
    3455: "pg_class_tblspc_relfilenode_index",
}
"""Relations of these whose file only pg_filenode.map names, by OID."""
