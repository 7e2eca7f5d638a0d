"""The batch source pgwal in Spark: its rows are those of the decoder."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyspark_pgwal
import pytest
from pyspark.sql import SparkSession

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import format_lsn
from tests.pipeline.small_wal import FIRST_TIME, decoded_rows, small_wal, write_wal
from tests.unit.wal_builder import MIB, WalBuilder
from walproxy.pipeline.schemas import VIEWS
from walproxy.pipeline.source.data_source import PgwalDataSource
from walproxy.pipeline.spark_errors import spark_errors
from walproxy.wal_sources.source import SourceCorrupt, WalMissing


@pytest.fixture(scope="module")
def wal() -> WalBuilder:
    return small_wal(5 * MIB + 300_000)


@pytest.fixture(scope="module")
def folder(wal: WalBuilder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    return write_wal(tmp_path_factory.mktemp("wal") / "pg_wal", wal)


def rows(spark: SparkSession, folder: str, **options: str) -> pa.Table:
    with spark_errors():
        return spark.read.format("pgwal").options(**options).load(folder).toArrow()


def in_order(table: pa.Table, view: str) -> list[dict[str, object]]:
    """The rows in the order of the WAL, whatever the order in which tasks have ended."""
    keys = ["begin_lsn"] if "begin_lsn" in table.schema.names else ["lsn"]
    return sorted(table.to_pylist(), key=lambda row: [*(row[key] for key in keys), repr(row)])


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_has_the_rows_of_the_decoder(spark: SparkSession, folder: str, view: str) -> None:
    expected = decoded_rows(folder, view)
    found = rows(spark, folder, view=view, segmentsPerTask="2")
    assert found.schema.names == expected.schema.names
    assert expected.num_rows > 0
    assert in_order(found, view) == in_order(expected, view)


def test_a_range_begins_and_ends_at_any_record(spark: SparkSession, folder: str, wal: WalBuilder) -> None:
    lsns = [record.start_lsn for record in wal.records]
    found = rows(spark, folder, columns="lsn", startLsn=format_lsn(lsns[77]), endLsn=format_lsn(lsns[-77]))
    assert sorted(found["lsn"].to_pylist()) == lsns[77:-77]


def test_a_range_of_time_has_the_transactions_of_that_time(spark: SparkSession, folder: str) -> None:
    began = datetime(2000, 1, 1, tzinfo=UTC) + timedelta(microseconds=FIRST_TIME)
    options = {"view": "transactions", "columns": "time"}
    times = {"startTime": began + timedelta(seconds=100), "endTime": began + timedelta(seconds=110)}
    found = rows(spark, folder, **options, **{name: time.isoformat() for name, time in times.items()})
    assert sorted(found["time"].to_pylist()) == [began + timedelta(seconds=s) for s in range(100, 111)]
    later = {"startTime": (began + timedelta(days=1)).isoformat(), "endTime": (began + timedelta(days=2)).isoformat()}
    assert rows(spark, folder, **options, **later).num_rows == 0


def test_what_is_wrong_is_reported_in_one_line(spark: SparkSession, wal: WalBuilder, tmp_path: Path) -> None:
    damaged = write_wal(tmp_path / "damaged", wal)
    path = next(Path(damaged).glob("*3"))
    content = bytearray(path.read_bytes())
    content[500_000] ^= 1
    path.write_bytes(content)
    with pytest.raises(SourceCorrupt, match=r"^WAL at 0/37\w+: .* in 000000010000000000000003 of ") as raised:
        rows(spark, damaged)
    assert "\n" not in str(raised.value)
    path.unlink()
    with pytest.raises(WalMissing, match=r"^\w+ is missing: no WAL from 0/2F\w+ to 0/400000; find that file"):
        rows(spark, damaged)
    with pytest.raises(ConfigurationError, match=r"^unknown view 'rows'"):
        rows(spark, damaged, view="rows")


def test_spark_finds_the_source_by_itself() -> None:
    assert pyspark_pgwal.DefaultSource is PgwalDataSource
    assert PgwalDataSource.name() == "pgwal"
