"""Tables that keep every change, and tables that keep deleted rows, of a real server."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from safekeeper.base.errors import ConfigurationError
from tests.pipeline.apply_fixtures import compare, options_of, rows_here
from tests.pipeline.logical_server import Source
from walproxy.pipeline.cdc.apply.job import ApplyOptions, run_apply
from walproxy.pipeline.cdc.apply.verify import TablesDiffer, run_verify
from walproxy.pipeline.cdc.publication import TableName
from walproxy.pipeline.choices import FOLLOWING_FORMATS, FollowingFormat, FollowingMode

SETUP = (
    "CREATE TABLE t (id int PRIMARY KEY, v text, big text, n numeric(12,2))",
    "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
    "CREATE TABLE log (x int, y text)",
    "INSERT INTO t SELECT i, 'v' || i, repeat('x', 3000) || i, i * 1.5 FROM generate_series(1, 20) i",
    "INSERT INTO log VALUES (1, 'copied'), (1, 'copied')",
)


@pytest.fixture
def source(empty: Source) -> Source:
    empty.run(*SETUP)
    empty.publish("t", "log")
    return empty


def rows(options: ApplyOptions, table: str, *columns: str) -> list[tuple[Any, ...]]:
    found = rows_here(options.location, options.format, TableName("public", table))
    if options.mode == "append":
        found = found.sort_by([("_commit_lsn", "ascending"), ("_sequence", "ascending")])
    return list(zip(*(found[name].to_pylist() for name in columns), strict=True))


def verified(options: ApplyOptions) -> dict[str, int]:
    return {str(each.table): each.comparison.rows for each in run_verify(options, repair=False) if each.comparison}


@pytest.mark.parametrize("table_format", FOLLOWING_FORMATS)
def test_append(source: Source, tmp_path: Path, table_format: FollowingFormat) -> None:
    options = options_of(source, tmp_path, table_format, mode="append")
    run_apply(options, once=True)
    source.run("UPDATE t SET v='w' WHERE id=1", "DELETE FROM t WHERE id=2", "UPDATE t SET id=103 WHERE id=3", "INSERT INTO t VALUES (2, 'a')")
    run_apply(options, once=True)
    print(rows(options, "t", "_op", "_commit_lsn", "_sequence", "_unchanged", "id", "v"))
    print(verified(options))
    source.run("TRUNCATE log", "INSERT INTO log VALUES (5,'l')", "ALTER TABLE t ALTER n TYPE int", "ALTER TABLE t ADD z int DEFAULT 7", "UPDATE t SET z=8 WHERE id=103", "TRUNCATE t", "INSERT INTO t VALUES (1, 'x')")
    run_apply(options, once=True)
    print(rows(options, "t", "_op", "_commit_lsn", "_sequence", "_unchanged", "id", "v"))
    print(rows(options, "log", "_op", "_commit_lsn", "_sequence", "x"))
    print(verified(options))

@pytest.mark.parametrize("table_format", FOLLOWING_FORMATS)
def test_soft(source: Source, tmp_path: Path, table_format: FollowingFormat) -> None:
    options = options_of(source, tmp_path, table_format, mode="soft-delete")
    run_apply(options, once=True)
    source.run("UPDATE t SET v='w' WHERE id=1", "DELETE FROM t WHERE id=2", "UPDATE t SET id=103 WHERE id=3", "INSERT INTO t VALUES (200, 'a')", "DELETE FROM t WHERE id=200")
    run_apply(options, once=True)
    print(rows(options, "t", "_deleted", "_deleted_at", "id", "v"))
    print(verified(options))
    source.run("TRUNCATE log", "INSERT INTO log VALUES (5,'l')", "ALTER TABLE t ALTER n TYPE int", "ALTER TABLE t ADD z int DEFAULT 7", "UPDATE t SET z=8 WHERE id=103", "DELETE FROM t WHERE id=4")
    run_apply(options, once=True)
    print(rows(options, "t", "_deleted", "_deleted_at", "id", "v"))
    print(rows(options, "log", "_deleted", "_deleted_at", "x"))
    source.run("TRUNCATE t", "INSERT INTO t VALUES (1, 'x')")
    print(verified(options))
    print(rows(options, "t", "_deleted", "_deleted_at", "id", "v", "n"))
