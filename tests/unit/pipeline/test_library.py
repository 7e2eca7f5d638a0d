"""`import pgwal`: it returns what the decoder decodes, and needs no library of the extra pipeline."""

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pgwal
import pyarrow as pa
import pyspark
import pytest
from pgwal import spark

from tests.pipeline.small_wal import FIRST_TIME, decoded_rows, small_wal, write_wal
from tests.unit.test_dependencies import DISTRIBUTIONS, EXTRAS, canonical
from tests.unit.wal_builder import MIB
from walproxy.installation import pip_install
from walproxy.pipeline.library import spark as library_spark

ROOT = Path(__file__).parents[3]
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_wal(tmp_path_factory.mktemp("wal") / "pg_wal", small_wal(4 * MIB + 300_000))


def time_of(number: int) -> datetime:
    """Return when a transaction of the log ended."""
    return EPOCH + timedelta(microseconds=FIRST_TIME + number * 1_000_000)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("view", pgwal.VIEWS)
def test_a_table_has_the_rows_that_the_decoder_gives(folder: str, view: str, threads: int) -> None:
    table = pgwal.open(Path(folder), threads=threads).table(view)
    assert table == decoded_rows(folder, view)
    assert table.num_rows
    assert table.schema == pgwal.arrow_schema(view)


def test_the_source_is_described(folder: str) -> None:
    wal = pgwal.open(folder)
    (extent,) = wal.extents()
    assert (wal.system_id, wal.segment_size, wal.timeline()) == (7, MIB, 1)
    assert extent.begin_lsn == MIB
    assert extent.end_lsn > 4 * MIB + 300_000
    assert repr(wal) == f"<WAL of the folder {folder}>"


def test_columns_come_in_the_order_of_the_view(folder: str) -> None:
    table = pgwal.open(folder).table("records", columns=["rmgr", "lsn"])
    assert table.column_names == ["lsn", "rmgr"]
    assert table == decoded_rows(folder, "records").select(["lsn", "rmgr"])


def test_the_records_that_begin_in_the_range_are_there_and_no_others(folder: str) -> None:
    lsns = decoded_rows(folder, "records")["lsn"].to_numpy()
    begin_lsn, end_lsn = int(lsns[100]), int(lsns[2000])
    wanted = lsns[(lsns >= begin_lsn) & (lsns < end_lsn)].tolist()
    wal = pgwal.open(folder)
    for bounds in ((begin_lsn, end_lsn), (pgwal.format_lsn(begin_lsn), pgwal.format_lsn(end_lsn))):
        assert wal.table("records", begin=bounds[0], end=bounds[1])["lsn"].to_pylist() == wanted
    sums = wal.table("transaction_volume", begin=begin_lsn, end=end_lsn)
    assert sum(sums["records"].to_pylist()) == len(wanted)


def test_a_range_of_time_has_the_transactions_that_ended_in_it(folder: str) -> None:
    wal = pgwal.open(folder)
    times = wal.table("transactions", begin=time_of(20), end=time_of(30))["time"].to_pylist()
    assert times == [time_of(number) for number in range(20, 31)]
    empty = wal.table("transactions", begin=time_of(20), end=time_of(20) - timedelta(microseconds=1))
    assert empty.num_rows == 0
    assert empty.schema == pgwal.arrow_schema("transactions")
    assert wal.table("transactions", end=time_of(0) - timedelta(days=1)).num_rows == 0


def test_a_loop_can_end_early_and_the_reader_can_be_dropped(folder: str) -> None:
    reader = pgwal.open(folder).batches("records")
    first = next(iter(reader))
    lsns = first.column("lsn").to_numpy().copy()
    reader.close()
    del reader
    assert np.array_equal(first.column("lsn").to_numpy(), lsns)
    assert hasattr(pgwal.open(folder).batches(), "__arrow_c_stream__")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"view": "x"}, "unknown view 'x': use one of records"),
        ({"columns": ["x"]}, "there is no column 'x' in the view records"),
        ({"begin": "x"}, "'x' is not an LSN: write it as PostgreSQL prints it"),
        ({"begin": -1}, "begin cannot be -1: an LSN is not negative"),
        ({"end": datetime(2026, 1, 1)}, "end cannot be 2026-01-01T00:00:00: a time needs a time zone"),
        ({"begin": 2 * MIB, "end": 2 * MIB}, "nothing to read from 0/200000 to 0/200000"),
    ],
)
def test_an_argument_that_is_not_valid_is_refused_in_one_line(
    folder: str, arguments: dict[str, Any], problem: str
) -> None:
    with pytest.raises(pgwal.ConfigurationError, match=re.escape(problem)) as caught:
        pgwal.open(folder).table(**arguments)
    assert "\n" not in str(caught.value)


def test_no_threads_and_no_folder_are_refused(folder: str, tmp_path: Path) -> None:
    with pytest.raises(pgwal.ConfigurationError, match="threads cannot be 0"):
        pgwal.open(folder, threads=0)
    with pytest.raises(pgwal.ConfigurationError, match="is not a folder: correct the input's path"):
        pgwal.open(tmp_path / "x")


def test_damage_is_raised_after_the_batches_before_it(tmp_path: Path) -> None:
    folder = Path(write_wal(tmp_path / "pg_wal", small_wal(4 * MIB + 300_000)))
    damaged = folder / f"{1:08X}{3:016X}"
    content = bytearray(damaged.read_bytes())
    content[500_000] ^= 1
    damaged.write_bytes(content)
    whole = []
    with pytest.raises(pgwal.SourceCorrupt, match="in 000000010000000000000003 of the folder"):
        for batch in pgwal.open(folder).batches("records"):
            whole.append(batch)
    assert len(whole) == 2
    with pytest.raises(pgwal.WalMissing, match="is missing: no WAL from"):
        damaged.unlink()
        pgwal.open(folder).table()
    begins = pgwal.open(folder).table(columns=["lsn"], allow_gaps=True)["lsn"].to_numpy()
    assert {*(begins // MIB).tolist()} == {1, 2, 4}


BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"{{name}} is blocked", name=name)

sys.meta_path.insert(0, Blocked())
sys.path.insert(0, {source!r})
"""


def run_without(blocked: set[str], code: str) -> "subprocess.CompletedProcess[str]":
    program = BLOCKED.format(blocked=blocked, source=str(ROOT / "walproxy" / "pipeline" / "discovery")) + code
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)


def modules_of(distributions: set[str]) -> set[str]:
    return {name for name, found in DISTRIBUTIONS.items() if distributions & {canonical(each) for each in found}}


def test_it_needs_only_its_extra(folder: str) -> None:
    others = modules_of(set().union(*EXTRAS.values()) - EXTRAS["decoder"])
    assert {"pyspark", "deltalake", "pandas", "pyiceberg", "plotly"} <= others
    code = f"""
        import pgwal
        wal = pgwal.open({folder!r})
        print(sum(wal.table(view).num_rows for view in pgwal.VIEWS))
    """
    done = run_without(others, textwrap.dedent(code))
    assert done.stderr == ""
    assert int(done.stdout) == sum(decoded_rows(folder, view).num_rows for view in pgwal.VIEWS)


@pytest.mark.parametrize("missing", ["numba", "pyarrow"])
def test_without_its_extra_the_import_fails_in_one_line(missing: str) -> None:
    done = run_without({missing}, "import pgwal")
    last = done.stderr.splitlines()[-1]
    assert last == f"ImportError: pgwal needs {missing}, which is not installed: {pip_install('decoder')}"


def examples() -> Iterator[str]:
    text = (ROOT / "docs" / "guide" / "pgwal.md").read_text()
    yield from re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_examples_of_the_guide_run_as_they_are_printed(
    folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path(folder).parent)
    names: dict[str, Any] = {}
    for example in examples():
        exec(compile(ast.parse(example), "docs/guide/pgwal.md", "exec"), names)
    printed = capsys.readouterr().out
    assert printed.startswith(f"7 1 {MIB}\n0/100000 to ")
    assert "no WAL from 0/0 on: the WAL begins at 0/100000" in printed
    assert names["largest"].num_rows == 4  # Three relations, and the commits.
    assert names["images"] == 0
    assert names["some"].num_rows > 100
    assert names["evening"]["time"].to_pylist() == [time_of(number) for number in range(100, 401)]
    assert isinstance(names["commits"], pa.Table)


def test_every_name_and_view_is_in_the_guide() -> None:
    text = (ROOT / "docs" / "guide" / "pgwal.md").read_text()
    assert [view for view in pgwal.VIEWS if f"| `{view}` |" not in text] == []
    assert [name for name in pgwal.__all__ if name not in text and name not in ("Bound", "Extent")] == []


class _Started:
    """A session's context."""

    pythonExec = "/bin/false"


@pytest.fixture
def without_variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(pyspark.SparkContext, "_active_spark_context", None)
    return monkeypatch


def test_spark_is_given_this_python(without_variables: pytest.MonkeyPatch) -> None:
    assert spark.configure() == sys.executable
    assert {library_spark.os.environ[name] for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")} == {sys.executable}


def test_a_python_without_the_data_sources_is_refused_with_the_one_to_set(
    without_variables: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho 'ModuleNotFoundError: x' >&2\nexit 1\n")
    other.chmod(0o700)
    without_variables.setenv("PYSPARK_PYTHON", str(other))
    with pytest.raises(
        pgwal.ConfigurationError, match=rf"\(ModuleNotFoundError: x\): set PYSPARK_PYTHON to {sys.executable}"
    ):
        spark.configure()
    without_variables.setenv("PYSPARK_PYTHON", str(tmp_path / "none"))
    with pytest.raises(pgwal.ConfigurationError, match="No such file or directory"):
        spark.configure()
    without_variables.delenv("PYSPARK_PYTHON")
    without_variables.setattr(pyspark.SparkContext, "_active_spark_context", _Started())
    with pytest.raises(pgwal.ConfigurationError, match="stop the session, and set PYSPARK_PYTHON"):
        spark.configure()
