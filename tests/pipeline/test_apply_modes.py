"""Modes append and soft-delete with a real server: what tables keep over changes, copies, crashes and kills."""

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner

from safekeeper.base.errors import ConfigurationError, WalproxyError
from tests.integration.archive.faulty_relay import FaultyRelay, drop_the_answer
from tests.integration.archive.object_stores import Server
from tests.pipeline.apply_fixtures import (
    CHURN,
    ApplyProcess,
    check_churn,
    make_churn,
    options_of,
    rows_here,
    start_bench,
)
from tests.pipeline.formats import MOSTLY_DELTA, MOSTLY_ICEBERG
from tests.pipeline.logical_server import Source
from tests.pipeline.test_apply import Crash, crash_once
from walproxy.cli.pipeline_commands.query import query
from walproxy.pipeline.cdc.apply import job as job_module
from walproxy.pipeline.cdc.apply.delta import DeltaFollowing
from walproxy.pipeline.cdc.apply.following import FollowingTable, Position
from walproxy.pipeline.cdc.apply.job import ApplyOptions, run_apply
from walproxy.pipeline.cdc.apply.opening import following_table
from walproxy.pipeline.cdc.apply.status_files import read_status
from walproxy.pipeline.cdc.apply.verify import TablesDiffer, run_verify
from walproxy.pipeline.cdc.publication import TableName
from walproxy.pipeline.choices import FOLLOWING_MODES, TABLE_FORMATS, FollowingMode, TableFormat
from walproxy.pipeline.lake.location import LakeLocation

KEEPING = FOLLOWING_MODES[1:]
SETUP = (
    "CREATE TABLE t (id int PRIMARY KEY, v text, big text, n int)",
    "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
    "CREATE TABLE log (x int, y text)",
    "INSERT INTO t SELECT i, 'v', repeat('x', 3000) || i, i FROM generate_series(1, 5) i",
    "INSERT INTO log VALUES (1, 'copied'), (1, 'copied')",
)
CHANGES = (
    "UPDATE t SET v = 'w' WHERE id = 1",
    "DELETE FROM t WHERE id = 2",
    "UPDATE t SET id = 13 WHERE id = 3",
    "BEGIN; INSERT INTO t VALUES (6, 'short', NULL, 6); DELETE FROM t WHERE id = 6; COMMIT",
    "TRUNCATE log",
    "INSERT INTO log VALUES (2, 'later')",
)


@pytest.fixture
def source(empty: Source) -> Source:
    empty.run(*SETUP)
    empty.publish("t", "log")
    return empty


def rows(options: ApplyOptions, table: str, *columns: str) -> list[tuple[Any, ...]]:
    """Return columns of a table; a history in its order."""
    found = rows_here(options.location, options.format, TableName("public", table))
    if options.mode == "append":
        found = found.sort_by([("_commit_lsn", "ascending"), ("_sequence", "ascending")])
    return list(zip(*(found[name].to_pylist() for name in columns), strict=True))


def verified(options: ApplyOptions) -> dict[str, int | None]:
    """Have the tables compared; return the rows of their sources."""
    found = run_verify(options, repair=False)
    return {each.table.name: each.comparison.rows if each.comparison else None for each in found}


def harm(options: ApplyOptions, name: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change the rows of a table, and leave the position as it is."""
    with closing(following_table(options.location, options.format, TableName("public", name))) as table:
        position = table.position()
        assert position is not None
        changed = change(table.to_arrow())
        table.rewrite(changed.to_batches(), Position(*position), expected=Position(*position))


COPIED = [("copy", -1, None, number, "v", True) for number in range(1, 6)]
HISTORY = [
    ("update", 0, ["big"], 1, "w", False),
    ("delete", 0, None, 2, None, False),
    ("delete", 0, None, 3, None, False),
    ("update", 0, None, 13, "v", True),  # the value that was not sent has another key in the rows before
    ("insert", 0, None, 6, "short", False),
    ("delete", 1, None, 6, None, False),
]
NOW = """
    SELECT id, v FROM public.t
    WHERE (_commit_lsn, _sequence) > coalesce((
        SELECT max((_commit_lsn, _sequence)) FROM public.t WHERE _op IN ('truncate', 'reset')), (0, 0))
    QUALIFY row_number() OVER (PARTITION BY id ORDER BY _commit_lsn DESC, _sequence DESC) = 1 AND _op <> 'delete'
    ORDER BY id
"""


def history(options: ApplyOptions) -> list[tuple[Any, ...]]:
    found = rows(options, "t", "_op", "_sequence", "_unchanged", "id", "v", "big")
    return sorted_pairs([(*row[:-1], row[-1] is not None) for row in found])


def sorted_pairs(found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows of a copy have one place."""
    return [*sorted(found[:5], key=lambda row: row[3]), *found[5:]]


@pytest.mark.parametrize("table_format", MOSTLY_DELTA)
def test_each_change_is_one_row_and_a_copy_removes_none(
    source: Source, tmp_path: Path, table_format: TableFormat
) -> None:
    options = options_of(source, tmp_path, table_format, mode="append")
    run_apply(options, once=True)
    source.run(*CHANGES)
    assert verified(options) == {"log": 1, "t": 4}
    assert history(options) == [*COPIED, *HISTORY]
    assert [row[0] for row in rows(options, "log", "_op")] == ["copy", "copy", "truncate", "insert"]
    times = rows(options, "t", "_commit_time")
    assert times == sorted(times) and None not in times[0]
    # Another type has the table copied again: the column becomes text, and the old values stay.
    source.run("ALTER TABLE t ALTER n TYPE bool USING n > 4", "UPDATE t SET v = 'z' WHERE id = 4")
    assert verified(options) == {"log": 1, "t": 4}
    found = history(options)
    assert found[:11] == [*COPIED, *HISTORY]
    assert [(row[0], row[1]) for row in found[11:]] == [("reset", -2), *[("copy", -1)] * 4]
    assert {row for row in rows(options, "t", "_op", "id", "n") if row[1] in (5, 13)} == {
        ("copy", 5, "5"),
        ("copy", 5, "t"),
        ("update", 13, "3"),
        ("copy", 13, "f"),
    }
    if table_format == "delta":
        shown = CliRunner().invoke(query, [NOW, "--tables", str(options.location), "--csv"])
        assert shown.output.split() == ["id,v", "1,w", "4,z", "5,v", "13,v"], shown.output
    harm(options, "t", lambda table: table.filter(pc.fill_null(pc.not_equal(table["id"], 4), True)))
    with pytest.raises(TablesDiffer, match=r"public\.t"):
        run_verify(options, repair=False)
    run_verify(options, repair=True)
    assert [row[0] for row in history(options)[-5:]] == ["reset", *["copy"] * 4]


@pytest.mark.parametrize("table_format", MOSTLY_ICEBERG)
def test_deleted_rows_stay_also_over_a_copy_and_come_back(
    source: Source, tmp_path: Path, table_format: TableFormat
) -> None:
    options = options_of(source, tmp_path, table_format, mode="soft-delete")
    run_apply(options, once=True)
    source.run(*CHANGES)
    assert verified(options) == {"log": 1, "t": 4}
    live, gone = {1: "w", 4: "v", 5: "v", 13: "v"}, {2: "v", 3: "v", 6: "short"}
    assert states(options) == (live, gone)
    assert Counter(rows(options, "log", "_deleted", "y")) == {(True, "copied"): 2, (False, "later"): 1}
    # Another type has the table copied again; row 4 is deleted before, and row 2 comes back.
    source.run("ALTER TABLE t ALTER n TYPE bool USING n > 4", "DELETE FROM t WHERE id = 4")
    source.run("INSERT INTO t VALUES (2, 'again', NULL, true)")
    assert verified(options) == {"log": 1, "t": 4}
    assert states(options) == ({1: "w", 2: "again", 5: "v", 13: "v"}, {3: "v", 4: "v", 6: "short"})
    assert {row for row in rows(options, "t", "id", "n") if row[0] in (3, 5)} == {(3, "3"), (5, "t")}
    source.run("INSERT INTO t (id, v) VALUES (3, 'back')", "DELETE FROM t WHERE id = 5", "TRUNCATE t")
    source.run("INSERT INTO t (id, v) VALUES (1, 'new')")
    assert verified(options) == {"log": 1, "t": 1}
    live, gone = states(options)
    assert (live, gone) == ({1: "new"}, {2: "again", 3: "back", 4: "v", 5: "v", 6: "short", 13: "v"})
    harm(options, "t", lambda table: table.slice(0, 0))
    with pytest.raises(TablesDiffer, match=r"public\.t"):
        run_verify(options, repair=False)


def states(options: ApplyOptions) -> tuple[dict[int, str], dict[int, str]]:
    """Return the rows that are there, and those that are deleted."""
    found = rows(options, "t", "_deleted", "_deleted_at", "id", "v")
    assert all(is_deleted == (at is not None) for is_deleted, at, _, _ in found)
    assert len({row[2] for row in found}) == len(found)
    parts = [{row[2]: row[3] for row in found if row[0] is is_deleted} for is_deleted in (False, True)]
    return parts[0], parts[1]


@pytest.mark.parametrize("table_format", ["delta", pytest.param("iceberg", marks=pytest.mark.nightly)])
def test_replica_identities_and_columns_of_reserved_names(
    source: Source, tmp_path: Path, table_format: TableFormat
) -> None:
    source.run(
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "ALTER TABLE log REPLICA IDENTITY FULL",
        "CREATE TABLE odd (id int PRIMARY KEY, _Deleted int, _op int)",
        'ALTER PUBLICATION "my pub" ADD TABLE odd',
    )
    for mode, reasons in {
        "append": r"odd has a column '_op', a name that --mode append needs",
        "soft-delete": r"log has a full replica identity and no primary key.*odd",
    }.items():
        options = options_of(source, tmp_path / mode, table_format, mode=mode)
        with pytest.raises(WalproxyError, match=reasons) as refused:
            run_apply(options, once=True)
        assert "\n" not in str(refused.value)
        source.run(f"SELECT pg_drop_replication_slot('{source.slot}')")
    options = options_of(source, tmp_path / "some", table_format, mode="append")
    source.run('ALTER PUBLICATION "my pub" DROP TABLE odd')
    run_apply(options, once=True)
    source.run("UPDATE t SET v = 'w' WHERE id = 1", "DELETE FROM t WHERE id = 2")
    source.run("UPDATE log SET y = 'w'", "DELETE FROM log")
    assert verified(options) == {"log": None, "t": 4}
    big = "x" * 3000
    assert rows(options, "t", "_op", "_unchanged", "id", "big")[5:] == [
        ("update", None, 1, big + "1"),
        ("delete", None, 2, big + "2"),
    ]
    assert Counter(rows(options, "log", "_op", "y")) == {
        ("copy", "copied"): 2,
        ("delete", "copied"): 2,
        ("update", "w"): 2,
        ("delete", "w"): 2,
    }


def test_another_mode_is_refused_with_the_way_out(source: Source, tmp_path: Path) -> None:
    options = options_of(source, tmp_path, mode="append")
    run_apply(options, once=True)
    for other in (options._replace(mode="mirror"), options._replace(mode="soft-delete", start_over=True)):
        with pytest.raises(
            ConfigurationError, match=r"--mode append, not .*: add --mode append, or name another"
        ) as no:
            run_apply(other, once=True)
        assert "\n" not in str(no.value)
    # Without the job's file the tables themselves show it.
    job_file = tmp_path / "lake" / "_walproxy_apply" / "job.json"
    job_file.unlink()
    with pytest.raises(WalproxyError, match=r"t was made with --mode append, not mirror: name another folder"):
        run_apply(options._replace(mode="mirror"), once=True)
    assert history(options) == COPIED


CRASHES = [(point, mode) for point in ("put 1", "has put 1", "has put 2", "note", "confirm") for mode in KEEPING]
OFTEN = (("has put 2", "append"), ("note", "append"), ("put 1", "soft-delete"))


@pytest.mark.parametrize(
    ("crash_at", "mode"), [pytest.param(*each, marks=() if each in OFTEN else pytest.mark.nightly) for each in CRASHES]
)
def test_a_crash_at_any_point_loses_nothing_and_repeats_nothing(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash_at: str, mode: FollowingMode
) -> None:
    # So little is held at once that a transaction is applied in several commits.
    options = options_of(source, tmp_path, memory_bytes=5000, mode=mode)
    run_apply(options, once=True)
    source.run(*CHANGES, "INSERT INTO log SELECT i, 'l' FROM generate_series(1, 100) i")
    with monkeypatch.context() as patched:
        if crash_at.endswith(("1", "2")):
            crashing = crash_once(FollowingTable._continuing, int(crash_at[-1]))
            if crash_at.startswith("has"):
                crashing = crash_once(DeltaFollowing._sync, int(crash_at[-1]), after=True)
                patched.setattr(DeltaFollowing, "_sync", crashing)
            else:
                patched.setattr(FollowingTable, "_continuing", crashing)
        elif crash_at == "note":
            patched.setattr(job_module, "write_job", crash_once(job_module.write_job, 2))
        else:
            patched.setattr(job_module.ChangeFeed, "confirm", crash_once(job_module.ChangeFeed.confirm))
        with pytest.raises(Crash):
            run_apply(options, once=True)
    assert verified(options) == {"log": 101, "t": 4}
    if mode == "append":
        assert history(options) == [*COPIED, *HISTORY]
        operations = Counter(operation for (operation,) in rows(options, "log", "_op"))
        assert operations == {"copy": 2, "truncate": 1, "insert": 101}
    else:
        assert states(options) == ({1: "w", 4: "v", 5: "v", 13: "v"}, {2: "v", 3: "v", 6: "short"})
        assert Counter(rows(options, "log", "_deleted")) == {(True,): 2, (False,): 101}


def test_a_copy_that_was_committed_before_a_crash_is_not_made_again(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(source, tmp_path, mode="append")
    with monkeypatch.context() as patched:
        patched.setattr(DeltaFollowing, "_sync", crash_once(DeltaFollowing._sync, 2, after=True))
        with pytest.raises(Crash):
            run_apply(options, once=True)
    source.run("DELETE FROM t WHERE id = 1")
    assert verified(options) == {"log": 2, "t": 4}
    assert history(options) == [*COPIED, ("delete", 0, None, 1, None, False)]
    assert [row[0] for row in rows(options, "log", "_op")] == ["copy", "copy"]


@pytest.mark.parametrize("table_format", ["delta", pytest.param("iceberg", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("mode", ["append", pytest.param("soft-delete", marks=pytest.mark.nightly)])
def test_a_job_that_is_killed_under_load_has_each_change_once(
    empty: Source, tmp_path: Path, mode: FollowingMode, table_format: TableFormat
) -> None:
    make_churn(empty)
    empty.publish("churn")
    script, folder, words = tmp_path / "script.sql", tmp_path / "lake", [f"--mode={mode}"]
    script.write_text(CHURN)
    options = options_of(empty, tmp_path, table_format, mode=mode)
    run_apply(options, once=True)
    load = start_bench(empty, 60, "--rate=300", f"--file={script}")
    job = ApplyProcess(empty, folder, table_format, words)
    try:
        job.wait_for_steps(3)
    finally:
        job.kill9()
        load.kill()
        load.wait()
    assert verified(options) == {"churn": empty.rows("SELECT count(*) FROM churn")[0][0]}
    check_churn(empty, options)
    assert read_status(options.location).copies == 0


@pytest.mark.nightly
@pytest.mark.parametrize("table_format", TABLE_FORMATS)
@pytest.mark.parametrize("mode", KEEPING)
def test_in_an_object_store_a_lost_reply_puts_no_change_in_twice(
    moto: Server, source: Source, tmp_path: Path, mode: FollowingMode, table_format: TableFormat
) -> None:
    catalog = {"uri": f"sqlite:///{tmp_path / 'catalog.db'}"} if table_format == "iceberg" else {}
    with pytest.MonkeyPatch.context() as patch, FaultyRelay(moto.endpoint) as relay:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        place = moto.place(source.name, relay.endpoint)
        options = options_of(source, LakeLocation.parse(place.url, place.options, catalog), table_format, mode=mode)
        relay.when("PUT", r"/public\.t/_delta_log/0+[01]\.json", drop_the_answer, times=2)
        run_apply(options, once=True)
        source.run(*CHANGES)
        run_apply(options, once=True)
        assert read_status(options.location).copies == 0
        assert verified(options) == {"log": 1, "t": 4}
        source.run("ALTER TABLE t ADD COLUMN z int DEFAULT 5")
        assert verified(options) == {"log": 1, "t": 4}
        if mode == "append":
            found = history(options)
            assert found[:11] == [*COPIED, *HISTORY]
            assert [row[0] for row in found[11:]] == ["reset", *["copy"] * 4]
        else:
            assert states(options) == ({1: "w", 4: "v", 5: "v", 13: "v"}, {2: "v", 3: "v", 6: "short"})
