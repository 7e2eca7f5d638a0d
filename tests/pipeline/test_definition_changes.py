"""Changes of definitions, taken from physical WAL, against the catalogs of the server that wrote it."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psycopg
import pytest

from safekeeper.base.lsn import Lsn
from tests.pipeline.decoder_comparison import Log, Rows, decoded_pieces
from tests.pipeline.definition_story import Done, State, column_offsets, defined, new_server, replay
from tests.unit.table_rows import open_table
from walproxy.pipeline.decoder.catalog_layouts import INDEXES, MAPPED, WIDTHS, catalogs_of
from walproxy.pipeline.duck import FolderTables, query
from walproxy.pipeline.input.opening import open_input
from walproxy.pipeline.schemas import arrow_schema
from walproxy.pipeline.view_queries import IN_ENTRIES
from walproxy.postgres.local_server import find_servers

MIB = 1 << 20
VIEWS = ("catalog_changes", "transactions")
LEVELS = {15: "logical", 17: "replica", 18: "replica"}
Row = dict[str, Any]


class Worked(NamedTuple):
    """What a server did, and its WAL."""

    major: int
    done: list[Done]
    log: Log
    rows: Rows
    changes: list[Row]


@pytest.fixture(
    scope="module",
    params=[*(pytest.param(major, marks=pytest.mark.nightly) for major in (15, 17)), 18],
    ids=lambda major: f"pg{major}",
)
def worked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worked]:
    major: int = request.param
    if major not in find_servers():
        pytest.skip(f"no PostgreSQL {major} on this machine")
    with defined(major, LEVELS[major]) as (server, done):
        source = open_input(str(server.pg_wal))
        path = source.log_path(None)
        [extent] = source.extents(path)
        log = Log(bytes(source.read(path, *extent)), extent.begin_lsn, path.segment_size)
        rows = Rows(log, log.borders(MIB), VIEWS)
        yield Worked(major, done, log, rows, changes_of(rows, tmp_path_factory.mktemp("tables"), 0))


def changes_of(rows: Rows, folder: Path, begin_lsn: Lsn) -> list[Row]:
    """Return the view of tables that begin at an LSN."""
    for view in VIEWS:
        table = rows.tables[view]
        kept = table.filter([lsn >= begin_lsn for lsn in table.column("lsn").to_pylist()])
        with open_table(folder, view, "delta", arrow_schema(view)) as written:
            file = written.new_file().write(kept.to_batches())
            assert file is not None
            written.commit(None, None, [file])
    with query(FolderTables(folder), "SELECT * FROM definition_changes ORDER BY lsn, sequence") as result:
        return [dict(zip(result.columns, row, strict=True)) for row in result.rows]


def of_step(changes: list[Row], done: Done) -> list[Row]:
    """Return the changes that a step has committed."""
    return [row for row in changes if done.begin_lsn <= (row["commit_lsn"] or 0) < done.end_lsn]


def test_the_changes_of_each_step_lead_from_the_catalogs_before_it_to_those_after_it(worked: Worked) -> None:
    state: State = {catalog: {} for catalog in worked.done[0].state}
    for done in worked.done:
        after = replay(state, of_step(worked.changes, done))
        assert after == done.state, done.step
        state = done.state


def test_a_rewrite_is_a_relation_that_has_another_file(worked: Worked) -> None:
    before = worked.done[0].state["pg_class"]
    seen = 0
    for done in worked.done[1:]:
        after = done.state["pg_class"]
        expected = {
            (oid, before[oid][3:], after[oid][3:])
            for oid in before.keys() & after.keys()
            if before[oid][3:] != after[oid][3:]
        }
        found = {
            (row["relation"], (row["old_file"], row["old_tablespace"]), (row["file"], row["tablespace"]))
            for row in of_step(worked.changes, done)
            if row["change"] == "rewrite" and row["relation"] in before.keys() & after.keys()
        }
        assert found == expected, done.step
        seen += len(expected)
        before = after
    assert seen > 100


def test_files_that_are_created_and_dropped(worked: Worked) -> None:
    before: set[Any] = set()
    for done in worked.done:
        rows = of_step(worked.changes, done)
        after = {found[3:] for found in done.state["pg_class"].values() if found[3] is not None}
        files = {
            change: {(row["file"], row["tablespace"]) for row in rows if row["change"] == change}
            for change in ("create_file", "drop_file")
        }
        # The files of temporary tables are not in WAL, of unlogged ones only that they are dropped.
        if not any("TEMPORARY" in statement or "passing" in statement for statement in done.step):
            assert before - after <= files["drop_file"], done.step
            assert after - before <= files["create_file"] or "UNLOGGED" in done.step[0], done.step
        assert not files["create_file"] & before, done.step
        assert not files["drop_file"] & after, done.step
        before = after


def test_what_is_not_committed_is_not_shown(worked: Worked) -> None:
    assert not [row for row in worked.changes if row["name"] == "never"]
    aborted = [done for done in worked.done if done.step[-1] in ("ROLLBACK", "ROLLBACK PREPARED 'never'")]
    assert [of_step(worked.changes, done) for done in aborted] == [[], []]
    raw = worked.rows.tables["catalog_changes"].to_pylist()
    assert {row["action"] for row in raw if row["name"] == "never"} >= {"insert", "entry"}


def test_the_changes_of_subtransactions_are_those_of_their_transaction(worked: Worked) -> None:
    [done] = [done for done in worked.done if "ROLLBACK TO one" in done.step]
    rows = of_step(worked.changes, done)
    assert len({(row["xid"], row["commit_lsn"]) for row in rows}) == 1
    assert {row["name"] for row in rows if row["change"] == "add_column"} >= {"a", "b"}
    ends = {row["lsn"]: row for row in worked.rows.tables["transactions"].to_pylist()}
    end = ends[rows[0]["commit_lsn"]]
    assert (end["xid"], end["end_lsn"], end["time"]) == tuple(
        rows[0][name] for name in ("xid", "commit_end_lsn", "time")
    )
    assert len(end["subxids"]) >= 2


def test_a_prepared_transaction_changes_definitions_when_it_commits(worked: Worked) -> None:
    steps = {done.step[-1]: of_step(worked.changes, done) for done in worked.done}
    assert steps["PREPARE TRANSACTION 'later'"] == []
    changes = {(row["change"], row["name"]) for row in steps["COMMIT PREPARED 'later'"]}
    assert {("create", "later"), ("rewrite", "inner_one")} <= changes


def test_images_of_catalogs_are_compressed_in_every_way_that_the_server_knows(worked: Worked) -> None:
    seen = 0
    for _, decoded in decoded_pieces(worked.log, worked.log.borders(MIB)):
        of_catalog = np.isin(decoded.relation, list(catalogs_of(worked.major))) & decoded.has_image
        seen |= int(np.bitwise_or.reduce(decoded.image_info[of_catalog], initial=0))
    steps = {step[0].rpartition(" ")[2] for step in (done.step for done in worked.done) if "wal_compression" in step[0]}
    assert "pglz" in steps
    assert {method for bit, method in ((4, "pglz"), (8, "lz4"), (16, "zstd")) if seen & bit} == steps


def test_truncate_is_named_where_wal_is_logical(worked: Worked) -> None:
    truncated = [row for row in worked.changes if row["change"] == "truncate"]
    assert bool(truncated) == (LEVELS[worked.major] == "logical")
    rewritten = {(row["commit_lsn"], row["relation"]) for row in worked.changes if row["change"] == "rewrite"}
    assert {(row["commit_lsn"], row["relation"]) for row in truncated} <= rewritten


def test_columns_have_their_types_and_former_names(worked: Worked) -> None:
    by_step = {done.step[0]: of_step(worked.changes, done) for done in worked.done}
    of_column = {
        step: [
            (row["change"], row["name"], row["old_name"], row["old_column_type"], row["column_type"]) for row in rows
        ]
        for step, rows in by_step.items()
    }
    assert ("add_column", "w", None, None, 23) in of_column["ALTER TABLE t ADD w int"]
    assert ("alter_column", "id", "id", 23, 20) in of_column["ALTER TABLE t ALTER id TYPE bigint"]
    assert ("rename_column", "y", "x", 23, 23) in of_column["ALTER TABLE t RENAME x TO y"]
    dropped = [row for row in of_column["ALTER TABLE t DROP COLUMN v"] if row[0] == "drop_column"]
    assert ("drop_column", "........pg.dropped.2........", "v", 25, 0) in dropped
    assert by_step["ALTER TABLE t RENAME TO u"][0]["change"] == "rename"
    assert (by_step["ALTER TABLE t RENAME TO u"][0]["old_name"]) == "t"


def test_a_record_has_the_same_rows_however_wal_is_cut(worked: Worked) -> None:
    whole = Rows(worked.log, [worked.log.begin_lsn, worked.log.end_lsn], VIEWS)
    small = Rows(worked.log, worked.log.borders(64 << 10), VIEWS)
    assert small.tables["catalog_changes"].equals(whole.tables["catalog_changes"])
    actions = set(whole.tables["catalog_changes"].column("action").to_pylist())
    assert actions >= {"insert", "update", "delete", "image", "entry", "create_file", "drop_file", "invalidate"}


def test_each_new_tuple_has_an_entry_in_each_index_with_its_values(worked: Worked) -> None:
    begin_lsn = worked.done[0].begin_lsn
    end_lsn = next(done.begin_lsn for done in worked.done if done.step[0] == "REINDEX TABLE pg_class")
    rows = [row for row in worked.rows.tables["catalog_changes"].to_pylist() if begin_lsn <= row["lsn"] < end_lsn]
    entries: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row["action"] == "entry":
            entries.setdefault(_place(row), []).append(row)
    indexes = Counter(key.catalog for key in INDEXES.values())
    tuples = [row for row in rows if row["action"] == "insert"]
    assert len(tuples) > 2000
    for row in tuples:
        found = entries[_place(row)]
        assert len(found) == indexes[row["catalog"]], row
        for entry in found:
            values = {name: entry[name] for name in IN_ENTRIES if entry[name] is not None}
            if row["file"] is None:  # 0 in both, but only the tuple's is left out.
                values.pop("tablespace", None)
            assert values == {name: row[name] for name in values}, (row, entry)


def _place(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("catalog", "xid", "block", "line"))


@pytest.mark.parametrize("after", ["CREATE SCHEMA other", "REINDEX TABLE other.u", "VACUUM made"])
def test_tables_that_begin_later_know_less_and_nothing_else(worked: Worked, tmp_path: Path, after: str) -> None:
    begin_lsn = next(done.end_lsn for done in worked.done if done.step == (after,))
    expected = {(row["lsn"], row["sequence"]): row for row in worked.changes if row["lsn"] >= begin_lsn}
    found = {(row["lsn"], row["sequence"]): row for row in changes_of(worked.rows, tmp_path, begin_lsn)}
    # A relation that no row names has a row of its own.
    changed = {key for key, row in found.items() if row["change"] == "changed"}
    assert found.keys() - changed <= expected.keys() | changed
    assert expected.keys() <= found.keys()
    lesser = {"rename": {"alter"}, "rename_column": {"alter_column"}, "drop_column": {"alter_column"}}
    for key in expected.keys() & found.keys():
        for name, value in found[key].items():
            if name == "change":
                assert value in {expected[key][name]} | lesser.get(expected[key][name], set()), key
            else:
                assert value is None or value == expected[key][name], (key, name)


def test_a_catalog_that_is_rewritten_is_shown_and_its_later_changes_are_missing(tmp_path: Path) -> None:
    with new_server(find_servers()[max(find_servers())]) as server:
        with psycopg.connect(server.conninfo(), autocommit=True) as connection:
            connection.execute("VACUUM FULL pg_class")
            connection.execute("CREATE TABLE after (a int)")
            found = connection.execute(
                "SELECT pg_relation_filenode('pg_class')::int8, pg_relation_filenode('after')::int8, "
                "'after'::regclass::oid"
            ).fetchone()
        server.stop()
        source = open_input(str(server.pg_wal))
        path = source.log_path(None)
        [extent] = source.extents(path)
        log = Log(bytes(source.read(path, *extent)), extent.begin_lsn, path.segment_size)
        changes = changes_of(Rows(log, log.borders(MIB), VIEWS), tmp_path, 0)
    assert found is not None
    [rewrite] = [row for row in changes if row["change"] == "rewrite" and row["name"] == "pg_class"]
    assert (rewrite["relation"], rewrite["file"]) == (1259, found[0])
    later = [row for row in changes if row["lsn"] > rewrite["lsn"] and row["relation"] == int(found[2])]
    assert {row["catalog"] for row in later} == {"pg_attribute", "pg_type"}
    assert [row["change"] for row in changes if row["file"] == found[1]] == ["create_file"]


def test_offsets_are_those_of_the_running_servers() -> None:
    for major, binaries in find_servers().items():
        with new_server(binaries) as server, psycopg.connect(server.conninfo()) as connection:
            for catalog in catalogs_of(major).values():
                offsets = column_offsets(connection, catalog.name)
                assert {field.name: (field.offset, WIDTHS[field.type]) for field in catalog.fields} == {
                    field.name: offsets[field.name] for field in catalog.fields
                }, (major, catalog.name)
            files = connection.execute(
                "SELECT c.oid::int8, relname, pg_relation_filenode(c.oid)::int8 FROM pg_class c WHERE c.oid < 16384"
            ).fetchall()
        assert {(oid, name, oid) for oid, name in MAPPED.items()} <= set(files)
        assert {(c.file, c.name, c.file) for c in catalogs_of(major).values()} <= set(files)
        assert set(INDEXES) <= {oid for oid, _, file in files if oid == file}
