"""Random steps of DDL and DML, by a seed: what a table that follows must come through.

A step is a list of statements. One that the server refuses (a column that is gone, a partition that is there already)
changes nothing; the statements after it are run nevertheless.
"""

import random
from collections.abc import Callable, Sequence

import psycopg

from tests.pipeline.logical_server import Source

TABLES = ("t", "narrow", "log", "p")
SETUP = (
    "CREATE TYPE mood AS ENUM ('low', 'high')",
    "CREATE TABLE t (id int PRIMARY KEY, v int, s text, n numeric(12,2), at timestamptz, m mood, big text, "
    "tags text[])",
    "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
    "INSERT INTO t SELECT i, i, 's' || i, i * 1.5, now(), 'low', repeat('x', 3000) FROM generate_series(1, 100) i",
    "CREATE TABLE narrow (a int PRIMARY KEY, b int)",
    "INSERT INTO narrow SELECT i, i FROM generate_series(1, 100) i",
    "CREATE TABLE log (x int, y int)",
    "CREATE TABLE p (id int PRIMARY KEY, v int, s text) PARTITION BY RANGE (id)",
    "CREATE TABLE p0 PARTITION OF p FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (100) TO (200)",
    "INSERT INTO p SELECT i, i, 's' || i FROM generate_series(0, 199) i",
    "CREATE PUBLICATION p FOR TABLE t, narrow, log, p WITH (publish_via_partition_root)",
)
_ALL_CHANGES = "insert, update, delete, truncate"
_KEYS = 300


class RandomSteps:
    """Makes steps; the same seed makes the same ones."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._numbers = 0

    def run(self, source: Source) -> list[str]:
        """Run the next step; return the statements that the server took."""
        taken = []
        for statement in self._next():
            try:
                source.run(statement)
            except psycopg.Error:
                source.connection.rollback()
            else:
                taken.append(statement)
        return taken

    def _next(self) -> Sequence[str]:
        if self._chance.random() < 0.6:
            return self._changes()
        kinds: list[Callable[[], Sequence[str]]] = [
            self._columns,
            self._types,
            self._back_and_forth,
            self._publication,
            self._partitions,
            self._maintenance,
        ]
        return self._chance.choice(kinds)()

    def _new(self, prefix: str) -> str:
        self._numbers += 1
        return f"{prefix}{self._numbers}"

    def _change(self) -> str:
        """One statement that changes rows."""
        low = self._chance.randrange(_KEYS)
        high = low + self._chance.randrange(40)
        number = self._chance.randrange(1000)
        return self._chance.choice(
            [
                f"INSERT INTO t (id, v, s) SELECT i, {number}, 'i' || i FROM generate_series({low}, {high}) i "
                "ON CONFLICT (id) DO UPDATE SET v = t.v + 1",
                f"UPDATE t SET v = v + {number}, s = 'u{number}' WHERE id BETWEEN {low} AND {high}",
                f"UPDATE t SET m = (enum_range(NULL::mood))[2], big = NULL WHERE id BETWEEN {low} AND {high}",
                f"UPDATE t SET tags = tags || ARRAY['a \"b\"', NULL, '{number}'] WHERE id BETWEEN {low} AND {high}",
                f"UPDATE t SET id = id + 1000 WHERE id BETWEEN {low} AND {high} AND id < 1000",
                f"DELETE FROM t WHERE id BETWEEN {low} AND {high}",
                f"INSERT INTO narrow SELECT i, {number} FROM generate_series({low}, {high}) i ON CONFLICT DO NOTHING",
                f"UPDATE narrow SET b = {number} WHERE a BETWEEN {low} AND {high}",
                f"DELETE FROM narrow WHERE a BETWEEN {low} AND {high}",
                f"INSERT INTO log SELECT {number}, 1 FROM generate_series(1, 3)",
                f"INSERT INTO p (id, v) SELECT i, {number} FROM generate_series({low}, {high}) i "
                "ON CONFLICT DO NOTHING",
                f"UPDATE p SET v = {number}, s = NULL WHERE id BETWEEN {low} AND {high}",
                f"UPDATE p SET id = id + 97 WHERE id = {low}",
                f"DELETE FROM p WHERE id BETWEEN {low} AND {high}",
            ]
        )

    def _changes(self) -> Sequence[str]:
        statements = [self._change() for _ in range(self._chance.randrange(1, 4))]
        end = self._chance.choice(["COMMIT", "COMMIT", "ROLLBACK", ""])
        return [f"BEGIN; {'; '.join(statements)}; {end}"] if end else statements

    def _table(self) -> str:
        return self._chance.choice(TABLES)

    def _columns(self) -> Sequence[str]:
        table, name = self._table(), self._chance.choice(["extra", self._new("c")])
        return self._chance.choice(
            [
                [f"ALTER TABLE {table} ADD {name} int", self._change(), f"UPDATE {table} SET {name} = 5"],
                [f"ALTER TABLE {table} ADD {name} int DEFAULT 7", self._change()],
                [f"ALTER TABLE {table} ADD {name} int DEFAULT 7", f"ALTER TABLE {table} ALTER {name} DROP DEFAULT"],
                [f"ALTER TABLE {table} ADD {name} float DEFAULT random()"],
                [f"ALTER TABLE {table} DROP extra", self._change()],
                [f"ALTER TABLE {table} DROP extra", f"ALTER TABLE {table} ADD extra int"],
                [f"ALTER TABLE {table} RENAME extra TO {name}", self._change()],
            ]
        )

    def _types(self) -> Sequence[str]:
        length = self._chance.randrange(10, 60)
        return self._chance.choice(
            [
                [f"ALTER TABLE t ALTER s TYPE varchar({length}) USING left(s, 5)", self._change()],
                ["ALTER TABLE t ALTER s TYPE text", self._change()],
                [f"ALTER TABLE t ALTER n TYPE numeric({length // 2}, 2)", self._change()],
                ["ALTER TABLE t ALTER v TYPE bigint", self._change()],
                ["ALTER TABLE t ALTER v TYPE int USING (v % 1000) + 1", self._change()],
                ["ALTER TABLE narrow ALTER b TYPE int USING b + 1"],
                ["ALTER TABLE p ALTER v TYPE int USING v + 1", self._change()],
                ["ALTER TABLE t ALTER at TYPE timestamp", "ALTER TABLE t ALTER at TYPE timestamptz"],
                [f"ALTER TYPE mood ADD VALUE '{self._new('m')}'"],
                [f"ALTER TYPE mood RENAME VALUE 'low' TO '{self._new('low')}'"],
            ]
        )

    def _back_and_forth(self) -> Sequence[str]:
        """What leaves the definition as it was, or the replica identity of a table with a key."""
        table, keyed = self._table(), self._chance.choice(["t", "narrow"])
        return self._chance.choice(
            [
                [
                    f"ALTER TABLE {table} RENAME TO other",
                    *(self._change().replace(f" {table} ", " other ") for _ in range(3)),
                    f"ALTER TABLE other RENAME TO {table}",
                ],
                ["ALTER TABLE t RENAME v TO w", "UPDATE t SET w = w + 1", "ALTER TABLE t RENAME w TO v"],
                [f"ALTER TABLE {keyed} REPLICA IDENTITY FULL", self._change(), self._change()],
                [f"ALTER TABLE {keyed} REPLICA IDENTITY DEFAULT", self._change()],
                [
                    "DELETE FROM narrow WHERE a = -1",
                    "ALTER TABLE narrow DROP CONSTRAINT narrow_pkey",
                    "INSERT INTO narrow VALUES (-1, 1)",
                    "ALTER TABLE narrow ADD PRIMARY KEY (a)",
                ],
                [
                    "BEGIN; TRUNCATE narrow; INSERT INTO narrow SELECT i, i FROM generate_series(1, 20) i; "
                    "ALTER TABLE narrow ALTER b TYPE int USING b * 2; COMMIT"
                ],
            ]
        )

    def _publication(self) -> Sequence[str]:
        table = self._table()
        return self._chance.choice(
            [
                [
                    f"ALTER PUBLICATION p DROP TABLE {table}",
                    self._change(),
                    self._change(),
                    f"ALTER PUBLICATION p ADD TABLE {table}",
                ],
                [
                    "ALTER PUBLICATION p SET (publish = 'insert')",
                    self._change(),
                    f"ALTER PUBLICATION p SET (publish = '{_ALL_CHANGES}')",
                ],
                [
                    f"DROP TABLE {table}",
                    *(each for each in SETUP if f" {table} " in each and "PUBLICATION" not in each),
                    *(each for each in SETUP[8:11] if table == "p"),
                    f"ALTER PUBLICATION p ADD TABLE {table}",
                ],
            ]
        )

    def _partitions(self) -> Sequence[str]:
        number = self._chance.randrange(4)
        name, bounds = f"p{number}", f"FOR VALUES FROM ({number * 100}) TO ({number * 100 + 100})"
        return self._chance.choice(
            [
                [f"CREATE TABLE {name} PARTITION OF p {bounds}", self._change()],
                [f"ALTER TABLE p DETACH PARTITION {name}", self._change(), f"DROP TABLE {name}"],
                [
                    f"ALTER TABLE p DETACH PARTITION {name}",
                    f"DELETE FROM {name} WHERE id % 3 = 0",
                    f"ALTER TABLE p ATTACH PARTITION {name} {bounds}",
                ],
                [f"DROP TABLE {name}"],
                [f"CREATE TABLE {name} PARTITION OF p {bounds}", self._change(), self._change(), f"DROP TABLE {name}"],
                [f"TRUNCATE {name}", self._change()],
                [f"BEGIN; TRUNCATE p; INSERT INTO p (id) SELECT generate_series(0, 190, 10); TRUNCATE {name}; COMMIT"],
                [
                    f"CREATE TABLE {name} (LIKE p INCLUDING ALL)",
                    f"ALTER TABLE p ATTACH PARTITION {name} {bounds}",
                    self._change(),
                    self._chance.choice([f"TRUNCATE {name}", f"DELETE FROM {name}", f"VACUUM {name}"]),
                ],
                [
                    f"BEGIN; CREATE TABLE {name} (LIKE p); INSERT INTO {name} (id) VALUES ({number * 100 + 7}); "
                    f"ALTER TABLE p ATTACH PARTITION {name} {bounds}; COMMIT"
                ],
            ]
        )

    def _maintenance(self) -> Sequence[str]:
        table = self._table()
        return self._chance.choice(
            [
                [f"TRUNCATE {table}", self._change()],
                [f"BEGIN; {self._change()}; TRUNCATE {table}; {self._change()}; COMMIT"],
                [f"VACUUM FULL {table}"],
                [f"ANALYZE {table}", f"VACUUM {table}"],
                [f"CREATE INDEX ON {table} ({'v' if table in ('t', 'p') else 'x' if table == 'log' else 'b'})"],
                [f"REINDEX TABLE {table}"],
            ]
        )
