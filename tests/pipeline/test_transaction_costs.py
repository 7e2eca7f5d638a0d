"""The changes of rows that `apply` has written, joined with what each transaction cost in physical WAL."""

from pathlib import Path
from typing import Any

from tests.pipeline.apply_fixtures import options_of
from tests.pipeline.logical_server import Source
from tests.unit.table_rows import open_table
from walproxy.cli.pipeline_work.query import tables_at
from walproxy.pipeline.cdc.apply.job import run_apply
from walproxy.pipeline.duck import query
from walproxy.pipeline.library.wal import open_wal
from walproxy.pipeline.schemas import arrow_schema

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "pipeline.md"
SETUP = (
    "CREATE TABLE t (id int PRIMARY KEY, v text, n int)",
    "CREATE TABLE other (id int PRIMARY KEY, v text)",
    "CREATE TABLE outside (id int)",
)
TRANSACTIONS = (
    *(f"INSERT INTO t SELECT i, 'v', 0 FROM generate_series({n * 100}, {n * 100 + n}) i" for n in range(30)),
    *(f"UPDATE t SET n = n + 1 WHERE id % 7 = {n}" for n in range(7)),
    "BEGIN; INSERT INTO t VALUES (-1, repeat('w', 5000), 1); INSERT INTO other VALUES (1, 'o'); COMMIT",
    "BEGIN; INSERT INTO outside VALUES (1); DELETE FROM t WHERE id % 5 = 0; UPDATE other SET v = 'p'; COMMIT",
    "BEGIN; INSERT INTO t VALUES (-9, 'never', 0); ROLLBACK",
    "CHECKPOINT",
    "UPDATE t SET v = repeat('long', 100) WHERE id % 3 = 1",
    "BEGIN; SAVEPOINT a; INSERT INTO t VALUES (-2, 'never', 0); ROLLBACK TO a; SAVEPOINT b; "
    "INSERT INTO t VALUES (-3, 'in b', 0); RELEASE b; DELETE FROM other; COMMIT",
    "INSERT INTO outside VALUES (2)",
    "DELETE FROM t WHERE id < 300",
)
COSTS = """
    WITH changed AS (
        SELECT _commit_lsn, count(*) FILTER (_op = 'insert') AS inserted, count(*) FILTER (_op = 'update') AS updated,
            count(*) FILTER (_op = 'delete') AS deleted
        FROM public.{table} WHERE _op IN ('insert', 'update', 'delete') GROUP BY _commit_lsn
    ),
    cost AS (
        SELECT lsn, outcome, inserts, updates + hot_updates AS updates, deletes, wal_bytes, image_count, pages
        FROM transaction_changes
        WHERE relation = {file} AND outcome LIKE 'commit%' AND inserts + updates + hot_updates + deletes > 0
    )
    SELECT changed.*, cost.*
    FROM changed FULL JOIN cost ON cost.lsn = changed._commit_lsn ORDER BY coalesce(lsn, _commit_lsn)
"""


def ask(folder: Path, statement: str) -> list[dict[str, Any]]:
    with query(tables_at(str(folder), {}, {}), statement) as result:
        return [dict(zip(result.columns, row, strict=True)) for row in result.rows]


def test_each_commit_of_the_history_is_one_transaction_with_its_cost(empty: Source, tmp_path: Path) -> None:
    empty.run(*SETUP)
    empty.publish("t", "other")
    begin_lsn = empty.end_lsn()
    options = options_of(empty, tmp_path, mode="append")
    run_apply(options, once=True)
    for transaction in TRANSACTIONS:
        for statement in transaction.split("; "):
            empty.run(statement)
    run_apply(options, once=True)
    files = dict(
        empty.rows("SELECT relname, pg_relation_filenode(oid)::int8 FROM pg_class WHERE relname IN ('t', 'other')")
    )

    wal = open_wal(str(empty.server.pg_wal))
    folder = tmp_path / "lake"
    for view in ("transactions", "transaction_volume", "transaction_relations"):
        with open_table(folder, view, "delta", arrow_schema(view)) as table:
            file = table.new_file().write(wal.table(view, begin=begin_lsn).to_batches())
            assert file is not None
            table.commit(None, None, [file])

    expected = {"t": 30 + 7 + 2 + 2 + 1, "other": 3}
    for name, file in files.items():
        rows = ask(folder, COSTS.format(table=name, file=file))
        # One to one: neither side has a commit that the other has not, and both count the same changes.
        for row in rows:
            assert row["_commit_lsn"] == row["lsn"] is not None, row
            logical = [row[column] for column in ("inserted", "updated", "deleted")]
            assert logical == [row[column] for column in ("inserts", "updates", "deletes")], row
        assert len(rows) == len({row["lsn"] for row in rows}) == expected[name]
        assert all(row["wal_bytes"] > 0 and row["pages"] > 0 for row in rows)
        assert any(row["image_count"] for row in rows)

    sizes = ask(
        folder,
        """
        SELECT s.wal_bytes, s.image_bytes, s.records, c.wal_bytes AS w, c.image_bytes AS i, c.records AS r
        FROM transaction_sizes s LEFT JOIN (
            SELECT lsn, sum(wal_bytes) AS wal_bytes, sum(image_bytes) AS image_bytes, sum(records) AS records
            FROM transaction_changes GROUP BY lsn) c ON c.lsn = s.lsn
        """,
    )
    assert len(sizes) > 40
    assert all(
        (row["wal_bytes"], row["image_bytes"], row["records"]) == (row["w"], row["i"], row["r"]) for row in sizes
    )
