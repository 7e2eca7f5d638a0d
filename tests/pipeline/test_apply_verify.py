"""Verification of tables that follow: it finds what differs, repairs it, and random steps leave nothing to find."""

from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from tests.pipeline.apply_fixtures import ApplyProcess, compare, options_of
from tests.pipeline.formats import MOSTLY_DELTA, MOSTLY_ICEBERG
from tests.pipeline.logical_server import Source
from tests.pipeline.random_steps import SETUP, TABLES, RandomSteps
from walproxy.pipeline.cdc.apply.following import Merge, Position
from walproxy.pipeline.cdc.apply.job import ApplyOptions, run_apply
from walproxy.pipeline.cdc.apply.opening import following_table
from walproxy.pipeline.cdc.apply.verify import TablesDiffer, run_verify
from walproxy.pipeline.cdc.publication import parse_table
from walproxy.pipeline.cdc.slot import create_slot
from walproxy.pipeline.choices import FOLLOWING_MODES, FollowingMode, TableFormat

SEEDS = {"delta": 7, "iceberg": 8}
STEPS = 24
STEPS_BETWEEN = 8


@pytest.fixture
def source(empty: Source) -> Source:
    empty.publication = "p"
    return empty


def harm(options: ApplyOptions, name: str, **columns: pa.Array) -> None:
    """Delete rows by their key behind the job's back, and leave the position as it is."""
    with closing(following_table(options.location, options.format, parse_table(name))) as table:
        position = table.position()
        assert position is not None
        gone = Merge(False, table.schema().empty_table(), pa.table(columns))
        table.merge(gone, list(columns), Position(*position), expected=Position(*position))


@pytest.mark.parametrize("table_format", MOSTLY_ICEBERG)
def test_rows_that_a_table_lacks_are_named_and_repaired(
    source: Source, tmp_path: Path, table_format: TableFormat
) -> None:
    source.run(
        "CREATE TABLE t (id int PRIMARY KEY, v text, n numeric(10,2), f float8)",
        "INSERT INTO t SELECT i, 'v' || i, i, i / 7.0 FROM generate_series(1, 1000) i",
        "CREATE TABLE log (a int, b text)",
        "INSERT INTO log SELECT 1, 'the same' FROM generate_series(1, 10)",
        "CREATE PUBLICATION p FOR TABLE t, log",
    )
    create_slot(source.connection, source.slot)
    options = options_of(source, tmp_path, table_format)
    assert [each.comparison.rows for each in run_verify(options, repair=False)] == [10, 1000]
    harm(options, "t", id=pa.array([3, 500], pa.int32()))
    source.run("UPDATE t SET v = 'later' WHERE id = 7", "ALTER TABLE t ADD w int")
    with pytest.raises(TablesDiffer, match=r"1 of 2 tables differ from their sources: public\.t; .*--repair"):
        run_verify(options, repair=False)
    if table_format == "delta":
        command = ApplyProcess(source, tmp_path / "lake", table_format, ["--verify"])
        assert command.wait() == 1
        assert "public.t: missing: 500" in command.log.read_text()
    repaired = run_verify(options, repair=True)
    assert [(str(each.table), each.comparison.rows) for each in repaired] == [("public.log", 10), ("public.t", 1000)]
    compare(source, options.location, table_format, "t", "log")


@pytest.mark.parametrize(
    "mode", ["mirror", *(pytest.param(mode, marks=pytest.mark.nightly) for mode in FOLLOWING_MODES[1:])]
)
@pytest.mark.parametrize("table_format", MOSTLY_DELTA)
def test_random_steps_of_ddl_and_dml_leave_nothing_to_find(
    source: Source, tmp_path: Path, table_format: TableFormat, mode: FollowingMode
) -> None:
    source.run(*SETUP)
    create_slot(source.connection, source.slot)
    options = options_of(source, tmp_path, table_format, memory_bytes=10_000, mode=mode)
    steps = RandomSteps(SEEDS[table_format])
    run_apply(options, once=True)
    for number in range(1, STEPS + 1):
        taken = steps.run(source)
        print(f"{number}: {'; '.join(taken)}")
        if number % STEPS_BETWEEN == 0:
            run_apply(options, once=True)
    assert {str(each.table) for each in run_verify(options, repair=False)} == {f"public.{table}" for table in TABLES}
    if mode == "mirror":
        compare(source, options.location, table_format, *TABLES)
