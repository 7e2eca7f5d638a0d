"""The tables of publications, with their columns, keys and fingerprints, from the system catalogs.

Only catalog tables are read, without functions that open the user's tables: so nothing waits for a lock that an ALTER
TABLE holds, and within a snapshot the answer is that of the snapshot. All queries see one snapshot.

A publication with publish_via_partition_root sends the rows of partitions as those of the topmost ancestor that is
published; without it, each partition of a published table sends its own.
Source: https://www.postgresql.org/docs/current/catalog-pg-publication.html
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from psycopg.pq import TransactionStatus

from walproxy.pipeline.cdc.apply.fingerprint import Evidence, Fingerprint, Heap, SentColumn
from walproxy.pipeline.cdc.publication import TableName
from walproxy.pipeline.cdc.server import Connection, one_line_errors, server_major

_FIRST_WITH_MULTIRANGES: Final = 14
_FIRST_WITH_COLUMN_LISTS: Final = 15
_FIRST_WITH_GENERATED_COLUMNS: Final = 18
_FULL_IDENTITY: Final = "f"
_KINDS: Final = ("insert", "update", "delete", "truncate")


class PublishedColumn(NamedTuple):
    """A column that is sent.

    Attributes:
        type_oid, type_modifier: of a domain, those of the type below.
        number: pg_attribute.attnum: numbers of dropped columns are not used again.
        is_plain: rows that are older than the column have null in it, as far as the catalogs show.
        dimensions: of an array: with how many it was declared; the server does not enforce them. 0 of other types.
    """

    name: str
    type_oid: int
    type_modifier: int
    number: int
    is_plain: bool
    dimensions: int


class PublishedTable(NamedTuple):
    """A table of a publication.

    Attributes:
        replica_identity: d(efault), n(othing), f(ull) or i(ndex).
        key: the columns that identify its rows in what is sent; with a full identity, its primary key; none if empty.
        row_filter: an SQL expression that selects the rows that are sent, None for all.
        is_partitioned: its rows are stored in its partitions, and are sent as its own.
        labels: of each column of an enum, the labels that the type has.
        problem: why it cannot be followed as it is published, None if it can.
    """

    table: TableName
    oid: int
    replica_identity: str
    key: tuple[str, ...]
    columns: tuple[PublishedColumn, ...]
    row_filter: str | None
    is_partitioned: bool
    fingerprint: Fingerprint
    evidence: Evidence
    labels: Mapping[str, Set[str]]
    problem: str | None


_PUBLICATIONS = """
    SELECT oid::bigint, xmin::text, puballtables, pubviaroot, ARRAY[pubinsert, pubupdate, pubdelete, pubtruncate],
           {generated}
      FROM pg_publication WHERE pubname = ANY (%(publications)s) ORDER BY oid
"""
_LISTED_MEMBERS = """
    SELECT r.prpubid::bigint, r.prrelid::bigint, format('member %%s:%%s', r.oid, r.xmin), {row_filter}, {columns}, true
      FROM pg_publication_rel r WHERE r.prpubid = ANY (%(oids)s)
     UNION ALL
    SELECT p.oid::bigint, c.oid::bigint, 'all tables', NULL, NULL, false
      FROM pg_publication p CROSS JOIN pg_class c
     WHERE p.oid = ANY (%(oids)s) AND p.puballtables AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
       AND c.oid >= 16384
"""
_SCHEMA_MEMBERS = """
     UNION ALL
    SELECT s.pnpubid::bigint, c.oid::bigint, format('schema %%s:%%s since %%s', s.oid, s.xmin, d.xmin), NULL, NULL,
           false
      FROM pg_publication_namespace s
      JOIN pg_class c ON c.relnamespace = s.pnnspid AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
      LEFT JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.objsubid = 0
                           AND d.refclassid = 'pg_namespace'::regclass
     WHERE s.pnpubid = ANY (%(oids)s)
"""
_PARTITIONS = """
    SELECT i.inhrelid::bigint, i.inhparent::bigint, i.xmin::text::bigint,
           EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = i.inhrelid AND a.attnum > 0 AND NOT a.attisdropped
                      AND a.xmin = i.xmin AND a.cmin::text::bigint < i.cmin::text::bigint)
           AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = i.inhrelid AND a.attnum > 0
                              AND a.xmin = i.xmin AND a.cmin::text::bigint = i.cmin::text::bigint)
           AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = i.inhrelid AND a.attnum = -1 AND a.xmin = i.xmin)
      FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition AND c.relkind IN ('r', 'p', 'f')
"""
_RELATIONS = """
    SELECT c.oid::bigint, n.nspname, c.relname, c.relkind::text, c.relfilenode::bigint, c.reltoastrelid::bigint,
           CASE WHEN EXISTS (SELECT FROM pg_attribute a
                              WHERE a.attrelid = c.oid AND a.attnum > 0 AND age(a.xmin) <= age(c.xmin))
                THEN 0 ELSE c.xmin::text::bigint END,
           c.relreplident::text,
           ARRAY (SELECT a.attname::text
                    FROM pg_index i CROSS JOIN unnest(i.indkey) WITH ORDINALITY k (number, position)
                    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number
                   WHERE i.indrelid = c.oid AND i.indisvalid AND k.position <= i.indnkeyatts
                     AND {is_key}
                   ORDER BY k.position),
           coalesce((SELECT coalesce(k.oid, i.indexrelid)::bigint
                       FROM pg_index i LEFT JOIN pg_constraint k
                         ON k.conindid = i.indexrelid AND k.conrelid = c.oid AND k.contype IN ('p', 'u')
                      WHERE i.indrelid = c.oid AND i.indisvalid AND {is_key}), 0),
           c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.oid = ANY (%(oids)s) AND c.relkind IN ('r', 'p', 'f')
""".format(
    is_key="""CASE c.relreplident WHEN 'i' THEN i.indisreplident WHEN 'n' THEN false
                  ELSE i.indisprimary AND i.indimmediate END"""
)
_COLUMNS = """
    WITH RECURSIVE base (attrelid, attnum, type, modifier, kind, dimensions) AS (
        SELECT a.attrelid, a.attnum, t.oid, a.atttypmod, t.typtype, a.attndims::int
          FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
         WHERE a.attrelid = ANY (%(oids)s) AND a.attnum > 0
        UNION ALL
        SELECT b.attrelid, b.attnum, u.oid, CASE WHEN b.modifier >= 0 THEN b.modifier ELSE t.typtypmod END, u.typtype,
               greatest(b.dimensions, t.typndims)
          FROM base b JOIN pg_type t ON t.oid = b.type JOIN pg_type u ON u.oid = t.typbasetype
         WHERE b.kind = 'd'
    )
    SELECT a.attrelid::bigint, a.attname, b.type::bigint, b.modifier, a.attnum,
           NOT a.atthasdef AND NOT a.atthasmissing AND a.attidentity = '' AND a.attgenerated = '', a.attgenerated::text,
           b.dimensions
      FROM pg_attribute a JOIN base b USING (attrelid, attnum)
     WHERE b.kind <> 'd' AND NOT a.attisdropped
     ORDER BY a.attrelid, a.attnum
"""
_FILLED = "SELECT attrelid::bigint, attname FROM pg_attribute WHERE attrelid = ANY (%(oids)s) AND atthasmissing"
_TYPES = """
    WITH RECURSIVE used (relation, type) AS (
        SELECT attrelid, atttypid FROM pg_attribute
         WHERE attrelid = ANY (%(oids)s) AND attnum > 0 AND NOT attisdropped AND atttypid >= 16384
        UNION
        SELECT u.relation, inner_type.oid
          FROM used u JOIN pg_type t ON t.oid = u.type
         CROSS JOIN LATERAL (SELECT t.typelem AS oid UNION ALL SELECT t.typbasetype
                              UNION ALL SELECT rngsubtype FROM pg_range WHERE t.oid IN ({ranges})
                              UNION ALL SELECT atttypid FROM pg_attribute
                                         WHERE t.typtype = 'c' AND attrelid = t.typrelid AND attnum > 0) inner_type
         WHERE inner_type.oid >= 16384
    )
    SELECT u.relation::bigint, format('label %%s', e.oid), e.xmin::text::bigint, e.enumtypid::bigint, e.enumlabel::text
      FROM used u JOIN pg_enum e ON e.enumtypid = u.type
     UNION ALL
    SELECT u.relation::bigint, format('attribute %%s.%%s', a.attrelid, a.attnum), a.xmin::text::bigint, 0, NULL
      FROM used u JOIN pg_type t ON t.oid = u.type AND t.typtype = 'c'
      JOIN pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0
"""


@dataclass(frozen=True)
class _Publication:
    oid: int
    xmin: str
    is_for_all: bool
    via_root: bool
    sends: tuple[bool, ...]
    sends_generated: bool


class _Member(NamedTuple):
    witness: str
    row_filter: str | None
    columns: frozenset[int] | None
    is_listed: bool


class _Relation(NamedTuple):
    table: TableName
    kind: str
    heap: Heap
    writer: int
    replica_identity: str
    key: tuple[str, ...]
    key_constraint: int
    is_in_wal: bool


@dataclass
class _Sending:
    """How all publications together send a relation."""

    witnesses: list[str] = field(default_factory=list)
    sends: list[tuple[bool, ...]] = field(default_factory=list)
    row_filters: set[str | None] = field(default_factory=set)
    columns: list[frozenset[int] | None] = field(default_factory=list)
    is_listed: bool = True
    via_root: bool = False
    sends_generated: bool = False


class _Tree:
    """The partitions of a database, and how they hang together."""

    def __init__(self, rows: Iterable[Sequence[int | bool]]) -> None:
        self.parent: dict[int, int] = {}
        self.xmin: dict[int, int] = {}
        self.born: set[int] = set()
        self.children: dict[int, list[int]] = defaultdict(list)
        for child, parent, xmin, is_born in rows:
            self.parent[child], self.xmin[child] = parent, xmin
            self.children[parent].append(child)
            if is_born:
                self.born.add(child)

    def ancestors(self, oid: int) -> Iterator[int]:
        while (parent := self.parent.get(oid)) is not None:
            yield parent
            oid = parent

    def descendants(self, oid: int) -> Iterator[int]:
        for child in self.children.get(oid, ()):
            yield child
            yield from self.descendants(child)


def published_tables(connection: Connection, publications: Sequence[str]) -> list[PublishedTable]:
    """Return the tables of the publications, sorted by name.

    Raises:
        SourceRefused: the role may not read the catalogs.
        SourceUnavailable: the server does not answer.
    """
    is_idle = connection.info.transaction_status == TransactionStatus.IDLE
    own = connection.transaction() if is_idle else nullcontext()
    with one_line_errors("read the tables of the publication"), own:
        if is_idle:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        return _read(connection, publications)


def _read(connection: Connection, publications: Sequence[str]) -> list[PublishedTable]:
    tree = _Tree(connection.execute(_PARTITIONS).fetchall())
    sendings = _sendings(connection, publications, tree)
    oids = {*sendings, *(each for oid in sendings for each in tree.descendants(oid))}
    relations = {}
    for row in connection.execute(_RELATIONS, {"oids": list(oids)}).fetchall():
        relations[row[0]] = _Relation(
            TableName(row[1], row[2]), row[3], Heap(row[4], row[5]), row[6], row[7], tuple(row[8]), *row[9:]
        )
    sent = {oid: each for oid, each in sendings.items() if oid in relations and _is_sent(relations[oid], each)}
    columns = defaultdict(list)
    for row in connection.execute(_COLUMNS, {"oids": list(sent)}).fetchall():
        columns[row[0]].append(row[1:])
    filled = set(connection.execute(_FILLED, {"oids": list(oids)}).fetchall())
    types: dict[int, dict[str, int]] = defaultdict(dict)
    labels: dict[int, set[str]] = defaultdict(set)
    has_multiranges = server_major(connection) >= _FIRST_WITH_MULTIRANGES
    query = _TYPES.format(ranges="rngtypid, rngmultitypid" if has_multiranges else "rngtypid")
    for oid, name, xmin, enum_oid, label in connection.execute(query, {"oids": list(sent)}).fetchall():
        types[oid][name] = xmin
        if label is not None:
            labels[enum_oid].add(label)
    made = []
    for oid, sending in sent.items():
        relation = relations[oid]
        below = [each for each in tree.descendants(oid) if each in relations] if relation.kind == "p" else []
        parts = [each for each in below if relations[each].is_in_wal]
        listed = [
            PublishedColumn(
                name,
                type_oid,
                modifier,
                number,
                plain and not any((each, name) in filled for each in parts),
                dimensions,
            )
            for name, type_oid, modifier, number, plain, generated, dimensions in columns[oid]
            if _is_column_sent(number, generated, sending)
        ]
        heaps = {each: relations[each] for each in parts or [oid] if relations[each].kind == "r"}
        fingerprint = Fingerprint(
            oid,
            sorted(sending.witnesses),
            relation.key_constraint,
            {each: heap.heap for each, heap in heaps.items()},
            {each: tree.xmin[each] for each in parts},
            {each.name: SentColumn(each.number, each.type_oid, each.type_modifier) for each in listed},
            types[oid],
        )
        evidence = Evidence(
            {each: heap.writer for each, heap in heaps.items()},
            relation.kind == "p",
            sending.is_listed,
            frozenset(parts) & tree.born,
            frozenset(each.name for each in listed if each.is_plain),
            {each: tree.parent[each] for each in parts},
        )
        made.append(
            PublishedTable(
                relation.table,
                oid,
                relation.replica_identity,
                relation.key,
                tuple(listed),
                next(iter(sending.row_filters)) if len(sending.row_filters) == 1 else None,
                relation.kind == "p",
                fingerprint,
                evidence,
                {each.name: labels[each.type_oid] for each in listed if each.type_oid in labels},
                _problem(sending, relation, {each.name for each in listed}, [relations[each] for each in below]),
            )
        )
    return sorted(made, key=lambda each: each.table)


def _sendings(connection: Connection, publications: Sequence[str], tree: _Tree) -> dict[int, _Sending]:
    """Return how each relation is sent, by OID."""
    major = server_major(connection)
    has_lists = major >= _FIRST_WITH_COLUMN_LISTS
    generated = "pubgencols = 's'" if major >= _FIRST_WITH_GENERATED_COLUMNS else "false"
    query = _PUBLICATIONS.format(generated=generated)
    found = [
        _Publication(row[0], row[1], row[2], row[3], tuple(row[4]), row[5])
        for row in connection.execute(query, {"publications": list(publications)}).fetchall()
    ]
    query = _LISTED_MEMBERS.format(
        row_filter="pg_get_expr(r.prqual, r.prrelid)" if has_lists else "NULL::text",
        columns="r.prattrs::int2[]" if has_lists else "NULL::int2[]",
    ) + (_SCHEMA_MEMBERS if has_lists else "")
    members: dict[int, dict[int, list[_Member]]] = {each.oid: defaultdict(list) for each in found}
    for publication, oid, witness, row_filter, columns, is_listed in connection.execute(
        query, {"oids": list(members)}
    ).fetchall():
        listed = None if columns is None else frozenset(columns)
        members[publication][oid].append(_Member(witness, row_filter, listed, is_listed))
    sendings: dict[int, _Sending] = defaultdict(_Sending)
    for publication in found:
        for oid, line in _lines(publication, members[publication.oid], tree):
            _add(sendings[oid], publication, members[publication.oid], oid, line, tree)
    # What one publication sends as rows of an ancestor, no other one sends as rows of the partition.
    whole = {oid for oid, sending in sendings.items() if sending.via_root}
    return {oid: each for oid, each in sendings.items() if whole.isdisjoint(tree.ancestors(oid))}


def _lines(publication: _Publication, members: Mapping[int, object], tree: _Tree) -> Iterator[tuple[int, list[int]]]:
    """Yield what a publication sends: the relation, and the relations because of which it is sent."""
    if publication.via_root:
        for oid in members:
            if not any(each in members for each in tree.ancestors(oid)):
                yield oid, [oid]
        return
    for oid in {*members, *(each for member in members for each in tree.descendants(member))}:
        yield oid, [oid, *tree.ancestors(oid)]


def _add(
    sending: _Sending,
    publication: _Publication,
    members: Mapping[int, list[_Member]],
    oid: int,
    line: Sequence[int],
    tree: _Tree,
) -> None:
    sending.witnesses.append(f"publication {publication.oid}:{publication.xmin}")
    sending.sends.append(publication.sends)
    own = members.get(oid, [])
    for each in line:
        if not publication.is_for_all and each in tree.xmin and each != line[-1]:
            sending.witnesses.append(f"partition {each}:{tree.xmin[each]}")
        sending.witnesses += [f"{member.witness} {each}" for member in members.get(each, ())]
    # Filters and lists of columns count for the relation as which rows are sent.
    sending.row_filters |= {member.row_filter for member in own} or {None}
    sending.columns += [member.columns for member in own] or [None]
    sending.is_listed = sending.is_listed and any(member.is_listed for member in own)
    sending.via_root = sending.via_root or publication.via_root
    sending.sends_generated = sending.sends_generated or publication.sends_generated


def _is_sent(relation: _Relation, sending: _Sending) -> bool:
    return relation.is_in_wal and (relation.kind == "r" or sending.via_root)


def _is_column_sent(number: int, generated: str, sending: _Sending) -> bool:
    if any(listed is not None and number in listed for listed in sending.columns):
        return True
    return None in sending.columns and (not generated or (generated == "s" and sending.sends_generated))


def _problem(sending: _Sending, relation: _Relation, columns: Set[str], partitions: Sequence[_Relation]) -> str | None:
    """Return why a table cannot be followed as it is published, None if it can."""
    missing = [kind for kind, *sent in zip(_KINDS, *sending.sends, strict=True) if not any(sent)]
    if missing:
        return (
            f"its publication does not send all changes ({missing[0]} is missing): ALTER PUBLICATION ... SET (publish "
            "= 'insert, update, delete, truncate')"
        )
    if not columns:
        return "it has no column that is sent"
    if len(sending.row_filters) > 1:
        return "the publications disagree on which rows are sent: name one of them"
    for name in relation.key:
        if name not in columns:
            return f"its key has the column {name}, which is not sent: publish that column, or give it another key"
    for each in partitions:
        if not each.is_in_wal:
            return (
                f"changes of its partition {each.table} are not in the WAL: make it an ordinary logged table, or "
                "detach it"
            )
        if each.kind == "r" and not _has_identity(each, relation.key):
            return (
                f"its partition {each.table} has another replica identity: ALTER TABLE {each.table} REPLICA IDENTITY "
                "FULL"
            )
    return None


def _has_identity(partition: _Relation, key: Sequence[str]) -> bool:
    """Return whether an old row of a partition has the columns of the key of the table that its rows are sent as."""
    return partition.replica_identity == _FULL_IDENTITY or not key or set(partition.key) == set(key)
