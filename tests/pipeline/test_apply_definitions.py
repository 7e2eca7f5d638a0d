"""Changes of definitions with a real server: a line of the log for each, and what readers of the tables see of it."""

import logging
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from tests.pipeline.apply_fixtures import compare, options_of
from tests.pipeline.formats import MOSTLY_ICEBERG
from tests.pipeline.logical_server import Source
from tests.pipeline.test_apply import Crash, crash_once
from walproxy.pipeline.cdc.apply import job as job_module
from walproxy.pipeline.cdc.apply.delta import DeltaFollowing
from walproxy.pipeline.cdc.apply.job import TablesQuarantined, opened_job, run_apply
from walproxy.pipeline.cdc.apply.job_file import only_job
from walproxy.pipeline.cdc.apply.opening import following_table
from walproxy.pipeline.cdc.apply.verify import run_verify
from walproxy.pipeline.cdc.publication import TableName
from walproxy.pipeline.choices import TableFormat
from walproxy.pipeline.lake.location import LakeLocation

HOSTILE = """we"ird 'tab' <script>alert(1)</script> \\ é {} """ + "x" * 16
COLUMN = """co"l <b> \\""" + "y" * 53
TABLE = '"' + HOSTILE.replace('"', '""') + '"'
QUOTED = '"' + COLUMN.replace('"', '""') + '"'
UNPUBLISHED = f"public.{HOSTILE} is not followed: it is no longer published: its copy stays as it is"
KINDS = ("copying ", " follows a change of its definition: ", " is quarantined, ", " is not followed: ")

Lines = Callable[[], list[str]]


@pytest.fixture
def source(empty: Source) -> Source:
    assert len(HOSTILE.encode()) == len(COLUMN.encode()) == 63
    empty.run(
        "CREATE TYPE mood AS ENUM ('low')",
        "CREATE TABLE t (id int PRIMARY KEY, v text, m mood)",
        f"CREATE TABLE {TABLE} (id int PRIMARY KEY, d date)",
        "CREATE TABLE whole (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE w0 PARTITION OF whole FOR VALUES FROM (0) TO (10)",
        f"""CREATE PUBLICATION "my pub" FOR TABLE t, whole, {TABLE} WITH (publish_via_partition_root)""",
        f"INSERT INTO {TABLE} VALUES (1)",
    )
    empty.publish()
    return empty


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    """Return the lines about definitions since the last call, copies without their positions."""
    caplog.set_level(logging.INFO, "walproxy")

    def taken() -> list[str]:
        found = [message for message in caplog.messages if any(kind in message for kind in KINDS)]
        caplog.clear()
        return [re.sub(r" as of \w+/\w+: ", ": ", message) for message in found]

    return taken


def test_each_change_is_a_line_with_what_became_of_it(source: Source, tmp_path: Path, lines: Lines) -> None:
    options = options_of(source, tmp_path)

    def logged(*statements: str) -> list[str]:
        source.run(*statements, "INSERT INTO t SELECT coalesce(max(id), 0) + 1 FROM t")
        try:
            run_apply(options, once=True)
        except TablesQuarantined:
            pass
        return lines()

    first = [f"copying public.{name}: it was not copied yet" for name in ("t", HOSTILE, "whole")]
    assert sorted(logged()) == sorted(first)
    assert logged("INSERT INTO t VALUES (100, 'row', 'low')", "TRUNCATE t") == []  # No change.
    assert logged(f"ALTER TABLE {TABLE} ADD {QUOTED} numeric(5,2)") == [
        f"public.{HOSTILE} follows a change of its definition: column {COLUMN} was added, here of type decimal128(5, 2)"
    ]
    assert logged("ALTER TYPE mood ADD VALUE 'high'") == [
        "public.t follows a change of its definition: a type of its columns has new labels"
    ]
    assert logged("CREATE TABLE w1 PARTITION OF whole FOR VALUES FROM (10) TO (20)") == [
        "public.whole follows a change of its definition: 1 partition added"
    ]
    assert logged("ALTER TABLE t DROP v", f"ALTER TABLE {TABLE} RENAME d TO day") == [
        "public.t follows a change of its definition: column v was dropped, and keeps its values here",
        f"copying public.{HOSTILE}: its column d is called day",
    ]
    *_, quarantined = logged(f"UPDATE {TABLE} SET day = 'infinity'")
    assert quarantined.startswith(f"public.{HOSTILE} is quarantined, the other tables continue: ")
    assert ".day has the value 'infinity', which date32[day] cannot hold" in quarantined
    [again] = logged()  # The same reason is not logged again.
    assert again.startswith(f"copying public.{HOSTILE}: it was quarantined (")
    assert logged(f"UPDATE {TABLE} SET day = '2026-11-26'", f"ALTER TABLE {TABLE} ADD z int DEFAULT 5") == [again]
    assert logged(f'ALTER PUBLICATION "my pub" DROP TABLE {TABLE}') == [UNPUBLISHED]
    assert len(run_verify(options, repair=False)) == 2


def test_a_running_job_notices_what_is_no_longer_published(source: Source, tmp_path: Path, lines: Lines) -> None:
    options = options_of(source, tmp_path)
    with only_job(options.location), opened_job(options, first=True, ends=True) as job:
        job.copy_missing()
        lines()
        source.run(f'ALTER PUBLICATION "my pub" DROP TABLE {TABLE}')
        job.step()
    assert lines() == [UNPUBLISHED]


@pytest.mark.parametrize("crash_at", ["note", "noted", "copied"])
def test_a_crash_loses_no_line(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: Lines, crash_at: str
) -> None:
    options = options_of(source, tmp_path)
    run_apply(options, once=True)
    lines()
    source.run("ALTER TABLE t ADD w int DEFAULT 7", f"ALTER TABLE {TABLE} ADD x int")
    with monkeypatch.context() as patched:
        if crash_at == "copied":
            patched.setattr(DeltaFollowing, "replace", crash_once(DeltaFollowing.replace, after=True))
        else:
            # The first note is that of the start; the second one has the columns that were followed.
            crashing = crash_once(job_module.write_job, 2, after=crash_at == "noted")
            patched.setattr(job_module, "write_job", crashing)
        with pytest.raises(Crash):
            run_apply(options, once=True)
    run_apply(options, once=True)
    # A line may come twice, and a copy that begins again has its reason again.
    assert set(lines()) == {
        f"public.{HOSTILE} follows a change of its definition: column x was added, here of type int32",
        "copying public.t: its column w was added with values in old rows",
    }
    compare(source, options.location, "delta", "t")


@pytest.mark.parametrize("table_format", MOSTLY_ICEBERG)
def test_readers_see_each_definition_in_the_metadata_of_the_table(
    source: Source, tmp_path: Path, table_format: TableFormat
) -> None:
    options = options_of(source, tmp_path, table_format)
    run_apply(options, once=True)
    for statements in (
        ("ALTER TABLE t ADD plain int", "INSERT INTO t VALUES (1, 'v', 'low', 5)"),
        ("ALTER TABLE t RENAME v TO w", "INSERT INTO t VALUES (2, 'w', 'low', 6)"),
    ):
        source.run(*statements)
        run_apply(options, once=True)
    assert _definitions(options.location, table_format) == [
        {"id", "v", "m"},
        {"id", "v", "m", "plain"},
        {"id", "w", "m", "plain"},
    ]


def _definitions(location: LakeLocation, table_format: TableFormat) -> list[set[str]]:
    """Return the columns of each definition that the metadata of the table `t` has, oldest first."""
    if table_format == "delta":
        url = following_table(location, table_format, TableName("public", "t")).location.url
        versions = range(DeltaTable(url).version() + 1)
        found = [{field.name for field in DeltaTable(url, version=each).schema().fields} for each in versions]
        return [names for number, names in enumerate(found) if number == 0 or names != found[number - 1]]
    folder = location.folder
    assert folder is not None
    with closing(SqlCatalog("walproxy", uri=f"sqlite:///{folder / 'iceberg.db'}", warehouse=str(folder))) as catalog:
        schemas = catalog.load_table(("public", "t")).schemas()
        return [{field.name for field in schema.fields} for _, schema in sorted(schemas.items())]
