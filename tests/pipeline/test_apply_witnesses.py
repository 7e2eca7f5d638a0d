"""What the stream of changes does not show: a table whose rows or definition changed beside it is copied again.

Each situation has a schema of its own; situations with a publication of one kind share a database and two runs.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.pipeline.apply_fixtures import compare
from tests.pipeline.logical_server import Source
from walproxy.pipeline.cdc.apply.fingerprint import compare as compare_fingerprints
from walproxy.pipeline.cdc.apply.job import ApplyOptions, run_apply
from walproxy.pipeline.cdc.published_tables import published_tables
from walproxy.pipeline.cdc.slot import create_slot
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.postgres.local_server import LocalPostgres

Situations = Mapping[str, Sequence[str]]

TABLE = (
    "CREATE TYPE mood AS ENUM ('low', 'high')",
    "CREATE TABLE t (id int PRIMARY KEY, v int, s text, m mood, a mood[])",
    "INSERT INTO t SELECT i, i, 'text' || i, 'low', '{low,high}' FROM generate_series(1, 20) i",
    "CREATE TABLE small (id int PRIMARY KEY, v int)",
    "INSERT INTO small SELECT i, i FROM generate_series(1, 20) i",
)
PARTITIONS = (
    "CREATE TABLE p (id int, v text, w int DEFAULT 1, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
    "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (100) TO (200)",
    "ALTER TABLE p2 ALTER v SET STORAGE EXTERNAL",
    "INSERT INTO p SELECT i, 'p' || i FROM generate_series(50, 149) i",
    "INSERT INTO p VALUES (150, repeat('x', 3000))",
    "CREATE TABLE lonely (id int PRIMARY KEY, v text NOT NULL, w int)",
    "INSERT INTO lonely SELECT i, 'l' || i, i FROM generate_series(200, 220) i",
)
SILENT: Situations = {
    "a type with USING": ["ALTER TABLE t ALTER v TYPE int USING v * 2"],
    "a type with USING, of a table without TOAST": ["ALTER TABLE small ALTER v TYPE int USING v * 2"],
    "to varchar": ["ALTER TABLE t ALTER s TYPE varchar(5) USING left(s, 3)"],
    "out of the publication and back": [
        "ALTER PUBLICATION p DROP TABLE t",
        "UPDATE t SET v = -1 WHERE id < 5",
        "ALTER PUBLICATION p ADD TABLE t",
        "UPDATE t SET v = -2 WHERE id = 7",
    ],
    "a column renamed and back": [
        "ALTER TABLE t RENAME v TO other",
        "UPDATE t SET other = -1 WHERE id < 5",
        "ALTER TABLE t RENAME other TO v",
    ],
    "two columns in each other's place and back": [
        "ALTER TABLE small ADD w int",
        "ALTER TABLE small RENAME v TO x",
        "ALTER TABLE small RENAME w TO v",
        "ALTER TABLE small RENAME x TO w",
        "INSERT INTO small VALUES (100, 1, 2)",
        "ALTER TABLE small RENAME v TO x",
        "ALTER TABLE small RENAME w TO v",
        "ALTER TABLE small RENAME x TO w",
    ],
    "a column dropped and made again": ["ALTER TABLE t DROP v", "ALTER TABLE t ADD v int"],
    "a label of an enum renamed": ["ALTER TYPE mood RENAME VALUE 'low' TO 'calm'"],
    "another table of the name": ["DROP TABLE t", *TABLE[1:3], "ALTER PUBLICATION p ADD TABLE t"],
    "a full identity, and the key away": [
        "ALTER TABLE small REPLICA IDENTITY FULL",
        "ALTER TABLE small DROP CONSTRAINT small_pkey",
        "INSERT INTO small VALUES (1, 7)",
        "DELETE FROM small WHERE v = 7 AND id = 1",
        "ALTER TABLE small ADD PRIMARY KEY (id)",
        "ALTER TABLE small REPLICA IDENTITY DEFAULT",
    ],
    "truncated and rewritten": ["BEGIN; TRUNCATE small; INSERT INTO small VALUES (1, 1); "
                                "ALTER TABLE small ALTER v TYPE int USING v * 2; COMMIT"],
    "truncated, rewritten, and altered again": [
        "BEGIN; TRUNCATE small; INSERT INTO small VALUES (1, 1); "
        "ALTER TABLE small ALTER v TYPE int USING v * 2; COMMIT",
        "ALTER TABLE small ALTER v SET STATISTICS 7",
    ],
    "truncated, and rewritten in a subtransaction": [
        "BEGIN; TRUNCATE small; INSERT INTO small VALUES (1, 1); SAVEPOINT s; "
        "ALTER TABLE small ALTER v TYPE int USING v * 2; RELEASE s; ALTER TABLE small SET (fillfactor = 70); COMMIT"
    ],
    "a column with the name of a dropped one for a while": [
        "ALTER TABLE t DROP s",
        "ALTER TABLE t RENAME m TO s",
        "UPDATE t SET s = 'high' WHERE id < 5",
        "ALTER TABLE t RENAME s TO m",
    ],
    "the last column with the name of a dropped one for a while": [
        "ALTER TABLE small ADD w int",
        "ALTER TABLE small DROP v",
        "ALTER TABLE small RENAME w TO v",
        "UPDATE small SET v = 7 WHERE id < 5",
        "ALTER TABLE small RENAME v TO w",
    ],
    "a label of an enum added, used and renamed": [
        "ALTER TYPE mood ADD VALUE 'new'",
        "UPDATE t SET m = 'new' WHERE id < 5",
        "ALTER TYPE mood RENAME VALUE 'new' TO 'other'",
    ],
}  # fmt: skip
SILENT_OF_ALL: Situations = {
    "unlogged": [
        "ALTER TABLE t SET UNLOGGED",
        "UPDATE t SET v = -1 WHERE id < 5",
        "ALTER TABLE t SET LOGGED",
    ],
    "truncated and unlogged at once": [
        "BEGIN; TRUNCATE small; ALTER TABLE small SET UNLOGGED; INSERT INTO small VALUES (1, 1); "
        "ALTER TABLE small SET LOGGED; COMMIT"
    ],
}
SILENT_OF_PARTITIONS: Situations = {
    "attach": ["ALTER TABLE p ATTACH PARTITION lonely FOR VALUES FROM (200) TO (300)"],
    "made, filled and attached at once": [
        "BEGIN; CREATE TABLE p3 (LIKE p); INSERT INTO p3 VALUES (205, 'x', 1); "
        "ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (200) TO (300); COMMIT"
    ],
    "detach": ["ALTER TABLE p DETACH PARTITION p1"],
    "detach and attach": [
        "ALTER TABLE p DETACH PARTITION p1",
        "DELETE FROM p1 WHERE id = 60",
        "ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (100)",
    ],
    "drop": ["DROP TABLE p2"],
    "truncate": ["TRUNCATE p1"],
    "truncate of all and of one": ["TRUNCATE p", "INSERT INTO p VALUES (60), (160)", "TRUNCATE p1"],
    "truncate of all and of one at once": ["BEGIN; TRUNCATE p; INSERT INTO p VALUES (60), (160); TRUNCATE p1; COMMIT"],
    "come and gone": [
        "CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (200) TO (300)",
        "INSERT INTO p VALUES (205), (30)",
        "DROP TABLE p3",
    ],
    "attach of a partitioned one": [
        "CREATE TABLE q (LIKE p INCLUDING ALL) PARTITION BY RANGE (id)",
        "CREATE TABLE q1 PARTITION OF q FOR VALUES FROM (200) TO (250)",
        "INSERT INTO q VALUES (205)",
        "ALTER TABLE p ATTACH PARTITION q FOR VALUES FROM (200) TO (300)",
    ],
    "attached empty, filled, and truncated": [
        "CREATE TABLE p3 (LIKE p INCLUDING ALL)",
        "ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (200) TO (300)",
        "INSERT INTO p VALUES (205)",
        "TRUNCATE p3",
    ],
    "filled, detached, emptied, and attached": [
        "CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (200) TO (300)",
        "INSERT INTO p VALUES (205)",
        "ALTER TABLE p DETACH PARTITION p3",
        "DELETE FROM p3",
        "VACUUM p3",
        "ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (200) TO (300)",
    ],
    "made, filled and truncated at once": [
        "BEGIN; CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (200) TO (300); INSERT INTO p VALUES (205); "
        "TRUNCATE p3; COMMIT"
    ],
    "made with a column more, filled and attached at once": [
        "BEGIN; CREATE TABLE p3 (x int, LIKE p); ALTER TABLE p3 DROP x; INSERT INTO p3 VALUES (205, 'x', 1); "
        "ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (200) TO (300); COMMIT"
    ],
    "made, filled, attached, and altered in vain at once": [
        "BEGIN; CREATE TABLE p3 (LIKE p); INSERT INTO p3 VALUES (205, 'x', 1); "
        "ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (200) TO (300); SAVEPOINT s; "
        "ALTER TABLE p3 ALTER v SET STATISTICS 7; ROLLBACK TO s; COMMIT"
    ],
    "another replica identity of one for a while": [
        "ALTER TABLE p1 ALTER v SET NOT NULL",
        "CREATE UNIQUE INDEX by_v ON p1 (v)",
        "ALTER TABLE p1 REPLICA IDENTITY USING INDEX by_v",
        "UPDATE p SET id = 20 WHERE id = 60",
        "ALTER TABLE p1 REPLICA IDENTITY DEFAULT",
        "DROP INDEX by_v",
    ],
}
ORDINARY: Situations = {
    "renamed and back": [
        "ALTER TABLE t RENAME TO other",
        "UPDATE other SET v = -1 WHERE id < 5",
        "INSERT INTO other VALUES (100, 100)",
        "ALTER TABLE other RENAME TO t",
    ],
    "maintenance": [
        "ANALYZE t",
        "VACUUM t",
        "VACUUM (FREEZE) t",
        "CREATE INDEX first ON small (v)",
        "CREATE INDEX ON t (v)",
        "REINDEX TABLE CONCURRENTLY t",
        "REINDEX TABLE small",
        "VACUUM FULL t",
        "CLUSTER t USING t_pkey",
        "VACUUM (FULL, FREEZE) pg_class",
        "VACUUM FREEZE pg_attribute",
    ],
    "properties": [
        "GRANT SELECT ON t TO PUBLIC",
        "GRANT SELECT (v) ON t TO PUBLIC",
        "COMMENT ON TABLE t IS 'ours'",
        "ALTER TABLE t SET (fillfactor = 70)",
        "ALTER TABLE t ALTER v SET STATISTICS 7",
        "ALTER TABLE t ALTER v SET DEFAULT 7",
        "ALTER TABLE t ALTER v SET NOT NULL",
        "ALTER TABLE t ADD CHECK (v > -10)",
        "ALTER TABLE t ALTER s SET STORAGE EXTERNAL",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "ALTER TABLE t REPLICA IDENTITY DEFAULT",
        "ALTER TABLE t CLUSTER ON t_pkey",
        "ALTER TABLE small ADD FOREIGN KEY (id) REFERENCES t",
        "ALTER TYPE mood ADD VALUE 'middle' AFTER 'low'",
        "CREATE TABLE new (id int PRIMARY KEY)",
        "ALTER PUBLICATION p ADD TABLE new",
    ],
    "columns": [
        "ALTER TABLE t ADD plain int",
        "UPDATE t SET plain = 5 WHERE id = 5",
        "ALTER TABLE t ADD bounded varchar(5)",
        "INSERT INTO t (id, v, bounded) VALUES (30, 1, 'five5')",
        "ALTER TABLE t ALTER bounded TYPE varchar(20)",
        "UPDATE t SET bounded = 'more than five' WHERE id < 3",
        "ALTER TABLE t ALTER bounded TYPE text",
    ],
    "truncates": [
        "TRUNCATE t",
        "INSERT INTO t (id, v) VALUES (1, 1)",
        "TRUNCATE small",
        "INSERT INTO small VALUES (1, 1)",
    ],
}  # fmt: skip
ORDINARY_OF_PARTITIONS: Situations = {
    "a new partition": [
        "CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (200) TO (300)",
        "ALTER TABLE p3 OWNER TO postgres",
        "INSERT INTO p VALUES (205, 'x')",
    ],
    "an empty one": [
        "CREATE TABLE p3 (LIKE p INCLUDING ALL)",
        "ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (200) TO (300)",
    ],
    "a full identity of the whole alone": [
        "ALTER TABLE p REPLICA IDENTITY FULL",
        "UPDATE p SET id = 190 WHERE id = 150",
    ],
    "rows": ["UPDATE p SET id = id + 100 WHERE id BETWEEN 60 AND 70", "DELETE FROM p WHERE id = 120"],
}


class Outcome(NamedTuple):
    """What became of several situations.

    Attributes:
        copies: what the run after the statements logged about copies, by schema.
    """

    source: Source
    folder: Path
    schemas: Mapping[str, str]
    copies: Mapping[str, Sequence[str]]

    def check(self, situation: str, *tables: str) -> int:
        """Compare the tables of a situation with their sources; return how many of them were copied again."""
        schema = self.schemas[situation]
        compare(self.source, self.folder, "delta", *(f"{schema}.{table}" for table in tables))
        return len(self.copies[situation])


class _Copies(logging.Handler):
    """Collects what is logged about copies."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("copying "):
            self.lines.append(record.getMessage())


def follow(source: Source, folder: Path) -> list[str]:
    """Follow up to now; return what was logged about copies."""
    copies = _Copies()
    logger = logging.getLogger("walproxy.pipeline.cdc.apply")
    logger.addHandler(copies)
    logger.setLevel(logging.INFO)
    try:
        location = LakeLocation.parse(folder)
        run_apply(ApplyOptions(source.conninfo, source.slot, (source.publication,), location, "delta"), once=True)
    finally:
        logger.removeHandler(copies)
    return copies.lines


def run_situations(
    source: Source, folder: Path, situations: Situations, setup: Sequence[str], publication: str, tables: Sequence[str]
) -> Outcome:
    """Make a schema for each situation, follow, run the statements of all, and follow again."""
    schemas = {situation: f"s{number}" for number, situation in enumerate(situations)}
    for schema in schemas.values():
        source.run(f"CREATE SCHEMA {schema}", f"SET search_path = {schema}", *setup)
    names = ", ".join(f"{schema}.{table}" for schema in schemas.values() for table in tables)
    source.run(publication.format(names=names))
    create_slot(source.connection, source.slot)
    assert len(follow(source, folder)) >= len(schemas)
    for situation, schema in schemas.items():
        source.run(f"SET search_path = {schema}", *situations[situation])
    source.run("RESET search_path")
    lines = follow(source, folder)
    copies = {name: [line for line in lines if f" {schema}." in line] for name, schema in schemas.items()}
    assert follow(source, folder) == []
    return Outcome(source, folder, schemas, copies)


@pytest.fixture(scope="module")
def listed(server: LocalPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    with closing(Source(server)) as source:
        source.publication = "p"
        folder = tmp_path_factory.mktemp("listed")
        situations = {**SILENT, **ORDINARY}
        yield run_situations(
            source, folder, situations, TABLE, "CREATE PUBLICATION p FOR TABLE {names}", ["t", "small"]
        )


@pytest.fixture(scope="module")
def of_all(server: LocalPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    with closing(Source(server)) as source:
        source.publication = "p"
        folder = tmp_path_factory.mktemp("of_all")
        yield run_situations(source, folder, SILENT_OF_ALL, TABLE, "CREATE PUBLICATION p FOR ALL TABLES", [])


@pytest.fixture(scope="module")
def partitioned(server: LocalPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    with closing(Source(server)) as source:
        source.publication = "p"
        folder = tmp_path_factory.mktemp("partitioned")
        publication = "CREATE PUBLICATION p FOR TABLE {names} WITH (publish_via_partition_root)"
        yield run_situations(
            source, folder, {**SILENT_OF_PARTITIONS, **ORDINARY_OF_PARTITIONS}, PARTITIONS, publication, ["p"]
        )


@pytest.mark.parametrize("situation", SILENT)
def test_what_the_changes_do_not_show_has_the_table_copied_again_alone(listed: Outcome, situation: str) -> None:
    assert listed.check(situation, "t", "small") == 1


@pytest.mark.parametrize("situation", ORDINARY)
def test_ordinary_work_copies_nothing(listed: Outcome, situation: str) -> None:
    copied = listed.check(situation, "t", "small")
    assert copied == ("CREATE TABLE new (id int PRIMARY KEY)" in ORDINARY[situation]), listed.copies[situation]


@pytest.mark.parametrize("situation", SILENT_OF_ALL)
def test_a_table_that_is_unlogged_for_a_while_is_copied_again(of_all: Outcome, situation: str) -> None:
    assert of_all.check(situation, "t", "small") == 1


@pytest.mark.parametrize("situation", SILENT_OF_PARTITIONS)
def test_a_partitioned_table_is_copied_again_when_rows_come_or_go_with_their_partition(
    partitioned: Outcome, situation: str
) -> None:
    assert partitioned.check(situation, "p") == 1


@pytest.mark.parametrize("situation", ORDINARY_OF_PARTITIONS)
def test_a_partitioned_table_follows_a_new_partition_without_a_copy(partitioned: Outcome, situation: str) -> None:
    assert partitioned.check(situation, "p") == 0, partitioned.copies[situation]


@pytest.mark.parametrize(
    "statements",
    [
        [
            "DROP INDEX s.by_id",
            "CREATE UNIQUE INDEX by_id ON s.t (id)",
            "ALTER TABLE s.t REPLICA IDENTITY USING INDEX by_id",
        ],
        ["ALTER TYPE s.mood RENAME VALUE 'low' TO 'calm'"],
        ["ALTER TABLE s.t SET SCHEMA away", "ALTER TABLE away.t SET SCHEMA s"],
        ["ALTER PUBLICATION p DROP TABLES IN SCHEMA s", "ALTER PUBLICATION p ADD TABLES IN SCHEMA s"],
        ["ALTER PUBLICATION p RENAME TO q", "ALTER PUBLICATION q RENAME TO p"],
        ["DROP PUBLICATION p", "CREATE PUBLICATION p FOR TABLES IN SCHEMA s"],
        ["ALTER TABLE s.t SET UNLOGGED", "ALTER TABLE s.t SET LOGGED"],
        ["ALTER TYPE s.pair ADD ATTRIBUTE c int", "ALTER TYPE s.pair DROP ATTRIBUTE c"],
    ],
)
def test_the_catalogs_show_what_was_altered_and_altered_back(server: LocalPostgres, statements: Sequence[str]) -> None:
    with closing(Source(server)) as source:
        source.run(
            "CREATE SCHEMA s",
            "CREATE SCHEMA away",
            "CREATE TYPE s.pair AS (a int, b int)",
            "CREATE TYPE s.mood AS ENUM ('low', 'high')",
            "CREATE TYPE s.moods AS RANGE (subtype = s.mood, multirange_type_name = s.several_moods)",
            "CREATE TABLE s.t (id int PRIMARY KEY, v s.pair[], m s.several_moods)",
            "CREATE UNIQUE INDEX by_id ON s.t (id)",
            "ALTER TABLE s.t REPLICA IDENTITY USING INDEX by_id",
            "CREATE PUBLICATION p FOR TABLES IN SCHEMA s",
        )
        [known] = published_tables(source.connection, ["p"])
        source.run("ANALYZE s.t", "VACUUM s.t", "CREATE INDEX ON s.t (v)", "GRANT SELECT ON s.t TO PUBLIC")
        [now] = published_tables(source.connection, ["p"])
        assert now.fingerprint == known.fingerprint
        source.run(*statements)
        [now] = published_tables(source.connection, ["p"])
        assert compare_fingerprints(known.fingerprint, now.fingerprint, now.evidence).copy_reason is not None


def test_partitions_whose_changes_are_not_sent_are_a_problem_of_the_table(server: LocalPostgres) -> None:
    def problem(table: str) -> str:
        [found] = [each for each in published_tables(source.connection, ["p"]) if each.table.name == table]
        return found.problem or ""

    with closing(Source(server)) as source:
        source.run(
            *PARTITIONS,
            "CREATE TABLE r (LIKE p INCLUDING ALL) PARTITION BY RANGE (id)",
            "CREATE TABLE made (id int, g int GENERATED ALWAYS AS (id + 1) STORED PRIMARY KEY)",
            "CREATE PUBLICATION p FOR TABLE p, r, made WITH (publish_via_partition_root)",
        )
        assert problem("p") == problem("r") == ""
        assert "its key has the column g, which is not sent" in problem("made")
        source.run("ALTER TABLE p1 SET UNLOGGED")
        assert "changes of its partition public.p1 are not in the WAL" in problem("p")
        source.run("ALTER TABLE p1 SET LOGGED")
        assert problem("p") == ""
        source.run(
            "ALTER TABLE p1 ALTER v SET NOT NULL",
            "CREATE UNIQUE INDEX by_v ON p1 (v)",
            "ALTER TABLE p1 REPLICA IDENTITY USING INDEX by_v",
        )
        assert "its partition public.p1 has another replica identity" in problem("p")
        source.run("ALTER TABLE p1 REPLICA IDENTITY FULL")
        assert problem("p") == ""
        source.run(
            "CREATE FOREIGN DATA WRAPPER nothing",
            "CREATE SERVER elsewhere FOREIGN DATA WRAPPER nothing",
            "ALTER TABLE r DROP CONSTRAINT r_pkey",
            "CREATE FOREIGN TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (100) SERVER elsewhere",
        )
        assert "changes of its partition public.r1 are not in the WAL" in problem("r")


def test_partitions_follow_as_the_publications_together_send_them(server: LocalPostgres) -> None:
    def names(*publications: str) -> list[str]:
        return [each.table.name for each in published_tables(source.connection, publications)]

    with closing(Source(server)) as source:
        source.run(
            *PARTITIONS,
            "CREATE PUBLICATION whole FOR TABLE p WITH (publish_via_partition_root)",
            "CREATE PUBLICATION parts FOR TABLE p",
        )
        assert names("whole") == names("whole", "parts") == ["p"]
        assert names("parts") == ["p1", "p2"]
        source.run("ALTER TABLE p1 SET UNLOGGED")
        assert names("parts") == ["p2"]


def test_tables_are_copied_again_when_their_publication_was_narrowed_for_a_while(
    server: LocalPostgres, tmp_path: Path
) -> None:
    narrowed = {
        "narrowed": [
            "ALTER PUBLICATION p SET (publish = 'insert')",
            "UPDATE t SET v = -1 WHERE id < 5",
            "DELETE FROM t WHERE id = 6",
            "ALTER PUBLICATION p SET (publish = 'insert, update, delete, truncate')",
        ]
    }
    with closing(Source(server)) as source:
        source.publication = "p"
        outcome = run_situations(
            source, tmp_path, narrowed, TABLE, "CREATE PUBLICATION p FOR TABLE {names}", ["t", "small"]
        )
        assert outcome.check("narrowed", "t", "small") == 2
